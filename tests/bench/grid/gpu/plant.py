"""How much of a fault it takes to cost a given part of the step."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.grid.gpu.costs import Change, share_of
from tests.bench.grid.gpu.job import Job

_CLOSE = 0.03  # of the share that is asked for
_TRIES = 12

Plant = Callable[[Job, int], Job]


def planted(job: Job, plant: Plant, rid: Change, share: float, first: int) -> Job:
    """The job with so much planted that removing it (``rid``) saves ``share`` of the step, or as near as a dozen tries
    come. What slack hides costs nothing, so the amount is found by simulating, not by dividing."""
    low, high, amount = 0, 0, max(1, first)
    for _ in range(_TRIES):
        got = share_of(plant(job, amount), rid)
        if abs(got - share) <= _CLOSE * share:
            break
        if got < share:
            low = amount
        else:
            high = amount
        amount = (low + high) // 2 if high else amount * 2
        if high and high - low <= 1:
            break
    return plant(job, amount)
