"""What the planner says autograd keeps, against what autograd keeps: distinct storages, to the byte."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from unittest.mock import MagicMock

import pytest
import torch
from msgspec.structs import replace as replace_fields
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Module

from diag.collectors.trainer.model import build
from diag.collectors.trainer.options import PRESETS, ModelShape
from diag.planning.measured import ON_CPU, shape_of_run
from diag.planning.memory import Checkpointing, activations
from diag.planning.shape import PRESETS as MODELS
from diag.planning.shape import Latent, Shape
from diag.planning.step_memory import Kernels, Types, block_ops, final_norm, kept_of_block


def planned(shape: ModelShape) -> Shape:
    numbers = {name: getattr(shape, name) for name in ("layers", "dim", "heads", "kv_heads", "ffn_dim", "vocab")}
    return shape_of_run({"preset": "test", "tied": shape.tied}, numbers)


def kept_by_autograd(shape: ModelShape, types: Types) -> int:
    """Bytes of the storages that forward keeps, without parameters, the rotations and the tokens themselves."""
    model = build(shape, seed=0)
    tokens = torch.zeros((shape.batch_size, shape.seq_len), dtype=torch.long)
    table = model.table(tokens.device)
    if not types.autocast and types.width == 2:
        model.bfloat16()
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    known |= {table.untyped_storage().data_ptr(), tokens.untyped_storage().data_ptr()}
    found: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # or another could take its place
        return tensor

    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=types.autocast),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        logits = model(tokens)
    assert logits.requires_grad
    return sum(found.values())


LATENT = Shape("s", 1, 7168, 128, 128, 192, 18_432, 129_280, latent=Latent(1536, 512, 128, 64, 192))
ALL_TYPES = [
    pytest.param(Types(4), id="fp32"),
    pytest.param(Types(2), id="bf16"),
    pytest.param(Types(2, autocast=True), id="autocast"),
]


@pytest.mark.parametrize("types", ALL_TYPES)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(replace(PRESETS["small"], batch_size=1, layers=2), id="flash attention"),
        pytest.param(PRESETS["tiny"], id="shared keys"),
        pytest.param(replace(PRESETS["tiny"], seq_len=96, batch_size=2, kv_heads=4, layers=1), id="one block"),
        pytest.param(replace(PRESETS["tiny"], tied=True), id="tied"),
    ],
)
def test_forward_keeps_what_the_formula_says(shape: ModelShape, types: Types) -> None:
    own = planned(shape)
    each = shape.layers * kept_of_block(own, types, ON_CPU)
    head = final_norm(own, -1, types, ON_CPU).kept + types.width * own.hidden
    weights = own.multiplied * types.copied
    tokens = shape.batch_size * shape.seq_len
    assert kept_by_autograd(shape, types) == (each + head) * tokens + weights


@pytest.fixture
def _torchtitan() -> None:
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    if find_spec("triton") is None:  # of the kernels for experts
        sys.modules.setdefault("torchtitan.models.moe.kernels", MagicMock())


def kept_without_storage(make: Callable[[], Module], tokens: int, types: Types) -> int:
    """Bytes that the forward of a model keeps, by tensors without storage."""
    found: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        alive.append(tensor)
        return tensor

    torch.set_default_dtype(torch.float32 if types.stream == 4 else torch.bfloat16)
    try:
        with FakeTensorMode():
            model = make()
            ids = torch.zeros((1, tokens), dtype=torch.long)
            with (
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=types.autocast),
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            ):
                model(ids)
            for tensor in (ids, *model.parameters(), *model.buffers()):
                found.pop(tensor.untyped_storage()._cdata, None)
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(found.values())


@pytest.mark.usefixtures("_torchtitan")
@pytest.mark.parametrize("size", ["8b", "14b", "32b"])
def test_a_block_of_qwen3_keeps_what_the_formula_says(size: str) -> None:
    """On a CPU, whose norms are compositions in fp32. The angles of torchtitan's rotation are a cosine and a sine."""
    from torchtitan.models.qwen3 import qwen3_args
    from torchtitan.models.qwen3.model.model import Qwen3Model

    tokens, shape = 64, MODELS[f"qwen3-{size}"]
    one, two = (replace(qwen3_args[size.upper()], max_seq_len=tokens, n_layers=layers) for layers in (1, 2))
    block = kept_without_storage(lambda: Qwen3Model(two), tokens, Types(2))
    block -= kept_without_storage(lambda: Qwen3Model(one), tokens, Types(2))
    angles = 2 * 2 * shape.head_size
    assert block == (kept_of_block(shape, Types(2), Kernels(fused_norms=False)) + angles) * tokens
    # The table of a plan leaves out the statistics of norms.
    planned = activations(shape, tokens, 2, Checkpointing.NONE).blocks
    statistics = 4 * (2 + shape.heads + shape.kv_heads)
    assert planned == (kept_of_block(shape, Types(2), Kernels()) - statistics) * shape.layers * tokens


@pytest.mark.usefixtures("_torchtitan")
@pytest.mark.parametrize("types", ALL_TYPES)
def test_a_dense_block_of_deepseek_v3_keeps_what_the_formula_says(types: Types) -> None:
    """On a CPU, whose flash attention needs values of the queries' size: 192 elements of a head, not 128."""
    from torchtitan.models.deepseek_v3 import deepseekv3_args
    from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model

    tokens, shape = 64, LATENT
    args = replace(deepseekv3_args["671B"], max_seq_len=tokens, v_head_dim=192, attn_type="sdpa")
    one, two = (replace(args, n_layers=layers, n_dense_layers=layers) for layers in (1, 2))
    block = kept_without_storage(lambda: DeepSeekV3Model(two), tokens, types)
    block -= kept_without_storage(lambda: DeepSeekV3Model(one), tokens, types)
    ops = list(block_ops(shape, 0, types, Kernels(fused_norms=False)))
    assert block == sum(op.kept * tokens + op.cast * op.weight for op in ops)
    if not types.autocast:  # the table of a plan leaves out the statistics of norms
        planned = activations(shape, tokens, types.width, Checkpointing.NONE).blocks
        assert planned == (kept_of_block(shape, types, Kernels()) - 4 * 4) * tokens


@pytest.mark.parametrize(
    "shape",
    [Shape("s", 1, 64, 4, 2, 16, 192, 100), Shape("s", 1, 64, 4, 2, 16, 192, 100, gated=False), LATENT],
    ids=["gated", "plain", "latent"],
)
@pytest.mark.parametrize("kernels", [Kernels(), Kernels(fused_norms=False)])
@pytest.mark.parametrize("types", [Types(4), Types(2), Types(2, autocast=True)])
def test_backward_leaves_the_gradient_of_the_input(shape: Shape, kernels: Kernels, types: Types) -> None:
    """It enters with one gradient of the block's width and leaves with one; nothing is spent that is not there."""
    alive = shape.hidden * types.stream
    for op in reversed(list(block_ops(shape, 0, types, kernels))):
        alive += op.makes
        assert alive >= op.spends
        alive -= op.spends
    assert alive == shape.hidden * types.stream


def test_weights_of_a_block_are_its_parameters() -> None:
    small = Shape("s", 1, 64, 4, 2, 16, 192, 100)
    plain = Shape("g", 1, 64, 4, 4, 16, 256, 100, gated=False)
    for shape in (small, plain, replace_fields(small, qk_norms=True), LATENT):
        assert sum(op.weight for op in block_ops(shape, 0, Types(4), Kernels())) == shape.block
