"""``python -m diag.watch.attached RUN``: the watcher of a training whose ranks another launcher starts.

The process that has rank 0 starts it (``diag.collectors.watching``). It reads the run, writes its lines to the standard
error of a rank, and sends messages as DIAG_NOTIFY and DIAG_ON_EVENT say. It sends the training no signal, holds none of
its files, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.living import process_runs
from diag.collectors.packing import packing_from
from diag.collectors.watching import watcher_lock
from diag.errors import DiagError
from diag.rundir.following import followed
from diag.rundir.lines import read_identity
from diag.rundir.local import local_path
from diag.words.formatting import masked
from diag.words.places import show_as

from .events import Event, line_of
from .follow import Follower
from .hang_monitor import take_back
from .keeping import keep_around
from .notify import Notifier, addresses, command_of
from .policy import WATCHING


class JobLog:
    """The standard error of the first rank of this host that lives. Where that is the file that this process was
    given, it is written to through that. Else it is opened for each line: a launcher waits until nobody has its pipes
    open any more."""

    def __init__(self, run: RunLayout) -> None:
        self._run = run

    def say(self, text: str) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):  # closed, a socket, or the reader does not read
                with _opened(f"/proc/{pid}/fd/2") as descriptor:
                    os.write(descriptor, f"diag: {text}\n".encode(errors="replace"))
                return

    def processes(self) -> Iterator[int]:
        """Of the ranks of this host that run, in order of rank."""
        try:
            ranks = self._run.newest().ranks()
        except OSError:
            return
        for files in ranks.values():
            if (pid := _running(files)) is not None:
                yield pid


@contextmanager
def _opened(path: str) -> Iterator[int]:
    if stat.S_ISREG(os.fstat(2).st_mode) and os.path.samestat(os.fstat(2), os.stat(path)):  # noqa: PTH116
        yield 2
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _running(files: RankLayout) -> int | None:
    try:
        identity, _ = read_identity(files)
    except DiagError:  # recorded by a newer version, in the training's own environment
        return None
    return identity.pid if identity is not None and process_runs(identity) else None


def watch(run: RunLayout) -> None:
    """Until the training has ended, or a minute after rank 0 has."""
    log = JobLog(run)
    try:
        urls = addresses([])
    except DiagError as error:  # Apprise is not installed
        urls = []
        log.say(f"no messages are sent: {error.message}")
    notifier = Notifier(urls, command_of(""), log.say)

    packing = packing_from()

    def tell(event: Event) -> None:
        log.say(line_of(event))
        notifier.tell(event)
        if event.goes_on:
            take_back(run.newest())

    def keep(event: Event, attempt: RunLayout) -> None:
        keep_around(event, attempt, packing)

    try:
        with _where_all_ranks_are(run, log) as whole:
            follower = Follower(whole, tell, keep) if whole is not None else None
            ends_s: float | None = None
            while follower is not None and follower.look().live:
                if _running(run.newest().rank(0)) is not None:
                    ends_s = None  # also of a training that its launcher has started again
                elif ends_s is None:
                    ends_s = time.monotonic() + WATCHING.afterwards_s
                elif time.monotonic() >= ends_s:
                    break
                time.sleep(WATCHING.look_s)
    finally:
        notifier.stop()


@contextmanager
def _where_all_ranks_are(run: RunLayout, log: JobLog) -> Iterator[RunLayout | None]:
    """The run itself, or if each node packs its own ranks, the local copy of what they have stored; None if rank 0 ends
    before anything is stored."""
    packing = packing_from()
    if packing is None:
        yield run
        return
    while not _is_stored(packing.to):
        if _running(run.newest().rank(0)) is None:
            yield None
            return
        time.sleep(packing.interval_s)
    with followed(packing.to, log.say) as local:
        show_as({local: masked(packing.to.rstrip("/"))})
        yield RunLayout(local)


def _is_stored(address: str) -> bool:
    try:
        return RunLayout(local_path(address)).is_run()
    except DiagError:  # nothing yet, or the store is away
        return False


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(WATCHING.niceness)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  (standard error may be the job's log)
    run = RunLayout(Path(sys.argv[1]))
    lock = watcher_lock(run.root)
    try:
        if not lock.hold():  # another one watches
            return
    except OSError:  # rank 0 says why
        return
    try:
        watch(run)
    finally:
        lock.release()


if __name__ == "__main__":
    main()
