"""An FSDP2 run made of numbers, with the knobs that advice turns: what a change really does is a second simulation.

All ranks go through one script in lockstep: gather a unit, compute, reduce it. A collective ends for everybody
``latency + bytes x ns_per_byte`` after the last rank entered it; bytes of several follow each other, latencies overlap.
Independent of the replay: nothing here knows of programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from diag.rundir.tables import RankTables, Tables

MS = 1_000_000


@dataclass(frozen=True)
class Fsdp:
    """What to simulate. ``units``: (bytes, forward work in ns) of each sharding unit, the root's first; backward works
    twice as long. ``prefetch`` 0: as on gloo, every collective is waited for where it is called."""

    ranks: int = 2
    steps: int = 12
    units: tuple[tuple[int, int], ...] = ((200_000, 0), *(((4_000_000, 12 * MS),) * 4))
    latency_ns: int = 3 * MS
    ns_per_byte: float = 2.0
    prefetch: int = 0
    keep_gathered: bool = False
    micro_batches: int = 1
    sync_every: bool = False
    workers: int = 1
    batch_ns: int = 2 * MS  # that a loader's process takes for a batch
    optimizer_ns: int = 6 * MS
    slow: Callable[[int, int], int] = lambda step, rank: 0  # added to the forward work of unit 1
    jitter: float = 0.01
    seed: int = 0


@dataclass
class _Call:
    op: str
    bytes: int
    start_ns: list[int]
    end_ns: int
    wait_ns: list[tuple[int, int]] | None = None


class _Run:
    def __init__(self, plan: Fsdp) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.now = [1_000_000_000 + 20_000 * rank for rank in range(plan.ranks)]
        self.free_ns = 0
        self.calls: list[_Call] = []
        self.phases: list[list[PhaseRow]] = []
        self.begin_ns = list(self.now)
        self.taken = 0
        self.taken_ns: list[list[int]] = [[] for _ in self.now]
        self.ready_ns: list[list[int]] = [[] for _ in self.now]

    def work(self, ns: int, rank: int | None = None) -> None:
        for r in range(len(self.now)) if rank is None else [rank]:
            self.now[r] += round(ns * (1 + self.random.uniform(-self.plan.jitter, self.plan.jitter)))

    def issue(self, op: str, size: int) -> _Call:
        bytes_ns = round(size * self.plan.ns_per_byte)
        end = max(max(self.now), self.free_ns - self.plan.latency_ns) + bytes_ns + self.plan.latency_ns
        self.free_ns = end
        call = _Call(op, size, list(self.now), end)
        self.calls.append(call)
        return call

    def wait(self, call: _Call) -> None:
        after = [max(now, call.end_ns) for now in self.now]
        call.wait_ns = list(zip(self.now, after, strict=True))
        self.now = after

    def meet(self, op: str, size: int) -> None:
        self.wait(self.issue(op, size))

    def take_batch(self) -> None:
        """Loader processes work in turn, two batches each ahead of what was taken."""
        workers = self.plan.workers
        for rank in range(len(self.now)):
            if not workers:
                self.work(self.plan.batch_ns, rank)
                continue
            ready, taken = self.ready_ns[rank], self.taken_ns[rank]
            while len(ready) <= self.taken:
                number = len(ready)
                asked = taken[number - 2 * workers] if number >= 2 * workers else self.begin_ns[rank]
                busy = ready[number - workers] if number >= workers else 0
                ready.append(max(asked, busy) + self.plan.batch_ns)
            self.now[rank] = max(self.now[rank] + MS // 2, ready[self.taken])
            taken.append(self.now[rank])
        self.taken += 1

    def phase(self, name: str, begins: list[int]) -> None:
        for rows, begin, end in zip(self.phases, begins, self.now, strict=True):
            rows.append(PhaseRow(name, begin, end))

    def forward(self, step: int, micro_batch: int) -> None:
        plan, units = self.plan, self.plan.units
        begins = list(self.now)
        calls: dict[int, _Call] = {}
        for unit, (_, work_ns) in enumerate(units):
            self.gather(calls, unit)
            self.wait(calls[unit])
            for ahead in range(unit + 1, min(len(units), unit + 1 + plan.prefetch)):
                self.gather(calls, ahead)
            self.work(work_ns)
            if unit == 1 and micro_batch == 0:
                for rank in range(plan.ranks):
                    self.now[rank] += plan.slow(step, rank)
        self.phase(FORWARD, begins)

    def backward(self, reduces: bool) -> None:
        plan, units = self.plan, self.plan.units
        begins = list(self.now)
        self.work(MS // 10)
        calls: dict[int, _Call] = {}
        order = list(range(len(units) - 1, 0, -1))
        for unit in order[: plan.prefetch] if not plan.keep_gathered else []:
            self.gather(calls, unit)
        for place, unit in enumerate(order):
            if not plan.keep_gathered:
                self.gather(calls, unit)
                if calls[unit].wait_ns is None:
                    self.wait(calls[unit])
                # FSDP2 gathers the next one by itself; on gloo it then waits for it at once.
                for ahead in order[place + 1 : place + 1 + max(1, plan.prefetch)]:
                    self.gather(calls, ahead)
                    if not plan.prefetch:
                        self.wait(calls[ahead])
            self.work(2 * units[unit][1])
            if reduces:
                self.meet("reduce_scatter", units[unit][0])
        self.work(2 * units[0][1] + MS // 10)
        if reduces:
            self.meet("reduce_scatter", units[0][0])
        self.phase(BACKWARD, begins)

    def gather(self, calls: dict[int, _Call], unit: int) -> None:
        if unit not in calls:
            calls[unit] = self.issue("all_gather", self.plan.units[unit][0])


def simulate(plan: Fsdp) -> Tables:
    """The tables of such a run, as if read from its directory."""
    run = _Run(plan)
    records: list[list[StepRecord]] = [[] for _ in range(plan.ranks)]
    for step in range(plan.steps):
        step_begins = list(run.now)
        run.phases = [[] for _ in run.now]
        for micro_batch in range(plan.micro_batches):
            begins = list(run.now)
            run.take_batch()
            run.phase(DATA, begins)
            run.forward(step, micro_batch)
            run.backward(plan.sync_every or micro_batch == plan.micro_batches - 1)
        begins = list(run.now)
        run.meet("all_reduce", 4)
        run.work(plan.optimizer_ns)
        run.phase(OPTIMIZER, begins)
        for rank, own in enumerate(records):
            own.append(StepRecord(step, step_begins[rank], run.now[rank], run.phases[rank]))
    tables = {}
    for rank, own in enumerate(records):
        rows = tuple(
            CollectiveRow("0", n, c.op, c.bytes, "float32", c.start_ns[rank], c.end_ns, *(c.wait_ns or {})[rank])
            for n, c in enumerate(run.calls)
        )
        identity = RankRecord(rank, rank, plan.ranks, "host-a", 100 + rank, "boot of host-a", 0, 0, "cpu")
        tables[rank] = RankTables(rank, identity, tuple(own), rows, {"0": list(range(plan.ranks))})
    manifest = Manifest("simulated", 0, world_size=plan.ranks, backend="gloo", strategy="fsdp2", device="cpu")
    return Tables(Path("simulated"), manifest, plan.ranks, tables, ())
