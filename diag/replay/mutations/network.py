"""A faster network, fewer bytes, fewer ranks that meet."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from diag.account.match import Key
from diag.replay.costs import Costs, Level
from diag.replay.mutations import Mutation
from diag.replay.program import (
    GATHERS,
    GRADIENTS,
    Collective,
    Issue,
    Mutated,
    Op,
    Program,
    Refusal,
    Role,
    Stretch,
    Wait,
    over_stretches,
    with_collectives,
)
from diag.tables.collectives import bus_factor
from diag.traces.kineto_names import dtype_bytes


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
            ("latency stays, and so does what one rank's own link is slower", *costs.borrowed(program.collectives())),
        )

    return mutate


def reduce_in(dtype: str) -> Mutation:
    """Gradients are reduced in another type."""

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

        assumed = (f"adding up {dtype} takes the host or device no longer", *costs.borrowed(gradients))
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
            return Refusal(f"{world} ranks cannot be cut into shards of {ranks_per_shard}")
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
            own = (f"{group} shard {shard}", number, op)
            collectives[own] = replace(shrunk, key=own, group=own[0], tail_ns=tails)
            renamed.update(((key, rank), [own]) for rank in tails)
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
                own, *more = renamed[step.key, rank]
                if isinstance(step, Issue):
                    ops.append(replace(step, key=own))
                else:
                    # FSDP2 all-reduces a shard when it is there.
                    ops += [Wait(own), *(then for other in more for then in (Issue(other), Wait(other)))]
            else:
                ops.append(step)
        lines[rank] = tuple(ops)
    return replace(stretch, lines=lines, collectives=collectives)


def _on_fewer(collective: Collective, size: int, costs: Costs, level: Level, gloo: bool) -> Collective:
    """The same tensor among fewer ranks: as bytes on the wire say; at worst no faster."""
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
