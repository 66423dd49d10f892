"""How many batches lie ready in a DataLoader's queue when the training asks for one.

Read from private fields of ``torch.utils.data``, which has no public ones for it: of an iterator that does not have
them, as of one without worker processes, nothing is told.
"""

from __future__ import annotations

from typing import Any

from .records import LoaderQueue


def queue_of(iterator: Any) -> LoaderQueue | None:
    """The queue of a DataLoader's iterator that is asked for a batch now. None without worker processes; while it fills
    up at the begin of an epoch, and runs dry at its end, because no batch is left to load; and where it cannot be told.

    One semaphore is read, and as many tuples are looked at as the queue has places.
    """
    try:
        workers = iterator._num_workers
        capacity = workers * iterator._prefetch_factor
        tasks = iterator._task_info  # asked of the workers and not given to the training; with the batch, if received
        if len(tasks) != capacity or iterator._num_yielded < capacity:
            return None
        received = sum(len(task) > 1 for task in tasks.values())  # early: batches are given in order
        return LoaderQueue(min(received + iterator._data_queue.qsize(), capacity), capacity, workers)
    except Exception:  # another torch, a loader of another kind, or a system whose queues cannot be counted
        return None
