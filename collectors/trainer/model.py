"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; and its learning rate's schedule.

Modules are registered in the order in which forward uses them, so that walking them gives the order of all-gathers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .options import ModelShape

INIT_STD = 0.02
NO_RECOMPUTATION = "none"

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
}


def _keep_products() -> Any:
    """Contexts for selective recomputation: saves results that are expensive to compute again and small."""

    def policy(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def rotary_table(head_dim: int, seq_len: int, theta: float, device: torch.device) -> Tensor:
    """Unit complex numbers, (seq_len, head_dim / 2). Complex, so that mixed precision never rounds the angles."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float32, device=device), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn (batch, seq, heads, head_dim) by each position's angles."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[: x.shape[1], None]).flatten(-2).type_as(x)


class Attention(nn.Module):
    """Causal self-attention, (batch, seq, dim) to the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.dim // shape.heads
        kv_dim = self.head_dim * shape.kv_heads
        self.grouped = shape.kv_heads != shape.heads
        self.query = nn.Linear(shape.dim, shape.dim, bias=False)
        self.key = nn.Linear(shape.dim, kv_dim, bias=False)
        self.value = nn.Linear(shape.dim, kv_dim, bias=False)
        self.output = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        query = rotate(self.query(x).unflatten(-1, (-1, self.head_dim)), table).transpose(1, 2)
        key = rotate(self.key(x).unflatten(-1, (-1, self.head_dim)), table).transpose(1, 2)
        value = self.value(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.grouped)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """SwiGLU, (..., dim) to the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """One layer. ``recompute``: the activations that are computed again in backward: "none", "full" for all, or
    "selective" for all but the results of matrix multiplications and attention.

    The recomputation is inside forward, so a sharding hook on the block stays outside of it, as with
    ``fully_shard(checkpoint_wrapper(block))``, and the block keeps its name.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.recompute = NO_RECOMPUTATION
        self.attention_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.dim, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        if self.recompute == NO_RECOMPUTATION or not torch.is_grad_enabled():
            return self.layer(x, table)
        contexts: dict[str, Any] = {"context_fn": _keep_products} if self.recompute == "selective" else {}
        recomputed: Tensor = checkpoint(self.layer, x, table, use_reentrant=False, **contexts)
        return recomputed

    def layer(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Decoder(nn.Module):
    """Token ids (batch, seq) to logits (batch, seq, vocab), or a stage of that.

    ``layers``: the blocks of this stage. Only the first stage has the embedding, only the last the norm and the output
    projection; stages in between map (batch, seq, dim) to the same. Parameter names are those of the whole model.
    """

    def __init__(self, shape: ModelShape, layers: range | None = None) -> None:
        super().__init__()
        layers = range(shape.layers) if layers is None else layers
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.dim) if layers.start == 0 else None
        # A dictionary, so that a stage's blocks keep their numbers.
        self.blocks = nn.ModuleDict({str(number): Block(shape) for number in layers})
        is_last = layers.stop == shape.layers
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5) if is_last else None
        # A tied model has no second parameter: one object under two names would become two when it leaves the meta
        # device.
        self.head = nn.Linear(shape.dim, shape.vocab, bias=False) if is_last and not shape.tied else None
        self._table: Tensor | None = None

    def table(self, device: torch.device) -> Tensor:
        """The rotary table, computed once. Not a buffer: DDP would broadcast it in every forward, and a model that
        leaves the meta device would lose it."""
        if self._table is None or self._table.device != device:
            shape = self.shape
            self._table = rotary_table(shape.dim // shape.heads, shape.seq_len, shape.rope_theta, device)
        return self._table

    def forward(self, x: Tensor) -> Tensor:
        table = self.table(x.device)
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, table)
        if self.norm is None:
            return x
        x = self.norm(x)
        if self.head is None:
            assert self.embedding is not None
            return functional.linear(x, self.embedding.weight)
        logits: Tensor = self.head(x)
        # Gathered from the ranks of a tensor-parallel axis it is a view, which FSDP2's hooks warn about.
        return logits.clone() if isinstance(self.head.weight, DTensor) and logits._is_view() else logits


def build(shape: ModelShape, seed: int, layers: range | None = None) -> Decoder:
    """The model, or a stage of it: on the CPU with the weights of this seed, or on the meta device if the shape is
    deferred."""
    with torch.device("meta" if shape.deferred else "cpu"):
        model = Decoder(shape, layers)
    if not shape.deferred:
        reset_parameters(model, seed)
    return model


def materialize(model: Decoder, device: torch.device, seed: int, shard: int = 0) -> None:
    """Allocates and initializes the weights of a model that was built (and perhaps sharded) on the meta device."""
    model.to_empty(device=device)
    reset_parameters(model, seed, shard)


@torch.no_grad()
def reset_parameters(model: Decoder, seed: int, shard: int = 0) -> None:
    """Sets norms to 1, everything else to a normal distribution with GPT-2's standard deviation, scaled down for the
    two projections into the residual.

    Each tensor has its own generator, seeded by its name, so no weight depends on the order or number of the others.
    Only the local part of a sharded parameter is filled; ``shard`` makes the parts of different ranks different.
    """
    residual_std = INIT_STD / (2 * model.shape.layers) ** 0.5
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if "norm" in name:
            local.fill_(1.0)
            continue
        # stable across processes, unlike hash()
        digest = hashlib.blake2b(f"{seed}/{shard}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator(device=local.device).manual_seed(int.from_bytes(digest, "big"))
        residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        local.normal_(0.0, residual_std if residual else INIT_STD, generator=generator)


class Schedule:
    """Linear warm-up: step ``n``, counted from 0, has ``(n + 1) / steps`` of the rate, and from ``steps`` on all of
    it."""

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        self._optimizer = optimizer
        self._scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))

    def step(self) -> None:
        """Call it after the optimizer's step."""
        self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """The state as plain numbers, for a manifest."""
        state = self._scheduler.state_dict()
        return {name: state[name] for name in ("last_epoch", "base_lrs", "_last_lr", "_step_count")}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state and the rates of the optimizer's groups, which the scheduler's state does not set."""
        self._scheduler.load_state_dict({**state, "lr_lambdas": [None]})  # a function has no state
        for group, rate in zip(self._optimizer.param_groups, state["_last_lr"], strict=True):
            group["lr"] = rate


def schedule_of(optimizer: Optimizer, warmup_steps: int) -> Schedule | None:
    """The warm-up schedule; None for a constant rate."""
    return Schedule(optimizer, warmup_steps) if warmup_steps else None
