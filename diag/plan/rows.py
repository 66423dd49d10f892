"""The table of strategies: each on the stage of the topology that needs most."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from diag.plan.activations import activations
from diag.plan.axes import AxisTraffic, axis_traffic
from diag.plan.cluster import Cluster
from diag.plan.communication import traffic
from diag.plan.memory import Strategy, need
from diag.plan.pipeline import Schedule, in_flight
from diag.plan.recipe import Recipe
from diag.plan.result import Batch, Row
from diag.plan.shape import Size
from diag.plan.share import Share
from diag.plan.speed import Speed
from diag.plan.throughput import Work, throughput
from diag.plan.topology import Topology


class StageTable:
    """One stage's own numbers, from which the rows of all strategies are made."""

    def __init__(
        self,
        part: Share,
        recipe: Recipe,
        cluster: Cluster,
        batch: Batch,
        axes: Topology,
        wrap: str,
        outside: int | None,
    ) -> None:
        self.part, self.recipe, self.cluster, self.batch, self.axes, self.wrap = (
            part,
            recipe,
            cluster,
            batch,
            axes,
            wrap,
        )
        self.tensor, self.context = axes.size("tp"), axes.size("cp")
        shape, stages = part.size.shape, axes.size("pp")
        held = in_flight(batch.schedule, part.stage, stages, batch.micro_batches, batch.chunks)
        self.kept = None
        if shape is not None:
            local = -(-batch.tokens // self.context)
            self.kept = activations(
                shape, local, batch.width, batch.checkpointing, tensor=self.tensor, in_flight=held, last=part.last
            )
        self.beside = outside if outside is not None else self.kept.peak if self.kept else 0

    def row(self, strategy: Strategy, room: int) -> Row:
        axes, cluster, part = self.axes, self.cluster, self.part
        ranks = axes.data_parallel * self.context
        replica = axes.size("dp_shard") * self.context if "dp_shard" in axes.axes else None
        per_host = max(1, cluster.per_host // self.tensor)
        wanted = need(part.size, self.recipe, strategy, ranks, per_host, self.wrap, replica)
        sent = traffic(
            part.size.parameters, self.recipe, wanted, cluster, self.batch.micro_batches, ranks=ranks, apart=self.tensor
        )
        others: list[AxisTraffic] = []
        if part.size.shape is not None and not axes.plain:
            others = axis_traffic(
                part.size.shape, axes, cluster, self.batch.tokens, self.batch.width, self.batch.micro_batches,
                self.batch.chunks if self.batch.schedule == Schedule.INTERLEAVED else 1,
            )  # fmt: skip
        fits = wanted.total + self.beside <= room
        return Row(wanted, self.beside, sent, fits, part.stage, tuple(others))


def strategy_row(strategy: Strategy, tables: Sequence[StageTable], room: int, speed: Speed | None, size: Size) -> Row:
    """Of the stage that needs most; it fits where all do."""
    row = max((table.row(strategy, room) for table in tables), key=lambda row: row.peak)
    if speed is None:
        return row
    one = tables[0]
    batch = one.batch
    per_token = size.shape.flops_per_token(batch.length) if size.shape else 6 * size.parameters
    work = Work(
        batch.sequences, batch.length, batch.micro_batches, batch.checkpointing, one.wrap, batch.width,
        per_token, batch.schedule, batch.chunks,
    )  # fmt: skip
    parts = [table.part for table in tables]
    found = throughput(parts, row.need, one.recipe, one.cluster, one.axes, work, speed)
    return replace(row, expected=found)
