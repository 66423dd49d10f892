"""Whom a delay belongs to: by how often a rank is the last one, and by how evenly it is."""

from __future__ import annotations

import numpy as np
import pytest

from diag.diagnoses.culprits import find_culprits

STEP = 100.0


def named(*late: tuple[float, ...], ranks: int = 2) -> tuple[int, ...]:
    """``late``: of each rank, step by step, in hundredths of a step."""
    by_rank = {rank: np.array(own) for rank, own in enumerate(late)}
    return find_culprits(by_rank, np.full(len(late[0]), STEP), ranks).ranks


def test_one_of_two_ranks_in_the_few_steps_of_a_profiler_window() -> None:
    """Counting cannot name one: always the same of two in four steps is one chance in sixteen."""
    assert named((16.0, 15.9, 16.1, 16.0), (0.0, 0.0, 0.0, 0.0)) == (0,)
    assert named((0.0, 0.0, 0.0), (8.0, 8.1, 8.0)) == (1,)


@pytest.mark.parametrize(
    "late",
    [
        ((16.0, 0.0, 16.0, 0.0), (0.0, 16.0, 0.0, 16.0)),  # in turn
        ((30.0, 6.0, 14.0, 8.0), (0.0, 0.0, 0.0, 0.0)),  # always the same one, as far as four steps tell
        ((16.0, 16.0), (0.0, 0.0)),  # even, and twice
        ((4.0, 4.0, 4.1, 4.0), (0.0, 0.0, 0.0, 0.0)),  # not worth a mention
    ],
)
def test_nobody_is_named_for_what_chance_explains(late: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    assert named(*late) == ()


def test_ranks_that_are_late_together() -> None:
    even = (20.0, 20.1, 19.9, 20.0)
    assert set(named(even, tuple(x + 0.5 for x in even), (0.0,) * 4, (0.0,) * 4, ranks=4)) == {0, 1}
    assert named(even, even, even, (0.0,) * 4, ranks=4) == (), "three of four: it is the fourth that is fast"


@pytest.mark.parametrize(
    ("often", "expected"),
    [
        ((5, 0), "always"),
        ((8, 1), "always"),
        ((4, 0), "open"),  # one chance in sixteen
        ((6, 1), "open"),
        ((5, 2), "open"),
        ((2, 1), "open"),
        ((1, 1), "open"),  # either of them may have been late by chance, but once
        ((0, 0), "open"),
        ((3, 3), "moves"),
        ((5, 3), "moves"),
        ((1, 1, 1), "moves"),  # two of three steps are others'
        ((0, 1, 1, 1), "moves"),
        ((3, 3, 3, 3), "moves"),
    ],
)
def test_always_the_same_one_now_this_now_that_or_open(often: tuple[int, ...], expected: str) -> None:
    """``often``: in how many steps each rank is late; by unequal amounts, so that only counting tells."""
    steps = max(1, sum(often))
    amounts = [20.0 + 17 * step % 30 for step in range(steps)]
    who = [rank for rank, count in enumerate(often) for _ in range(count)]
    late = {rank: np.array([amounts[i] * (own == rank) for i, own in enumerate(who)] or [1.0]) for rank in range(4)}
    found = find_culprits(dict(list(late.items())[: len(often)]), np.full(steps, STEP), len(often))
    assert ("always" if found.ranks else "moves" if found.moves else "open") == expected
    assert found.ranks == ((0,) if expected == "always" else ())
    assert found.steps == (max(often), sum(often))


def test_ranks_that_are_late_together_do_not_move() -> None:
    late = {0: np.array([30.0, 14.0]), 1: np.array([29.0, 15.0]), 2: np.zeros(2), 3: np.zeros(2)}
    found = find_culprits(late, np.full(2, STEP), 4)
    assert (found.ranks, set(found.suspects), found.moves) == ((), {0, 1}, False)


def test_two_ranks_that_are_late_in_the_same_steps() -> None:
    """One in the forward and one in the backward: the others wait for both."""
    found = find_culprits({0: np.full(6, 20.0), 1: np.full(6, 15.0)}, np.full(6, STEP), 2)
    assert (found.ranks, found.moves) == ((), True)


@pytest.mark.parametrize(
    ("late", "moves"),
    [
        (((16.0, 0.0, 16.1, 0.0), (0.0, 16.0, 0.0, 15.9)), True),
        (((16.0, 0.0, 16.1), (0.0, 16.0, 0.0)), True),
        (((16.0, 0.0, 30.0, 0.0), (0.0, 24.0, 0.0, 8.0)), False),  # by as much as it happens
        (((16.0, 0.0), (0.0, 16.0)), False),
        (((16.0, 16.0, 16.1), (0.0, 0.0, 0.0)), False),
        (((16.0, 16.0, 0.0, 16.1), (0.0, 0.0, 16.0, 0.0)), True),  # most often the same one, but not always
        (((16.0, 16.0, 0.0, 16.1), (0.0, 0.0, 9.0, 0.0)), False),  # then the other one may be late by chance
    ],
)
def test_one_delay_that_moves_on_in_the_few_steps_of_a_profiler_window(
    late: tuple[tuple[float, ...], ...], moves: bool
) -> None:
    found = find_culprits({rank: np.array(own) for rank, own in enumerate(late)}, np.full(len(late[0]), STEP), 2)
    assert found.moves == moves


def crowd(of_one: tuple[float, ...], rest: float, ranks: int) -> dict[int, np.ndarray]:
    return {0: np.array(of_one), **{rank: np.full(len(of_one), rest) for rank in range(1, ranks)}}


def test_a_rank_that_is_hardly_later_than_a_typical_one_is_not_named_with_the_late_one() -> None:
    late = {**crowd((30.0,) * 12, 12.0, 8), 1: np.full(12, 15.5)}
    assert find_culprits(late, np.full(12, STEP), 8).ranks == (0,)


def test_a_rank_that_is_late_in_every_fourth_step_is_named_where_all_are_late_by_chance() -> None:
    late = crowd((6.0, 6.0, 6.0, 90.0) * 8, 6.0, 3)
    assert find_culprits(late, np.full(32, STEP), 3).ranks == (0,)
