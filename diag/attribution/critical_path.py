"""The critical path of one step across all ranks, walked backwards from the last rank's end (science.md 2.6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from diag.attribution.match import Key
from diag.attribution.timeline import Timeline, details_of, kinds_of
from diag.model import CollectiveCall, CriticalPath, Kind, RankStep

# A wait shorter than this is the noise of two clocks readings and a thread's wake-up, not a reason to change ranks.
EPSILON_NS = 50_000

Ready = Mapping[Key, Mapping[int, int]]  # of each collective and rank, when it was ready


class Readiness(Struct, frozen=True):
    """When the ranks came to their collectives, by collective and rank (diag.attribution.timeline.Arrivals).
    ``in_step``: whether all ranks of a collective stood still when it ended.

    The last one to be ready is not always the last one to call. Where transfers follow each other without a gap they
    all begin at the end of the one before, on every rank, and a rank that was late shows by how little of them is left
    to wait for. What the last one to be ready still waits is what a faster network would save.
    """

    ready: Ready
    idle: Ready
    in_step: Mapping[Key, bool]


def readiness(matched: Mapping[Key, Mapping[int, CollectiveCall]], timelines: Mapping[int, Timeline]) -> Readiness:
    """Asked of each rank once, for all of its collectives."""
    calls: dict[int, list[tuple[Key, CollectiveCall]]] = defaultdict(list)
    for key, members in matched.items():
        for rank, call in members.items():
            calls[rank].append((key, call))
    ready: dict[Key, dict[int, int]] = {key: {} for key in matched}
    idle: dict[Key, dict[int, int]] = {key: {} for key in matched}
    in_step = dict.fromkeys(matched, True)
    for rank, own in calls.items():
        found = timelines[rank].arrivals([call for _, call in own])
        for (key, _), *values in zip(own, *(column.tolist() for column in found), strict=True):
            ready[key][rank], idle[key][rank], still = values
            in_step[key] &= still
    return Readiness(ready, idle, in_step)


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
    ready: Ready,
) -> CriticalPath:
    """The path through one step. ``steps``: rank to its part of this step, on the common clock."""
    rank = _last_done(steps)
    time = steps[rank].end_ns
    found = _Found()
    # Where the path has gone to a late rank already. A collective may be cut in pieces, by gloo's copies for one: those
    # after the arrival are this rank's, and only from the one around it the path jumps.
    jumped: set[Key] = set()
    if not ready:  # nobody to wait for
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
            last = _last_ready({r: time for r, time in ready.get(key, {}).items() if r in steps})
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
        self._columns.append(
            (np.full(len(start), rank), start, end, kinds_of(label), details_of(label), np.full(len(start), number))
        )

    def path(self, changes: Iterable[Key]) -> CriticalPath:
        empty = np.zeros(0, dtype=np.int64)
        columns = [np.concatenate(parts) for parts in zip(*reversed(self._columns), strict=True)] or [empty] * 6
        rank, start, end, kind, detail, collective = columns
        return CriticalPath(rank, start, end, kind, detail, collective, tuple(self.keys), frozenset(changes))


def nearly_last(ready: Mapping[int, int]) -> list[tuple[int, int]]:
    """Rank and time of all that were ready last. Of two that come together the path is on either."""
    last = max(ready.values())
    return [(rank, time) for rank, time in ready.items() if time >= last - EPSILON_NS]


def _last_done(steps: Mapping[int, RankStep]) -> int:
    """The rank that ends last; of several, the one that waited least, whatever its number is."""
    end = max(step.end_ns for step in steps.values())
    last = [rank for rank in steps if steps[rank].end_ns == end]
    return min(last, key=lambda rank: (steps[rank].segments.total(Kind.COMM), rank)) if len(last) > 1 else last[0]


def _last_ready(ready: Mapping[int, int]) -> tuple[int, int] | None:
    """The last rank to be ready, and when; None where fewer than two took part."""
    if len(ready) < 2:
        return None
    time, rank = max((time, rank) for rank, time in ready.items())
    return rank, time
