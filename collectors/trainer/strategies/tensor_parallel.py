"""Tensor parallelism of the decoder, as Megatron cuts it, with sequence parallelism between the matrices.

Each block gathers the sequence twice and scatters it twice in forward, and as often in backward. The ranks of one part
read the same data, so their losses are equal.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ..model import Decoder

_SEQUENCE = Shard(1)


def _gathered(inputs: int) -> PrepareModuleInput:
    """The first input's sequence is gathered; further ones, as the rotary table, are left as they are."""
    rest = (None,) * (inputs - 1)
    return PrepareModuleInput(
        input_layouts=(_SEQUENCE, *rest), desired_input_layouts=(Replicate(), *rest), use_local_output=True
    )


def cut_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Makes the parameters of a decoder, or of a stage of one, DTensors over the ranks of ``mesh``, in place.

    A stage in the middle is given, and gives, the whole sequence's part of this rank: (batch, seq / ranks, dim).
    """
    outer: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        outer["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE)
    if model.norm is not None:
        outer["norm"] = SequenceParallel()
    if model.head is not None:
        outer["head"] = ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=Replicate())
    if outer:
        parallelize_module(model, mesh, outer)
    for block in model.blocks.values():
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": _gathered(2),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.output": RowwiseParallel(output_layouts=_SEQUENCE),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": _gathered(1),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=_SEQUENCE),
            },
        )
