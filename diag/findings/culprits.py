"""Whether a delay belongs to a rank. A rank is named only if chance does not explain that it was always the one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]  # one value a step

# science.md 2.6 and 2.8: a straggler costs a tenth of the step, in the same place in three steps of five.
MIN_SHARE = 0.10
PERSISTENT = 0.60
AFFECTED = 0.05  # a step counts as affected when the delay is a twentieth of it
MAX_CHANCE = 0.05


@dataclass(frozen=True)
class Culprits:
    """``ranks``: those at fault, worst first; () where the delay moves from rank to rank or is too small to tell.
    ``share``: what all late ranks cost together, of the time of all steps. ``steps``: (steps in which one of the
    suspects was the latest, steps affected). ``chance``: how likely that is if every rank is as likely to be late."""

    ranks: tuple[int, ...]
    share: float
    steps: tuple[int, int]
    chance: float


def find_culprits(late_ns: Mapping[int, Series], dur_ns: Series, ranks: int, noise_ns: int = 0) -> Culprits:
    """``late_ns[rank]``: per step, how long others waited for the rank. ``ranks``: how many could have been late.
    ``noise_ns``: a rank that is later than the others by less in a step is not late."""
    total = float(dur_ns.sum())
    if not late_ns or total <= 0:
        return Culprits((), 0.0, (0, 0), 1.0)
    names = sorted(late_ns)
    late = np.stack([late_ns[rank] for rank in names])
    worst_each = late.max(axis=0)
    share = float(worst_each.sum()) / total
    affected = worst_each > np.maximum(AFFECTED * dur_ns, noise_ns)
    count = int(affected.sum())
    each = late.sum(axis=1)
    # All that cost a tenth of the step, and not much less than the worst, stand trial together.
    suspects = np.flatnonzero((each >= MIN_SHARE * total) & (each >= each.max() / 2))
    if not len(suspects) or not count:
        top = int(each.argmax())
        return Culprits((), share, (int((affected & (late[top] >= worst_each)).sum()), count), 1.0)
    leads = int((affected & (late[suspects].max(axis=0) >= worst_each)).sum())
    chance = at_least(leads, count, len(suspects) / max(ranks, 2))
    lasting = ((late[suspects] > AFFECTED * dur_ns)[:, affected].mean(axis=1) >= PERSISTENT).all()
    alone = len(suspects) <= ranks / 2
    guilty = alone and bool(lasting) and leads / count >= PERSISTENT and chance <= MAX_CHANCE
    worst_first = sorted(suspects, key=lambda i: -float(each[i]))
    return Culprits(tuple(names[i] for i in worst_first) if guilty else (), share, (leads, count), chance)


def at_least(successes: int, tries: int, probability: float) -> float:
    """The chance of that many successes or more: the binomial tail."""
    return sum(comb(tries, k) * probability**k * (1 - probability) ** (tries - k) for k in range(successes, tries + 1))
