"""``key=value`` syntax: declares and checks the keys of faults and of strategies. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class OptionError(ValueError):
    """An option that the trainer cannot use. The message has the reason, and what to do instead."""


ALL_RANKS = "all"

INTEGER = "integer"
NUMBER = "number"
RANK = "rank"  # one rank
RANKS = "rank or all"
CHOICE = "choice"
TEXT = "text"


@dataclass(frozen=True)
class Key:
    """A key that takes a value. ``default`` None: a value is required. ``least``: lower bound of numbers."""

    name: str
    kind: str
    default: str | None
    help: str
    choices: tuple[str, ...] = ()
    least: float = 0

    def __str__(self) -> str:
        """``ms=300``: the key with its default, or with a placeholder."""
        return f"{self.name}={self.kind.upper() if self.default is None else self.default}"


def values_of(
    owner: str,
    keys: Iterable[Key],
    parts: Iterable[str],
    usage: str,
    error: type[ValueError],
    world_size: int | None = None,
) -> tuple[tuple[str, str], ...]:
    """Every key of ``owner`` with its value, from parts like ``ms=300``; the default for a missing key.

    Raises ``error`` with the mistake and ``usage``, the valid syntax.
    """
    keys_by_name = {key.name: key for key in keys}
    assigned: dict[str, str] = {}
    for part in parts:
        key, equals, value = (p.strip() for p in part.partition("="))
        if key not in keys_by_name:
            raise error(f"{owner} takes no {key!r}: write {usage}")
        if not equals or not value:
            raise error(f"{owner}: {key} has no value: write {usage}")
        if key in assigned:
            raise error(f"{owner}: {key} is given twice")
        assigned[key] = value
    values = []
    for spec in keys_by_name.values():
        text = assigned.get(spec.name, spec.default)
        if text is None:
            raise error(f"{owner} needs {spec.name}= ({spec.help}): write {usage}")
        if wrong := _wrong(spec, text, world_size):
            raise error(f"{owner}: {spec.name}={text}{wrong}")
        values.append((spec.name, text))
    return tuple(values)


def _wrong(key: Key, text: str, world_size: int | None) -> str:
    """What is wrong with a value, as text that follows it; "" for a valid one."""
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
    """A setting that the strategy does not have, or a value that it does not take."""


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
        """The value, or ``otherwise`` if the strategy has no such setting."""
        return dict(self.values).get(name, otherwise)


# -- options -----------------------------------------------------------------------------------------------------------
#
# Fields of a dataclass of options, from which the command line is generated: name, default, bounds and help.

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """The command-line option of a field. ``panel`` "": it has none. ``path``: a file or folder."""

    help: str
    panel: str
    flag: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    path: bool = False


def option(default: T, panel: str, help: str = "", flag: str = "", **more: Any) -> T:
    """A field of a dataclass of options, with the rest of ``Option`` in ``more``. ``flag``: by default ``--`` and the
    field's name."""
    result: T = field(default=default, metadata={"option": Option(help, panel, flag, **more)})
    return result


def options_of(cls: type[DataclassInstance]) -> Iterator[tuple[Field[Any], Option]]:
    """The fields of a dataclass of options, each with its flag filled in."""
    for option_field in fields(cls):
        about: Option = option_field.metadata["option"]
        yield option_field, replace(about, flag=about.flag or f"--{option_field.name.replace('_', '-')}")


def listed(names: Iterable[str]) -> str:
    """The names as a choice: ``a, b or c``."""
    *first_names, last = names
    return f"{', '.join(first_names)} or {last}" if first_names else last
