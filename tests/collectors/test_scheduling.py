"""CPU time, waiting for a core and being blocked are told apart, for the training's thread and what runs with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from diag.collectors import scheduling
from diag.collectors.scheduling import CpuTime, Stamp, ThreadTime
from tests.patience import PATIENCE_S

LINUX = Path("/proc/self/schedstat").exists()
needs_linux = pytest.mark.skipif(not LINUX, reason="the system keeps no scheduler statistics")


@needs_linux
def test_two_that_share_a_core_wait_for_it() -> None:
    """Both compute for half a second on one core: each waits for about as long as it computes."""
    code = (
        "import os, time\n"
        "from diag.collectors.scheduling import ThreadTime\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "own = ThreadTime(); before = own.read(); end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "print(own.read().queued_ns - before.queued_ns)\n"
    )
    two = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waited = [int(process.communicate(timeout=PATIENCE_S)[0]) for process in two]
    assert max(waited) > 100_000_000


@needs_linux
def test_a_thread_that_sleeps_is_neither_on_a_core_nor_queued() -> None:
    """On a busy machine it may be queued when it wakes up, and then the sleep takes longer by as much."""
    own = ThreadTime()
    before, began = own.read(), time.monotonic_ns()
    time.sleep(0.2)
    after, ended = own.read(), time.monotonic_ns()
    assert None not in (*before, *after)
    blocked = (ended - began) - (after[0] - before[0]) - (after[1] - before[1])  # type: ignore[operator]
    assert blocked > 190_000_000


@needs_linux
def test_a_stopped_process_is_neither_on_a_core_nor_queued() -> None:
    code = (
        "import time\n"
        "from diag.collectors.scheduling import ThreadTime\n"
        "own = ThreadTime(); before, began = own.read(), time.monotonic_ns()\n"
        "print('ready', flush=True)\n"
        "while time.monotonic_ns() - began < 2_000_000_000: pass\n"
        "after = own.read()\n"
        "print(time.monotonic_ns() - began - sum(after) + sum(before))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGCONT)
    assert int(process.communicate(timeout=PATIENCE_S)[0]) > 400_000_000


@needs_linux
def test_it_is_the_time_of_the_thread_that_reads() -> None:
    own = ThreadTime()
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    found: list[CpuTime] = []
    thread = threading.Thread(target=lambda: found.append(own.read()))
    thread.start()
    thread.join()
    here = own.read()
    assert found[0].on_cpu_ns is not None
    assert here.on_cpu_ns is not None
    assert found[0].on_cpu_ns < 200_000_000 <= here.on_cpu_ns


@needs_linux
def test_a_stamp_is_a_reading_for_later() -> None:
    own = ThreadTime()
    before, stamp, after = own.read(), own.stamp(), own.read()
    read = ThreadTime.read_at(stamp)
    assert None not in (*before, *read, *after)
    assert before <= read <= after  # both only grow
    assert before[1] <= read[1] <= after[1]  # type: ignore[operator]
    stamps: list[Stamp] = []
    thread = threading.Thread(target=lambda: stamps.append(own.stamp()))  # a stamp is of the thread that makes it, too
    thread.start()
    thread.join()
    assert 0 <= (ThreadTime.read_at(stamps[0]).on_cpu_ns or -1) < (after.on_cpu_ns or 0)
    assert ThreadTime.read_at((5, 6, b"")) == (6, None)


@needs_linux
def test_a_forked_child_has_its_own() -> None:
    own = ThreadTime()
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    child = os.fork()
    if not child:
        on_cpu_ns, queued_ns = own.read()
        os._exit(0 if on_cpu_ns is not None and on_cpu_ns < 100_000_000 and queued_ns is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_linux
def test_the_time_of_an_imitated_device_is_that_of_the_thread_that_slept_for_it() -> None:
    found: list[CpuTime] = []

    def train() -> None:
        own = ThreadTime()
        before = own.read()
        scheduling.computed_elsewhere(10_000_000_000)
        found.extend([before, own.read()])
        child = os.fork()
        if not child:
            os._exit(0 if (own.read().on_cpu_ns or 0) < 10_000_000_000 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found.append(own.read())

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    before, after, last = (read.on_cpu_ns or 0 for read in found)
    assert before < 10_000_000_000 <= after <= last
    assert (ThreadTime().read().on_cpu_ns or 0) <= time.process_time_ns()


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.threading, "get_native_id", lambda: -1)  # no such file
    assert ThreadTime().read().queued_ns is None


@needs_linux
def test_worker_processes_that_compute_are_sampled() -> None:
    """In a process of its own, which has no other children."""
    code = (
        "import dataclasses, json, multiprocessing, threading, time\n"
        "from diag.collectors.scheduling import HostSampler\n"
        "def burn():\n"
        "    while True: pass\n"
        "sampler, trains = HostSampler(), threading.get_native_id()\n"
        "worker = multiprocessing.get_context('fork').Process(target=burn); worker.start()\n"
        "first = sampler.sample(trains)\n"
        "for _ in range(200):\n"
        "    time.sleep(0.1); found = sampler.sample(trains)\n"
        "    if found.workers_on_cpu_ns: break\n"
        "worker.kill(); worker.join(); after = sampler.sample(trains)\n"
        "print(json.dumps([first, dataclasses.asdict(found), after and after.workers]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    first, found, after = json.loads(done.stdout)
    assert first is None  # there is nothing to compare with yet
    assert found["workers"] == 1
    # The counters are read at another moment than the clock: much later on a busy machine.
    assert 0 < found["workers_on_cpu_ns"] + found["workers_queued_ns"] <= 100 * found["interval_ns"]
    assert found["runnable"]
    assert not after


@needs_linux
def test_threads_that_compute_are_sampled() -> None:
    """In a process of its own: how many threads there are here depends on the tests before."""
    code = (
        "import dataclasses, json, threading, time, zlib\n"
        "from diag.collectors.scheduling import HostSampler\n"
        "over, data = threading.Event(), bytes(1 << 20)\n"
        "def compress():\n"
        "    while not over.is_set(): zlib.compress(data)\n"
        "sampler, trains = HostSampler(), threading.get_native_id()\n"
        "thread = threading.Thread(target=compress); thread.start()\n"
        "first = sampler.sample(trains)\n"
        "for _ in range(200):\n"
        "    time.sleep(0.1); found = sampler.sample(trains)\n"
        "    if found.threads_on_cpu_ns: break\n"
        "over.set(); print(json.dumps([first, dataclasses.asdict(found)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    first, found = json.loads(done.stdout)
    assert first is None
    assert found["threads"] == 1
    assert 0 < found["threads_on_cpu_ns"] <= 1.5 * found["interval_ns"]
    assert found["slowest_queued_ns"] == found["threads_queued_ns"]


WATCHED = """
import threading, time
from diag.collectors.scheduling import PauseWatch
watch, over = PauseWatch(), threading.Event()
def look():
    watch.begin(threading.main_thread().native_id)
    while not over.wait(PauseWatch.TICK_S):
        watch.look()
thread = threading.Thread(target=look); thread.start()
print("ready", flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    {work}
# Of both threads, the nanoseconds that they were ready to run and had no core.
tasks = [threading.main_thread().native_id, thread.native_id]
queued = sum(int(open(f"/proc/self/task/{{task}}/schedstat").read().split()[1]) for task in tasks)
over.set(); thread.join()
print(sum(end - start for start, end in watch.take()), queued)
"""


@needs_linux
@pytest.mark.parametrize(
    ("work", "stopped_s"),
    [("time.sleep(0.01)", 0.5), ("sum(range(1000))", 0.5), ("time.sleep(0.01)", 0.0), ("sum(range(20_000_000))", 0.0)],
    ids=["stopped asleep", "stopped at work", "asleep", "keeps the lock"],
)
def test_a_process_that_is_stopped_has_paused(work: str, stopped_s: float) -> None:
    code = WATCHED.format(work=work)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    if stopped_s:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(process.pid, signal.SIGCONT)
    paused, queued = map(int, process.communicate(timeout=PATIENCE_S)[0].split())
    # A busy machine may not run it, either: that is no pause.
    if stopped_s:
        assert paused > 0.8 * stopped_s * 1e9 - queued
    else:
        assert paused < 0.3e9 + queued
