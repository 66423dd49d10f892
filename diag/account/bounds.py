"""How far apart two clocks can be, as the collectives of their ranks bound it (science.md 2.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diag.model.steps import CollectiveCall

_UNBOUNDED = (1 << 62) - 1  # two clocks may be further apart than all of this century so far
_MOST_SUMS = 1 << 30  # of two bounds, once every clock is tied to every other

Bounds = npt.NDArray[np.int64]
Known = npt.NDArray[np.bool_]


class Met(NamedTuple):
    """One synchronising collective: places of its ranks in the list of all, and when each entered and left it."""

    who: Bounds
    start_ns: Bounds
    end_ns: Bounds


def meetings(
    ranks: Sequence[int], collectives: Sequence[Mapping[int, CollectiveCall]], shift_ns: Mapping[int, int]
) -> list[Met]:
    """The collectives as arrays. ``ranks``: all of them, in the order of the places; ``shift_ns``: what is added to
    the times of each."""
    index = {rank: i for i, rank in enumerate(ranks)}
    shift = np.array([shift_ns.get(rank, 0) for rank in ranks], dtype=np.int64)
    found = []
    for members in collectives:
        who = np.array([index[rank] for rank in members])
        times = ([getattr(call, key) for call in members.values()] for key in ("start_ns", "end_ns"))
        found.append(Met(who, *(np.array(own, dtype=np.int64) + shift[who] for own in times)))
    return found


def clock_bounds(met: Iterable[Met], of_rank: Bounds) -> tuple[Bounds, Known]:
    """``bounds[a, b]``: the least end on clock a minus start on clock b seen, which ``o_b - o_a`` cannot exceed; and
    whether there is one. ``of_rank``: the clock of each rank.

    Of the ranks of one clock in one collective only the first end and the last start bound anything, so that a
    collective takes time by its ranks, and by the pairs of clocks in it, not by the pairs of ranks.
    """
    count = int(of_rank.max()) + 1
    bounds = np.full((count, count), _UNBOUNDED, dtype=np.int64)
    for clocks, first_end, last_start in by_clock(of_rank, met):
        between = first_end[:, None] - last_start[None, :]
        if len(clocks) == count:
            np.minimum(bounds, between, out=bounds)
        else:
            window = np.ix_(clocks, clocks)
            bounds[window] = np.minimum(bounds[window], between)
    np.fill_diagonal(bounds, 0)
    return bounds, bounds < _UNBOUNDED


def least_within(met: Iterable[Met], of_rank: Bounds) -> Bounds:
    """Of each clock: the least end minus start of any two of its ranks in one collective. Below 0, its ranks' calls
    contradict each other."""
    least = np.full(int(of_rank.max()) + 1, _UNBOUNDED, dtype=np.int64)
    for clocks, first_end, last_start in by_clock(of_rank, met):
        least[clocks] = np.minimum(least[clocks], first_end - last_start)
    return least


def by_clock(of_rank: Bounds, met: Iterable[Met]) -> Iterator[tuple[Bounds, Bounds, Bounds]]:
    """Of each collective: the clocks that took part, and of each the first end and the last start."""
    for who, starts, ends in met:
        of_member = of_rank[who]
        order = np.argsort(of_member, kind="stable")
        clocks = of_member[order]
        first = np.flatnonzero(np.concatenate(([True], clocks[1:] != clocks[:-1])))
        yield clocks[first], np.minimum.reduceat(ends[order], first), np.maximum.reduceat(starts[order], first)


def closure(bounds: Bounds, known: Known) -> tuple[Bounds, Known]:
    """Floyd and Warshall: bounds over every path. A clock takes time by the clocks that it is tied to: thousands that
    have never met take none. Of more than a thousand that are all tied, paths through some are left out, which leaves
    the bounds true and wider: with the cube of two thousand clocks it took 20 s."""
    closed, known = bounds.copy(), known.copy()
    for via in range(len(closed)):
        if via * closed.size > _MOST_SUMS and known.all():
            break
        before, behind = np.flatnonzero(known[:, via]), np.flatnonzero(known[via])
        through = closed[before, via][:, None] + closed[via, behind][None, :]
        if through.size == closed.size:
            np.minimum(closed, through, out=closed)
            known[:] = True
        elif through.size > 1:
            window = np.ix_(before, behind)
            closed[window] = np.minimum(closed[window], through)
            known[window] = True
    return closed, known


def reference(closed: Bounds) -> int:
    """The clock that the others are told against: chosen by the widths alone, so that neither the ranks' numbers nor
    where a clock is set change the choice."""
    width = closed + closed.T
    return min(range(len(closed)), key=lambda clock: (sorted(width[clock].tolist()), clock))
