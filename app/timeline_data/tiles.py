"""Tiles of the timeline: what is drawn in a stretch of time at a zoom level.

Binary: the length of a JSON header as uint32, the header, padding to 8 bytes, then arrays, each at an offset from the
header, a multiple of 8.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

from diag.app.policy import DASHBOARD
from diag.app.timeline_data.asked import RefusedError, search_text, tile_of, wants_python, whole
from diag.app.timeline_data.source import Source
from diag.app.timeline_data.work import drawn_name
from diag.tables.tiles import Cells, Row, heading_of, rank_cells, read_row
from diag.words.formatting import visible


def ranks_tile(source: Source, asked: Mapping[str, str]) -> Response:
    """The parts of the steps of several ranks in one tile: for each rank, shares by the code of the work."""
    level, tile = tile_of(asked)
    ranks = [whole(text, "ranks") for text in asked.get("ranks", "").split(",")]
    if len(ranks) > DASHBOARD.most_timeline_ranks:
        raise RefusedError(f"ranks: at most {DASHBOARD.most_timeline_ranks}")
    packed = _Packed()
    rows = [{"rank": rank, **packed.cells(rank_cells(source.account(rank), level, tile))} for rank in ranks]
    return packed.answer({"rows": rows})


def rows_tile(source: Source, asked: Mapping[str, str]) -> Response:
    """All rows of one rank in one tile, with the events marked that a search finds."""
    level, tile = tile_of(asked)
    rank = whole(asked.get("rank", ""), "rank")
    python = wants_python(asked)
    matches = source.search(rank, text, python) if (text := search_text(asked)) else None
    packed, names = _Packed(), _Names()
    rows = []
    for number, row in enumerate(source.rows(rank, python)):
        read = read_row(row, level, tile, matches.rows[number] if matches is not None else None)
        drawn = packed.cells(read) if isinstance(read, Cells) else packed.events(row, read.index, read.found, names)
        about = {"title": visible(row.title), "heading": heading_of(row), "depth": row.depth, "deeper": row.deeper}
        rows.append({**about, **drawn})
    return packed.answer({"rows": rows, "names": names.texts, "python": source.has_python(rank)})


class _Names:
    """The distinct names in a tile."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._place: dict[str, int] = {}

    def place(self, name: str) -> int:
        if name not in self._place:
            self._place[name] = len(self.texts)
            self.texts.append(visible(name[: DASHBOARD.most_name_chars]))
        return self._place[name]


class _Packed:
    """Arrays in sequence, each at a multiple of 8 bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        data = array.tobytes()
        padded = data + bytes(-len(data) % 8)
        self._parts.append(padded)
        self._size += len(padded)
        return self._size - len(padded)

    def cells(self, cells: Cells) -> dict[str, Any]:
        shares = [[code, self.add(share)] for code, share in cells.shares.items()]
        found_offset = self.add(cells.found) if cells.found is not None and cells.found.any() else None
        return {"cells": shares, "found": found_offset}

    def events(
        self, row: Row, index: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_] | None, names: _Names
    ) -> dict[str, Any]:
        codes = row.lane.name[row.place[index]].tolist()
        texts = {code: drawn_name(row.lane.names[code], row.lane.category) for code in {*codes}}
        place = np.array([names.place(texts[code]) for code in codes], dtype=np.uint32)
        return {
            "count": len(index),
            "start": self.add(row.start_ns[index].astype("<f8")),
            "end": self.add(row.end_ns[index].astype("<f8")),
            "index": self.add(index.astype("<u4")),
            "name": self.add(place.astype("<u4")),
            "work": self.add(row.work[index]),
            "found": self.add(mask.astype(np.uint8)) if mask is not None else None,
        }

    def answer(self, header: Mapping[str, Any]) -> Response:
        text = json.dumps(header, separators=(",", ":")).encode()
        begin = struct.pack("<I", len(text)) + text
        body = b"".join((begin, bytes(-len(begin) % 8), *self._parts))
        return Response(body, media_type="application/octet-stream", headers={"cache-control": "no-store"})
