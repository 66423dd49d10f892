"""How long the others stood still for a late rank, for all ranks of a collective at once.

Mostly everybody stands still from when it came until the last one has come. Then the wait for a rank grows with how
early the others were, so that the median of the waits is that of the one in the middle: in the order of arrival, and
not from every pair of ranks. Only ranks that came after somebody had left already are compared pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .intervals import CoveredOfMany, Intervals, Times

_PAIRS = 1 << 22  # at a time: 32 MB an array


class Standing:
    """``sets``: of each rank, by row, when it did nothing but wait for collectives."""

    def __init__(self, sets: Sequence[Intervals]) -> None:
        self._covered = CoveredOfMany(sets)

    def usual(
        self, rows: Times, idle_ns: Times, ready_ns: Times, asked: Times, counted_ns: Times, least_ns: int
    ) -> Times:
        """For each of the members that are ``asked`` about (by place), how long the others stood still until it was
        ready, while it did not: the median over the others. ``rows``, ``idle_ns``, ``ready_ns``: of all members;
        ``counted_ns``: since when it counts, for each that is asked about. What is below ``least_ns`` may be less."""
        until = self._covered.stretch_end(rows, idle_ns)
        found = self._while_all_stand(rows, idle_ns, ready_ns, asked, counted_ns)
        first, second = np.partition(until, 1)[:2].tolist()
        left_before = ready_ns[asked] > np.where(until[asked] == first, second, first)  # somebody else
        pairs = np.flatnonzero(left_before & (found > least_ns))  # standing in part is less than standing throughout
        if len(pairs):
            for some in np.array_split(pairs, 1 + len(pairs) * len(rows) // _PAIRS):
                found[some] = self._by_pairs(rows, idle_ns, ready_ns, asked[some], counted_ns[some], until)
        return found

    def _while_all_stand(self, rows: Times, idle_ns: Times, ready_ns: Times, asked: Times, counted_ns: Times) -> Times:
        """The same where everybody stands still from ``idle_ns`` until the rank is ready."""
        order = np.argsort(idle_ns, kind="stable")
        place = np.empty(len(rows), dtype=np.int64)
        place[order] = np.arange(len(rows))
        others = len(rows) - 1
        middle = np.array([[(others - 1) // 2], [others // 2]])
        middle = middle + (middle >= place[asked])  # without the rank itself
        since = np.maximum(idle_ns[order][middle], counted_ns)
        stood = np.maximum(ready_ns[asked] - since, 0)
        found: Times = (stood - self._covered.between(rows[asked], since, ready_ns[asked])).sum(axis=0) // 2
        return found

    def _by_pairs(
        self, rows: Times, idle_ns: Times, ready_ns: Times, asked: Times, counted_ns: Times, until: Times
    ) -> Times:
        """The same for ranks that came when some of the others stood still no longer, or not yet. ``until``: the end of
        the stretch in which each came."""
        times = ready_ns[asked]
        since = np.maximum(idle_ns[:, None], counted_ns)
        stood = np.maximum(np.minimum(until[:, None], times) - since, 0)
        at, of = np.nonzero(self._covered.next_begin(rows, until)[:, None] < times)  # it stood still once more
        stood[at, of] = self._covered.between(rows[at], since[at, of], times[of])
        itself = self._covered.between(rows[asked], since.min(axis=0), times) > 0
        stood[:, itself] -= self._covered.between(rows[asked[itself]], since[:, itself], times[itself])
        stood[asked, np.arange(len(asked))] = np.iinfo(np.int64).min  # itself: it comes before the others
        others = len(rows) - 1
        low, high = 1 + (others - 1) // 2, 1 + others // 2
        stood.partition((low, high), axis=0)
        found: Times = (stood[low] + stood[high]) // 2
        return found
