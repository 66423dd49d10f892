"""The triage against failures that people posted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hang.real import Judged, cases_of, judge, known_wrong, score

pytestmark = pytest.mark.slow
CASES = list(cases_of())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    folder = tmp_path_factory.mktemp("real")
    return [judge(case, folder / case.id) for case in CASES]


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 120
    assert len({case.thread for case in CASES}) >= 80
    assert len({case.id for case in CASES}) == len(CASES)


def test_each_says_where_it_is_from_and_what_decides() -> None:
    for case in CASES:
        assert case.thread.startswith("https://"), case.id
        assert len(case.decided_by) > 10, case.id
        assert case.logs, case.id


def test_nothing_of_a_culprit_is_invented() -> None:
    """What a case names stands in its logs."""
    for case in CASES:
        logs = "\n".join(text for _, text in case.logs) + " ".join(name for name, _ in case.logs)
        for one in (*case.culprits, *case.innocent):
            for key in ("host", "peer", "nic"):
                assert re.sub(r"<\d+>$", "", str(one.get(key, ""))) in logs, (case.id, one)
        assert all(name in logs for name in case.names), case.id


def test_nineteen_of_twenty_classes_and_culprits_are_right(judged: list[Judged]) -> None:
    found = score(judged)
    wrong = [one.case.id for one in judged if not one.right]
    for what in ("class", "culprit"):
        right, of = found[what]
        assert right >= 0.95 * of, wrong


def test_what_is_wrong_is_listed_with_its_reason(judged: list[Judged]) -> None:
    """Whoever makes an answer right takes it off the list."""
    listed = known_wrong()
    assert {one.case.id for one in judged if not one.right} == set(listed)
    assert min(map(len, listed.values())) > 20


def test_nothing_is_called_healthy_that_is_not(judged: list[Judged]) -> None:
    assert [one.case.id for one in judged if one.called_healthy] == []


def test_no_innocent_one_is_accused(judged: list[Judged]) -> None:
    assert [(one.case.id, one.accused) for one in judged if one.accused] == []


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
