"""Facts about one event of the timeline: its step, its launch, its module, and the collective it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from diag.account.gpu import NEVER, device_work
from diag.account.trace_ranges import Thread
from diag.model.steps import CollectiveCall
from diag.rundir.run import RankTables
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .module_time import module_at
from .tiles import Row, heading_of, work_name
from .zoom import Category, Clock, RankLanes, clocked_traces

_MARGIN_NS = 1_000_000  # error of the conversion back to the trace's clock if clocks drift


class Launch(Struct, frozen=True):
    """The host's call that launched work of a device. ``operators``: those around it, the outermost first;
    ``delay_ns``: from the call's begin to the begin of the work."""

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
    """All facts about the event from the rank's traces and records. Reads the trace: a tenth of a second or more."""
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
    """The rank's collective that begins or ends with the event, else the one that shares more than half of the time of
    both."""
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
    """The facts with those from the trace; None if the event is not in this trace."""
    at = _inverse(clock, facts.start_ns)
    if category == Category.HOST or not trace.has_gpu:
        row = _same(trace.select(within=(at - _MARGIN_NS, at + _MARGIN_NS)), clock, facts)
        if row is None:
            return None
        return replace(facts, module=module_at(trace, int(row["thread"]), int(row["ts_ns"])))
    work = device_work(trace)
    row = _same(work.filter(pl.col("ts_ns").is_between(at - _MARGIN_NS, at + _MARGIN_NS)), clock, facts)
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
