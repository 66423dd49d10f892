"""Profiler windows of trainings that run: asked for by somebody, and by the launcher when a rank falls behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from diag.rundir.runs import last_steps
from tests.command import diag, diag_process
from tests.patience import PATIENCE_S

TINY = ("--nproc", "2", "--strategy", "ddp", "--preset", "tiny", "--no-trace")


@contextmanager
def training(run: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "diag", "run", *TINY, *options, "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def at_step(layout: RunLayout, number: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        steps = last_steps(layout.rank(0).steps)
        if steps and steps[-1].step >= number:
            return
        time.sleep(0.2)
    pytest.fail(f"the training ended with {process.returncode}")


@pytest.mark.matrix
def test_a_window_of_a_running_training(tmp_path: Path) -> None:
    """The loader makes the steps slow, so that a window three seconds ahead is some fifty steps ahead."""
    layout = RunLayout(tmp_path / "run")
    with training(layout.root, "--steps", "10000", "--inject", "slow-loader:ms=60") as process:
        at_step(layout, 20, process)
        asked = diag_process("trace", layout.root, "--steps", "2", "--json")
        assert asked.returncode == 0, asked.stderr + asked.stdout
        told = json.loads(asked.stdout)
        first = told["asked"]["first_step"]
        paths = [layout.rank(rank).trace(first) for rank in (0, 1)]
        assert [Path(answer["path"]) for answer in told["ranks"]] == paths
        assert [own.traces() for own in layout.ranks().values()] == [[path] for path in paths]
        again = diag_process("trace", layout.root, "--ranks", "1", "--steps", "1")
        assert again.returncode == 0, again.stderr + again.stdout
        assert "rank 1: " in again.stdout
        assert "rank 0: " not in again.stdout
    assert [len(own.traces()) for own in layout.ranks().values()] == [1, 2]
    assert [told["why"] for told in read_fields(layout)["windows"]] == ["diag trace"] * 2
    ended = diag("analyze", layout.root, "--json")
    assert ended.returncode in (0, 4), ended.stderr  # a rank that is ended may not have written its last step
    traced = {step["step"]: {parts["source"] for parts in step["ranks"]} for step in json.loads(ended.stdout)["steps"]}
    assert traced[first] == traced[first + 1] == {"trace"}
    assert traced[first - 2] == {"records"}
    late = diag_process("trace", layout.root)
    assert late.returncode == 1
    assert "the run is over" in late.stderr


@pytest.mark.matrix
def test_a_rank_that_falls_behind_is_recorded_by_itself(tmp_path: Path) -> None:
    """The device is slow enough that nothing is to be said of the run before: a window would be asked for then, for
    steps so far ahead that the run never reaches them."""
    layout = RunLayout(tmp_path / "run")
    faults = ("--inject", "slow-device:ms=10", "--inject", "straggler:rank=1,ms=120,from=60")
    with training(layout.root, "--steps", "180", *faults, "--auto-traces", "3") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    windows = [told for told in read_fields(layout)["windows"] if "rank 1 is slower" in told["why"]]
    assert windows, errors
    assert all(told["why"].startswith("automatic: ") for told in windows)
    assert windows[0]["first_step"] > 60
    assert "A profiler window of steps" in errors
    for own in layout.ranks().values():
        assert own.trace(windows[0]["first_step"]) in own.traces()
        assert len(own.traces()) <= 3
