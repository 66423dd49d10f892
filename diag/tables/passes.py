"""The pass of the model that each collective belongs to, with its exposed transfer and the compute that could overlap
it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.intervals import Covered, Intervals, intervals_of
from diag.account.records import is_transfer, open_span
from diag.model.accounts import Attribution
from diag.model.axes import is_data
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep

GATHERS = frozenset({"all_gather"})
REDUCTIONS = frozenset({"reduce_scatter", "all_reduce", "reduce"})
_DETAILS = tuple(Detail)
PASSES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)


class PhasedCall(Struct, frozen=True):
    """One rank's part in one collective.

    ``phase``: the pass that needs a gather's result, or that made the gradients; ``micro``: the micro-batch, from 0;
    ``place``: index among the collectives of its operation in this pass, from 0, of ``places``. ``exposed_ns``: the
    exposed transfer, after the last rank's arrival. ``room_ns``: the rank's compute between the previous collective of
    the operation in this pass and this one; ``after_ns``: compute in passes of this kind from the call's end to the
    step's. ``transfer_ns``: from the last rank's arrival to this rank's end.
    """

    rank: int
    step: int
    op: str
    bytes: int
    phase: Detail
    micro: int
    place: int
    places: int
    exposed_ns: int
    room_ns: int
    start_ns: int
    end_ns: int
    after_ns: int
    transfer_ns: int
    of_data: bool = True  # its group is for data parallelism, or of unknown purpose


def phased_calls(attribution: Attribution, steps: Collection[int]) -> list[PhasedCall]:
    """The collectives that start in these steps, by rank and start."""
    arrival = {met.key: met.arrival_ns for met in attribution.collectives}
    counted = frozenset(steps)
    axes = attribution.axes
    # By the identity of the tuple of ranks, which the calls of a group share: hashing a thousand ranks per call is
    # slow.
    groups = {id(call.group_ranks): call.group_ranks for step in attribution.rank_steps for call in step.collectives}
    of_data = {group: is_data(axes.of(ranks)) for group, ranks in groups.items()}
    return [
        call for step in attribution.rank_steps if step.step in counted for call in _calls_of(step, arrival, of_data)
    ]


def _calls_of(
    step: RankStep, arrival: dict[tuple[str, int, str], int], of_data: dict[int, bool]
) -> Iterator[PhasedCall]:
    calls = [call for call in step.collectives if step.begin_ns <= call.start_ns < step.end_ns]
    calls.sort(key=open_span)
    if not calls:
        return
    passes = Passes(step)
    start, end = np.array([_transfer_span(call, arrival) for call in calls], dtype=np.int64).T
    reach = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    begin = np.maximum(start, reach)  # if calls overlap, the time belongs to the first one
    exposed = Covered(intervals_of(step.segments, Kind.COMM)).between(begin, end)
    pass_of_call = passes.of(calls)
    members: dict[tuple[str, Detail, int, bool], list[int]] = {}
    for i, (phase, micro) in enumerate(pass_of_call):
        members.setdefault((calls[i].op, phase, micro, of_data[id(calls[i].group_ranks)]), []).append(i)
    until = np.full(len(calls), step.end_ns, dtype=np.int64)
    after = {phase: Covered(passes.computing(phase)).between(end, until) for phase, _ in set(pass_of_call)}
    computed = Covered(intervals_of(step.segments, Kind.COMPUTE))
    for (op, phase, micro, data), indices in members.items():
        ends = np.array([calls[indices[0]].start_ns, *(calls[i].end_ns for i in indices[:-1])], dtype=np.int64)
        starts = np.array([calls[i].start_ns for i in indices], dtype=np.int64)
        room = computed.between(ends, starts)
        for place, i in enumerate(indices):
            moved = max(0, int(end[i] - start[i]))
            yield PhasedCall(
                step.rank, step.step, op, calls[i].bytes, phase, micro, place, len(indices), int(exposed[i]),
                int(room[place]), calls[i].start_ns, calls[i].end_ns, int(after[phase][i]), moved, data,
            )  # fmt: skip


def _transfer_span(call: CollectiveCall, arrival: dict[tuple[str, int, str], int]) -> tuple[int, int]:
    """From the last rank's arrival to the end."""
    start, end = open_span(call)
    met = arrival.get(call.key, start)
    return max(start, min(met, end) if is_transfer(call) else met), end


class Passes:
    """The passes of one step in order."""

    def __init__(self, step: RankStep) -> None:
        cut = self._step = step.segments
        in_pass = np.isin(cut.kind, (Kind.COMPUTE, Kind.IDLE)) & np.isin(cut.detail, PASSES)
        self._start: npt.NDArray[np.int64] = cut.start_ns[in_pass]
        self._detail = cut.detail[in_pass]
        # A forward after a backward begins the next micro-batch. Recomputation counts as backward.
        again = (self._detail[1:] == Detail.FORWARD) & (self._detail[:-1] == Detail.BACKWARD)
        self._micro = np.concatenate(([0], np.cumsum(again))) if len(self._detail) else np.zeros(0, dtype=np.int64)

    def computing(self, phase: Detail) -> Intervals:
        """When the rank computes in passes of this kind."""
        chosen = (self._step.kind == Kind.COMPUTE) & (self._step.detail == phase)
        return np.stack((self._step.start_ns[chosen], self._step.end_ns[chosen]), axis=1)

    def of(self, calls: Sequence[CollectiveCall]) -> list[tuple[Detail, int]]:
        """The pass and the micro-batch of each call: a gather belongs to the work after it, any other operation to the
        work before it."""
        at = np.searchsorted(self._start, np.array([call.start_ns for call in calls], dtype=np.int64), side="left")
        at -= np.array([call.op not in GATHERS for call in calls], dtype=np.int64)
        return [
            (_DETAILS[self._detail[i]], int(self._micro[i])) if 0 <= i < len(self._detail) else (Detail.NONE, 0)
            for i in at.tolist()
        ]
