"""A rank that stands still in few steps, and is like the others in all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.api import open_run
from diag.diagnoses.culprits import find_culprits
from diag.show.page import page_of
from diag.summaries import open_summaries
from diag.words.formatting import NBSP
from tests.history.planted import Training

S = 10**9
USUAL = np.full(160, 0.2 * S)


def late(*stood: tuple[int, int, float]) -> dict[int, np.ndarray]:
    """By rank, how long the others waited for it: (rank, step, seconds)."""
    waited = {rank: np.zeros(len(USUAL)) for rank in range(4)}
    for rank, step, seconds in stood:
        waited[rank][step] = seconds * S
    return waited


def duration(waited: dict[int, np.ndarray]) -> np.ndarray:
    return USUAL + np.max(list(waited.values()), axis=0)


def test_who_stood_still_in_one_step_is_no_question_of_chance() -> None:
    waited = late((1, 100, 45))
    found = find_culprits(waited, duration(waited), 4)
    assert (found.ranks, found.stood_still, found.steps) == ((1,), (100,), (1, 1))


@pytest.mark.parametrize(
    "stood",
    [
        [(1, 100, 45), (2, 120, 45)],  # another rank each time
        [(1, 100, 45), (2, 100, 30)],  # both
        [(1, 100, 3)],  # as long as a pause of the system
        [(1, 100, 45), *((2, step, 0.4) for step in range(0, 160, 2))],  # and another reason costs as much
    ],
)
def test_it_is_where_steps_do_not_agree_or_are_not_everything(stood: list[tuple[int, int, float]]) -> None:
    waited = late(*stood)
    assert find_culprits(waited, duration(waited), 4).stood_still == ()


def test_the_answer_names_the_rank_and_the_step(tmp_path: Path) -> None:
    Training(tmp_path / "R", ranks=2).train(100).stall(45_000, rank=1).train(60).close(exit_code=0)
    result = open_run(tmp_path / "R")
    assert result.verdict.culprit_ranks == (1,)
    assert "nearly all of it in step 100" in result.verdict.headline
    assert "uncertain" not in result.verdict.headline


SLOW: dict[str, Any] = {"slow": (2,), "slow_ms": 100}


def slow_with_a_stall(folder: Path) -> None:
    """The others wait 60 s for rank 1 once, and 100 ms in every step for rank 2."""
    training = Training(folder, ranks=4).train(100, **SLOW).stall(60_000, rank=1).train(100, **SLOW)
    training.close(exit_code=0)


def with_a_stall(folder: Path) -> None:
    """The others wait 240 s for rank 1, and nothing else costs time."""
    Training(folder, ranks=4).train(100).stall(240_000, rank=1).train(100).close(exit_code=0)


def test_a_stall_is_not_in_the_mean_of_a_rank_that_is_always_slow(tmp_path: Path) -> None:
    slow_with_a_stall(tmp_path / "R")
    result = open_run(tmp_path / "R")
    assert result.verdict.culprit_ranks == (2,)
    assert float(result.attribution.counted.dur_ns.mean()) == pytest.approx(0.3 * S, rel=0.05)
    assert [step.step for step in result.attribution.steps if step.note == "it stalled"] == [100]
    assert page_of(result).since.replace(NBSP, " ") == "Step 100 stalled for 60.2 s: it is not counted."


def test_a_stall_counts_where_nothing_else_costs_time(tmp_path: Path) -> None:
    with_a_stall(tmp_path / "R")
    result = open_run(tmp_path / "R")
    assert result.verdict.culprit_ranks == (1,)
    assert "not counted" not in page_of(result).since


def test_stalls_that_happen_often_count(tmp_path: Path) -> None:
    """What one step in eight does is what the run is like."""
    training = Training(tmp_path / "R", ranks=4)
    for _ in range(8):
        training.train(7, **SLOW).stall(10_000, rank=1)
    training.close(exit_code=0)
    assert "it stalled" not in open_run(tmp_path / "R").attribution.steps.note


def test_a_checkpoint_is_no_stall(tmp_path: Path) -> None:
    Training(tmp_path / "R", ranks=4).train(60, **SLOW).save(30_000).train(60, **SLOW).close(exit_code=0)
    assert "it stalled" not in open_run(tmp_path / "R").attribution.steps.note


def test_a_stall_is_not_in_the_mean_of_summaries_either(tmp_path: Path) -> None:
    slow_with_a_stall(tmp_path / "R")
    result = open_summaries(tmp_path / "R")
    assert result.verdict.culprit_ranks == (2,)
    assert "Step 100 stalled" in page_of(result).since.replace(NBSP, " ")
    with_a_stall(tmp_path / "S")
    assert open_summaries(tmp_path / "S").verdict.culprit_ranks == (1,)
