"""A rank was seen to be late, and too seldom to prove that it always is, or that it moves: neither is said then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diag.api import Result, analyze
from diag.collectors.records import FORWARD
from diag.model.steps import Bottleneck, Finding
from tests.simulate import MS, Plan, simulate

UNKNOWN, ALWAYS, MOVING = "straggler-rank-unknown", "compute-straggler", "compute-imbalance"


def slow(who: Callable[[int], int], steps: int, ranks: int = 2, queued: bool = False) -> Result:
    """``who(step)``: the rank that computes longer in a step, by an amount that differs from step to step."""

    def extra(step: int, rank: int) -> dict[str, int]:
        return {FORWARD: (40 + 17 * step % 50) * MS} if rank == who(step) else {}

    def waits(step: int, rank: int) -> int | None:
        return extra(step, rank).get(FORWARD, 0) + MS if queued else None

    return analyze(simulate(Plan(ranks=ranks, steps=steps, extra=extra, queued=waits)))


def said(result: Result, of: Bottleneck = Bottleneck.COMPUTE) -> Finding:
    (found,) = [f for f in result.examination.findings if f.bottleneck == of]
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_too_few_steps_leave_the_rank_open(ranks: int) -> None:
    result = slow(lambda step: 1, steps=2, ranks=ranks)
    verdict, found = result.verdict, said(result)
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (Bottleneck.COMPUTE, UNKNOWN, ())
    assert "which rank is uncertain" in verdict.headline
    assert "Rank 1 was last in 2 of 2 affected steps" in verdict.headline
    assert "more steps" in found.action
    assert "rank 1" in found.action
    assert any(
        row.filter == "steps in which rank 1 was last, of 2 affected" and row.value == 2 for row in found.evidence
    )
    assert any(
        row.filter == "rank 0, mean waiting for a rank that is not overlapped" and row.value > 40
        for row in found.evidence
    )
    more = slow(lambda step: 1, steps=9, ranks=ranks).verdict
    assert (more.cause, more.culprit_ranks) == (ALWAYS, (1,))


@pytest.mark.parametrize(("ranks", "steps"), [(2, 8), (2, 20), (3, 8), (4, 6), (4, 18)])
def test_one_after_the_other_moves(ranks: int, steps: int) -> None:
    verdict = slow(lambda step: step % ranks, steps, ranks).verdict
    assert (verdict.cause, verdict.culprit_ranks) == (MOVING, ())


def test_two_of_two_once_each_may_move_or_not() -> None:
    """One of them may have been late but once, by chance."""
    result = slow(lambda step: step % 2, steps=2)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == (UNKNOWN, ())
    assert "the same rank" in said(result).action


def test_who_waits_for_a_core_may_be_open_too() -> None:
    once, alone, moving = (
        slow(who, steps, queued=True)
        for who, steps in ((lambda step: 1, 2), (lambda step: 1, 9), (lambda step: step % 2, 18))
    )
    assert [r.verdict.cause for r in (once, alone, moving)] == ["contended-host"] * 3
    titles = [said(result, Bottleneck.HOST).title for result in (once, alone, moving)]
    assert titles[0].startswith("An unidentified rank waits for a CPU core: ")
    assert "a step for rank 1" in titles[0]
    assert titles[1].startswith("Rank 1 waits for a CPU core: ")
    assert titles[1].endswith("every other rank waits for it")
    assert titles[2].startswith("A different rank from step to step waits for a CPU core: ")
