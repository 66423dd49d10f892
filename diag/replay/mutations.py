"""Mutations: changes of a program, made by functions of their settings. A ``Mutation`` returns the changed program and
its assumptions, or the reason why it cannot be applied. Here: work of the ranks, and the network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import fmean, median

from msgspec.structs import replace

from diag.account.match import Key
from diag.model.steps import Kind
from diag.replay.policy import REPLAY
from diag.tables.collectives import bus_factor
from diag.traces.kineto_names import dtype_bytes

from .costs import Costs, Level
from .program import (
    GATHERS,
    GRADIENTS,
    Collective,
    Issue,
    Line,
    Mutated,
    Op,
    Program,
    Refusal,
    Role,
    StepEnd,
    Stretch,
    Wait,
    Work,
    over_stretches,
    step_durations,
    with_collectives,
)

Mutation = Callable[[Program, Costs, Level], Mutated | Refusal]


def in_turn(*mutations: Mutation) -> Mutation:
    """The mutations one after the other: changes that are advised together are predicted together."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        assumed: list[str] = []
        for mutation in mutations:
            result = mutation(program, costs, level)
            if isinstance(result, Refusal):
                return result
            program = result.program
            assumed += result.assumed
        return Mutated(program, tuple(assumed))

    return mutate


# -- work of the ranks -------------------------------------------------------------------------------------------------


_RANK_WORK = frozenset({Kind.COMPUTE, Kind.IDLE})

_Slot = tuple[int, int]  # step, number of issues and waits before it in the step


def without_straggler(ranks: Collection[int], kinds: Collection[Kind] = _RANK_WORK) -> Mutation:
    """Removes the time that these ranks spend beyond the median of the others between two collectives, on average over
    the steps."""

    def mutate(program: Program, _costs: Costs, _level: Level) -> Mutated | Refusal:
        peers = [rank for rank in program.ranks if rank not in ranks]
        if not peers or not set(ranks) <= set(program.ranks):
            return Refusal("there is no other rank to compare with")
        spent = {rank: _spent(program, rank, kinds) for rank in program.ranks}
        left = {rank: _left(spent[rank], [spent[peer] for peer in peers]) for rank in ranks}

        def change(line: Line, rank: int) -> Line:
            if rank not in left:
                return line
            return tuple(
                replace(op, ns=round(op.ns * left[rank].get(slot, 1.0)))
                if isinstance(op, Work) and op.kind in kinds
                else op
                for slot, op in _slots(line)
            )

        return Mutated(_over_lines(program, change), ("the rank becomes as fast as the others' median",))

    return mutate


def more_workers(now: int, new: int, batches_per_step: int = 1) -> Mutation:
    """The loader has ``new`` processes a rank instead of ``now`` (0: the training process loads itself)."""

    def mutate(program: Program, _costs: Costs, level: Level) -> Mutated | Refusal:
        if new <= now:
            return Refusal(f"{new} workers are not more than {now}")
        remaining: dict[int, float] = {}
        bursty = False
        for rank in program.ranks:
            waits, durations = _per_step(program, rank)
            if not sum(waits):
                continue
            wait, step = fmean(waits), fmean(durations)
            if now and not _always(waits, durations, -(-now // batches_per_step)):
                bursty = True  # the loader keeps up on average: how long a batch takes it is not known
                left = (0.0, wait / 2, wait)[level]
            else:
                # A rank that always waits takes batches as fast as they come: `now` at a time.
                load = now * step if now else wait
                load *= (1 - REPLAY.error_of_batch_time, 1.0, 1 + REPLAY.error_of_batch_time)[level]
                ready = (0, REPLAY.ready_batch_ns // 2, REPLAY.ready_batch_ns)[level] * batches_per_step
                left = min(wait, max(ready, load / new - (step - wait)))
            remaining[rank] = left / wait
        if not remaining:
            return Refusal("no rank waits for data")

        def change(line: Line, rank: int) -> Line:
            share = remaining.get(rank, 1.0)
            return tuple(
                replace(op, ns=round(op.ns * share)) if isinstance(op, Work) and op.kind == Kind.DATA else op
                for op in line
            )

        assumed = [f"there are cores and storage bandwidth for {new} loader processes a rank"]
        if bursty:
            assumed.append("the loader keeps up on average, so its time per batch is unknown")
        return Mutated(_over_lines(program, change), tuple(assumed))

    return mutate


def _over_lines(program: Program, change: Callable[[Line, int], Line]) -> Program:
    return over_stretches(
        program, lambda s: replace(s, lines={rank: change(line, rank) for rank, line in s.lines.items()})
    )


def _slots(line: Line) -> Iterator[tuple[_Slot, Op]]:
    """Each operation with its slot: work of one slot lies between the same two issues or waits on
    all ranks."""
    steps = [op.step for op in line if isinstance(op, StepEnd)]
    done, count = 0, 0
    for op in line:
        yield (steps[min(done, len(steps) - 1)], count), op
        if isinstance(op, StepEnd):
            done, count = done + 1, 0
        elif isinstance(op, Issue | Wait):
            count += 1


def _spent(program: Program, rank: int, kinds: Collection[Kind]) -> dict[_Slot, int]:
    spent: dict[_Slot, int] = defaultdict(int)
    for stretch in program.stretches:
        for slot, op in _slots(stretch.lines[rank]):
            if isinstance(op, Work):
                spent[slot] += op.ns if op.kind in kinds else 0
    return spent


def _left(rank_spent: Mapping[_Slot, int], peers: list[dict[_Slot, int]]) -> dict[_Slot, float]:
    """The fraction of each slot's work that stays. An excess in one step and a deficit in another are noise: only the
    mean excess over the steps is subtracted, from the steps that have one."""
    excess: dict[int, dict[_Slot, float]] = defaultdict(dict)
    for slot, spent in rank_spent.items():
        others = [peer[slot] for peer in peers if slot in peer]
        if others:
            excess[slot[1]][slot] = spent - median(others)
    shares: dict[_Slot, float] = {}
    for of_steps in excess.values():
        mean, positive = fmean(of_steps.values()), fmean(max(0.0, ns) for ns in of_steps.values())
        if mean > 0:
            shares.update(
                (slot, 1 - ns * mean / positive / rank_spent[slot])
                for slot, ns in of_steps.items()
                if ns > 0 and rank_spent[slot]
            )
    return shares


def _per_step(program: Program, rank: int) -> tuple[list[int], list[int]]:
    """For each step, nanoseconds that the rank waited for data, and nanoseconds that the step took on it."""
    waits: list[int] = []
    durations: list[int] = []
    for stretch in program.stretches:
        durations += step_durations({rank: stretch.begin_ns[rank]}, {rank: stretch.end_ns[rank]}).tolist()
        waited = 0
        for op in stretch.lines[rank]:
            if isinstance(op, Work) and op.kind == Kind.DATA:
                waited += op.ns
            elif isinstance(op, StepEnd):
                waits.append(waited)
                waited = 0
    return waits, durations


def _always(waits: list[int], durations: list[int], window: int) -> bool:
    """Whether most windows wait for the loader; ``window``: as many steps as its processes fill at once."""
    windows = range(max(1, len(waits) - window + 1))
    waited = [sum(waits[i : i + window]) >= REPLAY.waiting_step_share * sum(durations[i : i + window]) for i in windows]
    return fmean(waited) >= REPLAY.mostly_share


# -- network -----------------------------------------------------------------------------------------------------------


def more_bandwidth(factor: float) -> Mutation:
    """Every byte moves ``factor`` times as fast; latencies stay."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        def faster(collective: Collective) -> Collective:
            curve = costs.curve(collective)
            if curve is None:
                return collective
            latency = min(collective.transfer_ns, round(curve.latency()[level]))
            return _lasting(collective, latency + round((collective.transfer_ns - latency) / factor))

        return Mutated(
            with_collectives(program, faster),
            ("latencies and slower links of single ranks stay as they are", *costs.borrowed(program.collectives())),
        )

    return mutate


def reduce_in(dtype: str) -> Mutation:
    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        gradients = [c for c in program.collectives() if c.role in GRADIENTS]
        new = dtype_bytes(dtype)
        if not gradients:
            return Refusal("no reduction of gradients was recognised")
        if not new or not all(dtype_bytes(c.dtype) for c in gradients):
            return Refusal("the type of the gradients is not known")

        def smaller(collective: Collective) -> Collective:
            if collective.role not in GRADIENTS:
                return collective
            size = collective.bytes * new // dtype_bytes(collective.dtype)
            moved = _lasting(collective, costs.resized(collective, size, level))
            return replace(moved, bytes=size, dtype=dtype)

        assumed = (f"summing in {dtype} takes the host or device no longer", *costs.borrowed(gradients))
        return Mutated(with_collectives(program, smaller), assumed)

    return mutate


def hybrid_shard(ranks_per_shard: int) -> Mutation:
    """Parameters are sharded over neighbouring ranks only, and gradients all-reduced between these groups (HSDP)."""

    def mutate(program: Program, costs: Costs, level: Level) -> Mutated | Refusal:
        world = len(program.ranks)
        sharded = [c for c in program.collectives() if c.role in GATHERS or c.role == Role.SCATTER]
        if not sharded or any(len(c.ranks) != world for c in sharded):
            return Refusal("the sharding group is not known, or is not that of all ranks")
        if not 1 < ranks_per_shard < world or world % ranks_per_shard:
            return Refusal(f"{world} ranks cannot be divided into shards of {ranks_per_shard}")
        changed = over_stretches(program, lambda s: _hybrid(s, ranks_per_shard, costs, level, program.gloo))
        assumed = (
            "links within a shard are as fast as those of all ranks together; within a host they are usually faster",
            "the all-reduces between shards cost what the measured reductions cost, by bytes on the wire",
        )
        return Mutated(changed, (*assumed, *costs.borrowed(sharded)))

    return mutate


def _lasting(collective: Collective, transfer_ns: int) -> Collective:
    return replace(collective, transfer_ns=transfer_ns, latency_ns=min(collective.latency_ns, transfer_ns))


def _hybrid(stretch: Stretch, size: int, costs: Costs, level: Level, gloo: bool) -> Stretch:
    ranks = sorted(stretch.lines)
    shard_of = {rank: place // size for place, rank in enumerate(ranks)}
    collectives: dict[Key, Collective] = {}
    renamed: dict[tuple[Key, int], list[Key]] = {}  # what a rank enters instead
    for key, collective in stretch.collectives.items():
        if collective.role not in GATHERS and collective.role != Role.SCATTER:
            collectives[key] = collective
            continue
        group, number, op = key
        shrunk = _on_fewer(collective, size, costs, level, gloo)
        for shard in set(shard_of.values()):
            tails = _part(collective.tail_ns, [rank for rank in ranks if shard_of[rank] == shard])
            shard_key = (f"{group} shard {shard}", number, op)
            collectives[shard_key] = replace(shrunk, key=shard_key, group=shard_key[0], tail_ns=tails)
            renamed.update(((key, rank), [shard_key]) for rank in tails)
        if collective.role == Role.SCATTER:
            for place in range(size):
                tails = dict.fromkeys((rank for i, rank in enumerate(ranks) if i % size == place), 0)
                across = (f"{group} replica {place}", number, "all_reduce")
                reduced = _across(collective, size, len(tails), costs, level, gloo)
                collectives[across] = replace(reduced, key=across, group=across[0], tail_ns=tails)
                for rank in tails:
                    renamed[key, rank].append(across)
    lines = {}
    for rank, line in stretch.lines.items():
        ops: list[Op] = []
        for step in line:
            if isinstance(step, Issue | Wait) and (step.key, rank) in renamed:
                shard_key, *more = renamed[step.key, rank]
                if isinstance(step, Issue):
                    ops.append(replace(step, key=shard_key))
                else:
                    # FSDP2 all-reduces a shard once it is reduced.
                    ops += [
                        Wait(shard_key),
                        *(then for replica_key in more for then in (Issue(replica_key), Wait(replica_key))),
                    ]
            else:
                ops.append(step)
        lines[rank] = tuple(ops)
    return replace(stretch, lines=lines, collectives=collectives)


def _on_fewer(collective: Collective, size: int, costs: Costs, level: Level, gloo: bool) -> Collective:
    """The same tensor among fewer ranks: scaled by bytes on the wire; at worst no faster."""
    before, after = (bus_factor(collective.op, n, gloo) or 1.0 for n in (len(collective.ranks), size))
    ratio = 1.0 if level == Level.SLOW else after / before
    return _lasting(collective, costs.resized(collective, collective.bytes * ratio, level))


def _across(scattered: Collective, size: int, replicas: int, costs: Costs, level: Level, gloo: bool) -> Collective:
    """The all-reduce of one rank's shard among its replicas, at the cost of a reduce-scatter of as many wire bytes."""
    on_wire = (bus_factor("all_reduce", replicas, gloo) or 1.0) * scattered.bytes / size
    equal = on_wire / (bus_factor(scattered.op, len(scattered.ranks), gloo) or 1.0)
    moved = _lasting(scattered, costs.resized(scattered, equal, level))
    return replace(moved, op="all_reduce", role=Role.REDUCE, bytes=scattered.bytes // size)


def _part(tails: Mapping[int, int], ranks: list[int]) -> dict[int, int]:
    first = min(tails[rank] for rank in ranks)
    return {rank: tails[rank] - first for rank in ranks}
