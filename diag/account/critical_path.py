"""The critical paths of steps across all ranks, walked backwards from the end of the last rank.

A ``Timeline`` joins the steps of one rank and sums any window of them in logarithmic time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH
from diag.collectors.records import SEND
from diag.model.accounts import Paths
from diag.model.keys import Keys
from diag.model.ragged import edges_of, entries_of, owners, places_from
from diag.model.steps import Detail, Kind, by_kinds

from .calls import Listed, Matched
from .intervals import Intervals, Times
from .rank_steps import RankSteps

_DETAILS = len(Detail)
Mask = npt.NDArray[np.bool_]
Activity = npt.NDArray[np.int64]  # nanoseconds by label


def label_of(kind: int, detail: int) -> int:
    return kind * _DETAILS + detail


def of_label(label: int) -> tuple[Kind, Detail]:
    return _OF_LABEL[label]


_OF_LABEL = [(kind, Detail(detail)) for kind in Kind for detail in range(_DETAILS)]


# Small integers: a trace of five million events has a million pieces, and a path has them all.
def labels_of(kinds: npt.NDArray[np.integer], details: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
    return kinds.astype(np.int16) * np.int16(_DETAILS) + details.astype(np.int16)


def kinds_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels // _DETAILS).astype(np.int8)


def details_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels % _DETAILS).astype(np.int8)


LABELS = len(Kind) * _DETAILS
_NEVER, _EVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Arrivals(NamedTuple):
    """Some calls of a rank, in order.

    ``start_ns``, ``end_ns``: those of the calls. ``ready_ns``: when the rank had nothing left to do but wait for the
    call's end, that is when it called or when the compute that overlaps the transfer was done; when it called, if it
    was busy to the end. Compute while the thread waits belongs to the collective: gloo copies. ``idle_ns``: as
    ``ready_ns``, or earlier if the rank was already blocked in earlier collectives. ``still``: whether the rank only
    waits when the call ends.
    """

    start_ns: Times
    end_ns: Times
    ready_ns: Times
    idle_ns: Times
    still: Mask


class Timeline:
    """All segments of one rank on the common clock, in order. Time between steps has no segment.

    ``calls``: those in the ``steps``."""

    def __init__(self, steps: RankSteps) -> None:
        self.steps, calls, pieces = steps, steps.calls, steps.segments
        if (np.diff(steps.begin_ns) < 0).any():
            pieces = pieces.take(np.argsort(steps.begin_ns, kind="stable"))
        every = pieces.every
        self.start_ns, self.end_ns = every.start_ns, every.end_ns
        self.label = labels_of(every.kind, every.detail)
        self.communicating: Mask = every.kind == Kind.COMM
        self._communication = np.flatnonzero(self.communicating)
        self.calls = calls
        self.by_end = np.lexsort((calls.start_ns, calls.end_ns))

    def arrivals(self, places: Times) -> Arrivals:
        """When the rank arrived at the calls at these places: one pass over all of them."""
        calls = self.calls
        start, end, since, until = (
            column[places] for column in (calls.start_ns, calls.end_ns, calls.wait_start_ns, calls.wait_end_ns)
        )
        waited, sent = calls.waited[places], calls.with_op(SEND)[places]
        busy_until = np.where(waited, since, end)
        at, inside = self._segments_before(busy_until)
        standing = inside & self.communicating[at]
        idle = np.where(standing, self.start_ns[self._stretches[at]], np.where(waited, busy_until, start))
        at, inside = self._segments_before(end)
        still = np.where(waited, (since < end) & (end <= until), ~inside | self.communicating[at])
        # A sender is ready when it sends: it may be blocked later, but the receiver need not wait until then.
        ready = np.where(sent, start, np.maximum(start, np.where(waited, since, idle)))
        return Arrivals(start, end, ready, np.where(sent, start, idle), still & ~sent)

    def _segments_before(self, times: Times) -> tuple[Times, Mask]:
        """Indices of the segments that hold the moments just before ``times``, and whether there is one."""
        at = np.searchsorted(self.start_ns, times, side="left") - 1
        inside = at >= 0
        at = np.maximum(at, 0)
        return at, inside & (self.end_ns[at] >= times)

    @cached_property
    def _stretches(self) -> npt.NDArray[np.int64]:
        """For each segment, the first segment of its unbroken communication."""
        breaks = np.ones(len(self.start_ns), dtype=np.bool_)
        together = self.communicating[1:] & self.communicating[:-1]
        breaks[1:] = ~(together & (self.end_ns[:-1] == self.start_ns[1:]))
        return np.maximum.accumulate(np.where(breaks, np.arange(len(breaks)), 0))

    @property
    def standing(self) -> Intervals:
        return np.stack((self.start_ns[self._communication], self.end_ns[self._communication]), axis=1)


class Activities:
    """What several ranks did in any windows: one search answers all queries. ``labels``: those in use, in order;
    activities have a column for each."""

    def __init__(self, timelines: Mapping[int, Timeline]) -> None:
        every = list(timelines.values())
        self._row = {rank: row for row, rank in enumerate(timelines)}
        self._start, self._end = (
            np.concatenate([getattr(timeline, name) for timeline in every]) for name in ("start_ns", "end_ns")
        )
        counts = np.array([len(timeline.start_ns) for timeline in every], dtype=np.int64)
        self._first = np.cumsum(counts) - counts
        label = np.concatenate([timeline.label for timeline in every])
        self.labels: npt.NDArray[np.int16] = np.flatnonzero(np.bincount(label, minlength=LABELS)).astype(np.int16)
        column = np.zeros(LABELS, dtype=np.int64)
        column[self.labels] = np.arange(len(self.labels))
        self._column = column[label]
        spent = np.zeros((len(self._start) + 1, len(self.labels)), dtype=np.int64)
        spent[np.arange(1, len(spent)), self._column] = self._end - self._start
        self._before = np.cumsum(spent, axis=0, out=spent)
        # Times relative to the first one, with each rank placed after the previous one: one sorted line.
        self._zero = int(self._start.min())
        self._span = int(self._end.max()) - self._zero + 2
        self._line = np.repeat(np.arange(len(every)), counts) * self._span + (self._start - self._zero)

    def of_ranks(self, ranks: Sequence[int], start_ns: Times, end_ns: Times) -> Activity:
        """Each rank's activity in its window."""
        return self.between(np.array([self._row[rank] for rank in ranks]), start_ns, end_ns)

    def between(self, rows: Times, start_ns: Times, end_ns: Times) -> Activity:
        """Nanoseconds by label, [windows, labels]. ``rows``: the places of the ranks among the timelines."""
        return self._until(rows, np.maximum(start_ns, end_ns)) - self._until(rows, start_ns)

    def _until(self, rows: Times, times_ns: Times) -> Activity:
        on_line = rows * self._span + np.clip(times_ns - self._zero, -1, self._span - 2)
        index = np.searchsorted(self._line, on_line, side="right") - 1
        at = np.maximum(index, self._first[rows])
        done: Activity = self._before[at]
        ran = np.clip(times_ns - self._start[at], 0, self._end[at] - self._start[at])
        done[np.arange(len(at)), self._column[at]] += ran
        return done


class Readiness(Struct, frozen=True):
    """When the ranks arrived at their collectives: columns over the members of all of them, as in ``matched`` (see
    ``Arrivals``). ``ranks``: all ranks with a timeline; ``row``: the place of each member's rank among these.
    ``in_step``: by collective, whether it blocked all of its members when it ended. ``numbers``: for each rank, the
    collective of each of its calls, -1 where no other rank took part.

    The last rank to be ready is not always the last one to call. Back-to-back transfers all begin at the end of the
    previous one, on every rank; a rank that was late then shows by its short remaining wait. The wait of the last rank
    to be ready is the transfer: a faster network would save it.
    """

    matched: Matched
    ranks: tuple[int, ...]
    row: Times
    start_ns: Times
    end_ns: Times
    ready_ns: Times
    idle_ns: Times
    in_step: Mask
    numbers: Mapping[int, Times]

    def members(self, number: int) -> slice:
        """Where the members of a collective are in the columns."""
        return slice(self.matched.edges[number], self.matched.edges[number + 1])

    def ready_of(self, number: int, rank: int) -> int:
        at = self.members(number)
        return int(self.ready_ns[at][self.matched.rank[at] == rank][0])

    def nearly_last(self) -> Mask:
        """By member: whether it was ready last. If two arrive together, the path may be on either."""
        last = np.repeat(self.matched.most(self.ready_ns), self.matched.sizes)
        mask: Mask = self.ready_ns >= last - CRITICAL_PATH.noise_of_waits_ns
        return mask


def readiness(matched: Matched, timelines: Mapping[int, Timeline]) -> Readiness:
    """Each rank's arrivals at all its collectives, from one query per rank."""
    columns = np.zeros((5, len(matched.rank)), dtype=np.int64)
    rows = np.zeros(len(matched.rank), dtype=np.int64)
    for row, (rank, timeline) in enumerate(timelines.items()):
        members = matched.by_rank.get(rank)
        if members is not None:
            columns[:, members] = timeline.arrivals(matched.place[members])
            rows[members] = row
    start, end, ready, idle, still = columns
    numbers = {
        rank: matched.numbers_of(rank) if rank in matched.calls else np.full(len(timeline.calls), -1)
        for rank, timeline in timelines.items()
    }
    return Readiness(matched, tuple(timelines), rows, start, end, ready, idle, matched.all_of(still != 0), numbers)


def held_up(came: Readiness, begun: Listed, paths: Paths, changes: Times) -> Listed:
    """For each path, the numbers of the collectives at which it met other ranks, in order of arrival: those whose
    last-arriving rank was on the path at its arrival. ``begun``: by path, the collectives that began in its step;
    ``changes``: those at which it changes to a rank that others waited for, as returned by ``walks``.

    Collectives at which the path changes ranks are included. A last rank that called, did something else and asked for
    the result after the others had left was ready after them: at that time the path may be on one of them again.
    """
    matched = came.matched
    last = np.flatnonzero(came.nearly_last())
    edges = np.searchsorted(last, matched.edges)
    numbers = begun.numbers
    counts = edges[numbers + 1] - edges[numbers]
    step = np.repeat(owners(begun.edges), counts)
    number = np.repeat(numbers, counts)
    at = last[places_from(edges[numbers], counts)]
    order = np.lexsort((matched.place_of_key[number], came.ready_ns[at], step))
    at, number, step = at[order], number[order], step[order]
    rank, arrival = matched.rank[at], came.ready_ns[at]
    first = paths.edges
    some = first[step + 1] > first[step]
    at, number, step, rank, arrival = at[some], number[some], step[some], rank[some], arrival[some]
    begin, until = first[step], first[step + 1]
    # A piece of the path ends at an arrival; the next one is the transfer, or the wait of a rank that came earlier.
    before = _Parts(paths.start_ns, first).places(step, arrival) - 1
    met = arrival == paths.start_ns[begin]  # a rank whose step begins with its arrival leaves no piece before it
    for near in (before, before + 1):
        piece = np.clip(near, begin, until - 1)
        met |= (paths.rank[piece] == rank) & (paths.start_ns[piece] <= arrival) & (arrival <= paths.end_ns[piece])
    which = step * len(matched) + number
    met |= np.isin(which, changes)
    _, once = np.unique(which[met], return_index=True)
    once = np.flatnonzero(met)[np.sort(once)]
    return Listed(number[once], np.searchsorted(step[once], np.arange(len(begun.edges))))


class _Parts:
    """Sorted values of several parts, one part after the other: those of part i are ``edges[i]`` to ``edges[i + 1]``.
    Each part is placed after the previous one on one sorted line, so that one search answers all queries."""

    def __init__(self, values: Times, edges: Times) -> None:
        self._zero = int(values.min(initial=_EVER)) if len(values) else 0
        self._span = (int(values.max()) - self._zero if len(values) else 0) + 2
        self._line = values - self._zero + owners(edges) * self._span

    def places(self, part: Times, wanted: Times, side: Literal["left", "right"] = "left") -> Times:
        """``searchsorted`` of each wanted value in its own part; places among the values of all."""
        on_line = part * self._span + np.clip(wanted - self._zero, -1, self._span - 1)
        return np.searchsorted(self._line, on_line, side)


class _Lines:
    """The timelines of all ranks one after the other. ``last_comm``: by segment, the last one up to it that is
    communication, -1 if its rank has none. Calls are in order of their ends."""

    def __init__(self, timelines: Sequence[Timeline], came: Readiness) -> None:
        every = list(timelines)
        self.calls = [line.calls for line in every]
        self.start_ns, self.end_ns, self.label = (
            np.concatenate([getattr(line, name) for line in every]) for name in ("start_ns", "end_ns", "label")
        )
        self.edges = edges_of([len(line.start_ns) for line in every])
        self._starts, self._ends = (_Parts(times, self.edges) for times in (self.start_ns, self.end_ns))
        comm = np.concatenate([line.communicating for line in every])
        row = np.repeat(np.arange(len(every)), np.diff(self.edges))
        last = np.maximum.accumulate(np.where(comm, np.arange(len(comm)), -1))
        self.last_comm = np.where(last >= self.edges[row], last, -1)
        self.call_edges = edges_of([len(line.calls) for line in every])
        self.place, self.call_start_ns, self.call_end_ns, self.number = (
            np.concatenate(columns)
            for columns in zip(
                *(
                    (line.by_end, line.calls.start_ns[line.by_end], line.calls.end_ns[line.by_end], number[line.by_end])
                    for line, number in zip(every, came.numbers.values(), strict=True)
                ),
                strict=True,
            )
        )
        self._call_ends = _Parts(self.call_end_ns, self.call_edges)

    def before(self, row: Times, time_ns: Times) -> Times:
        """The segment that holds the moment just before each time; -1 between or before the steps."""
        index = self._starts.places(row, time_ns) - 1
        inside = (index >= self.edges[row]) & (self.end_ns[index] >= time_ns)
        return np.where(inside, index, -1)

    def after(self, row: Times, time_ns: Times) -> Times:
        """The segment that holds the moment just after each time, else the next one."""
        return self._ends.places(row, time_ns, "right")

    def releasing(self, row: Times, start_ns: Times, end_ns: Times) -> Times:
        """The call whose end released each rank at ``end_ns``, among those open in the window: the one that ended
        nearest to it; -1 if there is none."""
        if not len(self.place):
            return np.full(len(row), -1)
        until = self.call_edges[row + 1]
        first, later = (self._call_ends.places(row, edge_ns, "right") for edge_ns in (start_ns, end_ns))
        best = later - 1
        while (skip := (best >= first) & (self.call_start_ns[best] >= end_ns)).any():
            best = best - skip
        ended = best >= first
        # Of several that ended at once, the first to begin.
        best = np.where(ended, self._call_ends.places(row, self.call_end_ns[best]), -1)
        # One that ends later is taken only if it is the next one to end, or if none has ended.
        found, last = later, len(self.place) - 1
        opened = self._opened[np.minimum(later, last)] < end_ns
        while (
            skip := ~ended & opened & (found < until) & (self.call_start_ns[np.minimum(found, last)] >= end_ns)
        ).any():
            found = found + skip
        there = (found < until) & (ended | opened)
        at = np.minimum(found, last)
        there &= self.call_start_ns[at] < end_ns
        nearer = self.call_end_ns[at] - end_ns < end_ns - self.call_end_ns[best]
        return np.where(there & (~ended | nearer), at, best)

    @cached_property
    def _opened(self) -> Times:
        """The earliest start of the calls from each one on, of this rank or the next ones."""
        return np.minimum.accumulate(self.call_start_ns[::-1])[::-1]


class _Walked(NamedTuple):
    """Runs of segments on paths, the first and last one cut; all arrays of one length. ``call``: in ``_Lines``, or -1.
    They are in order of their ends within a step, the last one first."""

    step: Times
    row: Times
    first: Times
    last: Times  # inclusive
    start_ns: Times
    end_ns: Times
    call: Times


def walks(
    numbers: Sequence[int], timelines: Mapping[int, Timeline], came: Readiness, tied: Collection[int]
) -> tuple[Paths, Times]:
    """The path through each step; and the collectives at which it changes to a rank that others waited for, each as the
    place of its step times the number of all collectives, plus its own. ``numbers``: of the steps, in order; ``tied``:
    the ranks that are on the common clock.

    A path is followed from one collective to the next. Steps do not depend on each other, so those of all steps are
    followed together."""
    jumped = np.zeros(0, dtype=np.int64)
    if not numbers:
        return Paths.of([]), jumped
    lines = _Lines(list(timelines.values()), came)
    ranks, matched = np.array(came.ranks, dtype=np.int64), came.matched
    present, begins, row, time = _begun(numbers, list(timelines.values()), ranks, tied)
    found: list[_Walked] = []
    by_rank = np.argsort(ranks)
    step = np.flatnonzero(time > begins[np.arange(len(numbers)), row])
    while len(step):
        at, until = row[step], time[step]
        begin, index = begins[step, at], lines.before(at, until)
        comm = lines.last_comm[index] if len(matched) else np.full(len(step), -1)
        comm = np.where((comm >= 0) & (lines.end_ns[comm] > begin), comm, -1)
        inside = index >= 0
        rest = inside & (comm < 0)
        own = inside & (comm < index)  # the rank's own activity after its last communication
        first = comm + 1
        first[rest] = lines.after(at[rest], begin[rest])
        none = np.full(len(step), -1)
        found.append(_Walked(*(each[own] for each in (step, at, first, index, begin, until, none))))
        go = inside & (comm >= 0)
        step, at, comm, index, begin, before = (each[go] for each in (step, at, comm, index, begin, until))
        if not len(step):
            break
        until = np.where(comm < index, lines.end_ns[comm], before)
        start = np.maximum(lines.start_ns[comm], begin)
        call = lines.releasing(at, start, until)
        # One stretch of communication may hold several collectives back to back.
        begun = lines.call_start_ns[call]
        start = np.where((call >= 0) & (start < begun) & (begun < until), begun, start)
        number = np.where(call >= 0, lines.number[call], -1)
        # A collective may be cut in pieces (by gloo's copies, for example): pieces after the arrival belong to the late
        # rank, and only the one around it changes ranks.
        code = step * len(matched) + number
        number[np.isin(code, jumped)] = -1
        last, ready = _last_ready(came, number, present[step])
        arrival = np.minimum(ready, until)
        changes = (last >= 0) & (last != ranks[at]) & (arrival - start > CRITICAL_PATH.noise_of_waits_ns)
        since = np.where(changes, arrival, start)
        found.append(_Walked(step, at, comm, comm, since, until, call))
        jumped = np.concatenate((jumped, code[changes]))
        time[step] = since
        row_of_last = by_rank[np.searchsorted(ranks, last, sorter=by_rank)]
        row[step] = np.where(changes, row_of_last, at)
        # Steps may overlap: then the path cannot be followed further back.
        step = step[changes | (since < before)]
        step = step[time[step] > begins[step, row[step]]]
    return _paths(found, len(numbers), lines, came), jumped


def _begun(
    numbers: Sequence[int], timelines: Sequence[Timeline], ranks: Times, tied: Collection[int]
) -> tuple[Mask, Times, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which ranks take part in the path of each step, and when they begin it, [steps, rows]: those on the common clock,
    else only the one that took longest. And by step, the row of the rank that ends last, and when; of several, of the
    one that waited least (its number decides only between equals)."""
    present = np.zeros((len(numbers), len(ranks)), dtype=np.bool_)
    begins, ends, waited = (np.full(present.shape, value) for value in (_NEVER, _NEVER, 0))
    for row, line in enumerate(timelines):
        there = np.searchsorted(numbers, line.steps.step)
        present[there, row] = True
        begins[there, row], ends[there, row] = line.steps.begin_ns, line.steps.end_ns
        waited[there, row] = by_kinds(line.steps.segments)[:, Kind.COMM]
    by_rank = np.argsort(ranks)
    slowest = by_rank[np.where(present, ends - begins, -1)[:, by_rank].argmax(axis=1)]
    common: Mask = present & np.isin(ranks, list(tied))
    present &= np.where(common.any(axis=1, keepdims=True), common, np.arange(len(ranks)) == slowest[:, None])
    end = np.where(present, ends, _NEVER).max(axis=1)
    least = np.where(present & (ends == end[:, None]), waited, _EVER)
    row = by_rank[least[:, by_rank].argmin(axis=1)]
    return present, begins, row, end


def _last_ready(came: Readiness, number: Times, present: Mask) -> tuple[Times, Times]:
    """Of each collective the last rank to be ready among those that are ``present`` (by row), and when; -1 for rank and
    number if fewer than two took part."""
    last, ready = np.full(len(number), -1), np.zeros(len(number), dtype=np.int64)
    known = np.flatnonzero(number >= 0)
    if not len(known):
        return last, ready
    matched = came.matched
    at, edges = entries_of(matched.edges, number[known])
    of, first = owners(edges), edges[:-1]
    here = present[known[of], came.row[at]]
    ready_ns = np.where(here, came.ready_ns[at], _NEVER)
    latest = np.maximum.reduceat(ready_ns, first)
    rank = np.maximum.reduceat(np.where(here & (ready_ns == latest[of]), matched.rank[at], -1), first)
    several = np.add.reduceat(here.astype(np.int64), first) > 1
    last[known], ready[known] = np.where(several, rank, -1), np.where(several, latest, 0)
    return last, ready


def _paths(
    found: Sequence[_Walked],
    steps: int,
    lines: _Lines,
    came: Readiness,
) -> Paths:
    nothing = _Walked(*[np.zeros(0, dtype=np.int64)] * len(_Walked._fields))  # no step lasts any time
    every = _Walked(*(np.concatenate(columns) for columns in zip(nothing, *found, strict=True)))
    order = np.argsort(every.step, kind="stable")
    every = _Walked(*(column[order] for column in every))
    number = np.full(len(every.step), -1, dtype=np.int32)
    keyed = np.flatnonzero(every.call >= 0)
    keys, key_edges, number[keyed] = _keys(every.step[keyed], every.row[keyed], every.call[keyed], steps, lines, came)
    kept = np.flatnonzero(every.end_ns > every.start_ns)
    kept = kept[np.lexsort((-kept, every.step[kept]))]
    every, number = _Walked(*(column[kept] for column in every)), number[kept]
    counts = every.last - every.first + 1
    edges = np.cumsum([0, *counts.tolist()])
    of = np.repeat(np.arange(len(counts)), counts)
    at = places_from(every.first, counts)
    start, end, label = lines.start_ns[at], lines.end_ns[at], lines.label[at]
    start[edges[:-1]] = np.where(every.call >= 0, every.start_ns, np.maximum(every.start_ns, start[edges[:-1]]))
    end[edges[1:] - 1] = every.end_ns
    rank = np.array(came.ranks, dtype=np.int64)[every.row[of]]
    kind, detail, collective = kinds_of(label), details_of(label), number[of]
    cuts = edges[np.searchsorted(every.step, np.arange(steps + 1))]
    return Paths(rank, start, end, kind, detail, collective, cuts, keys, key_edges)


def _keys(
    step: Times, row: Times, call: Times, steps: int, lines: _Lines, came: Readiness
) -> tuple[Keys, Times, npt.NDArray[np.int32]]:
    """The keys of the calls of each step, each once, in the order in which they come up, and their edges; and for each
    call, the place of its key among those of its step."""
    matched, calls = came.matched, lines.calls
    of, place = lines.number[call], lines.place[call]
    # A call that met no other rank's has a number of its own.
    code = np.where(of >= 0, of, len(matched) + call)
    apart = step * (len(matched) + len(lines.place)) + code
    _, first, again = np.unique(apart, return_index=True, return_inverse=True)
    order = np.argsort(first)  # by step: they come in the order of the steps
    position = np.empty(len(first), dtype=np.int64)
    position[order] = np.arange(len(first))
    first = first[order]
    edges = np.searchsorted(step[first], np.arange(steps + 1))
    local = (position[again] - edges[step]).astype(np.int32)
    names = dict.fromkeys((*matched.group_names, *matched.labels))
    names |= dict.fromkeys(name for each in calls for name in (*each.names, *(group.name for group in each.groups)))
    codes = {name: at for at, name in enumerate(names)}
    group, seq, label = (np.zeros(len(first), dtype=np.int64) for _ in range(3))
    met = of[first] >= 0
    of_names, of_labels = (
        np.array([codes[name] for name in some], dtype=np.int64) for some in (matched.group_names, matched.labels)
    )
    if met.any():
        numbers = of[first][met]
        group[met], seq[met] = of_names[matched.group[numbers]], matched.seq[numbers]
        label[met] = of_labels[matched.label[numbers]]
    for at in np.flatnonzero(~met).tolist():
        name, number, text = calls[row[first[at]]].key(int(place[first[at]]))
        group[at], seq[at], label[at] = codes[name], number, codes[text]
    return Keys(group.astype(np.int32), seq, label.astype(np.int32), tuple(names)), edges, local
