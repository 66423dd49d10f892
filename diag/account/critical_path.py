"""The critical path of one step across all ranks, walked backwards from the end of the last rank.

A ``Timeline`` joins the steps of one rank and sums any window of them in logarithmic time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.policy import CRITICAL_PATH
from diag.collectors.records import SEND
from diag.model.steps import CriticalPath, Detail, Kind, RankStep, joined

from .calls import Calls, Key, Matched
from .intervals import Intervals, Times

_DETAILS = len(Detail)
Mask = npt.NDArray[np.bool_]
Activity = npt.NDArray[np.int64]  # nanoseconds by label


def label_of(kind: int, detail: int) -> int:
    return kind * _DETAILS + detail


def of_label(label: int) -> tuple[Kind, Detail]:
    return Kind(label // _DETAILS), Detail(label % _DETAILS)


# Small integers: a trace of five million events has a million pieces, and a path has them all.
def labels_of(kinds: npt.NDArray[np.integer], details: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
    return kinds.astype(np.int16) * np.int16(_DETAILS) + details.astype(np.int16)


def kinds_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels // _DETAILS).astype(np.int8)


def details_of(labels: npt.NDArray[np.int16]) -> npt.NDArray[np.int8]:
    return (labels % _DETAILS).astype(np.int8)


LABELS = len(Kind) * _DETAILS


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

    ``calls``: those in the steps."""

    def __init__(self, steps: Sequence[RankStep], calls: Calls) -> None:
        every = joined([step.segments for step in sorted(steps, key=lambda step: step.begin_ns)])
        self.start_ns, self.end_ns = every.start_ns, every.end_ns
        self.label = labels_of(every.kind, every.detail)
        self._communicating: Mask = every.kind == Kind.COMM
        self._communication = np.flatnonzero(self._communicating)
        self.calls = calls
        order = np.lexsort((calls.start_ns, calls.end_ns))
        self._by_end, self._call_starts, self._call_ends = order, calls.start_ns[order], calls.end_ns[order]

    @cached_property
    def _sums(self) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The labels in use; for each segment, its label's place among them; and the nanoseconds of each label before
        each segment, shape (segments, labels in use). Not needed for a rank that meets no other."""
        used, column = np.unique(self.label, return_inverse=True)
        spent = np.zeros((len(column), len(used)), dtype=np.int64)
        spent[np.arange(len(column)), column] = self.end_ns - self.start_ns
        return used, column, np.cumsum(spent, axis=0) - spent

    def segment_before(self, time_ns: int) -> int | None:
        """Index of the segment that holds the moment just before ``time_ns``; None between or before the steps."""
        index = int(np.searchsorted(self.start_ns, time_ns, side="left")) - 1
        return index if index >= 0 and self.end_ns[index] >= time_ns else None

    def segment_after(self, time_ns: int) -> int:
        """Index of the segment that holds the moment just after ``time_ns``, else of the next one."""
        return int(np.searchsorted(self.end_ns, time_ns, side="right"))

    def last_communication(self, index: int, begin_ns: int) -> int | None:
        """The last segment up to ``index`` that is communication and reaches beyond ``begin_ns``."""
        at = int(np.searchsorted(self._communication, index, side="right")) - 1
        if at < 0 or self.end_ns[self._communication[at]] <= begin_ns:
            return None
        return int(self._communication[at])

    def arrivals(self, places: Times) -> Arrivals:
        """When the rank arrived at the calls at these places: one pass over all of them."""
        calls = self.calls
        start, end, since, until = (
            column[places] for column in (calls.start_ns, calls.end_ns, calls.wait_start_ns, calls.wait_end_ns)
        )
        waited, sent = calls.waited[places], calls.with_op(SEND)[places]
        busy_until = np.where(waited, since, end)
        at, inside = self._segments_before(busy_until)
        standing = inside & self._communicating[at]
        idle = np.where(standing, self.start_ns[self._stretches[at]], np.where(waited, busy_until, start))
        at, inside = self._segments_before(end)
        still = np.where(waited, (since < end) & (end <= until), ~inside | self._communicating[at])
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
        together = self._communicating[1:] & self._communicating[:-1]
        breaks[1:] = ~(together & (self.end_ns[:-1] == self.start_ns[1:]))
        return np.maximum.accumulate(np.where(breaks, np.arange(len(breaks)), 0))

    def activity(self, start_ns: int, end_ns: int) -> Activity:
        """The rank's activity in a window, nanoseconds by label."""
        window = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
        totals: Activity = self.activities(*window)[0]
        return totals

    def activities(self, start_ns: Times, end_ns: Times) -> Activity:
        """``activity`` for many windows: shape (windows, labels)."""
        totals = np.zeros((len(start_ns), LABELS), dtype=np.int64)
        totals[:, self._sums[0]] = self._until(np.maximum(start_ns, end_ns)) - self._until(start_ns)
        return totals

    def _until(self, times_ns: Times) -> npt.NDArray[np.int64]:
        """Nanoseconds before each moment, by the labels in use."""
        _, column, before = self._sums
        index = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        at = np.maximum(index, 0)
        done: npt.NDArray[np.int64] = before[at]
        done[np.arange(len(at)), column[at]] += np.minimum(times_ns, self.end_ns[at]) - self.start_ns[at]
        done[index < 0] = 0
        return done

    @property
    def labels(self) -> npt.NDArray[np.int16]:
        return self._sums[0]

    @property
    def standing(self) -> Intervals:
        return np.stack((self.start_ns[self._communication], self.end_ns[self._communication]), axis=1)

    def releasing_call(self, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """The collective whose end released the rank at ``end_ns``, among those open in the window: its place among the
        calls, and its start."""
        first = int(np.searchsorted(self._call_ends, start_ns, side="right"))
        best: tuple[int, int] | None = None
        nearest = 0
        for at in range(first, len(self._by_end)):
            start, end = int(self._call_starts[at]), int(self._call_ends[at])
            if start < end_ns and (best is None or abs(end - end_ns) < nearest):
                best, nearest = (int(self._by_end[at]), start), abs(end - end_ns)
            if end > end_ns and best is not None:
                break
        return best


# -- critical path -----------------------------------------------------------------------------------------------------


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
        members = np.flatnonzero(matched.rank == rank)
        if len(members):
            columns[:, members] = timeline.arrivals(matched.place[members])
            rows[members] = row
    start, end, ready, idle, still = columns
    numbers = {
        rank: matched.numbers_of(rank) if rank in matched.calls else np.full(len(timeline.calls), -1)
        for rank, timeline in timelines.items()
    }
    return Readiness(matched, tuple(timelines), rows, start, end, ready, idle, matched.all_of(still != 0), numbers)


def held_up_at(path: CriticalPath, number: Times, rank: Times, arrival_ns: Times, keys: Sequence[Key]) -> list[int]:
    """Collectives whose last-arriving rank was on the critical path at its arrival. ``number``, ``rank``,
    ``arrival_ns``: the collectives of the step and who arrived last, in order of arrival; ``keys``: by number.

    Collectives at which the path changes ranks are included. A last rank that called, did something else and asked for
    the result after the others had left was ready after them: at that time the path may be on one of them again.
    """
    if not len(number) or not len(path.start_ns):
        return []
    # A piece of the path ends at an arrival; the next one is the transfer, or the wait of a rank that came earlier.
    before = np.searchsorted(path.start_ns, arrival_ns, side="left") - 1
    met = arrival_ns == path.start_ns[0]  # a rank whose step begins with its arrival leaves no piece before it
    for near in (before, before + 1):
        index = np.clip(near, 0, len(path.start_ns) - 1)
        met |= (path.rank[index] == rank) & (path.start_ns[index] <= arrival_ns) & (arrival_ns <= path.end_ns[index])
    held = (of for of, was in zip(number.tolist(), met.tolist(), strict=True) if was or keys[of] in path.changes)
    return list(dict.fromkeys(held))


def walk(
    steps: Mapping[int, RankStep],
    timelines: Mapping[int, Timeline],
    came: Readiness,
) -> CriticalPath:
    """The path through one step. ``steps``: rank to its part of this step, on the common clock."""
    rank = _last_done(steps)
    time = steps[rank].end_ns
    stretches = _Found()
    # Collectives at which the path has changed to the late rank already. A collective may be cut in pieces (by gloo's
    # copies, for example): pieces after the arrival belong to this rank, and only the one around it changes ranks.
    jumped: set[Key] = set()
    present = np.array([rank in steps for rank in came.ranks], dtype=np.bool_)
    if not len(came.matched):  # no rank to wait for
        line, begin = timelines[rank], steps[rank].begin_ns
        index = line.segment_before(time)
        if index is not None and time > begin:
            stretches.add(rank, line, line.segment_after(begin), index, begin, time)
        return stretches.path(jumped)
    while time > steps[rank].begin_ns:
        line, begin = timelines[rank], steps[rank].begin_ns
        index = line.segment_before(time)
        if index is None:
            break
        comm = line.last_communication(index, begin)
        before = time
        if comm is None:
            stretches.add(rank, line, line.segment_after(begin), index, begin, time)
            break
        if comm < index:
            stretches.add(rank, line, comm + 1, index, begin, time)
            time = int(line.end_ns[comm])
        start = max(int(line.start_ns[comm]), begin)
        call = line.releasing_call(start, time)
        if call is not None and start < call[1] < time:
            start = call[1]  # one stretch of communication with several collectives back to back
        key = line.calls.key(call[0]) if call is not None else None
        last = None
        if call is not None and key not in jumped:
            last = _last_ready(came, int(came.numbers[rank][call[0]]), present)
        if last is None or last[0] == rank or min(last[1], time) - start <= CRITICAL_PATH.noise_of_waits_ns:
            stretches.add(rank, line, comm, comm, start, time, key)
            time = start
            if time >= before:
                break  # steps that overlap: the path cannot be followed further back
            continue
        arrival = min(last[1], time)
        stretches.add(rank, line, comm, comm, arrival, time, key)
        rank, time = last[0], arrival
        if key is not None:
            jumped.add(key)
    return stretches.path(jumped)


class _Found:
    """Stretches of the path, last one first: runs of segments of one rank, the first and last one cut."""

    def __init__(self) -> None:
        self.keys: dict[Key, int] = {}
        self._columns: list[tuple[np.ndarray, ...]] = []

    def add(
        self, rank: int, line: Timeline, first: int, last: int, start_ns: int, end_ns: int, key: Key | None = None
    ) -> None:
        """The segments ``first`` to ``last`` (inclusive) between ``start_ns`` and ``end_ns``."""
        number = self.keys.setdefault(key, len(self.keys)) if key is not None else -1
        if end_ns <= start_ns:
            return
        run = slice(first, last + 1)
        start, end, label = line.start_ns[run].copy(), line.end_ns[run].copy(), line.label[run]
        start[0], end[-1] = start_ns if key is not None else max(start_ns, int(start[0])), end_ns
        numbers = np.full(len(start), number, dtype=np.int32)
        self._columns.append((np.full(len(start), rank), start, end, kinds_of(label), details_of(label), numbers))

    def path(self, changes: Iterable[Key]) -> CriticalPath:
        empty = np.zeros(0, dtype=np.int64)
        columns = [np.concatenate(parts) for parts in zip(*reversed(self._columns), strict=True)] or [empty] * 6
        rank, start, end, kind, detail, collective = columns
        return CriticalPath(rank, start, end, kind, detail, collective, tuple(self.keys), frozenset(changes))


def _last_done(steps: Mapping[int, RankStep]) -> int:
    """The rank that ends last; of several, the one that waited least (its number decides only between equals)."""
    end = max(step.end_ns for step in steps.values())
    last = [rank for rank in steps if steps[rank].end_ns == end]
    return min(last, key=lambda rank: (steps[rank].segments.total(Kind.COMM), rank)) if len(last) > 1 else last[0]


def _last_ready(came: Readiness, number: int, present: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """The last rank to be ready among those that are ``present`` (by row), and when; None if fewer than two took
    part."""
    if number < 0:
        return None
    at = came.members(number)
    here = present[came.row[at]]
    ready, ranks = came.ready_ns[at][here], came.matched.rank[at][here]
    if len(ready) < 2:
        return None
    last = int(ready.max())
    return int(ranks[ready == last].max()), last
