"""The runs of a folder: what is in the table, what a search leaves, and the curves of those that are chosen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from diag.api import open_run, state_of
from diag.app.address import opened
from diag.app.cockpit import cockpit_of
from diag.app.curves import (
    LOSS,
    MEMORY,
    STEP_TIME,
    TOKENS,
    curve_figure,
    curves_of_result,
    known,
    places_of,
    throughput,
)
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.theme import LIGHT
from diag.app.views import runs
from diag.app.views.runs import Outline, RunRow, curves_for, outline_of, row_of, runs_table
from diag.live import curves_of
from diag.show.page import numbers_of
from tests.app.runs import TOKENS as TOKENS_OF_A_STEP
from tests.app.runs import write_run, write_stalled_trace
from tests.app.shown import text
from tests.app.test_live import unended
from tests.app.test_outcome import run_that
from tests.patience import PATIENCE_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    write_run(root / "healthy", ranks=3)
    write_run(root / "slow", slow_data_ms={1: 40})
    return root


def outlined(run: Path) -> Outline:
    """The outline, when its analysis is there."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := outline_of(state_of(run))) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def _list_of_runs() -> None:
    import sys
    from pathlib import Path

    import streamlit as st

    from diag.app.views import runs

    def compare(before: str, after: str) -> None:
        st.success(f"{after} against {before}")

    runs.show(Path(sys.argv[1]), st.success, compare)


def runs_page(folder: Path, monkeypatch: pytest.MonkeyPatch, **params: str) -> AppTest:
    monkeypatch.setattr("sys.argv", ["main.py", str(folder)])
    test = AppTest.from_function(_list_of_runs, default_timeout=PATIENCE_S)
    for name, value in params.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def rows_of(test: AppTest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = test.dataframe[0].value.to_dict("records")
    return rows


def cells_of(row: RunRow) -> dict[str, Any]:
    table = runs_table([row]).plain()
    return dict(zip(table.headings, table.rows[0], strict=True))


def test_a_row_has_the_numbers_of_the_analysis(folder: Path) -> None:
    state, result = state_of(folder / "slow"), open_run(folder / "slow")
    cells = cells_of(row_of(state, result))
    assert cells["class"] == "data-bound, critical"
    assert result.cause is not None
    assert (cells["culprit"], cells["cause"]) == ("rank 1", result.cause.title)
    assert (cells["step time ms"], cells["last 20 steps ms"]) == (pytest.approx(105e6), None)
    assert cells["tokens/s"] == round(numbers_of(result)["Tokens per second"] or 0)
    assert cells["MFU"] is None
    assert (cells["ranks"], cells["strategy"], cells["last step"]) == ("2 of 2", "ddp", 11)
    assert cells["verdict"] == result.verdict.headline


def test_before_it_is_analysed_a_row_has_what_the_files_say(folder: Path) -> None:
    cells = cells_of(row_of(state_of(unended(folder / "slow"))))
    assert (cells["state"], cells["class"], cells["culprit"], cells["verdict"]) == (
        "training", None, None, "not analysed yet",
    )  # fmt: skip
    assert (cells["step time ms"], cells["last 20 steps ms"]) == (None, pytest.approx(105e6))


def test_a_run_that_a_page_has_opened_is_known_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is too large to be analysed for the list alone."""
    monkeypatch.setitem(vars(DASHBOARD), "most_analysed_run_bytes", 1000)
    monkeypatch.setattr("diag.app.views.runs.threading.Thread", None)  # nothing is left to analyse in the background
    states = [state_of(folder / name) for name in ("healthy", "slow")]
    for state in states:
        opened(state.path, state)
    for state in states:
        outline = outline_of(state)
        assert outline is not None
        assert outline.row.headline == open_run(state.path).verdict.headline


def test_the_runs_are_analysed_beside_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("healthy", "slow"):
        outlined(folder / name)
    rows = {row["Run"]: row for row in rows_of(runs_page(folder, monkeypatch))}
    assert rows["slow"]["Class"] == "data-bound, critical"
    assert rows["healthy"]["Class"].endswith("healthy")
    assert "MFU" not in rows["slow"]  # a column in which nothing is known


def test_a_large_run_is_not_analysed_for_the_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(DASHBOARD), "most_analysed_run_bytes", 1000)
    outlined(folder / "slow")
    outlined(folder / "healthy")
    test = runs_page(folder, monkeypatch)
    assert plain("slow: more than 0 MiB of records; open it to analyse it") in text(test)
    state, why = state_of(folder / "slow"), "more than 0 MiB of records; open it to analyse it"
    assert runs._line(state, row_of(state)).cause == why, "not that it is yet to come"
    assert not any("Class" in row for row in rows_of(test))


def test_a_search_holds_all_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("healthy", "slow"):
        outlined(folder / name)
    test = runs_page(folder, monkeypatch, search="Rank 1 DATA-bound")
    assert [row["Run"] for row in rows_of(test)] == ["slow"]
    assert "1 of 2 runs" in text(test)
    test.text_input(key="search").set_value("nothing like it").run()
    assert not test.dataframe
    assert "No run matches all search words." in text(test)


def test_the_caption_of_the_curves_agrees_in_number(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("healthy", "slow"):
        outlined(folder / name)
    assert "Curves of the first 2 runs, first rank of each run." in text(runs_page(folder, monkeypatch))
    test = runs_page(folder, monkeypatch, search="slow")
    assert "Curves of 1 run, first rank of each run." in text(test)


def test_runs_that_train_are_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(folder / "zuletzt")
    unended(folder / "healthy")
    assert rows_of(runs_page(folder, monkeypatch))[0]["Run"] == "healthy"


def test_of_more_runs_than_looks_no_two_that_are_drawn_look_alike() -> None:
    known_places = {f"run {at:02}": at for at in range(30)}
    before = places_of(["run 00", "run 05"], known_places, 12)
    assert before == [0, 5]
    drawn = [f"run {at:02}" for at in (0, 12, 5, 24, 17)]
    places = places_of(drawn, known_places, 12)
    assert len(set(places)) == len(drawn)
    assert [places[0], places[2]] == before
    assert places_of(drawn[:2], known_places, 12) == places[:2]


def test_curves_of_several_runs_are_in_one_figure(folder: Path) -> None:
    runs = [(name, curves) for name in ("healthy", "slow") if (curves := curves_of(folder / name)) is not None]
    curves = [one for _, one in runs]
    quantities = known(curves, (STEP_TIME, throughput(curves), LOSS, MEMORY))
    assert quantities == [STEP_TIME, TOKENS, MEMORY]
    figure = curve_figure(runs, quantities, LIGHT, 560)
    assert [trace.name for trace in figure.data if trace.showlegend] == ["healthy", "slow"]
    drawn = {(trace.name, trace.yaxis): np.asarray(trace.y) for trace in figure.data}
    assert drawn["slow", "y"] == pytest.approx(np.full(12, 105.0))
    assert drawn["healthy", "y2"] == pytest.approx(np.full(12, TOKENS_OF_A_STEP / 0.066))
    assert drawn["slow", "y3"] == pytest.approx(np.full(12, 0.4))


def test_a_long_run_is_drawn_with_few_points_and_a_slow_start_is_cut_off(tmp_path: Path) -> None:
    curves = curves_of(write_run(tmp_path / "run", steps=900))
    assert curves is not None
    curves.dur_ns[0] = 60e9
    figure = curve_figure([("run", curves)], [STEP_TIME], LIGHT, 200)
    assert len(figure.data[0].y) == 300
    assert figure.layout.yaxis.range[1] == pytest.approx(66 * 1.15)


def test_traces_have_curves_too(tmp_path: Path) -> None:
    traces = write_stalled_trace(tmp_path / "traces")
    assert curves_of(traces) is None
    outlined(traces)
    found, expected = curves_for(state_of(traces)), curves_of_result(open_run(traces))
    assert found is not None
    assert found.dur_ns.tolist() == expected.dur_ns.tolist() == [10_000_000.0] * len(expected)
    assert known([found], (STEP_TIME, throughput([found]), LOSS, MEMORY)) == [STEP_TIME, throughput([found])]


def test_a_run_that_failed_says_how_before_what_bound_its_steps(tmp_path: Path) -> None:
    run = run_that(tmp_path)
    outlined(run)
    state = state_of(run)
    line = runs._line(state, row_of(state))
    assert "ValueError: loss of tenant-7 is NaN" in line.state_words
    row = cockpit_of([line], None, LIGHT, {})["rows"][0]
    assert row["broken"]
    assert "ValueError" in row["live"]
