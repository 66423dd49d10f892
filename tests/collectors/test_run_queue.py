"""Waiting for a core is measured where the system tells it, and is nobody's wait in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from diag.collectors import run_queue
from diag.collectors.run_queue import RunQueue

LINUX = Path("/proc/self/schedstat").exists()
needs_linux = pytest.mark.skipif(not LINUX, reason="the system keeps no scheduler statistics")


@needs_linux
def test_two_that_share_a_core_wait_for_it() -> None:
    """Both compute for half a second on one core: each waits for about as long as it computes."""
    code = (
        "import os, time\n"
        "from diag.collectors.run_queue import RunQueue\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "queue = RunQueue(); queue.read(); end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "print(queue.read())\n"
    )
    two = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waited = [int(process.communicate(timeout=60)[0]) for process in two]
    assert max(waited) > 100_000_000


@needs_linux
def test_sleeping_is_no_waiting_for_a_core() -> None:
    queue = RunQueue()
    assert queue.read() == 0
    time.sleep(0.05)
    waited = queue.read()
    assert waited is not None
    assert 0 <= waited < 50_000_000


@needs_linux
def test_it_is_of_the_thread_that_reads() -> None:
    queue, found = RunQueue(), []
    thread = threading.Thread(target=lambda: found.extend([queue.read(), queue.read()]))
    thread.start()
    thread.join()
    assert found[0] == 0
    # The thread is gone (for the system a moment after it was joined), and with it its statistics: not known, no error.
    end = time.monotonic() + 10
    while queue.read() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert queue.read() is None


@needs_linux
def test_a_forked_child_has_its_own() -> None:
    queue = RunQueue()
    queue.read()
    child = os.fork()
    if not child:
        os._exit(0 if queue.read() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue.threading, "get_native_id", lambda: -1)  # no such file
    queue = RunQueue()
    assert (queue.read(), queue.read()) == (None, None)
