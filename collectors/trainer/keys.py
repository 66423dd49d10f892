"""``key=value``: how faults and a strategy's settings are declared, written and checked. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class OptionError(ValueError):
    """A choice the trainer cannot follow. The message says what, and what to do instead."""


ALL_RANKS = "all"

INTEGER = "integer"
NUMBER = "number"
RANK = "rank"  # one rank
RANKS = "rank or all"
CHOICE = "choice"
TEXT = "text"


@dataclass(frozen=True)
class Key:
    """What can be given a value. ``default`` of None: it must be given. ``least`` bounds numbers from below."""

    name: str
    kind: str
    default: str | None
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0

    def __str__(self) -> str:
        """``ms=300``: the key with its default, or with what to fill in."""
        return f"{self.name}={self.kind.upper() if self.default is None else self.default}"


def values_of(
    owner: str,
    keys: Iterable[Key],
    parts: Iterable[str],
    usage: str,
    error: type[ValueError],
    world_size: int | None = None,
) -> tuple[tuple[str, str], ...]:
    """Every key of ``owner`` with its value, from parts like ``ms=300``; defaults for what is not given.

    Raises ``error``, which says what is wrong and, as ``usage``, what could be written.
    """
    known = {key.name: key for key in keys}
    given: dict[str, str] = {}
    for part in parts:
        key, equals, value = (p.strip() for p in part.partition("="))
        if key not in known:
            raise error(f"{owner} takes no {key!r}: write {usage}")
        if not equals or not value:
            raise error(f"{owner}: {key} has no value: write {usage}")
        if key in given:
            raise error(f"{owner}: {key} is given twice")
        given[key] = value
    values = []
    for spec in known.values():
        text = given.get(spec.name, spec.default)
        if text is None:
            raise error(f"{owner} needs {spec.name}= ({spec.help}): write {usage}")
        if wrong := _wrong(spec, text, world_size):
            raise error(f"{owner}: {spec.name}={text}{wrong}")
        values.append((spec.name, text))
    return tuple(values)


def _wrong(key: Key, text: str, world_size: int | None) -> str:
    """What is wrong with a value, to be read behind it; "" for a good one."""
    if key.kind == TEXT or (key.kind == RANKS and text == ALL_RANKS):
        return ""
    if key.kind == CHOICE:
        return "" if text in key.choices else f" is unknown: use {' or '.join(key.choices)}"
    if key.kind == NUMBER:
        try:
            number = float(text)
        except ValueError:
            return " is not a number"
        return "" if key.least <= number < float("inf") else f" must be finite and {key.least:g} or more"
    try:
        integer = int(text)
    except ValueError:
        return f" is not {'a rank, or all' if key.kind == RANKS else 'a whole number'}"
    if integer < key.least:
        return f" must be {key.least:g} or more"
    if key.kind in (RANK, RANKS) and world_size is not None and integer >= world_size:
        return f": there are {world_size} ranks, 0 to {world_size - 1}"
    return ""


class KnobError(ValueError):
    """A setting that the strategy does not have, or a value it does not take."""


@dataclass(frozen=True)
class Knobs:
    """The settings of one strategy, each with its value."""

    values: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str:
        return dict(self.values)[name]

    def number(self, name: str) -> float:
        return float(self.text(name))

    def integer(self, name: str) -> int:
        return int(self.text(name))

    def on(self, name: str) -> bool:
        return self.text(name) == "yes"

    def get(self, name: str, otherwise: str) -> str:
        """The value, or ``otherwise`` of a strategy that has no such setting."""
        return dict(self.values).get(name, otherwise)


# -- options -----------------------------------------------------------------------------------------------------------
#
# Fields of a dataclass of options, of which a command line is made: name, default, bounds and help, each once.

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line. ``panel`` of "": it is not. ``path``: a file or folder."""

    help: str
    panel: str
    flag: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    path: bool = False


def option(default: T, panel: str, help: str = "", flag: str = "", **more: Any) -> T:
    """A field of a dataclass of options, with the rest of ``Option`` in ``more``. ``flag``: else ``--`` and the field's
    name."""
    made: T = field(default=default, metadata={"option": Option(help, panel, flag, **more)})
    return made


def options_of(cls: type[DataclassInstance]) -> Iterator[tuple[Field[Any], Option]]:
    """The fields of a dataclass of options, each with its flag filled in."""
    for one in fields(cls):
        about: Option = one.metadata["option"]
        yield one, replace(about, flag=about.flag or f"--{one.name.replace('_', '-')}")


def listed(names: Iterable[str]) -> str:
    """``a, b or c``: a choice in words."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
