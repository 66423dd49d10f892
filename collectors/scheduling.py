"""What a training waits for on its host: how long its threads are on a core or wait for one, and its loader's queue.

What is left of a thread's time is blocked: it sleeps, waits for I/O, for a lock or for another process, or is stopped.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from .records import HostRecord, LoaderQueue

# -- proc --------------------------------------------------------------------------------------------------------------
#
# Numbers that Linux has of a process, read once a step from a file that stays open: four times cheaper.

_forks = 0  # that led to this process, of those this module has seen: cheaper than to ask the system for its number


def _forked() -> None:
    global _forks
    _forks += 1
    _elsewhere.ns = 0  # as the CPU time of the child's thread


os.register_at_fork(after_in_child=_forked)


class ProcFile:
    """A small file of fields; ``path`` is asked again in a forked child, whose file is another."""

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._fd: int | None = None
        self.process = -1  # whose file was read: how many forks lie before it

    def number(self, field: int) -> int | None:
        """The integer in a field, counted from 0; None where the system does not say."""
        return number_in(self.read(), field)

    def numbers(self) -> list[int] | None:
        """All fields; None where the system does not say, or one is no integer."""
        try:
            return [int(field) for field in self.read().split()] or None
        except ValueError:
            return None

    def read(self) -> bytes:
        """Its fields, not yet parsed; empty where the system does not say."""
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
_MOST_THREADS = 16  # each costs a call of the system a sample; those that ran most are looked at
_MOST_LISTED = 256
_MOST_WORKERS = 32
_LEAST_PAUSE_NS = 30_000_000
_MOST_PAUSES = 64  # between two samples


class _Elsewhere(threading.local):
    """Of each thread by itself."""

    ns = 0


_elsewhere = _Elsewhere()


def computed_elsewhere(ns: int) -> None:
    """The thread that calls slept so long while a device that is only imitated computed for it: counted as its own CPU
    time, as that of a CPU that is the device."""
    _elsewhere.ns += ns


class CpuTime(NamedTuple):
    """Nanoseconds since the thread began; None where the system does not say."""

    on_cpu_ns: int | None
    queued_ns: int | None


# Nanoseconds of the monotonic clock, those on a core since the thread began, and what schedstat said, not yet read.
# None, both of them: the scheduler was not asked.
Stamp = tuple[int, int | None, bytes | None]


class ThreadTime:
    """The CPU time of the thread that reads, and the time that it was ready to run and waited for a core (Linux only).
    A read takes two microseconds."""

    def __init__(self) -> None:
        self._file = self._file_of_this_thread()

    def _file_of_this_thread(self) -> ProcFile:
        self._thread, self.native_id = get_ident(), threading.get_native_id()
        return ProcFile(lambda: f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def read(self) -> CpuTime:
        return self.read_at(self.stamp())

    def stamp(self) -> Stamp:
        """Now, for ``read_at`` to parse later: between two parts of a step the code of every function that is called
        is no longer in the caches of the core, and that is what a reading costs there."""
        if get_ident() != self._thread:
            self._file.close()
            self._file = self._file_of_this_thread()
        # Not schedstat's own on-core time, which advances with the scheduler's tick.
        return monotonic_ns(), thread_time_ns() + _elsewhere.ns, self._file.read()

    @staticmethod
    def read_at(stamp: Stamp) -> CpuTime:
        """What ``read`` would have returned then; nothing of a time only."""
        return CpuTime(stamp[1], number_in(stamp[2], _QUEUED) if stamp[2] is not None else None)

    def close(self) -> None:
        self._file.close()


class PauseWatch:
    """Finds out that the process did not run at all: stopped by SIGSTOP, a debugger or a container that is frozen. For
    a thread that does little else, and looks every ``TICK_S``."""

    TICK_S = 0.05

    def __init__(self) -> None:
        self._own: ThreadTime | None = None
        self._trains: tuple[int, ProcFile] | None = None
        self._seen: list[tuple[int, int]] = []

    def begin(self, trains: int) -> None:
        """The thread has done something else, and begins to look. ``trains``: the native id of the one that trains."""
        if self._own is None:
            self._own = ThreadTime()
        if self._trains is None or self._trains[0] != trains:
            self._trains = trains, ProcFile(lambda: f"/proc/self/task/{trains}/schedstat")
        self._ns, self._busy_ns = monotonic_ns(), process_time_ns()
        own_ns, trains_ns = self._own.read().queued_ns, self._trains[1].number(_QUEUED)
        self._queued_ns = own_ns + trains_ns if own_ns is not None and trains_ns is not None else None

    def look(self) -> None:
        """The thread was to wake up a tick after it last looked or began. It wakes up later where it is queued for a
        core; and where the training keeps the interpreter's lock, which takes CPU time or is queued itself. What is
        left is a pause."""
        if self._trains is None:
            return
        ns, busy_ns, queued_ns = self._ns, self._busy_ns, self._queued_ns
        self.begin(self._trains[0])
        if queued_ns is None or self._queued_ns is None:
            return
        passed_ns = self._ns - ns
        idle_ns = passed_ns - (self._busy_ns - busy_ns)
        pause_ns = min(passed_ns - round(self.TICK_S * 1e9), idle_ns) - (self._queued_ns - queued_ns)
        if pause_ns > _LEAST_PAUSE_NS and len(self._seen) < _MOST_PAUSES:
            self._seen.append((self._ns - pause_ns, self._ns))

    def take(self) -> list[tuple[int, int]]:
        """The pauses since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        if self._trains is not None:
            self._trains[1].close()


class _Task:
    """A thread of this process, or the first one of another: the change of its times since they were last read."""

    def __init__(self, path: str) -> None:
        self._file = ProcFile(lambda: path)
        self._before: tuple[int, int] | None = None
        self.on_cpu_ns = self.queued_ns = 0
        self.spent_ns = 0  # since it began

    def read(self) -> bool:
        """Whether it still exists."""
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
    DataLoader's workers). For one thread of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._threads: dict[int, _Task] = {}
        self._workers: dict[int, _Task] = {}
        self._samples = 0
        self._before_ns = 0

    def sample(self, trains: int, pauses: list[tuple[int, int]] | None = None) -> HostRecord | None:
        """What happened since the last sample; None in the first one, and where the system does not say.
        ``trains``: the native id of the thread that trains; ``pauses``: of the process since then."""
        if os.getpid() != self._process:
            return None
        # The threads of a training are started in its first steps.
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
        """Those that ran most, this one not among them."""
        try:
            numbers = [int(name) for name in os.listdir("/proc/self/task")][:_MOST_LISTED]  # noqa: PTH208
        except (OSError, ValueError):
            return
        own = threading.get_native_id()
        tasks = {}
        for number in numbers:
            if number not in (own, trains):
                task = self._threads.pop(number, None) or _Task(f"/proc/self/task/{number}/schedstat")
                if task.spent_ns or task.read():
                    tasks[number] = task
        for task in self._threads.values():
            task.close()
        kept = sorted(tasks, key=lambda number: -tasks[number].spent_ns)[:_MOST_THREADS]
        for number in tasks.keys() - set(kept):
            tasks[number].close()
        self._threads = {number: tasks[number] for number in kept}

    def _find_workers(self, trains: int) -> None:
        try:
            with open(f"/proc/self/task/{trains}/children", "rb") as file:  # noqa: PTH123  (a file of the system's)
                numbers = [int(number) for number in file.read(4096).split()][:_MOST_WORKERS]
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
# How many batches lie ready in a DataLoader's queue when the training asks for one. Read from private fields of
# ``torch.utils.data``, which has no public ones for it.


def queue_of(iterator: Any) -> LoaderQueue | None:
    """The queue of a DataLoader's iterator that is asked for a batch now. None without worker processes; while it fills
    up at the begin of an epoch, and runs dry at its end, because no batch is left to load; and where it is not known.

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
