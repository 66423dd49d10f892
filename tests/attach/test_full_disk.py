"""The run directory's disk is full, to the last byte: the training ends as without us, what had room opens."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attach.trainings import EVENTFUL, MOST_STEPS, alone, losses
from tests.patience import PATIENCE_S

STEPS = MOST_STEPS
# In a namespace of its own the mount needs no root, and is gone with the last process that sees it.
PRIVATE = ("unshare", "--map-root-user", "--mount")
SCRIPT = """
mount -t tmpfs -o size="$SIZE" none "$DISK" || exit
exec 3> "$TO/output" 4> "$TO/errors"
"$PYTHON" -m diag run --nproc 2 --trace-skip 2 --out "$DISK/run" "$SCRIPT" --steps "$STEPS" >&3 2>&4
echo $? > "$TO/code"
df --output=avail "$DISK" | tail -1 > "$TO/left"
cp -r "$DISK/run/ranks" "$TO"
"$PYTHON" -m diag analyze "$DISK/run" --json > "$TO/analysis"
echo $? > "$TO/analysed"
"""


def on_a_small_disk(folder: Path, size: str) -> Path:
    """Where the training's output and its analysis were put, on another disk."""
    if shutil.which(PRIVATE[0]) is None:
        pytest.skip("no unshare here")
    disk, to = folder / "disk", folder / "to"
    disk.mkdir()
    to.mkdir()
    told = {"SIZE": size, "DISK": disk, "TO": to, "STEPS": STEPS, "SCRIPT": EVENTFUL}
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}, "PYTHON": sys.executable}
    command = [*PRIVATE, "sh", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if not (to / "code").exists():
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    return to


def numbers(lines: Path) -> set[int]:
    """Of the steps that a file has a line of."""
    return {json.loads(line)["step"] for line in lines.read_text().splitlines()}


@pytest.mark.matrix
def test_the_last_byte(tmp_path: Path) -> None:
    """300 kB hold some 400 steps of the 600 of two ranks, and not what the profiler writes before it is packed."""
    to = on_a_small_disk(tmp_path, "300k")
    errors = (to / "errors").read_text()
    assert (to / "code").read_text().strip() == "0", errors
    assert losses((to / "output").read_text()) == alone(STEPS)
    assert int((to / "left").read_text()) < 8
    for rank in (0, 1):
        assert errors.count(f"diag: rank {rank}: ") == 1, errors
    assert "Traceback" not in errors
    assert (to / "analysed").read_text().strip() == "4"
    result = json.loads((to / "analysis").read_text())
    kept = {rank: numbers(to / "ranks" / rank / "steps.jsonl") for rank in ("00000", "00001")}
    # The ranks fill the disk together: one of them may have written its last step before it is full.
    assert 50 < len(result["steps"]) == max(map(len, kept.values()))
    assert sum(map(len, kept.values())) < 2 * STEPS
    reasons = json.dumps(result["coverage"]["skipped"])
    assert re.search(r"lines of (steps|collectives)\.jsonl are left out", reasons), (
        "whichever the last page was not for"
    )
    for rank, steps in kept.items():  # a step without its collectives would be taken for one that only computes
        assert steps <= numbers(to / "ranks" / rank / "collectives.jsonl")
    assert "the profiler could not write its trace" in reasons
    assert result["run"]["exit_code"] == 0
