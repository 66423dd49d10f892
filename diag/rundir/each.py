"""Many small files, one after the other where the storage answers at once, else several at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from diag.rundir.policy import RUN_READING

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


def each_read(read: Callable[[_Item], _Read], items: Sequence[_Item]) -> Iterator[_Read]:
    """What ``read`` returns for each item, in order. It must be safe to call from several threads, which begin once the
    storage lets this one wait: threads that do not wait take Python's lock from each other at every file."""
    size = RUN_READING.files_at_once
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    waited_s: deque[float] = deque(maxlen=RUN_READING.batches_that_wait)
    for done, batch in enumerate(batches):
        if len(waited_s) == waited_s.maxlen and min(waited_s) > RUN_READING.least_wait_s:
            with ThreadPoolExecutor(RUN_READING.readers) as pool:
                yield from chain.from_iterable(pool.map(lambda batch: list(map(read, batch)), batches[done:]))
            return
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        found = list(map(read, batch))
        waited_s.append((time.perf_counter() - begin_s - (time.thread_time() - begin_cpu_s)) / len(batch))
        yield from found
