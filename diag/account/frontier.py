"""Phase frontiers: which phase of the step, and which rank in it, holds the run up, from durations alone.

After StageFrontier (arXiv 2606.06751). Let E be the time that a rank has spent of its step at the end
of phase k. The frontier is F_k = max of E over the ranks; its increments partition the step. The last phase, REST, is
the time between the phases, and waiting that no transfer explains. Only durations are compared, so no clock has to be
aligned and no collective matched. If a rank begins a step later than usual (by its own clock, against the others'
clocks), it is late by that much from the start (``head_starts``).

Two rules keep waiting from being blamed. If the records contain the time that a rank was blocked in collectives, that
time is left out of E, and its minimum over the ranks is communication. And a rank is late by how far its E exceeds the
others' median, so that it is charged only where it falls behind: ranks that wait for it in a later phase catch up, and
are charged nothing. Time that all ranks spend alike makes none of them late. If the waiting is unknown and every unit
of the model synchronises (FSDP), a rank that is slow inside the forward looks like all others.

Runs recorded as summaries get the same frontiers with three differences. Times are whole microseconds. The phases of a
step come in the order of PHASES_AND_REST, each once; micro-batches and the pieces of REST are summed. Single
collectives are unknown: the least time that any rank is blocked in a phase counts as communication. That is too much
if one rank is late for one collective of a phase and another rank for the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH, STEPS
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    H2D,
    OPTIMIZER,
    PHASES,
    PHASES_AND_REST,
    REST,
    STEP,
    STILL,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_WARMUP,
    CollectiveRow,
    PhaseRow,
    StepRecord,
)
from diag.model.axes import Axes
from diag.model.steps import Attribution, CriticalPath, Parts, StepAccount
from diag.rundir.summaries import Summaries
from diag.rundir.tables import RankTables

from . import intervals as iv
from .attribute import IN_WINDOW, in_windows, queued_steps
from .blame import median_of_others
from .records import blocked, is_p2p

Times = npt.NDArray[np.int64]


class Frontier(Struct, frozen=True, eq=False):
    """``dur_ns[step]``: from the last rank's begin to the last rank's end; the increments of all phases and
    ``communication_ns`` add up to it.

    ``late_ns[phase, step, rank]``: by how much the rank fell behind the others' median in this phase; ``leader[phase,
    step]``: the rank at the frontier when the phase ends. ``communication_known``: whether the time that ranks were
    blocked in collectives was recorded, and is excluded from the phases.
    """

    numbers: tuple[int, ...]
    ranks: tuple[int, ...]
    dur_ns: Times
    increment_ns: Times
    leader: Times
    late_ns: Times
    communication_ns: Times
    communication_known: bool

    def increment(self, phase: str) -> Times:
        ns: Times = self.increment_ns[PHASES_AND_REST.index(phase)]
        return ns

    def late(self, phase: str) -> Times:
        ns: Times = self.late_ns[PHASES_AND_REST.index(phase)]
        return ns

    def share(self, phase: str) -> float:
        total = int(self.dur_ns.sum())
        return float(self.increment(phase).sum()) / total if total else 0.0


def frontier(
    ranks: Mapping[int, RankTables], steps: Collection[int], on_device: bool, stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """The frontiers of the steps that every recorded rank has; None with fewer than two ranks, or no such step.
    ``stages``: pipeline stages by rank: a rank's lateness is measured against the other ranks of its stage."""
    records = {rank: {s.step: s for s in tables.steps} for rank, tables in sorted(ranks.items()) if tables.steps}
    numbers = sorted(set(steps).intersection(*records.values())) if len(records) > 1 else []
    if not numbers:
        return None
    # On a device the host's phases do not show collectives: the host only launches them.
    rows = {rank: [] if on_device else [r for r in ranks[rank].rows if r.wait_end_ns is not None] for rank in records}
    known = all(rows.values())
    shared = _transfers(rows) if known else {rank: [] for rank in records}
    clocks = [_Rank(rows[rank] if known else [], shared[rank]) for rank in records]
    count, names = len(numbers), tuple(records)
    increment = np.zeros((len(PHASES_AND_REST), count), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), count, len(names)), dtype=np.int64)
    dur, communication = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    ahead = _head_starts(records)
    peers = alike(names, stages or {})
    for i, number in enumerate(numbers):
        members = [records[rank][number] for rank in names]
        passed, edges = _edges(members, clocks)
        begun = ahead[number]
        edges += begun[:, None]
        front = np.maximum.accumulate(np.concatenate(([begun.max()], edges.max(axis=0))))
        later = behind(np.concatenate((begun[:, None], edges), axis=1), peers)
        for k, phase in enumerate(passed):
            increment[phase, i] += front[k + 1] - front[k]
            leader[phase, i] = names[int(edges[:, k].argmax())]
            late[phase, i] += np.maximum(later[:, k + 1] - later[:, k], 0)
        whole = np.array([record.end_ns - record.begin_ns for record in members], dtype=np.int64)
        dur[i] = (begun + whole).max() - begun.max()
        still = max(0, int(dur[i] - (front[-1] - front[0])))
        last = int(edges[:, -1].argmax())
        communication[i] = min(still, clocks[last].transfers(members[last].begin_ns, members[last].end_ns))
        increment[PHASES_AND_REST.index(REST), i] += still - communication[i]
    return Frontier(tuple(numbers), names, dur, increment, leader, late, communication, known)


def _head_starts(records: Mapping[int, Mapping[int, StepRecord]]) -> dict[int, Times]:
    numbers = sorted(set.intersection(*(set(by_step) for by_step in records.values())))
    begin = np.array([[by_step[number].begin_ns for number in numbers] for by_step in records.values()], dtype=np.int64)
    return dict(zip(numbers, head_starts(begin).T, strict=True))


def head_starts(begin: Times) -> Times:
    """For each rank (a row) and step, how much later than the first rank it began the step, minus what is usual for it.
    The usual value contains the offset of the rank's clock, and its drift but for that of a few steps."""
    offset = begin - begin[0]
    wide = min(CRITICAL_PATH.reference_steps, offset.shape[1] - 1) // 2
    unusual = np.empty_like(offset)
    for first in range(0, len(offset), CRITICAL_PATH.rows_at_once):
        rows = offset[first : first + CRITICAL_PATH.rows_at_once]
        padded = np.pad(rows, ((0, 0), (wide, wide)), "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * wide + 1, 1)
        unusual[first : first + CRITICAL_PATH.rows_at_once] = rows - np.median(windows, axis=2).astype(np.int64)
    ahead: Times = unusual - unusual.min(axis=0)
    return ahead


class _Rank:
    """How long a rank was not blocked in collectives, and how long all ranks were."""

    def __init__(self, rows: Sequence[CollectiveRow], shared: Sequence[tuple[int, int]]) -> None:
        self._still = iv.Covered(blocked(rows))
        ordered = np.array(sorted(shared), dtype=np.int64).reshape(-1, 2)
        self._begin, self._before = ordered[:, 0], np.concatenate(([0], np.cumsum(ordered[:, 1])))

    def worked(self, begin_ns: int, times: Times) -> Times:
        """Time not blocked in collectives, from ``begin_ns`` to each of the times."""
        worked_ns: Times = times - begin_ns - self._still.between(np.full_like(times, begin_ns), times)
        return worked_ns

    def transfers(self, begin_ns: int, end_ns: int) -> int:
        """Transfer time of the collectives that the rank began to wait for in the window."""
        first, last = np.searchsorted(self._begin, (begin_ns, end_ns))
        return int(self._before[last] - self._before[first])


def _edges(members: Sequence[StepRecord], clocks: Sequence[_Rank]) -> tuple[list[int], Times]:
    """The phases of a step in order, and for each rank the time it has worked when it leaves them.

    Micro-batches keep their order if all ranks went through the same phases; else each phase is summed.
    """
    phases = [sorted(record.phases, key=lambda row: row.start_ns) for record in members]
    order = [row.phase for row in phases[0]]
    if all([row.phase for row in rows] == order for rows in phases):
        return _phase_order(order), np.stack([_until(*each) for each in zip(members, phases, clocks, strict=True)])
    sums = np.stack([_sums(*each) for each in zip(members, phases, clocks, strict=True)])
    return list(range(len(PHASES_AND_REST))), np.cumsum(sums, axis=1)


def _phase_order(phases: Sequence[str]) -> list[int]:
    """The phase that each edge of a step ends, with REST before, between and after the phases."""
    names = [name for phase in phases for name in (REST, phase)] + [REST]
    return [PHASES_AND_REST.index(name if name in PHASES else REST) for name in names]


def _until(record: StepRecord, phases: Sequence[PhaseRow], clock: _Rank) -> Times:
    times = [edge for row in phases for edge in (row.start_ns, row.end_ns)] + [record.end_ns]
    return clock.worked(record.begin_ns, np.maximum.accumulate(np.array(times, dtype=np.int64)))


def _sums(record: StepRecord, phases: Sequence[PhaseRow], clock: _Rank) -> Times:
    edges = np.diff(_until(record, phases, clock), prepend=0)
    sums = np.zeros(len(PHASES_AND_REST), dtype=np.int64)
    np.add.at(sums, _phase_order([row.phase for row in phases]), edges)
    return sums


def alike(ranks: Sequence[int], stages: Mapping[int, int]) -> list[npt.NDArray[np.intp]]:
    """Places of the ranks that do the same work: one array per pipeline stage."""
    stage_of = np.array([stages.get(rank, -1) for rank in ranks])
    return [np.flatnonzero(stage_of == stage) for stage in np.unique(stage_of)]


def behind(edges: Times, peers: Sequence[npt.NDArray[np.intp]] | None = None) -> Times:
    """By how much each rank's time exceeds the median of its peers at each edge; 0 if it does not."""
    excess = np.zeros_like(edges)
    for places in peers if peers is not None else (np.arange(len(edges)),):
        excess[places] = np.maximum(edges[places] - median_of_others(edges[places]), 0)
    return excess


def _transfers(rows: Mapping[int, Sequence[CollectiveRow]]) -> dict[int, list[tuple[int, int]]]:
    """By rank, each collective as (begin of its wait, least time that any rank was blocked in it). The last rank to
    arrive does not wait, so the least time is the transfer or more."""
    members: dict[tuple[str, int, str], dict[int, CollectiveRow]] = defaultdict(dict)
    for rank, of_rank in rows.items():
        for row in of_rank:
            if is_p2p(row):  # a receiver may wait for its sender the whole time
                continue
            members[row.group, row.seq, row.op][rank] = row
    transfers: dict[int, list[tuple[int, int]]] = {rank: [] for rank in rows}
    for met in members.values():
        least = min((row.wait_end_ns or 0) - (row.wait_start_ns or 0) for row in met.values())
        for rank, row in met.items():
            transfers[rank].append((row.wait_start_ns or 0, least))
    return transfers


# -- runs recorded as summaries ----------------------------------------------------------------------------------------


_US = 1000  # nanoseconds

_NO_TIMES: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_NO_PATH = CriticalPath(_NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, ())


def summary_frontier(
    summaries: Summaries, counted: Collection[int], stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """The frontiers of the counted steps; None with fewer than two ranks, or no such step. ``stages``: pipeline stages
    by rank: a rank's lateness is measured against the other ranks of its stage."""
    places = [at for at, number in enumerate(summaries.numbers) if number in counted]
    ranks, steps = len(summaries.ranks), len(places)
    if ranks < 2 or not steps:
        return None
    peers = alike(summaries.ranks, stages or {})
    ahead = head_starts(summaries.begin_us)
    # On a device the host only launches collectives: its phases do not show waiting for other ranks.
    known = summaries.waits_known and not summaries.on_device
    names = np.array(summaries.ranks, dtype=np.int64)
    increment = np.zeros((len(PHASES_AND_REST), steps), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), steps, ranks), dtype=np.int64)
    dur, communication = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    for i, (at, values) in enumerate(
        zip(places, _by_step(summaries, (*PHASES_AND_REST, *_STILL, STEP), places), strict=True)
    ):
        worked, still, whole = values[:, : len(PHASES_AND_REST)], values[:, len(PHASES_AND_REST) : -1], values[:, -1]
        begun = ahead[:, at]
        edges = np.cumsum(worked if known else worked + still, axis=1) + begun[:, None]
        front = np.maximum.accumulate(np.concatenate(([begun.max()], edges.max(axis=0))))
        later = behind(np.concatenate((begun[:, None], edges), axis=1), peers)
        increment[:, i] = np.diff(front)
        leader[:, i] = names[edges.argmax(axis=0)]
        late[:, i] = np.maximum(np.diff(later, axis=1), 0).T
        dur[i] = (begun + whole).max() - begun.max()
        left = max(0, int(dur[i] - (front[-1] - front[0])))
        if known:
            last = int(edges[:, -1].argmax())
            mates = next(alike for alike in peers if last in alike)
            # The least time that any rank is blocked in each phase.
            communication[i] = min(left, int(still[mates].min(axis=0).sum()))
        increment[PHASES_AND_REST.index(REST), i] += left - communication[i]
    for times in (dur, increment, late, communication):
        times *= _US
    numbers = tuple(summaries.numbers[at] for at in places)
    return Frontier(numbers, summaries.ranks, dur, increment, leader, late, communication, known)


def steps_left_out(summaries: Summaries) -> dict[int, str]:
    """The steps that do not represent the run, each with the reason."""
    left_out = dict.fromkeys(summaries.marked.get(WINDOW_WARMUP, ()), "the profiler was starting")
    for after in summaries.marked.get(WINDOW_AFTER, ()):
        for step in range(after + 1, after + 1 + queued_steps(summaries.manifest)):
            left_out.setdefault(step, "the loader's queue filled up while a trace was written")
        left_out[after] = "the profiler was writing a trace before it"
    if summaries.from_start and len(summaries.numbers) > 2 * STEPS.warm_up_steps:
        left_out.update(dict.fromkeys(summaries.numbers[: STEPS.warm_up_steps], "warm-up"))
    left_out = in_windows(summaries.marked.get(WINDOW_ACTIVE, ()), summaries.numbers, left_out) | left_out
    return {step: left_out[step] for step in summaries.numbers if step in left_out}


def summary_attribution(
    summaries: Summaries, left_out: Mapping[int, str], shown: Sequence[int], axes: Axes
) -> Attribution:
    """Every step's duration, and the parts of the ranks ``shown``. No path: that needs collectives."""
    longest = summaries.column(STEP).max(axis=0)
    parts = [_parts(summaries, rank) for rank in sorted(shown)]
    return Attribution(
        steps=tuple(
            StepAccount(
                step=number,
                dur_ns=int(longest[at]) * _US,
                parts=tuple(of_rank[at] for of_rank in parts),
                path=_NO_PATH,
                blames=(),
                usable=number not in left_out,
                note=left_out.get(number, ""),
                window=left_out.get(number) == IN_WINDOW,
            )
            for at, number in enumerate(summaries.numbers)
        ),
        ranks=summaries.ranks,
        clock_uncertainty_ns=None,
        aligned=False,
        comm_known=not summaries.on_device,
        collectives=(),
        axes=axes,
    )


def telling_ranks(frontier: Frontier) -> tuple[int, ...]:
    """The ranks whose parts are worth showing: those with the most lateness in sum, and some that were not late."""
    late = frontier.late_ns.sum(axis=(0, 1))
    order = np.argsort(-late, kind="stable")
    few = max(1, CRITICAL_PATH.ranks_with_parts_shown - CRITICAL_PATH.ranks_with_parts_shown // 4)
    chosen = (
        order
        if len(order) <= CRITICAL_PATH.ranks_with_parts_shown
        else np.concatenate((order[:few], order[few - CRITICAL_PATH.ranks_with_parts_shown :]))
    )
    return tuple(frontier.ranks[at] for at in chosen.tolist())


_STILL = tuple(phase + STILL for phase in PHASES_AND_REST)


def _by_step(summaries: Summaries, columns: Sequence[str], places: Sequence[int]) -> Iterator[Times]:
    """For each step at ``places``: the values, shape (ranks, columns). Steps are read in batches: in the table the
    values of one rank are contiguous."""
    for first in range(0, len(places), CRITICAL_PATH.steps_at_once):
        batch = places[first : first + CRITICAL_PATH.steps_at_once]
        block = np.stack([summaries.column(name)[:, batch].T for name in columns], axis=2)
        yield from block.astype(np.int64)


def _parts(summaries: Summaries, rank: int) -> list[Parts]:
    at = summaries.ranks.index(rank)

    def of(*columns: str) -> list[int]:
        total = sum(summaries.column(name)[at].astype(np.int64) for name in columns) * _US
        return list(np.asarray(total).tolist())

    values = zip(
        of(STEP), of(FORWARD, BACKWARD, OPTIMIZER), of(*_STILL), of(H2D), of(DATA), of(CHECKPOINT), of(OPTIMIZER),
        strict=True,
    )  # fmt: skip
    return [
        Parts(
            rank=rank,
            source="summary",
            dur_ns=max(dur, compute + still + copy + data + checkpoint),  # each value is rounded separately
            compute_ns=compute,
            exposed_comm_ns=still,
            exposed_copy_ns=copy,
            data_wait_ns=data,
            checkpoint_ns=checkpoint,
            idle_ns=max(0, dur - compute - still - copy - data - checkpoint),
            overlapped_comm_ns=0,
            optimizer_ns=optimizer,
            exposed_wait_ns=None,
            exposed_transfer_ns=None,
        )
        for dur, compute, still, copy, data, checkpoint, optimizer in values
    ]
