"""What forward keeps for backward, by formula: bytes of one rank and one micro-batch.

Counted tensor by tensor for a pre-norm decoder whose attention keeps no scores (FlashAttention, SDPA), without dropout:
of each token and block the inputs of both norms and of what follows them, queries, keys and values, attention's output,
and the MLP's hidden layer before and after its function, with a gate its other factor and the product, too. Korthikanti
et al. (arXiv 2205.05198, equation 1) count the same for GPT with dropout: 34 x tokens x hidden in 16 bits, and
5 x heads x length^2 more where scores are kept.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from diag.plan.shape import Shape


class Checkpointing(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"  # what is no matrix product and no attention is computed again
    FULL = "full"  # of each block only its input is kept


class Activations(Struct, frozen=True):
    """Bytes. ``blocks``: kept until backward; ``working``: alive at once in the block that is recomputed, or in none;
    ``logits``: of the last layer and its loss, in the computed type and in fp32; ``loss``: the two gradients in fp32
    that the loss's backward makes before any block is recomputed."""

    blocks: int
    working: int
    logits: int
    loss: int = 0

    @property
    def total(self) -> int:
        return self.blocks + self.working + self.logits

    @property
    def peak(self) -> int:
        """At once: the loss is over when the first block is recomputed."""
        return self.blocks + self.logits + max(self.working, self.loss)


def activations(
    shape: Shape,
    tokens: int,
    width: int,
    checkpointing: Checkpointing,
    scores_of_length: int | None = None,
    *,
    tensor: int = 1,
    in_flight: float = 1.0,
    last: bool = True,
) -> Activations:
    """For ``tokens`` (micro-batch x length) on a rank, ``width`` bytes an element. ``scores_of_length``: the length,
    where attention keeps its scores.

    ``shape``: of the rank's own matrices where ``tensor`` ranks cut them; what is not in them is cut along the sequence
    (Korthikanti et al., 2205.05198, equation 4). ``in_flight``: micro-batches that a pipeline stage holds at once;
    ``last``: whether it has the logits."""
    attention = _of_attention(shape, width) * tokens
    if scores_of_length is not None:
        attention += (2 * width + 1) * shape.heads * tokens * scores_of_length
    whole = attention + _of_the_rest(shape, width, tensor) * tokens
    entry = shape.hidden * width * tokens // tensor
    products = attention + entry + _of_products(shape, width, tensor) * tokens
    kept, working = {
        Checkpointing.NONE: (whole, 0),
        Checkpointing.SELECTIVE: (products, whole - attention),
        Checkpointing.FULL: (entry, whole),
    }[checkpointing]
    logits = tokens * shape.vocab if last else 0
    return Activations(round(kept * shape.layers * in_flight), working, logits * (width + 4), logits * 8)


def _of_attention(shape: Shape, width: int) -> int:
    """Bytes of a token: queries, keys, values, the output, and a number per head and token for the softmax."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return width * (2 * queries + 2 * keys) + 4 * shape.heads


def _of_products(shape: Shape, width: int, tensor: int) -> int:
    """Bytes of a token: results of the matrix products beside queries, keys and values, each kept once: attention's
    output projection, the MLP's hidden layer, with a gate the other factor, and its result."""
    hidden = shape.experts_used * shape.ffn * (2 if shape.gated else 1)
    return width * (2 * shape.hidden // tensor + hidden)


def _of_the_rest(shape: Shape, width: int, tensor: int) -> int:
    """Bytes of a token: input and output of both norms, and the MLP's hidden layer: before and after its function, and
    with a gate the other factor and the product, which eager PyTorch keeps all four."""
    hidden = shape.experts_used * shape.ffn * (4 if shape.gated else 2)
    return width * (2 * 2 * shape.hidden // tensor + hidden)
