from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from diag.collectors.trainer.model import Decoder, build, materialize
from diag.collectors.trainer.options import PRESETS, flops_per_token, matmul_parameter_count, parameter_count
from diag.collectors.trainer.strategies.pipeline import cut_layers


@pytest.mark.parametrize("preset", PRESETS)
def test_counts_are_those_of_the_module(preset: str) -> None:
    shape = PRESETS[preset]
    with torch.device("meta"):
        model = Decoder(shape)
    assert parameter_count(shape) == sum(p.numel() for p in model.parameters())
    matmuls = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    if shape.tied:
        matmuls += model.embedding.weight.numel()
    assert matmul_parameter_count(shape) == matmuls
    assert flops_per_token(shape, 64) == 6 * matmuls + 12 * shape.layers * shape.dim * 64


def test_presets_have_the_sizes_of_their_names() -> None:
    sizes = {name: parameter_count(shape) for name, shape in PRESETS.items()}
    assert sizes["8b"] == 8_030_261_248  # Llama-3-8B
    assert sizes["1b"] == 1_235_814_400  # Llama-3.2-1B
    assert 120e6 < sizes["124m"] < 128e6
    assert 9e6 < sizes["small"] < 11e6


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build(PRESETS["tiny"], seed=5)
    torch.manual_seed(2)
    second, other = build(PRESETS["tiny"], seed=5), build(PRESETS["tiny"], seed=6)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_a_model_from_the_meta_device_has_the_weights_of_one_that_was_built_at_once() -> None:
    shape = PRESETS["tiny"]
    with torch.device("meta"):
        deferred = Decoder(shape)
    materialize(deferred, torch.device("cpu"), seed=3)
    tokens = torch.arange(20).reshape(2, 10)
    assert torch.equal(deferred(tokens), build(shape, seed=3)(tokens))


def test_no_token_sees_a_later_one() -> None:
    model = build(PRESETS["tiny"], seed=0)
    tokens = torch.arange(16).reshape(1, 16)
    changed = tokens.clone()
    changed[0, 9] = 200
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :9], after[0, :9], atol=1e-6)
    assert not torch.allclose(before[0, 9:], after[0, 9:], atol=1e-6)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputed_activations_give_the_same_gradients(recompute: str) -> None:
    tokens = torch.arange(16).reshape(1, 16)
    gradients, products = [], []
    for how in ("none", recompute):
        model = build(PRESETS["tiny"], seed=0)
        for block in model.blocks.values():
            block.recompute = how  # type: ignore[assignment]
        loss = model(tokens).square().mean()
        with Products() as counted:
            loss.backward()
        gradients.append([p.grad for p in model.parameters()])
        products.append(counted.number)
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)
    plain, again = products
    # The last product of a block is not needed again: the recomputation stops before it.
    assert again - plain == (0 if recompute == "selective" else 6 * PRESETS["tiny"].layers)


class Products(TorchDispatchMode):
    """Counts the matrix multiplications, attention's left out."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("layers", "stages"), [(2, 2), (8, 3), (32, 8)])
def test_the_stages_of_a_pipeline_make_up_the_model(layers: int, stages: int) -> None:
    shape = replace(PRESETS["tiny"], layers=layers)
    whole, x = build(shape, seed=3), torch.arange(24).reshape(2, 12)
    expected, names = whole(x), []
    cut = cut_layers(layers, stages)
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    for part in cut:
        stage = build(shape, 3, part)
        names += [name for name, _ in stage.named_parameters()]
        x = stage(x)
    torch.testing.assert_close(x, expected)
    assert names == [name for name, _ in whole.named_parameters()]
