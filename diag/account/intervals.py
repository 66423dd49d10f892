"""Sets of time as arrays of intervals, and the labelled layers that are painted into steps.

An interval set is an int64 array of shape (n, 2), half-open ``[start, end)`` in nanoseconds. A *normal* set is sorted,
disjoint, without touching or empty intervals; every function here accepts any set and returns a normal one. Layers are
ordered by priority and cut into the exact ``Segments`` of each window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.model.ragged import places_from
from diag.model.steps import CollectiveCall, Detail, Kind, Pieces, RankStep, Segments

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
    spans = intervals if filled.all() else intervals[filled]
    # Most sets passed in are normal already: checking costs a tenth of sorting.
    if len(spans) < 2 or (spans[1:, 0] > spans[:-1, 1]).all():
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.concatenate(([True], spans[1:, 0] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(spans) - 1]))
    return np.stack((spans[first, 0], reach[last]), axis=1)


def total(intervals: Intervals) -> int:
    tidy = normal(intervals)
    return int((tidy[:, 1] - tidy[:, 0]).sum())


def union(*sets: Intervals) -> Intervals:
    return normal(np.concatenate(sets)) if sets else EMPTY


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The part inside ``[start, end)``."""
    return normal(np.stack((np.maximum(intervals[:, 0], start), np.minimum(intervals[:, 1], end)), axis=1))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    return _intersect(normal(a), normal(b))


def _intersect(a: Intervals, b: Intervals) -> Intervals:
    """Of normal sets."""
    if not len(a) or not len(b):
        return EMPTY
    # Each interval of a meets a run of intervals of b: those that end after it starts and start before it ends.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    of_a = np.repeat(np.arange(len(a)), counts)
    of_b = places_from(first, counts)
    return np.stack((np.maximum(a[of_a, 0], b[of_b, 0]), np.minimum(a[of_a, 1], b[of_b, 1])), axis=1)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    a, b = normal(a), normal(b)
    if not len(a) or not len(b):
        return a
    low, high = int(min(a[0, 0], b[0, 0])) - 1, int(max(a[-1, 1], b[-1, 1])) + 1
    gaps = np.stack((np.concatenate(([low], b[:, 1])), np.concatenate((b[:, 0], [high]))), axis=1)
    return _intersect(a, gaps)


class Covered:
    """How much of a set lies before a moment: one search answers all queries."""

    def __init__(self, intervals: Intervals) -> None:
        spans = normal(intervals)
        # Contiguous columns: a search in one of two interleaved columns copies it first, each time.
        self._begin, self._end = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
        self._before = np.concatenate(([0], np.cumsum(self._end - self._begin)))

    def until(self, times: Times) -> Times:
        """Nanoseconds of the set before each moment."""
        if not len(self._begin):
            return np.zeros(len(times), dtype=np.int64)
        at = np.maximum(np.searchsorted(self._begin, times, side="right") - 1, 0)
        begin, end = self._begin[at], self._end[at]
        covered_ns: Times = self._before[at] + np.clip(times - begin, 0, end - begin)
        return covered_ns

    def between(self, start: Times, end: Times) -> Times:
        """Nanoseconds of the set in each ``[start, end)``; 0 for an empty window."""
        return self.until(np.maximum(start, end)) - self.until(start)

    def stretch_begin(self, time_ns: int) -> int:
        """Begin of the set's stretch that holds the moment; the moment itself if none does."""
        at = int(np.searchsorted(self._begin, time_ns, side="right")) - 1
        return int(self._begin[at]) if at >= 0 and self._end[at] > time_ns else time_ns


def before_or_at(line: Times, moments: Times) -> npt.NDArray[np.int64]:
    """For each moment, the place of the last value on a sorted line that is not after it; -1 if there is none. The
    columns of ``moments`` are looked for one after the other: if each is sorted, that takes half of the time."""
    by_column = moments.T
    found: npt.NDArray[np.int64] = np.searchsorted(line, by_column.ravel(), side="right")
    return found.reshape(by_column.shape).T - 1


class CoveredOfMany:
    """``Covered`` for several sets at once: one search answers all queries."""

    def __init__(self, sets: Sequence[Intervals]) -> None:
        spans = [normal(span_set) for span_set in sets]
        counts = [len(span_set) for span_set in spans]
        self._first = np.cumsum([0, *counts[:-1]]) if spans else np.zeros(0, dtype=np.int64)
        self._last = self._first + np.array(counts, dtype=np.int64)
        together = np.concatenate(spans) if spans else EMPTY
        self._begin, self._end = np.ascontiguousarray(together[:, 0]), np.ascontiguousarray(together[:, 1])
        self._before = np.concatenate(([0], np.cumsum(self._end - self._begin)))
        # Times relative to the first one, with each set placed after the previous one: one sorted line.
        self._zero = int(self._begin.min()) if len(together) else 0
        self._span = (int(self._end.max()) - self._zero + 1) if len(together) else 1
        self._line = np.repeat(np.arange(len(spans)), counts) * self._span + (self._begin - self._zero)

    def between(self, which: npt.NDArray[np.int64], start: Times, end: Times) -> Times:
        """Nanoseconds of each set, by its index, in each ``[start, end)``; 0 for an empty window. The three arrays have
        one shape, or broadcast to one."""
        return self.until(which, np.maximum(start, end)) - self.until(which, start)

    def stretch_end(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        """End of each set's stretch that holds the moment; the moment itself if none does."""
        if not len(self._begin):
            return times
        at = self._before_or_at(which, times)
        inside = (at >= self._first[which]) & (times >= self._zero) & (self._end[at] > times)
        ends: Times = np.where(inside, self._end[at], times)
        return ends

    def next_begin(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        """Begin of each set's first stretch after the moment; ``_NO_TIME`` if there is none."""
        if not len(self._begin):
            return np.full(len(times), _NO_TIME)
        at = np.where(times < self._zero, self._first[which], self._before_or_at(which, times) + 1)
        begins: Times = np.where(at < self._last[which], self._begin[np.minimum(at, len(self._begin) - 1)], _NO_TIME)
        return begins

    def _before_or_at(self, which: npt.NDArray[np.int64], times: Times) -> npt.NDArray[np.int64]:
        """The last stretch that begins no later than the moment, on the line of all sets; may be of an earlier set."""
        on_line = which * self._span + np.clip(times - self._zero, 0, self._span - 1)
        return before_or_at(self._line, on_line)

    def until(self, which: npt.NDArray[np.int64], times: Times) -> Times:
        """Nanoseconds of each set, by its index, before each moment."""
        which, times = np.broadcast_arrays(which, times)
        if not len(self._begin):
            return np.zeros(times.shape, dtype=np.int64)
        at = self._before_or_at(which, times)
        none = (at < self._first[which]) | (times < self._zero)
        at = np.maximum(at, 0)
        begin, end = self._begin[at], self._end[at]
        covered_ns = self._before[at] - self._before[self._first[which]] + np.clip(times - begin, 0, end - begin)
        return np.where(none, 0, covered_ns)


Window = tuple[int, int, int]  # step, begin_ns, end_ns
_BEFORE = -(1 << 62)  # before any moment of any trace


class Layer(Struct, frozen=True):
    """Time with one label. Earlier layers take precedence."""

    kind: Kind
    detail: Detail
    intervals: Intervals


def disjoint(layers: Sequence[Layer]) -> list[Layer]:
    """The same layers without overlap: each keeps the time that no earlier layer covers."""
    covered = EMPTY
    remaining = []
    for layer in layers:
        if not len(layer.intervals):  # true for most kinds in most traces
            remaining.append(layer)
            continue
        remaining.append(Layer(layer.kind, layer.detail, subtract(layer.intervals, covered)))
        covered = union(covered, layer.intervals)
    return remaining


class Painted:
    """All time in consecutive labelled pieces; time that no (disjoint) layer covers is idle with the detail ``rest``.
    Neighbours with equal labels are one piece. Built once for all steps of a rank."""

    def __init__(self, layers: Sequence[Layer], rest: Detail = Detail.OTHER) -> None:
        begin, end = (np.concatenate([EMPTY[:, 0], *(each.intervals[:, at] for each in layers)]) for at in (0, 1))
        counts = np.array([len(each.intervals) for each in layers], dtype=np.int64)
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        of_layer = np.repeat(np.arange(len(layers), dtype=np.int16), counts)[order]
        del order  # a trace of five million events has a million and a half pieces
        # What no layer covers: before the first piece, and after each that the next one does not touch.
        uncovered = np.ones(len(end), dtype=np.bool_)
        uncovered[:-1] = end[:-1] < begin[1:]
        pieces = 1 + uncovered.astype(np.int8)
        after = np.cumsum(pieces)[uncovered] - 1
        start, label = np.repeat(begin, pieces), np.repeat(of_layer, pieces)
        start[after], label[after] = end[uncovered], len(layers)
        start, label = np.insert(start, 0, _BEFORE), np.insert(label, 0, len(layers))
        del begin, end, of_layer
        kind = np.array([*(layer.kind for layer in layers), Kind.IDLE], dtype=np.int8)[label]
        detail = np.array([*(layer.detail for layer in layers), rest], dtype=np.int8)[label]
        opens = np.concatenate(([True], (kind[1:] != kind[:-1]) | (detail[1:] != detail[:-1])))
        self._start, self._kind, self._detail = start[opens], kind[opens], detail[opens]

    def cut(self, begins: Times, ends: Times) -> Pieces:
        """The pieces of each ``[begin, end)``. An empty window has no piece."""
        first = np.searchsorted(self._start, begins, side="right") - 1
        last = np.where(ends > begins, np.searchsorted(self._start, ends, side="left"), first)
        edges = np.concatenate(([0], np.cumsum(last - first)))
        at = places_from(first, last - first)
        filled = last > first
        start = self._start[at]
        start[edges[:-1][filled]] = begins[filled]
        end = np.append(start[1:], 0) if len(start) else start
        end[edges[1:][filled] - 1] = ends[filled]
        kind, detail = self._kind[at], self._detail[at]
        return Pieces(Segments(start, end, kind, detail), edges)


def traced_steps(
    rank: int,
    windows: Sequence[Window],
    layers: Sequence[Layer],
    hidden: Intervals,
    optimizing: Intervals,
    calls: Iterable[Sequence[CollectiveCall]],
    fused: Intervals = EMPTY,
) -> list[RankStep]:
    """One exact account per window of a trace. ``layers`` are disjoint; ``hidden``: communication overlapped with
    compute; ``optimizing``: compute or idle of the optimizer; ``calls``: the collectives of each window; ``fused``:
    kernels that compute and communicate at once, part of compute."""
    numbers, begins, ends = np.array(windows, dtype=np.int64).reshape(-1, 3).T
    spent = (Covered(times).between(begins, ends).tolist() for times in (hidden, optimizing, fused))
    return [
        RankStep(
            rank=rank,
            step=step,
            begin_ns=begin,
            end_ns=end,
            source="trace",
            segments=segments,
            overlapped_comm_ns=hidden_ns,
            optimizer_ns=optimizing_ns,
            collectives=collectives,
            fused_ns=fused_ns,
        )
        for step, begin, end, segments, collectives, hidden_ns, optimizing_ns, fused_ns in zip(
            *(column.tolist() for column in (numbers, begins, ends)),
            Painted(layers).cut(begins, ends),
            calls,
            *spent,
            strict=True,
        )
    ]


def within(normal: Intervals, begin: int, end: int) -> Intervals:
    """The part of a normal set inside the window. O(log n + result), so thousands of windows cost no more than one."""
    first = int(np.searchsorted(normal[:, 1], begin, side="right"))
    last = int(np.searchsorted(normal[:, 0], end, side="left"))
    return clip(normal[first:last], begin, end) if last > first else EMPTY


def covers(normal: Intervals, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(normal):
        return np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(normal[:, 0], times, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (times < normal[np.maximum(at, 0), 1])
    return inside


# -- segments ----------------------------------------------------------------------------------------------------------
#
# Reads the consecutive pieces that a step of one rank is cut into.


def intervals_of(segments: Segments, kind: Kind) -> Intervals:
    """Where the step is of one kind; neighbours stay apart."""
    chosen = segments.kind == kind
    return np.stack((segments.start_ns[chosen], segments.end_ns[chosen]), axis=1)
