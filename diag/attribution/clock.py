"""One clock for all ranks, from the collectives themselves (science.md 2.4).

No rank leaves a synchronising collective before the last has entered it, so ``start_s + o_s <= end_r + o_r`` for the
true offsets o and every pair of its ranks. Over many collectives this bounds each difference ``o_s - o_r`` from both
sides; closing the bounds over all paths and taking the middle gives the offsets, and half the width their uncertainty.
Ranks that share a host's monotonic clock need none of this, unless their calls contradict it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.attribution.match import SYNCHRONISING, Key
from diag.model import CollectiveCall

# Ends of one collective on one host agree to half a millisecond, to six when cores are oversubscribed [measured].
# Ranks of one host whose calls contradict their common clock by more than this are on clocks of their own.
CONTRADICTION_NS = 20_000_000
_UNBOUNDED = (1 << 62) - 1  # two clocks may be further apart than all of this century so far

Bounds = npt.NDArray[np.int64]
Known = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Alignment:
    """``offset_ns[rank]`` is to be added to the rank's times. Ranks that no collective ties to the first are absent.
    ``uncertainty_ns``: the widest half width; 0 on one shared clock; None where fewer than two ranks could be tied."""

    offset_ns: Mapping[int, int]
    uncertainty_ns: int | None


def align(matched: Mapping[Key, Mapping[int, CollectiveCall]], domains: Mapping[int, str]) -> Alignment:
    """Offsets of all ranks against the lowest. ``domains``: ranks with equal values share a clock."""
    ranks = sorted(domains)
    if len(ranks) < 2:
        return Alignment(dict.fromkeys(ranks, 0), None)
    bounds = _bounds(ranks, (members for key, members in matched.items() if key[2] in SYNCHRONISING))
    names = _honest_domains(ranks, domains, bounds)
    order = list(dict.fromkeys(names))
    if len(order) == 1:
        return Alignment(dict.fromkeys(ranks, 0), 0)
    of_rank = np.array([order.index(name) for name in names])
    closed, known = _closure(*_fold(bounds, of_rank, len(order)))
    tied = known[0] & known[:, 0]
    tied[0] = True
    offset, half = _middle(closed[np.ix_(tied, tied)])
    of_domain = dict(zip(np.flatnonzero(tied).tolist(), offset.tolist(), strict=True))
    offsets = {rank: of_domain[d] for rank, d in zip(ranks, of_rank.tolist(), strict=True) if d in of_domain}
    return Alignment(offsets, half if len(offsets) > 1 else None)


def _middle(closed: Bounds) -> tuple[Bounds, int]:
    """Offsets in the middle of all bounds, and the widest half width.

    Seen from domain r, the middle of what is left open for d is ``(closed[r, d] - closed[d, r]) / 2``. The mean of it
    over all r keeps every bound, too, and does not depend on how the ranks are numbered. Rounded are the differences to
    one domain that is chosen by the widths alone, so that a clock that is set differently changes nothing either.
    """
    count = len(closed)
    width = closed + closed.T
    reference = min(range(count), key=lambda domain: (sorted(width[domain].tolist()), domain))
    double = (closed - closed.T).sum(axis=0, dtype=object)  # times the count: beyond int64 for clocks decades apart
    offset = np.array([int(value - double[reference]) // (2 * count) for value in double], dtype=np.int64)
    return offset - offset[0], int(np.abs(width).max()) // 2


def _bounds(ranks: list[int], collectives: Iterable[Mapping[int, CollectiveCall]]) -> Bounds:
    """``bounds[r, s]``: the least end on r minus start on s seen, which ``o_s - o_r`` cannot exceed."""
    index = {rank: i for i, rank in enumerate(ranks)}
    bounds = np.full((len(ranks), len(ranks)), _UNBOUNDED, dtype=np.int64)
    for members in collectives:
        who = np.array([index[rank] for rank in members])
        starts = np.array([call.start_ns for call in members.values()], dtype=np.int64)
        ends = np.array([call.end_ns for call in members.values()], dtype=np.int64)
        window = np.ix_(who, who)
        bounds[window] = np.minimum(bounds[window], ends[:, None] - starts[None, :])
    np.fill_diagonal(bounds, 0)
    return bounds


def _honest_domains(ranks: list[int], domains: Mapping[int, str], bounds: Bounds) -> list[str]:
    """The domains, with those taken apart whose ranks' calls contradict a common clock."""
    names = [domains[rank] for rank in ranks]
    for domain in set(names):
        members = [i for i, name in enumerate(names) if name == domain]
        if bounds[np.ix_(members, members)].min() < -CONTRADICTION_NS:
            for i in members:
                names[i] = f"{domain}#{ranks[i]}"
    return names


def _fold(bounds: Bounds, of_rank: Bounds, count: int) -> tuple[Bounds, Known]:
    """The tightest bound between any ranks of two domains, and whether there is one."""
    folded = np.full((count, count), _UNBOUNDED, dtype=np.int64)
    np.minimum.at(folded, (of_rank[:, None], of_rank[None, :]), bounds)
    np.fill_diagonal(folded, 0)
    return folded, folded < _UNBOUNDED


def _closure(bounds: Bounds, known: Known) -> tuple[Bounds, Known]:
    """Floyd and Warshall: bounds over every path."""
    closed, known = bounds.copy(), known.copy()
    for via in range(len(closed)):
        both = known[:, via, None] & known[None, via, :]
        through = np.where(both, closed[:, via, None] + closed[None, via, :], _UNBOUNDED)
        np.minimum(closed, through, out=closed)
        known |= both
    return closed, known
