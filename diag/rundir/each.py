"""Many small files, one after the other where the storage answers at once, else several at a time."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from diag.rundir.policy import RUN_READING

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")
_OF_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # Linux counts by thread


def each_read(read: Callable[[_Item], _Read], items: Sequence[_Item]) -> Iterator[_Read]:
    """What ``read`` returns for each item, in order. It must be safe to call from several threads, which begin once the
    storage lets this one wait: threads that do not wait take Python's lock from each other at every file. A thread that
    waits gives its core away at each file; one that only lacks a core, on a busy machine, does not."""
    size = RUN_READING.files_at_once
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    waited_s: deque[float] = deque(maxlen=RUN_READING.batches_that_wait)
    for done, batch in enumerate(batches):
        if len(waited_s) == waited_s.maxlen and min(waited_s) > RUN_READING.least_wait_s:
            with ThreadPoolExecutor(RUN_READING.readers) as pool:
                yield from chain.from_iterable(pool.map(lambda batch: list(map(read, batch)), batches[done:]))
            return
        begin_s, begin_waits = time.perf_counter() - time.thread_time(), resource.getrusage(_OF_THREAD).ru_nvcsw
        found = list(map(read, batch))
        spent_s = time.perf_counter() - time.thread_time() - begin_s
        waits = resource.getrusage(_OF_THREAD).ru_nvcsw - begin_waits
        waited_s.append(spent_s / len(batch) if waits >= len(batch) else 0.0)
        yield from found
