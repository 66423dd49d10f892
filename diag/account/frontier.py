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

from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH, STEPS
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    H2D,
    OPTIMIZER,
    P2P_PREFIX,
    PHASES,
    PHASES_AND_REST,
    REST,
    STEP,
    STILL,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_WARMUP,
)
from diag.model import UNKNOWN
from diag.model.accounts import Attribution, StepAccount, StepAccounts
from diag.model.axes import Axes
from diag.model.matched import NO_COLLECTIVES
from diag.model.ragged import edges_of, owners
from diag.model.steps import NO_BLAMES, CriticalPath, Parts
from diag.rundir.columns import NO_ROWS, Rows, Steps
from diag.rundir.summaries import NS_PER_US, Summaries
from diag.rundir.tables import RankTables, Tables

from . import intervals as iv
from .attribute import IN_WINDOW, evaluations_left_out, in_windows, queued_steps
from .blame import median_of_others
from .device_summaries import Idle
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
        padded = np.pad(rows, ((0, 0), (wide, wide)), "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * wide + 1, 1)
        unusual[first : first + CRITICAL_PATH.rows_at_once] = rows - np.median(windows, axis=2).astype(np.int64)
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


# -- runs recorded as summaries ----------------------------------------------------------------------------------------


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
    known = summaries.waits_apart
    of_place = np.array(summaries.ranks, dtype=np.int64)
    increment = np.zeros((len(PHASES_AND_REST), steps), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), steps, ranks), dtype=np.int64)
    dur, communication = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    phases = [
        phase for phase in PHASES_AND_REST if phase == REST or summaries.has(phase) or summaries.has(phase + STILL)
    ]
    rows = [PHASES_AND_REST.index(phase) for phase in phases]
    names = (*phases, *(phase + STILL for phase in phases), STEP)
    for i, (at, values) in enumerate(zip(places, _by_step(summaries, names, places), strict=True)):
        worked, still, whole = values[: len(phases)], values[len(phases) : -1], values[-1]
        begun = ahead[:, at]
        # Ranks are contiguous: that is what is compared.
        edges = np.cumsum(worked if known else worked + still, axis=0) + begun
        front = np.maximum.accumulate(np.concatenate(([begun.max()], edges.max(axis=1))))
        later = behind(np.concatenate((begun[None], edges)), peers, axis=1)
        increment[rows, i] = np.diff(front)
        first = [begun.argmax(), *edges.argmax(axis=1)]  # at each edge; a phase that nobody has leaves it as it was
        leader[:, i] = of_place[[first[bisect(rows, row)] for row in range(len(PHASES_AND_REST))]]
        late[rows, i] = np.maximum(np.diff(later, axis=0), 0)
        dur[i] = (begun + whole).max() - begun.max()
        left = max(0, int(dur[i] - (front[-1] - front[0])))
        if known:
            last = int(edges[-1].argmax())
            mates = next(alike for alike in peers if last in alike)
            # The least time that any rank is blocked in each phase.
            communication[i] = min(left, int(still[:, mates].min(axis=1).sum()))
        increment[_REST, i] += left - communication[i]
    for times in (dur, increment, late, communication):
        times *= NS_PER_US
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
    evaluating = summaries.marked.get(EVALUATION, frozenset()).intersection(summaries.numbers)
    left_out = evaluations_left_out(evaluating, len(summaries.numbers)) | left_out
    left_out = in_windows(summaries.marked.get(WINDOW_ACTIVE, ()), summaries.numbers, left_out) | left_out
    return {step: left_out[step] for step in summaries.numbers if step in left_out}


def summary_attribution(
    summaries: Summaries, left_out: Mapping[int, str], shown: Sequence[int], axes: Axes, idle: Idle | None = None
) -> Attribution:
    """Every step's duration, and the parts of the ranks ``shown``. No path: that needs collectives. ``idle``: of the
    devices, if known."""
    longest = summaries.column(STEP).max(axis=0)
    parts = [_parts(summaries, rank) for rank in sorted(shown)]
    return Attribution(
        steps=StepAccounts.of(
            [
                StepAccount(
                    step=number,
                    dur_ns=int(longest[at]) * NS_PER_US,
                    parts=tuple(of_rank[at] for of_rank in parts),
                    path=_NO_PATH,
                    blames=NO_BLAMES,
                    usable=number not in left_out,
                    note=left_out.get(number, ""),
                    window=left_out.get(number) == IN_WINDOW,
                )
                for at, number in enumerate(summaries.numbers)
            ]
        ),
        ranks=summaries.ranks,
        clock_uncertainty_ns=None,
        aligned=False,
        comm_known=summaries.waits_apart or not summaries.on_device,
        collectives=NO_COLLECTIVES,
        axes=axes,
        idle_known=idle is not None or not summaries.on_device,
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
    """For each step at ``places``: the values, shape (columns, ranks). Steps are read in batches: in the table the
    values of one rank are contiguous."""
    for first in range(0, len(places), CRITICAL_PATH.steps_at_once):
        batch = places[first : first + CRITICAL_PATH.steps_at_once]
        block = np.empty((len(batch), len(columns), len(summaries.ranks)), dtype=np.uint32)
        for at, name in enumerate(columns):
            block[:, at] = summaries.column(name)[:, batch].T
        yield from (of_step.astype(np.int64) for of_step in block)


# Fields of ``Parts``, each with the columns of a summary that add up to it.
_FIELDS = {
    "data_wait_ns": (DATA,),
    "exposed_copy_ns": (H2D,),
    "compute_ns": (FORWARD, BACKWARD, OPTIMIZER),
    "exposed_comm_ns": _STILL,
}


def summary_means(
    summaries: Summaries, numbers: Sequence[int], idle: Idle | None = None
) -> dict[str, dict[int, float]]:
    """Mean milliseconds of these steps, by field of ``Parts`` and rank. ``idle``: of the devices in these steps."""
    places = np.flatnonzero(np.isin(summaries.numbers, numbers))
    means = {}
    for name, columns in _FIELDS.items():
        total = sum(
            (summaries.column(column)[:, places].mean(axis=1) for column in columns),
            start=np.zeros(len(summaries.ranks)),
        )
        means[name] = dict(zip(summaries.ranks, np.round(total / 1000, 3).tolist(), strict=True))
    if idle is not None:
        idle_ms = (idle.late.mean(axis=1) + idle.besides.mean(axis=1)) / 1e6
        means["idle_ns"] = dict(zip(summaries.ranks, np.round(idle_ms, 3).tolist(), strict=True))
    return means


def _parts(summaries: Summaries, rank: int) -> list[Parts]:
    at = summaries.ranks.index(rank)

    def of(*columns: str) -> list[int]:
        total = sum(summaries.column(name)[at].astype(np.int64) for name in columns) * NS_PER_US
        return list(np.asarray(total).tolist())

    columns = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns")
    values = zip(of(STEP), *(of(*_FIELDS[name]) for name in columns), of(CHECKPOINT), of(OPTIMIZER), strict=True)
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


class BlockAccount(Struct, frozen=True):
    """``tables``: the run, with the rows of the steps that are kept in detail. ``frontier`` and ``scheduling``: of the
    counted steps."""

    tables: Tables
    attribution: Attribution
    frontier: Frontier | None
    scheduling: Scheduling
