"""How long a step takes by the replay's cost model, and what that is in tokens a second and in MFU."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.model.states import Sharding
from diag.model.steps import Kind
from diag.plan.activations import Checkpointing
from diag.plan.axes import ring, stride
from diag.plan.cluster import Cluster
from diag.plan.job import Data, Job, Stage
from diag.plan.memory import BUCKET_BYTES, ZERO_BUCKET, Need
from diag.plan.pipeline import Schedule
from diag.plan.recipe import Recipe
from diag.plan.share import Share
from diag.plan.speed import Speed, link
from diag.plan.synthetic import program
from diag.plan.topology import Topology
from diag.plan.units import units
from diag.replay.engine import replay
from diag.replay.program import Collective, Program, with_collectives

_SIMULATED = 3  # micro-batches without pipeline stages: each further one takes as long as the third


class Throughput(Struct, frozen=True):
    """Of a step: its time, the arithmetic and the optimizer of the busiest stage, communication that nothing hides, and
    the waiting of stages for each other (``bubble_ns``); these add up to the step. ``tokens_s``: of each GPU."""

    step_ns: int
    compute_ns: int
    exposed_ns: int
    bubble_ns: int
    tokens_s: float
    mfu: float


class Work(Struct, frozen=True):
    """What one step is to do: ``sequences`` of ``length`` tokens a micro-batch and data-parallel rank."""

    sequences: int
    length: int
    micro_batches: int
    checkpointing: Checkpointing
    wrap: str
    width: int
    flops_per_token: float
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1


def throughput(
    parts: Sequence[Share], need: Need, recipe: Recipe, cluster: Cluster, topology: Topology, work: Work, speed: Speed
) -> Throughput:
    """Of the ``parts`` of a model, a stage each, under the strategy of ``need``."""
    micro_batches = work.micro_batches
    if len(parts) > 1 or micro_batches <= _SIMULATED:
        found = _times(_plan(parts, need, recipe, cluster, topology, work, speed, micro_batches))
    else:
        two, three = (
            _times(_plan(parts, need, recipe, cluster, topology, work, speed, count))
            for count in (_SIMULATED - 1, _SIMULATED)
        )
        more = micro_batches - _SIMULATED
        found = [last + more * (last - before) for last, before in zip(three, two, strict=True)]
    step, compute, bubble = found
    gpus = topology.world_size
    tokens = work.sequences * work.length * micro_batches * topology.data_parallel
    each = tokens / gpus / (step / 1e9)
    return Throughput(step, compute, step - compute - bubble, bubble, each, each * work.flops_per_token / speed.peak)


def _times(plan: Job) -> list[int]:
    """Step, work of the busiest stage, and what that stage waits if nothing takes time on the wire."""
    whole = program(plan)
    busiest = max(_worked(whole, rank) for rank in whole.ranks)
    step = int(replay(whole).dur_ns[0])
    free = int(replay(with_collectives(whole, _at_once)).dur_ns[0])
    return [step, busiest, free - busiest]


def _worked(whole: Program, rank: int) -> int:
    return sum(
        getattr(op, "ns", 0) for op in whole.stretches[0].lines[rank] if getattr(op, "kind", None) == Kind.COMPUTE
    )


def _at_once(collective: Collective) -> Collective:
    return Collective(collective.key, collective.op, collective.group, 0, "", collective.step, 0, collective.tail_ns)


def _plan(
    parts: Sequence[Share],
    need: Need,
    recipe: Recipe,
    cluster: Cluster,
    topology: Topology,
    work: Work,
    speed: Speed,
    micro_batches: int,
) -> Job:
    tensor, context = topology.size("tp"), topology.size("cp")
    ranks = topology.data_parallel * context
    strategy = need.strategy
    data = Data(
        strategy=strategy,
        keeps=strategy.keeps or work.wrap == "root",
        shards=link(cluster, need.shards, tensor),
        replicas=link(cluster, ranks // need.shards, tensor * need.shards),
        computed=recipe.computed,
        reduced=recipe.reduced,
        bucket=BUCKET_BYTES // recipe.reduced if strategy.sharding == Sharding.NONE else ZERO_BUCKET,
    )
    stages = tuple(_stage(part, need, cluster, topology, work, speed) for part in parts)
    return Job(stages, data, speed, micro_batches, work.schedule if len(parts) > 1 else Schedule.GPIPE, work.chunks)


def _stage(part: Share, need: Need, cluster: Cluster, topology: Topology, work: Work, speed: Speed) -> Stage:
    tensor, context = topology.size("tp"), topology.size("cp")
    local = -(-work.sequences * work.length // context)
    root, own = units(part, work.wrap, local, work.length, work.checkpointing)
    shape = part.size.shape
    cut = around = (0, 0)
    passed = 0
    if shape is not None:
        activation = local * shape.hidden * work.width
        if tensor > 1:
            # Of the ten collectives of a block (diag.plan.axes) four are in forward.
            wire = link(cluster, tensor)
            one = wire.ns(speed, activation)
            cut = (4 * one, 6 * one)
        if context > 1:
            wire = link(cluster, context, tensor)
            turns = context - 1
            each = ring(shape, local, work.width, context) // (3 * turns)
            once = turns * wire.passed_ns(speed, each)
            around = (once, 2 * once)
        if topology.size("pp") > 1:
            wire = link(cluster, 2, stride(topology, "pp"))
            passed = wire.passed_ns(speed, activation // tensor)
    touched = 2 * need.states.total  # read and written
    return Stage(root, tuple(own), part.first, part.last, cut, around, passed, optimizer_ns=speed.optimizer_ns(touched))
