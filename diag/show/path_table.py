"""The critical path by rank, category and module, as ``diag analyze --table path`` prints it."""

from __future__ import annotations

from rich.console import Console

from diag.model.breakdown import PathTable
from diag.words.cells import ms, print_columns

_MOST_ROWS = 20
_OUTSIDE = "outside any module"


def print_path(console: Console, found: PathTable) -> None:
    """Prints the rows with most of the steps' time, and how much of it no module has."""
    if not found.rows:
        console.print("No step was recorded.", style="italic")
        return
    rows, steps = found.rows[:_MOST_ROWS], len(found.steps)
    which = f"{steps} {'traced' if found.traced else 'recorded'} step{'s' if steps > 1 else ''}"
    whole = ms(found.total_ns, steps)
    console.print(
        f"Critical path: {whole} ms a step ({which}), by who made all others wait, doing what", style="italic"
    )
    columns = {
        "rank": [str(row.rank) for row in rows],
        "category": [row.category for row in rows],
        "module": [row.module or _OUTSIDE for row in rows],
        "ms": [ms(row.total_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
    }
    print_columns(console, columns, left=("category", "module"), more=len(found.rows) - len(rows))
    if found.in_modules_ns < found.total_ns:
        rest = found.total_ns - found.in_modules_ns
        console.print(f"[dim]Outside any module: {ms(rest, steps)} ms ({rest / found.total_ns:.0%}).[/]")
