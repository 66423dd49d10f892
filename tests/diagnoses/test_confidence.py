"""The confidence is the one that the committed cases give, it is calibrated on cases that the fit did not see, and it
says what lowered it."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import msgspec
import pytest

from diag.api import analyze
from diag.diagnoses.confidence import NO_DOUBT, Features, Rule, fit, told, weighed
from diag.diagnoses.policy import CONFIDENCE
from diag.show.json import to_json
from diag.show.page import page_of
from diag.words.wording import DOUBTS, doubts
from tests.bench.confidence.cases import FEATURES, SEEN, UNSEEN, read
from tests.bench.confidence.fitting import SURE, calibration_error, confidence, error_by_chance, fitted, surely_wrong
from tests.simulate import Plan, simulate, without_rank


def test_the_coefficients_are_those_of_the_committed_cases() -> None:
    assert fitted(read(SEEN), fit().fitted) == fit()


def test_cases_that_the_fit_did_not_see_are_calibrated() -> None:
    cases = read(UNSEEN)
    assert not {case.name for case in cases} & {case.name for case in read(SEEN)}
    assert sum(not case.right for case in cases) >= 100, "without wrong answers this shows nothing"
    said = [confidence(case, fit()) for case in cases]
    assert calibration_error(said, [case.right for case in cases]) <= 0.05
    assert sum(one >= SURE for one in said) >= 100
    assert not surely_wrong(cases, fit())


def test_what_is_not_sure_is_told_below_nine_in_ten() -> None:
    sure, most = CONFIDENCE.sure_from, CONFIDENCE.unless_sure
    assert [told(p) for p in (0.5, most, sure - 0.001, sure, 1.0)] == [0.5, most, most, sure, CONFIDENCE.at_most]
    assert most < SURE < sure


def test_the_documentation_tells_the_rates() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "confidence.md").read_text()
    for name, rate in fit().coefficients.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {rate:.2f} | {exp(-rate):.0%} |".replace("%", " %")), name


@pytest.mark.parametrize("name", FEATURES)
def test_more_doubt_never_makes_an_answer_surer(name: str) -> None:
    values = msgspec.structs.asdict(NO_DOUBT)
    said = [weighed(Features(**{**values, name: part / 10}), ())[0] for part in range(11)]
    assert said == sorted(said, reverse=True)


def test_few_answers_have_a_calibration_error_by_chance() -> None:
    assert error_by_chance([1.0] * 10) == (0.0, 0.0)
    few, many = error_by_chance([0.7] * 20), error_by_chance([0.7] * 2000)
    assert few[0] == pytest.approx(0.08, abs=0.01)  # root of 2 p q / (pi n)
    assert many[0] == pytest.approx(0.008, abs=0.001)
    assert few[0] < few[1]


def test_there_are_few_features_and_each_has_words() -> None:
    assert len(FEATURES) <= 10
    assert set(FEATURES) == set(fit().coefficients) == set(DOUBTS)


def test_a_rule_bounds_what_was_fitted_and_is_told() -> None:
    free, nothing = weighed(NO_DOUBT, ())
    bound, listed = weighed(NO_DOUBT, (Rule("a reason", 0.5), Rule("no bound", 1.0)))
    assert nothing == ()
    assert bound == 0.5 < free
    assert [(doubt.name, doubt.value) for doubt in listed] == [("a reason", 0.5)]
    assert listed[0].by == pytest.approx(free - 0.5, abs=0.011)


def test_the_answer_says_what_lowered_its_confidence() -> None:
    result = analyze(without_rank(simulate(Plan(ranks=4)), 3))
    names = {doubt.name for doubt in result.verdict.doubts}
    assert "ranks that were not recorded may be at fault" in names
    assert {doubt["name"] for doubt in json.loads(to_json(result))["verdict"]["doubts"]} == names
    assert all(DOUBTS.get(name, name) in doubts(result.verdict) for name in names)


def test_of_one_recorded_rank_nothing_is_said_about_clocks() -> None:
    """There is no second one that could agree or not."""
    result = analyze(without_rank(simulate(Plan(ranks=2, transfer_ns=40_000_000)), 1))
    names = {doubt.name for doubt in result.verdict.doubts}
    assert "clock" not in names
    assert any("only one rank was recorded" in name for name in names)
    assert "clocks" not in doubts(result.verdict)
    assert page_of(result).basis.startswith("1 of 2\N{NO-BREAK SPACE}ranks. The confidence is lower")
