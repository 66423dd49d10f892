"""The page of a run's life: the same changes, incidents and goodput as `diag history`, as a picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.api import find_jobs, list_runs, open_run, shown_first
from diag.app.run_view import view_of
from diag.app.theme import LIGHT
from diag.app.views.history import goodput_figure, life_figure, life_of_view
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.summaries import open_history, open_lives
from tests.app.runs import write_run
from tests.app.shown import shown, text
from tests.history.planted import MS, Training
from tests.many_ranks import Job, write_summaries


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of 200 ms, a stall of 9 s because of rank 2 at step 150, and steps of 260 ms because of rank 3 from 251."""
    folder = tmp_path_factory.mktemp("life") / "run"
    Training(folder).train(150).stall(9000, 2).train(100).train(150, slow=[3], slow_ms=60).close(0)
    return folder


def test_the_page_says_what_the_command_says(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = text(shown("history", run, monkeypatch)).replace("\\", "")
    assert "Goodput" in said
    assert re.search(r"steps \d to 4\d\d in [\d.]+.s · ", said), "the wall time of the goodput is a longer one"
    assert "Since step 251" in said
    assert "because of rank 3 on node1" in said
    assert "stalled for " in said
    assert "the others waited for rank 2 on node1" in said
    assert "Hosts at fault" in said


def test_the_figures_hold_the_objects_of_the_command(run: Path) -> None:
    view = view_of(open_run(run))
    life = life_of_view(view)
    assert life == open_history(run)
    figure = life_figure(life, LIGHT)
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    places = sorted(place for trace in marks for place, _ in trace.customdata)
    assert places == list(range(len(life.incidents))) == [0, 1]
    bands = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert (bands[0].x1 - bands[0].x0).total_seconds() == pytest.approx(9, abs=0.5)
    assert [round(trace.y[0] / 10) * 10 for trace in figure.data if trace.legendgroup == "level"] == [200, 260]
    assert figure.layout.yaxis.range[1] < 400, "the stall does not flatten the steps"
    assert life.goodput is not None
    bars = goodput_figure(life.goodput, LIGHT).data
    assert sum(bar.x[0] for bar in bars) == pytest.approx(100, abs=0.5)


def test_restarts_are_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Training(tmp_path / "run").train(120)
    first.close(1)
    Training(tmp_path / "run" / "restart-1", begin_ns=first.end_ns + 60_000 * MS).train(120).close(0)
    said = text(shown("history", tmp_path / "run", monkeypatch))
    assert "restart" in said.lower()


def test_a_restarted_run_is_opened_at_its_newest_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = Training(run).train(20)
    first.close(1)
    Training(run / "restart-1", begin_ns=first.end_ns + 60_000 * MS).train(20).close(0)
    Training(run / "restart-2", begin_ns=first.end_ns + 600_000 * MS).close(1)
    assert shown_first(list_runs(run)) == run / "restart-1"
    Training(tmp_path / "other").train(20).close(0)
    assert shown_first(list_runs(tmp_path)) == tmp_path / "other"


def test_a_run_of_summaries_alone_has_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_summaries(Job(1100, steps=100), tmp_path / "many").root
    said = text(shown("history", run, monkeypatch))
    assert "1,100 ranks" in said
    assert "Step time" in said


def test_a_short_run_did_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did not change" in text(shown("history", write_run(tmp_path / "run"), monkeypatch))


def test_what_was_kept_in_full_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    Training(run, ranks=2, byte_budget=2_000_000).train(150).stall(9_000, 1).train(3_000).close(0)
    page = shown("history", run, monkeypatch)
    (kept,) = open_history(run).attempts[0].kept
    steps = f"Steps {kept.first} to {kept.last} (2025-11-24 16:00 UTC) are kept in full (a step stalled)."
    assert steps in text(page).replace("\\", "")
    command = f"diag analyze {run} --steps {kept.first}:{kept.last}"
    assert command in [str(block.value) for block in page.code]


def test_runs_of_one_training_in_several_folders_are_one_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Training(tmp_path / "z", ranks=2)
    first.train(60).close(1)
    second = Training(tmp_path / "a", ranks=2, begin_ns=first.end_ns + 30_000 * MS, first_step=50)
    second.train(60).close(0)
    Training(tmp_path / "b", ranks=2, begin_ns=first.end_ns + 400_000 * MS).train(40).close(0)
    update_manifest(RunLayout(tmp_path / "z"), run_id="one")
    update_manifest(RunLayout(tmp_path / "a"), run_id="two", training="one", resumed_step=50)
    update_manifest(RunLayout(tmp_path / "b"), run_id="three")
    runs = [tmp_path / name for name in "abz"]
    lives = {run.name: life_of_view(view_of(open_run(run)), runs) for run in runs}
    assert lives["a"] == lives["z"] == open_lives(find_jobs([tmp_path]))[1][1]
    assert [Path(attempt.path).name for attempt in lives["a"].attempts] == ["z", "a"]
    assert lives["b"] == open_history(tmp_path / "b")
    assert life_of_view(view_of(open_run(tmp_path / "a")), runs[:1]) == open_history(tmp_path / "a")
    said = text(shown("history", tmp_path / "a", monkeypatch, runs=runs))
    assert "Restart 1" in said
    assert "10 steps trained again" in said
    assert [name for name in "abz" if f"{name} · 2 ranks" in said] == ["a", "z"]


def test_one_step_has_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("history", write_run(tmp_path / "run", steps=1), monkeypatch)
    assert "One step was recorded, step 0: 66.0 ms. A history needs more than one." in text(test).replace("\\", "")
    assert "did not change" not in text(test)
    assert [chart.key for chart in test.get("plotly_chart")] == ["goodput"], "no point of a curve"
