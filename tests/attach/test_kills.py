"""A rank, a reader or the launcher is killed in the middle: the training goes on or ends as without us, and what was
recorded opens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag.api import describe_run, open_run
from diag.collectors.layout import RunLayout
from tests.attach.trainings import EVENTFUL, MOST_STEPS, TORCHRUN, alone, losses, plain
from tests.command import analyze_json, diag, diag_process
from tests.patience import PATIENCE_S

# The rank dies within a profiler window.
WINDOW = ("--trace-skip", "4", "--trace-active", "4")


@contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that is killed in the end, if it has not ended."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, *map(str, command)], stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def recorded(run: Path, rank: int = 0) -> int:
    steps = RunLayout(run).rank(rank).steps
    return steps.read_bytes().count(b"\n") if steps.exists() else 0


@pytest.mark.matrix
def test_a_killed_rank_ends_the_training_as_without_us(tmp_path: Path) -> None:
    bare = plain("--kill", "1")
    run = tmp_path / "run"
    ended = diag_process("run", *WINDOW, "--out", run, "--", *TORCHRUN, EVENTFUL, "--kill", "1")
    assert (ended.returncode, ended.stdout) == (bare.returncode, bare.stdout), ended.stderr
    assert losses(bare.stdout) == alone(6)
    result = analyze_json(run)
    assert [step["step"] for step in result["steps"]] == list(range(6))
    assert result["run"]["exit_code"] == bare.returncode == 1
    assert RunLayout(run).hang.exists(), ended.stderr
    found = json.loads(RunLayout(run).hang.read_text())
    assert found["verdict"]["fault_class"] == "rank_killed_sigkill"
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]


@pytest.mark.matrix  # tests/run/test_crashes.py does it to the bundled trainer
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_of_a_script_is_named(tmp_path: Path, rank: int) -> None:
    """Here the launcher is ours."""
    run = tmp_path / "run"
    ended = diag_process("run", "--nproc", "2", *WINDOW, "--out", run, EVENTFUL, "--kill", str(rank))
    assert ended.returncode == 128 + signal.SIGKILL, ended.stderr
    assert losses(ended.stdout) == alone(6)
    assert f"at fault: rank {rank}" in " ".join(ended.stderr.split())
    found = json.loads(RunLayout(run).hang.read_text())
    assert found["verdict"]["fault_class"] == "rank_killed_sigkill"
    assert [culprit["rank"] for culprit in found["culprits"]] == [rank]
    assert [step.step for step in open_run(run).attribution.steps] == list(range(6))


@pytest.mark.matrix
def test_killed_readers_change_nothing(tmp_path: Path) -> None:
    """One that serves, one that analyses, one that waits for a profiler window."""
    run = tmp_path / "run"
    layout = RunLayout(run)
    enough = tmp_path / "enough"
    training = ["--steps", "5000", "--seconds", "0.1", "--until", enough]
    with started("-m", "diag", "run", "--nproc", "2", "--out", run, EVENTFUL, *training) as job:
        wait_for(lambda: recorded(run) > 5, job)
        with (
            started("-m", "diag", "metrics", run, "--port", "0") as metrics,
            started("-m", "diag", "analyze", run) as analysis,
            started("-m", "diag", "trace", run, "--steps", "2") as trace,
        ):
            wait_for(layout.trace_asked.exists, trace)
            trace.kill()
            assert metrics.stdout is not None
            metrics.stdout.readline()  # it serves
            metrics.kill()
            analysis.kill()
        first = json.loads(layout.trace_asked.read_text())["first_step"]
        asked = [layout.rank(rank).trace(first) for rank in (0, 1)]
        wait_for(lambda: all(trace.exists() for trace in asked), job)  # nobody waits for it, and it is recorded
        enough.touch()
        output, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, errors
    steps = len(losses(output))
    assert losses(output)[:MOST_STEPS] == alone(steps)
    assert len(open_run(run).attribution.steps) == steps


@pytest.mark.matrix
def test_a_killed_launcher_of_a_command_changes_nothing(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    torchrun = [sys.executable, "-m", "diag", "run", "--out", run, "--", *TORCHRUN]
    with output.open("wb") as file:
        launcher = subprocess.Popen([*torchrun, EVENTFUL, "--seconds", "0.1"], stdout=file, stderr=file)
        deadline = time.monotonic() + PATIENCE_S
        while recorded(run) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        launcher.kill()
        launcher.wait()
    heartbeat = RunLayout(run).rank(0).heartbeat
    while time.monotonic() < deadline and not json.loads(heartbeat.read_bytes())["done"]:
        time.sleep(0.05)
    assert losses(output.read_text()) == alone(12)
    result = open_run(run)
    assert len(result.attribution.steps) == 12
    assert describe_run(result)["exit_code"] is None


@pytest.mark.matrix  # tests/run/test_crashes.py does it to the bundled trainer
def test_everything_is_killed_while_it_writes(tmp_path: Path) -> None:
    """The launcher and all ranks at once, as a scheduler does it, while traces are recorded all the time."""
    run = tmp_path / "run"
    options = ("--trace-skip", "1", "--trace-active", "1", "--trace-every", "3")
    with started("-m", "diag", "run", "--nproc", "2", *options, "--out", run, EVENTFUL, "--steps", "5000") as job:
        wait_for(lambda: recorded(run) > 12, job)
        job.kill()
        for identity in run.glob("ranks/*/rank.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(identity.read_bytes())["pid"], signal.SIGKILL)
    opened = diag("analyze", run, "--json")
    assert opened.returncode in (0, 4), opened.stderr
    result = json.loads(opened.stdout)
    assert len(result["steps"]) > 10
    assert any(rank["source"] == "trace" for step in result["steps"] for rank in step["ranks"])
