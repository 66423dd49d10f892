"""One event of the timeline in words, or the gap in its place; and events that a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from diag.app.policy import DASHBOARD
from diag.app.timeline_data.asked import RefusedError, moment, search_text, wants_python, whole
from diag.app.timeline_data.overlays import arrows_of, gap, waited_words
from diag.app.timeline_data.source import Source
from diag.app.timeline_data.work import work_words
from diag.model.steps import CollectiveCall
from diag.tables.overlays import waited_for
from diag.tables.tiles import EventFacts
from diag.tables.zoom import Category
from diag.timeline import timeline_of
from diag.words.formatting import duration, rank_ranges, size, visible


def event(source: Source, asked: Mapping[str, str]) -> Response:
    """All facts about the event of a row that takes most of a window, or about the one of an index. Without an event:
    the gap around the window's begin."""
    rank, number = whole(asked.get("rank", ""), "rank"), whole(asked.get("row", ""), "row")
    rows = source.rows(rank, wants_python(asked))
    if not 0 <= number < len(rows):
        raise RefusedError(f"row: rank {rank} has {len(rows)} rows")
    row = rows[number]
    if "index" in asked:
        index: int | None = whole(asked["index"], "index")
        if index is None or not 0 <= index < len(row.start_ns):
            raise RefusedError("index: no such event in this row")
    else:
        index = row.longest(moment(asked, "from"), moment(asked, "to"))
    if index is None:
        begin, end = row.gap(moment(asked, "from"))
        about = gap(source, rank, number, begin, end, wants_python(asked))
        return JSONResponse({"event": None, "gap": [begin, end], **about})
    return JSONResponse({"event": _described(source, rank, number, index, wants_python(asked))})


def find(source: Source, asked: Mapping[str, str]) -> Response:
    """How many events of a rank a search finds, and the next one after a moment, or after the event of a ``number``.
    ``back``: the previous one."""
    rank, text = whole(asked.get("rank", ""), "rank"), search_text(asked)
    if not text:
        raise RefusedError("find: no text to search for")
    matches = source.search(rank, text, wants_python(asked))
    back = asked.get("back") == "1"
    at = matches.beside(moment(asked, "from"), not back)
    if "number" in asked and len(matches):  # several may begin at one moment
        at = (whole(asked["number"], "number") - (2 if back else 0)) % len(matches)
    if at is None:
        return JSONResponse({"count": 0, "number": None, "event": None})
    described = _described(source, rank, int(matches.row[at]), int(matches.index[at]), wants_python(asked))
    return JSONResponse({"count": len(matches), "number": at + 1, "event": described})


def tally(source: Source, asked: Mapping[str, str]) -> Response:
    """How many events a search finds on each rank that was counted so far; those of ``first`` come before the
    others."""
    text = search_text(asked)
    if not text:
        raise RefusedError("find: no text to search for")
    first = [whole(rank, "first") for rank in asked.get("first", "").split(",") if rank]
    progress = source.tally(text, wants_python(asked), first)
    ended, counts = progress.ended, list(progress.counts.items())
    some = sorted((rank, count) for rank, count in counts if count)
    return JSONResponse({"ranks": progress.ranks, "searched": len(counts), "ended": ended, "counts": some})


def _described(source: Source, rank: int, row: int, index: int, python: bool) -> dict[str, Any]:
    facts = source.facts(rank, row, index, python)
    return {
        "rank": rank,
        "row": row,
        "index": index,
        "start_ns": facts.start_ns,
        "dur_ns": facts.dur_ns,
        "title": visible(facts.name[: DASHBOARD.most_name_chars]) or work_words(facts.work),
        "facts": [[label, visible(text)] for label, text in (*_lines(facts, rank), *_waits(source, rank, facts))],
        "launches": _launches(source, rank, row, facts, python),
    }


def _waits(source: Source, rank: int, facts: EventFacts) -> list[tuple[str, str]]:
    """For whom the rank waited in the event; nothing for events in which no rank waits."""
    if facts.work != Category.WAITING and facts.collective is None:
        return []
    waited = waited_for(timeline_of(source.result), rank, facts.start_ns, facts.start_ns + facts.dur_ns)
    return [("Waited for", waited_words(waited))] if waited is not None else []


def _launches(source: Source, rank: int, row: int, facts: EventFacts, python: bool) -> list[list[int]]:
    """The launch of the event, or the launches in it."""
    seen = source.launches(rank, python).within(facts.start_ns, facts.start_ns + max(1, facts.dur_ns))
    arrows = [
        arrow
        for arrow in arrows_of(seen)
        if (arrow[3] == row and arrow[2] == facts.start_ns)
        or (arrow[1] == row and facts.start_ns <= arrow[0] < facts.start_ns + max(1, facts.dur_ns))
    ]
    return arrows[: DASHBOARD.most_launches]


def _lines(facts: EventFacts, rank: int) -> list[tuple[str, str]]:
    lines = [
        ("Kind", work_words(facts.work)),
        ("Duration", duration(facts.dur_ns)),
        ("Start", f"{facts.start_ns / 1e6:,.6f} ms"),
        ("Rank", str(rank)),
        ("Step", str(facts.step) if facts.step is not None else "between steps"),
        ("Lane", facts.lane),
    ]
    if facts.stream is not None:
        lines.append(("Stream", str(facts.stream)))
    if facts.launch is not None:
        around = " > ".join(facts.launch.operators) or "no operator around the call"
        lines.append(("Launched by", around))
        lines.append(("Launch to start", duration(facts.launch.delay_ns)))
    if facts.module:
        lines.append(("Module", facts.module))
    if facts.collective is not None:
        lines += _of_collective(facts.collective)
    return [(label, text[: DASHBOARD.most_name_chars]) for label, text in lines]


def _of_collective(call: CollectiveCall) -> list[tuple[str, str]]:
    ranks = f" ({rank_ranges(call.group_ranks)})" if call.group_ranks else ""
    lines = [("Collective", call.op)]
    if group := f"{call.group}{ranks}".strip():
        lines.append(("Process group", group))
    if call.bytes:
        lines.append(("Bytes", f"{call.bytes:,} ({size(call.bytes)}){f', {call.dtype}' if call.dtype else ''}"))
    return lines
