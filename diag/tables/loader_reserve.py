"""What a rank's loader has in reserve: batches that are ready when the training asks, and workers that stand still."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median

from msgspec import Struct

from diag.collectors.records import DATA, LoaderQueue, StepRecord

_LEAST = 3  # steps

# A loader is faster than it has to be if a fifth of its workers stand still, and half a one at least: the median of
# workers that finish together may lie between two numbers. Measured with loaders that sleep, with 1 to 4 workers: none
# is idle with a head start alone, one or more where the loader is 1.3 times as fast as the training takes batches.
_FASTER = 0.2
_FASTER_AT_LEAST = 0.5


class Reserve(Struct, frozen=True):
    """Of one rank's loader, at the times at which its steps asked for their first batch.

    ``ready``: batches that lay ready, of ``capacity``; the median. ``most_if_busy``: more cannot be ready while each of
    the ``workers`` works on one: half of the queue at the default prefetch factor of 2. A loader that has no more gives
    all it can, and what is ready is but a head start, however much. ``idle``: workers with nothing left to do.
    """

    ready: float
    capacity: int
    workers: int

    @property
    def most_if_busy(self) -> int:
        return self.capacity - self.workers

    @property
    def idle(self) -> float:
        return max(0.0, self.ready - self.most_if_busy)

    @property
    def faster(self) -> bool:
        """Whether this loader could give more than the training takes."""
        return self.idle >= max(_FASTER * self.workers, _FASTER_AT_LEAST)


def reserve_of(records: Iterable[StepRecord], counted: Collection[int]) -> Reserve | None:
    """Over the later half of the steps ``counted`` that recorded it: a reserve takes steps to build up, and what fills
    it once (a profiler that writes its trace) is used up. None where fewer than three are left, or loaders differ."""
    seen = [queue for record in records if record.step in counted and (queue := _telling(record)) is not None]
    seen = seen[len(seen) // 2 :]
    if len(seen) < _LEAST or len({(queue.capacity, queue.workers) for queue in seen}) > 1:
        return None
    return Reserve(median(queue.ready for queue in seen), seen[0].capacity, seen[0].workers)


def full_share(records: Iterable[StepRecord], counted: Collection[int]) -> float | None:
    """The part of the time that was waited for data in steps which found all batches ready that the queue can hold.
    None where too few steps looked at the queue."""
    waited = full = 0
    steps = 0
    for record in records:
        if record.step in counted and record.queue is not None and record.micro_batches <= record.queue.capacity:
            wait_ns = sum(row.end_ns - row.start_ns for row in record.phases if row.phase == DATA)
            steps, waited = steps + 1, waited + wait_ns
            full += wait_ns if record.queue.ready >= record.queue.capacity else 0
    return full / waited if steps >= _LEAST and waited else None


def _telling(record: StepRecord) -> LoaderQueue | None:
    """The step's queue, unless the step takes so many batches at once that workers of any speed stand still before."""
    queue = record.queue
    return queue if queue is not None and record.micro_batches <= queue.capacity - queue.workers else None
