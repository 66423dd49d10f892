"""Training that dies: the code is passed on, the rank is named, what was recorded opens, and nothing is lost but the
step under way."""

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
from tests.command import analyze_json, diag, diag_process
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("rank", "how", "code", "fault_class"),
    [
        pytest.param(1, "sigkill", 128 + 9, "rank_killed_sigkill", marks=pytest.mark.matrix),
        pytest.param(0, "exit,code=7", 7, "rank_killed_exception", marks=pytest.mark.matrix),
        (1, "exception", 1, "rank_killed_exception"),
    ],
)
def test_a_rank_that_dies(tmp_path: Path, rank: int, how: str, code: int, fault_class: str) -> None:
    layout = RunLayout(tmp_path / "run")
    fault = f"die:rank={rank},step=8,how={how}"
    ended = diag_process("run", "--steps", "12", "--trace-skip", "2", "--inject", fault, "--out", layout.root)
    assert ended.returncode == code, ended.stderr
    assert "Traceback (most recent call last):\n  File" not in ended.stderr or how == "exception"
    assert f"diag analyze {layout.root}" in ended.stderr
    assert f"at fault: rank {rank}" in " ".join(ended.stderr.split())
    found = json.loads(layout.hang.read_text())
    assert found["verdict"]["fault_class"] == fault_class
    assert [culprit["rank"] for culprit in found["culprits"]] == [rank]
    result = analyze_json(layout.root, expect=0)
    assert result["run"]["exit_code"] == code
    assert [step["step"] for step in result["steps"]] == list(range(8))
    manifest = json.loads(layout.manifest.read_text())
    assert (manifest["exit_code"], manifest["hang"]) == (code, {})
    if how == "exception":
        each_stream_of_each_rank_is_kept(ended, layout)


ABORTED = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 2:
    raise ValueError("bad sample 17\\nof shard 3")
try:
    dist.all_reduce(torch.ones(4))
except RuntimeError:
    os.abort()  # as C++ does over a lost peer
"""


def test_victims_that_abort_before_the_culprit_is_through(tmp_path: Path) -> None:
    """With three ranks, two of which the launcher sees end before the one that raised."""
    script, layout = tmp_path / "train.py", RunLayout(tmp_path / "run")
    script.write_text(ABORTED)
    ended = diag_process("run", "--nproc", "3", "--out", layout.root, script)
    assert ended.returncode == 1, ended.stderr
    assert "diag: the training ended early: rank 2: " in ended.stderr
    found = json.loads(layout.hang.read_text())
    assert ([culprit["rank"] for culprit in found["culprits"]], found["victims"]) == ([2], [0, 1])
    assert "raised ValueError: bad sample 17" in found["verdict"]["headline"]
    assert "of shard 3" not in found["verdict"]["headline"]


def each_stream_of_each_rank_is_kept(ended: subprocess.CompletedProcess[str], layout: RunLayout) -> None:
    assert "[rank0] step 1" in ended.stdout
    assert "injected: die" in ended.stderr, "the reason is on the terminal"
    assert layout.rank(0).stdout.read_text().startswith("step 0")
    assert "RuntimeError: injected: die" in layout.rank(1).log.read_text()
    assert "injected: die" in json.loads(layout.rank(1).error.read_text())["message"]["message"]


@pytest.mark.matrix
def test_everything_is_killed_while_it_writes(tmp_path: Path) -> None:
    """SIGKILL to the launcher and all ranks at once, as a scheduler does it, while traces are recorded all the time."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "diag", "run", "--steps", "100000", "--trace-skip", "1", "--trace-active", "1"]
    command += ["--trace-every", "3", "--out", str(run)]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    steps = RunLayout(run).rank(1).steps
    deadline = time.monotonic() + PATIENCE_S
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
