"""Which range of a host thread encloses a moment: O(log n) per query, for all queries at once.

Kineto's ranges nest, but rounding to microseconds and ranges that one hook opens and another closes break strict
nesting. So nothing here relies on it: the enclosing range is the one that started last and is still open.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diag.deferred import pl

Times = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
NONE = -1


def enclosing(ranges: pl.DataFrame, at_ns: Times, thread: npt.NDArray[np.int64]) -> Rows:
    """For each moment on a thread, the row of ``ranges`` that is innermost there; -1 if none is open.

    ``ranges`` needs ts_ns, dur_ns and thread, sorted as by Trace.select. Threads below 0 are unknown.
    """
    innermost = np.full(len(at_ns), NONE, dtype=np.int64)
    asked = dict(by_value(thread))
    for number, rows, start, end in _threads(ranges):
        if (queries := asked.get(number)) is None:
            continue
        times = at_ns[queries]
        at = _last_open(end, np.searchsorted(start, times, side="right"), times)
        innermost[queries] = np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
    return innermost


def parents(ranges: pl.DataFrame) -> Rows:
    """For each range, the row of the innermost one around it on its thread; -1 for the outermost."""
    parent = np.full(len(ranges), NONE, dtype=np.int64)
    for _, rows, start, end in _threads(ranges):
        at = _last_open(end, np.arange(len(rows)), start)
        parent[rows] = np.where(at >= 0, rows[np.maximum(at, 0)], NONE)
    return parent


def own_time(ranges: pl.DataFrame, parent: Rows) -> Times:
    """Nanoseconds of each range outside of the ranges inside it. Sums to the union of a thread's nested ranges."""
    start = ranges["ts_ns"].to_numpy()
    end = start + ranges["dur_ns"].to_numpy()
    inner = np.flatnonzero(parent >= 0)
    inside = np.minimum(end[inner], end[parent[inner]]) - start[inner]
    covered = np.zeros(len(start), dtype=np.int64)
    np.add.at(covered, parent[inner], inside)
    own_ns: Times = np.maximum(0, end - start - covered)
    return own_ns


def depths(parent: Rows) -> Rows:
    depth = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    while len(inside := np.flatnonzero(ancestor >= 0)):  # twice as far up with each pass
        above = ancestor[inside]
        depth[inside] += depth[above]
        ancestor[inside] = ancestor[above]
    return depth


def by_value(values: Rows) -> Iterator[tuple[int, Rows]]:
    """Each distinct value, in order, and its rows."""
    order = np.argsort(values, kind="stable")
    distinct, first = np.unique(values[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, first[1:]), strict=False)


def _threads(ranges: pl.DataFrame) -> Iterator[tuple[int, Rows, Times, Times]]:
    """Per thread: its number, its rows, their starts (sorted) and ends."""
    start = ranges["ts_ns"].to_numpy()
    end = start + ranges["dur_ns"].to_numpy()
    for number, rows in by_value(ranges["thread"].to_numpy()):
        yield number, rows, start[rows], end[rows]


def _last_open(end: Times, before: Rows, at_ns: Times) -> Rows:
    """For each query, the largest i below ``before`` with ``end[i] > at_ns``; -1 for none.

    A tree of maxima over aligned blocks of 1, 2, 4, ... ends: climb until a block contains a later end, then descend.
    Measured: 500,000 queries to 1.4 million ranges in 0.25 s.
    """
    levels = _maxima(end)
    last = np.full(len(before), NONE, dtype=np.int64)
    level_of = np.zeros(len(before), dtype=np.int64)
    open_, reach = np.flatnonzero(before > 0), before[before > 0].astype(np.int64)
    for level, highest in enumerate(levels):  # climb: `reach` blocks of this level are still to be searched
        odd = (reach & 1).astype(np.bool_)
        hit = odd & (highest[np.maximum(reach - 1, 0)] > at_ns[open_])
        last[open_[hit]], level_of[open_[hit]] = reach[hit] - 1, level
        left = ~hit & (reach > 1)
        open_, reach = open_[left], reach[left] >> 1
        if not len(open_):
            break
    for level in range(len(levels) - 2, -1, -1):
        down = np.flatnonzero(level_of > level)
        right = 2 * last[down] + 1
        last[down] = np.where(levels[level][right] > at_ns[down], right, right - 1)
        level_of[down] = level
    return last


def _maxima(end: Times) -> list[Times]:
    """Levels of the tree, the ends themselves first. Every level but the last has an even length."""
    levels = [end]
    while len(levels[-1]) > 1:
        last = levels[-1]
        if len(last) % 2:
            last = levels[-1] = np.append(last, np.iinfo(np.int64).min)
        levels.append(np.maximum(last[0::2], last[1::2]))
    return levels
