"""The time of a step by the replay's cost model, with tokens per second and MFU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from diag.errors import DiagError
from diag.model.keys import Key
from diag.model.states import Sharding
from diag.model.steps import Detail, Kind
from diag.planning.policy import PLANNING
from diag.replay.program import (
    STEP_END,
    Collective,
    Line,
    Program,
    Role,
    Row,
    Stretch,
    issue,
    met,
    replay,
    wait,
    with_collectives,
    work,
)

from .cluster import Cluster, Topology, ring, stride
from .memory import BUCKET_BYTES, ZERO_BUCKET, Checkpointing, Need, ShardingUnit, Share, Strategy, units
from .shape import Recipe

# -- pipeline ----------------------------------------------------------------------------------------------------------
#
# Pipeline schedules: the number of micro-batches that a stage holds at once, and their order.
#
# GPipe (arXiv 1811.06965): all forwards, then all backwards. 1F1B (PipeDream-flush, arXiv 2104.04473, section 2.2):
# each backward as early as possible. Interleaved (2104.04473, section 2.2.2): each rank has ``chunks`` parts of the
# model that are not adjacent.


class Schedule(StrEnum):
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Turn(NamedTuple):
    """One pass of a rank: forward or backward of a micro-batch through one of its chunks."""

    forward: bool
    micro_batch: int
    chunk: int


def in_flight(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Micro-batches whose activations of the stage's layers are live at once.

    1F1B: the number of stages from this one to the last. Interleaved, Korthikanti et al. (2205.05198, section 4.2.3):
    1 + (p - 1) / (p v) of p on the first stage; counted here from the schedule itself.
    """
    if schedule == Schedule.GPIPE or stages == 1:
        return float(micro_batches) if stages > 1 else 1.0
    alive = most = 0
    for turn in turns(schedule, stage, stages, micro_batches, chunks):
        alive += 1 if turn.forward else -1
        most = max(most, alive)
    return most / chunks


def turns(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Turn]:
    """The passes of a rank, in order. DiagError if the interleaved schedule is impossible."""
    if schedule == Schedule.INTERLEAVED and micro_batches % stages:
        hint = f"give a multiple of {stages} micro-batches, or --schedule 1f1b"
        raise DiagError(
            f"--schedule interleaved: {micro_batches} micro-batches do not divide by {stages} stages", hint=hint
        )
    chunks = chunks if schedule == Schedule.INTERLEAVED else 1
    total = micro_batches * chunks
    ahead = {
        Schedule.GPIPE: total,
        Schedule.ONE_F_ONE_B: stages - stage - 1,
        # Megatron-LM's warm-up: two for each later stage, and all but one chunk of the first micro-batches.
        Schedule.INTERLEAVED: 2 * (stages - stage - 1) + (chunks - 1) * stages,
    }[schedule]
    ahead = min(ahead, total)
    forwards = [_turn(True, number, stages, chunks) for number in range(total)]
    backwards = [_turn(False, number, stages, chunks) for number in range(total)]
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - ahead :]


def _turn(forward: bool, number: int, stages: int, chunks: int) -> Turn:
    """The pass of this number: groups of ``stages`` micro-batches pass through one chunk after the other."""
    if chunks == 1:
        return Turn(forward, number, 0)
    chunk = number // stages % chunks
    micro_batch = number // (stages * chunks) * stages + number % stages
    return Turn(forward, micro_batch, chunk if forward else chunks - 1 - chunk)


# -- speed -------------------------------------------------------------------------------------------------------------
#
# Assumed speeds of a cluster, without measurements: computation, collectives, the optimizer's memory traffic.
#
# Collectives follow NCCL's own model (src/graph/tuning.cc, ring and Simple protocol): a base latency, a latency for
# each hop of the ring, higher between hosts, and the bytes over the bandwidth of the slowest link.


class Speed(Struct, frozen=True):
    """Speeds of a cluster. ``peak``: dense FLOP/s of a GPU; ``mfu``: the fraction of it that computation alone reaches;
    ``memory_bandwidth``: bytes per second of its memory, None if unknown. Latencies in microseconds per hop."""

    peak: float
    mfu: float = PLANNING.mfu
    memory_bandwidth: float | None = None
    within_us: float = PLANNING.latency_within_us
    across_us: float = PLANNING.latency_across_us

    def compute_ns(self, flops: float) -> int:
        return round(flops / (self.peak * self.mfu) * 1e9)

    def optimizer_ns(self, touched: int) -> int:
        """``touched``: bytes read and written."""
        return round(touched / self.memory_bandwidth * 1e9) if self.memory_bandwidth else 0


def speed_of(
    cluster: Cluster, mfu: float | None = None, within_us: float | None = None, across_us: float | None = None
) -> Speed | None:
    """The assumed speeds, with given values in their place; None if the GPU's peak is not known. DiagError for values
    out of range."""
    for name, value, most in (
        ("--mfu", mfu, 1.0),
        ("--latency-within", within_us, 1e6),
        ("--latency-across", across_us, 1e6),
    ):
        if value is not None and not 0 < value <= most:
            raise DiagError(f"{name} {value:g}: give a number above 0 and up to {most:g}")
    if cluster.tflop_s is None:
        return None
    memory = cluster.memory_gb_s * 1e9 if cluster.memory_gb_s is not None else None
    return Speed(
        cluster.tflop_s * 1e12,
        PLANNING.mfu if mfu is None else mfu,
        memory,
        PLANNING.latency_within_us if within_us is None else within_us,
        PLANNING.latency_across_us if across_us is None else across_us,
    )


class Link(Struct, frozen=True):
    """The ring of one group: the numbers of its ranks and hosts, and the bytes per second of its slowest link."""

    ranks: int
    hosts: int
    bandwidth: float

    def ns(self, speed: Speed, size: int, passes: int = 1) -> int:
        """Time of an all-gather or reduce-scatter with a full tensor of ``size`` bytes; an all-reduce is two
        ``passes``."""
        if self.ranks < 2 or not size:
            return 0
        hops, across = passes * (self.ranks - 1), passes * (self.hosts - 1)
        latency_us = PLANNING.base_latency_us + (hops - across) * speed.within_us + across * speed.across_us
        sent = passes * size * (self.ranks - 1) / self.ranks
        return round(latency_us * 1e3 + sent / self.bandwidth * 1e9)

    def passed_ns(self, speed: Speed, size: int) -> int:
        """Time of a transfer from one rank to a neighbour."""
        hop = speed.across_us if self.hosts > 1 else speed.within_us
        return round((PLANNING.base_latency_us + hop) * 1e3 + size / self.bandwidth * 1e9)


def link(cluster: Cluster, ranks: int, apart: int = 1) -> Link:
    """The ring of a group. ``apart``: the difference in rank between neighbours."""
    span = ranks * apart
    hosts = min(ranks, -(-span // cluster.per_host)) if span > cluster.per_host else 1
    return Link(ranks, hosts, cluster.bandwidth(span))


# -- job ---------------------------------------------------------------------------------------------------------------
#
# The input of the replay for a step that has not been run: stages, data parallelism, schedule.


class Stage(Struct, frozen=True):
    """Computation and communication of one stage, for one micro-batch. ``tensor_ns``: one block's collectives of tensor
    parallelism in forward and in backward, which are exposed; ``context_ns``: its ring, which overlaps with the block;
    ``passed_ns``: transfer to the next stage.
    """

    root: ShardingUnit
    units: tuple[ShardingUnit, ...]
    first: bool = True
    last: bool = True
    tensor_ns: tuple[int, int] = (0, 0)
    context_ns: tuple[int, int] = (0, 0)
    passed_ns: int = 0
    optimizer_ns: int = 0


class Data(Struct, frozen=True):
    """Data parallelism of a stage. ``bucket``: elements reduced at once if parameters are not gathered by units;
    ``keeps``: gathered parameters stay until backward, by the strategy or because the root's unit holds them all."""

    strategy: Strategy
    keeps: bool
    shards: Link
    replicas: Link
    computed: int  # bytes of a parameter when it is gathered
    reduced: int  # and of a gradient when it is reduced
    bucket: int


class Job(Struct, frozen=True):
    """One step. ``chunks``: parts of the model on each rank, if the schedule interleaves them."""

    stages: tuple[Stage, ...]
    data: Data
    speed: Speed
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1


# -- synthetic ---------------------------------------------------------------------------------------------------------
#
# A step that has not been run, as a program of the replay, which computes its time.
#
# One line per pipeline stage stands for all its ranks, which are equal. Schedules follow torch: fully_shard gathers the
# next unit while one computes, and reduces after it on the same communicator; DDP and ZeRO reduce buckets during
# backward and wait for all at its end; ZeRO gathers the updated parameters after the optimizer.


def program(plan: Job) -> Program:
    """One step."""
    calls: dict[Key, tuple[int, Collective]] = {}  # with their place among them
    lines = {number: Line.of(_Line(plan, number, calls).step()) for number in range(len(plan.stages))}
    collectives = {key: collective for key, (_, collective) in calls.items()}
    begin = dict.fromkeys(lines, 0)
    return Program((Stretch((0,), begin, dict.fromkeys(lines, (0,)), lines, collectives),))


class _Line:
    """The operations of one stage, in order."""

    def __init__(self, plan: Job, number: int, calls: dict[Key, tuple[int, Collective]]) -> None:
        self._plan, self._number, self._calls = plan, number, calls
        self._stage = plan.stages[number]
        self._count = 0
        self._pending: list[int] = []  # reductions that the end of backward waits for
        self._bucket = 0

    def step(self) -> Iterator[Row]:
        plan = self._plan
        order = turns(plan.schedule, self._number, len(plan.stages), plan.micro_batches, plan.chunks)
        backwards = [turn for turn in order if not turn.forward]
        last_of_chunk = {turn.chunk: turn for turn in backwards}
        for turn in order:
            yield from self._forward(turn) if turn.forward else self._backward(turn, turn is last_of_chunk[turn.chunk])
        yield from self._flush()
        yield from (wait(call) for call in self._pending)
        yield work(self._stage.optimizer_ns, Kind.COMPUTE, Detail.OPTIMIZER)
        if plan.data.strategy.sharding in (Sharding.OPTIMIZER, Sharding.GRADIENTS):
            # The updated parameters: no computation is left to overlap with.
            size = self._parameters() * plan.data.computed
            yield from met(
                self._collective("all_gather", Role.OTHER, "data", size, plan.data.shards.ns(plan.speed, size))
            )
        yield STEP_END

    def _forward(self, turn: Turn) -> Iterator[Row]:
        yield from self._receive(turn)
        units, root = self._of_chunk(turn.chunk)
        gathers = self._gathers(units, root, Role.GATHER_FORWARD)
        yield from _first(gathers)
        for index, unit in enumerate(units):
            yield from _next(gathers, index)
            yield from self._computed(unit, unit.forward, Detail.FORWARD)
        yield self._work(root.forward if root else 0.0, Detail.FORWARD)
        yield from self._send(turn)

    def _backward(self, turn: Turn, last: bool) -> Iterator[Row]:
        yield from self._receive(turn)
        units, root = self._of_chunk(turn.chunk)
        units = units[::-1]
        sharded = self._plan.data.strategy.sharding == Sharding.PARAMETERS
        gathers_again = sharded and not self._plan.data.keeps
        gathers = self._gathers(units, None, Role.GATHER_BACKWARD) if gathers_again else []
        yield from _first(gathers)
        yield self._work(root.backward if root else 0.0, Detail.BACKWARD)
        for index, unit in enumerate(units):
            yield from _next(gathers, index)
            yield from self._computed(unit, unit.backward, Detail.BACKWARD)
            if last:
                yield from self._reduced(unit.parameters, sharded)
        if last and root:
            yield from self._reduced(root.parameters, sharded)
        yield from self._send(turn)

    def _computed(self, unit: ShardingUnit, flops: float, detail: Detail) -> Iterator[Row]:
        """Computation of a unit, overlapped with the ring of context parallelism and followed by the tensor-parallel
        collectives."""
        backward = detail == Detail.BACKWARD
        ring = round(self._stage.context_ns[backward] * unit.blocks)
        cut = round(self._stage.tensor_ns[backward] * unit.blocks)
        calls = [self._collective("send_recv", Role.OTHER, "context", 0, ring)] if ring else []
        yield from (issue(call) for call in calls)
        yield self._work(flops, detail)
        yield from (wait(call) for call in calls)
        if cut:
            yield from met(self._collective("all_gather", Role.OTHER, "tensor", 0, cut))

    # -- parameters and gradients ----------------------------------------------------------------------------------

    def _gathers(self, units: Sequence[ShardingUnit], root: ShardingUnit | None, role: Role) -> list[int]:
        """The all-gathers of the units, the first one with the root's own parameters; none if parameters are not
        sharded."""
        data = self._plan.data
        if data.strategy.sharding != Sharding.PARAMETERS or data.shards.ranks < 2 or not units:
            return []
        sizes = [unit.parameters * data.computed for unit in units]
        if root is not None and role == Role.GATHER_FORWARD:
            sizes[0] += root.parameters * data.computed  # both before the first unit's computation
        return [
            self._collective("all_gather", role, "data", size, data.shards.ns(self._plan.speed, size)) for size in sizes
        ]

    def _reduced(self, parameters: int, sharded: bool) -> Iterator[Row]:
        if sharded:
            yield from self._reduction(parameters)
            return
        self._bucket += parameters
        while self._bucket >= self._plan.data.bucket:
            yield from self._reduction(self._plan.data.bucket)
            self._bucket -= self._plan.data.bucket

    def _flush(self) -> Iterator[Row]:
        if self._bucket:
            yield from self._reduction(self._bucket)
            self._bucket = 0

    def _reduction(self, parameters: int) -> Iterator[Row]:
        """Reduces gradients; the end of backward waits for it. The reduction among replicas runs on its own
        communicator after the one among shards; both are issued together here, as nothing waits in between."""
        data, speed = self._plan.data, self._plan.speed
        size = parameters * data.reduced
        unsharded = data.strategy.sharding == Sharding.NONE
        op, role = ("all_reduce", Role.REDUCE) if unsharded else ("reduce_scatter", Role.SCATTER)
        if data.shards.ranks > 1:
            call = self._collective(op, role, "data", size, data.shards.ns(speed, size, 2 if unsharded else 1))
            self._pending.append(call)
            yield issue(call)
        if data.replicas.ranks > 1:
            shard_bytes = size // data.shards.ranks
            call = self._collective(
                "all_reduce", Role.REDUCE, "replicas", shard_bytes, data.replicas.ns(speed, shard_bytes, 2)
            )
            self._pending.append(call)
            yield issue(call)

    def _receive(self, turn: Turn) -> Iterator[Row]:
        position = self._place(turn)
        before = position - 1 if turn.forward else position + 1
        if 0 <= before < self._places:
            yield from met(self._passed(turn, before, position))

    def _send(self, turn: Turn) -> Iterator[Row]:
        position = self._place(turn)
        after = position + 1 if turn.forward else position - 1
        if 0 <= after < self._places:
            yield issue(self._passed(turn, position, after))

    def _passed(self, turn: Turn, source: int, target: int) -> int:
        """The transfer, the same on both ranks."""
        stages = len(self._plan.stages)
        wire = f"stages {source % stages} to {target % stages}"
        key = (wire, turn.micro_batch, f"send_recv {source} to {target}")
        tails = {source % stages: 0, target % stages: 0}
        transfer_ns = self._plan.stages[source % stages].passed_ns
        return self._added(Collective(key, "send_recv", wire, 0, "", 0, transfer_ns, tails))

    @property
    def _places(self) -> int:
        return len(self._plan.stages) * self._chunks

    @property
    def _chunks(self) -> int:
        return self._plan.chunks if self._plan.schedule == Schedule.INTERLEAVED else 1

    def _place(self, turn: Turn) -> int:
        """The position of the turn's chunk in the whole model."""
        return turn.chunk * len(self._plan.stages) + self._number

    def _of_chunk(self, chunk: int) -> tuple[Sequence[ShardingUnit], ShardingUnit | None]:
        """The units of a chunk, and the root's unit if this chunk has it: the first chunk of the first stage has the
        table, the last chunk of the last stage the head."""
        units, chunks = self._stage.units, self._chunks
        size = -(-len(units) // chunks)
        with_root = chunk == (0 if self._stage.first and not self._stage.last else chunks - 1)
        return units[chunk * size : (chunk + 1) * size], self._stage.root if with_root else None

    def _parameters(self) -> int:
        return self._stage.root.parameters + sum(unit.parameters for unit in self._stage.units)

    def _work(self, flops: float, detail: Detail) -> Row:
        return work(self._plan.speed.compute_ns(flops), Kind.COMPUTE, detail)

    def _collective(self, op: str, role: Role, group: str, size: int, transfer_ns: int) -> int:
        """A collective that the stage's ranks enter together, as this line stands for all of them."""
        self._count += 1
        name = f"{group} of stage {self._number}"
        key, tails = (name, self._count, op), {self._number: 0}
        return self._added(Collective(key, op, name, size, "", 0, transfer_ns, tails, role=role, unit=self._count))

    def _added(self, collective: Collective) -> int:
        """Its place among the collectives of the step."""
        return self._calls.setdefault(collective.key, (len(self._calls), collective))[0]


def _first(gathers: Sequence[int]) -> Iterator[Row]:
    yield from (issue(call) for call in gathers[:1])


def _next(gathers: Sequence[int], index: int) -> Iterator[Row]:
    """Waits for this all-gather, and issues the next one."""
    yield from (wait(call) for call in gathers[index : index + 1])
    yield from (issue(call) for call in gathers[index + 1 : index + 2])


class Throughput(Struct, frozen=True):
    """The time of a step and its parts: computation and optimizer of the busiest stage, exposed communication, and the
    waiting of stages for each other (``bubble_ns``); the parts add up to the step. ``tokens_s``: per GPU."""

    step_ns: int
    compute_ns: int
    exposed_ns: int
    bubble_ns: int
    tokens_s: float
    mfu: float


class StepWork(Struct, frozen=True):
    """The work of one step: ``sequences`` of ``length`` tokens per micro-batch and data-parallel rank."""

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
    parts: Sequence[Share],
    need: Need,
    recipe: Recipe,
    cluster: Cluster,
    topology: Topology,
    work: StepWork,
    speed: Speed,
) -> Throughput:
    """The throughput of a model with one of ``parts`` per stage, under the strategy of ``need``."""
    micro_batches = work.micro_batches
    if len(parts) > 1 or micro_batches <= PLANNING.micro_batches_simulated:
        times = _times(_plan(parts, need, recipe, cluster, topology, work, speed, micro_batches))
    else:
        two, three = (
            _times(_plan(parts, need, recipe, cluster, topology, work, speed, count))
            for count in (PLANNING.micro_batches_simulated - 1, PLANNING.micro_batches_simulated)
        )
        further = micro_batches - PLANNING.micro_batches_simulated
        times = [last + further * (last - before) for last, before in zip(three, two, strict=True)]
    step, compute, bubble = times
    gpus = topology.world_size
    tokens = work.sequences * work.length * micro_batches * topology.data_parallel
    tokens_per_gpu = tokens / gpus / (step / 1e9)
    return Throughput(
        step,
        compute,
        step - compute - bubble,
        bubble,
        tokens_per_gpu,
        tokens_per_gpu * work.flops_per_token / speed.peak,
    )


def _times(plan: Job) -> list[int]:
    """Times of the step, of the work of the busiest stage, and of that stage's waiting if communication takes no
    time."""
    job_program = program(plan)
    busiest = max(_worked(job_program, rank) for rank in job_program.ranks)
    step = int(replay(job_program).dur_ns[0])
    free_ns = int(replay(with_collectives(job_program, _at_once)).dur_ns[0])
    return [step, busiest, free_ns - busiest]


def _worked(job_program: Program, rank: int) -> int:
    line = job_program.stretches[0].lines[rank]
    return int(line.ns[line.is_work((Kind.COMPUTE,))].sum())


def _at_once(collective: Collective) -> Collective:
    return Collective(collective.key, collective.op, collective.group, 0, "", collective.step, 0, collective.tail_ns)


def _plan(
    parts: Sequence[Share],
    need: Need,
    recipe: Recipe,
    cluster: Cluster,
    topology: Topology,
    work: StepWork,
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


def _stage(part: Share, need: Need, cluster: Cluster, topology: Topology, work: StepWork, speed: Speed) -> Stage:
    tensor, context = topology.size("tp"), topology.size("cp")
    local = -(-work.sequences * work.length // context)
    root, unit_list = units(part, work.wrap, local, work.length, work.checkpointing)
    shape = part.size.shape
    cut = around = (0, 0)
    transfer_ns = 0
    if shape is not None:
        activation = local * shape.hidden * work.width
        if tensor > 1:
            # Four of the ten collectives of a block (diag.planning.cluster) are in forward.
            wire = link(cluster, tensor)
            collective_ns = wire.ns(speed, activation)
            cut = (4 * collective_ns, 6 * collective_ns)
        if context > 1:
            wire = link(cluster, context, tensor)
            turns = context - 1
            shard_bytes = ring(shape, local, work.width, context) // (3 * turns)
            once = turns * wire.passed_ns(speed, shard_bytes)
            around = (once, 2 * once)
        if topology.size("pp") > 1:
            wire = link(cluster, 2, stride(topology, "pp"))
            transfer_ns = wire.passed_ns(speed, activation // tensor)
    touched = 2 * need.states.total  # read and written
    return Stage(
        root,
        tuple(unit_list),
        part.first,
        part.last,
        cut,
        around,
        transfer_ns,
        optimizer_ns=speed.optimizer_ns(touched),
    )
