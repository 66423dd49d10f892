"""Tables in a terminal. A number is never cut: where there is no room, long names give way, then whole columns."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from rich import table as of_rich
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from diag.words.formatting import spaced, visible
from diag.words.policy import TERMINAL
from diag.words.table import Table

# Of cells, by row and column; the column "" is the whole row.
Styles = Mapping[tuple[int, str], str]
_AT_FAULT = "bold red"


def print_table(console: Console, table: Table, styles: Styles | None = None, in_short: bool = False) -> None:
    """Prints the title, the rows, what is left out, and the notes. ``in_short``: columns for which there is
    no room are not named."""
    styles = styles or {}
    if table.title:
        console.print(Text(spaced(table.title), "italic"))
    table = table.known().without_zeros()
    shown, widths, gap = _fitted(table, console.width)
    grid = of_rich.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=any(shown.headings))
    for column, width in zip(shown.columns, widths, strict=True):
        grid.add_column(
            Text(shown.heading(column)),
            justify="right" if column.unit.is_number else "left",
            no_wrap=width > 0,
            overflow="ellipsis" if column.long else "fold",
            width=width or None,
        )
    for number, row in enumerate(shown.texts()):
        cells = (
            Text(_shown(cell), styles.get((number, column.id), ""))
            for column, cell in zip(shown.columns, row, strict=True)
        )
        grid.add_row(*cells, style=styles.get((number, ""), _AT_FAULT if number in table.at_fault else ""))
    console.print(grid)
    if table.more:
        console.print(Text(table.more, "dim"))
    dropped = [table.heading(column) for column in table.columns if column not in shown.columns]
    if dropped and not in_short:
        console.print(Text(f"A wider terminal also shows: {', '.join(dropped)}.", "dim"))
    for note in table.notes:
        console.print(Text(spaced(note), "dim"))


def has_room(table: Table, room: int) -> bool:
    """Whether the whole table fits: all columns, and all of each name."""
    table = table.known().without_zeros()
    shown, widths, _ = _fitted(table, room)
    texts = (shown.headings, *shown.texts())
    names = (max(cell_len(_shown(cells[place])) for cells in texts) for place in range(len(widths)))
    return len(shown.columns) == len(table.columns) and all(map(operator.le, names, widths))


def _shown(cell: str) -> str:
    """The cell as the terminal has it, whose escapes take room as well."""
    return visible(spaced(cell))


def _fitted(table: Table, room: int) -> tuple[Table, list[int], int]:
    """The table without the columns that have no room, the width of each column, and the gap between two. A width of 0:
    text that is broken into lines."""
    shown = table
    while True:
        widths = [
            max(cell_len(_shown(cells[place])) for cells in (shown.headings, *shown.texts()))
            for place in range(len(shown.columns))
        ]
        long = [place for place, column in enumerate(shown.columns) if column.long]
        fixed = sum(width for place, width in enumerate(widths) if place not in long)
        least = sum(min(widths[place], TERMINAL.least_text_columns) for place in long)
        gap = 2 if fixed + least + 2 * (len(widths) - 1) <= room else 1
        rest = room - fixed - gap * (len(widths) - 1)
        spare = [place for place, column in enumerate(shown.columns) if column.weight]
        if rest >= least or len(widths) == 1 or not spare:
            break
        least_weight = min(shown.columns[place].weight for place in spare)
        last = max(place for place in spare if shown.columns[place].weight == least_weight)
        shown = shown.only(column.id for place, column in enumerate(shown.columns) if place != last)
    if rest < 0 and not long:
        return shown, [0] * len(widths), gap
    for number, place in enumerate(long):
        widths[place] = max(1, min(widths[place], rest // (len(long) - number)))
        rest -= widths[place]
    return shown, widths, gap
