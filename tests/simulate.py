"""A distributed training run made of numbers: ranks that work, meet in collectives, and are recorded exactly.

Each step of each rank waits for data, then runs ``units`` of forward work, each after an all-gather, as many of
backward work, each before a reduce-scatter, and the optimizer with a small all-reduce. A collective ends for everybody
``transfer_ns`` after the last rank arrived. What is planted is therefore known to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from random import Random

from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    CollectiveLine,
    CollectiveRow,
    HostRecord,
    LoaderQueue,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.collectors.step_lines import StepSummary
from diag.rundir.tables import RankTables, Tables
from tests.copies import replace

MS = 1_000_000
# Thresholds of ``BLOCKS`` that make a run of a few dozen steps a long one.
SMALL_BLOCKS = {
    "most_bytes_at_once": 1,
    "many_steps": 1,
    "least_stretch_steps": 1,
    "block_bytes": 1,
    "least_block_steps": 8,
    "detailed_bytes": 20_000,
    "stretches": 4,
}


@dataclass(frozen=True)
class Plan:
    """What to simulate. Durations in nanoseconds. ``extra(step, rank)`` gives what is planted,
    by phase ("rest" comes last) or "gc"."""

    ranks: int = 2
    steps: int = 20
    units: int = 3
    data_ns: int = 1 * MS
    unit_ns: int = 10 * MS  # forward work of a unit; backward takes twice as long
    optimizer_ns: int = 5 * MS
    transfer_ns: int = MS // 2
    unit_bytes: int = 4_000_000
    ns_a_byte: float = 0.0  # added to ``transfer_ns`` for each byte of the full tensor
    regather: bool = False  # each unit is gathered again before its backward
    jitter: float = 0.02
    seed: int = 0
    extra: Callable[[int, int], dict[str, int]] = field(default=lambda step, rank: {})
    tail: Callable[[int, int], int] = field(default=lambda step, rank: 0)  # a rank's own slow link
    asks_later_ns: Callable[[int, int], int] = field(default=lambda step, rank: 0)  # after each call; as DTensor's
    # collectives are recorded, it ends on that rank when it asks, and not before
    clock: Callable[[int, int], int] = field(default=lambda rank, now: now)  # what the rank's clock shows at `now`
    hosts: Callable[[int], str] = field(default=lambda rank: "host-a")
    strategy: str = "fsdp2"  # "ddp": no gathers, and one all-reduce a bucket behind its unit's backward; "zero2": no
    # gathers but one of all parameters behind the optimizer
    micro_batches: int = 1
    reduce_every: bool = True  # else in the last micro-batch only
    wire: Callable[[str, str, int], int | None] = field(default=lambda op, phase, unit: None)  # else transfer_ns
    sizes: Callable[[str, int], int | None] = field(default=lambda op, unit: None)  # of a unit, else unit_bytes
    tokens: Callable[[int, int], int] = field(default=lambda step, rank: 512)
    memory: MemoryRecord | None = None
    queued: Callable[[int, int], int | None] = field(default=lambda step, rank: None)
    # (queued, blocked) by phase, or by REST: CPU time was recorded then. Both are parts of what the phase takes.
    scheduled: Callable[[int, int], dict[str, tuple[int, int]]] | None = None
    host: tuple[HostRecord, ...] = ()  # samples of every rank
    queue: Callable[[int, int], LoaderQueue | None] = field(default=lambda step, rank: None)
    trainer: dict[str, object] = field(default_factory=dict)


class _Rank:
    """One rank under way; times are true ones, clocks are applied in the end."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now = 1_000_000_000 + rank * 10_000
        self.steps: list[StepRecord] = []
        self.rows: list[tuple[int, CollectiveRow]] = []
        self.phases: list[PhaseRow] = []
        self.gc: list[tuple[int, int]] = []


def simulate(plan: Plan) -> Tables:
    """The tables of such a run, as if read from its directory."""
    random = Random(plan.seed)
    ranks = [_Rank(rank) for rank in range(plan.ranks)]
    seq = 0

    def busy(ns: int) -> int:
        return round(ns * (1 + random.uniform(-plan.jitter, plan.jitter)))

    def meet(step: int, op: str, size: int, phase: str, unit: int = 0) -> None:
        nonlocal seq
        arrival = max(r.now for r in ranks)
        own = plan.wire(op, phase, unit)
        for r in ranks:
            wire = plan.transfer_ns + round(plan.ns_a_byte * size) if own is None else own
            asked = r.now + plan.asks_later_ns(step, r.rank)
            end = max(arrival + wire + plan.tail(step, r.rank), asked)
            r.rows.append((step, CollectiveRow("0", seq, op, size, "float32", r.now, end, asked, end)))
            r.now = end
        seq += 1

    def micro_batch(step: int, planted: list[dict[str, int]], last: bool) -> None:
        for r, extra in zip(ranks, planted, strict=True):
            _phase(r, DATA, busy(plan.data_ns) + extra.get(DATA, 0))
        starts = [r.now for r in ranks]
        for unit in range(plan.units):
            if plan.strategy == "fsdp2":
                meet(step, "all_gather", size_of("all_gather", unit), FORWARD, unit)
            for r, extra in zip(ranks, planted, strict=True):
                r.now += busy(plan.unit_ns)
                if unit == 0:
                    r.now += extra.get(FORWARD, 0)
                    if extra.get("gc"):
                        r.gc.append((r.now, r.now + extra["gc"]))
                        r.now += extra["gc"]
        _close(ranks, FORWARD, starts)
        starts = [r.now for r in ranks]
        for unit in range(plan.units):
            if plan.regather:
                for r in ranks:
                    r.now += 1000  # the host is in backward when it gathers
                meet(step, "all_gather", size_of("all_gather", unit), BACKWARD, unit)
            for r, extra in zip(ranks, planted, strict=True):
                r.now += busy(2 * plan.unit_ns) + (extra.get(BACKWARD, 0) if unit == 0 else 0)
            if last or plan.reduce_every:
                op = "all_reduce" if plan.strategy == "ddp" else "reduce_scatter"
                meet(step, op, size_of(op, unit), BACKWARD, unit)
        _close(ranks, BACKWARD, starts)

    def size_of(op: str, unit: int) -> int:
        own = plan.sizes(op, unit)
        return plan.unit_bytes if own is None else own

    for step in range(plan.steps):
        begins = [r.now for r in ranks]
        planted = [dict(plan.extra(step, r.rank)) for r in ranks]
        for r in ranks:
            r.phases, r.gc = [], []
        for micro in range(plan.micro_batches):
            micro_batch(step, planted if micro == 0 else [{} for _ in ranks], micro == plan.micro_batches - 1)
        starts = [r.now for r in ranks]
        for r, extra in zip(ranks, planted, strict=True):
            r.now += busy(plan.optimizer_ns) + extra.get(OPTIMIZER, 0)
        if plan.strategy == "zero2":
            meet(step, "all_gather", plan.units * plan.unit_bytes, OPTIMIZER)
        meet(step, "all_reduce", 4, OPTIMIZER)
        _close(ranks, OPTIMIZER, starts)
        for r, extra, begin in zip(ranks, planted, begins, strict=True):
            if extra.get(CHECKPOINT):
                _phase(r, CHECKPOINT, extra[CHECKPOINT])
            r.now += extra.get(REST, 0)
            memory = plan.memory or MemoryRecord(rss=10**9 + r.rank)
            r.steps.append(
                StepRecord(
                    step,
                    begin,
                    r.now,
                    r.phases,
                    micro_batches=plan.micro_batches,
                    tokens=plan.tokens(step, r.rank),
                    gc=r.gc,
                    memory=memory,
                    queued_ns=plan.queued(step, r.rank),
                    queue=plan.queue(step, r.rank),
                )
            )
            if plan.scheduled is not None:
                _schedule(r.steps[-1], r.rows, plan.scheduled(step, r.rank))
    tables = {r.rank: _tables(plan, r) for r in ranks}
    manifest = Manifest(
        run_id="simulated",
        created_unix_ns=0,
        world_size=plan.ranks,
        backend="gloo",
        strategy=plan.strategy,
        device="cpu",
        trainer={"num_workers": 1, **plan.trainer},
    )
    return Tables(Path("simulated"), manifest, plan.ranks, tables, ())


def write_run(tables: Tables, folder: Path) -> RunLayout:
    """The same run as a directory that the collectors could have written."""
    layout = RunLayout(folder)
    assert tables.manifest is not None
    replace_file(layout.manifest, encode(asdict(tables.manifest)))
    for rank, own in tables.ranks.items():
        files, complaints = layout.rank(rank), Complaints(rank)
        assert own.identity is not None
        replace_file(files.identity, encode(own.identity))
        steps, lines = (LineFile(p, Budget(1 << 30), complaints) for p in (files.steps, files.collectives))
        summary = StepSummary(LineFile(files.summary, Budget(1 << 30), complaints), own.identity, 50)
        by_start = sorted(own.rows, key=attrgetter("start_ns"))
        starts = [row.start_ns for row in by_start]
        for record in own.steps:
            steps.write(record)
            rows = by_start[bisect_left(starts, record.begin_ns) : bisect_left(starts, record.end_ns)]
            lines.write(CollectiveLine(record.step, rows, own.groups if record.step == 0 else {}))
            summary.add(record, rows)
        for stream, samples in (
            (files.device, own.device), (files.host, own.scheduling), (files.machine, own.machine),
        ):  # fmt: skip
            if samples:
                stream.write_bytes(b"".join(encode(sample) for sample in samples))
        summary.close()
        steps.close()
        lines.close()
    return layout


def without_rank(tables: Tables, rank: int) -> Tables:
    return replace(tables, ranks={r: t for r, t in tables.ranks.items() if r != rank})


def without_collectives(tables: Tables) -> Tables:
    """The same run where only the steps were recorded."""
    return replace(tables, ranks={r: replace(t, rows=(), groups={}) for r, t in tables.ranks.items()})


def _schedule(record: StepRecord, rows: list[tuple[int, CollectiveRow]], spent: dict[str, tuple[int, int]]) -> None:
    """Fills in the CPU time of a step: what of each phase was neither queued nor blocked nor waiting for a
    collective."""
    waits = [(row.wait_start_ns or 0, row.wait_end_ns or 0) for step, row in rows if step == record.step]
    record.on_cpu_ns = record.queued_ns = 0
    for name in dict.fromkeys([*(row.phase for row in record.phases), REST]):
        own = [(row.start_ns, row.end_ns) for row in record.phases if row.phase == name]
        dur = sum(end - start for start, end in own)
        waited = sum(max(0, min(end, b) - max(start, a)) for start, end in own for a, b in waits)
        if name == REST:
            dur = record.end_ns - record.begin_ns - sum(row.end_ns - row.start_ns for row in record.phases)
        queued, blocked = spent.get(name, (0, 0))
        on_cpu = max(0, dur - waited - queued - blocked)
        if name != REST:
            record.cpu[name] = on_cpu, queued
        record.on_cpu_ns += on_cpu
        record.queued_ns += queued


def _phase(r: _Rank, name: str, ns: int) -> None:
    r.phases.append(PhaseRow(name, r.now, r.now + ns))
    r.now += ns


def _close(ranks: list[_Rank], name: str, starts: list[int]) -> None:
    for r, start in zip(ranks, starts, strict=True):
        r.phases.append(PhaseRow(name, start, r.now))


def _tables(plan: Plan, r: _Rank) -> RankTables:
    def shown(now: int) -> int:
        return plan.clock(r.rank, now)

    steps = tuple(
        replace(
            s,
            begin_ns=shown(s.begin_ns),
            end_ns=shown(s.end_ns),
            phases=[PhaseRow(p.phase, shown(p.start_ns), shown(p.end_ns)) for p in s.phases],
            gc=[(shown(a), shown(b)) for a, b in s.gc],
        )
        for s in r.steps
    )
    rows = tuple(
        row._replace(
            start_ns=shown(row.start_ns),
            end_ns=shown(row.end_ns or 0),
            wait_start_ns=shown(row.wait_start_ns or 0),
            wait_end_ns=shown(row.wait_end_ns or 0),
        )
        for _, row in r.rows
    )
    host = plan.hosts(r.rank)
    identity = RankRecord(r.rank, r.rank, plan.ranks, host, 100 + r.rank, f"boot of {host}", 0, 0, "cpu")
    groups = {"0": list(range(plan.ranks))}
    return RankTables(r.rank, identity, steps, rows, groups, scheduling=plan.host)
