"""What must not change a verdict, on cases of the grid; and what a missing file may change."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from diag.api import Result
from diag.model.steps import Severity
from tests.bench.grid.variants import renumbered, shifted, simulated, without

# Two nodes, and at most eight ranks.
SPREAD = (
    "tuning/Q1-clocks-healthy/0", "tuning/Q1-clocks-D2/2", "tuning/Q1-clocks-N1/2",
    "tuning/S5-node/2",
)  # fmt: skip
ANY = (
    "tuning/H0-ddp/0", "tuning/D2-data-one/3", "tuning/N1-network/3", "tuning/S1-forward/3",
    "tuning/C1-gc-one/7",
)  # fmt: skip


def said(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "class": verdict.bottleneck,
        "severity": verdict.severity,
        "cause": verdict.cause,
        "ranks": sorted(verdict.culprit_ranks),
        "share": pytest.approx(verdict.share, abs=0.01),
    }


@pytest.mark.parametrize("case", SPREAD)
def test_a_clock_that_is_ahead_and_one_that_drifts(case: str, tmp_path: Path) -> None:
    """By 50 ms, and by 20 parts in a million."""
    run = simulated(case)
    assert run.job.nodes > 1
    before = said(run.diagnosed(tmp_path / "a"))
    assert before == said(run.diagnosed(tmp_path / "b", **shifted(run.job, ppm=0.0)))
    assert before == said(run.diagnosed(tmp_path / "c", **shifted(run.job, by_ns=0)))


@pytest.mark.parametrize("case", ANY)
def test_ranks_under_other_numbers(case: str, tmp_path: Path) -> None:
    run = simulated(case)
    world = run.job.world
    numbers = list(range(world))
    Random(case).shuffle(numbers)
    before = said(run.diagnosed(tmp_path / "a"))
    after = said(run.diagnosed(tmp_path / "b", renumbered(dict(enumerate(numbers)))))
    assert after == before | {"ranks": sorted(numbers[rank] for rank in before["ranks"])}


@pytest.mark.parametrize("case", ANY)
def test_a_missing_rank_makes_nothing_surer(case: str, tmp_path: Path) -> None:
    run = simulated(case)
    at_fault = {rank for fault in run.job.faults for rank in fault.ranks}
    missing = next(rank for rank in range(run.job.world) if rank not in at_fault)
    whole = run.diagnosed(tmp_path / "a")
    part = run.diagnosed(tmp_path / "b", without(missing))
    assert part.coverage.ranks_missing == (missing,)
    assert part.verdict.confidence <= whole.verdict.confidence
    assert missing not in part.verdict.culprit_ranks


@pytest.mark.parametrize("case", ["tuning/D2-data-one/3", "tuning/S1-forward/3"])
def test_without_the_rank_at_fault_nobody_else_is_accused(case: str, tmp_path: Path) -> None:
    run = simulated(case)
    (culprit,) = run.job.faults[0].ranks
    verdict = run.diagnosed(tmp_path, without(culprit)).verdict
    assert verdict.culprit_ranks == ()
    assert verdict.severity == Severity.HEALTHY or verdict.confidence <= 0.6
