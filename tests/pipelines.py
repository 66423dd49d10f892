"""A pipelined training made of numbers: stages that hand micro-batches to each other, replicas and tensor parallelism.

Every rank follows its schedule's own order (GPipe or 1F1B). A message is there ``message_ns`` after it was sent, a
collective ends for all ``transfer_ns`` after the last rank came. What is planted is therefore known to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from random import Random

from diag.collectors.records import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    CollectiveRow,
    Manifest,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.axes import coordinates
from diag.rundir.tables import RankTables, Tables
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import KinetoBuilder
from tests.copies import replace

MS = 1_000_000
_HANDED_OVER_NS = 20_000


@dataclass(frozen=True)
class Pipelined:
    """What to simulate. ``forward_ns``: of a micro-batch, by stage; backward takes twice as long."""

    mesh: dict[str, int] = field(default_factory=lambda: {"pp": 2, "dp": 1})
    steps: int = 14
    batches: int = 4
    schedule: str = "1f1b"
    forward_ns: tuple[int, ...] = (10 * MS, 10 * MS)
    data_ns: int = 1 * MS
    optimizer_ns: int = 4 * MS
    message_ns: int = MS // 5
    transfer_ns: int = MS // 2
    layers: int = 2  # of a stage: one collective of the tensor-parallel group in each, forward and backward
    jitter: float = 0.02
    seed: int = 0
    norm: bool = False  # an all-reduce of all ranks before the optimizer: gradient clipping
    extra: Callable[[int, int], dict[str, int]] = field(default=lambda step, rank: {})
    told: bool = True  # whether the manifest says the mesh


def work_order(stage: int, stages: int, batches: int, schedule: str) -> list[tuple[str, int]]:
    """Passes of a stage: (FORWARD or BACKWARD, micro-batch)."""
    ahead = batches if schedule == "gpipe" else min(batches, stages - stage)
    order = [(FORWARD, i) for i in range(ahead)]
    for i in range(batches):
        order.append((BACKWARD, i))
        if ahead + i < batches:
            order.append((FORWARD, ahead + i))
    return order


class _Rank:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now = 1_000_000_000 + rank * 10_000
        self.phases: list[PhaseRow] = []
        self.rows: list[CollectiveRow] = []
        self.steps: list[StepRecord] = []
        self.seq: dict[str, int] = defaultdict(int)
        self.open: list[int] = []  # rows of sends that nobody has waited for yet

    def number(self, group: str) -> int:
        self.seq[group] += 1
        return self.seq[group] - 1


def simulate(plan: Pipelined) -> Tables:
    """The tables of such a run, as if read from its directory."""
    world = prod(plan.mesh.values())
    random = Random(plan.seed)
    ranks = [_Rank(rank) for rank in range(world)]
    sent: dict[tuple[str, int], int] = {}  # message: when it was sent
    came: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)  # collective: rank, when it called
    groups: dict[int, dict[str, list[int]]] = {rank: {} for rank in range(world)}

    def busy(ns: int) -> int:
        return round(ns * (1 + random.uniform(-plan.jitter, plan.jitter)))

    def along(rank: int, axis: str) -> list[int]:
        place = coordinates(rank, plan.mesh)
        return [r for r in range(world) if {**coordinates(r, plan.mesh), axis: 0} == {**place, axis: 0}]

    def meet(r: _Rank, name: str, members: list[int], op: str, size: int) -> Iterator[None]:
        groups[r.rank][name] = members
        key, start = (f"{name}@{members[0]}", r.number(name)), r.now
        came[key][r.rank] = start
        while len(came[key]) < len(members):
            yield
        r.now = max(came[key].values()) + plan.transfer_ns
        r.rows.append(CollectiveRow(name, key[1], op, size, "float32", start, r.now, start, r.now))

    def send(r: _Rank, to: int) -> None:
        name = f"p2p {r.rank}>{to}"
        groups[r.rank][name] = [r.rank, to]
        number = r.number(name)
        sent[name, number] = r.now
        r.open.append(len(r.rows))
        end = r.now + _HANDED_OVER_NS
        r.rows.append(CollectiveRow(name, number, "send", 1_000_000, "float32", r.now, end, None, None))
        r.now = end

    def receive(r: _Rank, source: int) -> Iterator[None]:
        name = f"p2p {source}>{r.rank}"
        groups[r.rank][name] = [source, r.rank]
        number, start = r.number(name), r.now
        while (name, number) not in sent:
            yield
        r.now = max(start + 2_000, sent[name, number] + plan.message_ns)
        r.rows.append(CollectiveRow(name, number, "recv", 1_000_000, "float32", start, r.now, start, r.now))

    def phase(r: _Rank, name: str, ns: int) -> None:
        r.phases.append(PhaseRow(name, r.now, r.now + ns))
        r.now += ns

    def train(r: _Rank) -> Iterator[None]:
        place = coordinates(r.rank, plan.mesh)
        stages, stage = plan.mesh.get("pp", 1), place.get("pp", 0)
        line = along(r.rank, "pp") if stages > 1 else [r.rank]
        for step in range(plan.steps):
            begin, r.phases, extra = r.now, [], dict(plan.extra(step, r.rank))
            phase(r, DATA, busy(plan.data_ns) + extra.get(DATA, 0))
            for what, _batch in work_order(stage, stages, plan.batches, plan.schedule):
                source = stage - 1 if what == FORWARD else stage + 1
                if 0 <= source < stages:
                    yield from receive(r, line[source])
                started = r.now
                for layer in range(plan.layers):
                    own = plan.forward_ns[stage] // plan.layers * (1 if what == FORWARD else 2)
                    r.now += busy(own) + (extra.pop(what, 0) if layer == 0 else 0)
                    if plan.mesh.get("tp", 1) > 1:
                        yield from meet(r, "tp", along(r.rank, "tp"), "all_reduce", 500_000)
                r.phases.append(PhaseRow(what, started, r.now))
                target = stage + 1 if what == FORWARD else stage - 1
                if 0 <= target < stages:
                    send(r, line[target])
            for at in r.open:
                r.rows[at] = r.rows[at]._replace(wait_start_ns=r.now, wait_end_ns=r.now + 1_000)
            r.open = []
            if plan.mesh.get("dp", 1) > 1:
                yield from meet(r, "dp", along(r.rank, "dp"), "all_reduce", 8_000_000)
            if plan.norm:
                yield from meet(r, "0", list(range(world)), "all_reduce", 4)
            phase(r, OPTIMIZER, busy(plan.optimizer_ns))
            r.steps.append(StepRecord(step, begin, r.now, r.phases, micro_batches=plan.batches, tokens=512))

    running = {r.rank: train(r) for r in ranks}
    while running:
        for rank in list(running):
            if next(running[rank], running) is running:
                del running[rank]
    manifest = Manifest(
        run_id="simulated",
        created_unix_ns=0,
        world_size=world,
        backend="gloo",
        strategy="ddp",
        device="cpu",
        mesh={axis: size for axis, size in plan.mesh.items() if size > 1 or axis == "dp"} if plan.told else {},
        trainer={
            "num_workers": 1,
            "micro_batches": plan.batches,
            "pipeline_schedule": plan.schedule,
            "pipeline_parallel": plan.mesh.get("pp", 1),
            "tensor_parallel": plan.mesh.get("tp", 1),
            "stages_per_rank": 1,
        },
    )
    tables = {
        r.rank: RankTables(
            r.rank,
            RankRecord(r.rank, r.rank, world, "host-a", 100 + r.rank, "boot", 0, 0, "cpu"),
            tuple(r.steps),
            tuple(sorted(r.rows, key=lambda row: row.start_ns)),
            groups[r.rank],
        )
        for r in ranks
    }
    return Tables(Path("simulated"), manifest, world, tables, ())


def traced(tables: Tables, steps: range, folder: Path) -> Tables:
    """The same run with a profiler window of all ranks over these steps: each phase is one operator in its first half,
    and Python in the other."""
    ranks = {}
    for rank, own in tables.ranks.items():
        build = KinetoBuilder(rank, tables.world_size or 1, backend="gloo")
        for record in own.steps:
            if record.step in steps:
                build.step(record.step, record.begin_ns, record.end_ns)
                for phase in record.phases:
                    build.range(f"diag.{phase.phase}", phase.start_ns, phase.end_ns)
                    build.op("aten::mm", phase.start_ns, (phase.start_ns + phase.end_ns) // 2)
        ranks[rank] = replace(own, traces=(read_trace(build.write(folder, f"rank{rank}.json")),))
    return replace(tables, ranks=ranks)
