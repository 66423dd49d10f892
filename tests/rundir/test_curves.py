"""Curves of a run, read as it is written, and how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from diag.account.policy import STEPS
from diag.api import open_run, state_of
from diag.by_size import open_newest
from diag.collectors.layout import RunLayout
from diag.rundir.curves import curves_of, progress_of
from diag.rundir.policy import RUN_READING
from diag.serve.server import SAMPLES
from tests.app.runs import MS, TOKENS, write_run

STEP_MS = 66


def lines_of(run: Path) -> list[str]:
    return RunLayout(run).rank(0).steps.read_text().splitlines(keepends=True)


def write(run: Path, lines: list[str]) -> None:
    with RunLayout(run).rank(0).steps.open("a") as file:
        file.writelines(lines)


def emptied(run: Path) -> list[str]:
    """The lines of rank 0's steps, which are taken out."""
    lines = lines_of(run)
    RunLayout(run).rank(0).steps.write_text("")
    return lines


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    lines = emptied(run)
    assert curves_of(run) is None
    write(run, lines[:5])
    found = curves_of(run)
    assert found is not None
    assert found.steps.tolist() == [0, 1, 2, 3, 4]
    assert found.dur_ns.tolist() == [STEP_MS * MS] * 5
    assert found.tokens.tolist() == [TOKENS] * 5
    assert np.isnan(found.loss).all()
    write(run, [*lines[5:9], lines[9][:20]])  # the last one is being written
    again = curves_of(run)
    assert again is not None
    assert again.steps.tolist() == list(range(9))
    assert len(found) == 5  # what was handed out stays as it was


def test_a_file_that_begins_anew_is_another_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    assert curves_of(run) is not None
    lines = emptied(run)
    write(run, lines[:3])
    found = curves_of(run)
    assert found is not None
    assert found.steps.tolist() == [0, 1, 2]


def test_of_a_long_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=12)
    monkeypatch.setitem(vars(RUN_READING), "most_curve_bytes", sum(map(len, lines_of(run)[-4:])) + 10)
    found = curves_of(run)
    assert found is not None
    assert found.steps.tolist() == [8, 9, 10, 11]


def test_losses_and_what_no_collector_writes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=6)
    lines = [json.loads(line) for line in emptied(run)]
    lines[1]["loss"], lines[2]["loss"] = 2.5, -1.0
    lines[3]["end_ns"] = 10**30
    lines[4]["step"] = "four"
    lines[5]["end_ns"] = lines[5]["begin_ns"]
    write(run, [json.dumps(line) + "\n" for line in lines])
    found = curves_of(run)
    assert found is not None
    assert found.steps.tolist() == [0, 1, 2]
    assert found.loss.tolist()[1:] == [2.5, -1.0]


def test_the_time_that_is_left_counts_what_lies_between_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    lines = [json.loads(line) for line in emptied(run)]
    for line in lines:  # 34 ms between two steps
        at = line["step"] * 100 * MS
        line["begin_ns"], line["end_ns"] = at, at + STEP_MS * MS
    write(run, [json.dumps(line) + "\n" for line in lines])
    found = curves_of(run)
    assert found is not None
    progress = progress_of(found, 112)
    assert (progress.done, progress.planned) == (12, 112)
    assert progress.left_ns == pytest.approx(100 * 100 * MS)
    assert progress.steps_per_s == pytest.approx(10)
    assert progress.tokens_per_s == pytest.approx(10 * TOKENS)
    assert progress_of(found, None).left_ns is None


def test_a_stall_does_not_make_the_time_that_is_left_longer(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    lines = [json.loads(line) for line in emptied(run)]
    for line in lines:
        at = line["step"] * 100 * MS + (240_000 * MS if line["step"] > 8 else 0)
        line["begin_ns"], line["end_ns"] = at, at + STEP_MS * MS
    write(run, [json.dumps(line) + "\n" for line in lines])
    found = curves_of(run)
    assert found is not None
    assert progress_of(found, 112).left_ns == pytest.approx(100 * 100 * MS)


@pytest.mark.parametrize(("steps", "planned"), [(400, 400), (None, None), ("400", None), (-1, None), (True, None)])
def test_how_many_steps_are_planned(tmp_path: Path, steps: object, planned: int | None) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    layout.manifest.write_text(json.dumps({**json.loads(layout.manifest.read_text()), "trainer": {"steps": steps}}))
    assert state_of(layout.root).planned_steps == planned


def test_while_a_run_trains_its_newest_steps_are_analysed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=60, slow_data_ms={1: 40})
    with RunLayout(run).rank(1).steps.open("r+") as file:  # writes its newest steps later
        lines = file.readlines()
        file.seek(0)
        file.truncate()
        file.writelines(lines[:55])
    result = open_newest(run, 20)
    analysed = [step.step for step in result.attribution.steps]
    assert analysed == [*range(STEPS.warm_up_steps), *range(35, 55)]
    assert len(result.attribution.usable) == 20
    assert "the newest 20 of 55 steps are analysed" in result.coverage.notes[0]
    whole = open_run(run)
    assert result.verdict.culprit_ranks == whole.verdict.culprit_ranks == (1,)
    assert result.verdict.cause == whole.verdict.cause
    assert open_newest(run, 100).coverage.notes == whole.coverage.notes


def test_what_a_profiler_told_stays_when_its_steps_are_not_among_the_newest() -> None:
    run, newest = SAMPLES / "ddp-straggler-rank0", 5
    whole, result = open_run(run), open_newest(run, newest)
    assert set(whole.attribution.traced.numbers) == {15}
    assert [step.step for step in result.attribution.steps] == [*range(STEPS.warm_up_steps), 15, *range(19, 24)]
    assert len(result.attribution.usable) == newest  # the profiled step makes no mean longer
    assert "what a profiler recorded in step 15" in result.coverage.notes[0]
    assert result.verdict.headline.startswith("Straggler")
    assert result.cause is not None
    assert whole.cause is not None
    assert result.cause.action == whole.cause.action
