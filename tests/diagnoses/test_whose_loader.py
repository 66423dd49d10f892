"""One rank was seen to wait longest for its loader, and it is not proven that it always is: that all do is not said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diag.api import Result, analyze
from diag.collectors.records import DATA, LoaderQueue
from diag.diagnoses import examine
from diag.model.steps import Bottleneck, Finding
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

UNKNOWN = "slow-data-rank-unknown"


def waiting(
    who: Callable[[int], int], steps: int, ready: int | None = None, ranks: int = 2, late_ms: int = 60
) -> Result:
    """``who(step)``: the rank whose loader is late in a step; ``ready``: batches in the queues of the others, of which
    2 are but a head start."""
    return analyze(
        simulate(
            Plan(
                ranks=ranks,
                steps=steps,
                extra=lambda step, rank: {DATA: late_ms * MS} if rank == who(step) else {},
                queue=lambda step, rank: None if ready is None else LoaderQueue(ready if rank != 1 else 0, 4, 2),
            )
        )
    )


def said(result: Result) -> Finding:
    (found,) = [f for f in result.examination.findings if f.bottleneck == Bottleneck.DATA]
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_too_few_steps_leave_the_rank_open(ranks: int) -> None:
    result = waiting(lambda step: 1, steps=2, ranks=ranks)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.DATA, UNKNOWN)
    assert verdict.culprit_ranks == ()
    assert "which rank is uncertain" in verdict.headline
    assert "Rank 1 waited longest in 2 of 2 steps" in verdict.headline
    found = said(result)
    assert "more steps" in found.action
    assert "rank 1" in found.action
    assert any(row.filter.startswith("rank 1") and row.value > 60 for row in found.evidence)
    more = waiting(lambda step: 1, steps=9, ranks=ranks).verdict
    assert (more.cause, more.culprit_ranks) == ("slow-data-one-rank", (1,))


def test_two_ranks_of_four_may_be_the_only_ones() -> None:
    plan = Plan(ranks=4, steps=2, extra=lambda step, rank: {DATA: (60 + rank) * MS} if rank in (1, 2) else {})
    verdict = analyze(simulate(plan)).verdict
    assert (verdict.cause, verdict.culprit_ranks) == (UNKNOWN, ())
    assert "Ranks 2, 1 waited longest in 2 of 2 steps" in verdict.headline


def test_one_rank_in_most_of_a_few_steps_is_open_and_two_in_turn_are_not() -> None:
    """Of the nine steps seven count: in five of them it was rank 1, which chance does in 23 runs of 100."""
    assert waiting(lambda step: step not in (3, 6), steps=9).verdict.cause == UNKNOWN
    assert waiting(lambda step: step % 2, steps=10).verdict.cause == "slow-data-all-ranks"


def test_a_stall_now_and_then_stays_one() -> None:
    """In two steps of eighteen, both times on the same rank."""
    assert waiting(lambda step: 1 if step in (7, 15) else -1, steps=20, late_ms=300).verdict.cause == "slow-data-bursty"


@pytest.mark.parametrize(("ready", "cause"), [(2, "slow-data-all-ranks"), (4, UNKNOWN)])
def test_the_others_reserve_says_that_they_are_too_slow_as_well(ready: int, cause: str) -> None:
    result = waiting(lambda step: step not in (3, 6), steps=9, ready=ready)
    assert result.verdict.cause == cause
    assert result.verdict.culprit_ranks == ()


def test_all_are_slow_only_if_the_durations_of_the_stages_say_so_too() -> None:
    """The ranks' timelines do not show who waited for whom, but one rank's steps hold all of the wait."""
    plan = Plan(extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {})
    for late, cause in ((plan, UNKNOWN), (Plan(data_ns=60 * MS), "slow-data-all-ranks")):
        tables = simulate(late)
        whole = analyze(tables).attribution
        blind = replace(whole, steps=tuple(replace(step, blames=()) for step in whole.steps))
        (found,) = [f for f in examine(blind, tables).findings if f.bottleneck == Bottleneck.DATA]
        assert (found.id, found.ranks) == (cause, ())
