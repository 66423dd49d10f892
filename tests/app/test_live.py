"""Runs that are still training, a folder of runs, and a baseline."""

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from streamlit.proto.Metric_pb2 import Metric as MetricProto
from streamlit.testing.v1 import AppTest

from diag.api import Result, newest_change, open_run, state_of
from diag.app import address
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.by_size import open_newest
from diag.collectors.layout import RunLayout
from diag.show.page import metrics_of
from tests.app.runs import write_run
from tests.app.test_pages import address as address_of
from tests.app.test_pages import page, plain_spaces, said
from tests.patience import PATIENCE_S


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


def drawn_until(test: AppTest, text: str) -> None:
    """Draws the page again until the text is on it: analyses are made beside it."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in said(test).replace("\u00a0", " "):
        assert time.monotonic() < deadline, said(test)
        time.sleep(0.1)
        test.run()
        assert not test.exception


def test_new_steps_are_on_the_page_when_they_are_analysed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run", slow_data_ms={1: 40}))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)
    test = page(run, monkeypatch)
    assert "training" in said(test)
    assert "6 of 8" in said(test).replace("\u00a0", " ")
    go_on(run, whole)
    drawn_until(test, "10 of 12")


def test_a_page_of_a_run_that_trains_waits_for_no_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run", slow_data_ms={1: 40}))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)
    test, going_on = page(run, monkeypatch), threading.Event()

    def slow(path: Path, most_steps: int) -> Result:
        assert going_on.wait(PATIENCE_S)
        return open_newest(path, most_steps)

    monkeypatch.setattr("diag.app.address.open_newest", slow)
    monkeypatch.setitem(vars(DASHBOARD), "least_between_analyses_s", 0.0)
    go_on(run, whole)
    for _ in range(2):  # the analysis is under way
        test.run()
        assert "6 of 8" in said(test).replace("\u00a0", " ")
    going_on.set()
    drawn_until(test, "10 of 12")


def test_following_a_run_has_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run"))
    made: list[int] = []
    monkeypatch.setattr("diag.app.address.open_newest", lambda path, most: made.append(most) or open_newest(path, most))
    monkeypatch.setitem(vars(DASHBOARD), "least_between_analyses_s", 0.0)
    address.opened(run)
    address.charge(run, 3600)  # drawing it took an hour
    for rank in RunLayout(run).ranks().values():
        os.utime(rank.steps)
    address.renew(state_of(run))
    assert len(made) == 1
    address.renew(state_of(run), at_once=True)  # its end is always shown
    deadline = time.monotonic() + PATIENCE_S
    while not address.is_open(state_of(run)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(made) == 2


def test_how_far_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run"))
    assert "12 steps · 15.2 steps/s · 7,758 tokens/s a rank" in plain_spaces(said(page(run, monkeypatch)))
    layout = RunLayout(run)
    layout.manifest.write_text(json.dumps({**json.loads(layout.manifest.read_text()), "trainer": {"steps": 9000}}))
    test = page(run, monkeypatch)
    bar = test.get("progress")[0].proto
    assert bar.value == 0
    assert plain_spaces(bar.text).startswith(plain("12 of 9,000 steps · about 10 min left"))
    assert "Tokens per second" in said(test)  # its curve; no loss is recorded
    assert "loss is" not in said(test), "nothing can be done about it now"
    # Ended before its time, it came as far as it was.
    layout.manifest.write_text(json.dumps({**json.loads(layout.manifest.read_text()), "exit_code": 1}))
    assert "12 of 9,000 steps · exit code 1" in plain_spaces(said(page(run, monkeypatch)))


def test_a_run_may_begin_after_its_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(tmp_path / "later", monkeypatch)
    assert "Waiting for later" in said(test)
    write_run(tmp_path / "later")
    test.run()
    assert test.title[0].value == "later"


def test_a_folder_that_fills_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(tmp_path, monkeypatch)
    assert "contains neither a run directory nor a trace" in test.error[0].value
    write_run(tmp_path / "first")
    test.run()
    assert not test.error
    assert test.title[0].value == "first"


def test_a_run_without_a_step_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = unended(write_run(tmp_path / "run"))
    cut(run, 0)
    test = page(run, monkeypatch)
    assert test.title[0].value == "run"
    assert "no whole step yet" in test.info[0].value
    assert not test.error


def test_a_run_that_ended_is_not_followed(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert "finished" in said(test)
    assert "live" not in address_of(test)


def test_numbers_are_held_against_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "before")
    write_run(tmp_path / "now", slow_data_ms={1: 40})
    test = page(tmp_path, monkeypatch, run="now", baseline="before")
    shown = {metric.label: metric.delta for metric in test.metric}
    expected = metrics_of(*(open_run(tmp_path / name) for name in ("now", "before")))
    assert shown == {metric.label: metric.against for metric in expected}
    assert shown["Step time"] == "+39.0\u00a0ms (+59.1%)"
    assert shown["Tokens per second"].startswith("-")
    assert address_of(test)["baseline"] == "before"
    without = page(tmp_path, monkeypatch, run="now")
    assert {metric.delta for metric in without.metric} == {""}


def test_a_baseline_that_is_other_work_is_neither_better_nor_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "wide", ranks=3)
    write_run(tmp_path / "now", slow_data_ms={1: 40})
    test = page(tmp_path, monkeypatch, run="now", baseline="wide")
    assert "Not comparable with the baseline" in said(test)
    assert plain("one ran on 3 ranks, the other on 2") in said(test)
    assert {metric.proto.color for metric in test.metric if metric.delta} == {MetricProto.MetricColor.GRAY}


def test_before_the_first_verdict_the_page_says_how_far_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its analysis takes a moment, in which the menu counts steps already."""

    def beginning() -> None:
        import sys
        from pathlib import Path

        from diag.app.views.live import show_beginning

        show_beginning(Path(sys.argv[1]))

    run = unended(write_run(tmp_path / "run"))
    monkeypatch.setattr("sys.argv", ["main.py", str(run)])
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 0)
    test = AppTest.from_function(beginning, default_timeout=PATIENCE_S).run()
    assert "has recorded no whole step yet" in test.info[0].value
    go_on(run, whole)
    assert plain_spaces(test.run().info[0].value).startswith("12 steps recorded")
