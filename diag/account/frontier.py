"""Phase frontiers: which phase of the step, and which rank in it, holds the run up, from durations alone.

After StageFrontier (arXiv 2606.06751; science.md 2.6). With E the time that a rank has spent of its step when it
leaves phase k, the frontier is F_k = max over the ranks of E; its increments partition the step. The last phase, REST,
is what lies between the phases, and waiting that no transfer explains. Nothing is compared but durations, so no clock
has to be aligned and no collective matched. A rank that begins a step later than it usually does, by its own clock
against the others' own, is that much late from the start (``head_starts``).

Two things keep waiting from being blamed. Where the records say how long a rank stood still for collectives, that time
is left out of E, and what of it even the rank that waited least had is communication. And a rank is late by how far
its E is beyond the others' median, so that it is charged only where it falls behind: those that wait for it in a later
phase catch up, and are charged nothing. What all spend alike is nobody's lateness. Where the waiting is not known and
every unit of the model synchronises (FSDP), a rank that is slow inside the forward looks like all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.collectors.records import PHASES, PHASES_AND_REST, REST, CollectiveRow, PhaseRow, StepRecord
from diag.rundir.run import RankTables

from . import intervals as iv
from .peers import median_of_others
from .records import blocked, is_p2p

_ROWS = 1024  # at a time: each value is copied once for each window that it is in
_USUAL = 20  # steps around one that say what is usual: clocks gain microseconds on each other in them

Times = npt.NDArray[np.int64]


class Frontier(Struct, frozen=True, eq=False):
    """``dur_ns[step]``: from the last rank's begin to the last rank's end; the increments of all phases and
    ``communication_ns`` add up to it.

    ``late_ns[phase, step, rank]``: by how much the rank fell behind the others' median in this phase;
    ``leader[phase, step]``: the rank at the frontier when the phase ends. ``communication_known``: whether the time
    that ranks stood still for collectives was recorded, and is not in the phases.
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
        found: Times = self.increment_ns[PHASES_AND_REST.index(phase)]
        return found

    def late(self, phase: str) -> Times:
        """Of each step and rank."""
        found: Times = self.late_ns[PHASES_AND_REST.index(phase)]
        return found

    def share(self, phase: str) -> float:
        """Part of the time of all steps."""
        total = int(self.dur_ns.sum())
        return float(self.increment(phase).sum()) / total if total else 0.0


def frontier(
    ranks: Mapping[int, RankTables], steps: Collection[int], on_device: bool, stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """The frontiers of the steps that every recorded rank has; None with fewer than two ranks, or no such step.
    ``stages``: of a pipeline, by rank: a rank is late against the others of its stage."""
    records = {rank: {s.step: s for s in tables.steps} for rank, tables in sorted(ranks.items()) if tables.steps}
    numbers = sorted(set(steps).intersection(*records.values())) if len(records) > 1 else []
    if not numbers:
        return None
    # On a device the host's own phases say nothing about collectives: it only launches them.
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
    """``head_starts`` of each step that all ranks have."""
    numbers = sorted(set.intersection(*(set(own) for own in records.values())))
    begin = np.array([[own[number].begin_ns for number in numbers] for own in records.values()], dtype=np.int64)
    return dict(zip(numbers, head_starts(begin).T, strict=True))


def head_starts(begin: Times) -> Times:
    """For each rank (a row) and step, how much later than the first of the ranks it began the step, without what it
    usually is: what every rank's own clock is off by is in that, and of a drift all but that of a few steps."""
    offset = begin - begin[0]
    wide = min(_USUAL, offset.shape[1] - 1) // 2
    unusual = np.empty_like(offset)
    for first in range(0, len(offset), _ROWS):
        rows = offset[first : first + _ROWS]
        padded = np.pad(rows, ((0, 0), (wide, wide)), "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * wide + 1, 1)
        unusual[first : first + _ROWS] = rows - np.median(windows, axis=2).astype(np.int64)
    found: Times = unusual - unusual.min(axis=0)
    return found


class _Rank:
    """How much of its time a rank did not stand still for collectives, and how long of that everybody did."""

    def __init__(self, rows: Sequence[CollectiveRow], shared: Sequence[tuple[int, int]]) -> None:
        self._still = iv.Covered(blocked(rows))
        ordered = np.array(sorted(shared), dtype=np.int64).reshape(-1, 2)
        self._begin, self._before = ordered[:, 0], np.concatenate(([0], np.cumsum(ordered[:, 1])))

    def worked(self, begin_ns: int, times: Times) -> Times:
        """Of the time from ``begin_ns`` to each of the times."""
        found: Times = times - begin_ns - self._still.between(np.full_like(times, begin_ns), times)
        return found

    def transfers(self, begin_ns: int, end_ns: int) -> int:
        """Of the collectives that it began to wait for in the window."""
        first, last = np.searchsorted(self._begin, (begin_ns, end_ns))
        return int(self._before[last] - self._before[first])


def _edges(members: Sequence[StepRecord], clocks: Sequence[_Rank]) -> tuple[list[int], Times]:
    """The phases of a step in order, and for each rank how much it has worked when it leaves them.

    Micro-batches keep their order where all ranks went through the same phases; else each phase is taken as one.
    """
    phases = [sorted(record.phases, key=lambda row: row.start_ns) for record in members]
    order = [row.phase for row in phases[0]]
    if all([row.phase for row in own] == order for own in phases):
        return _phase_order(order), np.stack([_until(*each) for each in zip(members, phases, clocks, strict=True)])
    sums = np.stack([_sums(*each) for each in zip(members, phases, clocks, strict=True)])
    return list(range(len(PHASES_AND_REST))), np.cumsum(sums, axis=1)


def _phase_order(phases: Sequence[str]) -> list[int]:
    """What each edge of a step ends: the phases, and what lies before, between and behind them."""
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
    """The places of the ranks that do the same work: those of one stage of a pipeline."""
    own = np.array([stages.get(rank, -1) for rank in ranks])
    return [np.flatnonzero(own == stage) for stage in np.unique(own)]


def behind(edges: Times, peers: Sequence[npt.NDArray[np.intp]] | None = None) -> Times:
    """By how much each rank has spent more than the median of the others that do the same work, at each edge; 0 where
    it has not."""
    found = np.zeros_like(edges)
    for places in peers if peers is not None else (np.arange(len(edges)),):
        found[places] = np.maximum(edges[places] - median_of_others(edges[places]), 0)
    return found


def _transfers(rows: Mapping[int, Sequence[CollectiveRow]]) -> dict[int, list[tuple[int, int]]]:
    """By rank, each collective as (begin of its wait, how long even the rank stood still that did so least). The last
    to arrive waits for nobody, so that is the transfer or more."""
    members: dict[tuple[str, int, str], dict[int, CollectiveRow]] = defaultdict(dict)
    for rank, own in rows.items():
        for row in own:
            if is_p2p(row):  # a receiver may wait for its sender the whole time
                continue
            members[row.group, row.seq, row.op][rank] = row
    found: dict[int, list[tuple[int, int]]] = {rank: [] for rank in rows}
    for met in members.values():
        least = min((row.wait_end_ns or 0) - (row.wait_start_ns or 0) for row in met.values())
        for rank, row in met.items():
            found[rank].append((row.wait_start_ns or 0, least))
    return found
