"""The steps of ranks on the clocks of their devices, without a profiler window.

The collectors record an event on the training's stream at each edge of a phase, and where that stream waits for a
collective. So a step of the device has the same data as the records of a CPU rank: phases, and the time in which the
stream was blocked in communication. Two things are added to that here.

**The device's times on the host's clock.** The device passes no event before the host has recorded it, and it works
without a pause from one step to the next. So a step begins on the device at the latest of three times: when the
previous step ended there, when the host began it, or when the latest of its events demands. The two clocks may differ
by ``drift``; a lag of the device therefore shrinks that slowly.

**Idle time.** The driver counts the time in which any kernel ran (``utilization_percent``): communication counts,
waiting for data does not. The remaining time, beyond the phases in which nothing is launched, is placed where the host
had not yet launched all of a phase; if that is too short, the reason is unknown. On a device that other processes use
as well, the driver counts their kernels, too: then a rank is idle at least that long, and how long is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.policy import DEVICE_CLOCK, STEPS
from diag.collectors import device_times
from diag.collectors.records import (
    DATA,
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
from diag.rundir.sharing import sharing_of
from diag.rundir.tables import RankTables, Tables

from . import intervals as iv
from .records import blocked

Times = npt.NDArray[np.int64]


class DeviceClocked(Struct, frozen=True):
    """A rank. ``tables``: its steps and rows as those of a CPU rank, on the host's monotonic clock. ``idle``: its idle
    time by cause: its host had launched nothing, or another; ``idle_known``: whether it was measured, and is not only
    the least that it can be. ``beneath``: time in which a collective ran and its host may have launched nothing: the
    driver's samples do not count it as idle. ``waits_known``: whether nearly all waits for collectives were observed;
    the others count as computation."""

    tables: RankTables
    idle: Mapping[Detail, iv.Intervals]
    idle_known: bool
    beneath: iv.Intervals = iv.EMPTY
    waits_known: bool = True


def on_device_clocks(tables: Tables) -> dict[int, DeviceClocked]:
    """By rank; empty unless known for all ranks, and empty where all ranks have profiler windows, which show more.
    Windows of some ranks alone say nothing of what these ranks wait for."""
    ranks = {rank: rank_tables for rank, rank_tables in tables.ranks.items() if not rank_tables.empty}
    if not ranks or not all(rank_tables.on_device for rank_tables in ranks.values()):
        return {}
    if all(rank_tables.traces for rank_tables in ranks.values()):
        return {}
    world, not_alone = tables.world_size or len(ranks), sharing_of(tables).not_alone
    timed = {rank: _timed(rank_tables) for rank, rank_tables in ranks.items()}
    seen = {rank: _seen(rank_tables, timed[rank], alone=world == 1) for rank, rank_tables in ranks.items()}
    if min(seen.values()) < DEVICE_CLOCK.observed_waits_share:
        return {}
    return {
        rank: _clocked(
            rank_tables, timed[rank], seen[rank] >= DEVICE_CLOCK.nearly_all_waits_share, alone=rank not in not_alone
        )
        for rank, rank_tables in ranks.items()
    }


def outside_windows(tables: Tables) -> tuple[int, float, float]:
    """For a run with profiler windows, the steps outside of them: how many, and the fractions of their time in which
    the training's stream waited for collectives, and for data. (0, 0, 0) if they are few, or unknown for these ranks.
    Uses the last steps of the first ranks: a sample is enough to contradict the windows."""
    traced = [rank_tables for rank_tables in tables.ranks.values() if rank_tables.traces and rank_tables.on_device]
    ranks = [
        replace(
            rank_tables,
            traces=(),
            steps=tuple(s for s in rank_tables.steps if s.window == WINDOW_NONE)[STEPS.warm_up_steps :][
                -DEVICE_CLOCK.sampled_steps :
            ],
        )
        for rank_tables in traced[: DEVICE_CLOCK.sampled_ranks]
    ]
    world = tables.world_size or len(ranks)
    if not ranks or any(len(rank_tables.steps) < DEVICE_CLOCK.least_steps_outside_of_windows for rank_tables in ranks):
        return 0, 0.0, 0.0
    timed = [_timed(rank_tables) for rank_tables in ranks]
    if any(
        _seen(rank_tables, steps, alone=world == 1) < DEVICE_CLOCK.observed_waits_share
        for rank_tables, steps in zip(ranks, timed, strict=True)
    ):
        return 0, 0.0, 0.0
    spent_ns, waited_ns, loading_ns = 0, 0, 0
    for rank_tables, steps in zip(ranks, timed, strict=True):
        clocked = _clocked(rank_tables, steps, waits_known=True).tables
        spent_ns += sum(step.end_ns - step.begin_ns for step in clocked.steps)
        waited_ns += iv.total(blocked(clocked.rows))
        loading_ns += sum(row.end_ns - row.start_ns for s in clocked.steps for row in s.phases if row.phase == DATA)
    return (
        min(len(rank_tables.steps) for rank_tables in ranks),
        waited_ns / max(1, spent_ns),
        loading_ns / max(1, spent_ns),
    )


class _Timed(Struct, frozen=True):
    """A step with its record of the device. ``at_ns``: when the host recorded its events; ``since_ns``: when the device
    passed them, relative to the first one."""

    host: StepRecord
    record: DeviceStepRecord
    at_ns: list[int]
    since_ns: list[int]


def _seen(tables: RankTables, timed: Sequence[_Timed], alone: bool) -> float:
    """The fraction of a rank's calls whose wait was observed on its device, for the kind with the smallest fraction; 0
    if nothing is known of the device. Other calls are waited for in C++, in compiled code, in a graph, or in a later
    step. For two consecutive calls in one phase, a wait for the second is enough: HSDP all-reduces the result of its
    reduce-scatter, and waits for that."""
    if not timed or len(timed) < DEVICE_CLOCK.least_known_steps_share * len(tables.steps):
        return 0.0
    if alone:
        return 1.0
    waited = {
        (call.group, call.seq)
        for step in timed
        for call in step.record.collectives
        if not call.own_stream or call.wait_start_ns is not None
    }
    called, seen = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    numbers = {step.host.step for step in timed}
    rows = list(tables.rows.take(np.isin(tables.rows.step, list(numbers))))
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
    """The steps with a plausible record of the device, in order."""
    steps = {record.step for record in tables.steps}
    records = {
        device.step: device for device in tables.device_steps if device.step in steps and device_times.in_order(device)
    }
    return [
        _Timed(host, device, *device_times.edges(host, device))
        for host in tables.steps
        if (device := records.get(host.step))
    ]


def _clocked(tables: RankTables, timed: Sequence[_Timed], waits_known: bool, alone: bool = True) -> DeviceClocked:
    """``alone``: whether the device runs no work but this rank's."""
    begins = _begins(timed)
    ends = [
        min(begin + step.record.dur_ns, after)
        for step, begin, after in zip(timed, begins, [*begins[1:], _NEVER], strict=True)
    ]
    rows = {(row.group, row.seq): row for row in tables.rows}
    steps, calls = [], []
    free: dict[str, int] = {}  # by group, when the call before has ended
    for step, begin, end in zip(timed, begins, ends, strict=True):
        steps.append(_record(step, begin, end))
        for call in sorted(step.record.collectives, key=lambda call: (call.group, call.seq)):
            if (row := rows.get((call.group, call.seq))) is not None:
                calls.append(_row(row, begin, call, free.get(call.group, -_NEVER)))
                free[call.group] = begin + call.end_ns
    clocked = replace(tables, steps=tuple(steps), rows=tuple(calls))
    not_launched = _not_launched(timed, begins)
    idle, known = _idle(clocked, not_launched)
    return DeviceClocked(clocked, idle, known and alone, _beneath(clocked, not_launched), waits_known)


_NEVER = np.iinfo(np.int64).max


def _begins(timed: Sequence[_Timed]) -> list[int]:
    """When the device began each step, on the host's clock."""
    begins = device_times.DeviceBegins()
    return [begins.of(step.at_ns, step.since_ns, step.record.dur_ns) for step in timed]


def _record(step: _Timed, begin: int, end: int) -> StepRecord:
    """The step as a CPU rank's record. A pause of the host counts from the time when the device had no work left."""
    host, at, since = step.host, np.array(step.at_ns, dtype=np.int64), np.array(step.since_ns, dtype=np.int64)
    phases = [
        PhaseRow(row.phase, min(begin + row.start_ns, end), min(begin + row.end_ns, end)) for row in step.record.phases
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
    """``free_ns``: when the group's previous call ended: they run one after the other. An asynchronous call that
    nothing waited for may have ended at any time before."""
    start, end = begin + call.start_ns, begin + call.end_ns
    blocked_ns = device_times.blocked_by(call)
    wait = (begin + blocked_ns[0], begin + blocked_ns[1]) if blocked_ns is not None else None
    seen = (
        call.own_stream
        or call.wait_start_ns is None
        or (wait is not None and wait[1] - wait[0] > DEVICE_CLOCK.resolution_ns)
    )
    whole = row.whole and seen
    start = min(max(start, free_ns), end) if whole or wait is None else min(start, wait[0])
    waited = wait or (None, None)
    return row._replace(start_ns=start, end_ns=end, wait_start_ns=waited[0], wait_end_ns=waited[1], whole=whole)


def _idle(clocked: RankTables, not_launched: iv.Intervals) -> tuple[dict[Detail, iv.Intervals], bool]:
    """By cause; and whether idle time was measured."""
    busy = _utilization(clocked)
    if busy is None:
        return {}, False
    steps = iv.make((step.begin_ns, step.end_ns) for step in clocked.steps[STEPS.warm_up_steps :])
    known = iv.union(
        blocked(clocked.rows),
        iv.make(
            (row.start_ns, row.end_ns)
            for s in clocked.steps
            for row in s.phases
            if row.phase in device_times.NOTHING_LAUNCHED
        ),
        iv.make(pause for step in clocked.steps for pause in step.gc),
    )
    still = iv.total(iv.intersect(iv.subtract(known, blocked(clocked.rows)), steps))
    missing = (1 - busy) * iv.total(steps) - still
    if missing < DEVICE_CLOCK.error_of_driver_samples * iv.total(steps):
        return {}, True
    every = iv.make((step.begin_ns, step.end_ns) for step in clocked.steps)
    idle: dict[Detail, iv.Intervals] = {}
    taken = known
    for detail, spans in ((Detail.LAUNCH, not_launched), (Detail.OTHER, every)):
        free = iv.subtract(iv.intersect(spans, every), taken)
        room = iv.total(iv.intersect(free, steps))
        if missing > 0 and room:
            idle[detail] = _first_part(_cut(free, clocked), min(1.0, missing / room))
            missing -= room
        taken = iv.union(taken, free)
    return idle, True


def _beneath(clocked: RankTables, not_launched: iv.Intervals) -> iv.Intervals:
    """When collectives ran that the training's stream did not wait for, and it may have had no other work."""
    running = iv.make((row.start_ns, row.end_ns) for row in clocked.rows if row.end_ns is not None)
    return iv.subtract(iv.intersect(running, not_launched), blocked(clocked.rows))


def _utilization(tables: RankTables) -> float | None:
    """The fraction of the time in which any kernel ran, as sampled after the warm-up; None without samples."""
    warm = tables.steps[min(STEPS.warm_up_steps, len(tables.steps) - 1)]
    inside = [
        min(100, max(0, sample.utilization_percent))
        for sample in tables.device
        if sample.utilization_percent is not None and warm.begin_ns < sample.monotonic_ns <= tables.steps[-1].end_ns
    ]
    return float(np.mean(inside)) / 100 if inside else None


def _not_launched(timed: Sequence[_Timed], begins: Sequence[int]) -> iv.Intervals:
    return iv.make(
        (begin + start, begin + end)
        for step, begin in zip(timed, begins, strict=True)
        for start, end in device_times.not_launched(step.at_ns, step.since_ns, begin)
    )


def _cut(spans: iv.Intervals, clocked: RankTables) -> iv.Intervals:
    """The spans cut at the edges of steps and phases: else the first part of a span over many steps would lie in the
    first of these steps."""
    edges = [ns for s in clocked.steps for row in ((REST, s.begin_ns, s.end_ns), *s.phases) for ns in row[1:]]
    at = np.unique(np.array(edges, dtype=np.int64))
    pieces: list[tuple[int, int]] = []
    for start, end in spans.tolist():
        inside = at[np.searchsorted(at, start, side="right") : np.searchsorted(at, end)].tolist()
        pieces += pairwise([start, *inside, end])
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)


def _first_part(spans: iv.Intervals, fraction: float) -> iv.Intervals:
    """The first part of each span: where in it the device was idle is unknown, and does not change a sum."""
    parts = spans.copy()
    parts[:, 1] = spans[:, 0] + np.rint((spans[:, 1] - spans[:, 0]) * fraction).astype(np.int64)
    return parts
