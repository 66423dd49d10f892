"""The triage against failures that people posted."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from diag.ended.model import HEALTHY
from diag.hang import reason
from diag.hang.classes import PATTERNS
from tests.hang.real import HERE, Case, Judged, cases_of, judge, known_wrong, score
from tests.hang.real.first_runs import first_runs, is_blind
from tests.hang.real.support import Support, independent, lost_without, name_of, names_its_source, recorded
from tests.hang.real.words import verdicts

SUPPORT = Support()  # filled while the cases are judged


@cache
def every_case() -> list[Case]:
    """Not while the tests are collected, which every worker does."""
    return list(cases_of())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    folder = tmp_path_factory.mktemp("real")
    found = []
    for case in every_case():
        with recorded(SUPPORT, case):
            found.append(judge(case, folder / case.id))
    return found


def test_there_are_enough_of_them() -> None:
    assert len(every_case()) >= 120
    assert len({case.thread for case in every_case()}) >= 80
    assert len({case.id for case in every_case()}) == len(every_case())


def test_each_says_where_it_is_from_and_what_decides() -> None:
    for case in every_case():
        assert case.thread.startswith("https://"), case.id
        assert len(case.decided_by) > 10, case.id
        assert case.logs, case.id


def test_nothing_of_a_culprit_is_invented() -> None:
    """What a case names stands in its logs."""
    for case in every_case():
        logs = "\n".join(text for _, text in case.logs) + " ".join(name for name, _ in case.logs)
        unwrapped = logs.replace("\n", "")  # a pasted address may go on in the next line
        for one in (*case.culprits, *case.innocent):
            for key in ("host", "peer", "nic"):
                assert re.sub(r"<\d+>$", "", str(one.get(key, ""))) in logs + unwrapped, (case.id, one)
        assert all(name in logs for name in case.names), case.id


def test_nineteen_of_twenty_classes_and_culprits_are_right(judged: list[Judged]) -> None:
    """Of the cases that are not healthy: of those that are, most end in steps as a log of a hang does, and are left
    open."""
    found = score([one for one in judged if one.case.fault_class != HEALTHY])
    wrong = [one.case.id for one in judged if not one.right]
    for what in ("class", "culprit"):
        right, of = found[what]
        assert right >= 0.95 * of, wrong
    right, of = score(judged)["class"]
    assert right >= 0.94 * of, wrong


def test_what_is_wrong_is_listed_with_its_reason(judged: list[Judged]) -> None:
    """Whoever makes an answer right takes it off the list."""
    listed = known_wrong()
    assert {one.case.id for one in judged if not one.right} == set(listed)
    assert min(map(len, listed.values())) > 20


def test_nothing_is_called_healthy_that_is_not(judged: list[Judged]) -> None:
    assert [one.case.id for one in judged if one.called_healthy] == []


def test_no_innocent_one_is_accused(judged: list[Judged]) -> None:
    assert [(one.case.id, one.accused) for one in judged if one.accused] == []


@pytest.mark.matrix
def test_words_that_programs_share_are_right_without_any_pattern() -> None:
    """So much is left of a log whose program nobody knows."""
    said = verdicts(every_case())
    assert len(said) >= len(every_case()) // 4
    assert sum(one.right_class for one in said) >= 0.88 * len(said)


def test_few_wrong_answers_look_sure(judged: list[Judged]) -> None:
    wrong = [one for one in judged if not one.right and one.answer.confidence >= 0.8]
    assert len(wrong) <= 0.02 * len(judged), [one.case.id for one in wrong]


def test_what_is_said_is_a_sentence(judged: list[Judged]) -> None:
    """No blank that nobody filled, and nothing said twice."""
    for one in judged:
        steps = [re.sub(r"`[^`]*`", "CODE", step) for step in one.answer.next_steps]
        for text in steps:
            assert not re.search(r"\{\w+\}|  | [,.;:](?:\s|$)|\bon host\b$", text), (one.case.id, text)
        assert not re.search(r"\{\w+\}", one.answer.headline), (one.case.id, one.answer.headline)
        assert not re.search(r"\b(.{12,}?)\. \1\.", one.answer.headline), (one.case.id, one.answer.headline)
        assert len(set(one.answer.next_steps)) == len(one.answer.next_steps), one.case.id


def test_a_folder_without_cases_has_none(tmp_path: Path) -> None:
    assert list(cases_of(tmp_path)) == []


def test_each_blind_set_has_the_figures_of_its_first_run() -> None:
    """A set whose first run nobody wrote down proves nothing later."""
    runs = first_runs()
    for run in runs:
        of_set = [case for case in every_case() if run.holds(case)]
        assert len(of_set) == run.threads, run.name
        assert run.right_class[1] == run.threads, run.name
    assert all(any(run.holds(case) for run in runs) for case in every_case() if is_blind(case))


def test_no_blind_set_falls_below_its_first_run(judged: list[Judged]) -> None:
    for run in first_runs():
        now = score([one for one in judged if run.holds(one.case)])
        assert now["class"][0] >= run.right_class[0], run.name
        assert now["culprit"][0] >= run.culprit[0], run.name
        assert now["innocent accused"][0] <= run.accused, run.name
        assert now["called healthy and is not"][0] <= run.called_healthy, run.name


def test_a_pattern_names_its_source_or_two_independent_cases(judged: list[Judged]) -> None:
    """A wording that one thread shows and no source confirms may be that thread's alone."""
    by_id = {one.case.id: one.case for one in judged}
    weak = [
        name
        for _, name, pattern in PATTERNS
        if not names_its_source(pattern) and independent([by_id[case] for case in SUPPORT.patterns[name]]) < 2
    ]
    assert weak == []


def _floors() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = tomllib.loads((HERE / "figures" / "support.toml").read_text())
    return found


def test_each_rule_has_the_cases_that_it_had(judged: list[Judged]) -> None:
    assert judged
    supports, none = _floors()["supports"], _floors()["none"]
    assert {name_of(rule) for rule in reason.RULES} == set(supports) | set(none)
    assert {name: len(SUPPORT.rules[name]) for name in none} == dict.fromkeys(none, 0)
    for rule, least in supports.items():
        assert 0 < least <= len(SUPPORT.rules[rule]), rule


@pytest.mark.matrix
def test_each_rule_is_needed_by_as_many_cases_as_before() -> None:
    """Leave one rule out: a rule that fewer cases need has been copied somewhere, or is on its way to needing none."""
    lost = lost_without(every_case())
    for rule, least in _floors()["needed"].items():
        assert len(lost[rule]) >= least, (rule, lost[rule])
