"""Programs of well-behaved training jobs: their calls fit one order, so without a fault they end."""

from __future__ import annotations

import random

from tests.hang.flight.simulator import Call, Job


def ddp(rng: random.Random, world: int, backend: str = "nccl") -> Job:
    steps, buckets, sync_every = rng.randrange(3, 12), rng.randrange(1, 8), rng.choice([1, 1, 2, 5])
    program = []
    for step in range(steps):
        program += [Call("0", "all_reduce", 1000 + i, blocks=False, sync=backend == "gloo") for i in range(buckets)]
        program.append(Call("0", "all_reduce", 1, sync=backend == "gloo" or step % sync_every == 0))
    return Job({"0": ("default_pg", tuple(range(world)))}, {rank: list(program) for rank in range(world)}, backend)


def fsdp(rng: random.Random, world: int) -> Job:
    """Gathers one unit ahead, reduces behind, one small reduction a step that the CPU reads."""
    steps, units = rng.randrange(2, 6), rng.randrange(2, 10)
    program = []
    for _ in range(steps):
        program += [Call("0", "_all_gather_base", 512 + u, blocks=False) for u in range(units)]
        for u in reversed(range(units)):
            program += [
                Call("0", "_all_gather_base", 512 + u, blocks=False),
                Call("0", "_reduce_scatter_base", 512 + u),
            ]
        program.append(Call("0", "all_reduce", 1, sync=True))
    return Job({"0": ("default_pg", tuple(range(world)))}, {rank: list(program) for rank in range(world)})


def mesh(rng: random.Random, dp: int, tp: int, pp: int, batch: bool = False) -> Job:
    """Tensor, data and pipeline parallel with one forward and one backward in turn. ``batch``: sends and receives are
    launched as one where the schedule makes both."""
    world = dp * tp * pp
    groups: dict[str, tuple[str, tuple[int, ...]]] = {"0": ("default_pg", tuple(range(world)))}

    def rank_of(d: int, t: int, p: int) -> int:
        return (p * dp + d) * tp + t

    def add(desc: str, ranks: list[int]) -> str:
        name = str(len(groups))
        groups[name] = (desc, tuple(ranks))
        return name

    tps = {(d, p): add("TP", [rank_of(d, t, p) for t in range(tp)]) for d in range(dp) for p in range(pp)}
    dps = {(t, p): add("DP", [rank_of(d, t, p) for d in range(dp)]) for t in range(tp) for p in range(pp)}
    pps = {(d, t): add("PP", [rank_of(d, t, p) for p in range(pp)]) for d in range(dp) for t in range(tp)}
    steps, layers, micro = rng.randrange(1, 4), rng.randrange(1, 4), rng.randrange(pp, 2 * pp + 2)
    buckets, norm = rng.randrange(1, 4), rng.random() < 0.8
    programs: dict[int, list[Call]] = {}
    for d in range(dp):
        for t in range(tp):
            for p in range(pp):
                program: list[Call] = []
                pipe, own = pps[d, t], tps[d, p]
                before = rank_of(d, t, p - 1) if p > 0 else -1
                after = rank_of(d, t, p + 1) if p < pp - 1 else -1

                def layers_of(program: list[Call] = program, own: str = own) -> None:
                    for _ in range(layers if tp > 1 else 0):
                        program.extend((Call(own, "_all_gather_base", 4096), Call(own, "_reduce_scatter_base", 4096)))

                def move(*ends: tuple[str, int], program: list[Call] = program, pipe: str = pipe) -> None:
                    real = tuple(end for end in ends if end[1] >= 0)
                    if batch and len(real) > 1:
                        program.append(Call(pipe, "batch", 2048, batch=real))
                        return
                    program.extend(Call(pipe, op, 2048, peer, blocks=op == "recv") for op, peer in real)

                warm = min(pp - 1 - p, micro)
                for _ in range(warm):
                    move(("recv", before))
                    layers_of()
                    move(("send", after))
                if micro > warm:
                    move(("recv", before))
                for i in range(micro - warm):
                    layers_of()
                    move(("send", after), ("recv", after))
                    layers_of()
                    if i < micro - warm - 1:
                        move(("send", before), ("recv", before))
                    else:
                        move(("send", before))
                for _ in range(warm):
                    move(("recv", after))
                    layers_of()
                    move(("send", before))
                if dp > 1:
                    program += [
                        Call(dps[t, p], "all_reduce", 9000 + b, blocks=b == buckets - 1) for b in range(buckets)
                    ]
                if norm:
                    program.append(Call("0", "all_reduce", 1, sync=True))
                programs[rank_of(d, t, p)] = program * steps
    groups = {name: group for name, group in groups.items() if len(group[1]) > 1 or name == "0"}
    return Job(groups, programs)
