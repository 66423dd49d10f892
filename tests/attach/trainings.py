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
from tests.trainer.launching import launch

EVENTFUL = Path(__file__).with_name("eventful.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MOST_STEPS = 300


def plain(*options: str) -> subprocess.CompletedProcess[str]:
    """``eventful.py`` under torchrun; output as text, exit code not checked."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, EVENTFUL, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


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


def phases_of(step: dict[str, Any]) -> list[str]:
    """The names, in order."""
    return [name for name, _, _ in step["phases"]]
