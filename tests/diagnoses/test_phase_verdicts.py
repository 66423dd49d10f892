"""What is said without collectives, with two accounts that disagree, with late ranks that nothing explains, and how
sure it all is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from diag.account.attribute import attribute
from diag.api import Result, analyze
from diag.collectors.records import BACKWARD, CHECKPOINT, DATA, FORWARD
from diag.diagnoses import examine
from diag.diagnoses.costs import Cost, class_of
from diag.diagnoses.resolutions import follow
from diag.diagnoses.shares import Shares
from diag.diagnoses.subject import resampled
from diag.diagnoses.verdict import classes_of, classify, judge
from diag.model.steps import Bottleneck, Detail, Severity
from diag.rundir.tables import Tables
from diag.show.json import to_dict
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, without_collectives


def on(rank: int, phase: str, ns: int = 60 * MS, ranks: int = 3, every: int = 1) -> Plan:
    return Plan(ranks=ranks, extra=lambda step, r: {phase: ns} if r == rank and step % every == 0 else {})


def bare(plan: Plan) -> Result:
    return analyze(without_collectives(simulate(plan)))


# -- without collectives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("plan", "bottleneck", "cause", "culprits"),
    [
        (on(1, DATA), Bottleneck.DATA, "slow-data-one-rank", (1,)),
        (Plan(data_ns=80 * MS), Bottleneck.DATA, "slow-data-all-ranks", ()),
        (on(1, CHECKPOINT, 300 * MS, every=4), Bottleneck.COMPUTE, "checkpoint-stall", ()),
    ],
    ids=["one loader", "every loader", "checkpoints"],
)
def test_phases_alone_give_the_verdict_and_say_so(
    plan: Plan, ranks: int, bottleneck: Bottleneck, cause: str, culprits: tuple[int, ...]
) -> None:
    result = bare(replace(plan, ranks=ranks))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause, verdict.severity) == (bottleneck, cause, Severity.CRITICAL)
    assert set(verdict.culprit_ranks) >= set(culprits)
    assert verdict.confidence <= 0.5
    assert "durations of the phases alone" in verdict.headline
    assert result.cause is not None
    assert result.cause.evidence[0].table == "costs"
    assert result.cause.confidence <= 0.6
    assert any(reason.startswith("exposed communication") for reason in map(str, result.coverage.not_looked))
    assert to_dict(result)["stage_frontier"]["verdict_rests_on_it"]


def test_steps_get_the_class_of_the_run_s_account() -> None:
    result = bare(on(1, DATA))
    assert {result.bottleneck_of(step) for step in result.attribution.usable} == {Bottleneck.DATA}


def test_the_classes_of_all_steps_are_each_step_s_own() -> None:
    """One loader is slow in every third step: the others are bound by what they compute."""
    result = bare(on(1, DATA, every=3))
    assert result.examination.phases is not None
    shares = result.examination.phases.shares
    classes = classes_of(shares)
    assert set(classes.values()) == {Bottleneck.DATA, Bottleneck.COMPUTE}
    for at, step in enumerate(shares.numbers):
        own = {class_of(cost, on_device=False): 0.0 for cost in Cost}
        for cost in Cost:
            own[class_of(cost, on_device=False)] += float(shares.cost(cost)[at] / shares.dur_ns[at])
        assert classes[step] == classify(own)[0]
    for account in result.attribution.usable:
        assert result.bottleneck_of(account) == classes[account.step]
    nothing = replace(shares, dur_ns=np.where(np.arange(len(shares.dur_ns)) == 0, 0.0, shares.dur_ns))
    assert set(classes_of(nothing)) == set(shares.numbers[1:]), "a step that took no time has no class"


def test_stages_that_are_alike_do_not_prove_health() -> None:
    """A slow wire hides in forward and backward: nothing stands out, and that is all that is said."""
    verdict = bare(Plan(transfer_ns=20 * MS)).verdict
    assert verdict.culprit_ranks == ()
    assert verdict.confidence <= 0.5
    assert "Healthy" not in verdict.headline
    assert "communication cannot be separated from computation" in verdict.headline


def test_without_steps_of_two_ranks_there_is_no_second_account() -> None:
    tables = without_collectives(simulate(on(1, DATA)))
    alone = analyze(replace(tables, ranks={0: tables.ranks[0]}, world_size=1))
    assert alone.examination.phases is None
    assert to_dict(alone)["stage_frontier"] is None
    assert "Healthy" in alone.verdict.headline


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=3),
        on(1, DATA),
        on(2, FORWARD),
        on(0, BACKWARD),
        on(0, "gc"),
        Plan(ranks=3, extra=lambda step, rank: {"gc": 60 * MS}),
        on(1, CHECKPOINT, 300 * MS, every=4),
        Plan(ranks=3, transfer_ns=20 * MS),
        Plan(ranks=2, tail=lambda step, rank: 15 * MS if rank == 1 else 0),
        Plan(ranks=4, extra=lambda step, rank: {FORWARD: 60 * MS} if step % 4 == rank else {}),
        Plan(ranks=2, data_ns=35 * MS, transfer_ns=5 * MS),
    ],
    ids=lambda plan: "",
)
def test_two_accounts_of_one_run_agree(plan: Plan) -> None:
    result = analyze(simulate(plan))
    phases = result.examination.phases
    assert phases is not None
    assert not phases.alone
    assert phases.frontier.communication_known
    assert result.examination.doubts == ()
    assert result.coverage.notes == ()


def shares_of_run(plan: Plan) -> tuple[Tables, Shares]:
    tables = simulate(plan)
    return tables, examine(attribute(tables), tables).shares


@pytest.mark.parametrize(
    ("phases_of", "timelines_of", "said"),
    [
        (on(1, DATA), on(2, DATA), "point to rank 2, the phase durations to rank 1"),
        (on(1, DATA), on(1, FORWARD), "timelines show a compute bottleneck, the phase durations data"),
        (Plan(ranks=3), on(1, FORWARD), "the phase durations do not"),
        (on(1, FORWARD), Plan(ranks=3), "only the phase durations show a compute bottleneck"),
        (on(1, FORWARD, 12 * MS), Plan(ranks=3), ""),
    ],
)
def test_accounts_that_contradict_each_other(phases_of: Plan, timelines_of: Plan, said: str) -> None:
    other = analyze(simulate(phases_of)).examination.phases
    assert other is not None
    compared = follow(shares_of_run(timelines_of)[1], other.shares)
    assert said in compared.doubt
    assert bool(compared.doubt) == bool(said)
    assert not compared.followed


def blocked(plan: Plan, rank: int, ns: int) -> Plan:
    """The same run where the CPU time says that the rank was blocked so long in each forward."""
    return replace(plan, scheduled=lambda step, r: {FORWARD: (0, ns)} if r == rank else {})


def test_the_answer_follows_the_account_that_has_the_reason() -> None:
    """A rank that is stopped is late in the next step by the timelines, which charge 10 of 60 ms to that; by the phases
    it is late in the step in which it was blocked."""
    late = on(1, FORWARD)
    coarse = analyze(simulate(blocked(late, 1, 60 * MS))).examination.phases
    fine = analyze(simulate(blocked(late, 1, 10 * MS))).examination.shares
    assert coarse is not None
    compared = follow(fine, coarse.shares)
    assert "10 ms a step by the ranks' timelines, 60 ms by the phase durations" in compared.followed
    assert compared.doubt == ""
    assert compared.shares.share(Cost.STALL) == pytest.approx(60 / 161, abs=0.02)
    assert compared.shares.share(Cost.STRAGGLER) < 0.02
    assert compared.shares.culprits(Cost.STALL).ranks == (1,)
    whole = [sum(shares.cost_ns.values()).sum() for shares in (fine, compared.shares)]
    assert whole[0] == pytest.approx(whole[1]), "the time is the finer account's"


@pytest.mark.parametrize(
    ("blocked_ns", "rank"), [(60, 0), (20, 1), (0, 1)], ids=["of another rank", "of a third of it", "of none"]
)
def test_the_answer_follows_no_reason_for_something_else(blocked_ns: int, rank: int) -> None:
    coarse = analyze(simulate(blocked(on(rank, FORWARD), rank, blocked_ns * MS))).examination.phases
    fine = analyze(simulate(blocked(on(1, FORWARD), 1, 0))).examination.shares
    assert coarse is not None
    compared = follow(fine, coarse.shares)
    assert compared.followed == ""
    assert compared.shares is fine


def test_a_contradiction_lowers_the_confidence() -> None:
    result = analyze(simulate(on(1, DATA)))
    doubted = replace(result.examination, doubts=("they differ",))
    assert (
        judge(result.attribution, doubted, result.coverage, result.tables).confidence
        <= 0.6
        < (result.verdict.confidence)
    )


# -- waiting that nothing explains -------------------------------------------------------------------------------------


def between_steps(plan: Plan, rank: int) -> Tables:
    """The same run where the rank's data phase lies before its steps, so that nothing was recorded of it."""
    tables = simulate(plan)
    own = tables.ranks[rank]
    steps = tuple(replace(s, begin_ns=s.phases[0].end_ns, phases=s.phases[1:]) for s in own.steps)
    return replace(tables, ranks={**tables.ranks, rank: replace(own, steps=steps)})


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_late_rank_without_a_reason_is_named_and_its_cause_left_open(ranks: int) -> None:
    result = analyze(between_steps(on(1, DATA, ranks=ranks), 1))
    verdict = result.verdict
    assert (verdict.cause, verdict.culprit_ranks) == ("straggler-cause-unknown", (1,))
    assert "cause not determined" in verdict.headline
    assert verdict.share == pytest.approx(60 / 160, abs=0.02), "of the time from step to step"
    assert verdict.confidence <= 0.5
    assert result.coverage.explained_wait is not None
    assert result.coverage.explained_wait < 0.1
    assert to_dict(result)["coverage"]["explained_wait"] == pytest.approx(result.coverage.explained_wait, abs=1e-4)
    assert result.coverage.notes == (), "the phases cannot see what lies between steps, so they contradict nothing"


@pytest.mark.parametrize(
    "plan",
    [on(1, DATA), on(1, FORWARD), Plan(ranks=2, tail=lambda step, rank: 15 * MS if rank == 1 else 0)],
    ids=["data", "compute", "link"],
)
def test_waiting_is_explained_by_work_and_by_links(plan: Plan) -> None:
    result = analyze(simulate(plan))
    assert result.coverage.explained_wait is not None
    assert result.coverage.explained_wait > 0.9
    assert not [b for step in result.attribution.usable for b in step.blames if b.detail == Detail.UNKNOWN]


def test_nobody_waits_for_anybody_in_one_rank() -> None:
    tables = simulate(Plan())
    alone = analyze(replace(tables, ranks={0: tables.ranks[0]}, world_size=1))
    assert alone.coverage.explained_wait is None


# -- how sure ----------------------------------------------------------------------------------------------------------


def test_blocks_of_steps_are_drawn_together() -> None:
    """Ten slow steps in a row are one event, not ten: the interval is wider than for ten scattered ones."""
    dur = np.full(100, 100.0)
    in_a_row, scattered = np.zeros(100), np.zeros(100)
    in_a_row[40:50] = scattered[::10] = 50.0
    assert resampled(in_a_row, dur).std() > 1.4 * resampled(scattered, dur).std()
    assert resampled(in_a_row, dur).mean() == pytest.approx(0.05, abs=0.01)


def alternating(first: int, second: int) -> Callable[[int, int], dict[str, int]]:
    """Data waits in some runs of steps, stragglers in others."""
    return lambda step, rank: {DATA: first * MS} if step // 10 % 2 else {FORWARD: second * MS} if rank == 0 else {}


def test_two_causes_whose_order_is_chance_are_mixed() -> None:
    plan = Plan(ranks=2, steps=42, extra=alternating(66, 46))
    result = analyze(simulate(plan))
    by_class = [result.share_of(name) for name in (Bottleneck.DATA, Bottleneck.COMPUTE)]
    assert by_class[0] - by_class[1] > 0.05, "told apart by the shares themselves"
    assert result.verdict.bottleneck == Bottleneck.MIXED
    always = Plan(ranks=2, steps=42, extra=lambda step, rank: {DATA: 33 * MS, FORWARD: 20 * MS if rank == 0 else 0})
    assert analyze(simulate(always)).verdict.bottleneck == Bottleneck.DATA, "the same costs in every step"


def test_clocks_that_are_less_sure_make_the_verdict_less_sure() -> None:
    result = analyze(simulate(on(1, FORWARD)))
    effect = result.verdict.share * result.examination.shares.dur_ns.mean()
    said = []
    for part in (0.0, 0.25, 0.9):
        off = replace(result.attribution, clock_uncertainty_ns=round(part * effect))
        said.append(judge(off, result.examination, result.coverage, result.tables).confidence)
    assert said[0] == result.verdict.confidence
    assert said[0] > said[1] > said[2]
