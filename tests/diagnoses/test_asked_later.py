"""Collectives whose result is not asked for at once: a rank that asks when others have left has held them up before."""

from __future__ import annotations

import pytest

from diag.api import Result, analyze
from diag.collectors.records import BACKWARD, DATA, FORWARD
from diag.diagnoses.costs import Cost
from diag.model.steps import Bottleneck, Detail, Kind
from tests.simulate import MS, Plan, simulate

LATER = 1 * MS  # the transfer takes half of it


def run(late: dict[int, dict[str, int]], ranks: int) -> Result:
    """``late``: of each rank, what is planted, in nanoseconds a step by phase."""
    return analyze(
        simulate(
            Plan(
                ranks=ranks,
                extra=lambda step, rank: dict(late.get(rank, {})),
                asks_later_ns=lambda step, rank: LATER,
            )
        )
    )


def blamed_ms(result: Result, rank: int, kind: Kind, detail: Detail) -> float:
    blames = [blame for step in result.attribution.usable for blame in step.blames]
    found = sum(blame.ns for blame in blames if (blame.rank, blame.kind, blame.detail) == (rank, kind, detail))
    return found / len(result.attribution.usable) / MS


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_loader_is_its_ranks_also_where_the_others_leave_before_it_asks(ranks: int) -> None:
    """As recorded of tensor parallelism: rank 0 has the result of the first collective before rank 1 waits for it, and
    is the last one at the second, so that the path is on rank 0 again when rank 1 does."""
    result = run({1: {DATA: 60 * MS}, 0: {FORWARD: 4 * MS}}, ranks)
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.DATA, "slow-data-one-rank")
    assert result.verdict.culprit_ranks == (1,)
    assert blamed_ms(result, 1, Kind.DATA, Detail.NONE) == pytest.approx(60, abs=3)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("phase", "detail"), [(FORWARD, Detail.FORWARD), (BACKWARD, Detail.BACKWARD)])
def test_a_straggler_costs_what_was_planted(ranks: int, phase: str, detail: Detail) -> None:
    result = run({1: {phase: 60 * MS}}, ranks)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (1,))
    assert blamed_ms(result, 1, Kind.COMPUTE, detail) == pytest.approx(60, abs=3)
    shares = result.examination.shares
    assert shares.share(Cost.STRAGGLER) == pytest.approx(60 / 163, abs=0.03)
