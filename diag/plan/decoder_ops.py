"""A decoder's operations as autograd meets them: what each keeps for backward, and the gradients it makes there.

Counted in torch 2.13's eager mode for a pre-norm decoder with flash attention (SDPA) and without dropout. The sum of
what is kept equals, to the byte, what torch.autograd.graph.saved_tensors_hooks sees of the bundled trainer's model on a
CPU (tests/plan/test_saved_tensors.py). Korthikanti et al. (arXiv 2205.05198, section 4.1) count the same way for GPT.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diag.plan.shape import Shape


class Kernels(Struct, frozen=True):
    """How torch computes here. ``fused_norms``: RMSNorm and LayerNorm are one kernel that keeps its input and a
    statistic; torch's RMSNorm on a CPU is a composition that keeps the normalised input, too. ``foreach``: the
    optimizer updates all parameters at once."""

    fused_norms: bool = True
    foreach: bool = True


class Op(Struct, frozen=True):
    """``weight``: parameters; ``block``: -1 for what belongs to none. Bytes a token: ``kept`` from forward until
    its backward is over, gradients that its backward ``makes`` and those that it ``spends``, and what is there
    ``beside`` them while it computes."""

    name: str
    block: int
    weight: int = 0
    kept: int = 0
    makes: int = 0
    spends: int = 0
    beside: int = 0


def block_ops(shape: Shape, block: int, width: int, kernels: Kernels) -> Iterator[Op]:
    """Of one block, in order of forward. Backward enters the last with the gradient of the block's output (``hidden``
    elements), which stays for the residual, and leaves the first with that of its input."""
    hidden, norm = shape.hidden * width, shape.norm
    queries, keys = shape.heads * shape.head_size * width, shape.kv_heads * shape.head_size * width
    ffn = shape.experts_used * shape.ffn * width
    biases = [size // width if shape.biases or shape.qkv_biases else 0 for size in (queries, keys)]
    yield _norm("attention norm", block, norm, hidden, kernels)
    # The first projection is the last in backward: the normalised input goes with it.
    weight = shape.hidden * queries // width + biases[0]
    # Rotation by angles keeps the angles only, and makes a second gradient of what it turned.
    yield Op("queries", block, weight, kept=hidden, makes=hidden, spends=queries + hidden, beside=queries)
    weight = shape.hidden * keys // width + biases[1]
    yield Op("keys", block, weight, makes=hidden, spends=keys + hidden, beside=keys)
    yield Op("values", block, weight, makes=hidden, spends=keys)
    statistic = 4 * shape.heads  # the softmax's, in fp32
    yield Op("attention", block, kept=queries + 2 * keys + statistic, makes=queries + 2 * keys, spends=queries)
    weight = shape.hidden * queries // width + (shape.hidden if shape.biases else 0)
    yield Op("output", block, weight, kept=queries, makes=queries)
    yield _norm("feed-forward norm", block, norm, hidden, kernels)
    yield from _feed_forward(shape, block, ffn, width)


def _feed_forward(shape: Shape, block: int, ffn: int, width: int) -> Iterator[Op]:
    """gate, its function, up, their product, down; without a gate: up, its function, down."""
    hidden, weight = shape.hidden * width, shape.experts * shape.hidden * shape.ffn
    down = weight + (shape.hidden if shape.biases else 0)
    up = weight + (shape.ffn if shape.biases else 0)
    if not shape.gated:
        yield Op("up", block, up, kept=hidden, makes=hidden, spends=ffn)
        yield Op("function", block, kept=ffn, makes=ffn, spends=ffn)
        yield Op("down", block, down, kept=ffn, makes=ffn)
        return
    yield Op("gate", block, up, kept=hidden, makes=hidden, spends=ffn + hidden)
    yield Op("function", block, kept=ffn, makes=ffn, spends=ffn)
    yield Op("up", block, up, makes=hidden, spends=ffn)
    yield Op("product", block, kept=2 * ffn, makes=2 * ffn, spends=ffn)
    yield Op("down", block, down, kept=ffn, makes=ffn)


def _norm(name: str, block: int, weight: int, hidden: int, kernels: Kernels) -> Op:
    """Its gradient joins the residual's."""
    kept = hidden + 4 if kernels.fused_norms else 2 * hidden + 4
    return Op(
        name, block, weight, kept, makes=hidden, spends=2 * hidden, beside=hidden if kernels.fused_norms else 2 * hidden
    )


def final_norm(shape: Shape, block: int, width: int, kernels: Kernels) -> Op:
    """No residual runs past it: it gives one gradient for one."""
    hidden = shape.hidden * width
    whole = _norm("final norm", block, shape.norm, hidden, kernels)
    return Op(whole.name, block, whole.weight, whole.kept, makes=hidden, spends=hidden, beside=whole.beside)


def kept_of_block(shape: Shape, width: int, kernels: Kernels) -> int:
    """Bytes a token that one block keeps."""
    return sum(op.kept for op in block_ops(shape, 0, width, kernels))
