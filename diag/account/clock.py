"""One clock for all ranks, from the collectives themselves (science.md 2.4).

No rank leaves a synchronising collective before the last has entered it, so ``start_s + o_s <= end_r + o_r`` for the
true offsets o and every pair of its ranks. Over many collectives this bounds each difference ``o_s - o_r`` from both
sides; closing the bounds over all paths and taking the middle gives the offsets, and half the width their uncertainty.
Where the bounds of a long run contradict each other and constant rates of the clocks resolve it, the rates are taken
out first. Ranks that share a host's monotonic clock need none of this, unless their calls contradict it.

On a device the kernels of one collective also end at about the same time (four MI300s: within 11 us [measured]), so
that the median difference of the ends is an offset as well, and a far closer one where one rank always comes last: the
bounds then leave open as much as the others wait for it. It is taken where the ends agree with each other and with the
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from diag.model.steps import CollectiveCall

from . import drift
from .bounds import Bounds, Met, by_clock, clock_bounds, closure, least_within, meetings, reference
from .match import SYNCHRONISING, Key

# Ends of one collective on one host agree to half a millisecond, to six when cores are oversubscribed [measured].
# Ranks of one host whose calls contradict their common clock by more than this are on clocks of their own.
CONTRADICTION_NS = 20_000_000
_LEAST_ENDS = 4  # collectives of two clocks
_MOST_APART = 0.9  # of the ends are closer to their median than what is taken for the uncertainty


class Alignment(Struct, frozen=True):
    """``offset_ns[rank]`` is to be added to the rank's times, and so is ``rate[rank]`` times what its clock has gone
    since ``since_ns[rank]``. Ranks that no collective ties to the first are absent. ``uncertainty_ns``: the widest half
    width; 0 on one shared clock; None where fewer than two ranks could be tied."""

    offset_ns: Mapping[int, int]
    uncertainty_ns: int | None
    rate: Mapping[int, float] = field(default_factory=dict)  # 1e-6: one part in a million; empty: all clocks run alike
    since_ns: Mapping[int, int] = field(default_factory=dict)

    def on_common_clock(self, rank: int, times_ns: Bounds) -> Bounds:
        """Times of a tied rank, or of one that stays on its own clock, as the common clock shows them."""
        moved = times_ns + self.offset_ns.get(rank, 0)
        if rank in self.rate:
            moved += drift.gained(times_ns, self.rate[rank], self.since_ns[rank])
        return moved


def align(
    matched: Mapping[Key, Mapping[int, CollectiveCall]],
    domains: Mapping[int, str],
    shift_ns: Mapping[int, int] | None = None,
    on_device: bool = False,
) -> Alignment:
    """Offsets of all ranks against the lowest. ``domains``: ranks with equal values share a clock; ``shift_ns``: what
    is added to the times of each rank before they are compared; ``on_device``: whether the calls are kernels."""
    ranks = sorted(domains)
    if len(ranks) < 2:
        return Alignment(dict.fromkeys(ranks, 0), None)
    synchronising = [members for key, members in matched.items() if key[2] in SYNCHRONISING]
    met = meetings(ranks, synchronising, shift_ns or {})
    names = _honest_domains(ranks, domains, met)
    order = list(dict.fromkeys(names))
    if len(order) == 1:
        return Alignment(dict.fromkeys(ranks, 0), 0)
    of_rank = np.array([order.index(name) for name in names])
    closed, known = closure(*clock_bounds(met, of_rank))
    clocks = drift.fit(met, of_rank) if drift.contradict(closed, known) else None
    if clocks is not None:
        closed, known = closure(*clock_bounds(clocks.corrected(met), of_rank))
    tied = known[0] & known[:, 0]
    tied[0] = True
    offset, half = _middle(closed[np.ix_(tied, tied)])
    by_ends = _by_ends(met, of_rank, closed) if on_device and clocks is None and bool(tied.all()) else None
    if by_ends is not None and by_ends[1] < half:
        offset, half = by_ends
    of_domain = dict(zip(np.flatnonzero(tied).tolist(), offset.tolist(), strict=True))
    offsets = {rank: of_domain[d] for rank, d in zip(ranks, of_rank.tolist(), strict=True) if d in of_domain}
    if len(offsets) < 2:
        return Alignment(offsets, None)
    if clocks is None:
        return Alignment(offsets, half)
    rate, since = (
        {rank: column[i] for i, rank in enumerate(ranks) if rank in offsets}
        for column in (clocks.rate.tolist(), clocks.since_ns.tolist())
    )
    # A slope that is a little off moves the ends of the run by as much again as the offset may be.
    return Alignment(offsets, 2 * half, rate, since)


def _middle(closed: Bounds) -> tuple[Bounds, int]:
    """Offsets in the middle of all bounds, and the widest half width.

    Seen from domain r, the middle of what is left open for d is ``(closed[r, d] - closed[d, r]) / 2``. The mean of it
    over all r keeps every bound, too, and does not depend on how the ranks are numbered. Rounded are the differences to
    one domain that is chosen by the widths alone, so that a clock that is set differently changes nothing either.
    """
    count = len(closed)
    base = reference(closed)
    double = (closed - closed.T).sum(axis=0, dtype=object)  # times the count: beyond int64 for clocks decades apart
    offset = np.array([int(value - double[base]) // (2 * count) for value in double], dtype=np.int64)
    return offset - offset[0], int(np.abs(closed + closed.T).max()) // 2


def _by_ends(met: Sequence[Met], of_rank: Bounds, closed: Bounds) -> tuple[Bounds, int] | None:
    """Offsets by which the clocks show the ends of their collectives at the same time, and how far nearly all of them
    are from that; None where too few were seen, or where they break a bound."""
    count = len(closed)
    ends = np.zeros((len(met), count), dtype=np.int64)
    there = np.zeros((len(met), count), dtype=np.bool_)
    for i, (clocks, first_end, _) in enumerate(by_clock(of_rank, met)):
        ends[i, clocks], there[i, clocks] = first_end, True
    offset = np.zeros(count, dtype=np.int64)
    placed, apart = [reference(closed)], 0
    while len(placed) < count:
        # The clock next that shares most collectives with one that has its place already.
        shared = there[:, placed].astype(np.int64).T @ there.astype(np.int64)
        shared[:, placed] = -1
        base, clock = (int(i) for i in np.unravel_index(int(shared.argmax()), shared.shape))
        if shared[base, clock] < _LEAST_ENDS:
            return None
        both = there[:, placed[base]] & there[:, clock]
        behind = ends[both, placed[base]] + offset[placed[base]] - ends[both, clock]
        near = behind - behind[0]  # a median is a float, which has no nanoseconds for clocks decades apart
        middle = int(np.median(near))
        offset[clock] = behind[0] + middle
        apart = max(apart, int(np.quantile(np.abs(near - middle), _MOST_APART)))
        placed.append(clock)
    beyond = offset[None, :] - offset[:, None] - closed
    return (offset - offset[0], apart) if int(beyond.max()) <= apart + drift.NOISE_NS else None


def _honest_domains(ranks: Sequence[int], domains: Mapping[int, str], met: Sequence[Met]) -> list[str]:
    """The domains, with those taken apart whose ranks' calls contradict a common clock."""
    number = {name: i for i, name in enumerate(dict.fromkeys(domains[rank] for rank in ranks))}
    least = least_within(met, np.array([number[domains[rank]] for rank in ranks]))
    contradicted = {name for name, i in number.items() if least[i] < -CONTRADICTION_NS}
    return [f"{domains[rank]}#{rank}" if domains[rank] in contradicted else domains[rank] for rank in ranks]
