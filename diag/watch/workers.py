"""The training processes that this launcher started: their ranks, their end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import RankExit
from diag.rundir.lines import read_identity
from diag.rundir.runs import recording_environment

_POLL_S = 0.05


@dataclass(frozen=True)
class Worker:
    """A training process, child of this one. A pid that was given to another process meanwhile is recognised."""

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

    def send(self, number: int) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            if self.alive:
                self.process.send_signal(number)


def recorded_workers_of(layout: RunLayout) -> tuple[Worker, ...]:
    """Processes that this one or its children started, and that said themselves which rank of this run they are."""
    below = {process.pid: process for process in psutil.Process().children(recursive=True)}
    found = []
    for rank, files in layout.newest().ranks().items():
        _, pid = recorded_process(files)
        if pid in below:
            found.append(Worker(rank, below[pid]))
    return tuple(found)


def recorded_process(files: RankLayout) -> tuple[str, int]:
    """Host and pid, as the rank has written them; ("", 0) before that."""
    identity, _ = read_identity(files)
    return (identity.host, identity.pid) if identity is not None else ("", 0)


def workers_of(layout: RunLayout) -> tuple[Worker, ...]:
    """Children of this process that train into this run directory, by rank. Those of other nodes are not among them."""
    found = []
    for process in psutil.Process().children():
        environment = recording_environment(layout, process.pid)
        if environment.get("RANK", "").isdecimal():
            found.append(Worker(int(environment["RANK"]), process))
    return tuple(sorted(found, key=lambda worker: worker.rank))


def end(workers: Iterable[Worker], grace_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """SIGTERM, and after ``grace_s`` seconds SIGKILL, to the processes and what they started (sessions)."""
    workers = tuple(workers)
    for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        living = [worker for worker in workers if worker.alive]
        for worker in living:
            _signal_all(worker, number)
        deadline = time.monotonic() + seconds
        while any(worker.alive for worker in living) and time.monotonic() < deadline:
            sleep(_POLL_S)


def _signal_all(worker: Worker, number: int) -> None:
    try:
        leads = os.getpgid(worker.pid) == worker.pid
    except OSError:
        return
    if not leads:
        worker.send(number)
        return
    with contextlib.suppress(OSError):
        os.killpg(worker.pid, number)


# -- hang exits --------------------------------------------------------------------------------------------------------
#
# How the training's processes end under a launcher that is not ours: who failed first, and with which exit code.
#
# Their launcher takes them away and says little of it, and then ends the others. Linux tells when any process has ended
# (a pidfd), and how for as long as nobody has taken it away (/proc). Elsewhere nothing is watched.

_LEAST_S, _MOST_S = 0.25, 16.0  # between two looks for ranks; longer when some have come, and no others
_SETTLE_S = 10.0  # after a rank has come the others do: on a busy host seconds later, and may end in their first second
_MOST_RANKS = 4_096  # the launcher of every node reads who they are
_EXIT_CODE = 49  # of /proc/PID/stat, behind the name of the program


@dataclass(eq=False)  # one is itself only
class _Attempt:
    """The ranks of one run directory: a restart has one of its own."""

    layout: RunLayout
    seen: set[int] = field(default_factory=set)  # ranks, of whichever host
    ended: dict[int, int | None] = field(default_factory=dict)  # exit codes; None: somebody was faster
    first: frozenset[int] = frozenset()  # that failed before anybody else did


class ExitWatch:
    """Watches the processes of this host that record into a run, from ``start`` to ``stop``."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._attempts: dict[Path, _Attempt] = {}
        self._watched: dict[int, tuple[_Attempt, int, int]] = {}  # by pidfd: of which attempt, rank, pid
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
        """The attempts in which a process failed, with the processes whose end was seen."""
        if self._wake is None:
            return []
        self._stopped.set()
        os.write(self._wake[1], b"\0")
        self._thread.join()
        for descriptor in (*self._wake, *self._watched):
            os.close(descriptor)
        return [(one.layout, _exits(one)) for one in self._attempts.values() if any(one.ended.values())]

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks whose end will be seen."""
        return frozenset(rank for _, rank, _ in list(self._watched.values()))

    def _run(self) -> None:
        assert self._poll is not None
        assert self._wake is not None
        wait_s, last, came_s = _LEAST_S, False, time.monotonic()
        while not last:
            last = self._stopped.is_set()  # one more time: somebody may have ended just before
            came_s = time.monotonic() if self._look() else came_s
            wait_s = _LEAST_S if time.monotonic() - came_s < _SETTLE_S else min(2 * wait_s, _MOST_S)
            ended = [descriptor for descriptor, _ in self._poll.poll(wait_s * 1000) if descriptor != self._wake[0]]
            self._note(ended)
            wait_s = _LEAST_S if ended else wait_s  # a restart may follow

    def _look(self) -> bool:
        """Whether to look again soon: nobody has come yet, or somebody has just now."""
        layout = self._layout.newest()
        attempt = self._attempts.setdefault(layout.root, _Attempt(layout))
        found = False
        ranks = layout.ranks()
        if len(ranks) > _MOST_RANKS:
            return False
        for rank, files in ranks.items():
            if rank in attempt.seen:
                continue
            host, pid = recorded_process(files)
            if pid:
                attempt.seen.add(rank)
                found = True
            if pid and host == socket.gethostname():
                self._watch(attempt, rank, pid)
        return found or not attempt.seen

    def _watch(self, attempt: _Attempt, rank: int, pid: int) -> None:
        assert self._poll is not None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it was faster than we
            attempt.ended[rank] = None
            return
        if not recording_environment(self._layout, pid):  # of another container, or another process has its number
            os.close(descriptor)
            attempt.ended[rank] = None
            return
        self._watched[descriptor] = attempt, rank, pid
        self._poll.register(descriptor, select.POLLIN)

    def _note(self, ended: Sequence[int]) -> None:
        """Of those that ended at once nobody is known to be the first."""
        assert self._poll is not None
        codes = [(attempt, rank, _exit_code(pid)) for attempt, rank, pid in map(self._watched.__getitem__, ended)]
        for attempt in {attempt for attempt, _, _ in codes}:
            own = {rank: code for one, rank, code in codes if one is attempt}
            if not any(attempt.ended.values()) and None not in {*attempt.ended.values(), *own.values()}:
                attempt.first = frozenset(rank for rank, code in own.items() if code)
            attempt.ended |= own
        for descriptor in ended:
            self._poll.unregister(descriptor)
            del self._watched[descriptor]
            os.close(descriptor)


def _exits(attempt: _Attempt) -> list[RankExit]:
    ended = sorted((rank, code) for rank, code in attempt.ended.items() if code is not None)
    return [RankExit(rank, code, first=rank in attempt.first and code != -signal.SIGTERM) for rank, code in ended]


def _exit_code(pid: int) -> int | None:
    """Of a process that has ended and was not taken away yet."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return os.waitstatus_to_exitcode(int(told[_EXIT_CODE]))
    return None
