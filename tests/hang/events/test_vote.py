"""The value that most members share."""

from __future__ import annotations

import pytest

from diag.events.vote import Vote, vote


def test_more_than_half_is_most_and_more_than_any_other_is_clear() -> None:
    assert vote({"a": 3, "b": 1}) == Vote("a", most=True, clear=True)
    assert vote({"a": 1, "b": 2, "c": 1}) == Vote("b", most=False, clear=True)


def test_of_equally_frequent_values_the_first_is_usual_and_none_is_clear() -> None:
    assert vote({"b": 2, "a": 2}) == Vote("b", most=False, clear=False)


def test_members_without_a_value_count_against_a_majority() -> None:
    assert vote({"a": 3, "b": 1}, of=6) == Vote("a", most=False, clear=True)
    assert vote({"a": 4, "b": 1}, of=7).most


def test_without_a_value_nothing_is_usual() -> None:
    with pytest.raises(ValueError, match="empty"):
        vote({})
