"""Many small files are read by several threads where the storage is waited for, and only there."""

from __future__ import annotations

import resource
import threading
import time

import pytest

from diag.rundir.each import each_read
from diag.rundir.policy import RUN_READING

FILES = 10 * RUN_READING.files_at_once * RUN_READING.batches_that_wait


@pytest.mark.parametrize("wait_s", [0.0, 3 * RUN_READING.least_wait_s])
def test_threads_read_where_the_storage_is_waited_for(wait_s: float) -> None:
    here, readers = threading.get_ident(), list[int]()

    def read(item: int) -> int:
        readers.append(threading.get_ident())
        if wait_s:
            time.sleep(wait_s)  # as a storage does
        return -item

    assert list(each_read(read, range(FILES))) == [-item for item in range(FILES)]
    first = RUN_READING.files_at_once * RUN_READING.batches_that_wait
    assert set(readers[:first]) == {here}
    others = set(readers[first:]) - {here}
    assert (len(others) > 1) == bool(wait_s)


def test_an_error_is_raised_where_it_happens() -> None:
    def read(item: int) -> int:
        if item == 1:
            raise OSError("cannot be read")
        return item

    with pytest.raises(OSError, match="cannot be read"):
        list(each_read(read, [0, 1, 2]))
    assert list(each_read(read, [])) == []


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="the system does not count a thread's waits")
def test_a_machine_that_is_busy_is_no_storage_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that lacks a core takes as long as one that waits for a file, and does not give the core away itself."""
    now_s, readers = time.perf_counter(), set[int]()

    def later_s() -> float:
        nonlocal now_s
        now_s += 1000 * RUN_READING.least_wait_s * RUN_READING.files_at_once
        return now_s

    def read(item: int) -> int:
        readers.add(threading.get_ident())
        return item

    monkeypatch.setattr(time, "perf_counter", later_s)
    assert list(each_read(read, range(FILES))) == list(range(FILES))
    assert readers == {threading.get_ident()}
