"""What the states of a model take: the figures of the ZeRO paper, and FSDP2's."""

from __future__ import annotations

import pytest

from diag.model.states import ADAM_FP32, ADAM_MIXED, Sharding, model_states, sharding_of, shards_of

GB = 10**9


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        (Sharding.NONE, 120.0),
        (Sharding.OPTIMIZER, 31.4),
        (Sharding.GRADIENTS, 16.6),
        (Sharding.PARAMETERS, 1.9),
    ],
)
def test_figure_1_of_the_zero_paper(sharding: Sharding, expected: float) -> None:
    """7.5 billion parameters on 64 devices, mixed precision with Adam (arXiv 1910.02054)."""
    states = model_states(7_500_000_000, sharding, 64, ADAM_MIXED)
    assert states.total / GB == pytest.approx(expected, abs=0.05)


def test_by_component_as_in_section_4_1_of_the_notes() -> None:
    """DDP 2 + 2 + 12; ZeRO 1 4 + 12/n; ZeRO 2 2 + 14/n; all of it over n in ZeRO 3."""
    n, size = 8, 1_000_000
    assert model_states(size, Sharding.NONE, n, ADAM_MIXED).total == 16 * size
    assert model_states(size, Sharding.OPTIMIZER, n, ADAM_MIXED).total == 4 * size + 12 * size // n
    assert model_states(size, Sharding.GRADIENTS, n, ADAM_MIXED).total == 2 * size + 14 * size // n
    assert model_states(size, Sharding.PARAMETERS, n, ADAM_MIXED).total == 16 * size // n


def test_optimizer_states_of_fsdp2() -> None:
    """537 million parameters over 8 ranks: 512 MiB of moments, as torch holds them."""
    states = model_states(1 << 29, Sharding.PARAMETERS, 8, ADAM_FP32)
    assert states.optimizer == 512 << 20
    assert states.parameters == states.gradients == 256 << 20


def test_shards_that_do_not_come_out_even_are_rounded_up() -> None:
    assert model_states(10, Sharding.PARAMETERS, 3, ADAM_FP32).parameters == 14


@pytest.mark.parametrize(
    ("name", "sharding"),
    [
        ("ddp", Sharding.NONE),
        ("FSDP2", Sharding.PARAMETERS),
        ("zero-1", Sharding.OPTIMIZER),
        ("zero_2", Sharding.GRADIENTS),
        ("ZeRO-3", Sharding.PARAMETERS),
        ("pipeline", None),
        ("", None),
    ],
)
def test_names_of_strategies(name: str, sharding: Sharding | None) -> None:
    assert sharding_of(name) == sharding


def test_ranks_that_share_the_states() -> None:
    assert shards_of({"dp": 8}, 16) == 8  # two pipeline stages or tensor-parallel ranks
    assert shards_of({"dp_replicate": 2, "dp_shard": 4}, 8) == 4
    assert shards_of({}, 8) == 8
    assert shards_of({}, None) is None
    assert shards_of({"tp": 8}, 8) is None
