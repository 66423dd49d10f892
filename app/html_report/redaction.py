"""Applies pseudonyms to every text of a page, whatever it is called and wherever it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from msgspec import Struct, structs

from diag.app.html_report.page import Command, Page, RunName
from diag.app.run_view import RunView

T = TypeVar("T")


class Pseudonyms(Protocol):
    """What hides names. ``kept``: what it deliberately leaves, in words."""

    @property
    def kept(self) -> str: ...

    def text(self, text: str, /) -> str:
        """The text with pseudonyms for the names in it."""

    def command(self, text: str, /) -> str:
        """The same of a command, of which only what diag itself knows is left."""

    def run_name(self, text: str, /) -> str:
        """Instead of what a person called the run."""


def redacted_view(view: RunView, names: Pseudonyms) -> RunView:
    """The layout with the only words that figures show of it redacted: why steps do not count."""
    return replace(view, notes=tuple(names.text(note) for note in view.notes))


def redacted_page(page: Page, names: Pseudonyms) -> Page:
    """The page with every text in it redacted; its figures are those of a redacted view already."""
    return _redacted(page, names)


def _redacted(value: T, names: Pseudonyms) -> T:
    """Of records and tuples all the way down; numbers and functions stay."""
    found: Any = value
    if isinstance(value, RunName):
        found = RunName(names.run_name(value))
    elif isinstance(value, Command):
        found = Command(names.command(value))
    elif isinstance(value, str):
        found = names.text(value)
    elif isinstance(value, tuple):
        found = tuple(_redacted(item, names) for item in value)
    elif isinstance(value, Struct):
        found = structs.replace(value, **_fields(value, value.__struct_fields__, names))
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **_fields(value, [field.name for field in fields(value)], names))
    result: T = found
    return result


def _fields(value: Any, chosen: Iterable[str], names: Pseudonyms) -> dict[str, Any]:
    return {field: _redacted(getattr(value, field), names) for field in chosen}
