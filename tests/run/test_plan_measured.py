"""``diag plan --measured`` on real trainings: bytes are no matter of luck, so the error is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import diag

SMALL = ["--preset", "small", "--batch-size", "2", "--seq-len", "128", "--num-workers", "0"]
STEPS = ["--steps", "5", "--trace-skip", "2", "--trace-active", "1", "--trace-memory"]


def compared(run: Path) -> dict[str, dict[str, Any]]:
    ended = diag("plan", "--measured", run, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["measured"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    return {row["name"]: row for row in found["compared"]}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--strategy", "ddp"], id="ddp"),
        pytest.param(["--strategy", "zero1"], id="zero1"),
        pytest.param(["--strategy", "fsdp1"], id="fsdp1"),
        pytest.param(["--strategy", "fsdp2"], id="block"),
        pytest.param(["--strategy", "fsdp2", "--wrap", "root"], id="root"),
        pytest.param(["--strategy", "fsdp2", "--activation-checkpointing"], id="recomputed"),
    ],
)
def test_the_estimate_is_near(tmp_path: Path, arguments: list[str]) -> None:
    run = tmp_path / "run"
    ended = diag("run", *SMALL, *STEPS, *arguments, "--out", run)
    assert ended.returncode == 0, ended.stderr
    rows = compared(run)
    assert abs(rows["peak"]["error"]) < 0.01
    for name in ("parameters", "gradients", "optimizer"):
        assert abs(rows[name]["error"]) < 0.001
    assert abs(rows["all else at the peak"]["error"]) < 0.02
