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

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.policy import CRITICAL_PATH
from diag.collectors.records import (
    P2P_PREFIX,
    PHASES,
    PHASES_AND_REST,
    REST,
)
from diag.model import UNKNOWN
from diag.model.accounts import Attribution
from diag.model.ragged import edges_of, owners
from diag.rundir.columns import NO_ROWS, Rows, Steps
from diag.rundir.tables import RankTables, Tables

from . import intervals as iv
from .blame import median_of_others
from .records import blocked
from .scheduling import Scheduling

Times = npt.NDArray[np.int64]

_REST = PHASES_AND_REST.index(REST)


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

    def of_steps(self, numbers: Collection[int]) -> Frontier:
        """Of these steps only; nothing is copied where these are all."""
        kept = np.isin(self.numbers, list(numbers))
        if kept.all():
            return self
        return replace(
            self,
            numbers=tuple(itertools.compress(self.numbers, kept)),
            dur_ns=self.dur_ns[kept],
            increment_ns=self.increment_ns[:, kept],
            leader=self.leader[:, kept],
            late_ns=self.late_ns[:, kept],
            communication_ns=self.communication_ns[kept],
        )

    def share(self, phase: str) -> float:
        total = int(self.dur_ns.sum())
        return float(self.increment(phase).sum()) / total if total else 0.0


def frontier(
    ranks: Mapping[int, RankTables], steps: Collection[int], on_device: bool, stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """The frontiers of the steps that every recorded rank has; None with fewer than two ranks, or no such step.
    ``stages``: pipeline stages by rank: a rank's lateness is measured against the other ranks of its stage."""
    recorded = {rank: tables.steps for rank, tables in sorted(ranks.items()) if tables.steps}
    common = sorted(set[int].intersection(*(of_rank.numbers for of_rank in recorded.values()))) if recorded else []
    wanted = set(steps)
    numbers = [number for number in common if number in wanted] if len(recorded) > 1 else []
    if not numbers:
        return None
    # On a device the host's phases do not show collectives: the host only launches them.
    rows = {
        rank: ranks[rank].rows.take(ranks[rank].rows.wait_end_ns != UNKNOWN) if not on_device else NO_ROWS
        for rank in recorded
    }
    known = all(rows.values())
    rows = rows if known else dict.fromkeys(recorded, NO_ROWS)
    shared = _transfers(rows)
    ahead = head_starts(np.stack([of_rank.begin_ns[of_rank.places_of(common)] for of_rank in recorded.values()]))[
        :, np.isin(common, numbers)
    ]
    phases = sorted({name for of_rank in recorded.values() for name in of_rank.names})
    members = _Members(list(recorded.values()), numbers, list(rows.values()), phases)
    count, names = len(numbers), np.array(list(recorded), dtype=np.int64)
    increment = np.zeros((len(PHASES_AND_REST), count), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), count, len(names)), dtype=np.int64)
    dur, communication = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    whole = members.end_ns - members.begin_ns
    transfers = members.transfers([shared.get(rank, iv.EMPTY) for rank in recorded])
    peers = alike(tuple(recorded), stages or {})
    for passed, at, worked in _alike_steps(members, phases):
        begun = ahead[:, at]
        edges = worked + begun[:, :, None]
        first = begun.max(axis=0)[:, None]
        front = np.maximum.accumulate(np.concatenate((first, edges.max(axis=0)), axis=1), axis=1)
        later = behind(np.concatenate((begun[:, :, None], edges), axis=2), peers)
        for k, phase in enumerate(passed):
            increment[phase, at] += front[:, k + 1] - front[:, k]
            leader[phase, at] = names[edges[:, :, k].argmax(axis=0)]
            late[phase, at] += np.maximum(later[:, :, k + 1] - later[:, :, k], 0).T
        dur[at] = (begun + whole[:, at]).max(axis=0) - begun.max(axis=0)
        still = np.maximum(0, dur[at] - (front[:, -1] - front[:, 0]))
        communication[at] = np.minimum(still, transfers[edges[:, :, -1].argmax(axis=0), at])
        increment[_REST, at] += still - communication[at]
    return Frontier(tuple(numbers), tuple(recorded), dur, increment, leader, late, communication, known)


def head_starts(begin: Times) -> Times:
    """For each rank (a row) and step, how much later than the first rank it began the step, minus what is usual for it.
    The usual value contains the offset of the rank's clock, and its drift but for that of a few steps."""
    offset = begin - begin[0]
    wide = min(CRITICAL_PATH.reference_steps, offset.shape[1] - 1) // 2
    unusual = np.empty_like(offset)
    for first in range(0, len(offset), CRITICAL_PATH.rows_at_once):
        rows = offset[first : first + CRITICAL_PATH.rows_at_once]
        least = rows.min()
        spread = rows - least  # numpy orders numbers of 32 bits twice as fast
        small = spread.astype(np.int32) if spread.max() <= np.iinfo(np.int32).max else spread
        padded = np.pad(small, ((0, 0), (wide, wide)), "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * wide + 1, 1)
        usual = np.partition(windows, wide, axis=2)[:, :, wide]  # the median of an odd number
        unusual[first : first + CRITICAL_PATH.rows_at_once] = spread - usual
    ahead: Times = unusual - unusual.min(axis=0)
    return ahead


class _Members:
    """The same steps of all ranks, as [ranks, steps]: how long each rank was not blocked in collectives. A step has an
    edge at the begin and the end of each of its phases, and at its own end. ``numbers``: of the steps; ``names``: of
    phases. Times count from the first begin of each rank: their clocks may be far apart."""

    def __init__(self, ranks: Sequence[Steps], numbers: Sequence[int], rows: Sequence[Rows], names: Sequence[str]):
        places = [of_rank.places_of(numbers) for of_rank in ranks]
        self._zero_ns = np.array([of_rank.begin_ns[at[0]] for of_rank, at in zip(ranks, places, strict=True)])
        self.begin_ns, self.end_ns = (
            np.stack([getattr(of_rank, edge)[at] for of_rank, at in zip(ranks, places, strict=True)])
            - self._zero_ns[:, None]
            for edge in ("begin_ns", "end_ns")
        )
        taken = [of_rank.phases.take(at) for of_rank, at in zip(ranks, places, strict=True)]
        self.counts = np.stack([np.diff(phases.first) for phases in taken])
        rank = np.repeat(np.arange(len(ranks)), self.counts.sum(axis=1))
        left, right = (
            np.concatenate([getattr(phases, edge) for phases in taken]) - self._zero_ns[rank]
            for edge in ("left", "right")
        )
        step_edges = edges_of(self.counts.ravel())  # of the phases of each step of each rank
        owner = owners(step_edges)
        order = np.lexsort((left, owner))  # by rank, step and begin
        of_names = {of_rank.names: (of_rank.codes(names), of_rank.codes(PHASES_AND_REST, _REST)) for of_rank in ranks}
        self.phases, ended = (
            np.concatenate(
                [of_names[of_rank.names][codes][phases.name] for of_rank, phases in zip(ranks, taken, strict=True)]
            )[order]
            for codes in (0, 1)
        )  # places in ``names`` and in PHASES_AND_REST
        at = np.arange(self.counts.size)
        self._first = 2 * step_edges[:-1] + at
        self._owner = np.repeat(at, 2 * self.counts.ravel() + 1)
        begins = 2 * np.arange(len(order)) + owner
        times = np.empty(len(self._owner), dtype=np.int64)
        times[begins], times[begins + 1] = left[order], right[order]
        times[2 * step_edges[1:] + at] = self.end_ns.ravel()
        for count in np.unique(self.counts).tolist():
            alike_steps = self._first[self.counts.ravel() == count][:, None] + np.arange(2 * count + 1)
            times[alike_steps] = np.maximum.accumulate(times[alike_steps], axis=1)
        begin = self.begin_ns.ravel()[self._owner]
        waits = iv.CoveredOfMany(
            [blocked(of_rank) - zero for of_rank, zero in zip(rows, self._zero_ns.tolist(), strict=True)]
        )
        self._worked: Times = times - begin - waits.between(self._owner // len(numbers), begin, times)
        self._phase = np.full(len(times), _REST)  # that each edge ends
        self._phase[begins + 1] = ended

    def edges(self, at: Times, count: int) -> Times:
        """The time that each rank has worked at each edge of some steps, which have so many: [ranks, steps, edges]."""
        first = self._first.reshape(self.counts.shape)[:, at]
        worked: Times = self._worked[first[:, :, None] + np.arange(count)]
        return worked

    def sums(self, at: Times) -> Times:
        """The same at the end of each phase, if those of one name come together: [ranks, steps, PHASES_AND_REST]."""
        return np.cumsum(self._spent[:, at], axis=2)

    @cached_property
    def _spent(self) -> Times:
        spent = np.diff(self._worked, prepend=0)
        spent[self._first] = self._worked[self._first]
        sums = np.zeros((self.counts.size, len(PHASES_AND_REST)), dtype=np.int64)
        np.add.at(sums, (self._owner, self._phase), spent)
        return sums.reshape(*self.counts.shape, -1)

    def transfers(self, shared: Sequence[Times]) -> Times:
        """For each rank and step, the transfer time of the collectives that the rank began to wait for in it.
        ``shared``: of each rank, see ``_transfers``."""
        rows = []
        for of_rank, zero, begin, end in zip(shared, self._zero_ns, self.begin_ns, self.end_ns, strict=True):
            begun, least = of_rank[np.argsort(of_rank[:, 0], kind="stable")].T
            begun, before = begun - zero, np.concatenate(([0], np.cumsum(least)))
            first, last = np.searchsorted(begun, np.stack((begin, end)))
            rows.append(before[last] - before[first])
        return np.stack(rows)


def _alike_steps(members: _Members, names: Sequence[str]) -> Iterator[tuple[list[int], Times, Times]]:
    """Steps that can be compared together: the phase that each of their edges ends, their places, and the time that
    each rank has worked at each edge: [ranks, steps, edges]. Micro-batches keep their order where all ranks went
    through the same phases; else each phase is summed."""
    ranks, steps = members.counts.shape
    one = members.counts[0]
    same = (members.counts == one).all(axis=0)
    phases = members.phases[np.repeat(np.tile(same, ranks), members.counts.ravel())].reshape(ranks, -1)
    differ = (phases != phases[0]).any(axis=0)
    same[np.repeat(np.arange(steps)[same], one[same])[differ]] = False
    first = edges_of(one).tolist()
    places: dict[bytes, list[int]] = defaultdict(list)
    for step in np.flatnonzero(same).tolist():
        places[members.phases[first[step] : first[step + 1]].tobytes()].append(step)
    for codes, alike_places in places.items():
        passed = _phase_order([names[code] for code in np.frombuffer(codes, dtype=np.int64).tolist()])
        for at in _batches(alike_places, ranks * len(passed)):
            yield passed, at, members.edges(at, len(passed))
    for at in _batches(np.flatnonzero(~same).tolist(), ranks * len(PHASES_AND_REST)):
        yield list(range(len(PHASES_AND_REST))), at, members.sums(at)


def _batches(places: Sequence[int], values: int) -> Iterator[Times]:
    """``values``: of each place, which bound the size of a batch."""
    size = max(1, CRITICAL_PATH.values_at_once // values)
    for first in range(0, len(places), size):
        yield np.array(places[first : first + size], dtype=np.int64)


def _phase_order(phases: Sequence[str]) -> list[int]:
    """The phase that each edge of a step ends, with REST before, between and after the phases."""
    names = [name for phase in phases for name in (REST, phase)] + [REST]
    return [PHASES_AND_REST.index(name if name in PHASES else REST) for name in names]


def alike(ranks: Sequence[int], stages: Mapping[int, int]) -> list[npt.NDArray[np.intp]]:
    """Places of the ranks that do the same work: one array per pipeline stage."""
    stage_of = np.array([stages.get(rank, -1) for rank in ranks])
    return [np.flatnonzero(stage_of == stage) for stage in np.unique(stage_of)]


def behind(edges: Times, peers: Sequence[npt.NDArray[np.intp]] | None = None, axis: int = 0) -> Times:
    """By how much each rank's time exceeds the median of its peers at each edge; 0 if it does not. ``axis``: that of
    the ranks."""
    if peers is None or len(peers) == 1:  # all ranks
        late: Times = np.maximum(edges - median_of_others(edges, axis), 0)
        return late
    excess = np.zeros_like(edges)
    for places in peers:
        chosen = (slice(None),) * axis + (places,)
        excess[chosen] = np.maximum(edges[chosen] - median_of_others(edges[chosen], axis), 0)
    return excess


def _transfers(rows: Mapping[int, Rows]) -> dict[int, Times]:
    """By rank, each collective as (begin of its wait, least time that any rank was blocked in it). The last rank to
    arrive does not wait, so the least time is the transfer or more."""
    names = sorted({name for of_rank in rows.values() for name in of_rank.names})
    # A receiver may wait for its sender the whole time.
    met = [of_rank.take(~of_rank.of_groups(P2P_PREFIX)) for of_rank in rows.values()]
    coded = [np.array([names.index(name) for name in of_rank.names], dtype=np.int64) for of_rank in met]
    call = np.concatenate(
        [code[of_rank.group] * len(names) + code[of_rank.op] for code, of_rank in zip(coded, met, strict=True)]
    )
    seq = np.concatenate([of_rank.seq for of_rank in met])
    place = np.repeat(np.arange(len(met)), [len(of_rank) for of_rank in met])
    start, end = (
        np.where(ns == UNKNOWN, 0, ns)
        for ns in (
            np.concatenate([getattr(of_rank, edge) for of_rank in met]) for edge in ("wait_start_ns", "wait_end_ns")
        )
    )
    order = np.lexsort((seq, call))  # each collective by rank
    call, seq, place, start, end = (column[order] for column in (call, seq, place, start, end))
    new = (np.diff(call) != 0) | (np.diff(seq) != 0)
    last = np.concatenate((new | (np.diff(place) != 0), [True])) if len(call) else np.zeros(0, dtype=np.bool_)
    # Of several calls of one number on a rank, the last.
    call, seq, place, start, end = (column[last] for column in (call, seq, place, start, end))
    if not len(call):
        return {}
    firsts = np.flatnonzero(np.concatenate(([True], (np.diff(call) != 0) | (np.diff(seq) != 0))))
    counts = np.diff(np.concatenate((firsts, [len(call)])))
    least = np.repeat(np.minimum.reduceat(end - start, firsts), counts)
    by_rank = np.argsort(place, kind="stable")
    spent = np.split(np.stack((start, least), axis=1)[by_rank], np.searchsorted(place[by_rank], np.arange(1, len(met))))
    return dict(zip(rows, spent, strict=True))


class BlockAccount(Struct, frozen=True):
    """``tables``: the run, with the rows of the steps that are kept in detail. ``frontier`` and ``scheduling``: of the
    counted steps."""

    tables: Tables
    attribution: Attribution
    frontier: Frontier | None
    scheduling: Scheduling
