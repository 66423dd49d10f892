"""What the dashboard reads when a page is opened, without a browser: for ``tests/growing_inputs.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def page(name: str) -> Callable[[Path], None]:
    """Draws a page of the dashboard for the run or the traces in a folder."""

    def draw(folder: Path) -> None:
        from tests.app.shown import shown

        with pytest.MonkeyPatch.context() as patch:
            shown(name, folder, patch)

    return draw


def timeline(folder: Path) -> None:
    """What the canvas of the timeline asks for while a user zooms in, chooses events and searches."""
    from diag.api import open_run
    from diag.app.timeline_data.events import event, find
    from diag.app.timeline_data.source import Source
    from diag.app.timeline_data.tiles import ranks_tile, rows_tile
    from diag.tables.tiles import CELLS
    from diag.timeline import timeline_of

    source = Source(open_run(folder))
    ranks = list(timeline_of(source.result).ranks)
    levels = range(0, 54 - CELLS.bit_length(), 4)  # up to where JavaScript's numbers are exact
    for level in levels:
        at = {"level": str(level), "tile": "0"}
        ranks_tile(source, {**at, "ranks": ",".join(map(str, ranks[:128]))})
        rows_tile(source, {**at, "rank": str(ranks[0])})
    rows = source.rows(ranks[0], False)
    for row in range(0, len(rows), max(1, len(rows) // 8)):
        event(source, {"rank": str(ranks[0]), "row": str(row), "from": "0", "to": str(10**12)})
    rows_tile(source, {"level": str(levels[-1]), "tile": "0", "rank": str(ranks[0]), "find": "e"})
    find(source, {"rank": str(ranks[0]), "find": "e", "from": "0"})
