"""What is to be replayed of a step that nobody has run yet: stages, data parallelism, schedule."""

from __future__ import annotations

from msgspec import Struct

from diag.plan.memory import Strategy
from diag.plan.pipeline import Schedule
from diag.plan.speed import Link, Speed
from diag.plan.units import Unit


class Stage(Struct, frozen=True):
    """What one stage computes and sends, for one micro-batch. ``tensor_ns``: of one block's collectives in forward and
    in backward, which nothing hides; ``context_ns``: of its ring, beside the block; ``passed_ns``: to the next.
    """

    root: Unit
    units: tuple[Unit, ...]
    first: bool = True
    last: bool = True
    tensor_ns: tuple[int, int] = (0, 0)
    context_ns: tuple[int, int] = (0, 0)
    passed_ns: int = 0
    optimizer_ns: int = 0


class Data(Struct, frozen=True):
    """Data parallelism of a stage. ``bucket``: elements reduced at once where nothing is gathered by units; ``keeps``:
    gathered parameters stay until backward, by the strategy or because the root's unit holds them all."""

    strategy: Strategy
    keeps: bool
    shards: Link
    replicas: Link
    computed: int  # bytes of a parameter when it is gathered
    reduced: int  # and of a gradient when it is reduced
    bucket: int


class Job(Struct, frozen=True):
    """One step. ``chunks``: parts of the model on each rank, where the schedule interleaves them."""

    stages: tuple[Stage, ...]
    data: Data
    speed: Speed
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
