"""Sets of time as arrays of intervals.

An interval set is an int64 array of shape (n, 2), half-open ``[start, end)`` in nanoseconds. A *normal* set is sorted,
disjoint, without touching or empty intervals; every function here accepts any set and returns a normal one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]
Times = npt.NDArray[np.int64]

EMPTY: Intervals = np.zeros((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)
_NO_TIME = np.iinfo(np.int64).max


def make(pairs: Iterable[tuple[int, int]] | Intervals) -> Intervals:
    """The normal set of any (start, end) pairs; pairs that end before they start are dropped."""
    return normal(
        np.asarray(list(pairs) if not isinstance(pairs, np.ndarray) else pairs, dtype=np.int64).reshape(-1, 2)
    )


def normal(intervals: Intervals) -> Intervals:
    """Sorted, merged, without empty intervals. O(n log n)."""
    filled = intervals[:, 1] > intervals[:, 0]
    kept = intervals if filled.all() else intervals[filled]
    # Most sets that come here are normal already: a pass over them costs a tenth of sorting.
    if len(kept) < 2 or (kept[1:, 0] > kept[:-1, 1]).all():
        return kept
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    reach = np.maximum.accumulate(kept[:, 1])
    opens = np.concatenate(([True], kept[1:, 0] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(kept) - 1]))
    return np.stack((kept[first, 0], reach[last]), axis=1)


def total(intervals: Intervals) -> int:
    """Nanoseconds covered."""
    tidy = normal(intervals)
    return int((tidy[:, 1] - tidy[:, 0]).sum())


def union(*sets: Intervals) -> Intervals:
    return normal(np.concatenate(sets)) if sets else EMPTY


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The part inside ``[start, end)``."""
    return normal(np.stack((np.maximum(intervals[:, 0], start), np.minimum(intervals[:, 1], end)), axis=1))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What both cover."""
    a, b = normal(a), normal(b)
    if not len(a) or not len(b):
        return EMPTY
    # Each interval of a meets a run of intervals of b: those that end after it starts and start before it ends.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    of_a = np.repeat(np.arange(len(a)), counts)
    if not len(of_a):
        return EMPTY
    starts = np.cumsum(counts) - counts
    of_b = np.arange(len(of_a)) - np.repeat(starts, counts) + np.repeat(first, counts)
    return normal(np.stack((np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])), axis=1))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What a covers and b does not."""
    a, b = normal(a), normal(b)
    if not len(a) or not len(b):
        return a
    low, high = int(min(a[0, 0], b[0, 0])) - 1, int(max(a[-1, 1], b[-1, 1])) + 1
    gaps = np.stack((np.concatenate(([low], b[:, 1])), np.concatenate((b[:, 0], [high]))), axis=1)
    return intersect(a, gaps)


class Covered:
    """How much of a set lies before a moment: a search for each question, all questions at once."""

    def __init__(self, intervals: Intervals) -> None:
        spans = normal(intervals)
        # Columns of their own: a search in one of two interleaved columns copies it first, each time.
        self._begin, self._end = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
        self._before = np.concatenate(([0], np.cumsum(self._end - self._begin)))

    def until(self, times: Times) -> Times:
        """Nanoseconds of the set before each moment."""
        if not len(self._begin):
            return np.zeros(len(times), dtype=np.int64)
        at = np.maximum(np.searchsorted(self._begin, times, side="right") - 1, 0)
        begin, end = self._begin[at], self._end[at]
        found: Times = self._before[at] + np.clip(times - begin, 0, end - begin)
        return found

    def between(self, start: Times, end: Times) -> Times:
        """Nanoseconds of the set in each ``[start, end)``; 0 where that is empty."""
        return self.until(np.maximum(start, end)) - self.until(start)

    def stretch_begin(self, time_ns: int) -> int:
        """Where the stretch of the set that the moment lies in begins; the moment itself where it lies in none."""
        at = int(np.searchsorted(self._begin, time_ns, side="right")) - 1
        return int(self._begin[at]) if at >= 0 and self._end[at] > time_ns else time_ns


class CoveredOfMany:
    """The same of several sets at once: a search for all questions about all of them."""

    def __init__(self, sets: Sequence[Intervals]) -> None:
        spans = [normal(one) for one in sets]
        counts = [len(one) for one in spans]
        self._first = np.cumsum([0, *counts[:-1]]) if spans else np.zeros(0, dtype=np.int64)
        self._last = self._first + np.array(counts, dtype=np.int64)
        together = np.concatenate(spans) if spans else EMPTY
        self._begin, self._end = np.ascontiguousarray(together[:, 0]), np.ascontiguousarray(together[:, 1])
        self._before = np.concatenate(([0], np.cumsum(self._end - self._begin)))
        # Moments since the first, and each set behind the one before it: one sorted line.
        self._zero = int(self._begin.min()) if len(together) else 0
        self._span = (int(self._end.max()) - self._zero + 1) if len(together) else 1
        self._line = np.repeat(np.arange(len(spans)), counts) * self._span + (self._begin - self._zero)

    def between(self, which: npt.NDArray[np.int64], start: Times, end: Times) -> Times:
        """Nanoseconds of each set, by its index, in each ``[start, end)``; 0 where that is empty. The three arrays have
        one shape, or one that broadcasts."""
        return self._until(which, np.maximum(start, end)) - self._until(which, start)

    def stretch_end(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        """Where the stretch of each set that the moment lies in ends; the moment itself where it lies in none."""
        if not len(self._begin):
            return times
        at = self._before_or_at(which, times)
        inside = (at >= self._first[which]) & (times >= self._zero) & (self._end[at] > times)
        found: Times = np.where(inside, self._end[at], times)
        return found

    def next_begin(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        """Where the first stretch of each set begins that begins after the moment; beyond all time where none does."""
        if not len(self._begin):
            return np.full(len(times), _NO_TIME)
        at = np.where(times < self._zero, self._first[which], self._before_or_at(which, times) + 1)
        found: Times = np.where(at < self._last[which], self._begin[np.minimum(at, len(self._begin) - 1)], _NO_TIME)
        return found

    def _before_or_at(self, which: npt.NDArray[np.int64], times: Times) -> npt.NDArray[np.int64]:
        """The last stretch that begins no later than the moment, in the line of all sets; it may be of a set before."""
        asked = which * self._span + np.clip(times - self._zero, 0, self._span - 1)
        found: npt.NDArray[np.int64] = np.searchsorted(self._line, asked.ravel(), side="right").reshape(asked.shape) - 1
        return found

    def _until(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        which, times = np.broadcast_arrays(which, times)
        if not len(self._begin):
            return np.zeros(times.shape, dtype=np.int64)
        at = self._before_or_at(which, times)
        none = (at < self._first[which]) | (times < self._zero)
        at = np.maximum(at, 0)
        begin, end = self._begin[at], self._end[at]
        found = self._before[at] - self._before[self._first[which]] + np.clip(times - begin, 0, end - begin)
        return np.where(none, 0, found)
