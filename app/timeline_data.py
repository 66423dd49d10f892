"""Data that the timeline's canvas requests while the user zooms: tiles, events, searches. The page is not redrawn.

The page shares an analysed run under a random name (`share`); the canvas requests its parts at ``timeline-data/WHAT``,
on the same server and behind the same guard as everything else. Tiles are binary: the length of a JSON header as
uint32, the header, padding to 8 bytes, then arrays, each at an offset from the header, a multiple of 8.
"""

from __future__ import annotations

import io
import json
import secrets
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from diag.api import Result
from diag.app.policy import DASHBOARD
from diag.app.theme import Theme
from diag.errors import DiagError
from diag.model.breakdown import KernelKind
from diag.model.steps import CollectiveCall
from diag.show.parts import PART_OF, Part
from diag.tables.overlays import (
    BATCHES,
    BYTES,
    RATE,
    Counter,
    Filled,
    Launches,
    PathLine,
    Waited,
    counters_of,
    filled,
    host_did,
    launches_of,
    next_launch,
    path_line,
    waited_for,
)
from diag.tables.tiles import (
    CELLS,
    MOST_LEVEL,
    Cells,
    EventFacts,
    Row,
    Search,
    facts_of,
    heading_of,
    lanes_of,
    rank_cells,
    read_row,
    rows_of,
    search,
)
from diag.tables.zoom import (
    WORK,
    Category,
    Lane,
    RankLanes,
    event_lanes,
    has_python,
    python_lanes,
)
from diag.timeline import events_of, timeline_of
from diag.words.formatting import duration, rank_ranges, size, visible
from diag.words.formatting import share as share_of

# -- words and colours -------------------------------------------------------------------------------------------------
#
# Names and colours of the kinds of work in the timeline: parts of a step as on every page.

_WORDS = {
    KernelKind.GEMM: "matrix product",
    KernelKind.FUSED: "fused compute and communication",
    KernelKind.TRITON: "Triton kernel",
    KernelKind.OTHER: "other compute",
}


def words(category: Category) -> str:
    """The displayed name of a part of a step."""
    return PART_OF[category].value if category in PART_OF else category.value


def work_words(work: str) -> str:
    """The displayed name of a kind of work, one of WORK."""
    if work in set(Category):
        return words(Category(work))
    return _WORDS.get(KernelKind(work), work) if work in set(KernelKind) else work.replace("_", "-")


def work_colours(theme: Theme) -> list[str]:
    """The colour of each kind of work, by its code."""
    return [colour_of(work, theme) for work in WORK]


def colour_of(work: str, theme: Theme) -> str:
    """The colour of a kind of work, one of WORK."""
    if work in theme.work:
        return theme.work[work]
    if work in set(Category):
        category = Category(work)
        return theme.part[PART_OF[category]] if category in PART_OF else theme.host
    return theme.part[Part.COMMUNICATION]


_LAST_NS = 1 << 53  # JavaScript's numbers are exact up to here

_Kept = TypeVar("_Kept")


class RefusedError(Exception):
    """A request that cannot be answered, with the reason as its message."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


# -- sources -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Tally:
    """How many events a search finds, by rank, for the ranks counted so far. ``ended``: no more counts will come."""

    ranks: int
    counts: dict[int, int] = field(default_factory=dict)
    ended: bool = False


@dataclass(frozen=True)
class StepToOpen:
    """A step of a rank for Perfetto. Not ``profiled``: made from the rank's records, as no trace covers it."""

    rank: int
    step: int
    profiled: bool


class Source:
    """An analysed run, with a cache of the latest requests of its timeline. Thread-safe."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._lock = threading.RLock()
        self._rows: OrderedDict[tuple[int, bool], tuple[Row, ...]] = OrderedDict()
        self._searches: OrderedDict[tuple[int, str, bool], Search] = OrderedDict()
        self._tallies: OrderedDict[tuple[str, bool], Tally] = OrderedDict()
        self._launches: OrderedDict[int, Launches] = OrderedDict()
        self._counters: OrderedDict[int, list[Counter]] = OrderedDict()
        self._path: PathLine | None = None

    def account(self, rank: int) -> RankLanes:
        account = timeline_of(self.result).ranks.get(rank)
        if account is None:
            raise RefusedError(f"the run has no rank {rank}")
        return account

    def events(self, rank: int) -> tuple[Lane, ...]:
        """The lanes of the rank's traces, which are read at the first call."""
        with self._lock:
            return events_of(self.result, rank)

    def rows(self, rank: int, python: bool) -> tuple[Row, ...]:
        """The rows of a rank. ``python``: with Python's functions, which come last."""
        account = self.account(rank)
        with self._lock:
            return _kept(
                self._rows,
                (rank, python),
                DASHBOARD.timeline_ranks_kept,
                lambda: self._laid_out(account, self.events(rank), python),
            )

    def path(self) -> PathLine:
        """The critical path of the run."""
        with self._lock:
            if self._path is None:
                self._path = path_line(self.result.attribution, timeline_of(self.result))
            return self._path

    def launches(self, rank: int, python: bool) -> Launches:
        """The launches in the rank's traces. Rows of Python's functions come last, so ``python`` changes no place."""
        rows, tables = self.rows(rank, python), self.result.tables.ranks[rank]
        with self._lock:
            return _kept(
                self._launches,
                rank,
                DASHBOARD.timeline_ranks_kept,
                lambda: launches_of(rows, tables, self.account(rank)),
            )

    def counters(self, rank: int) -> list[Counter]:
        """What was sampled on the rank."""
        account, met = self.account(rank), self.result.attribution.collectives
        with self._lock:
            return _kept(
                self._counters,
                rank,
                DASHBOARD.timeline_ranks_kept,
                lambda: counters_of(self.result.tables.ranks[rank], account, met),
            )

    def has_python(self, rank: int) -> bool:
        return has_python(self.result.tables.ranks[rank]) if self.account(rank).traced else False

    def search(self, rank: int, text: str, python: bool) -> Search:
        rows = self.rows(rank, python)
        with self._lock:
            return _kept(self._searches, (rank, text, python), DASHBOARD.searches_kept, lambda: search(rows, text))

    def tally(self, text: str, python: bool, first: Sequence[int]) -> Tally:
        """How many events a search finds on each rank, those in ``first`` before the others. A thread counts; the tally
        is returned at once and fills up."""
        with self._lock:
            if (text, python) not in self._tallies:
                ranks = list(
                    dict.fromkeys((*(self.account(rank).rank for rank in first), *timeline_of(self.result).ranks))
                )
                counting = Tally(len(ranks))
                threading.Thread(target=self._count, args=(counting, ranks, text, python), daemon=True).start()
                return _kept(self._tallies, (text, python), DASHBOARD.searches_kept, lambda: counting)
            return self._tallies[text, python]

    def _count(self, counting: Tally, ranks: Sequence[int], text: str, python: bool) -> None:
        try:
            for rank in ranks:
                with self._lock:
                    if counting not in self._tallies.values():
                        return  # _SEARCHES_KEPT newer searches have replaced this one
                    account = self.account(rank)
                    rows = self._rows.get((rank, python))
                    if rows is None:  # read, but not cached: that would evict ranks that are drawn
                        events = event_lanes(self.result.tables.ranks[rank], account)
                        rows = self._laid_out(account, events, python)
                    counting.counts[rank] = len(search(rows, text))
                time.sleep(DASHBOARD.turn_s)  # a tile may be waiting
        finally:
            counting.ended = True

    def _laid_out(self, account: RankLanes, events: Sequence[Lane], python: bool) -> tuple[Row, ...]:
        functions = python_lanes(self.result.tables.ranks[account.rank], account) if python else ()
        return rows_of(lanes_of(account, [*events, *functions]))

    def step_to_open(self, rank: int, begin_ns: int, end_ns: int) -> StepToOpen | None:
        """The step that a window is about, for Perfetto: the first that a trace covers among those of which the window
        holds half, or which fill half of the window; without one, the first of them that the rank recorded. None if
        the window holds no such step: never another one."""
        account, window_ns = self.account(rank), end_ns - begin_ns
        seen = []
        for step in account.steps:
            begin, end = step.begin_ns + account.moved_ns, step.end_ns + account.moved_ns
            inside = min(end, end_ns) - max(begin, begin_ns)
            if inside > 0 and 2 * inside >= min(end - begin, window_ns):
                seen.append(step.step)
        recorded = self.result.tables.ranks[rank].recorded
        profiled = next((step for step in seen if step in account.traced), None)
        if profiled is not None:
            return StepToOpen(rank, profiled, True)
        return next((StepToOpen(rank, step, False) for step in seen if step in recorded), None)

    def facts(self, rank: int, row: int, index: int, python: bool) -> EventFacts:
        with self._lock:
            return facts_of(self.rows(rank, python)[row], index, self.result.tables.ranks[rank], self.account(rank))


def _kept(cache: OrderedDict[Any, _Kept], key: object, most: int, make: Callable[[], _Kept]) -> _Kept:
    if key not in cache:
        cache[key] = make()
        while len(cache) > most:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


_SOURCES: OrderedDict[str, Source] = OrderedDict()
_SOURCES_LOCK = threading.Lock()


def share(result: Result) -> str:
    """The name under which the canvas requests parts of the run."""
    with _SOURCES_LOCK:
        name = next((name for name, source in _SOURCES.items() if source.result is result), secrets.token_hex(8))
        _kept(_SOURCES, name, DASHBOARD.timelines_kept, lambda: Source(result))
    return name


def source_of(name: str) -> Source:
    """The run of this name. RefusedError if no page has shown it lately."""
    with _SOURCES_LOCK:
        source = _SOURCES.get(name)
        if source is None:
            raise RefusedError("reload the page", HTTPStatus.GONE)
        _SOURCES.move_to_end(name)
        return source


# -- answers -----------------------------------------------------------------------------------------------------------


def ranks_tile(source: Source, asked: Mapping[str, str]) -> Response:
    """The parts of the steps of several ranks in one tile: for each rank, shares by the code of the work."""
    level, tile = _tile(asked)
    ranks = [_whole(text, "ranks") for text in asked.get("ranks", "").split(",")]
    if len(ranks) > DASHBOARD.most_timeline_ranks:
        raise RefusedError(f"ranks: at most {DASHBOARD.most_timeline_ranks}")
    packed = _Packed()
    rows = [{"rank": rank, **packed.cells(rank_cells(source.account(rank), level, tile))} for rank in ranks]
    return packed.answer({"rows": rows})


def rows_tile(source: Source, asked: Mapping[str, str]) -> Response:
    """All rows of one rank in one tile, with the events marked that a search finds."""
    level, tile = _tile(asked)
    rank = _whole(asked.get("rank", ""), "rank")
    python = _python(asked)
    matches = source.search(rank, text, python) if (text := _text(asked)) else None
    packed, names = _Packed(), _Names()
    rows = []
    for number, row in enumerate(source.rows(rank, python)):
        read = read_row(row, level, tile, matches.rows[number] if matches is not None else None)
        drawn = packed.cells(read) if isinstance(read, Cells) else packed.events(row, read.index, read.found, names)
        about = {"title": visible(row.title), "heading": heading_of(row), "depth": row.depth, "deeper": row.deeper}
        rows.append({**about, **drawn})
    return packed.answer({"rows": rows, "names": names.texts, "python": source.has_python(rank)})


def event(source: Source, asked: Mapping[str, str]) -> Response:
    """All facts about the event of a row that takes most of a window, or about the one of an index. Without an event:
    the gap around the window's begin."""
    rank, number = _whole(asked.get("rank", ""), "rank"), _whole(asked.get("row", ""), "row")
    rows = source.rows(rank, _python(asked))
    if not 0 <= number < len(rows):
        raise RefusedError(f"row: rank {rank} has {len(rows)} rows")
    row = rows[number]
    if "index" in asked:
        index: int | None = _whole(asked["index"], "index")
        if index is None or not 0 <= index < len(row.start_ns):
            raise RefusedError("index: no such event in this row")
    else:
        index = row.longest(_moment(asked, "from"), _moment(asked, "to"))
    if index is None:
        begin, end = row.gap(_moment(asked, "from"))
        about = _gap(source, rank, number, begin, end, _python(asked))
        return JSONResponse({"event": None, "gap": [begin, end], **about})
    return JSONResponse({"event": _described(source, rank, number, index, _python(asked))})


def find(source: Source, asked: Mapping[str, str]) -> Response:
    """How many events of a rank a search finds, and the next one after a moment, or after the event of a ``number``.
    ``back``: the previous one."""
    rank, text = _whole(asked.get("rank", ""), "rank"), _text(asked)
    if not text:
        raise RefusedError("find: no text to search for")
    matches = source.search(rank, text, _python(asked))
    back = asked.get("back") == "1"
    at = matches.beside(_moment(asked, "from"), not back)
    if "number" in asked and len(matches):  # several may begin at one moment
        at = (_whole(asked["number"], "number") - (2 if back else 0)) % len(matches)
    if at is None:
        return JSONResponse({"count": 0, "number": None, "event": None})
    described = _described(source, rank, int(matches.row[at]), int(matches.index[at]), _python(asked))
    return JSONResponse({"count": len(matches), "number": at + 1, "event": described})


def tally(source: Source, asked: Mapping[str, str]) -> Response:
    """How many events a search finds on each rank that was counted so far; those of ``first`` come before the
    others."""
    text = _text(asked)
    if not text:
        raise RefusedError("find: no text to search for")
    first = [_whole(rank, "first") for rank in asked.get("first", "").split(",") if rank]
    progress = source.tally(text, _python(asked), first)
    ended, counts = progress.ended, list(progress.counts.items())
    some = sorted((rank, count) for rank, count in counts if count)
    return JSONResponse({"ranks": progress.ranks, "searched": len(counts), "ended": ended, "counts": some})


def trace(source: Source, asked: Mapping[str, str]) -> Response:
    """One step of a rank for Perfetto, as a Kineto trace: the step that was asked for, and no other."""
    from diag.perfetto import excerpt_text, step_of  # seldom needed

    rank, step = _whole(asked.get("rank", ""), "rank"), _whole(asked.get("step", ""), "step")
    source.account(rank)
    try:
        excerpt = step_of(source.result.tables.root, rank, step)
        text = b"".join(excerpt_text(excerpt))
    except DiagError as error:
        raise RefusedError(error.message, HTTPStatus.NOT_FOUND) from error
    name = f"rank{rank}-step{step}{'-recorded' if excerpt.recorded else ''}.json"
    return Response(text, media_type="application/json", headers={"cache-control": "no-store", "x-diag-title": name})


def together(source: Source, asked: Mapping[str, str]) -> Response:
    """One step of all ranks for Perfetto, on one clock, as an archive."""
    from diag.perfetto import together as step_together
    from diag.perfetto import write_archive

    if len(timeline_of(source.result).ranks) > DASHBOARD.most_ranks_together:
        raise RefusedError(f"at most {DASHBOARD.most_ranks_together} ranks", HTTPStatus.BAD_REQUEST)
    archive = io.BytesIO()
    try:
        chosen = step_together(source.result, _whole(asked.get("step", ""), "step"))
        write_archive(chosen.members, archive)
    except DiagError as error:
        raise RefusedError(error.message, HTTPStatus.NOT_FOUND) from error
    headers = {"cache-control": "no-store", "x-diag-title": f"step{chosen.step}-{len(chosen.members)}-ranks.zip"}
    return Response(archive.getvalue(), media_type="application/zip", headers=headers)


def path(source: Source, asked: Mapping[str, str]) -> Response:
    """The critical path in a window: rank, begin and end of each stretch."""
    begin, end = _window(asked)
    line, left_out = source.path().within(begin, end, DASHBOARD.most_path_pieces)
    return JSONResponse({"pieces": np.stack(line, axis=1).tolist(), "left_out": left_out})


def overlays(source: Source, asked: Mapping[str, str]) -> Response:
    """Launches and counters of a rank in a window. ``launched``: how many launches there are, of which all or none are
    listed."""
    rank, (begin, end) = _whole(asked.get("rank", ""), "rank"), _window(asked)
    launches = source.launches(rank, _python(asked)).within(begin, end)
    launched = len(launches.call_ns)
    arrows = _arrows(launches) if launched <= DASHBOARD.most_launches else []
    return JSONResponse(
        {
            "launched": launched,
            "launches": arrows,
            "counters": [_counter(counter, begin, end) for counter in source.counters(rank)],
        }
    )


def _arrows(launches: Launches) -> list[list[int]]:
    arrows: list[list[int]] = np.stack(launches, axis=1).tolist()
    return arrows


def _counter(counter: Counter, begin: int, end: int) -> dict[str, Any]:
    seen = counter.within(begin, end, DASHBOARD.most_counter_pieces)
    says = seen.says or tuple(_amount(value, counter.unit) for value in seen.value.tolist())
    columns = (seen.start_ns.tolist(), seen.end_ns.tolist(), seen.value.tolist(), says)
    return {
        "name": counter.name,
        "highest": counter.highest,
        "scale": _amount(counter.highest, counter.unit) if not counter.says else "",
        "pieces": [[start, until, value, visible(text)] for start, until, value, text in zip(*columns, strict=True)],
    }


def _amount(value: float, unit: str) -> str:
    if unit in (BYTES, RATE):
        return size(value) + ("/s" if unit == RATE else "")
    return f"{value:,.0f} {unit if unit != BATCHES else 'ready'}".strip()


def span(source: Source, asked: Mapping[str, str]) -> Response:
    """What a measured span of some ranks consists of: for each rank, parts of the step with their time and share."""
    (begin, end), ranks = _window(asked), [_whole(text, "ranks") for text in asked.get("ranks", "").split(",")]
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


def _gap(source: Source, rank: int, row: int, begin: int | None, end: int | None, python: bool) -> dict[str, Any]:
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
        for arrow in _arrows(seen)
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


# -- requests ----------------------------------------------------------------------------------------------------------


def _tile(asked: Mapping[str, str]) -> tuple[int, int]:
    level, tile = _whole(asked.get("level", ""), "level"), _whole(asked.get("tile", ""), "tile")
    if not 0 <= level <= MOST_LEVEL:
        raise RefusedError(f"level: 0 to {MOST_LEVEL}")
    if (abs(tile) + 1) * CELLS << level > _LAST_NS * 2:
        raise RefusedError("tile: outside the recorded time")
    return level, tile


def _whole(text: str, name: str) -> int:
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):
        raise RefusedError(f"{name}: no whole number")
    return int(text)


def _moment(asked: Mapping[str, str], name: str) -> int:
    return max(-_LAST_NS, min(_LAST_NS, _whole(asked.get(name, ""), name)))


def _window(asked: Mapping[str, str]) -> tuple[int, int]:
    begin, end = _moment(asked, "from"), _moment(asked, "to")
    if end <= begin:
        raise RefusedError("to: not after from")
    return begin, end


def _text(asked: Mapping[str, str]) -> str:
    text = asked.get("find", "")
    if len(text) > DASHBOARD.most_search_chars:
        raise RefusedError(f"find: at most {DASHBOARD.most_search_chars} characters")
    return text


def _python(asked: Mapping[str, str]) -> bool:
    return asked.get("python") == "1"


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
        place = np.array([names.place(row.lane.names[code]) for code in codes], dtype=np.uint32)
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


_ANSWERS = {
    "ranks": ranks_tile,
    "rows": rows_tile,
    "event": event,
    "find": find,
    "tally": tally,
    "trace": trace,
    "together": together,
    "path": path,
    "overlays": overlays,
    "span": span,
}


def answer(request: Request) -> Response:
    """The answer to a request of the canvas; an error message if there is none."""
    handler = _ANSWERS.get(request.path_params["what"])
    if handler is None:
        return JSONResponse({"error": "there is no such part of the timeline"}, status_code=HTTPStatus.NOT_FOUND)
    try:
        return handler(source_of(request.query_params.get("source", "")), request.query_params)
    except RefusedError as refusal:
        return JSONResponse({"error": str(refusal)}, status_code=refusal.status)
