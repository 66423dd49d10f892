"""Reductions of which only the end was recorded, as an attached DDP's: what they say, and what they do not."""

from __future__ import annotations

import pytest

from diag.account.records import calls_of
from diag.api import Result, analyze
from diag.collectors.records import FORWARD, CollectiveRow
from diag.rundir.tables import Tables
from diag.show.ranks import rank_table
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

SLOW_WIRE = Plan(ranks=2, wire=lambda op, phase, unit: 60 * MS)


def from_their_end(tables: Tables) -> Tables:
    ranks = {
        rank: replace(own, rows=tuple(row._replace(whole=False) for row in own.rows))
        for rank, own in tables.ranks.items()
    }
    return replace(tables, ranks=ranks)


def told(result: Result, id: str) -> str:
    return next(finding.title for finding in result.examination.findings if finding.id == id)


def test_their_bytes_took_longer_than_is_told() -> None:
    row = CollectiveRow("0", 0, "all_reduce", 400, "float32", 10, 20, 10, 20)
    assert [call.bytes for call in calls_of([row, row._replace(whole=False)], {})] == [400, 0]


def test_what_is_hidden_is_not_known_and_not_said() -> None:
    whole, result = analyze(simulate(SLOW_WIRE)), analyze(from_their_end(simulate(SLOW_WIRE)))
    assert result.verdict.bottleneck == whole.verdict.bottleneck
    assert "without a profiler window its overlap with computation is unknown" in told(result, "exposed-communication")
    assert not any("hidden" in item.filter for finding in result.examination.findings for item in finding.evidence)
    assert "overlapped comm." not in rank_table(result.attribution).columns
    assert all(part.hidden_known for step in whole.attribution.steps for part in step.parts)
    assert not any(part.hidden_known for step in result.attribution.steps for part in step.parts)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_straggler_is_found_all_the_same(rank: int) -> None:
    plan = Plan(ranks=2, extra=lambda step, own: {FORWARD: 60 * MS} if own == rank else {})
    result = analyze(from_their_end(simulate(plan)))
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (rank,))
