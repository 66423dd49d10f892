"""What fits, what it costs in communication, and what to use: a plan for one model, recipe and cluster."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model.states import Sharding
from diag.plan.account import Peak
from diag.plan.activations import Checkpointing
from diag.plan.choice import choice
from diag.plan.cluster import Cluster
from diag.plan.memory import STRATEGIES, ZERO_3, Strategy, fewest, need
from diag.plan.recipe import Recipe
from diag.plan.result import USABLE as USABLE
from diag.plan.result import Batch as Batch
from diag.plan.result import Plan as Plan
from diag.plan.result import Row as Row
from diag.plan.rows import StageTable, strategy_row
from diag.plan.shape import Size
from diag.plan.share import Share, check_chunks, shares
from diag.plan.speed import Speed
from diag.plan.step_memory import Step, modelled, step_peak
from diag.plan.topology import Topology

_MOST_GPUS = 1 << 16
_CUTS = (1, 2, 4, 8, 16)  # sizes of the tensor and the pipeline axis that are tried


def plan(
    size: Size,
    recipe: Recipe,
    cluster: Cluster,
    batch: Batch,
    *,
    wrap: str = "block",
    outside: int | None = None,
    topology: Topology | None = None,
    speed: Speed | None = None,
) -> Plan:
    """``outside``: bytes of the peak outside the model's states, where it is known; else the activations by formula,
    where the model's shape is known; else nothing is counted for them. ``topology``: all GPUs are data-parallel without
    one. ``speed``: without it nothing is said about time."""
    axes = topology or Topology({"dp": cluster.gpus})
    parts = shares(size, axes)
    check_chunks(parts, batch.chunks)
    tables = [StageTable(part, recipe, cluster, batch, axes, wrap, outside) for part in parts]
    room = round(cluster.memory * USABLE)
    rows = tuple(strategy_row(strategy, tables, room, speed, size) for strategy in STRATEGIES)
    beside = max(row.outside for row in rows)
    estimate = _estimate(size, recipe, cluster, wrap, beside) if axes.plain else None
    whole = StageTable(Share(size, 0), recipe, cluster, batch, Topology({}), wrap, outside)
    alone = size.parameters * recipe.total + whole.beside <= room
    chosen, reasons = choice(rows, cluster, axes, alone=alone, estimate=estimate)
    if chosen is None and axes.plain and size.shape is not None:
        reasons += _other_axes(size, recipe, cluster, batch, wrap, outside)
    bound = fewest(size, recipe, cluster.memory, beside) if axes.plain else None
    fullest = max(tables, key=lambda table: table.beside)
    return Plan(
        size, recipe, cluster, batch, fullest.kept, beside, rows, bound, estimate, chosen, reasons, axes, speed,
        _likely(size, recipe, batch, wrap, rows, chosen) if axes.plain and outside is None else None,
    )  # fmt: skip


def _likely(
    size: Size, recipe: Recipe, batch: Batch, wrap: str, rows: Sequence[Row], chosen: Strategy | None
) -> Peak | None:
    """The peak of the chosen strategy with everything alive only as long as it is; None where a step of it is not
    modelled so closely."""
    walked = chosen is not None and chosen.sharding in (Sharding.NONE, Sharding.PARAMETERS)
    if chosen is None or not walked or size.shape is None or batch.checkpointing == Checkpointing.SELECTIVE:
        return None
    if not modelled(size.shape):
        return None
    shards = next(row.need.shards for row in rows if row.need.strategy == chosen)
    step = Step(
        size.shape, recipe, chosen.sharding, shards, batch.sequences, batch.length, batch.micro_batches, wrap,
        kept=1.0 if chosen.keeps else 0.0, recompute=batch.checkpointing == Checkpointing.FULL,
    )  # fmt: skip
    return step_peak(step)


def _other_axes(
    size: Size, recipe: Recipe, cluster: Cluster, batch: Batch, wrap: str, outside: int | None
) -> tuple[str, ...]:
    """Where data parallelism alone does not fit: the least cutting of the model that does, tensor parallelism within a
    host first."""
    shape = size.shape
    assert shape is not None
    room = round(cluster.memory * USABLE)
    for tensor, stages in sorted(((t, p) for t in _CUTS for p in _CUTS), key=lambda pair: (pair[0] * pair[1], pair[1])):
        ranks, left = divmod(cluster.gpus, tensor * stages)
        fits = (
            tensor <= cluster.per_host and stages <= shape.layers and not (shape.heads % tensor or shape.ffn % tensor)
        )
        if tensor * stages == 1 or left or not ranks or not fits:
            continue
        axes = Topology({"pp": stages, "dp": ranks, "tp": tensor})
        tables = [StageTable(part, recipe, cluster, batch, axes, wrap, outside) for part in shares(size, axes)]
        row = next((r for r in (strategy_row(s, tables, room, None, size) for s in STRATEGIES) if r.fits), None)
        if row is not None:
            named = ",".join(f"{axis}={count}" for axis, count in axes.axes.items() if count > 1)
            return (f"these {cluster.gpus} GPUs hold it with --topology {named} and {row.need.strategy.name}",)
    return ()


def _estimate(size: Size, recipe: Recipe, cluster: Cluster, wrap: str, beside: int) -> int | None:
    """The fewest GPUs with which ZeRO-3 fits: any number on one host, whole hosts beyond."""
    room = cluster.memory * USABLE
    least = need(size, recipe, ZERO_3, _MOST_GPUS, cluster.per_host, wrap).total + beside
    if least > room:
        return None
    gpus = 1
    while need(size, recipe, ZERO_3, gpus, cluster.per_host, wrap).total + beside > room:
        gpus += 1 if gpus < cluster.per_host else cluster.per_host
    return gpus
