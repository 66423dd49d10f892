"""Clocks that run at different rates (science.md 2.4).

Two clocks that differ by 20 parts in a million are a millisecond further apart after every minute: no offset fits a
long run. What one can be at a time is bounded by the collectives around it, above and below; the rate is that of the
straight line with the most room between these bounds. It is taken only where no constant offset fits and the line does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from .bounds import Bounds, Known, Met, clock_bounds, closure, reference

# Bounds that contradict each other by less are two readings of two clocks, not a rate.
NOISE_NS = 50_000
MAX_RATE = 500e-6  # an undisciplined quartz is off by 20 to 100 parts in a million; beyond this it is something else
_WINDOWS = 64
_MIN_WINDOWS = 3  # two leave every line open
_ROUNDS = 2  # within a window the bounds move, too; after one round they hardly do
_FAR = 1e18

Real = npt.NDArray[np.float64]


class Clocks(Struct, frozen=True):
    """``rate`` times what has passed on a rank's clock since ``since_ns`` is to be added to its times. By place."""

    rate: Real
    since_ns: Bounds

    def corrected(self, met: Sequence[Met]) -> list[Met]:
        """The collectives on clocks that all run alike."""
        return [
            Met(who, *(at + gained(at, self.rate[who], self.since_ns[who]) for at in (starts, ends)))
            for who, starts, ends in met
        ]


def gained(times_ns: Bounds, rate: Real | float, since_ns: Bounds | int) -> Bounds:
    """What a clock of this rate is short of, at each of these times."""
    short: Bounds = np.rint((times_ns - since_ns) * rate).astype(np.int64)
    return short


def contradict(closed: Bounds, known: Known) -> bool:
    """Whether no constant offsets keep these bounds. ``closed[r, s]``: what ``o_s - o_r`` cannot exceed."""
    return bool((closed + closed.T)[known & known.T].min() < -NOISE_NS)


def fit(met: Sequence[Met], of_rank: Bounds) -> Clocks | None:
    """The rates at which the clocks drift apart; None where constant rates do not resolve what contradicts a constant
    offset. ``of_rank``: the clock of each rank."""
    count = len(of_rank)
    # The first collective of a clock is its origin.
    first = np.full(count, np.iinfo(np.int64).max)
    for who, starts, _ in met:
        first[who] = np.minimum(first[who], starts)
    since = np.array([first[of_rank == clock].min() for clock in of_rank])
    # What has passed on the ranks' own clocks differs by no more than the rates that are looked for.
    elapsed = np.array([float(np.mean(starts - since[who])) for who, starts, _ in met])
    parts = np.array_split(np.argsort(elapsed, kind="stable"), min(_WINDOWS, len(met)))
    if len(parts) < _MIN_WINDOWS:
        return None
    at = np.array([elapsed[part].mean() for part in parts])
    clocks = Clocks(np.zeros(count), since)
    for _ in range(_ROUNDS):
        corrected = clocks.corrected(met)
        windows = [[corrected[i] for i in part] for part in parts]
        clocks = Clocks(clocks.rate + _rates(windows, at, of_rank)[of_rank], since)
    if np.abs(clocks.rate).max() > MAX_RATE:
        return None
    left = closure(*clock_bounds(clocks.corrected(met), of_rank))
    return None if contradict(*left) else clocks


def _rates(windows: Sequence[Sequence[Met]], at: Real, of_rank: Bounds) -> Real:
    """By clock: the rate against one of them, in which the bounds of the windows leave most room."""
    bounds = [closure(*clock_bounds(window, of_rank)) for window in windows]
    whole, known = closure(*clock_bounds([met for window in windows for met in window], of_rank))
    both = known & known.T
    middle = np.where(both, (whole - whole.T) // 2, 0)
    above = np.stack([np.where(tied, (closed - middle).astype(np.float64), _FAR) for closed, tied in bounds])
    pairs = _steepest(above, at[:, None, None])
    # A mean over all others, as for the offsets, so that the numbers of the ranks change nothing.
    mean = np.where(both, pairs, 0).sum(axis=0) / both.sum(axis=0)
    base = reference(whole)
    rates: Real = np.where(both[base], mean - mean[base], 0.0)
    return rates


def _steepest(above: Real, at: Real) -> Real:
    """For each pair of clocks the slope whose line has most room. ``above[w, r, s]``: what ``o_s - o_r`` cannot exceed
    in window w; ``at``: when that is. Golden section: the room is concave in the slope."""

    def room(slope: Real) -> Real:
        upper: Real = (above - slope * at).min(axis=0)
        return upper + upper.T  # the bound from below is the one from above of the reversed pair

    ratio = (5**0.5 - 1) / 2
    shape = above.shape[1:]
    # Antisymmetric from the first step on: a slope of (r, s) is tried together with its negative for (s, r).
    sign = np.sign(np.subtract.outer(*(np.arange(shape[0]),) * 2)).astype(np.float64)
    low, high = np.full(shape, -MAX_RATE), np.full(shape, MAX_RATE)
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        lower, upper = room(sign * left), room(sign * right)
        # Where one window bounds both sides many slopes are equally good: both ends come in, so that rounding does not
        # choose between them, and neither rank of a pair is the first.
        rises, falls = lower <= upper + 1, upper <= lower + 1
        low, high = np.where(rises, left, low), np.where(falls, right, high)
    slopes: Real = sign * (low + high) / 2
    return slopes
