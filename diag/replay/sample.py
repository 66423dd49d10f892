"""Which steps of a long run are replayed, and what is true of the whole run according to them.

How long a step takes is known of all steps. So the replayed ones are chosen by it, and what they show is moved to the
mean of the run by a regression on it (Cochran, Sampling Techniques, chapter 7): what steps gain that are a tenth of the
sample and a twentieth of the run counts half.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct

from diag.model.accounts import StepAccounts
from diag.model.parts import Ints
from diag.replay.policy import REPLAY

from .program import Durations, Series


def chosen(steps: StepAccounts, known: Collection[int], ranks: int) -> StepAccounts:
    """The steps that are replayed: those whose pieces are ``known``; of many, some stretches of consecutive ones, of
    which the shortest to the longest steps are as frequent as in all of them."""
    steps = steps.take(np.isin(steps.step, list(known)))
    most = max(1, min(REPLAY.most_replayed_steps, REPLAY.most_replayed_rank_steps // max(1, ranks)))
    if len(steps) <= most:
        return steps
    length = min(most, REPLAY.steps_of_stretch)
    first = _first_of_stretches(steps.step, length)
    lengths = np.diff(first, append=len(steps))
    by_duration = np.argsort(np.add.reduceat(steps.dur_ns, first) / lengths, kind="stable")
    count = min(most // length, len(first))
    taken = np.zeros(len(first), dtype=np.bool_)
    taken[by_duration[_evenly(len(first), count)]] = True
    return steps.take(np.repeat(taken, lengths))


def _evenly(length: int, count: int) -> Ints:
    """Places from the first to the last; of one, the middle one."""
    if count == 1:
        return np.array([length // 2])
    return np.arange(count) * (length - 1) // (count - 1)


def _first_of_stretches(numbers: Ints, length: int) -> Ints:
    """Where stretches of at most so many consecutive numbers begin."""
    runs = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    return np.concatenate([np.arange(i, j, length) for i, j in zip(runs, [*runs[1:], len(numbers)], strict=True)])


class Estimate(Struct, frozen=True):
    """The mean over all steps of a run; ``half``: of its 95 % interval. ``fewer``, ``more``: by how much less or more
    it may be, because steps that are shorter or longer than all replayed ones may behave like no replayed one."""

    mean: float
    half: float
    fewer: float
    more: float


class Sample(Struct, frozen=True, eq=False):
    """``dur_ns``: of the replayed steps, in the order of the program; ``every_ns``: of all steps that count."""

    dur_ns: Durations
    every_ns: Durations

    @classmethod
    def of(cls, steps: StepAccounts, replayed: Collection[int]) -> Sample:
        places = np.searchsorted(steps.step, list(replayed))
        return cls(steps.dur_ns[places].astype(np.float64), steps.dur_ns.astype(np.float64))

    @property
    def off_ns(self) -> float:
        """By how much longer the mean step is than the mean of the replayed ones."""
        return float(self.every_ns.mean() - self.dur_ns.mean())

    def whole(self, values: Durations | Series) -> Estimate:
        """The mean over all steps of what has these values in the replayed ones."""
        within = np.clip(self.every_ns, self.dur_ns.min(), self.dur_ns.max())
        beyond = self.every_ns - within
        off = self.dur_ns - self.dur_ns.mean()
        moved = within.mean() - self.dur_ns.mean()
        squares = float((off**2).sum())
        slope = float((off * values).sum()) / squares if squares else 0.0
        left = values - values.mean() - slope * off
        variance = values.var() / len(values) + (left.var() * moved**2 / squares if squares else 0.0)
        return Estimate(
            mean=float(values.mean() + slope * moved),
            half=float(1.96 * np.sqrt(variance)),
            fewer=float(-np.minimum(beyond, 0).mean()),
            more=float(np.maximum(beyond, 0).mean()),
        )
