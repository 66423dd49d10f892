"""The critical path of one step across all ranks, walked backwards from the last rank's end (science.md 2.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.model.steps import CollectiveCall, CriticalPath, Kind, RankStep

from .intervals import Times
from .match import Key
from .timeline import Timeline, details_of, kinds_of

# A wait shorter than this is the noise of two clocks readings and a thread's wake-up, not a reason to change ranks.
EPSILON_NS = 50_000


class Attendance(NamedTuple):
    """One collective: arrays of a value for each rank that took part (diag.account.timeline.Arrivals). ``row``: the
    rank's place among all that have a timeline. ``in_step``: whether all of them stood still when it ended."""

    rank: Times
    row: Times
    start_ns: Times
    end_ns: Times
    ready_ns: Times
    idle_ns: Times
    in_step: bool

    def ready_of(self, rank: int) -> int:
        return int(self.ready_ns[self.rank == rank][0])


class Readiness(Struct, frozen=True):
    """When the ranks came to their collectives.

    The last one to be ready is not always the last one to call. Where transfers follow each other without a gap they
    all begin at the end of the one before, on every rank, and a rank that was late shows by how little of them is left
    to wait for. What the last one to be ready still waits is what a faster network would save.
    """

    of: Mapping[Key, Attendance]
    ranks: tuple[int, ...]  # all that have a timeline, in the order of the rows


def readiness(matched: Mapping[Key, Mapping[int, CollectiveCall]], timelines: Mapping[int, Timeline]) -> Readiness:
    """Asked of each rank once, for all of its collectives."""
    row = {rank: i for i, rank in enumerate(timelines)}
    calls: dict[int, list[CollectiveCall]] = {rank: [] for rank in row}
    places: dict[int, list[int]] = {rank: [] for rank in row}
    ranks: list[int] = []
    for members in matched.values():
        for place, (rank, call) in enumerate(members.items(), len(ranks)):
            calls[rank].append(call)
            places[rank].append(place)
        ranks.extend(members)
    columns = np.zeros((5, len(ranks)), dtype=np.int64)
    rows = np.zeros(len(ranks), dtype=np.int64)
    for rank, own in calls.items():
        if own:
            columns[:, places[rank]] = timelines[rank].arrivals(own)
            rows[places[rank]] = row[rank]
    rank_of = np.array(ranks, dtype=np.int64)
    start, end, ready, idle, still = columns
    edges = np.cumsum([0, *(len(members) for members in matched.values())])
    found = {}
    for key, first, last in zip(matched, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        at = slice(first, last)
        found[key] = Attendance(rank_of[at], rows[at], start[at], end[at], ready[at], idle[at], bool(still[at].all()))
    return Readiness(found, tuple(row))


def held_up_at(path: CriticalPath, arrivals: Iterable[tuple[Key, int, int]]) -> list[Key]:
    """The collectives that a last rank of was on the path when it was ready: (key, rank, that time) in, keys out.

    Those in which the path changes ranks as well. A last rank that called, did something else and asked for the result
    when the others had left already was ready after they were: at that time the path may be on one of them again.
    """
    arrivals = list(arrivals)
    if not arrivals or not len(path.start_ns):
        return []
    at = np.array([arrival for _, _, arrival in arrivals], dtype=np.int64)
    ranks = np.array([rank for _, rank, _ in arrivals], dtype=np.int64)
    # An arrival is where a piece ends; the next one is the transfer, or the wait of somebody who came earlier.
    before = np.searchsorted(path.start_ns, at, side="left") - 1
    met = at == path.start_ns[0]  # a rank whose step begins with its arrival leaves no piece before it
    for near in (before, before + 1):
        index = np.clip(near, 0, len(path.start_ns) - 1)
        met |= (path.rank[index] == ranks) & (path.start_ns[index] <= at) & (at <= path.end_ns[index])
    held = (key for (key, _, _), was in zip(arrivals, met.tolist(), strict=True) if was or key in path.changes)
    return list(dict.fromkeys(held))


def walk(
    steps: Mapping[int, RankStep],
    timelines: Mapping[int, Timeline],
    came: Readiness,
) -> CriticalPath:
    """The path through one step. ``steps``: rank to its part of this step, on the common clock."""
    rank = _last_done(steps)
    time = steps[rank].end_ns
    found = _Found()
    # Where the path has gone to a late rank already. A collective may be cut in pieces, by gloo's copies for one: those
    # after the arrival are this rank's, and only from the one around it the path jumps.
    jumped: set[Key] = set()
    present = np.array([rank in steps for rank in came.ranks], dtype=np.bool_)
    if not came.of:  # nobody to wait for
        line, begin = timelines[rank], steps[rank].begin_ns
        index = line.segment_before(time)
        if index is not None and time > begin:
            found.add(rank, line, line.segment_after(begin), index, begin, time)
        return found.path(jumped)
    while time > steps[rank].begin_ns:
        line, begin = timelines[rank], steps[rank].begin_ns
        index = line.segment_before(time)
        if index is None:
            break
        comm = line.last_communication(index, begin)
        before = time
        if comm is None:
            found.add(rank, line, line.segment_after(begin), index, begin, time)
            break
        if comm < index:
            found.add(rank, line, comm + 1, index, begin, time)
            time = int(line.end_ns[comm])
        start = max(int(line.start_ns[comm]), begin)
        call = line.releasing_call(start, time)
        if call is not None and start < call.start_ns < time:
            start = call.start_ns  # one stretch of communication, several collectives one after the other
        key = call.key if call is not None else None
        last = None
        if key is not None and key not in jumped:
            last = _last_ready(came.of.get(key), present)
        if last is None or last[0] == rank or min(last[1], time) - start <= EPSILON_NS:
            found.add(rank, line, comm, comm, start, time, key)
            time = start
            if time >= before:
                break  # steps that overlap: the path cannot be followed further back
            continue
        arrival = min(last[1], time)
        found.add(rank, line, comm, comm, arrival, time, key)
        rank, time = last[0], arrival
        if key is not None:
            jumped.add(key)
    return found.path(jumped)


class _Found:
    """Stretches of the path, last one first: runs of segments of one rank, the outer ones cut."""

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


def nearly_last(came: Attendance) -> list[tuple[int, int]]:
    """Rank and time of all that were ready last. Of two that come together the path is on either."""
    late = came.ready_ns >= came.ready_ns.max() - EPSILON_NS
    return list(zip(came.rank[late].tolist(), came.ready_ns[late].tolist(), strict=True))


def _last_done(steps: Mapping[int, RankStep]) -> int:
    """The rank that ends last; of several, the one that waited least, whatever its number is."""
    end = max(step.end_ns for step in steps.values())
    last = [rank for rank in steps if steps[rank].end_ns == end]
    return min(last, key=lambda rank: (steps[rank].segments.total(Kind.COMM), rank)) if len(last) > 1 else last[0]


def _last_ready(came: Attendance | None, present: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """The last of the ranks that are ``present`` to be ready, by row, and when; None where fewer than two took part."""
    if came is None:
        return None
    here = present[came.row]
    ready, ranks = came.ready_ns[here], came.rank[here]
    if len(ready) < 2:
        return None
    last = int(ready.max())
    return int(ranks[ready == last].max()), last
