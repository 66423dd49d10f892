"""Readers of a run whose oldest records were removed at the byte budget."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import diag
from diag.api import describe_run
from diag.by_size import open_by_size
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import STALLED, VERDICT, Heartbeat
from diag.rundir.curves import curves_of, sums_before
from diag.show.page import page_of
from diag.watch.keeping import ask_to_keep
from diag.words.wording import divided_into
from tests.command import diag as diag_command
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
    head = " ".join(diag_command("analyze", run).stdout.split(" · " + run.name)[0].split())
    assert f"3,000 steps, {len(result.attribution.steps)} in full" in head
    asked = divided_into(describe_run(diag.open_run(run, steps=f"{left.last - 9}:{left.last}")))
    assert asked == f"only steps {left.last - 9:,} to {left.last:,}"


def test_a_run_without_an_end_stopped_after_all_its_steps(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "R")
    for rank in (0, 1):
        RunLayout(copy).rank(rank).heartbeat.unlink()
    for path in copy.rglob("*"):
        os.utime(path, (3_600, 3_600))  # nothing was written for years: it does not train any more
    outcome = diag.open_run(copy).outcome
    assert outcome is not None
    assert outcome.ended == "The training stopped after 3,000 steps without recording its end"


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


def test_each_step_is_in_one_value_of_the_curves_whatever_is_left(tmp_path: Path) -> None:
    run = LongRun(tmp_path, byte_budget=80_000, calls=0)
    run.train(24_000)
    run.close()
    files = RunLayout(tmp_path).rank(0)
    lines = sums_before(files, 24_000)
    counts = {line.count for line in lines}
    assert counts > {1_000, 50}
    assert max(counts) > 10_000
    assert (lines[0].first, lines[-1].last) == (0, 23_999)
    assert [line.columns["step"] for line in lines] == pytest.approx([line.count * 1e6 for line in lines])
    assert all(after.first == before.last + 1 for before, after in pairwise(lines))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 stalls at step 400, long before the steps that are left in full."""
    folder = tmp_path_factory.mktemp("stalled") / "R"
    ranks = [LongRun(folder, byte_budget=6_000_000, calls=4, rank=rank, world=3) for rank in range(3)]
    for rank, of_rank in enumerate(ranks):
        of_rank.train(400)
        of_rank.train(1, longer_ns=30 * S, waited_ns=0 if rank == 1 else 30 * S)
        of_rank.train(60)
        if rank == 0:
            ask_to_keep(RunLayout(folder), 360, 440, VERDICT)
        of_rank.train(1_440)
        of_rank.close()
        replace_file(RunLayout(folder).rank(rank).heartbeat, encode(Heartbeat(0, 10**15, 1_900, "done", done=True)))
    return folder


def test_the_answer_says_of_which_incidents_the_detail_is_kept(stalled: Path) -> None:
    result = diag.open_run(stalled)
    kept = [(span.first, span.last, span.why) for span in result.tables.retained.kept]
    assert kept == [(360, 440, VERDICT), (380, 420, STALLED)]
    begins = [span.begin_ns for span in result.tables.retained.kept]
    assert None not in begins
    assert begins == sorted(begins)
    note = next(note for note in result.coverage.notes if "byte budget" in note)
    assert "380 to 420 (a step stalled)" in note
    assert "(--steps 380:420 analyses the last of these)" in note


def test_steps_around_an_incident_are_analysed_in_full(stalled: Path) -> None:
    result = open_by_size(stalled, steps="370:430")
    assert [step.step for step in result.attribution.steps] == list(range(370, 431))
    assert all(len(rank.rows) == 61 * 4 for rank in result.tables.ranks.values())
    assert result.verdict == diag.open_run(stalled, steps="370:430").verdict


def test_of_steps_between_incidents_what_is_left_is_analysed(stalled: Path) -> None:
    assert not any(len(rank.rows) for rank in open_by_size(stalled, steps="300:330").tables.ranks.values())


def test_a_rank_that_kept_nothing_is_said(stalled: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stalled, tmp_path / "R")
    RunLayout(folder).rank(2).kept.unlink()
    result = open_by_size(folder, steps="385:415")
    assert set(result.attribution.ranks) == {0, 1}
    assert "rank 2: the full records of steps 385 to 415 are not kept" in {
        gap.reason for gap in result.coverage.skipped
    }


def test_damaged_lines_of_kept_steps_are_gaps(stalled: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stalled, tmp_path / "R")
    for rank in range(3):
        with RunLayout(folder).rank(rank).kept.open("ab") as file:
            file.write(b'{"first": "x"}\n{"first":1,"last":9,"why":"stalled","steps":7}\n{"first"')
    kept = [(span.first, span.last, span.why) for span in diag.open_run(folder).tables.retained.kept]
    assert (380, 420, STALLED) in kept
    reasons = [gap.reason for gap in open_by_size(folder, steps="385:415").coverage.skipped]
    assert any("invalid collector records on 2 of 4 lines" in reason for reason in reasons)
