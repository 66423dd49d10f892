"""Who of the processes that another launcher started failed first, and how."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RUN_DIR_VARIABLE, RunLayout
from diag.collectors.records import RankExit, RankRecord
from diag.watch import workers
from diag.watch.workers import ExitWatch
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")


class Job:
    """Ranks that do nothing until they are told how to end."""

    def __init__(self, folder: Path) -> None:
        self.layout = RunLayout(folder)
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.watch = ExitWatch(self.layout)

    def starts(self, *ranks: int, known: bool = True) -> None:
        environment = {**os.environ, RUN_DIR_VARIABLE: str(self.layout.root.resolve())} if known else dict(os.environ)
        code = "import sys; sys.exit(int(sys.stdin.readline()))"
        for rank in ranks:
            started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment)
            self.ranks[rank] = started
            self.says_who_it_is(rank, started.pid)

    def says_who_it_is(self, rank: int, pid: int, host: str = "") -> None:
        files = self.layout.newest().rank(rank)
        files.folder.mkdir(parents=True, exist_ok=True)
        who = RankRecord(rank, rank, 1, host or socket.gethostname(), pid, "", 0, 0, "cpu")
        files.identity.write_bytes(encode(who))

    def is_watched(self, *ranks: int) -> None:
        """Waits for it: a process that ends before that is not seen."""
        wait_for(lambda: self.watch.awaited.issuperset(ranks))

    def ends(self, rank: int, code: int = 0) -> None:
        """Its launcher takes it away when the watch has seen its end."""
        process = self.ranks[rank]
        if code < 0:
            process.send_signal(-code)
        else:
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % code)
            process.stdin.flush()
        wait_for(lambda: rank not in self.watch.awaited)
        process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path / "run")
    found.watch.start()
    yield found
    for process in found.ranks.values():
        process.kill()
        process.communicate()


def test_the_first_that_failed(job: Job) -> None:
    job.starts(0, 1, 2)
    job.is_watched(0, 1, 2)
    job.ends(2)
    job.ends(1, -signal.SIGKILL)
    job.ends(0, -signal.SIGTERM)
    ((layout, exits),) = job.watch.stop()
    assert layout == job.layout
    assert exits == [RankExit(0, -signal.SIGTERM), RankExit(1, -signal.SIGKILL, first=True), RankExit(2, 0)]


def test_nobody_failed(job: Job) -> None:
    job.starts(0, 1)
    job.is_watched(0, 1)
    job.ends(0)
    job.ends(1)
    assert job.watch.stop() == []


def test_a_restart_is_another_attempt(job: Job) -> None:
    job.starts(0)
    job.is_watched(0)
    job.ends(0, 3)
    job.layout.restart(1).root.mkdir()
    job.starts(0)
    job.is_watched(0)
    job.ends(0)
    assert job.watch.stop() == [(job.layout, [RankExit(0, 3, first=True)])]


@pytest.mark.parametrize("known", [True, False])
def test_whose_end_nobody_saw_may_have_been_the_first(job: Job, known: bool) -> None:
    """Gone before it was looked at, or a number that another process has now."""
    job.starts(0, known=known)
    if known:
        job.ranks[0].kill()
        job.ranks[0].wait()
    job.starts(1)
    job.is_watched(1)
    job.ends(1, 1)
    assert job.watch.stop() == [(job.layout, [RankExit(1, 1)])]


def test_ranks_of_other_hosts_are_not_looked_for(job: Job) -> None:
    job.says_who_it_is(0, os.getpid(), host="elsewhere")
    job.starts(1)
    job.is_watched(1)
    job.ends(1, 1)
    assert job.watch.stop() == [(job.layout, [RankExit(1, 1, first=True)])]


@pytest.mark.parametrize("code", [3, -signal.SIGKILL])
def test_an_exit_code_is_read_after_the_launcher_has_reaped_the_process(
    job: Job, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """On a busy host it does so before the watch looks: a rank that was killed seemed to be one that never arrived."""
    read = workers._code_of_reaped
    process = subprocess.Popen([sys.executable, "-c", ""])
    descriptor = os.pidfd_open(process.pid)
    process.wait()
    kept = read(descriptor)
    os.close(descriptor)
    if kept is None:
        pytest.skip("Linux before 6.15")
    monkeypatch.setattr(workers, "_exit_code", lambda pid: None)
    monkeypatch.setattr(workers, "_code_of_reaped", lambda pidfd: job.ranks[1].wait() and read(pidfd))
    job.starts(0, 1)
    job.is_watched(0, 1)
    job.ends(1, code)
    assert job.watch.stop() == [(job.layout, [RankExit(1, code, first=True)])]
