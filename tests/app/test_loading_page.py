"""The page of the input: the rank whose loader is slow stands out."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.api import open_run
from diag.app.run_view import view_of
from diag.app.theme import LIGHT
from diag.app.views import loading as figures
from diag.collectors.records import LoaderQueue
from tests.app.runs import MS, write_run
from tests.app.shown import metrics, shown, text
from tests.samples import opened_sample
from tests.simulate import Plan, simulate
from tests.simulate import write_run as write_simulated
from tests.tables.test_breakdowns import two_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def test_the_slow_loader_stands_out(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_run(slow_rank_1).loading
    test = shown("input", slow_rank_1, monkeypatch)
    frame = test.dataframe[0].value
    assert frame["Data wait, ms"].tolist() == [1.0, 40.0] == [row.wait_mean_ns / 1e6 for row in table.rows]
    assert frame["Beyond others, ms"].tolist() == [-39.0, 39.0]
    assert frame["Others wait, ms"].tolist()[1] == table.rows[1].others_waited_ns / 1e6 > 38
    assert "The other ranks wait 39.0 ms a step for the loader of rank 1." in text(test).replace("\\", "")
    view = view_of(open_run(slow_rank_1))
    field = figures.field(view, (1,), LIGHT).data[0]
    assert field.z.mean(axis=1).tolist() == [1, 40]
    assert ["at fault" in name for name in field.y] == [False, True]


def test_a_healthy_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("input", write_run(tmp_path / "healthy"), monkeypatch)
    assert "the loaders keep up" in text(test)
    assert "Loader processes" not in metrics(test), "no card for what is not known"
    assert "loader processes" in text(test).partition("Not known")[2]


def test_batches_in_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(trainer={"num_workers": None}, queue=lambda step, rank: LoaderQueue(3 if rank == 0 else 1, 4, 2))
    write_simulated(simulate(plan), tmp_path)
    test = shown("input", tmp_path, monkeypatch)
    told, frame = metrics(test), test.dataframe[0].value
    assert (told["Loader processes"], told["Prefetch factor"], told["Queued batches"]) == ("2", "2", "4")
    assert frame["Ready, batches"].tolist() == [3, 1]
    assert frame["Idle processes"].tolist() == [1, 0]


def test_a_trace_without_a_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ranks(tmp_path)
    test = shown("input", tmp_path, monkeypatch)
    assert "No wait for a loader was seen" in text(test)
    assert "No exposed copy was recorded" in text(test)


def test_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-slow-loader-rank1"
    table = open_run(run).loading
    test = shown("input", run, monkeypatch)
    told = metrics(test)
    assert told["Loader processes"] == "1"
    assert told["Queued batches"] == "2"
    waits = test.dataframe[0].value["Data wait, ms"].tolist()
    assert waits == [row.wait_mean_ns / 1e6 for row in table.rows]
    assert waits[1] > 5 * waits[0]


def test_short_copies_do_not_fill_a_figure() -> None:
    table = opened_sample("fsdp2-slow-loader-rank1").loading
    rows = tuple(replace(row, host_copy_ns=0, exposed_copy_ns=2 * MS) for row in table.rows)
    figure = figures.copies(replace(table, rows=rows), 200 * MS, LIGHT)
    assert figure.layout.xaxis.range[1] == pytest.approx(1.04 * 20)
    longer = figures.copies(replace(table, rows=rows), 10 * MS, LIGHT)
    assert longer.layout.xaxis.range[1] == pytest.approx(1.04 * 2)
