"""Runs that are still training, a folder of runs, and a baseline."""

import json
import os
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import Result, newest_change, open_run, state_of
from diag.app.markup import plain
from diag.app.views.runs import row_of
from diag.collectors.layout import RunLayout
from diag.show.page import metrics_of
from tests.app.runs import write_run
from tests.app.test_pages import address, page, said


def unended(path: Path) -> Path:
    layout = RunLayout(path)
    layout.manifest.write_text(json.dumps({**json.loads(layout.manifest.read_text()), "exit_code": None}))
    return path


def cut(run: Path, steps: int) -> None:
    """Leaves the first steps of every rank, as they are written a moment later."""
    for rank in RunLayout(run).ranks().values():
        for file in (rank.steps, rank.collectives):
            changed = file.stat().st_mtime_ns
            file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:steps]))
            os.utime(file, ns=(changed + 10**6, changed + 10**6))


def go_on(run: Path, whole: Mapping[int, str]) -> None:
    """Writes the steps that were cut off, later than any other record, however long writing those took."""
    later = newest_change(run) + 10**6
    for rank, files in RunLayout(run).ranks().items():
        files.steps.write_text(whole[rank])
        os.utime(files.steps, ns=(later, later))


def test_new_steps_are_on_the_page_when_it_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run", slow_data_ms={1: 40}))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)
    test = page(run, monkeypatch)
    assert "training" in said(test)
    assert "6 of 8" in said(test).replace("\u00a0", " ")
    go_on(run, whole)
    test.run()
    assert not test.exception
    assert "10 of 12" in said(test).replace("\u00a0", " ")
    assert plain("step 11") in said(test)


@pytest.mark.parametrize(("waited", "shown"), [(False, "6 of 8"), (True, "10 of 12")])
def test_steps_that_come_during_the_analysis_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: bool, shown: str
) -> None:
    """Not at once, or a run that trains faster than it is analysed would be analysed all the time."""
    run = unended(write_run(tmp_path / "run", slow_data_ms={1: 40}))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)

    def slow(path: Path) -> Result:
        found = open_run(path)
        if any(files.steps.read_text() != whole[rank] for rank, files in RunLayout(run).ranks().items()):
            go_on(run, whole)
        return found

    hours = count(0, 3600)
    clock = (lambda: next(hours)) if waited else time.monotonic
    monkeypatch.setattr("diag.app.address.open_by_size", slow)
    monkeypatch.setattr("diag.app.views.runs.time", SimpleNamespace(monotonic=clock, time=time.time))
    assert shown in said(page(run, monkeypatch)).replace("\u00a0", " ")


def test_a_run_without_a_step_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run"))
    cut(run, 0)
    test = page(run, monkeypatch)
    assert "no whole step yet" in test.info[0].value
    assert not test.error


def test_a_run_that_ended_is_not_followed(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert "finished" in said(test)
    assert "live" not in address(test)


def test_the_list_says_what_each_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", ranks=3)
    unended(write_run(tmp_path / "b"))
    runs = {name: row_of(state_of(tmp_path / name)) for name in "ab"}
    assert (runs["a"]["State"], runs["a"]["Ranks"], runs["a"]["Last step"]) == ("finished", "3 of 3", "11")
    assert (runs["b"]["State"], runs["b"]["Ranks"]) == ("training", "2 of 2")


def _list_of_runs() -> None:
    import sys
    from pathlib import Path

    import streamlit as st

    from diag.api import list_runs
    from diag.app.views import runs

    root = Path(sys.argv[1])
    runs.show(root, list_runs(root), st.success)


def test_the_page_of_runs_shows_the_live_ones_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")
    unended(write_run(tmp_path / "b"))
    monkeypatch.setattr("sys.argv", ["main.py", str(tmp_path)])
    test = AppTest.from_function(_list_of_runs, default_timeout=30).run()
    assert not test.exception
    assert list(test.dataframe[0].value["Run"]) == ["b", "a"]
    assert "2 runs" in said(test).replace("\u00a0", " ")


def test_numbers_are_held_against_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "before")
    write_run(tmp_path / "now", slow_data_ms={1: 40})
    test = page(tmp_path, monkeypatch, run="now", baseline="before")
    shown = {metric.label: metric.delta for metric in test.metric}
    expected = metrics_of(*(open_run(tmp_path / name) for name in ("now", "before")))
    assert shown == {metric.label: metric.against for metric in expected}
    assert shown["Step time"] == "+39.0\u00a0ms (+59.1%)"
    assert shown["Tokens per second"].startswith("-")
    assert address(test)["baseline"] == "before"
    without = page(tmp_path, monkeypatch, run="now")
    assert {metric.delta for metric in without.metric} == {""}
