"""The pass of the model that each collective belongs to, with its exposed transfer and the compute that could overlap
it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from diag.account.calls import Calls
from diag.account.intervals import Covered
from diag.account.policy import CRITICAL_PATH
from diag.account.rank_steps import RankSteps
from diag.account.records import TRANSFER, open_spans
from diag.model.accounts import Attribution
from diag.model.axes import is_data
from diag.model.keys import names_joined
from diag.model.matched import MatchedCollectives
from diag.model.parts import stored_once
from diag.model.ragged import is_named
from diag.model.steps import Detail, Kind
from diag.rundir.columns import Bools, Codes, Columns, Ints

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


@dataclass(frozen=True, eq=False)
class PhasedCalls(Columns[PhasedCall]):
    """The columns are the fields of ``PhasedCall``. ``op`` is a place in ``names``, ``phase`` the number of its
    ``Detail``."""

    rank: Ints
    step: Ints
    op: Codes
    bytes: Ints
    phase: Ints
    micro: Ints
    place: Ints
    places: Ints
    exposed_ns: Ints
    room_ns: Ints
    start_ns: Ints
    end_ns: Ints
    after_ns: Ints
    transfer_ns: Ints
    of_data: Bools
    names: tuple[str, ...]

    @classmethod
    def joined(cls, several: Sequence[PhasedCalls]) -> PhasedCalls:
        """One after the other."""
        own, names = names_joined([each.names for each in several])
        codes = [code[each.op] for code, each in zip(own, several, strict=True)]
        columns: dict[str, Any] = {
            name: np.concatenate([np.zeros(0, dtype=np.int64), *(getattr(each, name) for each in several)])
            for name in cls.columns()
        }
        columns["of_data"] = columns["of_data"] != 0
        columns["op"] = np.concatenate([np.zeros(0, dtype=np.int32), *codes])
        return cls(**{name: stored_once(column) for name, column in columns.items()}, names=names)

    def with_op(self, ops: Collection[str]) -> Bools:
        return is_named(self.op, self.names, *ops)

    def in_pass(self, phase: Detail) -> Bools:
        mask: Bools = self.phase == phase
        return mask

    def __len__(self) -> int:
        return len(self.rank)

    def _records(self, first: int, last: int) -> Iterator[PhasedCall]:
        columns = {name: getattr(self, name)[first:last].tolist() for name in self.columns()}
        columns["op"] = [self.names[code] for code in columns["op"]]
        columns["phase"] = [_DETAILS[code] for code in columns["phase"]]
        return map(PhasedCall, *columns.values())


def phased_calls(attribution: Attribution, steps: Collection[int]) -> PhasedCalls:
    """The collectives that start in these steps, by rank and start."""
    chosen = RankSteps.of(attribution.rank_steps).of_steps(steps)
    chosen = chosen.take(np.diff(chosen.place_edges) > 0)
    at_once = CRITICAL_PATH.numbers_at_once // len(PhasedCalls.columns())  # as many columns as a call has fit
    first = np.flatnonzero(np.diff(chosen.place_edges[1:] // at_once, prepend=-1)).tolist()
    batches = (chosen.take(slice(i, j)) for i, j in pairwise([*first, len(chosen)]))
    phased = (_calls_of(steps, attribution) for steps in batches)
    return PhasedCalls.joined([calls for calls in phased if calls is not None])


def _calls_of(steps: RankSteps, attribution: Attribution) -> PhasedCalls | None:
    """Of some steps of any ranks; None without any call. Steps lie one behind the other on one line."""
    passes = Passes(steps)
    calls, of_step = steps.calls.take(steps.places), steps.of_place
    start, end = open_spans(calls)
    order = np.lexsort((end, start, of_step))
    order = order[passes.starts_in(of_step, calls.start_ns)[order]]
    if not len(order):
        return None
    calls, of_step, start, end = calls.take(order), of_step[order], start[order], end[order]
    met = _arrivals(calls, attribution.collectives, start)
    # From the last rank's arrival to the end.
    start = np.maximum(start, np.where(calls.labelled(TRANSFER), np.minimum(met, end), met))
    phase, micro = passes.of(of_step, calls.start_ns, calls.with_op(*GATHERS))
    ranks = {id(group.ranks): group.ranks for group in calls.groups}  # hashing a thousand ranks a group is slow
    is_of_data = {known: is_data(attribution.axes.of(of_group)) for known, of_group in ranks.items()}
    of_data = np.array([is_of_data[id(group.ranks)] for group in calls.groups], dtype=np.bool_)[calls.group]

    def on_line(times: Ints) -> Ints:
        return passes.on_line(of_step, times)

    moved, ended = np.maximum(end - start, 0), on_line(end)
    reach = np.concatenate((on_line(start)[:1], np.maximum.accumulate(ended)[:-1]))
    # If calls overlap, the time belongs to the first one.
    exposed = passes.covered(passes.kind == Kind.COMM).between(np.maximum(on_line(start), reach), ended)
    over = passes.on_line(of_step, passes.end_ns[of_step])
    after = np.zeros(len(calls), dtype=np.int64)
    for each in np.unique(phase).tolist():
        of_phase = phase == each
        computing = passes.covered((passes.kind == Kind.COMPUTE) & (passes.detail == each))
        after[of_phase] = computing.between(ended[of_phase], over[of_phase])

    together = (of_step * len(calls.names) + calls.op) * len(_DETAILS) + phase
    together = (together * (1 + micro.max()) + micro) * 2 + of_data
    _, first, number, counts = np.unique(together, return_index=True, return_inverse=True, return_counts=True)
    by_group = np.argsort(first[number], kind="stable")
    place = np.empty(len(calls), dtype=np.int64)
    sorted_first = np.flatnonzero(np.diff(first[number][by_group], prepend=-1))
    sizes = counts[number[by_group[sorted_first]]]
    place[by_group] = np.arange(len(calls)) - np.repeat(sorted_first, sizes)
    before = np.empty(len(calls), dtype=np.int64)
    before[by_group] = np.concatenate((calls.start_ns[:1], calls.end_ns[by_group][:-1]))
    before = np.where(place == 0, calls.start_ns, before)
    room = passes.covered(passes.kind == Kind.COMPUTE).between(on_line(before), on_line(calls.start_ns))

    return PhasedCalls(
        rank=steps.rank[of_step],
        step=steps.step[of_step],
        op=calls.op,
        bytes=calls.bytes,
        phase=phase,
        micro=micro,
        place=place,
        places=counts[number],
        exposed_ns=exposed,
        room_ns=room,
        start_ns=calls.start_ns,
        end_ns=calls.end_ns,
        after_ns=after,
        transfer_ns=moved,
        of_data=of_data,
        names=calls.names,
    ).take(by_group)


def _arrivals(calls: Calls, met: MatchedCollectives, otherwise: Ints) -> Ints:
    """When the last rank of each call came, as far as it is known."""
    place = calls.key_columns.last_in(met.key_columns)
    arrivals = np.copy(otherwise)
    arrivals[place >= 0] = met.arrival_ns[place[place >= 0]]
    return arrivals


class Passes:
    """The passes of several steps of one rank in order. The steps lie one behind the other on a line, on which no step
    touches the next, so that one search answers for all of them. ``kind`` and ``detail``: of their pieces."""

    def __init__(self, steps: RankSteps) -> None:
        pieces, self._begin_ns, self.end_ns = steps.segments, steps.begin_ns, steps.end_ns
        self._place = np.cumsum(np.append(0, self.end_ns - self._begin_ns + 1))[:-1]
        every, of_piece = pieces.every, pieces.of_step
        self.kind, self.detail = every.kind, every.detail
        self._start, self._end = (self.on_line(of_piece, times) for times in (every.start_ns, every.end_ns))
        in_pass = np.isin(every.kind, (Kind.COMPUTE, Kind.IDLE)) & np.isin(every.detail, PASSES)
        of_pass = of_piece[in_pass]
        self._pass_start, self._phase = self._start[in_pass], every.detail[in_pass].astype(np.int64)
        self._first: Ints = np.searchsorted(of_pass, np.arange(len(steps) + 1))
        # A forward after a backward begins the next micro-batch. Recomputation counts as backward.
        again = np.zeros(len(of_pass), dtype=np.int64)
        again[1:] = (self._phase[1:] == Detail.FORWARD) & (self._phase[:-1] == Detail.BACKWARD)
        again[1:] *= of_pass[1:] == of_pass[:-1]
        so_far = np.cumsum(again)
        self._micro = so_far - so_far[self._first[of_pass]]

    def on_line(self, of_step: Ints, times: Ints) -> Ints:
        """Where moments of these steps (places among them) lie on the line; those outside of their step, at its
        edge."""
        begin, end = self._begin_ns[of_step], self.end_ns[of_step]
        placed: Ints = self._place[of_step] + np.minimum(np.maximum(times, begin), end) - begin
        return placed

    def starts_in(self, of_step: Ints, times: Ints) -> Bools:
        """Which of the moments lie in their step."""
        inside: Bools = (times >= self._begin_ns[of_step]) & (times < self.end_ns[of_step])
        return inside

    def covered(self, pieces: Bools) -> Covered:
        """How much of these pieces lies before a moment on the line."""
        return Covered(np.stack((self._start[pieces], self._end[pieces]), axis=1))

    def of(self, of_step: Ints, start_ns: Ints, gathers: Bools) -> tuple[Ints, Ints]:
        """The pass and the micro-batch of calls that start then: a gather belongs to the work after it, any other
        operation to the work before it."""
        at = np.searchsorted(self._pass_start, self.on_line(of_step, start_ns), side="left") - ~gathers
        known = (at >= self._first[of_step]) & (at < self._first[of_step + 1])
        phase, micro = np.full(len(at), int(Detail.NONE)), np.zeros(len(at), dtype=np.int64)
        phase[known], micro[known] = self._phase[at[known]], self._micro[at[known]]
        return phase, micro
