"""The size of a problem is one number: what is charged to the rank that the headline names, over steps that no profiler
recorded."""

from __future__ import annotations

import re
from random import Random

import pytest

from diag.account.attribute import IN_WINDOW
from diag.api import Result, analyze
from diag.collectors.records import (
    BACKWARD,
    DATA,
    FORWARD,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_NONE,
    WINDOW_WARMUP,
    HostRecord,
    StepRecord,
)
from diag.model.steps import Finding, Severity
from diag.rundir.tables import Tables
from diag.show.json import to_dict
from diag.show.page import STEP_TIME, advice_of, page_of
from diag.show.ranks import OTHERS_WAIT
from diag.words.formatting import NBSP
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

PLANTED, NEAR = 200, 40  # milliseconds
GUILTY = 1
WINDOW = range(11, 14)
TIMED = {10: WINDOW_WARMUP, **dict.fromkeys(WINDOW, WINDOW_ACTIVE), 14: WINDOW_AFTER}


def busy(ranks: int, strategy: str, phase: str, slept: bool, seed: int, every_ms: int = 15) -> Plan:
    """Rank 1 is 200 ms late in each step, on a machine where each rank waits for a core for a third of the step that it
    would have without, now this rank more, now that. In profiler windows all of it takes three times as long."""
    random = Random(seed)
    queued = {
        (step, rank, name): round(random.expovariate(1 / every_ms) * MS)
        for step in range(24)
        for rank in range(ranks)
        for name in (FORWARD, BACKWARD)
    }

    def extra(step: int, rank: int) -> dict[str, int]:
        slower = 3 if step in WINDOW else 1
        spent = {name: slower * queued[step, rank, name] for name in (FORWARD, BACKWARD)}
        planted = slower * PLANTED * MS if rank == GUILTY else 0
        return {**spent, phase: spent.get(phase, 0) + planted}

    def scheduled(step: int, rank: int) -> dict[str, tuple[int, int]]:
        slower = 3 if step in WINDOW else 1
        blocked = slower * PLANTED * MS if slept and rank == GUILTY else 0
        spent = {name: (slower * queued[step, rank, name], 0) for name in (FORWARD, BACKWARD)}
        return {**spent, phase: (spent.get(phase, (0, 0))[0], blocked)}

    return Plan(ranks=ranks, steps=24, strategy=strategy, extra=extra, scheduled=scheduled, seed=seed)


def with_window(tables: Tables, states: dict[int, str]) -> Tables:
    def marked(step: StepRecord) -> StepRecord:
        return replace(step, window=states.get(step.step, WINDOW_NONE))

    ranks = {rank: replace(own, steps=tuple(map(marked, own.steps))) for rank, own in tables.ranks.items()}
    return replace(tables, ranks=ranks)


def cause(result: Result) -> Finding:
    assert result.cause is not None
    return result.cause


def in_ms(text: str) -> float:
    found = re.search(r"([\d.,]+)[ \u00a0](ms|s)\b", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * (1000 if found[2] == "s" else 1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("phase", "slept"), [(FORWARD, True), (BACKWARD, True), (DATA, False), (FORWARD, False)])
def test_200_ms_on_a_busy_machine_are_200_ms(ranks: int, strategy: str, phase: str, slept: bool) -> None:
    result = analyze(with_window(simulate(busy(ranks, strategy, phase, slept, seed=ranks)), TIMED))
    assert result.verdict.culprit_ranks == (GUILTY,)
    assert cause(result).ranks == (GUILTY,)
    assert abs(cause(result).cost_ns_per_step / MS - PLANTED) <= NEAR


@pytest.mark.parametrize("phase", [FORWARD, DATA])
def test_headline_card_table_and_json_have_one_size(phase: str) -> None:
    result = analyze(with_window(simulate(busy(2, "fsdp2", phase, phase == FORWARD, seed=5)), TIMED))
    page, finding = page_of(result), cause(result)
    size = round(finding.cost_ns_per_step / MS)
    assert f": {size:,} ms a step" in page.verdict.headline
    assert f": {size:,} ms a step" in page.findings[0].title
    assert page.findings[0].cost == f"{finding.share:.0%} of the step"
    assert f"{finding.share:.0%}" in page.verdict.headline.split(":")[0]
    waited = dict(zip(page.ranks.values("rank"), page.ranks.values("others_wait"), strict=True))
    assert round(waited[GUILTY] / 1e6) == size
    document = to_dict(result)
    assert document["findings"][0]["charged_ns"][str(GUILTY)] == document["findings"][0]["cost_ns_per_step"]
    if phase == DATA:
        (row,) = (row for row in result.loading.rows if row.rank == GUILTY)
        assert row.others_waited_ns == pytest.approx(finding.cost_ns_per_step, abs=1)


def test_one_step_time_everywhere() -> None:
    result = analyze(with_window(simulate(busy(2, "fsdp2", FORWARD, True, seed=5)), TIMED))
    page = page_of(result)
    (metric,) = (metric for metric in page.metrics if metric.label == STEP_TIME)
    counted = [step.dur_ns for step in result.attribution.usable]
    assert in_ms(metric.value) == pytest.approx(sum(counted) / len(counted) / MS, abs=0.5)
    assert f"of {metric.value} a step".replace(NBSP, " ") in page.verdict.headline
    assert metric.help.startswith("Mean of the counted steps")
    assert "Warm-up and steps in profiler windows do not count" in metric.help


def test_one_severity_and_one_confidence() -> None:
    result = analyze(with_window(simulate(busy(2, "fsdp2", FORWARD, True, seed=5)), TIMED))
    page = page_of(result)
    assert (page.findings[0].severity, page.verdict.severity) == (Severity.CRITICAL, Severity.CRITICAL)
    assert f"Confidence {result.verdict.confidence:.0%}" in page.verdict.facts
    assert f"confidence {result.verdict.confidence:.0%}" in page.findings[0].facts


def test_ranks_late_together_are_each_charged_their_own() -> None:
    """Rank 1 is 200 ms late and rank 2 100 ms, at the same meeting: the step is 200 ms longer, and that is rank 1's."""
    plan = Plan(ranks=8, jitter=0, extra=lambda step, rank: {FORWARD: {1: 200 * MS, 2: 100 * MS}.get(rank, 0)})
    result = analyze(simulate(plan))
    finding = cause(result)
    assert finding.charged_ns[1] / MS == pytest.approx(200, abs=2)
    assert finding.charged_ns[2] / MS == pytest.approx(100, abs=2)
    assert finding.cost_ns_per_step / MS == pytest.approx(200, abs=2)


def test_a_cost_that_is_nobodys_is_whole() -> None:
    """All wait 100 ms for data, and nobody is charged: the finding costs all of it."""
    result = analyze(simulate(Plan(extra=lambda step, rank: {DATA: 100 * MS})))
    finding = cause(result)
    assert finding.ranks == ()
    assert finding.cost_ns_per_step / MS == pytest.approx(101, abs=3)
    assert OTHERS_WAIT not in page_of(result).ranks.headings


def test_nobody_is_at_fault_for_a_cause_that_all_ranks_have() -> None:
    """All loaders are slow, and rank 1 is blocked as well: its own finding names it, and nothing else does."""
    plan = Plan(
        extra=lambda step, rank: {DATA: 120 * MS, FORWARD: 90 * MS if rank == GUILTY else 0},
        scheduled=lambda step, rank: {FORWARD: (0, 90 * MS)} if rank == GUILTY else {},
    )
    result = analyze(simulate(plan))
    page = page_of(result)
    assert (cause(result).ranks, result.verdict.culprit_ranks, result.verdict.culprit_hosts) == ((), (), ())
    assert to_dict(result)["verdict"]["culprit"] is None
    assert not any("fault" in fact for fact in page.verdict.facts)
    assert not page.ranks.at_fault
    assert OTHERS_WAIT not in page.ranks.headings
    (blocked,) = (finding for finding in result.examination.findings if finding.ranks)
    assert blocked.ranks == (GUILTY,)
    assert f"{blocked.title}." in page.verdict.headline  # it costs more than half as much


def test_the_finding_behind_the_verdict_comes_first() -> None:
    """Two causes of one class outweigh a third one that is larger than each of them."""
    plan = Plan(
        extra=lambda step, rank: {DATA: 50 * MS, FORWARD: (80 if rank == GUILTY else 40) * MS},
        scheduled=lambda step, rank: {FORWARD: (40 * MS, 40 * MS if rank == GUILTY else 0)},
    )
    result = analyze(simulate(plan))
    first = result.examination.findings[0]
    assert first.id == result.verdict.cause
    assert result.verdict.culprit_ranks == first.ranks
    assert max(finding.share for finding in result.examination.findings) > first.share


def test_a_gain_that_is_not_the_cost_says_why() -> None:
    """Rank 1 sleeps 100 ms and computes 100 ms longer: its finding is of one of them, and the change removes both."""
    plan = Plan(
        jitter=0,
        extra=lambda step, rank: {FORWARD: 120 * MS, BACKWARD: 80 * MS} if rank == GUILTY else {},
        scheduled=lambda step, rank: {FORWARD: (0, 120 * MS)} if rank == GUILTY else {},
    )
    result = analyze(simulate(plan))
    (change,) = (change for change in advice_of(result).changes if change.finding == "stalled-rank")
    assert change.gain.endswith(
        f", more than the 120{NBSP}ms of the finding: every other cause that makes rank{NBSP}1 late is removed as well"
    )
    whole = analyze(simulate(Plan(jitter=0, extra=lambda step, rank: {FORWARD: 200 * MS} if rank == GUILTY else {})))
    (change,) = (change for change in advice_of(whole).changes if change.finding == "compute-straggler")
    assert change.gain.endswith(")")
    assert in_ms(change.gain) == pytest.approx(200, rel=0.05)


def test_steps_in_profiler_windows_count_for_nothing() -> None:
    plan = Plan(steps=24, extra=lambda step, rank: {BACKWARD: 500 * MS} if step in TIMED else {})
    tables = simulate(plan)
    inside, without = analyze(with_window(tables, TIMED)), analyze(tables)
    assert {step.step for step in inside.attribution.steps if step.window} == set(WINDOW)
    assert {step.note for step in inside.attribution.steps if step.window} == {IN_WINDOW}
    assert not any(step.usable for step in inside.attribution.steps if step.step in TIMED)
    assert inside.examination.shares.dur_ns.mean() < 110 * MS < without.examination.shares.dur_ns.mean()
    assert max(row["dur_ns"] for row in inside.ranks.to_dicts()) < 110 * MS
    assert not any(step.window for step in without.attribution.steps)


def test_only_windows_count_where_nothing_else_does_and_it_is_said() -> None:
    states = {step: WINDOW_ACTIVE for step in range(24) if step >= 4}
    result = analyze(with_window(simulate(Plan(steps=24)), states))
    assert [step.step for step in result.attribution.usable] == list(range(2, 24))
    traced = tuple(
        replace(step, parts=tuple(replace(parts, source="trace") for parts in step.parts))
        for step in result.attribution.steps
    )
    result = replace(result, attribution=replace(result.attribution, steps=traced))
    assert result.attribution.in_windows
    page = page_of(result)
    assert f"22 of 24{NBSP}steps counted, all in profiler windows" in page.verdict.facts
    assert "All of them were recorded by a profiler" in page.metrics[0].help


def test_threads_that_look_on_do_not_explain_a_sleep() -> None:
    """Of a training that sleeps 90 % of the time, a monitor's thread runs for a quarter as long, and is queued."""
    queued = HostRecord(0, 1000 * MS, 2, 8 * MS, 250 * MS, 6 * MS, 200 * MS, runnable=16)
    host = tuple(replace(queued, monotonic_ns=(second + 1) * 1000 * MS) for second in range(60))
    plan = Plan(
        unit_ns=MS,
        extra=lambda step, rank: {FORWARD: PLANTED * MS} if rank == GUILTY else {},
        scheduled=lambda step, rank: {FORWARD: (0, PLANTED * MS)} if rank == GUILTY else {},
        host=host,
    )
    result = analyze(simulate(plan))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("stalled-rank", (GUILTY,))
    assert cause(result).cost_ns_per_step / MS == pytest.approx(PLANTED, abs=4)
    assert result.scheduled["blocked"][GUILTY] == pytest.approx(PLANTED, abs=4)


def test_a_class_of_several_findings_says_both_shares() -> None:
    """Rank 1 sleeps 60 ms of a step, and all ranks wait 20 ms for cores: both are the host's."""
    plan = Plan(
        extra=lambda step, rank: {FORWARD: (80 if rank == GUILTY else 20) * MS},
        scheduled=lambda step, rank: {FORWARD: (20 * MS, 60 * MS if rank == GUILTY else 0)},
    )
    result = analyze(simulate(plan))
    finding = cause(result)
    assert (finding.id, finding.ranks) == ("stalled-rank", (GUILTY,))
    assert result.verdict.share - finding.share > 0.05
    step = round(result.examination.shares.dur_ns.mean() / MS)
    told = f"({result.verdict.share:.0%} of {step} ms a step, the largest cause {finding.share:.0%})"
    assert result.verdict.headline.startswith(f"Host-bound {told}: rank 1 is blocked in forward: 60 ms a step")
