"""Whole runs of two ranks, with the collectors off."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from tests.matrix import chosen, matrix
from tests.patience import PATIENCE_S
from tests.trainer.launching import launch

SMALL = {"steps": 3, "num_workers": 0, "batch_size": 2, "seq_len": 32}


PLAIN: dict[str, object] = {"strategy": "ddp"}
SAME: list[dict[str, object]] = [
    {"strategy": "ddp", "activation_checkpointing": True},
    {},
    {"wrap": "root"},
    {"wrap": "linear"},
    {"wrap": "linear", "prefetch": 3},
    {"wrap": "2"},
    {"wrap": "2", "prefetch": 3},
    {"prefetch": 1},
    {"prefetch": 2, "reshard_after_forward": "no"},
    {"prefetch": 100},
    {"activation_checkpointing": True, "prefetch": 1},
    {"inject": ["slow-wire:ms=1", "straggler:ms=1", "item-sync", "tiny-kernels:count=12", "gc-pause:objects=9"]},
    {"inject": ["slow-device:ms=1"], "prefetch": 1},
    {"strategy": "ddp", "inject": ["slow-wire:ms=1,rank=1", "slow-loader:ms=1", "checkpoint-stall:ms=1,every=1"]},
]
ACCUMULATED: list[dict[str, object]] = [
    {"strategy": strategy, "micro_batches": 3, "grad_sync": when}
    for strategy in ("ddp", "fsdp2")
    for when in ("last", "every")
]
MIXED: list[dict[str, object]] = [{"precision": "bf16"}, {"precision": "bf16", "strategy": "ddp"}]
ALL = [PLAIN, *SAME, *ACCUMULATED, *MIXED]

Losses = Callable[[dict[str, object]], list[float]]


@pytest.fixture(scope="module")
def losses(request: pytest.FixtureRequest) -> Losses:
    """The losses of each run, all in one launch."""
    asked = [run for run in ALL if run in [PLAIN, ACCUMULATED[0], *chosen(request, "run")]]
    script = str(Path(__file__).with_name("several_runs.py"))
    ended = launch([script, json.dumps([{**SMALL, **run} for run in asked])])
    assert ended.returncode == 0, ended.stderr
    parts = re.split(r"^run \d+$", ended.stdout, flags=re.MULTILINE)[1:]
    found = [[float(loss) for loss in re.findall(r"loss ([\d.]+)", part)] for part in parts]
    assert [len(run) for run in found] == [3] * len(asked)
    return lambda run: found[asked.index(run)]


@pytest.mark.parametrize("run", matrix(SAME, [SAME[0], {}, {"prefetch": 1}, SAME[-1]]), ids=json.dumps)
def test_every_strategy_and_setting_trains_the_same_model(losses: Losses, run: dict[str, object]) -> None:
    assert losses(run) == pytest.approx(losses(PLAIN), abs=2e-4)


def test_the_model_learns(losses: Losses) -> None:
    assert losses(PLAIN)[2] < losses(PLAIN)[0]


@pytest.mark.parametrize("run", matrix(ACCUMULATED[1:], ACCUMULATED[2:3]), ids=json.dumps)
def test_when_gradients_are_reduced_changes_no_loss(losses: Losses, run: dict[str, object]) -> None:
    assert losses(run) == pytest.approx(losses(ACCUMULATED[0]), abs=2e-4)


@pytest.mark.parametrize("run", matrix(MIXED, MIXED[:1]), ids=json.dumps)
def test_mixed_precision_stays_near_full_precision(losses: Losses, run: dict[str, object]) -> None:
    assert losses(run) == pytest.approx(losses(PLAIN), abs=0.02)
    assert losses(run) != losses(PLAIN)


TRAINER = ["-m", "diag.collectors.trainer"]


@pytest.mark.matrix  # `diag run` starts its ranks as torchrun does: tests/run
def test_the_trainer_runs_to_its_end() -> None:
    ended = launch(TRAINER, TrainerOptions(steps=3), torchrun=True)
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[:2] for line in ended.stdout.splitlines()] == [["step", str(step)] for step in range(3)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sigkill", "rank 1 exitcode: -9"),
        ("exit,code=17", "rank 1 exitcode: 17"),
        ("exception", r"RuntimeError: injected: die:rank=1,step=1"),
    ],
)
def test_a_rank_dies_in_the_way_it_was_told_to(how: str, expected: str) -> None:
    options = TrainerOptions(steps=3, num_workers=0, inject=(f"die:rank=1,step=1,how={how}",), timeout_s=30)
    ended = launch(TRAINER, options)
    assert ended.returncode != 0
    assert re.search(expected, ended.stderr), ended.stderr
    assert "step 0" in ended.stdout
    assert "step 2" not in ended.stdout


def test_options_that_cannot_work_end_with_one_message() -> None:
    ended = subprocess.run(
        [sys.executable, *TRAINER],
        env={**os.environ, OPTIONS_ENV: TrainerOptions(data="nowhere").to_json()},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr == "error: --data nowhere does not exist: give a text file or a folder of them\n"
