"""The rows of the grid for always-on records of CPU ranks: `tests.simulate` runs with a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD
from diag.rundir.tables import Tables
from tests.bench.grid.gpu.rows import Half
from tests.bench.grid.truth import COMMUNICATION, COMPUTE, Cost, Ranks, Truth, truth_of
from tests.bench.grid.truth import DATA as DATA_CLASS
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, without_rank

_WARM = 2  # steps that diag leaves out of records
_GC = "gc"
_UNHIDDEN = frozenset({"exposed-communication", "communication-not-overlapped", "slow-network"})
_PHASE_CAUSES = {
    DATA: (DATA_CLASS, "slow-data-all-ranks"),
    FORWARD: (COMPUTE, "compute-straggler"),
    BACKWARD: (COMPUTE, "compute-straggler"),
    _GC: (COMPUTE, "gc-pause"),
    CHECKPOINT: (COMPUTE, "checkpoint-stall"),
}


@dataclass(frozen=True)
class Extra:
    """What is planted in a phase: milliseconds in each so-manieth step of one rank, of all, or of each in turn."""

    phase: str
    ns: int
    rank: int | None = None
    every: int = 1
    rotate: bool = False

    def at(self, step: int, rank: int, world: int) -> int:
        if step % self.every:
            return 0
        if self.rotate:
            return self.ns if step % world == rank else 0
        return self.ns if self.rank is None or self.rank == rank else 0


@dataclass(frozen=True)
class RecordRun:
    """A plan with what is planted in it. ``wire_ns``: of every transfer; ``tail_ns``: of ``tail_rank``'s results."""

    plan: Plan
    extras: tuple[Extra, ...] = ()
    wire_ns: int = 0
    tail_rank: int | None = None
    tail_ns: int = 0
    missing: int | None = None

    def tables(self) -> Tables:
        world = self.plan.ranks

        def extra(step: int, rank: int) -> dict[str, int]:
            found: dict[str, int] = {}
            for e in self.extras:
                found[e.phase] = found.get(e.phase, 0) + e.at(step, rank, world)
            return found

        def tail(step: int, rank: int) -> int:
            return self.tail_ns if rank == self.tail_rank else 0

        return simulate(replace(self.plan, extra=extra, tail=tail, transfer_ns=self.plan.transfer_ns + self.wire_ns))


def step_ns(tables: Tables) -> float:
    """The mean length of a step that counts."""
    ends = [max(t.steps[i].end_ns for t in tables.ranks.values()) for i in range(len(tables.ranks[0].steps))]
    return (ends[-1] - ends[_WARM - 1]) / (len(ends) - _WARM)


def record_truth(run: RecordRun) -> Truth:
    """The right answers, from simulating the run without each of its costs."""
    whole = step_ns(run.tables())

    def share(rid: RecordRun) -> float:
        return max(0.0, 1 - step_ns(rid.tables()) / whole)

    silent = replace(run, wire_ns=0, tail_rank=None, plan=replace(run.plan, transfer_ns=0))
    unhidden: frozenset[str] = frozenset({"slow-link"}) if run.tail_rank is not None else _UNHIDDEN
    at_fault: tuple[Ranks, ...] = ((run.tail_rank,),) if run.tail_rank is not None else ((),)
    costs = [Cost(COMMUNICATION, share(silent), unhidden, at_fault)]
    for e in run.extras:
        bottleneck, cause = _PHASE_CAUSES[e.phase]
        if e.rotate:
            cause = "compute-imbalance"
        if e.phase == DATA:
            cause = "slow-data-one-rank" if e.rank is not None else "slow-data-bursty" if e.every > 1 else cause
        who: tuple[Ranks, ...] = ((e.rank,),) if e.rank is not None else ((),)
        rid = replace(run, extras=tuple(other for other in run.extras if other != e))
        costs.append(Cost(bottleneck, share(rid), frozenset({cause}), who))
    if not any(e.phase == DATA for e in run.extras):
        free = replace(run, plan=replace(run.plan, data_ns=0))
        costs.append(Cost(DATA_CLASS, share(free), frozenset({"slow-data-all-ranks"})))
    planted = [cost.share for cost in costs if cost.bottleneck != COMMUNICATION] if run.extras else [costs[0].share]
    # Each unit ends with a meeting, so chance differences alone cost the largest of them every time.
    even = replace(run, plan=replace(run.plan, jitter=0.0))
    costs.append(Cost(COMPUTE, share(even), frozenset({"compute-imbalance"})))
    gone = run.missing is not None and any(e.rank == run.missing for e in run.extras)
    # Two ranks less one leave nobody to compare with.
    return truth_of(costs, max(planted), abstain=gone or (run.missing is not None and run.plan.ranks == 2))


RecordMake = Callable[[Half, Random, float], RecordRun]


@dataclass(frozen=True)
class RecordRow:
    id: str
    make: RecordMake
    graded: bool = True


def base_plan(half: Half, rng: Random) -> Plan:
    tuning = half.seed == 1
    return Plan(
        ranks=rng.choice((2, 4, 8) if tuning else (3, 6, 16)),
        steps=rng.choice((14, 20) if tuning else (16, 24)),
        units=rng.choice((3, 5) if tuning else (4, 6)),
        unit_ns=rng.choice((8, 16) if tuning else (11, 20)) * MS,
        seed=rng.randrange(1 << 30),
        hosts=(lambda rank: "host-a") if rng.random() < 0.5 else (lambda rank: f"host-{rank // 2}"),
    )


def _length(plan: Plan) -> int:
    return plan.units * plan.unit_ns * 3 + plan.optimizer_ns + plan.data_ns


def _extra(phase: str, *, one: bool = False, every: int = 1, rotate: bool = False) -> RecordMake:
    def make(half: Half, rng: Random, share: float) -> RecordRun:
        plan = base_plan(half, rng)
        rank = rng.randrange(plan.ranks) if one else None
        ns = round(every * _length(plan) * share / (1 - share))
        return RecordRun(plan, (Extra(phase, ns, rank, every, rotate),))

    return make


def _wire(tail: bool) -> RecordMake:
    def make(half: Half, rng: Random, share: float) -> RecordRun:
        plan = base_plan(half, rng)
        each = round(_length(plan) * share / (1 - share) / (2 * plan.units + 1))
        if tail:
            return RecordRun(plan, tail_rank=rng.randrange(plan.ranks), tail_ns=each)
        return RecordRun(plan, wire_ns=each)

    return make


def _missing(culprit: bool) -> RecordMake:
    def make(half: Half, rng: Random, share: float) -> RecordRun:
        run = _extra(FORWARD, one=True)(half, rng, share)
        at_fault = run.extras[0].rank or 0
        others = [rank for rank in range(run.plan.ranks) if rank != at_fault]
        return replace(run, missing=at_fault if culprit else rng.choice(others))

    return make


def _pair(parts: tuple[float, float]) -> RecordMake:
    def make(half: Half, rng: Random, share: float) -> RecordRun:
        plan = base_plan(half, rng)
        whole = 0.25 + share / 2
        a, b = (_length(plan) / (1 - whole) * whole * part / sum(parts) for part in parts)
        return RecordRun(plan, (Extra(FORWARD, round(a), rng.randrange(plan.ranks)), Extra(DATA, round(b))))

    return make


def analysed(run: RecordRun) -> Tables:
    """What is left to be analysed."""
    tables = run.tables()
    return tables if run.missing is None else without_rank(tables, run.missing)


RECORD_ROWS = (
    RecordRow("rec-H0", lambda half, rng, share: RecordRun(base_plan(half, rng)), graded=False),
    RecordRow("rec-D1-data-all", _extra(DATA)),
    RecordRow("rec-D2-data-one", _extra(DATA, one=True)),
    RecordRow("rec-D3-data-bursty", _extra(DATA, every=4)),
    RecordRow("rec-N1-network", _wire(tail=False)),
    RecordRow("rec-N2-link", _wire(tail=True)),
    RecordRow("rec-S1-forward", _extra(FORWARD, one=True)),
    RecordRow("rec-S3-backward", _extra(BACKWARD, one=True)),
    RecordRow("rec-S2-rotating", _extra(FORWARD, rotate=True)),
    RecordRow("rec-C1-gc-one", _extra(_GC, one=True)),
    RecordRow("rec-K1-checkpoint", _extra(CHECKPOINT, every=5)),
    RecordRow("rec-K1-checkpoint-one", _extra(CHECKPOINT, one=True, every=2)),
    RecordRow("rec-X1-S1-D1-2:1", _pair((2, 1))),
    RecordRow("rec-X1-S1-D1-1:1", _pair((1, 1))),
    RecordRow("rec-Q2-missing-other", _missing(culprit=False)),
    RecordRow("rec-Q2-missing-culprit", _missing(culprit=True)),
)
