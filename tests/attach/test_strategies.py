"""The strategy that an attached training is recorded under bears the name that the bundled trainer's run would."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from diag.collectors.attach.life import strategy_of
from diag.collectors.strategies import STRATEGIES, named

KNOWN = {name: kind for kind in STRATEGIES.values() for name in kind.shards}


class ZeroRedundancyOptimizer:
    param_groups = ()


def optimizer_of(**marks: Any) -> SimpleNamespace:
    return SimpleNamespace(param_groups=[{"params": [SimpleNamespace(**marks)]}])


def engine_of(stage: int) -> SimpleNamespace:
    return SimpleNamespace(zero_optimization_stage=lambda: stage)


ON_MESH = optimizer_of(device_mesh=SimpleNamespace(mesh_dim_names=("dp",), shape=(2,)))


@pytest.mark.parametrize(
    ("optimizer", "engine", "ddp", "expected"),
    [
        (None, engine_of(1), False, "deepspeed-zero1"),
        (None, engine_of(3), False, "deepspeed-zero3"),
        (ON_MESH, None, False, "fsdp2"),
        (optimizer_of(_fsdp_flattened=True), None, False, "fsdp1"),
        (ZeroRedundancyOptimizer(), None, True, "zero1"),
        (optimizer_of(), None, True, "ddp"),
    ],
)
def test_it_is_a_name_of_the_bundled_trainer(
    monkeypatch: pytest.MonkeyPatch, optimizer: Any, engine: Any, ddp: bool, expected: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", SimpleNamespace())
    name, _ = strategy_of(optimizer, engine, ddp)
    assert name == expected
    assert named(name) is KNOWN[name]


def test_a_training_without_a_strategy_of_the_bundled_trainer() -> None:
    assert named(strategy_of(optimizer_of(), None, False)[0]) is None
    assert named(None) is None
    assert named("tensor-parallel") is None


def test_every_name_in_a_manifest_leads_to_its_strategy() -> None:
    assert {name: named(name) for name in KNOWN} == KNOWN
