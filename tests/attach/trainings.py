"""Trainings as their users start them, without us, and what was recorded of others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from diag.collectors.layout import RunLayout
from tests.busy import contended
from tests.command import analyze_json, diag_process
from tests.patience import PATIENCE_S
from tests.trainer.launching import launch

TRAIN, EVENTFUL = (Path(__file__).with_name(name) for name in ("train.py", "eventful.py"))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MOST_STEPS = 300


def trained(
    run: Path, *options: str, script: Path = TRAIN, recording: tuple[str, ...] = (), exit_code: int = 0
) -> dict[str, Any]:
    """What ``diag analyze`` says of a script on two ranks under ``diag run``, with options for both."""
    done = diag_process("run", "--nproc", "2", *recording, "--out", run, script, *options)
    assert done.returncode == exit_code, done.stderr
    assert "training" in done.stdout  # the script's own output
    return analyze_json(run)


def is_slow_loader(result: dict[str, Any]) -> None:
    """Of all ranks."""
    if contended(result, "slow-data-all-ranks", []):
        return
    assert (result["verdict"]["bottleneck"], result["verdict"]["cause"]) == ("data", "slow-data-all-ranks")


def is_slow_loader_of_rank_1(result: dict[str, Any]) -> None:
    """Which the reserve of rank 0's worker processes shows."""
    (finding,) = [finding for finding in result["findings"] if finding["id"] == "slow-data-one-rank"]
    assert "batches" in {row["unit"] for row in finding["evidence"]}
    if contended(result, "slow-data-one-rank", [1]):
        return
    assert (result["verdict"]["bottleneck"], result["verdict"]["cause"]) == ("data", "slow-data-one-rank")
    assert result["verdict"]["culprit"]["ranks"] == [1]


def is_stalled(result: dict[str, Any]) -> None:
    """Rank 1, which sleeps in its forward."""
    if contended(result, "stalled-rank", [1]):
        return
    assert (result["verdict"]["bottleneck"], result["verdict"]["cause"]) == ("host", "stalled-rank")
    assert result["verdict"]["culprit"]["ranks"] == [1]


def plain(*options: str) -> subprocess.CompletedProcess[str]:
    """``eventful.py`` under torchrun; output as text, exit code not checked."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, EVENTFUL, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def alone(steps: int) -> list[str]:
    """What the first steps print in a training that nobody records."""
    return _alone()[:steps]


@cache
def _alone() -> list[str]:
    done = launch([str(EVENTFUL), "--steps", str(MOST_STEPS)])
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def losses(output: str) -> list[str]:
    """What the training printed of its steps, in order."""
    return re.findall(r"step \d+ loss .*", output)


def steps_of(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The lines of steps.jsonl."""
    return [json.loads(line) for line in RunLayout(run).rank(rank).steps.read_text().splitlines()]


def collective_lines_of(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The lines of collectives.jsonl."""
    path = RunLayout(run).rank(rank).collectives
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def phases_of(step: dict[str, Any]) -> list[str]:
    """The names, in order."""
    return [name for name, _, _ in step["phases"]]
