"""How sure triage is of the class, and of who is at fault."""

from __future__ import annotations

from pathlib import Path

from diag.ended.model import Culprit
from diag.hang.api import triage
from diag.hang.confidence import doubts_of, fitted, models
from diag.hang.policy import HANG_EVIDENCE
from tests.bench.hang_confidence.__main__ import fits, read

ONE, TWO, HOST = [Culprit(3)], [Culprit(3), Culprit(4)], [Culprit(host="n1")]


def sure(
    of_line: float, culprits: list[Culprit], *, ends: bool = False, rivals: bool = False
) -> tuple[float, float | None]:
    return fitted(doubts_of(of_line, ends, culprits), of_line, culprits, rivals)


def test_only_a_line_that_names_the_cause_makes_an_answer_sure() -> None:
    assert min(sure(0.9, ONE)) >= 0.9  # type: ignore[type-var]
    assert max(sure(0.7, ONE)) < 0.9  # type: ignore[type-var]


def test_a_line_that_only_suggests_is_less_sure_than_one_that_reports_an_effect() -> None:
    assert max(sure(0.5, ONE)) <= HANG_EVIDENCE.when_it_suggests < sure(0.7, ONE)[0]  # type: ignore[type-var]


def test_the_bound_of_suggestions_is_what_their_first_runs_support() -> None:
    suggested = [row for row in read() if row.by_rule <= HANG_EVIDENCE.suggests]
    right = sum(row.right_class for row in suggested)
    assert HANG_EVIDENCE.when_it_suggests <= (right + 1) / (len(suggested) + 2)


def test_several_culprits_are_no_surer_than_their_evidence() -> None:
    of_class, of_culprits = sure(0.6, TWO)
    assert of_culprits == 0.6 < of_class


def test_a_host_alone_is_no_sure_culprit_and_nobody_is_none() -> None:
    assert (sure(0.9, HOST)[1] or 1) < 0.9
    assert sure(0.9, [])[1] is None


def test_a_rival_bounds_both() -> None:
    assert max(sure(0.9, ONE, rivals=True)) <= 0.75  # type: ignore[type-var]


def test_doubt_never_makes_an_answer_surer() -> None:
    for model in (models().of_class, models().of_culprit):
        assert max(model.coefficients.values()) <= 0
    assert sure(0.9, ONE, ends=True) <= sure(0.9, ONE)


def test_the_coefficients_are_those_of_the_first_runs() -> None:
    found = fits(read())
    assert (found.of_class.coefficients, found.of_class.intercept) == (
        models().of_class.coefficients,
        models().of_class.intercept,
    )
    assert found.of_culprit.coefficients == models().of_culprit.coefficients


def test_missing_ranks_keep_the_value_of_their_rule(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("Rank 3 failed to pass monitoredBarrier in 1000 ms\n")
    answer = triage([str(tmp_path)])
    assert (answer.fault_class, answer.by_rules) == ("missing_rank", None)
    assert answer.confidence == answer.culprit_confidence
