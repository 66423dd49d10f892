"""Readers of a run whose oldest records were removed at the byte budget."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import diag
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Heartbeat
from diag.rundir.curves import curves_of, sums_before
from diag.show.page import page_of
from tests.long_run import LongRun, S

STEPS = 3_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "R"
    for rank in (0, 1):
        of_rank = LongRun(folder, byte_budget=500_000, calls=4, rank=rank)
        of_rank.train(STEPS)
        of_rank.close()
        beat = Heartbeat(0, 10**15, STEPS - 1, "done", done=True, steps=STEPS)
        replace_file(RunLayout(folder).rank(rank).heartbeat, encode(beat))
    return folder


def test_the_answer_says_on_which_steps_it_rests(run: Path) -> None:
    result = diag.open_run(run)
    left = result.tables.retained
    assert left is not None
    assert (left.last, left.sums_from, left.steps) == (STEPS - 1, 0, STEPS)
    assert 0 < (left.phases_from or 0) < left.first
    notes = [note for note in result.coverage.notes if "byte budget" in note]
    assert len(notes) == 1
    assert f"steps {left.first:,} to 2,999 are there in full" in notes[0]
    assert any("of 3,000" in fact.replace("\xa0", " ") for fact in page_of(result).verdict.facts)


def test_removed_steps_are_no_gap(run: Path) -> None:
    assert diag.open_run(run).coverage.skipped == ()


def test_each_step_that_counts_has_its_collectives(run: Path) -> None:
    result = diag.open_run(run)
    for of_rank in result.tables.ranks.values():
        with_calls = set(of_rank.rows.step.tolist())
        assert with_calls == of_rank.recorded
    assert all(step.step >= result.tables.retained.first for step in result.attribution.steps)


def test_the_curves_cover_the_whole_run(run: Path) -> None:
    curves = curves_of(run)
    assert curves is not None
    assert (curves.steps[0], curves.steps[-1]) == (49, STEPS - 1)
    assert (np.diff(curves.steps) > 0).all()
    assert np.diff(curves.steps).max() == 50
    assert curves.dur_ns == pytest.approx(S, rel=1e-3)
    assert curves.period_ns == pytest.approx(S, rel=1e-3)
    assert curves.loss[0] > curves.loss[-1]


@pytest.mark.slow
def test_each_step_is_in_one_value_of_the_curves_whatever_is_left(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=60_000, calls=0)
    run.train(24_000)
    run.close()
    files = RunLayout(tmp_path).rank(0)
    lines = sums_before(files, 24_000)
    assert {line.count for line in lines} >= {20_000, 1_000, 50}
    assert (lines[0].first, lines[-1].last) == (0, 23_999)
    assert [line.columns["step"] for line in lines] == pytest.approx([line.count * 1e6 for line in lines])
    assert all(after.first == before.last + 1 for before, after in pairwise(lines))
