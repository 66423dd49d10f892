"""What of the model one rank works on: matrices cut by tp, layers by pp, the sequence by cp.

Tensor parallelism as in Megatron-LM (arXiv 1909.08053, section 3) and torchtitan: attention by heads, the MLP by its
hidden layer, table and head by vocabulary; norms are whole on every rank. Pipeline stages get equal numbers of layers,
the earlier ones one more where they do not divide; the first has the table, the last norm and head.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from diag.errors import DiagError
from diag.plan.shape import Shape, Size
from diag.plan.topology import Topology


class Share(Struct, frozen=True):
    """One stage's part of the model on one rank. ``size``: the parameters that it holds, with the shape of its cut
    matrices and its own number of layers; ``first`` and ``last``: whether it has the table, norm and head."""

    size: Size
    stage: int
    first: bool = True
    last: bool = True


def shares(size: Size, topology: Topology | None) -> list[Share]:
    """One a stage. DiagError where the axes do not divide the model."""
    tensor = topology.size("tp") if topology else 1
    stages = topology.size("pp") if topology else 1
    if tensor == stages == 1:
        return [Share(size, 0)]
    if size.shape is None:
        # Of a number alone: everything is cut evenly.
        part = Size(size.name, -(-size.parameters // (tensor * stages)))
        return [Share(part, stage, stage == 0, stage == stages - 1) for stage in range(stages)]
    return list(_stages(cut(size.shape, tensor), stages))


def check_chunks(parts: list[Share], chunks: int) -> None:
    """DiagError where a stage has fewer layers than parts."""
    layers = [part.size.shape.layers for part in parts if part.size.shape is not None]
    if len(parts) > 1 and layers and min(layers) < chunks:
        raise DiagError(f"--virtual-stages {chunks}: a stage of pp={len(parts)} has {min(layers)} layers")


def cut(shape: Shape, tensor: int) -> Shape:
    """The shape of the matrices on one rank of ``tensor``. Heads of keys and values that are fewer than ranks are
    repeated, as Megatron-LM does."""
    for name, count in (("query heads", shape.heads), ("hidden layer of the MLP", shape.ffn)):
        if count % tensor:
            raise DiagError(f"--topology: tp={tensor} does not divide the {count} of the {name}")
    return replace(
        shape,
        heads=shape.heads // tensor,
        kv_heads=max(1, -(-shape.kv_heads // tensor)),
        ffn=shape.ffn // tensor,
        vocab=-(-shape.vocab // tensor),
    )


def _stages(shape: Shape, stages: int) -> Iterator[Share]:
    if stages > shape.layers:
        raise DiagError(f"--topology: pp={stages} is more than the {shape.layers} layers")
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        layers = shape.layers // stages + (stage < shape.layers % stages)
        # With the table on another stage, a tied head is a copy of it.
        head = (shape.head if first or not shape.tied else shape.vocab * shape.hidden) + shape.norm if last else 0
        rest = (shape.table if first else 0) + head
        own = replace(shape, layers=layers)
        yield Share(Size(shape.name, layers * shape.block + rest, own, rest), stage, first, last)
