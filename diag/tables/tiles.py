"""The timeline cut into tiles, which a canvas draws at one zoom level, and searches for events in it. Pure.

A tile is CELLS cells of 2**level nanoseconds each; tile 0 of every level begins at the run's begin. A row of a tile
holds its events if they are few, else the part of each cell that each kind of work takes. These parts are found by
searching for the cells' edges in sums that are computed once, so a tile costs the same at every zoom level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.gpu import NEVER, device_work
from diag.account.intervals import Covered, Times
from diag.account.trace_ranges import Thread
from diag.deferred import pl
from diag.model.steps import CollectiveCall
from diag.rundir.tables import RankTables
from diag.tables.policy import TIMELINE
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .module_tracks import module_at
from .zoom import (
    PYTHON_LANE,
    RECORDED,
    WORK,
    Category,
    Clock,
    Lane,
    RankLanes,
    Works,
    clocked_traces,
    make_lane,
    recorded_lane,
)

CELLS = 512
MOST_LEVEL = 52  # a cell of 52 days
FULL = 255  # a cell that one kind of work fills

Shares = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def edges_of(level: int, tile: int) -> Times:
    """The edges of the tile's cells, in ns. Shape (CELLS + 1,)."""
    edges: Times = (np.arange(CELLS + 1, dtype=np.int64) + tile * CELLS) << level
    return edges


@dataclass(frozen=True, eq=False)
class Row:
    """The events of a lane at one nesting depth, which never overlap. ``place``: their indices in the lane;
    ``deeper``: in the last row of a lane, the number of deeper events, which are in no row."""

    lane: Lane
    depth: int
    place: Places
    start_ns: Times
    end_ns: Times
    work: Works
    deeper: int = 0

    @property
    def title(self) -> str:
        return self.lane.title

    @cached_property
    def drawn_end_ns(self) -> Times:
        """The events' ends in a picture, where an event without a duration lasts 1 ns: it would be nowhere."""
        ends: Times = np.maximum(self.end_ns, self.start_ns + 1)
        return ends

    @cached_property
    def covered(self) -> Mapping[int, Covered]:
        """The time that each kind of work covers, by its code."""
        order = np.argsort(self.work, kind="stable")
        codes, first = np.unique(self.work[order], return_index=True)
        spans = np.stack((self.start_ns, self.drawn_end_ns), axis=1)[order]
        return {
            code: Covered(times)
            for code, times in zip(codes.tolist(), np.split(spans, first[1:]), strict=True)
            if len(times)
        }

    def visible(self, begin_ns: int, end_ns: int) -> slice:
        """The events that overlap the window."""
        first = int(np.searchsorted(self.drawn_end_ns, begin_ns, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start_ns, end_ns, side="left"))))

    def longest(self, begin_ns: int, end_ns: int) -> int | None:
        """The index of the event that takes most of the window; None if the window has no event."""
        seen = self.visible(begin_ns, max(end_ns, begin_ns + 1))
        if seen.stop <= seen.start:
            return None
        inside = np.minimum(self.end_ns[seen], end_ns) - np.maximum(self.start_ns[seen], begin_ns)
        return int(seen.start) + int(np.argmax(inside))

    def gap(self, at_ns: int) -> tuple[int | None, int | None]:
        """The end of the last event before a moment, and the begin of the next one; None without one."""
        after = int(np.searchsorted(self.start_ns, at_ns, side="right"))
        begin = int(self.end_ns[after - 1]) if after else None
        return begin, int(self.start_ns[after]) if after < len(self.start_ns) else None


def rows_of(lanes: Sequence[Lane]) -> tuple[Row, ...]:
    """The rows of the lanes, in their order, the outermost events first."""
    return tuple(row for lane in lanes for row in _rows(lane))


def _rows(lane: Lane) -> list[Row]:
    depth = _depths(lane.start_ns, lane.end_ns)
    most = TIMELINE.most_rows_of_python_lane if lane.title.startswith(PYTHON_LANE) else TIMELINE.most_rows_of_lane
    rows = []
    for level in range(min(int(depth.max(initial=-1)) + 1, most)):
        place = np.flatnonzero(depth == level)
        deeper = int((depth > level).sum()) if level == most - 1 else 0
        rows.append(Row(lane, level, place, lane.start_ns[place], lane.end_ns[place], lane.work[place], deeper))
    return rows


def _depths(start: Times, end: Times) -> Places:
    """The depth of each event, so that no two of one depth overlap. Events are sorted by start, and the longer one
    first of two that start together."""
    # Calls nest: the depth is the number of open events. Three million take half a second.
    end = np.maximum(end, start + 1)  # as they are drawn
    ends = np.sort(end)
    depth: Places = np.arange(len(start), dtype=np.int64) - np.searchsorted(ends, start, side="right")
    if not _overlap(start, end, depth):
        return depth
    return _depths_of_crossing(start, end)


def _depths_of_crossing(start: Times, end: Times) -> Places:
    """Below the open event that encloses most of an event, in the first row that is free. A step that begins before the
    last range of the step before has ended is in the row of the steps, and that range stays in its own."""
    depth = np.empty(len(start), dtype=np.int64)
    enclosing: list[tuple[int, int]] = []  # end and depth
    free_from: list[int] = []  # by depth
    for at, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while enclosing and 2 * (enclosing[-1][0] - begin) < until - begin:
            enclosing.pop()
        row = enclosing[-1][1] + 1 if enclosing else 0
        while row < len(free_from) and free_from[row] > begin:
            row += 1
        if row == len(free_from):
            free_from.append(until)
        free_from[row] = until
        enclosing.append((until, row))
        depth[at] = row
    return depth


def _overlap(start: Times, end: Times, depth: Places) -> bool:
    """Whether any two events of one depth overlap."""
    order = np.argsort(depth, kind="stable")
    same = depth[order][1:] == depth[order][:-1]
    return bool((same & (start[order][1:] < end[order][:-1])).any())


STEPS = "steps"  # the row with the parts of the rank's steps


def lanes_of(account: RankLanes, events: Sequence[Lane]) -> list[Lane]:
    """All lanes of a rank: the parts of its steps, the recorded collectives, the events of its traces."""
    lanes = [_steps_lane(account)] if account.lanes else []
    recorded = recorded_lane(account)
    return [*lanes, *([recorded] if recorded is not None else []), *events]


def _steps_lane(account: RankLanes) -> Lane:
    parts = account.lanes
    events = np.concatenate([np.stack((lane.start_ns, lane.end_ns), axis=1) for lane in parts])
    return make_lane(
        STEPS,
        Category.COMPUTE,
        events,
        np.concatenate([lane.name for lane in parts]),
        parts[0].names,  # the same for all parts
        np.concatenate([lane.work for lane in parts]),
    )


def heading_of(row: Row) -> str:
    """The source of the row's events: "account" or "trace"."""
    return "account" if row.title in (STEPS, RECORDED) else "trace"


@dataclass(frozen=True, eq=False)
class Cells:
    """``shares``: by the code of the work, the part of each cell in units of 1/FULL, rounded up so that short events
    stay visible. ``found``: the same for the events that a search found; None without a search."""

    shares: Mapping[int, Shares]
    found: Shares | None


@dataclass(frozen=True, eq=False)
class Events:
    """``index``: indices of the events in their row; ``found``: whether a search found each; None without a search."""

    index: Places
    found: npt.NDArray[np.bool_] | None


def rank_cells(account: RankLanes, level: int, tile: int) -> Cells:
    """The parts of the rank's steps in one tile."""
    edges = edges_of(level, tile)
    return Cells(_shares({int(lane.work[0]): lane.covered for lane in account.lanes}, edges), None)


def read_row(row: Row, level: int, tile: int, found: Found | None = None) -> Cells | Events:
    """One row of a tile. ``found``: the matches of a search in this row."""
    edges = edges_of(level, tile)
    seen = row.visible(int(edges[0]), int(edges[-1]))
    if seen.stop - seen.start <= TIMELINE.most_events_of_row:
        marked = found.mask[seen] if found is not None else None
        return Events(np.arange(seen.start, seen.stop, dtype=np.int64), marked)
    marks = _quantised(found.covered, edges) if found is not None else None
    return Cells(_shares(row.covered, edges), marks)


def _shares(covered: Mapping[int, Covered], edges: Times) -> dict[int, Shares]:
    shares = {code: _quantised(times, edges) for code, times in covered.items()}
    return {code: share for code, share in shares.items() if share.any()}


def _quantised(covered: Covered, edges: Times) -> Shares:
    width = int(edges[1] - edges[0])
    busy = np.diff(covered.until(edges))
    shares: Shares = np.ceil(busy * (FULL / width)).astype(np.uint8)
    return shares


@dataclass(frozen=True, eq=False)
class Found:
    """The matches of a search in one row. ``mask``: whether each event matches."""

    mask: npt.NDArray[np.bool_]
    covered: Covered


@dataclass(frozen=True, eq=False)
class Search:
    """All events of a rank whose name contains a text, ignoring case. ``row`` and ``index`` are sorted by start, the
    outer one first of two that start together."""

    rows: tuple[Found, ...]
    start_ns: Times
    row: Places
    index: Places

    def __len__(self) -> int:
        return len(self.start_ns)

    def beside(self, time_ns: int, forward: bool) -> int | None:
        """The index of the next match that begins after a moment, or of the last one before it. Wraps around at the
        end of the run. None without matches."""
        if not len(self):
            return None
        at = int(np.searchsorted(self.start_ns, time_ns, side="right" if forward else "left"))
        return (at if forward else at - 1) % len(self)


def search(rows: Sequence[Row], text: str) -> Search:
    """The events whose name contains the text. Compares each distinct name once."""
    wanted = text.casefold()
    by_names: dict[int, npt.NDArray[np.bool_]] = {}
    matches, starts, of_row, indices = [], [], [], []
    for number, row in enumerate(rows):
        names = row.lane.names
        if id(names) not in by_names:
            by_names[id(names)] = np.array([wanted in name.casefold() for name in names], dtype=np.bool_)
        mask = by_names[id(names)][row.lane.name[row.place]]
        index = np.flatnonzero(mask)
        spans = np.stack((row.start_ns[index], row.drawn_end_ns[index]), axis=1)
        matches.append(Found(mask, Covered(spans)))
        starts.append(row.start_ns[index])
        of_row.append(np.full(len(index), number, dtype=np.int64))
        indices.append(index)
    if not matches:
        nothing = np.zeros(0, dtype=np.int64)
        return Search((), nothing, nothing, nothing)
    start, number_of, index_of = (np.concatenate(parts) for parts in (starts, of_row, indices))
    order = np.lexsort((number_of, start))
    return Search(tuple(matches), start[order], number_of[order], index_of[order])


def work_name(row: Row, index: int) -> str:
    """The kind of work of the event, one of WORK."""
    return str(WORK[int(row.work[index])])


# -- one event ---------------------------------------------------------------------------------------------------------
#
# Facts about one event of the timeline: its step, its launch, its module, and the collective it belongs to.


class Launch(Struct, frozen=True):
    """The host's call that launched work of a device. ``operators``: the operators around the call, the outermost
    first; ``delay_ns``: from the begin of the call to the begin of the work."""

    operators: tuple[str, ...]
    at_ns: int
    delay_ns: int


class EventFacts(Struct, frozen=True):
    """``work``: one of WORK; ``step``: None between the steps; ``module``: "" if no range of the trace names it;
    ``collective``: on the rank's own clock, None for other events."""

    name: str
    work: str
    lane: str
    start_ns: int
    dur_ns: int
    step: int | None
    stream: int | None = None
    launch: Launch | None = None
    module: str = ""
    collective: CollectiveCall | None = None


def facts_of(row: Row, index: int, tables: RankTables, account: RankLanes) -> EventFacts:
    """All facts about the event from the rank's traces and records. Reads the trace, which takes 0.1 s or more."""
    start, end = int(row.start_ns[index]), int(row.end_ns[index])
    place = int(row.place[index])
    facts = EventFacts(
        name=row.lane.names[int(row.lane.name[place])],
        work=work_name(row, index),
        lane=row.title,
        start_ns=start,
        dur_ns=end - start,
        step=_step_at(account, start),
        collective=_collective(account, start, end) if row.lane.category == Category.COMMUNICATION else None,
    )
    if heading_of(row) == "account":
        return facts
    for trace, clock in clocked_traces(tables, account):
        in_trace = _in_trace(trace, clock, facts, row.lane.category)
        if in_trace is not None:
            return in_trace
    return facts


def _step_at(account: RankLanes, at_ns: int) -> int | None:
    moment = at_ns - account.moved_ns
    return next((step.step for step in account.steps if step.begin_ns <= moment < step.end_ns), None)


def _collective(account: RankLanes, start: int, end: int) -> CollectiveCall | None:
    """The rank's collective that begins or ends with the event, else the one whose overlap with the event is more than
    half of the time that both span."""
    begin, until = start - account.moved_ns, end - account.moved_ns
    calls = [call for step in account.steps for call in step.collectives]

    def apart(call: CollectiveCall) -> int:
        return abs(call.start_ns - begin) + abs(call.end_ns - until)

    nearest = min(calls, key=apart, default=None)
    if nearest is None:
        return None
    shared = min(until, nearest.end_ns) - max(begin, nearest.start_ns)
    together = max(until, nearest.end_ns) - min(begin, nearest.start_ns)
    same = nearest.start_ns == begin or nearest.end_ns == until
    return nearest if same or 2 * shared > together else None


def _in_trace(trace: Trace, clock: Clock, facts: EventFacts, category: Category) -> EventFacts | None:
    """The facts, extended by those from the trace; None if the event is not in this trace."""
    at = _inverse(clock, facts.start_ns)
    if category == Category.HOST or not trace.has_gpu:
        row = _same(trace.select(within=(at - TIMELINE.clock_margin_ns, at + TIMELINE.clock_margin_ns)), clock, facts)
        if row is None:
            return None
        return replace(facts, module=module_at(trace, int(row["thread"]), int(row["ts_ns"])))
    work = device_work(trace)
    row = _same(
        work.filter(pl.col("ts_ns").is_between(at - TIMELINE.clock_margin_ns, at + TIMELINE.clock_margin_ns)),
        clock,
        facts,
    )
    if row is None:
        return None
    stream = row["stream"]
    if row["launch_known_ns"] == NEVER:
        return replace(facts, stream=stream)
    thread, launched = int(row["launch_thread"]), int(row["launch_known_ns"])
    launch = Launch(
        operators=tuple(_operators_at(trace, thread, launched)),
        at_ns=int(clock(np.array([launched], dtype=np.int64))[0]),
        delay_ns=int(row["ts_ns"]) - launched,
    )
    return replace(facts, stream=stream, launch=launch, module=module_at(trace, thread, launched))


def _same(events: pl.DataFrame, clock: Clock, facts: EventFacts) -> dict[str, Any] | None:
    """The row of the event; None if it is not among them."""
    named = events.filter(pl.col("name").cast(pl.String) == facts.name)
    starts = clock(named["ts_ns"].to_numpy())
    ends = clock((named["ts_ns"] + named["dur_ns"]).to_numpy())
    places = np.flatnonzero((starts == facts.start_ns) & (ends == facts.start_ns + facts.dur_ns))
    return named.row(int(places[0]), named=True) if len(places) else None


def _inverse(clock: Clock, at_ns: int) -> int:
    """A moment of the account on the trace's clock, as exact as the clocks' drift allows."""
    guess = at_ns
    for _ in range(3):
        guess += at_ns - int(clock(np.array([guess], dtype=np.int64))[0])
    return guess


def _operators_at(trace: Trace, thread: Thread, at_ns: int) -> Iterator[str]:
    """The operators that are open on the thread, the outermost first."""
    columns = ("ts_ns", "dur_ns", "name", "thread")
    operators = trace.unsorted(names.CPU_OP, columns=columns)
    open_ = operators.filter(
        pl.col("thread") == thread, pl.col("ts_ns") <= at_ns, pl.col("ts_ns") + pl.col("dur_ns") > at_ns
    ).sort("ts_ns", "dur_ns", descending=[False, True])
    texts = trace.stored.names
    yield from (texts[code] for code in open_["name"].to_list())
