"""How far apart two clocks can be, as the collectives of their ranks bound it (science.md 2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diag.model import CollectiveCall

_UNBOUNDED = (1 << 62) - 1  # two clocks may be further apart than all of this century so far

Bounds = npt.NDArray[np.int64]
Known = npt.NDArray[np.bool_]


class Met(NamedTuple):
    """One synchronising collective: places of its ranks in the list of all, and when each entered and left it."""

    who: Bounds
    start_ns: Bounds
    end_ns: Bounds


def meetings(ranks: Sequence[int], collectives: Sequence[Mapping[int, CollectiveCall]]) -> list[Met]:
    """The collectives as arrays. ``ranks``: all of them, in the order of the places."""
    index = {rank: i for i, rank in enumerate(ranks)}
    return [
        Met(
            np.array([index[rank] for rank in members]),
            np.array([call.start_ns for call in members.values()], dtype=np.int64),
            np.array([call.end_ns for call in members.values()], dtype=np.int64),
        )
        for members in collectives
    ]


def rank_bounds(met: Sequence[Met], count: int) -> Bounds:
    """``bounds[r, s]``: the least end on r minus start on s seen, which ``o_s - o_r`` cannot exceed."""
    bounds = np.full((count, count), _UNBOUNDED, dtype=np.int64)
    for who, starts, ends in met:
        window = np.ix_(who, who)
        bounds[window] = np.minimum(bounds[window], ends[:, None] - starts[None, :])
    np.fill_diagonal(bounds, 0)
    return bounds


def fold(bounds: Bounds, of_rank: Bounds) -> tuple[Bounds, Known]:
    """The tightest bound between any ranks of two clocks, and whether there is one. ``of_rank``: the clock of each."""
    count = int(of_rank.max()) + 1
    folded = np.full((count, count), _UNBOUNDED, dtype=np.int64)
    np.minimum.at(folded, (of_rank[:, None], of_rank[None, :]), bounds)
    np.fill_diagonal(folded, 0)
    return folded, folded < _UNBOUNDED


def closure(bounds: Bounds, known: Known) -> tuple[Bounds, Known]:
    """Floyd and Warshall: bounds over every path."""
    closed, known = bounds.copy(), known.copy()
    for via in range(len(closed)):
        both = known[:, via, None] & known[None, via, :]
        through = np.where(both, closed[:, via, None] + closed[None, via, :], _UNBOUNDED)
        np.minimum(closed, through, out=closed)
        known |= both
    return closed, known


def reference(closed: Bounds) -> int:
    """The clock that the others are told against: chosen by the widths alone, so that neither the ranks' numbers nor
    where a clock is set change the choice."""
    width = closed + closed.T
    return min(range(len(closed)), key=lambda clock: (sorted(width[clock].tolist()), clock))
