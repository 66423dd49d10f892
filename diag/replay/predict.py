"""Predicted gains: the program of a run, built from its account, replayed with and without a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account import intervals as iv
from diag.account.calls import Calls
from diag.account.critical_path import details_of, kinds_of, label_of, labels_of
from diag.account.intervals import Times
from diag.account.rank_steps import RankSteps
from diag.collectors.records import SYNCHRONISING
from diag.model.accounts import Attribution, StepAccounts
from diag.model.axes import axis_words, is_data
from diag.model.keys import Key
from diag.model.ragged import edges_of
from diag.model.steps import CollectiveCall, Detail, Kind
from diag.replay.policy import REPLAY
from diag.rundir.sharing import sharing_of
from diag.rundir.tables import Tables
from diag.traces.kineto_names import P2P_OPS
from diag.words.formatting import rank_ranges

from .costs import Costs, Level, fit
from .mutations import Mutation
from .program import (
    END,
    ISSUE,
    WAIT,
    WORK,
    Collective,
    Line,
    Program,
    Refusal,
    Replayed,
    Stretch,
    StuckError,
    labelled,
    measured_durations,
    replay,
    replay_error,
)
from .sample import Estimate, Sample, chosen

# -- waits -------------------------------------------------------------------------------------------------------------
#
# When the main line of a rank was blocked, and in which collective.


_NEVER = 1 << 62


class Pieces(NamedTuple):
    """A rank's time in a stretch, in order: nanoseconds and labels. Time between steps has no piece."""

    start_ns: Times
    end_ns: Times
    label: npt.NDArray[np.int16]

    @classmethod
    def of(cls, steps: RankSteps) -> Pieces:
        every = steps.segments.take(np.argsort(steps.begin_ns, kind="stable")).every
        return cls(every.start_ns, every.end_ns, labels_of(every.kind, every.detail))


class Stops(NamedTuple):
    """A rank's calls as columns, by start of the wait. ``call``: the collective, as its place in a ``_Register``.

    The rank called at ``began_ns``, entered the collective at ``entered_ns``, and its main line waited for it from
    ``start_ns``. It was done on this rank at ``done_ns``, perhaps before the wait began.
    """

    call: npt.NDArray[np.int32]
    began_ns: Times
    entered_ns: Times
    start_ns: Times
    done_ns: Times


class _Register:
    """The collectives of a stretch, each with the call of the first rank that has it."""

    def __init__(self) -> None:
        self.places: dict[Key, int] = {}
        self.calls: list[CollectiveCall] = []
        self._known: dict[tuple[object, ...], npt.NDArray[np.int32]] = {}

    def place(self, key: Key, calls: Sequence[CollectiveCall], at: int) -> int:
        place = self.places.setdefault(key, len(self.calls))
        if place == len(self.calls):
            self.calls.append(calls[at])
        return place

    def places_of(self, calls: Calls, chosen: Times) -> npt.NDArray[np.int32]:
        """Where the chosen calls of a rank are registered. Most ranks make the same calls in the same order."""
        columns = (calls.group[chosen], calls.seq[chosen], calls.label[chosen])
        names, labels = tuple(group.name for group in calls.groups), calls.names
        keys = (names, labels, *(column.tobytes() for column in columns))
        if keys not in self._known:
            rows = zip(chosen.tolist(), *(column.tolist() for column in columns), strict=True)
            places = [self.place((names[group], seq, labels[label]), calls, at) for at, group, seq, label in rows]
            self._known[keys] = np.array(places, dtype=np.int32)
        return self._known[keys]


class Part(NamedTuple):
    """A rank's part of a stretch: consecutive steps, and the calls in them, each once."""

    steps: RankSteps
    calls: Calls

    @classmethod
    def of(cls, steps: RankSteps) -> Part:
        return cls(steps, steps.calls.take(np.unique(steps.places)))


def stops(pieces: Pieces, part: Part, register: _Register, gloo: bool) -> Stops:
    """One stop for each call of a rank that is not done before the stretch begins, nor entered after it ends; cut where
    it begins. For a call without a known wait: where its result was needed at the latest."""
    steps, calls = part
    began, end, known = calls.start_ns, calls.end_ns, calls.waited
    since, until = calls.wait_start_ns, calls.wait_end_ns
    names: dict[str, int] = {}
    group = np.array([names.setdefault(each.name, len(names)) for each in calls.groups], dtype=np.int64)[calls.group]
    exposed = np.zeros(len(calls), dtype=np.bool_)
    if not known.all():
        # Exposed communication that ends when a collective ends was a wait for it, and for those that ended during it.
        chosen = kinds_of(pieces.label) == Kind.COMM
        at = np.searchsorted(pieces.end_ns[chosen], end - REPLAY.same_time_ns, side="left")
        shown, gone = (np.append(edges[chosen], _NEVER)[at] for edges in (pieces.start_ns, pieces.end_ns))
        # If the line goes on before the call ends, it did not wait for this call.
        exposed = ~known & (np.maximum(shown, began) < end)
        gathers = np.where(calls.with_op("all_gather"), group, -1)
        needed = np.maximum(_needed(gathers, began, end, steps.end_ns), end)
        since = np.where(known, since, np.where(exposed, shown, needed))
        until = np.where(known, until, np.where(exposed, gone, end))
    start, done = np.maximum(since, began), np.maximum(np.minimum(end, until), began)
    begin_ns, end_ns = pieces.start_ns[0], pieces.end_ns[-1]
    order = np.lexsort((began, end, np.where(known, 0, np.where(exposed, 1, 2)), done, start))
    order = order[(done > begin_ns)[order] & (began < end_ns)[order]]
    entered = np.maximum(began, begin_ns)[order]
    if not gloo:
        entered = _queued(group[order], entered, done[order])
    call = register.places_of(calls, order)
    return Stops(call, began[order], entered, np.maximum(start, begin_ns)[order], done[order])


def _queued(group: Times, entered_ns: Times, done_ns: Times) -> Times:
    """When the calls are entered: kernels that follow each other immediately on one stream when the first is. A kernel
    begins when its stream is free, not when it is issued."""
    order = np.lexsort((entered_ns, group))
    entered = entered_ns[order]
    before = running_max(group[order], done_ns[order])
    heads = ~((before <= entered) & (entered <= before + REPLAY.queued_ns))
    first = np.maximum.accumulate(np.where(heads, np.arange(len(order)), 0))
    queued = np.empty_like(entered)
    queued[order] = entered[first]
    return queued


def running_max(group: Times, values: Times) -> Times:
    """The largest earlier value of the same group, in rows sorted by group; -_NEVER for the first of each."""
    ordered = np.sort(values)
    # Places instead of values: with the group in front they fit into an integer.
    place = np.searchsorted(ordered, values) + group * len(values)
    largest = np.maximum.accumulate(place) - group * len(values)
    first = np.diff(group, prepend=-1) != 0
    before: Times = np.where(first, -_NEVER, np.roll(ordered[largest], 1))
    return before


def _needed(gathers: Times, began: Times, end: Times, step_ends_ns: Times) -> Times:
    """When the results of overlapped collectives are needed at the latest: parameters before the next are gathered, all
    else by the end of the step. ``gathers``: the group of an all-gather, -1 for others."""
    needed = step_ends_ns[np.minimum(np.searchsorted(step_ends_ns, end), len(step_ends_ns) - 1)]
    for group in np.unique(gathers[gathers >= 0]).tolist():
        own = gathers == group
        starts = np.append(np.sort(began[own]), _NEVER)
        following = starts[np.searchsorted(starts, end[own])]
        needed[own] = np.where(following < _NEVER, following, needed[own])
    return needed


# -- lines -------------------------------------------------------------------------------------------------------------
#
# Each rank's stretch of time as a line of operations: its work between entering collectives and waiting for them.

_IDLE = label_of(Kind.IDLE, Detail.OTHER)


def operations(pieces: Sequence[Pieces], waited: Sequence[Stops], ends: Sequence[Times]) -> list[Line]:
    """Of each rank the line that, replayed with the measured ends of the collectives, takes as long as measured.

    Waits replace the account in their time; communication that no collective explains stays work, so the sum is right.
    ``ends``: of the steps. The ranks are laid one after the other, so that each operation is done once for all.
    """
    each = list(zip(pieces, waited, ends, strict=True))
    first = [int(min(own.start_ns[0], stop.began_ns.min(initial=_NEVER))) for own, stop, _ in each]
    last = [
        int(max(own.end_ns[-1], of[-1], *(times.max(initial=-_NEVER) for times in (stop.start_ns, stop.done_ns))))
        for own, stop, of in each
    ]
    lengths = [end - begin + 1 for begin, end in zip(first, last, strict=True)]
    if sum(lengths) >= _NEVER and len(each) > 1:  # no int64 holds it
        return [operations([own], [stop], [of])[0] for own, stop, of in each]
    begins = edges_of(lengths)
    shift = begins[:-1] - np.array(first, dtype=np.int64)
    start, end = _on_line(pieces, shift, ("start_ns", "end_ns"))
    every = Pieces(start, end, np.concatenate([own.label for own in pieces]))
    times = ("began_ns", "entered_ns", "start_ns", "done_ns")
    stops_of_all = Stops(np.concatenate([stop.call for stop in waited]), *_on_line(waited, shift, times))
    steps = np.concatenate(ends) + np.repeat(shift, list(map(len, ends)))
    blocked = _blocked(stops_of_all)
    issued = np.argsort(stops_of_all.began_ns, kind="stable")
    entered = stops_of_all.entered_ns[issued]
    # Entered while the main line waited for another one: by another thread, so it need not wait as well.
    began = _wait_around(blocked, entered)
    count = len(issued)
    time = np.concatenate((_wait_around(blocked, steps), began, _wait_around(blocked, stops_of_all.start_ns)))
    code = np.repeat(np.array([END, ISSUE, WAIT], dtype=np.int8), (len(steps), count, count))
    among = np.concatenate((np.zeros(len(steps), dtype=np.int64), np.arange(count), stops_of_all.done_ns))
    delay = np.concatenate((np.zeros(len(steps), dtype=np.int64), entered - began, np.zeros(count, dtype=np.int64)))
    call = np.concatenate((np.full(len(steps), -1, np.int32), stops_of_all.call[issued], stops_of_all.call))
    order = np.lexsort((among, code, time))
    time = time[order]
    edges = edges_of([len(of) + 2 * len(stop.call) for of, stop in zip(ends, waited, strict=True)])
    start, end, label = _work(every, blocked, time, begins)
    # What comes after the last operation of a rank is left out.
    kept = start < time[edges[1:] - 1][np.searchsorted(begins, start, side="right") - 1]
    start, end, label = start[kept], end[kept], label[kept]
    place = np.searchsorted(start, time, side="left") + np.arange(len(time))
    rows = len(time) + len(start)
    line = Line(
        np.full(rows, WORK, dtype=np.int8),
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows, dtype=np.int16),
        np.full(rows, -1, dtype=np.int32),
    )
    line.code[place], line.ns[place], line.call[place] = code[order], delay[order], call[order]
    work = line.code == WORK
    line.ns[work], line.label[work] = end - start, label
    edges += np.searchsorted(start, begins)
    return [line.take(slice(i, j)) for i, j in pairwise(edges.tolist())]


def _on_line(ranks: Sequence[Pieces] | Sequence[Stops], shift: Times, names: Sequence[str]) -> Iterator[Times]:
    """Columns of all ranks, each moved by the shift of its rank."""
    for name in names:
        columns = [getattr(rank, name) for rank in ranks]
        yield np.concatenate(columns) + np.repeat(shift, list(map(len, columns)))


def _blocked(waited: Stops) -> iv.Intervals:
    """When the line was blocked, a row for each wait, disjoint. Adjacent waits stay separate: operations lie
    between."""
    order = np.lexsort((waited.done_ns, waited.start_ns))
    done = waited.done_ns[order]
    before = np.maximum.accumulate(np.concatenate(([-_NEVER], done)))[:-1]
    start = np.maximum(waited.start_ns[order], before)
    return np.stack((start, done), axis=1)[done > start]


def _work(
    pieces: Pieces, blocked: iv.Intervals, cuts: Times, begins_of: Times
) -> tuple[Times, Times, npt.NDArray[np.int16]]:
    """Start, end and label of all time outside of waits, in order and cut at ``cuts``; time between steps is idle.
    ``begins_of``: where each rank begins on the line, and the end."""
    edges = np.sort(np.concatenate((pieces.start_ns, pieces.end_ns, blocked.ravel(), cuts)))
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    begins, ends = edges[:-1], edges[1:]
    first, last = (np.searchsorted(pieces.start_ns, edge, side="left") for edge in (begins_of[:-1], begins_of[1:]))
    rank = np.searchsorted(begins_of, begins, side="right") - 1
    inside = (begins >= pieces.start_ns[first][rank]) & (ends <= pieces.end_ns[last - 1][rank])
    if len(blocked):
        wait = np.searchsorted(blocked[:, 0], begins, side="right") - 1
        inside &= (wait < 0) | (begins >= blocked[np.maximum(wait, 0), 1])
    begins, ends = begins[inside], ends[inside]
    at = np.searchsorted(pieces.start_ns, begins, side="right") - 1
    return begins, ends, np.where(begins < pieces.end_ns[at], pieces.label[at], np.int16(_IDLE))


def _wait_around(blocked: iv.Intervals, time_ns: Times) -> Times:
    """The start of the wait that contains ``time_ns``; ``time_ns`` itself where there is none."""
    if not len(blocked):
        return time_ns
    at = np.maximum(np.searchsorted(blocked[:, 0], time_ns, side="right") - 1, 0)
    inside = (blocked[at, 0] < time_ns) & (time_ns < blocked[at, 1])
    return np.where(inside, blocked[at, 0], time_ns)


# -- wire --------------------------------------------------------------------------------------------------------------
#
# How long each collective was on the wire, without its time in the queue behind others of its group.


class Meetings(NamedTuple):
    """All ranks' calls of a stretch as columns, sorted by collective, the first call of each at ``first``."""

    rank: Times  # its place among the ranks of the stretch
    entered_ns: Times
    done_ns: Times
    first: Times
    arrival_ns: Times  # of each collective: the last rank entered it
    first_done_ns: Times  # of each collective: it was done on the first rank

    @classmethod
    def of(cls, waited: Sequence[Stops]) -> Meetings:
        rank = np.repeat(np.arange(len(waited)), [len(w.call) for w in waited])
        call, entered, done = (
            np.concatenate([getattr(w, name) for w in waited]) for name in ("call", "entered_ns", "done_ns")
        )
        order = np.argsort(call, kind="stable")
        rank, entered, done = rank[order], entered[order], done[order]
        first = np.flatnonzero(np.diff(call[order], prepend=-1))
        if not len(first):
            return cls(rank, entered, done, first, first, first)
        return cls(rank, entered, done, first, np.maximum.reduceat(entered, first), np.minimum.reduceat(done, first))

    @property
    def call(self) -> Times:
        """The collective of each row."""
        sizes = np.diff(self.first, append=len(self.rank))
        return np.repeat(np.arange(len(self.first)), sizes)


def transfers(register: _Register, meetings: Meetings, latency_overlaps: bool) -> tuple[Times, Times]:
    """Of each collective the transfer that makes it end in the replay when it ended in the run, and the latency.

    Collectives of one group follow each other on a rank's wire. ``latency_overlaps``: only their bytes
    do; gloo works at two collectives of a group at a time, NCCL's kernels share a stream.
    """
    groups: dict[str, int] = {}
    group = np.array([groups.setdefault(call.group, len(groups)) for call in register.calls], dtype=np.int64)
    free = _free(register, meetings, group, len(groups))
    after_arrival = np.maximum(0, meetings.first_done_ns - meetings.arrival_ns)
    shared = np.zeros(len(groups), dtype=np.int64)
    if latency_overlaps:
        size = np.array([call.bytes for call in register.calls], dtype=np.int64)
        alone = (size > 0) & (free <= meetings.arrival_ns)
        for at in np.unique(group[alone]).tolist():
            # The median transfer of the smallest size that did not queue: an upper bound of the latency.
            own = alone & (group == at)
            shared[at] = int(np.median(after_arrival[own & (size == size[own].min())]))
    latency = shared[group]
    transfer = np.maximum(0, np.minimum(after_arrival, meetings.first_done_ns - free + latency))
    return transfer, np.minimum(latency, transfer)


def _free(register: _Register, meetings: Meetings, group: Times, groups: int) -> Times:
    """For each collective, when the wires of its ranks were done with earlier collectives; 0 if there was none."""
    by_key = sorted(range(len(group)), key=list(register.places).__getitem__)
    named = np.empty(len(group), dtype=np.int64)
    named[by_key] = np.arange(len(group))
    turn = np.empty(len(group), dtype=np.int64)
    turn[np.lexsort((named, meetings.first_done_ns, meetings.arrival_ns))] = np.arange(len(group))
    call = meetings.call
    wire = meetings.rank * groups + group[call]
    order = np.lexsort((turn[call], wire))
    _, of_wire = np.unique(wire[order], return_inverse=True)
    free = np.zeros(len(group), dtype=np.int64)
    np.maximum.at(free, call[order], running_max(of_wire, meetings.done_ns[order]))
    return free


_PHASES = (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)


def build(attribution: Attribution, tables: Tables) -> Program | Refusal:
    """The steps that count, of a long run some of them, as a program; or why they cannot be replayed."""
    runs = _consecutive(attribution)
    refusal = _refusal(attribution, tables, runs)
    if refusal:
        return Refusal(refusal)
    gloo = not tables.on_device
    program = Program(tuple(_stretch(run, gloo) for run in runs), gloo)
    alone = _alone(program.collectives(), runs)
    if alone > REPLAY.unmatched_communication_share:
        return Refusal(f"for {alone:.0%} of the communication only one rank's part is known")
    return program


_Run = dict[int, Part]


def _refusal(attribution: Attribution, tables: Tables, runs: Sequence[_Run]) -> str:
    if not attribution.comm_known:
        return "communication runs on the device, and no profiler window was recorded"
    others = [axis for axis, size in attribution.axes.mesh.items() if size > 1 and not is_data(axis)]
    if others:
        words = " and ".join(axis_words(axis) for axis in others)
        return f"the run is {words}, and the replay supports data parallelism only"
    if any(part.calls.with_op(*P2P_OPS).any() for run in runs for part in run.values()):
        return "ranks send messages to each other, and the replay supports collectives of whole groups only"
    if tables.missing:
        were, them = ("was", "it") if len(tables.missing) == 1 else ("were", "them")
        return f"{rank_ranges(tables.missing)} {were} not recorded, so the waiting for {them} is unknown"
    if len(attribution.ranks) > 1 and (not attribution.aligned or attribution.untied):
        return "the ranks' clocks could not be aligned, so waiting and transfer cannot be separated"
    return "" if runs else "no step that counts was recorded on all ranks"


def _consecutive(attribution: Attribution) -> list[_Run]:
    """Runs of consecutive steps that every rank has: of the usable ones, those that are replayed."""
    steps, ranks = RankSteps.of(attribution.rank_steps), attribution.ranks
    of_rank = {rank: np.flatnonzero(steps.rank == rank) for rank in ranks}
    # Of two parts of a step in two traces, the last one counts.
    place = {rank: dict(zip(steps.step[at].tolist(), at.tolist(), strict=True)) for rank, at in of_rank.items()}
    known = set.intersection(*(set(numbers) for numbers in place.values())) if ranks else set[int]()
    numbers = chosen(_timed(attribution), known, len(ranks)).step
    runs = [run.tolist() for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(run)]
    taken = [steps.take(np.array([place[rank][number] for rank in ranks for number in run])) for run in runs]
    return [
        {rank: Part.of(every.take(slice(i * len(run), (i + 1) * len(run)))) for i, rank in enumerate(ranks)}
        for run, every in zip(runs, taken, strict=True)
    ]


def _timed(attribution: Attribution) -> StepAccounts:
    """The usable steps that take time."""
    return attribution.usable.take(attribution.usable.dur_ns > 0)


def _stretch(run: _Run, gloo: bool) -> Stretch:
    register = _Register()
    pieces = {rank: Pieces.of(part.steps) for rank, part in run.items()}
    waited = {rank: stops(pieces[rank], part, register, gloo) for rank, part in run.items()}
    waited = _split_unsynchronised(waited, register)
    meetings = Meetings.of(list(waited.values()))
    ranks = list(run)
    transfer_ns, latency_ns = (column.tolist() for column in transfers(register, meetings, latency_overlaps=gloo))
    tail_ns = (meetings.done_ns - meetings.first_done_ns[meetings.call]).tolist()
    present = [ranks[at] for at in meetings.rank.tolist()]
    first = [*meetings.first.tolist(), len(present)]
    keys = list(register.places)

    def collective(at: int, step: int, micro_batch: int) -> Collective:
        call = register.calls[at]
        tails = dict(zip(present[first[at] : first[at + 1]], tail_ns[first[at] : first[at + 1]], strict=True))
        sizes = call.bytes, call.dtype, step, transfer_ns[at], tails, latency_ns[at]
        return Collective(keys[at], call.op, call.group, *sizes, micro_batch=micro_batch)

    known: dict[Key, Collective] = {}
    seen = np.zeros(len(keys), dtype=np.bool_)
    for rank in sorted(run):
        if seen[waited[rank].call].all():
            continue
        placed = _placed(waited[rank], pieces[rank], run[rank].steps)
        calls = [(collective(at, step, batch), phase) for at, step, batch, phase in placed]
        for one in labelled(calls):
            known.setdefault(one.key, one)
        seen[waited[rank].call] = True
    places = {key: place for place, key in enumerate(known)}
    place_of = np.array([places[key] for key in keys], dtype=np.int32)
    of_ranks = operations(list(pieces.values()), list(waited.values()), [part.steps.end_ns for part in run.values()])
    call_of = np.append(place_of, np.int32(-1))
    lines = {rank: replace(line, call=call_of[line.call]) for rank, line in zip(run, of_ranks, strict=True)}
    return Stretch(
        steps=tuple(next(iter(run.values())).steps.step.tolist()),
        begin_ns={rank: int(part.steps.begin_ns[0]) for rank, part in run.items()},
        end_ns={rank: tuple(part.steps.end_ns.tolist()) for rank, part in run.items()},
        lines=lines,
        collectives=known,
    )


def _split_unsynchronised(waited: dict[int, Stops], register: _Register) -> dict[int, Stops]:
    """The same, but collectives in which ranks do not wait for all others (a broadcast's root leaves at once) get a key
    of their own on each rank."""
    loose = np.array([key[2] not in SYNCHRONISING for key in register.places], dtype=np.bool_)
    if not loose.any():
        return waited
    meetings = Meetings.of(list(waited.values()))
    loose &= meetings.first_done_ns < meetings.arrival_ns
    if not loose.any():
        return waited
    # Anew, so that the collectives that no rank has any more are gone.
    keys, calls = list(register.places), register.calls
    register.places, register.calls = {}, []
    alone = {}
    for rank, of_rank in waited.items():
        call = []
        for at in of_rank.call.tolist():
            group, number, op = keys[at]
            key = (group, number, f"{op} of rank {rank}") if loose[at] else keys[at]
            call.append(register.place(key, calls, at))
        alone[rank] = of_rank._replace(call=np.array(call, dtype=np.int32))
    return alone


def _placed(waited: Stops, pieces: Pieces, steps: RankSteps) -> list[tuple[int, int, int, Detail]]:
    """One rank's collectives in the order in which it entered them, each with its step, micro-batch and phase."""
    begins, ends = steps.begin_ns, steps.end_ns
    details = details_of(pieces.label)
    phased = np.isin(details, _PHASES)
    marks = np.flatnonzero(phased | (kinds_of(pieces.label) == Kind.DATA))
    passes = np.flatnonzero(phased)
    # A forward after a backward begins the next micro-batch; DDP enters no collective in it.
    next_batch = (details[passes][1:] == Detail.FORWARD) & (details[passes][:-1] == Detail.BACKWARD)
    batches = np.concatenate(([0], np.cumsum(next_batch)))

    order = np.argsort(waited.began_ns, kind="stable")
    start = np.maximum(waited.began_ns[order], begins[0])
    step = np.maximum(0, np.searchsorted(begins, start, side="right") - 1)
    phase = np.full(len(order), int(Detail.NONE))
    batch = np.zeros(len(order), dtype=np.int64)
    if len(marks):
        at = np.searchsorted(pieces.start_ns[marks], start, side="right") - 1
        mark = marks[np.maximum(at, 0)]
        # No phase has begun since the step began or the batch came: take the next phase.
        early = (at < 0) | (pieces.start_ns[mark] < begins[step]) | ~phased[mark]
        following = np.searchsorted(passes, np.append(marks, marks[-1] + 1)[at + 1], side="left")
        taken = early & (following < len(passes))
        mark = np.where(taken, np.append(passes, 0)[following], mark)
        found = taken | (at >= 0)
        inside = (begins[step] <= pieces.start_ns[mark]) & (pieces.start_ns[mark] < ends[step])
        phase = np.where(found & inside & phased[mark], details[mark], phase)
        # The micro-batch of the piece, from 0 in the step.
        last = np.searchsorted(passes, mark, side="right") - 1
        first = np.searchsorted(pieces.start_ns[passes], begins[step], side="left")
        within = found & (first <= last)
        batch[within] = batches[last[within]] - batches[first[within]]
    rows = zip(waited.call[order].tolist(), steps.step[step].tolist(), batch.tolist(), phase.tolist(), strict=True)
    return [(call, number, micro_batch, Detail(detail)) for call, number, micro_batch, detail in rows]


def _alone(collectives: Sequence[Collective], runs: Sequence[_Run]) -> float:
    """Fraction of the transfers in calls of groups of several ranks of which only one rank's part is known."""
    single = [c for c in collectives if len(c.tail_ns) == 1]
    total = sum(c.transfer_ns for c in collectives)
    if not single or not total:
        return 0.0
    size_of = {group.name: group.size for run in runs for part in run.values() for group in part.calls.groups}
    return sum(c.transfer_ns for c in single if size_of.get(c.group, 1) > 1) / total


class Prediction(Struct, frozen=True):
    """``gain_ns_per_step``: (low, likely, high); all 0 where ``refused`` gives the reason for no prediction.
    ``step_ns``: the measured mean step. ``assumptions``: a sentence each. ``most_ns``: no gain is larger, because the
    work that the change leaves on the busiest rank takes the rest of the step (less how much equal runs differ); None
    where that is not known."""

    gain_ns_per_step: tuple[int, int, int]
    step_ns: int
    replay_error: float
    assumptions: tuple[str, ...] = ()
    refused: str | None = None
    most_ns: int | None = None

    @property
    def expected_ns_per_step(self) -> tuple[int, int, int]:
        """(low, likely, high) of a measured gain: includes what the model leaves out and how much equal runs differ."""
        low, likely, high = self.gain_ns_per_step
        if not any(self.gain_ns_per_step):
            return self.gain_ns_per_step
        beyond = float(np.hypot(REPLAY.error_of_step * self.step_ns, REPLAY.error_of_gain * likely))
        return round(low - beyond), likely, self.at_most(round(high + beyond))

    def at_most(self, ns: int) -> int:
        """The upper end of an interval: no further than the work that is left allows."""
        return ns if self.most_ns is None else max(self.gain_ns_per_step[1], min(ns, self.most_ns))


class Baseline(Struct, frozen=True, eq=False):
    """A run ready for predictions: replayed unmodified, its collectives' costs fitted."""

    program: Program
    costs: Costs
    replayed: Replayed
    error: float
    sample: Sample

    @property
    def step_ns(self) -> int:
        """The mean of all steps that count."""
        return int(measured_durations(self.program).mean() + self.sample.off_ns)


def baseline(attribution: Attribution, tables: Tables) -> Baseline | Refusal:
    """The run's program, costs and replay, from which every prediction starts; made once."""
    if sharing_of(tables).ranks:
        return Refusal("ranks share a GPU, and how long the work of each takes alone is not known")
    program = build(attribution, tables)
    if isinstance(program, Refusal):
        return program
    try:
        replayed = replay(program)
    except StuckError as stuck:
        return Refusal(f"the run cannot be replayed: {stuck}")
    steps = [step for stretch in program.stretches for step in stretch.steps]
    sample = Sample.of(_timed(attribution), steps)
    return Baseline(program, fit(program), replayed, replay_error(program, replayed), sample)


def predict(attribution: Attribution, tables: Tables, mutation: Mutation) -> Prediction:
    base = baseline(attribution, tables)
    return Prediction((0, 0, 0), 0, 0.0, (), base.reason) if isinstance(base, Refusal) else gain(base, mutation)


def gain(base: Baseline, mutation: Mutation, worth_ns: float = -np.inf) -> Prediction:
    """The same from a baseline. The interval covers the uncertainty of the costs, the replay error and the variation of
    the steps; not that of the costs where the likeliest gain per step is less than ``worth_ns``."""
    nothing = Prediction((0, 0, 0), base.step_ns, base.error)
    if base.error > REPLAY.replay_error:
        return replace(nothing, refused=f"the replayed steps differ from the measured ones by {base.error:.1%}")
    gains: dict[Level, Estimate] = {}
    left: list[float] = []
    assumed: tuple[str, ...] = ()
    fastest = changes = False
    for level in (Level.LIKELY, Level.FAST, Level.SLOW):
        if level == Level.FAST and fastest:
            continue
        changed = mutation(base.program, base.costs, level)
        if isinstance(changed, Refusal):
            return replace(nothing, refused=changed.reason)
        try:
            replayed = replay(changed.program)
        except StuckError as stuck:
            return replace(nothing, refused=f"the changed run cannot be replayed: {stuck}")
        saved_ns = base.replayed.dur_ns - replayed.dur_ns
        changes |= bool(saved_ns.any())
        gains[level] = base.sample.whole(saved_ns)
        left.append(base.sample.whole(replayed.least_ns).mean)
        assumed = tuple(dict.fromkeys((*assumed, *changed.assumed)))
        if changed.certain or round(gains[Level.LIKELY].mean) < worth_ns:
            break
        fastest = changed.fastest
    if not changes:
        return replace(nothing, assumptions=assumed)  # the change has no effect, which is certain
    likely = gains[Level.LIKELY]
    half = float(np.hypot(base.error * base.step_ns, likely.half))
    means = [estimate.mean for estimate in gains.values()]
    interval = min(means) - half - likely.fewer, likely.mean, max(means) + half + likely.more
    found = replace(
        nothing,
        gain_ns_per_step=tuple(map(round, interval)),
        assumptions=assumed,
        most_ns=round(base.step_ns - (1 - REPLAY.error_of_step) * min(left)),
    )
    low, middle, high = found.gain_ns_per_step
    return replace(found, gain_ns_per_step=(low, middle, found.at_most(high)))
