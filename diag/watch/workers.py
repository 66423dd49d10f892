"""The training processes that this launcher started: their ranks, their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.reading import read_object
from diag.collectors.settings import RUN_DIR_VARIABLE

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
    identity = read_object(files.identity, files.run)
    try:
        return str(identity["host"]), int(identity["pid"])
    except (ValueError, KeyError, TypeError):
        return "", 0


def workers_of(layout: RunLayout) -> tuple[Worker, ...]:
    """Children of this process that train into this run directory, by rank. Those of other nodes are not among them."""
    found = []
    for process in psutil.Process().children():
        environment = recording_environment(layout, process.pid)
        if environment.get("RANK", "").isdecimal():
            found.append(Worker(int(environment["RANK"]), process))
    return tuple(sorted(found, key=lambda worker: worker.rank))


def recording_environment(layout: RunLayout, pid: int) -> dict[str, str]:
    """The environment of a process that records into this run, whoever started it; empty of any other."""
    try:
        environment = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}
    return environment if environment.get(RUN_DIR_VARIABLE) == str(layout.root.resolve()) else {}


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
