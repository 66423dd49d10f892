"""The steps of ranks on the clocks of their devices, without a profiler window.

The collectors record an event on the training's stream at each edge of a phase, and where that stream waits for a
collective. So a step has on the device what the records of a CPU rank have: phases, and the time in which the stream
stood still for communication. Two things are added to that here.

**Where the device's times lie on the host's clock.** No event is passed before the host has recorded it, and the device
works on without a pause from one step to the next. So a step begins on the device where the step before ended, or when
the host began it, or as late as the latest of its events demands: the last of the three. The two clocks may differ by
``_DRIFT``; a lag of the device is therefore let go that slowly.

**How long it was idle.** The driver counts the time in which any kernel ran (``utilization_percent``): communication
counts, waiting for data does not. What is missing, beyond the phases in which nothing is launched, is put where the
host had not yet launched all of a phase; where that is too short, the reason is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.records import (
    CHECKPOINT,
    DATA,
    H2D,
    P2P_PREFIX,
    REST,
    WINDOW_NONE,
    CollectiveRow,
    DeviceCall,
    DeviceStepRecord,
    PhaseRow,
    StepRecord,
)
from diag.model.steps import Detail
from diag.rundir.run import RankTables, Tables

from . import intervals as iv
from .records import WARMUP_STEPS, blocked

_DRIFT = 50e-6
# Of the calls of one group and operation: so many are seen to be waited for, or the device's time is not known at all;
# and nearly all. One that is not seen can hold up the device for any time.
_WAITED, _NEARLY_ALL = 0.5, 0.9
_SAMPLE, _SAMPLED_RANKS = 200, 16  # steps and ranks
_LEAST_OUTSIDE = 10  # steps outside of windows: fewer represent no run
_LEAST_STEPS = 0.5  # of the recorded steps: times on the device are known
_NOTHING_LAUNCHED = (DATA, H2D, CHECKPOINT)
_RESOLVED_NS = 5_000  # between two events with nothing between them
_UNMEASURED = 0.02  # of the time: what the driver's samples may be off by

Times = npt.NDArray[np.int64]


class DeviceClocked(Struct, frozen=True):
    """A rank. ``tables``: its steps and rows as those of a CPU rank, on the host's monotonic clock. ``idle``: its idle
    time by cause: its host had launched nothing, or another; ``idle_known``: whether that was measured. ``beneath``:
    time in which a collective ran and its host may have launched nothing: it is not idle by the driver's samples.
    ``waits_known``: whether nearly all waits for collectives were seen; the others count as computation."""

    tables: RankTables
    idle: Mapping[Detail, iv.Intervals]
    idle_known: bool
    beneath: iv.Intervals = iv.EMPTY
    waits_known: bool = True


def on_device_clocks(tables: Tables) -> dict[int, DeviceClocked]:
    """By rank; empty unless it is known of all of them, and where profiler windows tell more."""
    ranks = {rank: own for rank, own in tables.ranks.items() if not own.empty}
    if not ranks or not all(own.on_device and not own.traces for own in ranks.values()):
        return {}
    world = tables.world_size or len(ranks)
    timed = {rank: _timed(own) for rank, own in ranks.items()}
    seen = {rank: _seen(own, timed[rank], alone=world == 1) for rank, own in ranks.items()}
    if min(seen.values()) < _WAITED:
        return {}
    return {rank: _clocked(own, timed[rank], seen[rank] >= _NEARLY_ALL) for rank, own in ranks.items()}


def outside_windows(tables: Tables) -> tuple[int, float, float]:
    """Of a run with profiler windows, steps outside of them: how many, and the fractions of their time in which the
    training's stream waited for collectives, and for data. (0, 0, 0) where there are few, or not known of these ranks.
    The last steps of the first ranks: a sample is enough to contradict the windows."""
    traced = [own for own in tables.ranks.values() if own.traces and own.on_device]
    ranks = [
        replace(own, traces=(), steps=tuple(s for s in own.steps if s.window == WINDOW_NONE)[WARMUP_STEPS:][-_SAMPLE:])
        for own in traced[:_SAMPLED_RANKS]
    ]
    world = tables.world_size or len(ranks)
    if not ranks or any(len(own.steps) < _LEAST_OUTSIDE for own in ranks):
        return 0, 0.0, 0.0
    timed = [_timed(own) for own in ranks]
    if any(_seen(own, steps, alone=world == 1) < _WAITED for own, steps in zip(ranks, timed, strict=True)):
        return 0, 0.0, 0.0
    spent_ns, waited_ns, loading_ns = 0, 0, 0
    for own, steps in zip(ranks, timed, strict=True):
        clocked = _clocked(own, steps, waits_known=True).tables
        spent_ns += sum(step.end_ns - step.begin_ns for step in clocked.steps)
        waited_ns += iv.total(blocked(clocked.rows))
        loading_ns += sum(row.end_ns - row.start_ns for s in clocked.steps for row in s.phases if row.phase == DATA)
    return min(len(own.steps) for own in ranks), waited_ns / max(1, spent_ns), loading_ns / max(1, spent_ns)


class _Timed(Struct, frozen=True):
    """A step with its record of the device. ``at_ns``: when the host recorded its events; ``since_ns``: when they were
    passed after the first one."""

    host: StepRecord
    own: DeviceStepRecord
    at_ns: Times
    since_ns: Times


def _seen(tables: RankTables, timed: Sequence[_Timed], alone: bool) -> float:
    """The part of its calls that a rank is seen to wait for on its device, of the kind with the fewest; 0 where nothing
    is known of the device. What is not seen is waited for in C++, in compiled code, in a graph, or in a later step. Of
    two calls one after the other in one phase a wait for the second is enough: HSDP reduces what it has scattered, and
    waits for that."""
    if not timed or len(timed) < _LEAST_STEPS * len(tables.steps):
        return 0.0
    if alone:
        return 1.0
    waited = {
        (call.group, call.seq)
        for step in timed
        for call in step.own.collectives
        if not call.own_stream or call.wait_start_ns is not None
    }
    called, seen = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    numbers = {step.host.step for step in timed}
    rows = [row for step, row in zip(tables.row_steps, tables.rows, strict=True) if step in numbers]
    edges = np.sort([ns for step in tables.steps for row in step.phases for ns in (row.start_ns, row.end_ns)])
    place = np.searchsorted(edges, [row.start_ns for row in rows]).tolist()
    for at, row in enumerate(rows):
        called[row.group, row.op] += 1
        following = rows[at + 1] if at + 1 < len(rows) and place[at + 1] == place[at] else row
        seen[row.group, row.op] += (row.group, row.seq) in waited or (following.group, following.seq) in waited
    if not called or any(group.startswith(P2P_PREFIX) for group, _ in called):
        return 0.0
    return min(seen[kind] / count for kind, count in called.items())


def _timed(tables: RankTables) -> list[_Timed]:
    """The steps that have a record of the device which a collector could have written, in order."""
    steps = {record.step for record in tables.steps}
    records = {own.step: own for own in tables.device_steps if own.step in steps and _in_order(own)}
    return [_Timed(host, own, *_edges(host, own)) for host in tables.steps if (own := records.get(host.step))]


def _in_order(own: DeviceStepRecord) -> bool:
    phases = all(0 <= row.start_ns <= row.end_ns <= own.dur_ns for row in own.phases)
    calls = all(
        (call.own_stream or call.start_ns >= 0)  # another stream may be ahead of the one that begins the step
        and call.start_ns <= call.end_ns
        and (call.wait_start_ns is None or 0 <= call.wait_start_ns <= (call.wait_end_ns or 0))
        for call in own.collectives
    )
    return own.dur_ns > 0 and phases and calls


def _clocked(tables: RankTables, timed: Sequence[_Timed], waits_known: bool) -> DeviceClocked:
    begins = _begins(timed)
    ends = [
        min(begin + step.own.dur_ns, after)
        for step, begin, after in zip(timed, begins, [*begins[1:], _NEVER], strict=True)
    ]
    rows = {(row.group, row.seq): row for row in tables.rows}
    steps, calls = [], []
    free: dict[str, int] = {}  # by group, when the call before has ended
    for step, begin, end in zip(timed, begins, ends, strict=True):
        steps.append(_record(step, begin, end))
        for call in sorted(step.own.collectives, key=lambda call: (call.group, call.seq)):
            if (row := rows.get((call.group, call.seq))) is not None:
                calls.append(_row(row, begin, call, free.get(call.group, -_NEVER)))
                free[call.group] = begin + call.end_ns
    clocked = replace(tables, steps=tuple(steps), rows=tuple(calls))
    not_launched = _not_launched(timed, begins)
    return DeviceClocked(clocked, *_idle(clocked, not_launched), _beneath(clocked, not_launched), waits_known)


_NEVER = np.iinfo(np.int64).max


def _begins(timed: Sequence[_Timed]) -> list[int]:
    """When the device began each step, on the host's clock."""
    begins: list[int] = []
    began = ended = -_NEVER
    for step in timed:
        # A long step may drift by more than a very short one before it has taken.
        begin = max(int((step.at_ns - step.since_ns).max()), ended - round(_DRIFT * step.own.dur_ns), began)
        begins.append(begin)
        began = begin
        ended = begin + step.own.dur_ns
    return begins


def _edges(host: StepRecord, own: DeviceStepRecord) -> tuple[Times, Times]:
    """When the host recorded the events of the step, and when they were passed after its first one. Of phases that only
    one of the two holds (a graph was captured) none."""
    at, since = [host.begin_ns, host.end_ns], [0, own.dur_ns]
    if [row.phase for row in host.phases] == [row.phase for row in own.phases]:
        for row, passed in zip(host.phases, own.phases, strict=True):
            at += [row.start_ns, row.end_ns]
            since += [passed.start_ns, passed.end_ns]
    return np.array(at, dtype=np.int64), np.array(since, dtype=np.int64)


def _record(step: _Timed, begin: int, end: int) -> StepRecord:
    """The step as one of a CPU rank. A pause of the host is one of the device as far as that had nothing left to do."""
    host, at, since = step.host, step.at_ns, step.since_ns
    phases = [
        PhaseRow(row.phase, min(begin + row.start_ns, end), min(begin + row.end_ns, end)) for row in step.own.phases
    ]
    pauses = []
    for start, stop in host.gc:
        before = at <= start
        lag = int((begin + since[before] - at[before])[at[before].argmax()]) if before.any() else 0
        if start + lag < stop:
            pauses.append((start + lag, stop))
    return StepRecord(
        step=host.step, begin_ns=begin, end_ns=end, phases=phases, window=host.window, micro_batches=host.micro_batches,
        tokens=host.tokens, gc=pauses,
    )  # fmt: skip


def _row(row: CollectiveRow, begin: int, call: DeviceCall, free_ns: int) -> CollectiveRow:
    """``free_ns``: when the group's call before has ended: they run one after the other. An asynchronous call that
    nobody had to wait for may have ended at any time before."""
    start, end = begin + call.start_ns, begin + call.end_ns
    wait: tuple[int, int] | None = start, end
    if call.wait_start_ns is not None and call.wait_end_ns is not None:
        # Behind the collective the stream may have waited for a copy of its result.
        since, until = begin + call.wait_start_ns, begin + call.wait_end_ns
        wait = since, max(since, min(until, end)) if call.own_stream else until
    elif call.own_stream:
        wait = None
    seen = call.own_stream or call.wait_start_ns is None or (wait is not None and wait[1] - wait[0] > _RESOLVED_NS)
    whole = row.whole and seen
    start = min(max(start, free_ns), end) if whole or wait is None else min(start, wait[0])
    waited = wait or (None, None)
    return row._replace(start_ns=start, end_ns=end, wait_start_ns=waited[0], wait_end_ns=waited[1], whole=whole)


# -- idle --------------------------------------------------------------------------------------------------------------


def _idle(clocked: RankTables, not_launched: iv.Intervals) -> tuple[dict[Detail, iv.Intervals], bool]:
    """By cause; and whether idle time was measured."""
    busy = _utilization(clocked)
    if busy is None:
        return {}, False
    own = iv.make((step.begin_ns, step.end_ns) for step in clocked.steps[WARMUP_STEPS:])
    known = iv.union(
        blocked(clocked.rows),
        iv.make(
            (row.start_ns, row.end_ns) for s in clocked.steps for row in s.phases if row.phase in _NOTHING_LAUNCHED
        ),
        iv.make(pause for step in clocked.steps for pause in step.gc),
    )
    still = iv.total(iv.intersect(iv.subtract(known, blocked(clocked.rows)), own))
    missing = (1 - busy) * iv.total(own) - still
    if missing < _UNMEASURED * iv.total(own):
        return {}, True
    every = iv.make((step.begin_ns, step.end_ns) for step in clocked.steps)
    idle: dict[Detail, iv.Intervals] = {}
    taken = known
    for detail, spans in ((Detail.LAUNCH, not_launched), (Detail.OTHER, every)):
        free = iv.subtract(iv.intersect(spans, every), taken)
        room = iv.total(iv.intersect(free, own))
        if missing > 0 and room:
            idle[detail] = _first_part(_cut(free, clocked), min(1.0, missing / room))
            missing -= room
        taken = iv.union(taken, free)
    return idle, True


def _beneath(clocked: RankTables, not_launched: iv.Intervals) -> iv.Intervals:
    """When collectives ran that the training's stream did not wait for, and it may have had nothing else to do."""
    running = iv.make((row.start_ns, row.end_ns) for row in clocked.rows if row.end_ns is not None)
    return iv.subtract(iv.intersect(running, not_launched), blocked(clocked.rows))


def _utilization(tables: RankTables) -> float | None:
    """The fraction of the time in which any kernel ran, as sampled after the warm-up; None without samples."""
    warm = tables.steps[min(WARMUP_STEPS, len(tables.steps) - 1)]
    inside = [
        min(100, max(0, sample.utilization_percent))
        for sample in tables.device
        if sample.utilization_percent is not None and warm.begin_ns < sample.monotonic_ns <= tables.steps[-1].end_ns
    ]
    return float(np.mean(inside)) / 100 if inside else None


def _not_launched(timed: Sequence[_Timed], begins: Sequence[int]) -> iv.Intervals:
    """From edge to edge on the device, as long as the host had not recorded the later one: until then it had not
    launched all that lies before it."""
    spans = []
    for step, begin in zip(timed, begins, strict=True):
        order = np.argsort(step.since_ns, kind="stable")
        passed, recorded = (begin + step.since_ns[order]).tolist(), step.at_ns[order].tolist()
        spans += [
            (a, min(b, told)) for a, b, told in zip(passed[:-1], passed[1:], recorded[1:], strict=True) if told > a
        ]
    return iv.make(spans)


def _cut(spans: iv.Intervals, clocked: RankTables) -> iv.Intervals:
    """The spans cut at the edges of steps and phases: one that went on through many steps would have its first part in
    the first of them."""
    edges = [ns for s in clocked.steps for row in ((REST, s.begin_ns, s.end_ns), *s.phases) for ns in row[1:]]
    at = np.unique(np.array(edges, dtype=np.int64))
    pieces: list[tuple[int, int]] = []
    for start, end in spans.tolist():
        inside = at[np.searchsorted(at, start, side="right") : np.searchsorted(at, end)].tolist()
        pieces += pairwise([start, *inside, end])
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)


def _first_part(spans: iv.Intervals, fraction: float) -> iv.Intervals:
    """The first part of each: where in them the device was idle is not known, and makes no difference to a sum."""
    parts = spans.copy()
    parts[:, 1] = spans[:, 0] + np.rint((spans[:, 1] - spans[:, 0]) * fraction).astype(np.int64)
    return parts
