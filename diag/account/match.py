"""Matches the ranks' calls of one collective, and aligns their clocks by the matched collectives.

No rank leaves a synchronising collective before the last has entered it, so ``start_s + o_s <= end_r + o_r`` for the
true offsets o and every pair of its ranks. Over many collectives this bounds each difference ``o_s - o_r`` from both
sides; closing the bounds over all paths and taking the middle gives the offsets, and half the width their uncertainty.
Where the bounds of a long run contradict each other and constant rates of the clocks resolve it, the rates are taken
out first. Ranks that share a host's monotonic clock need none of this, unless their calls contradict it.

On a device the kernels of one collective also end at about the same time (four MI300s: within 11 us [measured]). So the
median difference of the ends is an offset, too. It is much closer if one rank always arrives last: then the bounds are
as wide as the others' waiting. It is used where the ends agree with each other and with the bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.account.policy import CLOCKS
from diag.collectors.records import SYNCHRONISING
from diag.model import UNKNOWN
from diag.model.matched import MatchedCollectives
from diag.model.ragged import entries_of
from diag.model.steps import CollectiveCall
from diag.rundir.columns import Bools

from .calls import Calls, Matched

SEND_RECV = "send_recv"  # a send and its receive as one transfer


def by_key(calls: Mapping[int, Sequence[CollectiveCall]]) -> Matched:
    """Collectives in which at least two ranks took part. A call that is listed twice counts once."""
    return Matched({rank: own if isinstance(own, Calls) else Calls.of(own) for rank, own in calls.items()})


def measure(matched: Matched) -> MatchedCollectives:
    """Wait, transfer and tail of all collectives, whose calls are on the common clock; in no step yet.

    For a send and its receive only the receiver's end counts, and only if a thread was blocked in it: otherwise the
    data had arrived some time before. The sender waits no longer than its own call lasts."""
    sizes, edges = matched.sizes, matched.edges
    by_rank = np.lexsort((matched.rank, np.repeat(np.arange(len(matched)), sizes)))
    ranks, starts, ends = (column[by_rank] for column in (matched.rank, matched.start_ns, matched.end_ns))
    sent = matched.sent[by_rank]
    arrival = matched.most(starts)
    last = matched.most(np.where(starts == np.repeat(arrival, sizes), ranks, -1))
    first_end = matched.least(ends)
    received = matched.pairs.repeat(sizes) & ~sent
    waited_ns = (matched.column("wait_end_ns") - matched.column("wait_start_ns"))[by_rank]
    blocked = (matched.column("wait_start_ns")[by_rank] == UNKNOWN) | (waited_ns >= CLOCKS.blocked_ns)
    done = matched.most(np.where(received, np.where(blocked, ends, np.repeat(arrival, sizes)), np.iinfo(np.int64).min))
    first_end = np.where(matched.pairs, done, first_end)
    at = np.repeat(arrival, sizes)
    of_bytes = matched.column("bytes")[by_rank]
    names: dict[str, int] = {}
    group, label = (
        np.array([names.setdefault(name, len(names)) for name in known], dtype=np.int32)[codes] if len(codes) else codes
        for known, codes in ((matched.group_names, matched.group), (matched.labels, matched.label))
    )
    op = np.zeros(len(matched), dtype=np.int32)
    groups: dict[tuple[int, int], int] = {}  # a list of a thousand ranks is the same object in all calls
    least: list[tuple[frozenset[int], int]] = []
    group_of_first = np.zeros(len(matched), dtype=np.int64)
    first, place = ranks[edges[:-1]], matched.place[by_rank][edges[:-1]]
    for rank in np.unique(first).tolist():
        calls, own = matched.calls[rank], first == rank
        op[own] = np.array([names.setdefault(name, len(names)) for name in calls.names], dtype=np.int32)[
            calls.op[place[own]]
        ]
        codes = []
        for each in calls.groups:
            known = id(each.ranks), each.size
            if known not in groups:
                groups[known] = len(groups)
                least.append((frozenset(each.ranks), each.size))
            codes.append(groups[known])
        group_of_first[own] = np.array(codes, dtype=np.int64)[calls.group[place[own]]]
    op[matched.pairs] = names.setdefault(SEND_RECV, len(names))
    found = MatchedCollectives(
        step=np.full(len(matched), -1),
        group=group,
        seq=matched.seq,
        label=label,
        op=op,
        bytes=of_bytes[edges[:-1]],
        last_arriver=last,
        arrival_ns=arrival,
        transfer_ns=np.maximum(0, first_end - arrival),
        complete=np.zeros(len(matched), dtype=np.bool_),
        inferred=matched.any_of(matched.column("inferred")),
        edges=edges,
        rank=ranks,
        wait_ns=np.where(sent, np.maximum(0, np.minimum(at, ends) - starts), at - starts),
        tail_ns=np.where(np.repeat(matched.pairs, sizes), 0, ends - np.repeat(first_end, sizes)),
        size=of_bytes,
        names=tuple(names),
    )
    # Of each group and those of its ranks that met, once: a group has thousands of collectives.
    pairs, of_pair = np.unique(group_of_first * max(1, len(found.teams)) + found.team, return_inverse=True)
    whole = [
        len(team) >= least[code][1] and least[code][0].issubset(team)
        for code, team in ((pair // len(found.teams), found.teams[pair % len(found.teams)]) for pair in pairs.tolist())
    ]
    return replace(found, complete=np.array(whole, dtype=np.bool_)[of_pair])


# -- bounds ------------------------------------------------------------------------------------------------------------
#
# How far apart two clocks can be: bounds from the collectives of their ranks (docs/concepts/clocks.md).

_UNBOUNDED = (1 << 62) - 1  # larger than any difference of two clocks set within this century

Bounds = npt.NDArray[np.int64]
Known = npt.NDArray[np.bool_]


class Met(NamedTuple):
    """Synchronising collectives: places of their members in the list of all ranks, and when each entered and left it.
    The members of collective c are ``edges[c]`` to ``edges[c + 1]``."""

    members: Bounds
    start_ns: Bounds
    end_ns: Bounds
    edges: Bounds

    @property
    def number(self) -> int:
        return len(self.edges) - 1

    @property
    def of_member(self) -> Bounds:
        """The collective of each member."""
        return np.repeat(np.arange(self.number), np.diff(self.edges))

    def only(self, which: Bounds) -> Met:
        """Some of the collectives."""
        at, edges = entries_of(self.edges, which)
        return Met(self.members[at], self.start_ns[at], self.end_ns[at], edges)


def meetings(ranks: Sequence[int], matched: Matched, members: Bools, shift_ns: Mapping[int, int]) -> Met:
    """Collectives as columns. ``ranks``: all of them, in the order of the places; ``members``: those that count, of
    each collective none or at least two; ``shift_ns``: added to each rank's times."""
    places = np.searchsorted(ranks, matched.rank)
    shift = np.array([shift_ns.get(rank, 0) for rank in ranks], dtype=np.int64)[places]
    kept = np.flatnonzero(members)
    start_ns, end_ns = matched.start_ns[kept] + shift[kept], matched.end_ns[kept] + shift[kept]
    return Met(places[kept], start_ns, end_ns, np.unique(np.searchsorted(kept, matched.edges)))


def clock_bounds(met: Met, of_rank: Bounds) -> tuple[Bounds, Known]:
    """``bounds[a, b]``: the least observed end on clock a minus start on clock b, which ``o_b - o_a`` cannot exceed;
    and whether there is one. ``of_rank``: the clock of each rank.

    Among the ranks of one clock in one collective only the first end and the last start matter. So a collective costs
    time by its ranks and by its pairs of clocks, not by its pairs of ranks. Collectives of the same clocks, as most
    are, are looked at together.
    """
    count = int(of_rank.max()) + 1
    bounds = np.full((count, count), _UNBOUNDED, dtype=np.int64)
    number, clock, first_end, last_start = by_clock(of_rank, met)
    edges = np.searchsorted(number, np.arange(met.number + 1)).tolist()
    alike: dict[bytes, list[int]] = defaultdict(list)
    for i, j in pairwise(edges):
        alike[clock[i:j].tobytes()].append(i)
    for text, begins in alike.items():
        clocks = np.frombuffer(text, dtype=clock.dtype)
        at = np.array(begins)[:, None] + np.arange(len(clocks))
        window = np.ix_(clocks, clocks)
        bounds[window] = np.minimum(bounds[window], least_between(first_end[at], last_start[at]))
    np.fill_diagonal(bounds, 0)
    return bounds, bounds < _UNBOUNDED


def least_between(ends_ns: Bounds, starts_ns: Bounds) -> Bounds:
    """For each two clocks, the least end on the first minus start on the second in one collective, [clocks, clocks].
    ``ends_ns``, ``starts_ns``: [collectives, clocks].

    Without the offsets of the clocks and the time since the first collective, the numbers are small: mostly 32 bits are
    enough for them, which takes a fourth of the time of 64."""
    clock_ns = starts_ns[0]
    elapsed_ns = starts_ns[:, :1] - clock_ns[0]
    ends, starts = ends_ns - elapsed_ns - clock_ns, starts_ns - elapsed_ns - clock_ns
    if max(int(np.abs(each).max()) for each in (ends, starts)) < 1 << 30:  # their differences fit 32 bits
        ends, starts = ends.astype(np.int32), starts.astype(np.int32)
    count = len(clock_ns)
    least = np.full((count, count), np.iinfo(ends.dtype).max, dtype=ends.dtype)
    together = max(1, CLOCKS.bounds_at_once // count)
    for first in range(0, len(ends), together):
        some_ends, some_starts = ends[first : first + together], starts[first : first + together]
        between = np.empty_like(some_starts)
        for place in range(count):
            np.subtract(some_ends[:, place, None], some_starts, out=between)
            np.minimum(least[place], between.min(axis=0), out=least[place])
    between_clocks: Bounds = least + (clock_ns[:, None] - clock_ns)
    return between_clocks


def least_within(met: Met, of_rank: Bounds) -> Bounds:
    """For each clock, the least end minus start of any two of its ranks in one collective. If negative, the calls of
    its ranks contradict each other."""
    least = np.full(int(of_rank.max()) + 1, _UNBOUNDED, dtype=np.int64)
    _, clock, first_end, last_start = by_clock(of_rank, met)
    np.minimum.at(least, clock, first_end - last_start)
    return least


def by_clock(of_rank: Bounds, met: Met) -> tuple[Bounds, Bounds, Bounds, Bounds]:
    """For each collective and each clock that took part in it: both, by their numbers, in this order, and the first end
    and the last start on it."""
    if not met.number:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none, none
    number, clock, start_ns, end_ns = met.of_member, of_rank[met.members], met.start_ns, met.end_ns
    place = number * len(of_rank) + clock
    if (place[1:] < place[:-1]).any():  # not where neighbours share a clock, as the ranks of a host do
        order = np.argsort(place, kind="stable")
        number, clock, start_ns, end_ns, place = (each[order] for each in (number, clock, start_ns, end_ns, place))
    first = np.flatnonzero(np.concatenate(([True], place[1:] != place[:-1])))
    first_end, last_start = np.minimum.reduceat(end_ns, first), np.maximum.reduceat(start_ns, first)
    return number[first], clock[first], first_end, last_start


def closure(bounds: Bounds, known: Known) -> tuple[Bounds, Known]:
    """Floyd-Warshall: bounds over every path. A clock costs time by the clocks that it is tied to: thousands that never
    met cost none. Among more than a thousand that are all tied, some paths are left out. The bounds stay valid but are
    wider: the cube of two thousand clocks took 20 s."""
    closed, known = bounds.copy(), known.copy()
    for via in range(len(closed)):
        if known.all():
            return _closed(closed, via), known
        before, behind = np.flatnonzero(known[:, via]), np.flatnonzero(known[via])
        if len(before) * len(behind) > 1:
            window = np.ix_(before, behind)
            closed[window] = np.minimum(closed[window], closed[before, via][:, None] + closed[via, behind][None, :])
            known[window] = True
    return closed, known


def _closed(bounds: Bounds, first: int) -> Bounds:
    """``closure`` where all clocks are tied to each other, from the clock ``first`` on.

    Relative to the middle of its interval each bound is a width, and a path is no shorter than the widths on it: it is
    looked at only where it may be narrower than the widest bound of its begin, and of its end. Where all ranks meet in
    the same collectives that is nowhere."""
    middle = (bounds[0] - bounds[:, 0]) // 2
    apart = middle[None, :] - middle[:, None]
    width = bounds - apart
    of_begin, of_end = width.max(axis=1), width.max(axis=0)
    for via in range(first, len(width)):
        if via * width.size > CLOCKS.most_sums_of_bounds:
            break
        into, out = width[:, via].copy(), width[via].copy()
        if out[via] == 0:  # a path that stays there is the bound itself
            into[via] = out[via] = _UNBOUNDED
        before, behind = np.flatnonzero(into + out.min() < of_begin), np.flatnonzero(into.min() + out < of_end)
        if len(before) and len(behind):
            window = np.ix_(before, behind)
            width[window] = np.minimum(width[window], into[before][:, None] + out[behind][None, :])
    closed: Bounds = width + apart
    return closed


def reference(closed: Bounds) -> int:
    """The reference clock, chosen by the widths alone, so that neither rank numbers nor clock settings change the
    choice."""
    widths = np.sort(closed + closed.T, axis=1)
    chosen = np.arange(len(closed))
    for column in widths.T:
        chosen = chosen[column[chosen] == column[chosen].min()]
        if len(chosen) == 1:
            break
    return int(chosen[0])


# -- drift -------------------------------------------------------------------------------------------------------------
#
# Clocks that run at different rates (docs/concepts/clocks.md).
#
# Two clocks whose rates differ by 20 parts per million move apart by a millisecond per minute: no offset fits a long
# run. Collectives bound the offset around their time from above and below; the rate is the slope of the straight line
# with the most room between these bounds. It is used only if no constant offset fits and the line does.

_FAR = 1e18

Real = npt.NDArray[np.float64]


class Clocks(Struct, frozen=True):
    """Time elapsed on a rank's clock since ``since_ns``, times ``rate``, is to be added to its times. By place."""

    rate: Real
    since_ns: Bounds

    def corrected(self, met: Met) -> Met:
        """The collectives on clocks of equal rate."""
        rate, since_ns = self.rate[met.members], self.since_ns[met.members]
        start_ns, end_ns = (at + gained(at, rate, since_ns) for at in (met.start_ns, met.end_ns))
        return met._replace(start_ns=start_ns, end_ns=end_ns)


def gained(times_ns: Bounds, rate: Real | float, since_ns: Bounds | int) -> Bounds:
    """The time that a clock of this rate has lost at each of these times."""
    short: Bounds = np.rint((times_ns - since_ns) * rate).astype(np.int64)
    return short


def contradict(closed: Bounds, known: Known) -> bool:
    """Whether no constant offsets satisfy these bounds. ``closed[r, s]``: the upper bound of ``o_s - o_r``."""
    return bool((closed + closed.T)[known & known.T].min() < -CLOCKS.noise_of_bounds_ns)


def fit(met: Met, of_rank: Bounds) -> Clocks | None:
    """The rates at which the clocks drift apart; None if constant rates do not resolve the contradiction. ``of_rank``:
    the clock of each rank."""
    count = len(of_rank)
    # The first collective of a clock is its origin.
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, met.members, met.start_ns)
    since = np.array([first[of_rank == clock].min() for clock in of_rank])
    # Elapsed time on the ranks' own clocks differs by no more than the rates searched for.
    elapsed = np.add.reduceat(met.start_ns - since[met.members], met.edges[:-1]) / np.diff(met.edges)
    parts = np.array_split(np.argsort(elapsed, kind="stable"), min(CLOCKS.windows, met.number))
    if len(parts) < CLOCKS.least_windows_for_a_rate:
        return None
    at = np.array([elapsed[part].mean() for part in parts])
    clocks = Clocks(np.zeros(count), since)
    for _ in range(CLOCKS.rounds):
        corrected = clocks.corrected(met)
        windows = [corrected.only(part) for part in parts]
        clocks = Clocks(clocks.rate + _rates(corrected, windows, at, of_rank)[of_rank], since)
    if np.abs(clocks.rate).max() > CLOCKS.largest_rate:
        return None
    left = closure(*clock_bounds(clocks.corrected(met), of_rank))
    return None if contradict(*left) else clocks


def _rates(met: Met, windows: Sequence[Met], at: Real, of_rank: Bounds) -> Real:
    """By clock: the rate against one of them for which the windows' bounds leave most room. ``met``: the collectives of
    all windows."""
    bounds = [closure(*clock_bounds(window, of_rank)) for window in windows]
    whole, known = closure(*clock_bounds(met, of_rank))
    both = known & known.T
    middle = np.where(both, (whole - whole.T) // 2, 0)
    above = np.stack([np.where(tied, (closed - middle).astype(np.float64), _FAR) for closed, tied in bounds])
    pairs = _steepest(above, at[:, None, None])
    # A mean over all others, as for the offsets, so that rank numbers do not change the result.
    mean = np.where(both, pairs, 0).sum(axis=0) / both.sum(axis=0)
    base = reference(whole)
    rates: Real = np.where(both[base], mean - mean[base], 0.0)
    return rates


def _steepest(above: Real, at: Real) -> Real:
    """For each pair of clocks the slope whose line has most room. ``above[w, r, s]``: the upper bound of ``o_s - o_r``
    in window w; ``at``: the window's time. Golden section: the room is concave in the slope."""

    def room(slope: Real) -> Real:
        upper: Real = (above - slope * at).min(axis=0)
        return upper + upper.T  # the lower bound is the upper one of the reversed pair

    ratio = (5**0.5 - 1) / 2
    shape = above.shape[1:]
    # Antisymmetric from the first step on: a slope of (r, s) is tried together with its negative for (s, r).
    sign = np.sign(np.subtract.outer(*(np.arange(shape[0]),) * 2)).astype(np.float64)
    low, high = np.full(shape, -CLOCKS.largest_rate), np.full(shape, CLOCKS.largest_rate)
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        lower, upper = room(sign * left), room(sign * right)
        # If one window bounds both sides, many slopes are equally good: both ends move in, so that rounding does not
        # choose between them, and neither rank of a pair is the first.
        rises, falls = lower <= upper + 1, upper <= lower + 1
        low, high = np.where(rises, left, low), np.where(falls, right, high)
    slopes: Real = sign * (low + high) / 2
    return slopes


class Alignment(Struct, frozen=True):
    """``offset_ns[rank]`` is to be added to the rank's times, and so is ``rate[rank]`` times the time elapsed on its
    clock since ``since_ns[rank]``. Ranks that no collective ties to the first are absent. ``uncertainty_ns``: the
    widest half width; 0 on one shared clock; None if fewer than two ranks could be tied."""

    offset_ns: Mapping[int, int]
    uncertainty_ns: int | None
    rate: Mapping[int, float] = field(default_factory=dict)  # 1e-6: one part per million; empty: equal rates
    since_ns: Mapping[int, int] = field(default_factory=dict)

    def on_common_clock(self, rank: int, times_ns: Bounds) -> Bounds:
        """Times of a tied rank, or of one that stays on its own clock, converted to the common clock."""
        moved = times_ns + self.offset_ns.get(rank, 0)
        if rank in self.rate:
            moved += gained(times_ns, self.rate[rank], self.since_ns[rank])
        return moved


def align(
    matched: Matched,
    domains: Mapping[int, str],
    shift_ns: Mapping[int, int] | None = None,
    on_device: bool = False,
    from_waits: bool = False,
) -> Alignment:
    """Offsets of all ranks against the lowest. ``domains``: ranks with equal values share a clock; ``shift_ns``: added
    to each rank's times before they are compared; ``on_device``: whether the calls are kernels, or (``from_waits``)
    ended when a device had waited for them: no later than the end of the wait, and exactly then if it waited."""
    ranks = sorted(domains)
    if len(ranks) < 2:
        return Alignment(dict.fromkeys(ranks, 0), None)
    synchronising = np.repeat(matched.labelled(*SYNCHRONISING), matched.sizes)
    met = meetings(ranks, matched, synchronising, shift_ns or {})
    names = _honest_domains(ranks, domains, met)
    order = list(dict.fromkeys(names))
    if len(order) == 1:
        return Alignment(dict.fromkeys(ranks, 0), 0)
    of_rank = np.array([order.index(name) for name in names])
    closed, known = closure(*clock_bounds(met, of_rank))
    clocks = fit(met, of_rank) if contradict(closed, known) else None
    if clocks is not None:
        closed, known = closure(*clock_bounds(clocks.corrected(met), of_rank))
    tied = known[0] & known[:, 0]
    tied[0] = True
    offset, half = _middle(closed[np.ix_(tied, tied)])
    ended = met
    if from_waits:  # the members that waited for the end of a collective observed it
        waited_from, waited_until = matched.column("wait_start_ns"), matched.column("wait_end_ns")
        observed = synchronising & (waited_from != UNKNOWN) & (waited_until - waited_from >= CLOCKS.blocked_ns)
        several = np.add.reduceat(observed.astype(np.int64), matched.edges[:-1]) > 1 if len(matched) else observed
        ended = meetings(ranks, matched, observed & np.repeat(several, matched.sizes), shift_ns or {})
    by_ends = _by_ends(ended, of_rank, closed) if on_device and clocks is None and bool(tied.all()) else None
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
    # A slope that is a little off moves the ends of the run by as much again as the offset may be off.
    return Alignment(offsets, 2 * half, rate, since)


def _middle(closed: Bounds) -> tuple[Bounds, int]:
    """Offsets in the middle of all bounds, and the widest half width.

    Seen from domain r, the middle of the interval left for d is ``(closed[r, d] - closed[d, r]) / 2``. The mean of it
    over all r keeps every bound, too, and does not depend on the numbering of the ranks. The differences to one domain
    are rounded; it is chosen by the widths alone, so that a clock that is set differently changes nothing either."""
    count = len(closed)
    base = reference(closed)
    double = (closed - closed.T).sum(axis=0, dtype=object)  # times the count: beyond int64 for clocks decades apart
    offset = np.array([int(value - double[base]) // (2 * count) for value in double], dtype=np.int64)
    return offset - offset[0], int(np.abs(closed + closed.T).max()) // 2


def _by_ends(met: Met, of_rank: Bounds, closed: Bounds) -> tuple[Bounds, int] | None:
    """Offsets for which the clocks show the ends of their collectives at the same time, and how far nearly all ends are
    from that; None if too few were observed, or if they violate a bound."""
    count = len(closed)
    ends = np.zeros((met.number, count), dtype=np.int64)
    there = np.zeros((met.number, count), dtype=np.bool_)
    number, clock_of, first_end, _ = by_clock(of_rank, met)
    ends[number, clock_of], there[number, clock_of] = first_end, True
    offset = np.zeros(count, dtype=np.int64)
    placed, apart = [reference(closed)], 0
    while len(placed) < count:
        # Next: the clock that shares most collectives with one that is placed already.
        shared = there[:, placed].astype(np.int64).T @ there.astype(np.int64)
        shared[:, placed] = -1
        base, clock = (int(i) for i in np.unravel_index(int(shared.argmax()), shared.shape))
        if shared[base, clock] < CLOCKS.least_common_ends:
            return None
        both = there[:, placed[base]] & there[:, clock]
        behind = ends[both, placed[base]] + offset[placed[base]] - ends[both, clock]
        near = behind - behind[0]  # a median is a float, which has no nanoseconds for clocks decades apart
        middle = int(np.median(near))
        offset[clock] = behind[0] + middle
        apart = max(apart, int(np.quantile(np.abs(near - middle), CLOCKS.contradicted_ends_share)))
        placed.append(clock)
    beyond = offset[None, :] - offset[:, None] - closed
    return (offset - offset[0], apart) if int(beyond.max()) <= apart + CLOCKS.noise_of_bounds_ns else None


def _honest_domains(ranks: Sequence[int], domains: Mapping[int, str], met: Met) -> list[str]:
    """The domains, split where ranks' calls contradict a common clock."""
    number = {name: i for i, name in enumerate(dict.fromkeys(domains[rank] for rank in ranks))}
    least = least_within(met, np.array([number[domains[rank]] for rank in ranks]))
    contradicted = {name for name, i in number.items() if least[i] < -CLOCKS.contradiction_ns}
    return [f"{domains[rank]}#{rank}" if domains[rank] in contradicted else domains[rank] for rank in ranks]
