"""Waiting of a training on its host: how long its threads run or wait for a core, and its DataLoader's queue.

In the rest of its time a thread is blocked: it sleeps, waits for I/O, a lock or another process, or is stopped.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from .fence import Fence
from .policy import RECORDING
from .records import HostRecord, LoaderQueue

# -- proc --------------------------------------------------------------------------------------------------------------
#
# Numbers of a process from Linux's /proc, read once a step from a file that stays open: four times cheaper.

_forks = 0  # forks since this module was imported, up to this process: cheaper to compare than its pid


def _forked() -> None:
    global _forks
    _forks += 1
    _elsewhere.ns = 0  # as the CPU time of the child's thread


os.register_at_fork(after_in_child=lambda: Fence().call(_forked))


class ProcFile:
    """A small file of fields. ``path`` is called again in a forked child, which has another file."""

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._fd: int | None = None
        self.process = -1  # the process whose file is open, as its value of ``_forks``

    def number(self, field: int) -> int | None:
        """The integer in a field, counted from 0; None where the system does not report it."""
        return number_in(self.read(), field)

    def numbers(self) -> list[int] | None:
        """All fields; None where the system does not report them, or one is not an integer."""
        try:
            return [int(field) for field in self.read().split()] or None
        except ValueError:
            return None

    def read(self) -> bytes:
        """Its fields, not yet parsed; empty where the system does not report them."""
        if self.process != _forks:
            self.process = _forks
            try:
                self._fd = os.open(self._path(), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = None
        if self._fd is None:
            return b""
        try:
            return os.pread(self._fd, 200, 0)
        except OSError:
            return b""

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def number_in(fields: bytes, field: int) -> int | None:
    """The integer in one of the fields, counted from 0; None where there is none."""
    try:
        return int(fields.split()[field])
    except (ValueError, IndexError):
        return None


_ON_CPU, _QUEUED = 0, 1  # "on a core, waiting for one, slices": Documentation/scheduler/sched-stats.rst


class _Elsewhere(threading.local):
    """Simulated device time, per thread."""

    ns = 0


_elsewhere = _Elsewhere()


def computed_elsewhere(ns: int) -> None:
    """Adds to the calling thread's CPU time the time that it slept while a simulated device computed for it, as if the
    CPU were that device."""
    _elsewhere.ns += ns


class CpuTime(NamedTuple):
    """Nanoseconds since the thread began; None where the system does not report them."""

    on_cpu_ns: int | None
    queued_ns: int | None


# Nanoseconds of the monotonic clock, nanoseconds on a core since the thread began, and the unparsed text of schedstat.
# The last two are None if the scheduler was not read.
Stamp = tuple[int, int | None, bytes | None]


class ThreadTime:
    """The CPU time of the calling thread, and the time that it was ready to run and waited for a core (Linux only). A
    read takes two microseconds."""

    def __init__(self) -> None:
        self._file = self._file_of_this_thread()

    def _file_of_this_thread(self) -> ProcFile:
        self._thread, self.native_id = get_ident(), threading.get_native_id()
        return ProcFile(lambda: f"/proc/self/task/{threading.get_native_id()}/schedstat")

    @property
    def ids(self) -> tuple[int, int]:
        """Of the thread that was read last: Python's, and the system's."""
        return self._thread, self.native_id

    def read(self) -> CpuTime:
        return self.read_at(self.stamp())

    def stamp(self) -> Stamp:
        """The current values, for ``read_at`` to parse later: between two parts of a step the code of the called
        functions is no longer in the core's caches, and these misses are the cost of a reading."""
        if get_ident() != self._thread:
            self._file.close()
            self._file = self._file_of_this_thread()
        # Not schedstat's own on-core time, which advances with the scheduler's tick.
        return monotonic_ns(), thread_time_ns() + _elsewhere.ns, self._file.read()

    @staticmethod
    def read_at(stamp: Stamp) -> CpuTime:
        """The result of ``read`` at the time of the stamp; ``queued_ns`` is None for a stamp without schedstat."""
        return CpuTime(stamp[1], number_in(stamp[2], _QUEUED) if stamp[2] is not None else None)

    def close(self) -> None:
        self._file.close()


class PauseWatch:
    """Detects that the process did not run at all: stopped by SIGSTOP, a debugger or a frozen container. For a thread
    that does little else, and looks every ``TICK_S``."""

    TICK_S = 0.05

    def __init__(self) -> None:
        self._own: ThreadTime | None = None
        self._trains: tuple[int, ProcFile] | None = None
        self._pauses: list[tuple[int, int]] = []

    def begin(self, trains: int) -> None:
        """Begins to look, after the thread did something else. ``trains``: the native id of the training's thread."""
        if self._own is None:
            self._own = ThreadTime()
        if self._trains is None or self._trains[0] != trains:
            self._trains = trains, ProcFile(lambda: f"/proc/self/task/{trains}/schedstat")
        self._ns, self._busy_ns = monotonic_ns(), process_time_ns()
        own_ns, trains_ns = self._own.read().queued_ns, self._trains[1].number(_QUEUED)
        self._queued_ns = own_ns + trains_ns if own_ns is not None and trains_ns is not None else None

    def look(self) -> None:
        """The thread should wake up one tick after it last looked or began. It wakes up later if it is queued for a
        core, or if the training holds the GIL, and then the training runs or is queued itself. The rest of the delay
        is a pause."""
        if self._trains is None:
            return
        ns, busy_ns, queued_ns = self._ns, self._busy_ns, self._queued_ns
        self.begin(self._trains[0])
        if queued_ns is None or self._queued_ns is None:
            return
        passed_ns = self._ns - ns
        idle_ns = passed_ns - (self._busy_ns - busy_ns)
        pause_ns = min(passed_ns - round(self.TICK_S * 1e9), idle_ns) - (self._queued_ns - queued_ns)
        if pause_ns > RECORDING.least_pause_ns and len(self._pauses) < RECORDING.most_pauses:
            self._pauses.append((self._ns - pause_ns, self._ns))

    def take(self) -> list[tuple[int, int]]:
        """The pauses since the last call."""
        pauses, self._pauses = self._pauses, []
        return pauses

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        if self._trains is not None:
            self._trains[1].close()


class _Task:
    """A thread of this process, or the first thread of another: the change of its times since the last read."""

    def __init__(self, path: str) -> None:
        self._file = ProcFile(lambda: path)
        self._before: tuple[int, int] | None = None
        self.on_cpu_ns = self.queued_ns = 0
        self.spent_ns = 0  # since it began

    def read(self) -> bool:
        """Reads the times; returns whether the thread still exists."""
        fields = self._file.numbers()
        if fields is None or len(fields) <= _QUEUED:
            return False
        now = fields[_ON_CPU], fields[_QUEUED]
        before = self._before or now
        self.on_cpu_ns, self.queued_ns = now[0] - before[0], now[1] - before[1]
        self.spent_ns, self._before = sum(now), now
        return True

    def close(self) -> None:
        self._file.close()


class HostSampler:
    """Samples the threads of this process other than the training's, and the processes that it has started (a
    DataLoader's workers). To be used by one thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._threads: dict[int, _Task] = {}
        self._workers: dict[int, _Task] = {}
        self._samples = 0
        self._before_ns = 0

    def sample(self, trains: int, pauses: list[tuple[int, int]] | None = None) -> HostRecord | None:
        """The changes since the last sample; None for the first one, and where the system does not report them.
        ``trains``: the native id of the training's thread; ``pauses``: those of the process since then."""
        if os.getpid() != self._process:
            return None
        # A training starts its threads in its first steps.
        if self._samples & (self._samples - 1) == 0 or self._samples % 64 == 0:
            self._find_threads(trains)
        self._find_workers(trains)
        for tasks in (self._threads, self._workers):
            for number in [number for number, task in tasks.items() if not task.read()]:
                tasks.pop(number).close()
        now, before_ns = monotonic_ns(), self._before_ns
        self._before_ns, self._samples = now, self._samples + 1
        if not before_ns or not (self._threads or self._workers):
            return None
        threads, workers = self._threads.values(), self._workers.values()
        slowest = max(threads, key=lambda task: task.queued_ns, default=None)
        return HostRecord(
            monotonic_ns=now,
            interval_ns=now - before_ns,
            threads=len(threads),
            threads_on_cpu_ns=sum(task.on_cpu_ns for task in threads),
            threads_queued_ns=sum(task.queued_ns for task in threads),
            slowest_on_cpu_ns=slowest.on_cpu_ns if slowest else 0,
            slowest_queued_ns=slowest.queued_ns if slowest else 0,
            workers=len(workers),
            workers_on_cpu_ns=sum(task.on_cpu_ns for task in workers),
            workers_queued_ns=sum(task.queued_ns for task in workers),
            runnable=_runnable(),
            pauses=pauses or [],
        )

    def close(self) -> None:
        for task in (*self._threads.values(), *self._workers.values()):
            task.close()
        self._threads, self._workers = {}, {}

    def _find_threads(self, trains: int) -> None:
        """Selects the threads that ran most, other than this one and the training's."""
        try:
            numbers = [int(name) for name in os.listdir("/proc/self/task")][: RECORDING.most_threads_listed]  # noqa: PTH208
        except (OSError, ValueError):
            return
        own_id = threading.get_native_id()
        tasks = {}
        for number in numbers:
            if number not in (own_id, trains):
                task = self._threads.pop(number, None) or _Task(f"/proc/self/task/{number}/schedstat")
                if task.spent_ns or task.read():
                    tasks[number] = task
        for task in self._threads.values():
            task.close()
        busiest = sorted(tasks, key=lambda number: -tasks[number].spent_ns)[: RECORDING.most_threads]
        for number in tasks.keys() - set(busiest):
            tasks[number].close()
        self._threads = {number: tasks[number] for number in busiest}

    def _find_workers(self, trains: int) -> None:
        try:
            with open(f"/proc/self/task/{trains}/children", "rb") as file:  # noqa: PTH123  (a file of the system's)
                numbers = [int(number) for number in file.read(4096).split()][: RECORDING.most_workers]
        except (OSError, ValueError):  # a system without it
            return
        for number in self._workers.keys() - set(numbers):
            self._workers.pop(number).close()
        for number in numbers:
            if number not in self._workers:
                self._workers[number] = _Task(f"/proc/{number}/schedstat")


def _runnable() -> int | None:
    """Threads of the host that are on a core or wait for one."""
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
            return int(file.read(100).split()[3].split(b"/")[0])
    except (OSError, ValueError, IndexError):
        return None


# -- loader ------------------------------------------------------------------------------------------------------------
#
# The number of batches ready in a DataLoader's queue when the training asks for one. Read from private fields of
# ``torch.utils.data``, which has no public ones for it.


def queue_of(iterator: Any) -> LoaderQueue | None:
    """The queue of a DataLoader's iterator that is asked for a batch now. None without worker processes; while the
    queue fills up at the begin of an epoch, or drains at its end because no batch is left to load; and where it is not
    known.

    Reads one semaphore, and as many tuples as the queue has places.
    """
    try:
        workers = iterator._num_workers
        capacity = workers * iterator._prefetch_factor
        tasks = iterator._task_info  # requested from the workers, not yet yielded; with the batch, if received
        if len(tasks) != capacity or iterator._num_yielded < capacity:
            return None
        received = sum(len(task) > 1 for task in tasks.values())  # out of order: batches are yielded in order
        return LoaderQueue(min(received + iterator._data_queue.qsize(), capacity), capacity, workers)
    except Exception:  # another torch, a loader of another kind, or a system whose queues cannot be counted
        return None
