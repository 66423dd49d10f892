"""Each way of training with a planted fault, recorded, and the verdict that it must get.

DIAG_REPEATS=5 runs each case five times. tests/bench/STRATEGIES.md has the verdicts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.api import Result, open_run
from tests.matrix import chosen, matrix
from tests.run.strategy_cases import FAULTS, WAYS, is_found_on_a_busy_machine, is_right, record

pytestmark = pytest.mark.multiproc
REPEATS = int(os.environ.get("DIAG_REPEATS", "1"))

Case = tuple[int, str, str, int]  # ranks, way, fault, repeat
CASES: list[Case] = [
    (ranks, way, fault, repeat)
    for ranks, ways in WAYS.items()
    for way in ways
    for fault in FAULTS
    for repeat in range(REPEATS)
]
FEW = [case for case in CASES if case[1] in ("ddp", "fsdp2")]


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """A function from a case to its run directory. The chosen cases of one number of ranks are one launch."""
    folder = tmp_path_factory.mktemp("strategies")
    cases = chosen(request, "case")
    launched: set[int] = set()

    def run_of(case: Case) -> Path:
        if case[0] not in launched:
            launched.add(case[0])
            same = [own for own in cases if own[0] == case[0]]
            record(case[0], [(folder / str(CASES.index(own)), own[1], own[2]) for own in same], 900 * REPEATS)
        return folder / str(CASES.index(case))

    return run_of


def told(result: Result) -> str:
    """For the message of a test that fails."""
    verdict = result.verdict
    findings = [f"{f.id} {f.ranks} {f.share:.2f} {f.title}" for f in result.examination.findings]
    first = f"{verdict.bottleneck} {verdict.culprit_ranks} {verdict.confidence}: {verdict.headline}"
    return "\n".join([first, *findings])


@pytest.mark.parametrize("case", matrix(CASES, FEW), ids=lambda case: f"{case[1]}-{case[2]}-{case[3]}")
def test_the_planted_fault_is_named(recorded: Callable[[Case], Path], case: Case) -> None:
    result = open_run(recorded(case))
    assert is_right(result, case[2]) or is_found_on_a_busy_machine(result, case[2]), told(result)
