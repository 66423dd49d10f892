"""Applies pseudonyms to every text of a page, whatever draws it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Protocol, TypeVar

from markupsafe import Markup
from msgspec import Struct, structs

from diag.show.page import Command, Page, RunName

T = TypeVar("T")


class Pseudonyms(Protocol):
    """Replaces names. ``kept``: a sentence about the names that it deliberately keeps."""

    @property
    def kept(self) -> str: ...

    def text(self, text: str, /) -> str:
        """The text with pseudonyms for the names in it."""

    def command(self, text: str, /) -> str:
        """The command, reduced to the words that diag knows."""

    def run_name(self, text: str, /) -> str:
        """A pseudonym for the run's name."""


def page_without_names(page: Page, names: Pseudonyms) -> Page:
    """The page redacted. The message of an exception is left out: it may name anything."""
    if page.outcome is not None:
        page = structs.replace(page, outcome=structs.replace(page.outcome, why="", action=""))
    return redacted(page, names)


def redacted(value: T, names: Pseudonyms) -> T:
    """The value with all texts redacted, also in nested records and tuples; numbers and functions are unchanged."""
    replaced: Any = value
    if isinstance(value, (Enum, Markup)):  # markup is diag's: figures of numbers and ranks
        pass
    elif isinstance(value, RunName):
        replaced = RunName(names.run_name(value))
    elif isinstance(value, Command):
        replaced = Command(names.command(value))
    elif isinstance(value, str):
        replaced = names.text(value)
    elif isinstance(value, tuple):
        replaced = tuple(redacted(item, names) for item in value)
    elif isinstance(value, Struct):
        replaced = structs.replace(value, **_fields(value, value.__struct_fields__, names))
    elif is_dataclass(value) and not isinstance(value, type):
        replaced = replace(value, **_fields(value, [field.name for field in fields(value)], names))
    result: T = replaced
    return result


def _fields(value: Any, chosen: Iterable[str], names: Pseudonyms) -> dict[str, Any]:
    return {field: redacted(getattr(value, field), names) for field in chosen}
