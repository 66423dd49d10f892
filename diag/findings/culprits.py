"""Whether a delay belongs to a rank. A rank is named only if chance does not explain that it was always the one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

import numpy as np

from diag.findings.shares import Series

# science.md 2.6 and 2.8: a straggler costs a tenth of the step, in the same place in three steps of five.
MIN_SHARE = 0.10
PERSISTENT = 0.60
AFFECTED = 0.05  # a step counts as affected when the delay is a twentieth of it
MAX_CHANCE = 0.02


@dataclass(frozen=True)
class Culprits:
    """``ranks``: those at fault, worst first; () where the delay moves from rank to rank or is too small to tell.
    ``share``: what all late ranks cost together, of the time of all steps. ``steps``: (steps of the worst rank, steps
    affected)."""

    ranks: tuple[int, ...]
    share: float
    steps: tuple[int, int]
    chance: float


def find_culprits(late_ns: Mapping[int, Series], dur_ns: Series, ranks: int) -> Culprits:
    """``late_ns[rank]``: per step, how long others waited for the rank. ``ranks``: how many could have been late."""
    total = float(dur_ns.sum())
    if not late_ns or total <= 0:
        return Culprits((), 0.0, (0, 0), 1.0)
    names = sorted(late_ns)
    late = np.stack([late_ns[rank] for rank in names])
    worst_each = late.max(axis=0)
    share = float(worst_each.sum()) / total
    affected = worst_each > AFFECTED * dur_ns
    count = int(affected.sum())
    order = sorted(range(len(names)), key=lambda i: -float(late[i].sum()))
    top = order[0]
    leads = int((affected & (late[top] >= worst_each)).sum())
    chance = at_least(leads, count, 1 / max(ranks, 2))
    named = (
        count > 0
        and float(late[top].sum()) / total >= MIN_SHARE
        and leads / count >= PERSISTENT
        and chance <= MAX_CHANCE
    )
    if not named:
        return Culprits((), share, (leads, count), chance)
    floor = max(MIN_SHARE * total, float(late[top].sum()) / 2)
    also = [i for i in order[1:] if late[i].sum() >= floor and (late[i] > AFFECTED * dur_ns).mean() >= PERSISTENT]
    return Culprits(tuple(names[i] for i in (top, *also)), share, (leads, count), chance)


def at_least(successes: int, tries: int, probability: float) -> float:
    """The chance of that many successes or more: the binomial tail."""
    return sum(
        comb(tries, k) * probability**k * (1 - probability) ** (tries - k) for k in range(successes, tries + 1)
    )
