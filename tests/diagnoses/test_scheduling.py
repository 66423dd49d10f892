"""Waiting for a core and being blocked are costs of their own: of all ranks alike, of one rank, of one process."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from diag.api import Result, analyze
from diag.collectors.records import BACKWARD, DATA, FORWARD, OPTIMIZER, REST, HostRecord, LoaderQueue
from diag.diagnoses.costs import Cost
from diag.diagnoses.culprits import Culprits
from diag.diagnoses.subject import Subject
from diag.model.steps import Bottleneck, Finding, Severity
from diag.rundir.tables import Tables
from tests.copies import replace
from tests.simulate import MS, Plan
from tests.simulate import simulate as simulated

STEP_MS = 100  # of the plan without extras
by_phase_every = 1  # steps hold CPU time by phase


@pytest.fixture(autouse=True, params=[1, 3], ids=["each step by phase", "one step in three by phase"])
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short steps most hold the sum of the CPU time only."""
    monkeypatch.setitem(globals(), "by_phase_every", request.param)


def simulate(plan: Plan) -> Tables:
    tables = simulated(plan)
    for step in [step for rank in tables.ranks.values() for step in rank.steps]:
        if step.step % by_phase_every:
            step.cpu = {}
    return tables


def finding(result: Result, id: str) -> Finding | None:
    return next((f for f in result.examination.findings if f.id == id), None)


def every(phase: str, ms: int, ranks: tuple[int, ...] = (0, 1)) -> dict[str, object]:
    """Each of these ranks takes longer in a phase."""
    return {"extra": lambda step, rank: {phase: ms * MS} if rank in ranks else {}}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_wait_for_cores(ranks: int) -> None:
    """Half of the forward and the backward of every rank is queueing: no rank is late, and no rank is named."""
    plan = Plan(ranks=ranks, scheduled=lambda step, rank: {FORWARD: (15 * MS, 0), BACKWARD: (30 * MS, 0)})
    result = analyze(simulate(plan))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.HOST, "contended-host", ())
    assert 0.40 < verdict.share < 0.48
    assert ("All ranks wait" in verdict.headline or "all ranks wait" in verdict.headline) == (ranks > 1)
    assert all(result.bottleneck_of(step) == Bottleneck.HOST for step in result.attribution.usable)
    assert result.examination.shares.noise.late_ns >= 40 * MS  # so unequal are they without anybody's fault


def test_a_loader_whose_workers_have_no_core_is_not_told_to_start_more() -> None:
    """All wait 100 ms for data, and the two workers of each are queued for four fifths of the time."""
    busy = HostRecord(0, 1000 * MS, workers=2, workers_on_cpu_ns=400 * MS, workers_queued_ns=1600 * MS, runnable=9)
    host = tuple(replace(busy, monotonic_ns=(second + 1) * 1000 * MS) for second in range(60))
    queue = LoaderQueue(0, 4, 2)
    plan = Plan(
        **every(DATA, 100),  # type: ignore[arg-type]
        scheduled=lambda step, rank: {DATA: (0, 100 * MS)},
        host=host,
        queue=lambda step, rank: queue,
        trainer={"num_workers": 2, "micro_batches": 1},
    )
    result = analyze(simulate(plan))
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.HOST, "contended-host")
    advice = " ".join([result.examination.findings[0].action, *(a.change for a in result.advice)])
    assert "more loader processes would make it slower" in advice
    assert not [a for a in result.advice if a.knob == "data loader"]
    slow = finding(result, "slow-data-all-ranks")
    assert slow is not None
    assert "num_workers" not in slow.action
    free = analyze(simulate(replace(plan, host=())))
    assert (free.verdict.bottleneck, free.verdict.cause) == (Bottleneck.DATA, "slow-data-all-ranks")


@pytest.mark.parametrize(("asleep_ms", "taken"), [(100, False), (0, True)])
def test_a_loader_that_sleeps_gains_from_workers_on_a_busy_host(asleep_ms: int, taken: bool) -> None:
    """The cores are taken in forward and backward. The process loads by itself, and needs one only if it computes."""
    plan = Plan(
        **every(DATA, 100),  # type: ignore[arg-type]
        scheduled=lambda step, rank: {DATA: (0, asleep_ms * MS), FORWARD: (15 * MS, 0), BACKWARD: (30 * MS, 0)},
        trainer={"num_workers": 0, "micro_batches": 1},
    )
    result = analyze(simulate(plan))
    slow = finding(result, "slow-data-all-ranks")
    assert slow is not None
    assert finding(result, "contended-host") is not None
    assert ("The cores are all taken" in slow.action) == taken
    assert bool([a for a in result.advice if a.knob == "data loader"]) != taken


def test_a_computing_thread_that_has_no_core_holds_up_the_one_that_trains() -> None:
    """The training's thread stands still for its team: that is no stall."""
    busy = HostRecord(0, 1000 * MS, 1, 500 * MS, 450 * MS, 500 * MS, 450 * MS, runnable=5)
    host = tuple(replace(busy, monotonic_ns=(second + 1) * 1000 * MS) for second in range(60))
    plan = Plan(ranks=1, scheduled=lambda step, rank: {BACKWARD: (0, 40 * MS)}, host=host)
    result = analyze(simulate(plan))
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.HOST, "contended-host")
    assert finding(result, "stalled-ranks") is None
    alone = analyze(simulate(replace(plan, host=())))
    assert (alone.verdict.bottleneck, alone.verdict.cause) == (Bottleneck.HOST, "stalled-ranks")
    assert "in backward" in alone.verdict.headline
    assert alone.examination.findings[0].action.startswith("The training waits neither for the CPU")


def between(ns: int, blocked: int = 0, ranks: tuple[int, ...] = (0, 1)) -> Result:
    """Steps of 96 ms, after which these ranks do something else for so long."""
    return analyze(
        simulate(
            Plan(
                extra=lambda step, rank: {REST: ns} if rank in ranks else {},
                scheduled=lambda step, rank: {REST: (0, blocked)} if rank in ranks else {},
            )
        )
    )


def test_code_between_the_phases_bounds_the_run_where_it_is_much_of_the_step() -> None:
    """A run that spends most of its time in a metric was healthy: no phase of it was slow."""
    much = between(80 * MS)
    assert (much.verdict.bottleneck, much.verdict.cause) == (Bottleneck.HOST, "code-between-phases")
    assert much.verdict.culprit_ranks == ()
    assert much.verdict.confidence <= 0.7
    assert "outside of data loading, forward, backward and the optimizer: 80 ms a step" in much.verdict.headline
    little = between(20 * MS)
    assert little.verdict.severity == Severity.HEALTHY
    assert "code between the phases" in little.examination.not_found
    asleep = between(80 * MS, blocked=80 * MS)
    assert asleep.verdict.cause == "stalled-ranks"
    one = between(80 * MS, ranks=(1,))
    assert (one.verdict.cause, one.verdict.culprit_ranks) == ("compute-straggler", (1,))


def test_a_loop_without_forward_and_backward_is_not_called_code_between_them() -> None:
    """Its steps were marked by hand, and what it does in them is not known."""
    tables = simulate(Plan(extra=lambda step, rank: {REST: 80 * MS}, scheduled=lambda step, rank: {}))
    ranks = {}
    for rank, of_rank in tables.ranks.items():
        steps = [replace(step, phases=[row for row in step.phases if row.phase == DATA]) for step in of_rank.steps]
        ranks[rank] = replace(of_rank, steps=tuple(steps))
    result = analyze(replace(tables, ranks=ranks))
    assert finding(result, "code-between-phases") is None


@pytest.mark.parametrize(
    ("transfer_ms", "queued_ms", "slow"),
    [(6, 0, True), (6, 40, False), (40, 40, True)],
    ids=["slow network", "threads without a core", "slow all the same"],
)
def test_a_network_is_not_slow_because_the_threads_that_carry_bytes_have_no_core(
    transfer_ms: int, queued_ms: int, slow: bool
) -> None:
    """All-reduces of a few bytes take milliseconds; gloo's threads are queued for that much of each second."""
    carrying = HostRecord(0, 1000 * MS, 2, 2 * MS, queued_ms * MS, 2 * MS, queued_ms * MS, runnable=9)
    host = tuple(replace(carrying, monotonic_ns=(second + 1) * 1000 * MS) for second in range(60))
    plan = Plan(strategy="ddp", unit_bytes=84, transfer_ns=transfer_ms * MS, scheduled=lambda step, rank: {}, host=host)
    result = analyze(simulate(plan))
    assert result.verdict.bottleneck == Bottleneck.COMMUNICATION
    assert (result.verdict.cause == "slow-network") == slow


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_waits_for_a_core(rank: int) -> None:
    plan = Plan(
        **every(FORWARD, 60, (rank,)),  # type: ignore[arg-type]
        scheduled=lambda step, own: {FORWARD: ((60 if own == rank else 1) * MS, 0)},
    )
    verdict = analyze(simulate(plan)).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.HOST, "contended-host")
    assert verdict.culprit_ranks == (rank,)
    assert "every other rank waits for it" in verdict.headline


def test_no_rank_is_named_where_all_are_queued() -> None:
    """One is always queued somewhat longer, on a host where nobody has a core."""
    plan = Plan(
        **every(FORWARD, 20, (1,)),  # type: ignore[arg-type]
        scheduled=lambda step, rank: {FORWARD: ((35 if rank == 1 else 15) * MS, 0)},
    )
    verdict = analyze(simulate(plan)).verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.HOST, "contended-host", ())


@pytest.mark.parametrize(("ms", "added"), [(90, True), (40, False)])
def test_the_headline_adds_a_rank_that_stands_still_to_a_slow_loader(ms: int, added: bool) -> None:
    """Unless it costs less than half as much. The loader is slow on all ranks, so none is at fault for it."""
    plan = Plan(
        extra=lambda step, rank: {DATA: 120 * MS, FORWARD: ms * MS if rank == 1 else 0},
        scheduled=lambda step, rank: {FORWARD: (0, ms * MS)} if rank == 1 else {},
    )
    verdict = analyze(simulate(plan)).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.DATA, "slow-data-all-ranks")
    assert verdict.culprit_ranks == ()
    assert ("Rank 1 is blocked in forward" in verdict.headline) == added


@pytest.mark.parametrize(("phase", "words"), [(FORWARD, "in forward"), (OPTIMIZER, "in the optimizer")])
def test_one_rank_is_blocked(phase: str, words: str) -> None:
    """Unlike one that computes as much longer."""
    plan = Plan(
        **every(phase, 60, (1,)),  # type: ignore[arg-type]
        scheduled=lambda step, rank: {phase: (0, 60 * MS)} if rank == 1 else {},
    )
    result = analyze(simulate(plan))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.HOST, "stalled-rank")
    assert verdict.culprit_ranks == (1,)
    assert words in verdict.headline
    assert "temperature" not in result.examination.findings[0].action
    assert result.scheduled["blocked"][1] == pytest.approx(60, abs=1)
    computes = analyze(simulate(replace(plan, scheduled=lambda step, rank: {})))
    assert (computes.verdict.bottleneck, computes.verdict.cause) == (Bottleneck.COMPUTE, "compute-straggler")
    assert "neither waits for a core nor is blocked" in computes.examination.findings[0].action


def test_a_rank_that_is_stopped_now_and_then_is_named_by_the_time_that_it_costs() -> None:
    """In two steps of five it is stopped for 290 ms; in the others the other rank comes a little later. By count it is
    the last one in a minority of the steps."""

    def stopped(step: int, rank: int) -> bool:
        return rank == 1 and step % 5 < 2

    plan = Plan(
        steps=60,
        extra=lambda step, rank: {FORWARD: 290 * MS if stopped(step, rank) else 40 * MS * (rank == 0 and step % 5 > 1)},
        scheduled=lambda step, rank: {FORWARD: (0, 290 * MS)} if stopped(step, rank) else {},
    )
    with_cause = analyze(simulate(plan)).verdict
    assert (with_cause.cause, with_cause.culprit_ranks) == ("stalled-rank", (1,))
    without = analyze(simulate(replace(plan, scheduled=None))).verdict
    assert (without.cause, without.culprit_ranks) == ("compute-straggler", (1,))


@pytest.mark.parametrize("phase", [FORWARD, OPTIMIZER])
def test_a_rank_blocked_after_the_last_collective_of_a_step_is_late_in_the_next(phase: str) -> None:
    """It was called a slow computer: the time that it was blocked lies in another step than its lateness."""
    plan = Plan(
        steps=60,
        extra=lambda step, rank: {phase: 120 * MS} if rank == 1 and step % 3 == 0 else {},
        scheduled=lambda step, rank: {phase: (0, 120 * MS)} if rank == 1 and step % 3 == 0 else {},
    )
    result = analyze(simulate(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("stalled-rank", (1,))
    stalled = finding(result, "stalled-rank")
    assert stalled is not None
    assert stalled.cost_ns_per_step == pytest.approx(40 * MS, rel=0.1)
    assert finding(result, "compute-straggler") is None


def test_a_slow_rank_that_is_also_blocked_is_not_said_not_to_be() -> None:
    """Rank 1 computes longer. In some steps it is blocked while rank 0 computes, so that nobody waits for that."""

    def extra(step: int, rank: int) -> dict[str, int]:
        if step % 4:
            return {FORWARD: 80 * MS * rank}
        return {FORWARD: 80 * MS}

    plan = Plan(
        steps=60,
        extra=extra,
        scheduled=lambda step, rank: {FORWARD: (0, 75 * MS)} if rank == 1 and not step % 4 else {},
    )
    slow = finding(analyze(simulate(plan)), "compute-straggler")
    assert slow is not None
    assert "nor is blocked" not in slow.action
    assert "is blocked or waiting for a core" in slow.action


def test_a_process_that_is_stopped_is_stopped_in_its_loader_too() -> None:
    """Half of every phase, where loading is two thirds of the step: the loader is not what is slow."""
    plan = Plan(
        ranks=1,
        data_ns=200 * MS,
        scheduled=lambda step, rank: {DATA: (0, 120 * MS), FORWARD: (0, 18 * MS), BACKWARD: (0, 36 * MS)},
    )
    result = analyze(simulate(plan))
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.HOST, "stalled-ranks")
    slow = analyze(simulate(replace(plan, scheduled=lambda step, rank: {DATA: (0, 120 * MS)})))
    assert (slow.verdict.bottleneck, slow.verdict.cause) == (Bottleneck.DATA, "slow-data-all-ranks")


def test_a_rank_that_is_stopped_inside_of_collectives_is_no_slow_network() -> None:
    """All ranks stand in the reductions until the one that is stopped goes on: it is known by its pauses alone."""
    tables = simulate(Plan(transfer_ns=20 * MS, scheduled=lambda step, rank: {}))
    network = analyze(tables).verdict
    assert (network.bottleneck, network.culprit_ranks) == (Bottleneck.COMMUNICATION, ())
    own = tables.ranks[1]
    pauses = [(row.start_ns, row.end_ns) for row in own.rows if row.end_ns is not None]
    sample = HostRecord(own.steps[-1].end_ns, 1000 * MS, pauses=pauses)
    stopped = analyze(replace(tables, ranks={**tables.ranks, 1: replace(own, scheduling=(sample,))})).verdict
    assert (stopped.bottleneck, stopped.cause, stopped.culprit_ranks) == (Bottleneck.HOST, "stalled-rank", (1,))


def test_suspects_are_printed_with_their_time() -> None:
    plan = Plan(steps=8, extra=lambda step, rank: {FORWARD: (20 + 30 * (step % 3)) * MS} if rank == step % 2 else {})
    verdict = analyze(simulate(plan)).verdict
    assert verdict.culprit_ranks == ()
    assert " ms a step for rank 0" in verdict.headline
    assert " for rank 1" in verdict.headline


def test_a_stall_where_no_loader_is_used_may_be_the_input() -> None:
    plan = Plan(
        **every(FORWARD, 60),  # type: ignore[arg-type]
        scheduled=lambda step, rank: {FORWARD: (0, 60 * MS)},
    )
    tables = simulate(plan)
    with_loader = analyze(tables)
    assert (with_loader.verdict.bottleneck, with_loader.verdict.cause) == (Bottleneck.HOST, "stalled-ranks")
    assert "DataLoader" not in with_loader.examination.findings[0].action
    assert "blocked in forward: " in with_loader.verdict.headline
    ranks = {
        rank: replace(own, steps=tuple(replace(s, phases=[p for p in s.phases if p.phase != DATA]) for s in own.steps))
        for rank, own in tables.ranks.items()
    }
    without = analyze(replace(tables, ranks=ranks))
    assert without.verdict.cause == "stalled-ranks"
    assert "No batch came from a torch DataLoader" in without.examination.findings[0].action
    assert "blocked in or before forward: " in without.verdict.headline  # where a step begins is not known


@pytest.mark.parametrize(("workers", "named"), [(0, (1,)), (2, ())])
def test_waiting_for_cores_hides_no_slow_read_in_the_trainings_own_process(
    workers: int, named: tuple[int, ...]
) -> None:
    """Where all ranks wait for cores, so do the workers of their loaders. Without workers, nothing in the wait for data
    is queueing: a rank that waits 60 ms longer in every step reads more slowly, however long all of them are queued."""
    plan = Plan(
        steps=24,
        extra=lambda step, rank: {FORWARD: 100 * MS} | ({DATA: 60 * MS} if rank == 1 else {}),
        scheduled=lambda step, rank: {FORWARD: (100 * MS, 0)},
        trainer={"num_workers": workers},
    )
    result = analyze(simulate(plan))
    assert result.verdict.cause == "contended-host"
    slow = finding(result, "slow-data-one-rank")
    assert (slow.ranks if slow is not None else ()) == named


@pytest.mark.parametrize(("every_nth", "says"), [(5, True), (1, False)])
def test_a_stall_in_few_of_the_steps(every_nth: int, says: bool) -> None:
    """As of the rollouts of reinforcement learning, after which the optimizer steps several times."""

    def planted(step: int, rank: int) -> dict[str, int]:
        return {FORWARD: 60 * every_nth * MS} if step % every_nth == 0 else {}

    plan = Plan(
        steps=40,
        extra=planted,
        scheduled=lambda step, rank: {phase: (0, ns) for phase, ns in planted(step, rank).items()},
    )
    result = analyze(simulate(plan))
    assert result.verdict.cause == "stalled-ranks"
    assert ("80% of it lies in 1" in result.examination.findings[0].action) == says


def test_ranks_that_exchange_nothing_train_alone_and_none_waits() -> None:
    """Rank 1 is slower, and it is nobody's business."""
    plan = Plan(**every(FORWARD, 60, (1,)), strategy="none")  # type: ignore[arg-type]
    tables = simulate(plan)
    assert tables.manifest is not None
    manifest = replace(tables.manifest, collector={"settings": {"collectives": True}})
    alone = {rank: replace(own, rows=(), groups={}) for rank, own in tables.ranks.items()}
    result = analyze(replace(tables, manifest=manifest, ranks=alone))
    verdict = result.verdict
    assert (verdict.cause, verdict.severity, verdict.culprit_ranks) == ("ranks-train-alone", Severity.CRITICAL, ())
    assert "do not communicate" in verdict.headline
    assert not [f for f in result.examination.findings if f.ranks]
    assert "waits for it" not in verdict.headline
    together = analyze(replace(tables, manifest=manifest)).verdict
    assert (together.cause, together.culprit_ranks) == ("compute-straggler", (1,))
    last = {  # one call of each, in the first step, which is warm-up
        rank: replace(own, rows=own.rows[:1], groups=own.groups) for rank, own in tables.ranks.items()
    }
    assert analyze(replace(tables, manifest=manifest, ranks=last)).verdict.cause == "ranks-train-alone"
    unknown = analyze(replace(tables, ranks=alone)).verdict  # nobody looked at collectives
    assert unknown.cause != "ranks-train-alone"
    one_each = {
        rank: replace(own, groups={row.group: [rank] for row in own.rows}) for rank, own in tables.ranks.items()
    }
    assert analyze(replace(tables, manifest=manifest, ranks=one_each)).verdict.cause == "ranks-train-alone"


@pytest.mark.parametrize(
    ("phase", "queued_ms", "blocked_ms", "cause"),
    [
        (FORWARD, 0, 60, "stalled-rank"),
        (FORWARD, 60, 0, "contended-host"),
        (DATA, 0, 0, "slow-data-one-rank"),
        (FORWARD, 0, 0, ""),
    ],
)
def test_what_delays_a_rank_that_trains_alone_is_named(phase: str, queued_ms: int, blocked_ms: int, cause: str) -> None:
    """A stall was looked for and not found, as no other rank waits for it. That rank 1 computes longer than a training
    that has nothing to do with it is no finding, and nothing that could be denied."""

    def rank(slow: bool) -> Tables:
        return simulate(
            Plan(
                ranks=1,
                extra=lambda step, _: {phase: 60 * MS} if slow else {},
                scheduled=lambda step, _: {phase: (queued_ms * MS, blocked_ms * MS)} if slow else {},
            )
        )

    first, second = rank(False), rank(True)
    assert first.manifest is not None
    manifest = replace(first.manifest, strategy="", world_size=2, collector={"settings": {"collectives": True}})
    ranks = {0: first.ranks[0], 1: replace(second.ranks[0], rank=1)}
    ranks = {rank: replace(tables, rows=(), groups={}) for rank, tables in ranks.items()}
    examination = analyze(replace(first, manifest=manifest, world_size=2, ranks=ranks)).examination
    named = {finding.id: finding.ranks for finding in examination.findings if finding.id != "ranks-train-alone"}
    assert named == ({cause: (1,)} if cause else {})
    assert "stragglers" not in examination.not_found


def test_a_loader_whose_queue_is_full_is_not_to_blame() -> None:
    plan = Plan(
        **every(DATA, 30, (1,)),  # type: ignore[arg-type]
        queue=lambda step, rank: LoaderQueue(2, 2, 1),
    )
    result = analyze(simulate(plan))
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.DATA, "slow-batch-handover")
    assert result.verdict.culprit_ranks == ()
    empty = analyze(simulate(replace(plan, queue=lambda step, rank: LoaderQueue(0 if rank else 2, 2, 1)))).verdict
    assert (empty.cause, empty.culprit_ranks) == ("slow-data-one-rank", (1,))


@pytest.mark.parametrize(("ms", "text"), [(0.4, "0.4 ms"), (4.24, "4.2 ms"), (13.4, "13 ms"), (1234.5, "1,234 ms")])
def test_milliseconds_that_are_not_nothing(ms: float, text: str) -> None:
    from diag.diagnoses.subject import in_ms

    assert in_ms(ms * MS) == text


def test_runs_without_scheduling_are_judged_as_before() -> None:
    plan = Plan(**every(FORWARD, 60, (1,)))  # type: ignore[arg-type]
    result = analyze(simulate(plan))
    assert result.verdict.cause == "compute-straggler"
    texts = map(str, result.examination.not_looked)
    reasons = [text for text in texts if text.startswith(("stalled ranks: ", "CPU contention: "))]
    assert len(reasons) == 2


@pytest.mark.parametrize(
    ("whole_ms", "late_ms", "rest"),
    [
        (33, {1: 16, 0: 9}, "; all ranks alike lose 8 ms"),
        (25, {1: 16, 0: 9}, ""),
        (20, {1: 16, 0: 9}, ", partly at the same time"),
    ],
)
def test_waiting_for_late_ranks_and_the_rest_add_up(whole_ms: int, late_ms: dict[int, int], rest: str) -> None:
    cost = Cost.CONTENTION
    late = {rank: np.full(4, ms * 1e6) for rank, ms in late_ms.items()}
    shares = SimpleNamespace(blame_ns={cost: late}, cost=lambda _: np.full(4, whole_ms * 1e6))
    culprits = Culprits((), 0.1, (2, 4), 0.5, late_ns=tuple((rank, ms * 1e6) for rank, ms in late_ms.items()))
    text = Subject.others_waited(SimpleNamespace(shares=shares, per="a step"), cost, culprits)  # type: ignore[arg-type]
    assert text == f"others waited 16 ms a step for rank 1, 9 ms for rank 0{rest}"
