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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.account.policy import CLOCKS
from diag.collectors.records import RECV, SEND
from diag.model.steps import CollectiveCall, MatchedCollective

# No rank leaves one of these before all have entered it. A broadcast's root may leave at once.
ALL_TO_ALL = "all_to_all"
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", ALL_TO_ALL, "barrier"})

SEND_RECV = "send_recv"  # a send and its receive as one transfer
_PAIR = {SEND, RECV}

Calls = Mapping[int, Sequence[CollectiveCall]]  # rank: its calls
Key = tuple[str, int, str]


def by_key(calls: Calls) -> dict[Key, dict[int, CollectiveCall]]:
    """Collectives in which at least two ranks took part: key, then rank. A call that is listed twice counts once."""
    collectives: dict[Key, dict[int, CollectiveCall]] = {}
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            collectives.setdefault(call.key, {}).setdefault(rank, call)
    return {key: members for key, members in collectives.items() if len(members) > 1}


def is_pair(calls: Iterable[CollectiveCall]) -> bool:
    """Whether these are a send and its receive: the receiver waits for the sender, hardly ever the reverse."""
    ops = set()
    for call in calls:
        if call.op not in _PAIR:
            return False
        ops.add(call.op)
    return ops == _PAIR


def is_handed_over(calls: Iterable[CollectiveCall]) -> bool:
    """Whether these are a send and its receive, and no thread was blocked in the send."""
    pair = list(calls)
    return is_pair(pair) and all(call.waited_ns is None for call in pair if call.op == SEND)


def measure(members: Mapping[Key, Mapping[int, CollectiveCall]]) -> dict[Key, MatchedCollective]:
    """Wait, transfer and tail of collectives whose calls are on the common clock; in no step yet.

    For a send and its receive only the receiver's end counts, and only if a thread was blocked in it: otherwise the
    data had arrived some time before. The sender waits no longer than its own call lasts."""
    ordered = {key: dict(sorted(calls.items())) for key, calls in members.items()}
    every = [call for calls in ordered.values() for call in calls.values()]
    if not every:
        return {}
    sizes = np.array([len(calls) for calls in ordered.values()])
    edges = np.concatenate(([0], np.cumsum(sizes)))
    starts, ends = (np.array([getattr(call, key) for call in every], dtype=np.int64) for key in ("start_ns", "end_ns"))
    ranks = np.array([rank for calls in ordered.values() for rank in calls], dtype=np.int64)
    arrival = np.maximum.reduceat(starts, edges[:-1])
    last = np.maximum.reduceat(np.where(starts == np.repeat(arrival, sizes), ranks, -1), edges[:-1])
    first_end = np.minimum.reduceat(ends, edges[:-1])
    whole: dict[tuple[int, tuple[int, ...]], bool] = {}
    measured = {}
    columns = zip(
        ordered.items(), pairwise(edges.tolist()), *(each.tolist() for each in (arrival, last, first_end)), strict=True
    )
    for (key, calls), (i, j), arrival_ns, last_arriver, first_end_ns in columns:
        first, members_of = next(iter(calls.values())), tuple(calls)
        pair = is_pair(calls.values())
        ends_ns, waits_ns = ends[i:j], arrival_ns - starts[i:j]
        if pair:
            received = next(call for call in calls.values() if call.op == RECV)
            blocked = received.waited_ns is None or received.waited_ns[1] - received.waited_ns[0] >= CLOCKS.blocked_ns
            first_end_ns = received.end_ns if blocked else arrival_ns
            ends_ns = np.full(j - i, first_end_ns)
        if first.op in _PAIR:
            sent = np.array([call.op == SEND for call in calls.values()])
            waits_ns = np.where(sent, np.maximum(0, np.minimum(arrival_ns, ends[i:j]) - starts[i:j]), waits_ns)
        known = id(first.group_ranks), members_of
        if known not in whole:  # a group has thousands of collectives
            whole[known] = set(members_of) >= set(first.group_ranks)
        measured[key] = MatchedCollective(
            step=-1,
            key=key,
            op=SEND_RECV if pair else first.op,
            bytes=first.bytes,
            ranks=members_of,
            last_arriver=last_arriver,
            arrival_ns=arrival_ns,
            transfer_ns=max(0, first_end_ns - arrival_ns),
            wait_ns=tuple(waits_ns.tolist()),
            tail_ns=tuple((ends_ns - first_end_ns).tolist()),
            complete=whole[known] and len(members_of) >= first.group_size,
            inferred=any(call.inferred for call in calls.values()),
            sizes=tuple(call.bytes for call in calls.values()),
        )
    return measured


# -- clocks ------------------------------------------------------------------------------------------------------------


# -- bounds ------------------------------------------------------------------------------------------------------------
#
# How far apart two clocks can be: bounds from the collectives of their ranks (docs/concepts/clocks.md).

_UNBOUNDED = (1 << 62) - 1  # larger than any difference of two clocks set within this century

Bounds = npt.NDArray[np.int64]
Known = npt.NDArray[np.bool_]


class Met(NamedTuple):
    """One synchronising collective: places of its ranks in the list of all ranks, and when each entered and left it."""

    members: Bounds
    start_ns: Bounds
    end_ns: Bounds


def meetings(
    ranks: Sequence[int], collectives: Sequence[Mapping[int, CollectiveCall]], shift_ns: Mapping[int, int]
) -> list[Met]:
    """The collectives as arrays. ``ranks``: all of them, in the order of the places; ``shift_ns``: added to each rank's
    times."""
    index = {rank: i for i, rank in enumerate(ranks)}
    shift = np.array([shift_ns.get(rank, 0) for rank in ranks], dtype=np.int64)
    met = []
    for members in collectives:
        members_at = np.array([index[rank] for rank in members])
        times = ([getattr(call, key) for call in members.values()] for key in ("start_ns", "end_ns"))
        met.append(Met(members_at, *(np.array(time_ns, dtype=np.int64) + shift[members_at] for time_ns in times)))
    return met


def clock_bounds(met: Iterable[Met], of_rank: Bounds) -> tuple[Bounds, Known]:
    """``bounds[a, b]``: the least observed end on clock a minus start on clock b, which ``o_b - o_a`` cannot exceed;
    and whether there is one. ``of_rank``: the clock of each rank.

    Among the ranks of one clock in one collective only the first end and the last start matter. So a collective costs
    time by its ranks and by its pairs of clocks, not by its pairs of ranks.
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
    """For each clock, the least end minus start of any two of its ranks in one collective. If negative, the calls of
    its ranks contradict each other."""
    least = np.full(int(of_rank.max()) + 1, _UNBOUNDED, dtype=np.int64)
    for clocks, first_end, last_start in by_clock(of_rank, met):
        least[clocks] = np.minimum(least[clocks], first_end - last_start)
    return least


def by_clock(of_rank: Bounds, met: Iterable[Met]) -> Iterator[tuple[Bounds, Bounds, Bounds]]:
    """For each collective, the clocks that took part, and the first end and the last start on each."""
    for members, starts, ends in met:
        of_member = of_rank[members]
        order = np.argsort(of_member, kind="stable")
        clocks = of_member[order]
        first = np.flatnonzero(np.concatenate(([True], clocks[1:] != clocks[:-1])))
        yield clocks[first], np.minimum.reduceat(ends[order], first), np.maximum.reduceat(starts[order], first)


def closure(bounds: Bounds, known: Known) -> tuple[Bounds, Known]:
    """Floyd-Warshall: bounds over every path. A clock costs time by the clocks that it is tied to: thousands that never
    met cost none. Among more than a thousand that are all tied, some paths are left out. The bounds stay valid but are
    wider: the cube of two thousand clocks took 20 s."""
    closed, known = bounds.copy(), known.copy()
    for via in range(len(closed)):
        if via * closed.size > CLOCKS.most_sums_of_bounds and known.all():
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
    """The reference clock, chosen by the widths alone, so that neither rank numbers nor clock settings change the
    choice."""
    width = closed + closed.T
    return min(range(len(closed)), key=lambda clock: (sorted(width[clock].tolist()), clock))


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

    def corrected(self, met: Sequence[Met]) -> list[Met]:
        """The collectives on clocks of equal rate."""
        return [
            Met(members, *(at + gained(at, self.rate[members], self.since_ns[members]) for at in (starts, ends)))
            for members, starts, ends in met
        ]


def gained(times_ns: Bounds, rate: Real | float, since_ns: Bounds | int) -> Bounds:
    """The time that a clock of this rate has lost at each of these times."""
    short: Bounds = np.rint((times_ns - since_ns) * rate).astype(np.int64)
    return short


def contradict(closed: Bounds, known: Known) -> bool:
    """Whether no constant offsets satisfy these bounds. ``closed[r, s]``: the upper bound of ``o_s - o_r``."""
    return bool((closed + closed.T)[known & known.T].min() < -CLOCKS.noise_of_bounds_ns)


def fit(met: Sequence[Met], of_rank: Bounds) -> Clocks | None:
    """The rates at which the clocks drift apart; None if constant rates do not resolve the contradiction. ``of_rank``:
    the clock of each rank."""
    count = len(of_rank)
    # The first collective of a clock is its origin.
    first = np.full(count, np.iinfo(np.int64).max)
    for members, starts, _ in met:
        first[members] = np.minimum(first[members], starts)
    since = np.array([first[of_rank == clock].min() for clock in of_rank])
    # Elapsed time on the ranks' own clocks differs by no more than the rates searched for.
    elapsed = np.array([float(np.mean(starts - since[members])) for members, starts, _ in met])
    parts = np.array_split(np.argsort(elapsed, kind="stable"), min(CLOCKS.windows, len(met)))
    if len(parts) < CLOCKS.least_windows_for_a_rate:
        return None
    at = np.array([elapsed[part].mean() for part in parts])
    clocks = Clocks(np.zeros(count), since)
    for _ in range(CLOCKS.rounds):
        corrected = clocks.corrected(met)
        windows = [[corrected[i] for i in part] for part in parts]
        clocks = Clocks(clocks.rate + _rates(windows, at, of_rank)[of_rank], since)
    if np.abs(clocks.rate).max() > CLOCKS.largest_rate:
        return None
    left = closure(*clock_bounds(clocks.corrected(met), of_rank))
    return None if contradict(*left) else clocks


def _rates(windows: Sequence[Sequence[Met]], at: Real, of_rank: Bounds) -> Real:
    """By clock: the rate against one of them for which the windows' bounds leave most room."""
    bounds = [closure(*clock_bounds(window, of_rank)) for window in windows]
    whole, known = closure(*clock_bounds([met for window in windows for met in window], of_rank))
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
    matched: Mapping[Key, Mapping[int, CollectiveCall]],
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
    synchronising = [members for key, members in matched.items() if key[2] in SYNCHRONISING]
    met = meetings(ranks, synchronising, shift_ns or {})
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
    if from_waits:
        waited = [waiting_members for members in synchronising if len(waiting_members := _waited_for(members)) > 1]
    ended = meetings(ranks, waited, shift_ns or {}) if from_waits else met
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


def _waited_for(members: Mapping[int, CollectiveCall]) -> dict[int, CollectiveCall]:
    """The members that waited for the end of a collective: they observed it."""
    return {
        rank: call
        for rank, call in members.items()
        if call.waited_ns is not None and call.waited_ns[1] - call.waited_ns[0] >= CLOCKS.blocked_ns
    }


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


def _by_ends(met: Sequence[Met], of_rank: Bounds, closed: Bounds) -> tuple[Bounds, int] | None:
    """Offsets for which the clocks show the ends of their collectives at the same time, and how far nearly all ends are
    from that; None if too few were observed, or if they violate a bound."""
    count = len(closed)
    ends = np.zeros((len(met), count), dtype=np.int64)
    there = np.zeros((len(met), count), dtype=np.bool_)
    for i, (clocks, first_end, _) in enumerate(by_clock(of_rank, met)):
        ends[i, clocks], there[i, clocks] = first_end, True
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


def _honest_domains(ranks: Sequence[int], domains: Mapping[int, str], met: Sequence[Met]) -> list[str]:
    """The domains, split where ranks' calls contradict a common clock."""
    number = {name: i for i, name in enumerate(dict.fromkeys(domains[rank] for rank in ranks))}
    least = least_within(met, np.array([number[domains[rank]] for rank in ranks]))
    contradicted = {name for name, i in number.items() if least[i] < -CLOCKS.contradiction_ns}
    return [f"{domains[rank]}#{rank}" if domains[rank] in contradicted else domains[rank] for rank in ranks]
