"""Real trainings with expert parallelism, unmodified: the rank of the popular expert is late by its load, a rank that
computes longer with as many tokens is late by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attach.trainings import trained
from tests.busy import others_take_cores

TRAIN_EXPERTS = Path(__file__).with_name("train_experts.py")
OPEN = "straggler-cause-unknown"
pytestmark = pytest.mark.multiproc


def about(result: dict[str, Any], cause: str, rank: int) -> dict[str, Any]:
    """The finding, which is the verdict unless others take the cores; then the reason may be left open."""
    found = {finding["id"]: finding for finding in result["findings"]}
    crowded = others_take_cores(found)
    if crowded and OPEN in found:
        assert found[OPEN]["ranks"] == [rank]
        pytest.skip("others take the cores: the reason was left open")
    assert cause in found, list(found)
    if not crowded:
        verdict = result["verdict"]
        assert (verdict["bottleneck"], verdict["cause"], verdict["culprit"]["ranks"]) == ("compute", cause, [rank])
    assert found[cause]["ranks"] == [rank]
    return found[cause]


@pytest.mark.parametrize("ways", [(), pytest.param(("--functional",), marks=pytest.mark.matrix)])
def test_popular_expert(tmp_path: Path, ways: tuple[str, ...]) -> None:
    result = trained(tmp_path, "--popular", "1", *ways, script=TRAIN_EXPERTS, recording=("--no-trace",))
    found = about(result, "expert-imbalance", 1)
    assert "rank 1 receives 1." in found["title"]


@pytest.mark.matrix
def test_slow_expert(tmp_path: Path) -> None:
    result = trained(tmp_path, "--slow", "0", script=TRAIN_EXPERTS, recording=("--no-trace",))
    found = about(result, "compute-straggler", 0)
    assert "received no more tokens than the others" in found["title"]
