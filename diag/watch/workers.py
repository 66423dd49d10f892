"""The training processes that this launcher started: their ranks and exits."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import RankExit
from diag.errors import DiagError
from diag.rundir.lines import read_identity
from diag.rundir.runs import recording_environment
from diag.watch.policy import WATCHING


@dataclass(frozen=True)
class Worker:
    """A training process, child of this one. A reused pid is detected."""

    rank: int
    process: psutil.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        try:
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it: it answers nothing, and cannot be stopped once more to look at it."""
        try:
            return self.process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def send(self, number: int) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            if self.alive:
                self.process.send_signal(number)


def recorded_workers_of(layout: RunLayout) -> tuple[Worker, ...]:
    """Processes that this one or its children started, and that recorded themselves as ranks of this run."""
    descendants = {process.pid: process for process in psutil.Process().children(recursive=True)}
    workers = []
    for rank, files in layout.newest().ranks().items():
        _, pid = recorded_process(files)
        if pid in descendants:
            workers.append(Worker(rank, descendants[pid]))
    return tuple(workers)


def recorded_process(files: RankLayout) -> tuple[str, int]:
    """Host and pid that the rank has written; ("", 0) before that."""
    try:
        identity, _ = read_identity(files)
    except DiagError:  # recorded by a newer version, in the training's own environment
        return "", 0
    return (identity.host, identity.pid) if identity is not None else ("", 0)


def workers_of(layout: RunLayout) -> tuple[Worker, ...]:
    """Children of this process that record into this run directory, by rank, without those of other nodes."""
    workers = []
    for process in psutil.Process().children():
        environment = recording_environment(layout, process.pid)
        if environment.get("RANK", "").isdecimal():
            workers.append(Worker(int(environment["RANK"]), process))
    return tuple(sorted(workers, key=lambda worker: worker.rank))


def end(workers: Iterable[Worker], grace_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sends SIGTERM, and after ``grace_s`` seconds SIGKILL, to the processes and their process groups."""
    workers = tuple(workers)
    for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        living = [worker for worker in workers if worker.alive]
        for worker in living:
            _signal_all(worker, number)
        deadline = time.monotonic() + seconds
        while any(worker.alive for worker in living) and time.monotonic() < deadline:
            sleep(WATCHING.poll_workers_s)


def _signal_all(worker: Worker, number: int) -> None:
    try:
        is_group_leader = os.getpgid(worker.pid) == worker.pid
    except OSError:
        return
    if not is_group_leader:
        worker.send(number)
        return
    with contextlib.suppress(OSError):
        os.killpg(worker.pid, number)


# -- hang exits --------------------------------------------------------------------------------------------------------
#
# Exits of the training's processes under another launcher: the first one to fail, and the exit codes.
#
# That launcher reaps them, reports little, and then ends the others. Linux reports when any process has exited (a
# pidfd), and its exit code: until it is reaped in /proc, and afterwards, from Linux 6.15 on, by the pidfd. On other
# systems nothing is watched.

_EXIT_CODE = 49  # index in /proc/PID/stat, after the name of the program
# linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info) with the structure's first 64 bytes, whose last four are the status.
_GET_INFO, _INFO_BYTES, _INFO_EXIT, _STATUS_AT = 0xC040FF0B, 64, 1 << 3, 60


@dataclass(eq=False)  # compared by identity
class _Attempt:
    """The ranks of one run directory; each restart has its own."""

    layout: RunLayout
    seen: set[int] = field(default_factory=set)  # ranks of any host
    ended: dict[int, int | None] = field(default_factory=dict)  # exit codes; None: reaped before it was read
    first: frozenset[int] = frozenset()  # ranks that failed before all others


class ExitWatch:
    """Watches the processes of this host that record into a run, from ``start`` to ``stop``."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._attempts: dict[Path, _Attempt] = {}
        self._watched: dict[int, tuple[_Attempt, int, int]] = {}  # by pidfd: attempt, rank, pid
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._stopped = threading.Event()
        self._wake: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="diag-exits", daemon=True)

    def start(self) -> None:
        if hasattr(os, "pidfd_open") and self._poll is not None:
            self._wake = os.pipe()
            self._poll.register(self._wake[0], select.POLLIN)
            self._thread.start()

    def stop(self) -> list[tuple[RunLayout, list[RankExit]]]:
        """The attempts in which a process failed, with the processes whose exit was seen."""
        if self._wake is None:
            return []
        self._stopped.set()
        os.write(self._wake[1], b"\0")
        self._thread.join()
        for descriptor in (*self._wake, *self._watched):
            os.close(descriptor)
        return [(attempt.layout, _exits(attempt)) for attempt in self._attempts.values() if any(attempt.ended.values())]

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks whose exit will be seen."""
        return frozenset(rank for _, rank, _ in list(self._watched.values()))

    def _run(self) -> None:
        assert self._poll is not None
        assert self._wake is not None
        wait_s, last, last_new_s = WATCHING.least_look_s, False, time.monotonic()
        while not last:
            last = self._stopped.is_set()  # one more time: a process may have exited just before
            last_new_s = time.monotonic() if self._look() else last_new_s
            wait_s = (
                WATCHING.least_look_s
                if time.monotonic() - last_new_s < WATCHING.settle_s
                else min(2 * wait_s, WATCHING.longest_look_s)
            )
            descriptors = [
                descriptor for descriptor, _ in self._poll.poll(wait_s * 1000) if descriptor != self._wake[0]
            ]
            self._note(descriptors)
            wait_s = WATCHING.least_look_s if descriptors else wait_s  # a restart may follow

    def _look(self) -> bool:
        """Looks for new ranks. Returns whether to look again soon: no rank has appeared yet, or one has just now."""
        layout = self._layout.newest()
        attempt = self._attempts.setdefault(layout.root, _Attempt(layout))
        has_new = False
        ranks = layout.ranks()
        if len(ranks) > WATCHING.most_identities_read:
            return False
        for rank, files in ranks.items():
            if rank in attempt.seen:
                continue
            host, pid = recorded_process(files)
            if pid:
                attempt.seen.add(rank)
                has_new = True
            if pid and host == socket.gethostname():
                self._watch(attempt, rank, pid)
        return has_new or not attempt.seen

    def _watch(self, attempt: _Attempt, rank: int, pid: int) -> None:
        assert self._poll is not None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it has exited already
            attempt.ended[rank] = None
            return
        if not recording_environment(self._layout, pid):  # in another container, or the pid was reused
            os.close(descriptor)
            attempt.ended[rank] = None
            return
        self._watched[descriptor] = attempt, rank, pid
        self._poll.register(descriptor, select.POLLIN)

    def _note(self, descriptors: Sequence[int]) -> None:
        """Notes exits. Of processes that exited together, the first is not known."""
        assert self._poll is not None
        codes = []
        for descriptor in descriptors:
            attempt, rank, pid = self._watched[descriptor]
            code = _exit_code(pid)
            codes.append((attempt, rank, code if code is not None else _code_of_reaped(descriptor)))
        for attempt in {attempt for attempt, _, _ in codes}:
            codes_of_attempt = {rank: code for owner, rank, code in codes if owner is attempt}
            if not any(attempt.ended.values()) and None not in {*attempt.ended.values(), *codes_of_attempt.values()}:
                attempt.first = frozenset(rank for rank, code in codes_of_attempt.items() if code)
            attempt.ended |= codes_of_attempt
        for descriptor in descriptors:
            self._poll.unregister(descriptor)
            del self._watched[descriptor]
            os.close(descriptor)


def _exits(attempt: _Attempt) -> list[RankExit]:
    ended = sorted((rank, code) for rank, code in attempt.ended.items() if code is not None)
    return [RankExit(rank, code, first=rank in attempt.first) for rank, code in ended]


def _code_of_reaped(descriptor: int) -> int | None:
    """The exit code of a process that was reaped, by its pidfd; None on a kernel before 6.15."""
    import fcntl  # only where there are pidfds

    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    (known,), (status,) = struct.unpack_from("=Q", info), struct.unpack_from("=i", info, _STATUS_AT)
    return os.waitstatus_to_exitcode(status) if known & _INFO_EXIT else None


def _exit_code(pid: int) -> int | None:
    """The exit code of a process that has exited and is not reaped yet."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
    return None
