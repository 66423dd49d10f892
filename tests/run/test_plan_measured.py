"""``diag plan --measured`` on real trainings: bytes are no matter of luck, so the error is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import diag
from tests.trainer.launching import launch

SCRIPT = str(Path(__file__).with_name("recorded_runs.py"))
SMALL = {"preset": "small", "batch_size": 2, "seq_len": 64, "num_workers": 0, "steps": 4}
WINDOW = {"trace_skip": 2, "trace_active": 1, "trace_memory": True}
WAYS: dict[str, dict[str, object]] = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "fsdp1": {"strategy": "fsdp1"},
    "block": {"strategy": "fsdp2"},
    "root": {"strategy": "fsdp2", "wrap": "root"},
    "recomputed": {"strategy": "fsdp2", "activation_checkpointing": True},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    asked = [
        {"out": str(folder / way), "options": {**SMALL, **options}, "settings": WINDOW} for way, options in WAYS.items()
    ]
    ended = launch([SCRIPT, json.dumps(asked)], collect=True)
    assert ended.returncode == 0, ended.stderr[-5000:]
    return folder


def compared(run: Path) -> dict[str, dict[str, Any]]:
    ended = diag("plan", "--measured", run, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["measured"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    return {row["name"]: row for row in found["compared"]}


@pytest.mark.parametrize("way", WAYS)
def test_the_estimate_is_near(runs: Path, way: str) -> None:
    rows = compared(runs / way)
    assert abs(rows["peak"]["error"]) < 0.01
    for name in ("parameters", "gradients", "optimizer"):
        assert abs(rows[name]["error"]) < 0.001
    assert abs(rows["all else at the peak"]["error"]) < 0.02
