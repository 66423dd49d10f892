"""Thresholds as documented values: each has a value, a unit, and where it comes from.

A topic is a class of thresholds that belong to one subject, and the one instance of it. Plain classes, not dataclasses:
making a dataclass compiles code, which takes a training's process a millisecond for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NoReturn, TypeVar

_T = TypeVar("_T", int, float)

TOPICS: dict[str, Topic] = {}  # of the policy modules that were imported


class Threshold:
    """One number. ``origin``: "chosen", with the reason if one is known; "measured: ..."; or the source that has it.
    ``meaning``: what is compared with it, as far as its name leaves that open."""

    __slots__ = ("meaning", "origin", "unit", "value")

    def __init__(self, value: float, unit: str, origin: str, meaning: str) -> None:
        self.value, self.unit, self.origin, self.meaning = value, unit, origin, meaning


def threshold(value: _T, unit: str, origin: str = "chosen", meaning: str = "") -> _T:
    """Declares a threshold of a topic. ``unit``: "fraction" and "confidence" lie between 0 and 1."""
    return Threshold(value, unit, origin, meaning)  # type: ignore[return-value]  # the instance has the value


class Topic:
    """The thresholds of one subject. Nothing but ``diag.policy`` changes their values.

    ``name``: what users call it. ``fixed``: a file cannot override the values, because they are sizes that the code
    rests on, or are used in the training's own process.
    """

    name: ClassVar[str]
    fixed: ClassVar[bool]
    thresholds: ClassVar[Mapping[str, Threshold]]

    def __init_subclass__(cls, name: str = "", fixed: bool = False) -> None:
        cls.name, cls.fixed = name, fixed
        cls.thresholds = MappingProxyType({key: its for key, its in vars(cls).items() if isinstance(its, Threshold)})

    @property
    def meaning(self) -> str:
        """What its thresholds are about, in a sentence."""
        return (type(self).__doc__ or "").strip()

    def __init__(self) -> None:
        assert self.name not in TOPICS, f"two topics are called {self.name}"
        vars(self).update((name, threshold.value) for name, threshold in self.thresholds.items())
        TOPICS[self.name] = self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self.name}.{name} is set by diag.policy alone")
