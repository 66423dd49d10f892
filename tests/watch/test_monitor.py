"""The monitor on small processes that only beat: evidence of all of them, their end, and nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import CRASH, HANG, Asked
from diag.watch.hang_monitor import HangState, Limits, Monitor, gather
from diag.watch.policy import WATCHING
from diag.watch.workers import Worker, end, workers_of
from tests.patience import PATIENCE_S

FAKE = Path(__file__).with_name("fake_rank.py")
SOON = Limits(hang_s=1.0, setup_s=60, busy_s=60)

Start = Callable[..., list["subprocess.Popen[bytes]"]]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


@pytest.fixture
def start(layout: RunLayout) -> Iterator[Start]:
    """Starts a fake training, one process a mode, and waits for all first heartbeats."""
    started: list[subprocess.Popen[bytes]] = []

    def all_ranks(*modes: str) -> list[subprocess.Popen[bytes]]:
        for rank, mode in enumerate(modes):
            environment = {**os.environ, "RANK": str(rank), "DIAG_RUN_DIR": str(layout.root.resolve())}
            command = [sys.executable, str(FAKE), mode]
            started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        deadline = time.monotonic() + PATIENCE_S
        while len(list(layout.root.glob("ranks/*/heartbeat.json"))) < len(modes) and time.monotonic() < deadline:
            time.sleep(0.02)
        return started

    yield all_ranks
    for process in started:
        process.kill()
        process.wait()


def write(files: RankLayout, now_s: float, **fields: object) -> None:
    """A heartbeat of a rank that waits in a collective, unless the fields say something else."""
    content = {
        "unix_ns": 0,
        "step": 5,
        "steps": 5,
        "phase": "forward",
        "last_started": {"0": 9},
        "last_finished": {"0": 8},
    }
    files.heartbeat.write_text(json.dumps({**content, "monotonic_ns": int(now_s * 1e9), **fields}))


def test_a_hang_is_found_explained_and_ended(layout: RunLayout, start: Start) -> None:
    processes = start("hangs", "away", "hangs")
    said: list[str] = []
    monitor = Monitor(layout, SOON, said.append, interval_s=0.1, grace_s=5)
    monitor.start()
    codes = [process.wait(PATIENCE_S) for process in processes]
    monitor.stop()
    assert codes == [-signal.SIGTERM] * 3
    assert monitor.hang is not None
    assert (monitor.hang.waiting, monitor.hang.away) == ((0, 2), ((1, "forward"),))
    assert (monitor.hang.ended_by_diag, monitor.hang.ended) == (True, (0, 1, 2))
    assert monitor.hang.still_s >= monitor.hang.limit_s == 1.0
    assert len(said) == 1
    assert "ranks 0, 2 wait in a collective, rank 1 is in forward" in said[0]
    for rank in range(3):
        assert "fake_rank.py" in layout.rank(rank).stacks.read_text()
        assert json.loads(layout.rank(rank).heartbeat.read_text())["answered"] == 1, "asked once for one standstill"


def test_a_training_that_was_restarted_is_followed(layout: RunLayout) -> None:
    """Its first attempt has left heartbeats that nobody writes any more."""
    now_s, said = 0.0, list[str]()
    monitor = Monitor(layout, SOON, said.append, expected=tuple, clock=lambda: now_s, ends=False)
    again = layout.restart(1)
    for run in (layout, again):
        for rank in (0, 1):
            run.rank(rank).folder.mkdir(parents=True)
        for _ in range(2 if run == layout else 7):
            now_s += 0.25
            write(run.rank(0), now_s)
            write(run.rank(1), now_s, last_started={"0": 8})
            found = monitor.look()
    assert found.state == HangState.HUNG
    assert said == ["hang: no progress for 1 s; rank 0 waits in a collective, rank 1 is in forward"]
    assert again.asked.exists()
    assert not layout.asked.exists()


def test_who_ignores_sigterm_is_killed(layout: RunLayout, start: Start) -> None:
    processes = start("stubborn", "away")
    end(workers_of(layout), grace_s=0.5)
    assert [process.wait(PATIENCE_S) for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]


def test_only_processes_of_this_run_are_ended(layout: RunLayout, start: Start, tmp_path: Path) -> None:
    start("away")
    environment = {**os.environ, "RANK": "0", "DIAG_RUN_DIR": str(tmp_path / "another")}
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    stranger = subprocess.Popen(command, env=environment)
    try:
        end(workers_of(layout), grace_s=5)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_never_said_it_takes_the_signal_is_not_sent_it(layout: RunLayout, start: Start) -> None:
    """SIGUSR2 would end it. It does not answer either, and is not waited for longer than told."""
    mute, other = start("mute", "hangs")
    gather(layout, workers_of(layout), HANG, answer_s=1.0)
    assert (mute.poll(), other.poll()) == (None, None)
    assert not layout.rank(0).stacks.exists()
    assert layout.rank(1).stacks.stat().st_size > 0
    asked = Asked(**json.loads(layout.asked.read_text()))
    assert (asked.number, asked.why) == (1, HANG)
    gather(layout, workers_of(layout), CRASH, number=2, answer_s=1.0)
    assert json.loads(layout.asked.read_text())["number"] == 2
    assert json.loads(layout.rank(1).heartbeat.read_text())["answered"] == 2


def test_tools_that_hang_fail_or_are_missing_cost_time_and_nothing_else(
    layout: RunLayout, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name, script in (("py-spy", "echo partly; exit 1"), ("nvidia-smi", "echo gpus; exec sleep 600")):
        tool = tmp_path / "bin" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(vars(WATCHING), "tool_s", 0.3)
    start("hangs")
    gather(layout, workers_of(layout), HANG)
    assert not list(layout.root.glob("nvidia-smi*"))
    assert not layout.rank(0).pyspy.exists()
    assert not list(layout.root.rglob("*.part"))


def test_the_driver_s_view_and_py_spy_s_stacks_are_kept(
    layout: RunLayout, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("py-spy", "nvidia-smi"):
        tool = tmp_path / "bin" / name
        tool.write_text('#!/bin/sh\necho "$0 $*"\n')
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (process,) = start("hangs")
    gather(layout, workers_of(layout), HANG)
    assert layout.rank(0).pyspy.read_text().endswith(f"py-spy dump --pid {process.pid}\n")
    (view,) = layout.root.glob("nvidia-smi-*.txt")
    assert view.read_text().endswith("nvidia-smi -q\n")


def test_py_spy_looks_at_a_stopped_process_without_stopping_it(
    layout: RunLayout, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not: the process is stopped already, and py-spy ends with an error."""
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$*"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    (process,) = start("hangs")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    try:
        gather(layout, workers_of(layout), HANG, answer_s=0.1)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert layout.rank(0).pyspy.read_text() == f"dump --nonblocking --pid {process.pid}\n"


def test_a_training_that_moves_is_left_alone(layout: RunLayout) -> None:
    """Heartbeats of one rank, written by the test: a step a second on the monitor's clock."""
    now = 0.0
    files = layout.rank(0)
    files.folder.mkdir(parents=True)
    monitor = Monitor(layout, SOON, pytest.fail, expected=lambda: (), clock=lambda: now)
    for second in range(100):
        now = float(second)
        write(files, now, step=second, steps=second, phase="data", last_started={"0": second}, last_finished={})
        assert monitor.look().state == HangState.MOVING
    assert monitor.hang is None
    assert monitor.failed() is None
    assert not layout.asked.exists()


def test_a_training_that_fails_while_it_stands_still_hung(layout: RunLayout) -> None:
    """The collectives' own time-out ends the ranks that wait, and their last heartbeats are of something else."""
    now = 0.0
    files = layout.rank(0)
    files.folder.mkdir(parents=True)
    monitor = Monitor(layout, Limits(100, 100, 300), pytest.fail, expected=lambda: (), clock=lambda: now)
    write(files, now)
    monitor.look()
    assert monitor.failed() is None
    now = 90.0
    write(files, now)
    monitor.look()
    now = 91.0
    write(files, now, phase="failed: RuntimeError")
    monitor.look()
    hang = monitor.failed()
    assert hang is not None
    assert layout.asked.exists(), "what was gathered before is kept"
    assert (hang.still_s, hang.ended_by_diag) == (90.0, False)


def test_a_training_that_goes_on_is_asked_nothing_any_more(layout: RunLayout) -> None:
    now = 0.0
    files = layout.rank(0)
    files.folder.mkdir(parents=True)
    monitor = Monitor(layout, Limits(100, 100, 300), pytest.fail, expected=lambda: (), clock=lambda: now)
    for second, step in ((0.0, 5), (90.0, 5), (95.0, 6), (190.0, 6)):
        now = second
        write(files, now, step=step)
        state = monitor.look().state
        assert layout.asked.exists() == (state == HangState.DOUBTFUL) == (second in (90.0, 190.0))
        if second == 90.0:  # as its answers would be
            files.flight_recorder_asked(0).write_text("a dump")
            files.stacks.write_text("Current thread ...")
        elif second == 95.0:
            assert not files.flight_recorder_asked(0).exists()
            assert files.stacks.read_text() == ""
    assert json.loads(layout.asked.read_text())["number"] == 2


def test_other_nodes_ranks_are_read_when_one_s_own_stand_still(layout: RunLayout) -> None:
    """Rank 0 runs here and waits; rank 1, of another node, writes a checkpoint."""
    now = 0.0
    for rank in (0, 1):
        layout.rank(rank).folder.mkdir(parents=True)
    said: list[str] = []
    here = (Worker(0, psutil.Process()),)  # this process: it takes no signal, as it never said so
    monitor = Monitor(layout, Limits(100, 100, 300), said.append, expected=lambda: here, clock=lambda: now)
    for second in range(0, 91, 10):
        now = float(second)
        write(layout.rank(0), now, answered=1)
        write(layout.rank(1), now, phase="checkpoint", last_started={"0": 8})
        found = monitor.look()
        assert found.away == (((1, "checkpoint"),) if second >= 50 else ())
    assert found.state == HangState.BUSY
    assert said == ["rank 1 is busy with checkpoint, 1 rank waiting for 80 s: no hang before 300 s"]


def test_stopping_a_monitor_ends_its_thread(layout: RunLayout) -> None:
    monitor = Monitor(layout, SOON, pytest.fail, interval_s=600)
    monitor.start()
    monitor.stop()
    assert "diag-monitor" not in {thread.name for thread in threading.enumerate()}
