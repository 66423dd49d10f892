"""Same seed, same data, same losses, whatever spreads the training over the ranks: else a strategy is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.matrix import chosen, matrix
from tests.trainer.launching import launch
from tests.trainer.ways import BY_RANKS, COMMON, INTERLEAVED, ON_TWO, Options

SCRIPT = str(Path(__file__).with_name("several_runs.py"))
STEPS = 3
TOLERANCE = 2e-4  # of losses near 5.6 in fp32; sums in another order


def losses_of(ranks: int, ways: dict[str, Options]) -> dict[str, list[float]]:
    """The losses of each run, all in one launch."""
    runs = [{**COMMON, "steps": STEPS, **options} for options in ways.values()]
    ended = launch([SCRIPT, json.dumps(runs)], ranks=ranks)
    assert ended.returncode == 0, ended.stderr[-5000:]
    parts = re.split(r"^run \d+$", ended.stdout, flags=re.MULTILINE)[1:]
    found = {
        name: [float(loss) for loss in re.findall(r"loss ([\d.]+)", part)]
        for name, part in zip(ways, parts, strict=True)
    }
    assert [len(run) for run in found.values()] == [STEPS] * len(ways)
    return found


COMPRESSED = {
    "fp16": {**ON_TWO["ddp"], "settings": ["comm_hook=fp16"]},
    "powersgd": {**ON_TWO["ddp"], "settings": ["comm_hook=powersgd"]},
    "fsdp2, bf16": {**ON_TWO["fsdp2"], "precision": "bf16"},
    "fsdp2, bf16 on the wire": {**ON_TWO["fsdp2"], "precision": "bf16", "reduce_dtype": "bf16"},
    "fsdp1, bf16": {**ON_TWO["fsdp1"], "precision": "bf16"},
    "deepspeed 2, bf16": {**ON_TWO["deepspeed 2"], "precision": "bf16"},
}
ACCUMULATED = {
    f"{name}, {when}": {**ON_TWO[name], "micro_batches": 2, "batch_size": 1, "grad_sync": when}
    for name in ("ddp", "zero1", "fsdp1", "fsdp2", "deepspeed 1", "deepspeed 2", "deepspeed 3")
    for when in ("last", "every")
    if when == "last" or not name.startswith("deepspeed")
}
FEW = ("ddp", "zero1", "fsdp1", "fsdp2", "deepspeed 2", "tp", "pp, 1f1b", "ddp, last", "fsdp2, every")


@pytest.fixture(scope="module")
def one_rank() -> dict[str, list[float]]:
    return losses_of(1, {"tiny": {"strategy": "ddp", "batch_size": 4}})


@pytest.fixture(scope="module")
def on_two(request: pytest.FixtureRequest) -> dict[str, list[float]]:
    """One launch: importing torch and DeepSpeed takes longer than any of these."""
    ways = {**ON_TWO, **ACCUMULATED}
    return losses_of(2, {name: ways[name] for name in chosen(request, "name")})


def far_from(plain: list[float], found: dict[str, list[float]], tolerance: float) -> dict[str, list[float]]:
    return {name: losses for name, losses in found.items() if losses != pytest.approx(plain, abs=tolerance)}


def test_the_model_learns(one_rank: dict[str, list[float]]) -> None:
    assert one_rank["tiny"][-1] < one_rank["tiny"][0]


@pytest.mark.parametrize("name", matrix([*ON_TWO, *ACCUMULATED], FEW))
def test_two_ranks_train_the_same_model(
    one_rank: dict[str, list[float]], on_two: dict[str, list[float]], name: str
) -> None:
    assert on_two[name] == pytest.approx(one_rank["tiny"], abs=TOLERANCE)


@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_train_the_same_model(one_rank: dict[str, list[float]], ranks: int) -> None:
    assert not far_from(one_rank["tiny"], losses_of(ranks, BY_RANKS[ranks]), TOLERANCE)


@pytest.mark.matrix
def test_interleaved_stages_train_the_same_model() -> None:
    one_rank, two = (
        losses_of(ranks, {way: INTERLEAVED[way]}) for ranks, way in ((1, "one rank"), (2, "pp, interleaved"))
    )
    assert two["pp, interleaved"] == pytest.approx(one_rank["one rank"], abs=TOLERANCE)


@pytest.mark.matrix
def test_what_rounds_stays_near(one_rank: dict[str, list[float]]) -> None:
    found = losses_of(2, COMPRESSED)
    assert not far_from(one_rank["tiny"], found, 0.02)
    assert found["fsdp2, bf16"] != pytest.approx(one_rank["tiny"], abs=TOLERANCE / 2)
    assert found["fsdp2, bf16 on the wire"] != found["fsdp2, bf16"]


@pytest.mark.matrix
def test_compiled_blocks_train_the_same_model(one_rank: dict[str, list[float]]) -> None:
    """Slow: the compiler takes its time for the first step."""
    found = losses_of(2, {"fsdp2": {**ON_TWO["fsdp2"], "compile": True}})
    assert found["fsdp2"] == pytest.approx(one_rank["tiny"], abs=TOLERANCE)
