"""What a change really gained: step times of runs with it and without it, which took turns on the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diag.account.attribute import queued_steps, steps_left_out
from diag.api import Result
from diag.collectors.records import WINDOW_NONE
from diag.tune.history import Interval, Run

Series = npt.NDArray[np.float64]

_RESAMPLED = 2000
# Untraced steps after those that the full queue fed; runs with fewer are measured from their beginning on.
_LEAST_STEPS_AFTER_QUEUE = 6
_SURE = 0.95


def measured(result: Result) -> tuple[Series, int | None]:
    """Step times and the peak of device memory of one run: nanoseconds of each undisturbed, untraced step, from the end
    of the step before to its own, mean over the ranks (on a device the host's steps keep its pace); and bytes reserved
    by the allocator, the most of all ranks and steps, None without a device.

    The first batches were loaded while the training set itself up: steps that a full queue feeds are left out too.
    """
    by_rank = [sorted(tables.steps, key=lambda record: record.step) for tables in result.tables.ranks.values()]
    numbers = sorted({record.step for own in by_rank for record in own})
    left_out = steps_left_out(result.tables, numbers)
    times: dict[int, list[int]] = {}
    for own in by_rank:
        for before, record in pairwise(own):
            if record.step == before.step + 1 and record.window == WINDOW_NONE and record.step not in left_out:
                times.setdefault(record.step, []).append(record.end_ns - before.end_ns)
    queued = queued_steps(result.tables.manifest)
    late = [step for step in times if step >= numbers[0] + queued] if numbers else []
    counted = late if len(late) >= _LEAST_STEPS_AFTER_QUEUE else sorted(times)
    reserved = [r.memory.reserved for own in by_rank for r in own if r.memory is not None and r.memory.reserved]
    return np.array([np.mean(times[step]) for step in counted]), max(reserved, default=None)


def gain(without: Sequence[Series], with_it: Sequence[Series], seed: int = 0) -> Interval:
    """Nanoseconds a step that the change gains: of the means of all runs, with a 95 % interval from resampling runs
    and steps within them. Two runs of one configuration differ by more than their steps say: both count."""
    random = np.random.default_rng(seed)
    found = np.array([_resampled(without, random) - _resampled(with_it, random) for _ in range(_RESAMPLED)])
    low, high = np.quantile(found, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    likely = np.mean([s.mean() for s in without]) - np.mean([s.mean() for s in with_it])
    return Interval(round(float(low)), round(float(likely)), round(float(high)))


def _resampled(runs: Sequence[Series], random: np.random.Generator) -> float:
    chosen = (runs[i] for i in random.integers(len(runs), size=len(runs)))
    return float(np.mean([steps[random.integers(len(steps), size=len(steps))].mean() for steps in chosen]))


def loss_difference(without: Result, with_it: Result) -> float | None:
    """The largest difference between the losses of equal steps and ranks, of the loss; None where none was recorded in
    both. Floating-point sums in another order differ by a millionth or so: far more, and another thing was trained."""
    before = _losses(without)
    worst = None
    for key, loss in _losses(with_it).items():
        if key in before:
            difference = abs(loss - before[key]) / max(abs(before[key]), 1e-12)
            worst = max(worst or 0.0, difference)
    return worst


def mean_ns(runs: Sequence[Run]) -> int:
    """Of the runs' mean steps."""
    return round(float(np.mean([run.step_ns for run in runs])))


def _losses(result: Result) -> dict[tuple[int, int], float]:
    return {
        (rank, record.step): record.loss
        for rank, tables in result.tables.ranks.items()
        for record in tables.steps
        if record.loss is not None
    }
