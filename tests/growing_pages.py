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
    from diag.app.timeline_data import Source, event, find, ranks_tile, rows_tile
    from diag.tables.tiles import MOST_LEVEL

    source = Source(open_run(folder))
    ranks = list(source.result.timeline.ranks)
    for level in range(0, MOST_LEVEL + 1, 4):
        at = {"level": str(level), "tile": "0"}
        ranks_tile(source, {**at, "ranks": ",".join(map(str, ranks[:128]))})
        rows_tile(source, {**at, "rank": str(ranks[0])})
    rows = source.rows(ranks[0], False)
    for row in range(0, len(rows), max(1, len(rows) // 8)):
        event(source, {"rank": str(ranks[0]), "row": str(row), "from": "0", "to": str(10**12)})
    rows_tile(source, {"level": str(MOST_LEVEL), "tile": "0", "rank": str(ranks[0]), "find": "e"})
    find(source, {"rank": str(ranks[0]), "find": "e", "from": "0"})
