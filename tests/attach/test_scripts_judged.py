"""What counts as a right answer about a public script on a machine that other processes keep busy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.scripts.cases import BY_NAME
from tests.bench.scripts.judging import judge

QUIET, BUSY, ONE_CORE_TAKEN = {"0": 0.05, "1": 0.04}, {"0": 0.9, "1": 0.7}, {"0": 0.2, "1": 0.9}


def answered(cause: str, ranks: list[int], *others: str) -> dict[str, Any]:
    findings = [{"id": name, "severity": "critical"} for name in (cause, *others)]
    culprit = {"ranks": ranks} if ranks else None
    verdict = {"bottleneck": "host", "severity": "critical", "cause": cause, "culprit": culprit, "headline": "."}
    return {"analysis": {"verdict": verdict, "findings": findings}}


def judged(fault: str | None, queued: dict[str, float], answer: dict[str, Any]) -> dict[str, Any]:
    return judge(BY_NAME["nanogpt"], {"fault": fault, "rank": 1, "queued": queued}, answer)


@pytest.mark.parametrize(("queued", "right"), [(BUSY, True), (ONE_CORE_TAKEN, False), ({}, False)])
def test_a_taken_core_may_only_drown_where_the_other_rank_was_queued_as_well(
    queued: dict[str, float], right: bool
) -> None:
    row = judged("core-taken", queued, answered("contended-host", []))
    assert (row["cause"], row["rank_right"]) == (True, right)


def test_a_taken_core_that_is_named_is_right() -> None:
    assert judged("core-taken", ONE_CORE_TAKEN, answered("contended-host", [1]))["rank_right"]


@pytest.mark.parametrize(("queued", "right"), [(BUSY, True), (QUIET, False)])
def test_contention_may_come_first_only_where_all_ranks_were_queued(queued: dict[str, float], right: bool) -> None:
    row = judged("stop-pulses", queued, answered("contended-host", [1], "stalled-rank"))
    assert (row["cause"], row["first"], row["rank_right"]) == (right, False, True)


def test_contention_alone_does_not_explain_a_stopped_rank() -> None:
    row = judged("stop-pulses", BUSY, answered("contended-host", []))
    assert (row["cause"], row["rank_right"]) == (False, False)


def test_a_named_rank_of_a_healthy_run_is_accused() -> None:
    assert not judged(None, BUSY, answered("contended-host", [0]))["rank_right"]
    assert judged(None, BUSY, answered("contended-host", []))["rank_right"]
