"""Traces of several jobs in one folder are runs on the dashboard: listed, opened, compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import open_run, state_of
from diag.app.address import bytes_of, name_of, opened, runs_of
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.views.runs import row_for
from tests.app.shown import shown, text
from tests.app.test_pages import page, said
from tests.app.test_runs_page import outlined
from tests.patience import PATIENCE_S
from tests.traces.test_jobs import HOUR, put_job


@pytest.fixture
def two(tmp_path: Path) -> Path:
    put_job(tmp_path / "traces", "fast_rank{}.json")
    put_job(tmp_path / "traces", "slow_rank{}.json", pid=900, at_ns=HOUR, slow_ms=10)
    (tmp_path / "traces" / "notes.json").write_text('{"epochs": 3}')
    return tmp_path / "traces"


def _list() -> None:
    import sys
    from pathlib import Path

    import streamlit as st

    from diag.app.views import runs

    def compare(before: str, after: str) -> None:
        st.success(f"{after} against {before}")

    runs.show(Path(sys.argv[1]), st.success, compare)


def test_each_job_is_a_run_that_can_be_chosen(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page(two, monkeypatch).title[0].value == "Runs"
    test = page(two, monkeypatch, run="fast")
    assert test.selectbox(key="run").options == ["fast", "slow"]
    assert test.selectbox(key="run").value == "fast"
    slow = page(two, monkeypatch, run="slow", baseline="fast")
    assert plain(open_run(f"{two}::slow").verdict.headline) in said(slow)
    assert "2 runs in" in said(slow)


def test_the_list_holds_the_answer_of_each_and_the_files_of_none(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main.py", str(two)])
    (two / "tune.json").write_text('{"rounds": []}')  # of `diag tune`
    for run in runs_of(two)[0]:
        assert outlined(run).why == ""
    test = AppTest.from_function(_list, default_timeout=PATIENCE_S).run()
    assert not test.exception
    rows = test.dataframe[0].value
    assert list(rows["Run"]) == ["slow", "fast"]  # the one that was recorded last first
    assert set(rows["Ranks"]) == {"2 of 2"}
    results = {name: open_run(f"{two}::{name}") for name in ("fast", "slow")}
    assert dict(zip(rows["Run"], rows["Verdict"], strict=True)) == {
        name: result.verdict.headline for name, result in results.items()
    }
    assert dict(zip(rows["Run"], rows["Step time, ms"], strict=True)) == {
        name: pytest.approx(result.examination.shares.dur_ns.mean() / 1e6) for name, result in results.items()
    }
    assert "Why these are several runs" in text(test)
    assert plain("ranks 0-1 recorded by different processes") in text(test)
    assert "Files in no run" in text(test)
    assert plain("notes.json") in text(test)
    assert plain("tune.json") not in text(test)


def test_the_size_of_a_job_is_that_of_its_files(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with many jobs analyses each of them, however much the folder holds; a row has its ranks at once."""
    put_job(two / "many", pid=5000, at_ns=9 * HOUR)
    runs, _ = runs_of(two)
    assert [bytes_of(run) for run in runs] == [
        sum(file.stat().st_size for file in two.rglob(f"{pattern}.json"))
        for pattern in ("fast_rank[01]", "rank[01]", "slow_rank[01]")
    ]
    monkeypatch.setitem(vars(DASHBOARD), "most_analysed_run_bytes", 1000)
    assert outlined(runs[0]).why == "more than 0 MiB of records; open it to analyse it"
    row = row_for(two, state_of(runs[0]))
    assert (row.name, row.ranks, row.world_size, row.headline) == ("fast", 2, 2, "")
    assert row.changed_ns == max(
        trace.end_ns for own in open_run(runs[0]).tables.ranks.values() for trace in own.traces
    )


def test_one_job_is_compared_with_the_other(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(two)
    test = shown("compare", Path(f"{two}::slow"), monkeypatch, two)
    assert test.selectbox(key="with").value == "fast"
    assert "From fast" in text(test)


def test_traces_of_one_job_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_job(tmp_path)
    paths, found = runs_of(tmp_path)
    assert paths == [tmp_path]
    assert name_of(tmp_path, tmp_path) == tmp_path.name
    monkeypatch.setattr("diag.app.address.open_attempt_by_size", None)
    tables = opened(tmp_path).result.tables
    assert [own.traces for own in tables.ranks.values()] == [
        own.traces for job in found.jobs if job.tables is not None for own in job.tables.ranks.values()
    ]


def test_a_new_trace_is_seen(two: Path) -> None:
    assert len(runs_of(two)[0]) == 2
    put_job(two / "third", pid=50, at_ns=5 * HOUR)
    assert [name_of(two, run) for run in runs_of(two)[0]] == ["fast", "slow", "third"]


def test_a_job_is_what_the_dashboard_is_given(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(Path(f"{two}::slow"), monkeypatch)
    assert plain(open_run(f"{two}::slow").verdict.headline) in said(test)
    assert not [box for box in test.selectbox if box.key == "run"]


def test_names_of_files_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "<b>**x**</b> [a](http://evil.example)".replace("/", "_")
    put_job(tmp_path, evil + "_rank{}.json")
    put_job(tmp_path, "slow_rank{}.json", pid=900, at_ns=HOUR)
    monkeypatch.setattr("sys.argv", ["main.py", str(tmp_path)])
    test = AppTest.from_function(_list, default_timeout=PATIENCE_S).run()
    assert not test.exception
    assert plain(evil) in text(test)
    assert evil not in text(test)


def test_a_job_is_waited_for_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(Path(f"{tmp_path / 'later'}::slow"), monkeypatch)
    assert "Waiting for" in said(test)
    put_job(tmp_path / "later", "fast_rank{}.json")
    put_job(tmp_path / "later", "slow_rank{}.json", pid=900, at_ns=HOUR)
    test.run()
    assert not test.exception
    assert not test.error
    assert test.title[0].value.endswith("slow")


def test_a_name_that_no_job_has_is_an_error(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(Path(f"{two}::other"), monkeypatch)
    assert "there is no job" in test.error[0].value
