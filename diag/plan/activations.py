"""What forward keeps for backward, by formula: bytes of one rank and one micro-batch.

Counted tensor by tensor for a pre-norm decoder whose attention keeps no scores (FlashAttention, SDPA), without dropout:
of each token and block the inputs of both norms and of what follows them, queries, keys and values, attention's output,
and the MLP's hidden layer before and after its function. Korthikanti et al. (arXiv 2205.05198, equation 1) count the
same for GPT with dropout: 34 x tokens x hidden in 16 bits, and 5 x heads x length^2 more where scores are kept.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from diag.plan.shape import Shape


class Checkpointing(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"  # attention is computed again
    FULL = "full"  # of each block only its input is kept


class Activations(Struct, frozen=True):
    """Bytes. ``blocks``: kept until backward; ``working``: alive at once in the block that is recomputed, or in none;
    ``logits``: of the last layer and its loss, in the computed type and in fp32."""

    blocks: int
    working: int
    logits: int

    @property
    def total(self) -> int:
        return self.blocks + self.working + self.logits


def activations(
    shape: Shape, tokens: int, width: int, checkpointing: Checkpointing, scores_of_length: int | None = None
) -> Activations:
    """For ``tokens`` (micro-batch x length) on a rank, ``width`` bytes an element. ``scores_of_length``: the length,
    where attention keeps its scores."""
    attention = _of_attention(shape, width) * tokens
    if scores_of_length is not None:
        attention += (2 * width + 1) * shape.heads * tokens * scores_of_length
    whole = attention + _of_the_rest(shape, width) * tokens
    entry = shape.hidden * width * tokens
    kept, working = {
        Checkpointing.NONE: (whole, 0),
        Checkpointing.SELECTIVE: (whole - attention + entry, attention),
        Checkpointing.FULL: (entry, whole),
    }[checkpointing]
    return Activations(kept * shape.layers, working, tokens * shape.vocab * (width + 4))


def _of_attention(shape: Shape, width: int) -> int:
    """Bytes of a token: queries, keys, values, the output, and a number per head and token for the softmax."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return width * (2 * queries + 2 * keys) + 4 * shape.heads


def _of_the_rest(shape: Shape, width: int) -> int:
    """Bytes of a token: input and output of both norms, and the MLP's hidden layer."""
    hidden = shape.experts_used * shape.ffn * (3 if shape.gated else 2)
    return width * (2 * 2 * shape.hidden + hidden)
