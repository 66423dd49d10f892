"""Whether the late rank of a step is the one with most tokens in it."""

from __future__ import annotations

import numpy as np

from .culprits import AFFECTED, MAX_CHANCE, PERSISTENT, at_least
from .shares import Cost
from .subject import Subject

_UNEQUAL = 1.05  # most tokens over fewest, in a step where it counts


def longest_batch_last(subject: Subject) -> tuple[int, int] | None:
    """(steps in which the latest rank had most tokens, affected steps with unequal tokens), where that is most of them
    and no chance; else None."""
    shares = subject.shares
    tokens = {rank: {s.step: s.tokens for s in own.steps if s.tokens} for rank, own in subject.tables.ranks.items()}
    late = shares.blame_ns.get(Cost.STRAGGLER, {})
    hits = steps = 0
    chance = 0.0
    for i, number in enumerate(shares.numbers):
        told = {rank: own[number] for rank, own in tokens.items() if number in own}
        by_rank = {rank: float(series[i]) for rank, series in late.items()}
        latest = max(by_rank, key=lambda rank: by_rank[rank], default=None)
        if latest is None or by_rank[latest] <= max(AFFECTED * float(shares.dur_ns[i]), shares.noise.late_ns):
            continue
        if latest not in told or len(told) < 2 or max(told.values()) < _UNEQUAL * min(told.values()):
            continue
        most = [rank for rank, count in told.items() if count == max(told.values())]
        steps += 1
        hits += latest in most
        chance += len(most) / len(told)
    if not steps or hits < PERSISTENT * steps:
        return None
    return (hits, steps) if at_least(hits, steps, float(np.clip(chance / steps, 0, 1))) <= MAX_CHANCE else None
