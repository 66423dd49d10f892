"""Whom a delay belongs to: by how often a rank is the last one, and by how evenly it is."""

from __future__ import annotations

import numpy as np
import pytest

from diag.findings.culprits import find_culprits

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
