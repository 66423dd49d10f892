"""The watcher of a training that another launcher starts: it says what it sees in the job's log, and ends with it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from diag import processes
from diag.collectors.keeping import Keeper
from diag.collectors.layout import RunLayout
from diag.collectors.policy import KEEPING
from diag.collectors.settings import CollectorSettings, attached
from diag.collectors.watching import WATCH_VARIABLE, Watching, watcher_lock, watching_from
from tests.command import diag_process
from tests.patience import until

RANK = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from diag.collectors.layout import RunLayout
from diag.collectors.records import Heartbeat, RankRecord
from diag.collectors.watching import keeper_of, watching_from
import socket
files = RunLayout(Path(os.environ["DIAG_RUN_DIR"])).rank(0)
files.folder.mkdir(parents=True)
about = RankRecord(0, 0, 1, socket.gethostname(), os.getpid(), "", 0, time.time_ns(), "cpu")
files.identity.write_text(json.dumps(asdict(about)))
now = time.monotonic_ns()
ends = [now - 10**9 * (81 - n) for n in range(9)]
steps = [{"step": n, "begin_ns": end - 10**9, "end_ns": end, "phases": []} for n, end in enumerate(ends)]
files.steps.write_text("".join(json.dumps(step) + "\\n" for step in steps))
keeper = keeper_of(watching_from(), print)
keeper.start()
for line in sys.stdin:  # the training raised, and its process stays
    done = line.strip() == "done"
    print("the training prints a line", file=sys.stderr, flush=True)
    beat = Heartbeat(time.time_ns(), time.monotonic_ns(), 9, line.strip(), steps=9, done=done)
    files.heartbeat.write_text(json.dumps(asdict(beat)))
"""


def variables(run: Path, **more: str) -> dict[str, str]:
    watching = Watching(str(run.resolve()), sys.executable, processes.__file__)
    return {**os.environ, **attached(run, CollectorSettings()), WATCH_VARIABLE: watching.to_json(), **more}


def test_it_is_set_by_attach_and_can_be_left_out(tmp_path: Path) -> None:
    for option, expected in (("--watch", True), ("--no-watch", False)):
        run = tmp_path / option
        done = diag_process("attach", "--out", run, "--format", "json", option)
        assert (watching_from(json.loads(done.stdout)) is not None) is expected


def test_a_training_of_another_launcher_is_not_watched_twice(tmp_path: Path) -> None:
    environ = variables(tmp_path / "run")
    assert watching_from(environ) is not None
    assert watching_from(environ | {"DIAG_RUN_DIR": str(tmp_path / "other")}) is None
    assert watching_from(environ | {WATCH_VARIABLE: '{"run": 3}'}) is None


@contextmanager
def rank_of(run: Path, log: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as stderr:  # as a shell redirects it: who opens the file anew writes elsewhere
        process = subprocess.Popen(
            [sys.executable, "-c", RANK], env=variables(run, **more), stdin=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def is_free(run: Path) -> bool:
    return watcher_lock(run).is_free()


def watcher_of(run: Path) -> psutil.Process | None:
    """The process that watches the run, while there is one."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if str(run) in words and "diag.watch.attached" in words:
            return process
    return None


def test_a_line_in_the_log_a_message_and_an_end_with_the_job(tmp_path: Path) -> None:
    run, log, events = tmp_path / "run", tmp_path / "log", tmp_path / "events"
    run.mkdir()
    RunLayout(run).manifest.write_text("{}")
    with rank_of(run, log, DIAG_ON_EVENT=f"cat >> {shlex.quote(str(events))}") as rank:
        assert rank.stdin is not None
        rank.stdin.write("failed: RuntimeError\n")
        rank.stdin.flush()
        until(lambda: "diag: step 8: The training is stuck" in log.read_text())
        until(lambda: events.exists() and events.read_text().endswith("\n"))
        event = json.loads(events.read_text().splitlines()[0])
        assert (event["kind"], event["ranks"]) == ("stuck", [0])
        printed = log.read_text().splitlines()
        assert len(printed) == 2
        assert printed[0] == "the training prints a line"
        assert not is_free(run)
        assert psutil.Process(rank.pid).children() == []
        killed = watcher_of(run)
        assert killed is not None
        killed.kill()  # another takes over, and repeats nothing
        until(lambda: watcher_of(run) not in (None, killed))
        rank.stdin.write("done\n")
        rank.stdin.flush()
        until(lambda: '"done": true' in RunLayout(run).rank(0).heartbeat.read_text())
        assert log.read_text().splitlines() == [*printed, "the training prints a line"]
        rank.kill()
        rank.wait()
        until(lambda: is_free(run))


def test_one_that_ends_each_time_is_started_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Stop:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 9

    started: list[Callable[[], None]] = []
    keeper = Keeper("test", lambda: False, lambda: started.append(lambda: None), lambda _error: None)
    monkeypatch.setattr(keeper, "_stop", Stop())
    keeper._keep()
    assert pauses == [min(KEEPING.look_s * 2**n, KEEPING.longest_pause_s) for n in range(1, 10)]
    assert len(started) == 9
