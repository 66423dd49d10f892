"""Training that dies: the code is passed on, what was recorded opens, and nothing is lost but the step under way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from tests.command import analyze_json, diag


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("die:rank=1,step=8,how=sigkill", 128 + 9),
        ("die:rank=0,step=8,how=exit,code=7", 7),
        ("die:rank=1,step=8,how=exception", 1),
    ],
)
def test_a_rank_that_dies(tmp_path: Path, fault: str, code: int) -> None:
    ended = diag("run", "--steps", "12", "--trace-skip", "2", "--inject", fault, "--out", tmp_path / "run")
    assert ended.returncode == code, ended.stderr
    assert "Traceback (most recent call last):\n  File" not in ended.stderr or "exception" in fault
    assert f"diag analyze {tmp_path / 'run'}" in ended.stderr
    result = analyze_json(tmp_path / "run", expect=0)
    assert result["run"]["exit_code"] == code
    assert [step["step"] for step in result["steps"]] == list(range(8))
    assert json.loads(RunLayout(tmp_path / "run").manifest.read_text())["exit_code"] == code


def test_everything_is_killed_while_it_writes(tmp_path: Path) -> None:
    """SIGKILL to the launcher and all ranks at once, as a scheduler does it, while traces are recorded all the time."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "diag", "run", "--steps", "100000", "--trace-skip", "1", "--trace-active", "1"]
    command += ["--trace-every", "3", "--out", str(run)]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    steps = RunLayout(run).rank(1).steps
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (steps.exists() and steps.read_bytes().count(b"\n") > 12):
        time.sleep(0.05)
    os.killpg(launcher.pid, signal.SIGKILL)
    for identity in run.glob("ranks/*/rank.json"):  # torchrun gives each rank a session of its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(identity.read_text())["pid"], signal.SIGKILL)
    launcher.wait()
    ended = diag("analyze", run, "--json")
    assert ended.returncode in (0, 4), ended.stderr
    result = json.loads(ended.stdout)
    assert len(result["steps"]) > 10
    assert result["run"]["exit_code"] is None
    assert any(parts["source"] == "trace" for step in result["steps"] for parts in step["ranks"])
