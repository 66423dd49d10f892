"""Cells and columns of the tables in a terminal: numbers are never cut, text gives way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .terminal import console

if TYPE_CHECKING:
    from rich.console import Console


WIDEST = 110
UNKNOWN = "-"
_FLEXIBLE = ("in", "operator: kernel", "operator", "module")
_LEAST_TEXT = 30


def report_console(existing: Console | None = None) -> Console:
    """``existing``, else a console for standard output, set up for reports: colours only on a terminal, at most 110
    columns."""
    target = existing or console()
    target.width = min(target.width, WIDEST) if target.is_terminal else WIDEST
    return target


def print_columns(
    console: Console,
    columns: dict[str, list[str]],
    left: Sequence[str],
    more: int,
) -> None:
    """Numbers are never cut; the columns of _FLEXIBLE, which hold text, share the remaining width."""
    widths = {name: max(len(text) for text in (name, *cells)) for name, cells in columns.items()}
    flexible = [name for name in _FLEXIBLE if name in columns]
    fixed = sum(width for name, width in widths.items() if name not in flexible)
    gap = 2 if fixed + 2 * len(columns) + _LEAST_TEXT * len(flexible) <= WIDEST else 1
    rest = WIDEST - fixed - gap * (len(columns) - 1)
    for number, name in enumerate(flexible):
        widths[name] = min(widths[name], rest // (len(flexible) - number))
        rest -= widths[name]
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name, width in widths.items():
        table.add_column(
            name, justify="left" if name in left else "right", no_wrap=True, overflow="ellipsis", width=width
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    if more > 0:
        console.print(f"[dim]… and {more} more.[/]")


def ms(ns: int | None, over: int = 1) -> str:
    return UNKNOWN if ns is None else short(ns / over / 1e6) if over else "0"


def short(value: float | None) -> str:
    """Three digits or so: 0.012, 1.23, 45.6, 1,234."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3}f}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""
