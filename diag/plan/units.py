"""A stage's sharding units with the arithmetic of each, for the program that is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from diag.plan.activations import Checkpointing
from diag.plan.decoder_ops import Kernels, block_ops
from diag.plan.share import Share

_OF_A_NUMBER = 50  # units of a model of which only the number of parameters is known


class Unit(Struct, frozen=True):
    """``blocks``: of the model, that it holds (a part of one where a matrix is a unit). FLOPs of one micro-batch."""

    parameters: int
    blocks: float
    forward: float
    backward: float


def units(share: Share, wrap: str, tokens: int, length: int, checkpointing: Checkpointing) -> tuple[Unit, list[Unit]]:
    """The root's, whose arithmetic (the head's) comes last, and the others in order of forward. ``tokens``: of the rank
    and micro-batch; ``length``: of the whole sequence, which each of them attends to."""
    shape = share.size.shape
    if shape is None:
        forward = 2.0 * share.size.parameters * tokens / _OF_A_NUMBER
        again = forward if checkpointing == Checkpointing.FULL else 0.0
        own = [
            Unit(share.size.parameters // _OF_A_NUMBER, 1, forward, 2 * forward + again) for _ in range(_OF_A_NUMBER)
        ]
        return Unit(0, 0, 0, 0), _merged(own, wrap)
    products = 2.0 * (shape.multiplied - shape.vocab * shape.hidden) / shape.layers * tokens
    scores = 4.0 * shape.heads * shape.head_size * length * tokens
    recomputed = {Checkpointing.NONE: 0.0, Checkpointing.SELECTIVE: 0.0, Checkpointing.FULL: products + scores}
    block = Unit(shape.block, 1, products + scores, 2 * (products + scores) + recomputed[checkpointing])
    head = 2.0 * shape.vocab * shape.hidden * tokens if share.last else 0.0
    rest = shape.table + shape.head + shape.norm if share.size.rest is None else share.size.rest
    if wrap == "linear":
        matrices = [op.weight for op in block_ops(shape, 0, 2, Kernels()) if op.weight and "norm" not in op.name]
        total = sum(matrices)
        parts = [_part(block, weight / total, weight) for weight in matrices]
        return Unit(rest + shape.layers * (shape.block - total), 0, head, 2 * head), parts * shape.layers
    return Unit(rest, 0, head, 2 * head), _merged([block] * shape.layers, wrap)


def _part(unit: Unit, part: float, parameters: int) -> Unit:
    return Unit(parameters, unit.blocks * part, unit.forward * part, unit.backward * part)


def _merged(own: list[Unit], wrap: str) -> list[Unit]:
    size = len(own) if wrap == "root" else int(wrap) if wrap.isdecimal() else 1
    return list(_groups(own, size))


def _groups(own: list[Unit], size: int) -> Iterator[Unit]:
    for first in range(0, len(own), size):
        some = own[first : first + size]
        yield Unit(
            sum(unit.parameters for unit in some),
            sum(unit.blocks for unit in some),
            sum(unit.forward for unit in some),
            sum(unit.backward for unit in some),
        )
