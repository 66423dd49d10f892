"""What is drawn over the lanes, or explains a stretch of them: critical path, launches, counters, spans and gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from diag.app.policy import DASHBOARD
from diag.app.timeline_data.asked import RefusedError, wants_python, whole, window
from diag.app.timeline_data.source import Source
from diag.app.timeline_data.work import words
from diag.tables.overlays import (
    BATCHES,
    BYTES,
    RATE,
    Counter,
    Filled,
    Launches,
    Waited,
    filled,
    host_did,
    next_launch,
    waited_for,
)
from diag.timeline import timeline_of
from diag.words.formatting import duration, size, visible
from diag.words.formatting import share as share_of


def path(source: Source, asked: Mapping[str, str]) -> Response:
    """The critical path in a window: rank, begin and end of each stretch."""
    begin, end = window(asked)
    line, left_out = source.path().within(begin, end, DASHBOARD.most_path_pieces)
    return JSONResponse({"pieces": np.stack(line, axis=1).tolist(), "left_out": left_out})


def overlays(source: Source, asked: Mapping[str, str]) -> Response:
    """Launches and counters of a rank in a window. ``launched``: how many launches there are, of which all or none are
    listed."""
    rank, (begin, end) = whole(asked.get("rank", ""), "rank"), window(asked)
    launches = source.launches(rank, wants_python(asked)).within(begin, end)
    launched = len(launches.call_ns)
    arrows = arrows_of(launches) if launched <= DASHBOARD.most_launches else []
    return JSONResponse(
        {
            "launched": launched,
            "launches": arrows,
            "counters": [_counter(counter, begin, end) for counter in source.counters(rank)],
        }
    )


def arrows_of(launches: Launches) -> list[list[int]]:
    arrows: list[list[int]] = np.stack(launches, axis=1).tolist()
    return arrows


def _counter(counter: Counter, begin: int, end: int) -> dict[str, Any]:
    seen = counter.within(begin, end, DASHBOARD.most_counter_pieces)
    says = seen.says or tuple(_amount(value, counter.unit) for value in seen.value.tolist())
    columns = (seen.start_ns.tolist(), seen.end_ns.tolist(), seen.value.tolist(), says)
    return {
        "name": counter.name,
        "lowest": counter.lowest,
        "highest": counter.highest,
        "scale": _scale(counter) if not counter.says else "",
        "pieces": [[start, until, value, visible(text)] for start, until, value, text in zip(*columns, strict=True)],
    }


def _scale(counter: Counter) -> str:
    """The lowest and the highest value of the run; one of them where both read the same."""
    low, high = (_amount(value, counter.unit) for value in (counter.lowest, counter.highest))
    return high if low == high else f"{low} to {high}"


def _amount(value: float, unit: str) -> str:
    if unit in (BYTES, RATE):
        return size(value) + ("/s" if unit == RATE else "")
    return f"{value:,.0f} {unit if unit != BATCHES else 'ready'}".strip()


def span(source: Source, asked: Mapping[str, str]) -> Response:
    """What a measured span of some ranks consists of: for each rank, parts of the step with their time and share."""
    (begin, end), ranks = window(asked), [whole(text, "ranks") for text in asked.get("ranks", "").split(",")]
    if len(ranks) > DASHBOARD.most_timeline_ranks:
        raise RefusedError(f"ranks: at most {DASHBOARD.most_timeline_ranks}")
    spans = [{"rank": rank, "parts": _parts(filled(source.account(rank), begin, end), end - begin)} for rank in ranks]
    return JSONResponse({"duration": duration(end - begin), "ranks": spans})


def _parts(pieces: Sequence[Filled], window_ns: int) -> list[list[str]]:
    """Label and text of each part, and of the time between steps."""
    lines = [
        [
            words(each.category) + (f", {each.detail.replace('_', ' ')}" if each.detail else ""),
            _of_window(each.ns, window_ns),
        ]
        for each in pieces
    ]
    between = window_ns - sum(each.ns for each in pieces)
    return lines + ([["between steps", _of_window(between, window_ns)]] if between > window_ns // 1000 else [])


def _of_window(ns: int, window_ns: int) -> str:
    return f"{duration(ns)}, {share_of(ns / max(window_ns, 1))}"


def gap(source: Source, rank: int, row: int, begin: int | None, end: int | None, python: bool) -> dict[str, Any]:
    """Why nothing ran on a row between two events, as a title and facts; nothing before the first and after the last
    event."""
    if begin is None or end is None or end <= begin:
        return {"why": "", "facts": []}
    account, rows = source.account(rank), source.rows(rank, python)
    parts = filled(account, begin, end)
    facts = [("During it", "; ".join(f"{label} {text}" for label, text in _parts(parts, end - begin)[:4]))]
    waited = waited_for(timeline_of(source.result), rank, begin, end)
    if waited is not None and 2 * waited.late_ns > end - begin:
        facts.append(("Waited for", waited_words(waited)))
    did = host_did(rows, begin, end)
    if did is not None:
        facts.append(("Main thread", f"{did.name} ({did.lane}), {_of_window(did.ns, end - begin)}"))
    launch = next_launch(source.launches(rank, python), row, end)
    if launch is not None and launch[1] == end:
        call, work = launch
        late = (
            f"launched {duration(work - call)} before it began: it was queued"
            if call < begin
            else f"launched {duration(call - begin)} after the gap began, {duration(work - call)} before it ran"
        )
        facts.append(("Next work", late))
    most = max(parts, key=lambda part: part.ns, default=None)
    why = _parts([most], 1)[0][0] if most is not None else "between steps"
    return {"why": why, "facts": [[label, visible(text[: DASHBOARD.most_name_chars])] for label, text in facts]}


def waited_words(waited: Waited) -> str:
    """For whom a rank waited, and what that one did."""
    text = f"rank {waited.rank}, which called {waited.op.replace('_', '-')} {duration(waited.late_ns)} later"
    did = "; ".join(f"{label} {amount}" for label, amount in _parts(waited.did, waited.late_ns)[:2])
    return f"{text}: {did}" if did else text
