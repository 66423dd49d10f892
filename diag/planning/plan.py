"""A plan for one model, recipe and cluster: the strategies that fit, their communication, and the one to use."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from diag.errors import DiagError
from diag.model.states import Sharding
from diag.planning.policy import PLANNING
from diag.words.formatting import duration, share

from .cluster import AxisTraffic, Cluster, Topology, axis_traffic, check_world, cluster_of, topology_of
from .gathering import Peak
from .memory import (
    HYBRID,
    STRATEGIES,
    ZERO_3,
    Activations,
    Checkpointing,
    Need,
    Share,
    Strategy,
    Traffic,
    activations,
    check_chunks,
    divided_experts,
    fewest,
    kept_by_autocast,
    need,
    shares,
    traffic,
)
from .shape import RECIPES, Recipe, Size, size_of
from .step_memory import Step, modelled, step_peak
from .throughput import Schedule, Speed, StepWork, Throughput, in_flight, speed_of, throughput

# -- result ------------------------------------------------------------------------------------------------------------
#
# A plan as data.


class Batch(Struct, frozen=True):
    """The work of a rank in a step. ``width``: bytes of an activation element."""

    sequences: int = 1
    length: int = 4096
    checkpointing: Checkpointing = Checkpointing.NONE
    micro_batches: int = 1
    width: int = 2
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


class Row(Struct, frozen=True):
    """A strategy on this cluster. ``peak``: bytes of states, of temporary buffers, and of ``outside``: the activations,
    or the given bytes of everything outside the states; ``autocast``: the part of it that only this strategy has, where
    it computes by autocast. ``stage``: the pipeline stage that needs most; ``axes``: traffic of the other axes;
    ``expected``: the time of a step, None if it is not known."""

    need: Need
    outside: int
    traffic: Traffic
    fits: bool
    stage: int = 0
    axes: tuple[AxisTraffic, ...] = ()
    expected: Throughput | None = None
    autocast: int = 0

    @property
    def peak(self) -> int:
        return self.need.total + self.outside

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in a step, on all axes."""
        return self.traffic.total + sum(axis.bytes for axis in self.axes)

    @property
    def seconds(self) -> float:
        """Time of the communication without overlap, the axes one after the other."""
        return self.traffic.seconds + sum(axis.seconds for axis in self.axes)


class Plan(Struct, frozen=True):
    """A plan. ``bound``: the fewest GPUs whose memory holds the states, shared evenly, and ``outside``. ``estimate``:
    the fewest with which ZeRO-3 leaves a tenth of each free, None if no number does. ``chosen``: the strategy to use,
    with ``reasons``; None if nothing fits, with the reasons for that."""

    size: Size
    recipe: Recipe
    cluster: Cluster
    batch: Batch
    activations: Activations | None
    outside: int
    rows: tuple[Row, ...]
    bound: int | None
    estimate: int | None
    chosen: Strategy | None
    reasons: tuple[str, ...]
    topology: Topology = Topology({})
    speed: Speed | None = None
    likely: Peak | None = None


# -- choice ------------------------------------------------------------------------------------------------------------
#
# Chooses among the strategies that fit, with reasons.


def choice(
    rows: Sequence[Row], cluster: Cluster, axes: Topology, *, alone: bool, estimate: int | None
) -> tuple[Strategy | None, tuple[str, ...]]:
    """The strategy and the reasons; None if nothing fits, with the reasons for that. ``alone``: everything fits on one
    GPU. ``rows``: from simple to complex."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return None, _nothing(axes, estimate)
    if alone and axes.plain:
        simplest = fitting[0].need.strategy
        if cluster.gpus == 1:
            return simplest, ("everything fits on one GPU: do not distribute",)
        return simplest, (
            "everything fits on one GPU",
            "more GPUs only increase the throughput, and DDP is the simplest strategy for that",
            *_worth(fitting[0], cluster.gpus),
        )
    best, reasons = _quickest(fitting)
    if alone:
        reasons.append("everything fits on one GPU: tensor, pipeline and context parallelism are not needed for memory")
    if cluster.hosts > 1 and axes.plain and HYBRID not in [row.need.strategy for row in fitting]:
        reasons.append("the states do not fit on the GPUs of one host, so hybrid sharding is not possible")
    return best.need.strategy, tuple(reasons)


def _worth(row: Row, gpus: int) -> tuple[str, ...]:
    """The speedup over one GPU in words, if it is known; below ``least_speedup`` several GPUs are not worth it."""
    if row.expected is None:
        return ()
    times = gpus * row.expected.compute_ns / row.expected.step_ns
    if times < PLANNING.least_speedup:
        alternative = "reduce gradients less often with more or larger micro-batches"
        return (
            f"the throughput of {gpus} GPUs is only {times:.1f} times that of one: do not distribute, or {alternative}",
        )
    return (f"the throughput of {gpus} GPUs is {times:.1f} times that of one",)


def _quickest(fitting: Sequence[Row]) -> tuple[Row, list[str]]:
    """The best row by the time of a step, or by the time of the communication if that is not known; among about equal
    ones the simplest."""
    if len(fitting) == 1:
        return fitting[0], ["nothing else fits"]
    times = {row.need.strategy.name: row.expected.step_ns for row in fitting if row.expected is not None}
    if len(times) < len(fitting):
        # ``min`` returns the first of equal rows, which are ordered from simple to complex.
        return min(fitting, key=lambda row: round(row.seconds, 6)), [
            "it communicates the least of the strategies that fit"
        ]
    fastest = min(fitting, key=lambda row: times[row.need.strategy.name])
    least = times[fastest.need.strategy.name]
    best = next(row for row in fitting if times[row.need.strategy.name] <= (1 + PLANNING.longer_step_share) * least)
    best_ns = times[best.need.strategy.name]
    if best is fastest:
        return best, [f"its step is the shortest of the strategies that fit ({duration(best_ns)})"]
    return best, [
        f"it is the simplest strategy within {share(PLANNING.longer_step_share)} of the shortest step: "
        f"{duration(best_ns)} a step, {duration(least)} with {fastest.need.strategy.name}"
    ]


def _nothing(axes: Topology, estimate: int | None) -> tuple[str, ...]:
    remedy = "activation checkpointing, a smaller micro-batch or offload reduce the memory per GPU"
    if not axes.plain:
        return ("no strategy fits with these axes", remedy)
    if estimate is not None:
        return (f"{estimate} GPUs are enough with ZeRO-3", remedy)
    return (
        "no number of GPUs is enough: the gathered units and the memory outside of the states do not fit on one GPU",
        remedy,
    )


# -- rows --------------------------------------------------------------------------------------------------------------
#
# The table of strategies: each for the stage of the topology that needs most.


class StageTable:
    """The numbers of one stage, from which the rows of all strategies are computed."""

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
        self.kept, self.autocast = None, 0
        if shape is not None:
            local = -(-batch.tokens // self.context)
            if outside is None and recipe.parameters > recipe.computed:
                self.autocast = kept_by_autocast(
                    shape, local, recipe.computed, batch.checkpointing, tensor=self.tensor, in_flight=held
                )
            self.kept = activations(
                shape, local, batch.width, batch.checkpointing, tensor=self.tensor, in_flight=held, last=part.last
            )
        self.beside = outside if outside is not None else self.kept.peak if self.kept else 0

    def row(self, strategy: Strategy, room: int) -> Row:
        axes, cluster, part = self.axes, self.cluster, self.part
        ranks = axes.data_parallel * self.context
        replica = axes.size("dp_shard") * self.context if "dp_shard" in axes.axes else None
        per_host = max(1, cluster.per_host // self.tensor)
        expert = axes.size("ep")
        needed = need(part.size, self.recipe, strategy, ranks, per_host, self.wrap, replica, expert)
        sent = traffic(
            part.size.parameters, self.recipe, needed, cluster, self.batch.micro_batches, ranks=ranks,
            apart=self.tensor, expert=expert,
            experts=divided_experts(part.size, expert),
        )  # fmt: skip
        axis_traffics: list[AxisTraffic] = []
        if part.size.shape is not None and not axes.plain:
            axis_traffics = axis_traffic(
                part.size.shape, axes, cluster, self.batch.tokens, self.batch.width, self.batch.micro_batches,
                self.batch.chunks if self.batch.schedule == Schedule.INTERLEAVED else 1,
            )  # fmt: skip
        autocast = self.autocast if strategy.sharding != Sharding.PARAMETERS else 0  # FSDP gathers in the computed type
        outside = self.beside + autocast
        fits = needed.total + outside <= room
        return Row(needed, outside, sent, fits, part.stage, tuple(axis_traffics), autocast=autocast)


def strategy_row(strategy: Strategy, tables: Sequence[StageTable], room: int, speed: Speed | None, size: Size) -> Row:
    """The row of the stage that needs most memory; if it fits, all stages do."""
    row = max((table.row(strategy, room) for table in tables), key=lambda row: row.peak)
    if speed is None:
        return row
    first_table = tables[0]
    batch = first_table.batch
    per_token = size.shape.flops_per_token(batch.length) if size.shape else 6 * size.parameters
    work = StepWork(
        batch.sequences, batch.length, batch.micro_batches, batch.checkpointing, first_table.wrap, batch.width,
        per_token, batch.schedule, batch.chunks,
    )  # fmt: skip
    parts = [table.part for table in tables]
    expected = throughput(parts, row.need, first_table.recipe, first_table.cluster, first_table.axes, work, speed)
    return replace(row, expected=expected)


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
    """Plans a training. ``outside``: bytes of the peak outside the model's states, if known; else the activations by
    formula, if the model's shape is known; else 0. ``topology``: by default all GPUs are data-parallel. ``speed``:
    without it no time is estimated; nor is one with expert parallelism, whose exchange of tokens has no model here."""
    axes = topology or Topology({"dp": cluster.gpus})
    if axes.size("ep") > 1:
        speed = None
    parts = shares(size, axes)
    check_chunks(parts, batch.chunks)
    tables = [StageTable(part, recipe, cluster, batch, axes, wrap, outside) for part in parts]
    room = round(cluster.memory * PLANNING.usable_memory_share)
    rows = tuple(strategy_row(strategy, tables, room, speed, size) for strategy in STRATEGIES)
    max_outside = max(row.outside - row.autocast for row in rows)
    estimate = _estimate(size, recipe, cluster, wrap, max_outside) if axes.plain else None
    unsplit_table = StageTable(Share(size, 0), recipe, cluster, batch, Topology({}), wrap, outside)
    fits_on_one = size.parameters * recipe.total + unsplit_table.beside + unsplit_table.autocast <= room
    chosen, reasons = choice(rows, cluster, axes, alone=fits_on_one, estimate=estimate)
    if chosen is None and axes.plain and size.shape is not None:
        reasons += _other_axes(size, recipe, cluster, batch, wrap, outside)
    bound = fewest(size, recipe, cluster.memory, max_outside) if axes.plain else None
    fullest = max(tables, key=lambda table: table.beside)
    return Plan(
        size, recipe, cluster, batch, fullest.kept, max_outside, rows, bound, estimate, chosen, reasons, axes, speed,
        _likely(size, recipe, batch, wrap, rows, chosen) if axes.plain and outside is None else None,
    )  # fmt: skip


def _likely(
    size: Size, recipe: Recipe, batch: Batch, wrap: str, rows: Sequence[Row], chosen: Strategy | None
) -> Peak | None:
    """The simulated peak of the chosen strategy, which counts each tensor only while it is live; None if its step is
    not modelled."""
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
    """A topology that fits where data parallelism alone does not: the least model parallelism, tensor parallelism
    within a host first."""
    shape = size.shape
    assert shape is not None
    room = round(cluster.memory * PLANNING.usable_memory_share)
    for tensor, stages in sorted(((t, p) for t in _CUTS for p in _CUTS), key=lambda pair: (pair[0] * pair[1], pair[1])):
        ranks, remainder = divmod(cluster.gpus, tensor * stages)
        fits = (
            tensor <= cluster.per_host
            and stages <= shape.layers
            and not any(count % tensor for count in (shape.heads, shape.ffn, shape.shared_ffn, shape.dense_ffn))
        )
        if tensor * stages == 1 or remainder or not ranks or not fits:
            continue
        axes = Topology({"pp": stages, "dp": ranks, "tp": tensor})
        tables = [StageTable(part, recipe, cluster, batch, axes, wrap, outside) for part in shares(size, axes)]
        row = next((r for r in (strategy_row(s, tables, room, None, size) for s in STRATEGIES) if r.fits), None)
        if row is not None:
            axes_text = ",".join(f"{axis}={count}" for axis, count in axes.axes.items() if count > 1)
            return (f"these {cluster.gpus} GPUs are enough with --topology {axes_text} and {row.need.strategy.name}",)
    return ()


def _estimate(size: Size, recipe: Recipe, cluster: Cluster, wrap: str, outside: int) -> int | None:
    """The fewest GPUs with which ZeRO-3 fits: any number on one host, whole hosts beyond."""
    room = cluster.memory * PLANNING.usable_memory_share
    least = need(size, recipe, ZERO_3, PLANNING.most_gpus, cluster.per_host, wrap).total + outside
    if least > room:
        return None
    gpus = 1
    while need(size, recipe, ZERO_3, gpus, cluster.per_host, wrap).total + outside > room:
        gpus += 1 if gpus < cluster.per_host else cluster.per_host
    return gpus


def plan_for(
    model: str,
    gpus: int = 8,
    gpu: str | None = None,
    *,
    per_host: int | None = None,
    memory_gb: float | None = None,
    within_gb_s: float | None = None,
    across_gb_s: float | None = None,
    topology: str | None = None,
    peak_tflop_s: float | None = None,
    mfu: float | None = None,
    latency_within_us: float | None = None,
    latency_across_us: float | None = None,
    recipe: str = "mixed",
    wrap: str = "block",
    batch_size: int = 1,
    seq_len: int = 4096,
    micro_batches: int = 1,
    schedule: str = "1f1b",
    virtual_stages: int = 2,
    checkpointing: str = "none",
    outside_gb: float | None = None,
) -> Plan:
    """Estimates memory, communication and step time of a training for every sharding strategy, and chooses one.

    ``model``: a number of parameters ("7B"), a preset ("llama-3-8b") or the path of a model's config.json. The others
    are the options of ``diag plan``, by name: sizes in GB (1e9 bytes), bandwidths in GB/s, latencies in microseconds.
    DiagError names the option with an invalid value.
    """
    if recipe not in RECIPES:
        listed = "\n".join(f"  {name:22} {chosen_recipe.about}" for name, chosen_recipe in RECIPES.items())
        raise DiagError(f"--recipe: there is no {recipe!r}", hint=f"one of\n{listed}")
    if checkpointing not in list(Checkpointing):
        raise DiagError(f"--checkpointing: there is no {checkpointing!r}", hint=f"one of {', '.join(Checkpointing)}")
    if wrap not in ("block", "root", "linear") and not (wrap.isdecimal() and int(wrap)):
        raise DiagError(f"--wrap: there is no unit {wrap!r}", hint="block, root, linear, or a number of blocks")
    if schedule not in list(Schedule):
        raise DiagError(f"--schedule: there is no {schedule!r}", hint=f"one of {', '.join(Schedule)}")
    axes = topology_of(topology) if topology is not None else None
    if axes is not None:
        check_world(axes, gpus)
    cluster = cluster_of(
        gpus,
        gpu,
        per_host=per_host,
        memory_gb=memory_gb,
        within_gb_s=within_gb_s,
        across_gb_s=across_gb_s,
        peak_tflop_s=peak_tflop_s,
    )
    chosen_recipe = RECIPES[recipe]
    batch = Batch(
        sequences=batch_size,
        length=seq_len,
        checkpointing=Checkpointing(checkpointing),
        micro_batches=micro_batches,
        width=chosen_recipe.computed,
        schedule=Schedule(schedule),
        chunks=virtual_stages if schedule == Schedule.INTERLEAVED else 1,
    )
    # The known peak FLOP/s are for 16-bit arithmetic.
    timed = chosen_recipe.computed == 2 or peak_tflop_s is not None
    return plan(
        size_of(model),
        chosen_recipe,
        cluster,
        batch,
        wrap=wrap,
        outside=round(outside_gb * 1e9) if outside_gb is not None else None,
        topology=axes,
        speed=speed_of(cluster, mfu, latency_within_us, latency_across_us) if timed else None,
    )
