"""The page of the collectives shows diag's table, and says which values are bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.app.markup import plain
from diag.app.run_view import Part
from diag.app.theme import LIGHT
from diag.app.views import collectives as figures
from diag.show.breakdowns import collective_table, exchange_table
from diag.words.formatting import spaced
from tests.account.kineto_builder import KinetoBuilder, nccl_args
from tests.app.runs import write_run
from tests.app.shown import shown, text
from tests.experts import Experts, hot, run_of
from tests.samples import opened_sample
from tests.simulate import write_run as write_simulated
from tests.tables.test_breakdowns import two_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MS = 1_000_000


def one_rank(folder: Path) -> Path:
    """Of two ranks only one was recorded: transfers and bandwidths are bounds."""
    built = KinetoBuilder(rank=0)
    for step in range(4):
        t = 10 * MS + step * 50 * MS
        built.step(step, t, t + 50 * MS)
        built.kernel(t + MS, t + 20 * MS, "gemm", launch=t + 1000)
        call = nccl_args("allreduce", 25_000_000, seq=step)
        built.kernel(
            t + 20 * MS, t + 40 * MS, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", launch=t + 2000, stream=20, **call
        )
    built.write(folder, "rank0.json")
    return folder


def test_the_table_holds_diags_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = two_ranks(tmp_path).breakdowns.collectives
    frame = shown("collectives", tmp_path, monkeypatch).dataframe[0].value
    assert frame["Bus, GB/s"].tolist() == [row.busbw_gb_s for row in table.rows]
    assert frame["Wait, ms"].tolist() == [row.wait_mean_ns / 1e6 for row in table.rows if row.wait_mean_ns is not None]
    assert frame["Exposed/step, ms"].tolist() == [row.exposed_ns / table.rank_steps / 1e6 for row in table.rows]
    assert frame["Calls"].tolist() == [row.count for row in table.rows]
    assert "Bounds" not in frame


def test_the_parts_of_a_call_add_up_to_its_time() -> None:
    """Of two ranks one ends first, so that the mean of both has half of what comes after the first end."""
    known = collective_table(opened_sample("fsdp2-slow-link-rank1").breakdowns.collectives)
    (exposed,) = (column for column in known.columns if column.id == "exposed_ns")
    assert known.heading(exposed) == "exposed/step", "the others are of a call"
    parts = ("duration_mean_ns", "wait_mean_ns", "transfer_mean_ns", "tail_mean_ns")
    for time, wait, transfer, tail in zip(*map(known.values, parts), strict=True):
        assert wait + transfer + tail / 2 == pytest.approx(time, rel=0.02)


def test_who_was_last_of_the_chosen_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = two_ranks(tmp_path).breakdowns.collectives.rows
    mean_ns = rows[0].wait_mean_ns
    assert mean_ns is not None
    assert rows[0].waited_for == ((1, mean_ns * 2 * rows[0].matched),), "over both ranks and all calls"
    drawn = figures.last(rows[0], LIGHT)
    assert list(drawn.data[0].x) == [mean_ns / 1e6]
    assert list(drawn.data[0].text) == [f"{mean_ns / 1e6:.1f}\u00a0ms (100%)".replace("\u00a0", " ")]
    assert list(drawn.layout.yaxis.ticktext) == ["rank 1"]
    test = shown("collectives", tmp_path, monkeypatch, collective="1")
    assert test.selectbox(key="collective").value == "1"
    assert f"{rows[1].matched} matched across ranks with aligned clocks" in text(test)


def test_bounds_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = one_rank(tmp_path)
    rows = open_run(folder).breakdowns.collectives.rows
    assert all(row.bandwidth_is_bound and row.transfer_mean_ns is None for row in rows)
    test = shown("collectives", folder, monkeypatch)
    assert test.dataframe[0].value["Bounds"].tolist() == ["transfer ≤, bandwidth ≥"] * len(rows)
    assert "Open markers" in text(test)
    assert "Hatched" in text(test)
    assert "It is not known which rank the others waited for" in text(test)
    points = figures.bandwidth(rows, (), LIGHT).data[0]
    assert all(symbol.endswith("-open") for symbol in points.marker.symbol)
    assert points.customdata[0][0].startswith("≥")
    bars = {bar.name: bar for bar in figures.waits(rows, 4, LIGHT).data}
    assert list(bars["communication: transfer"].marker.pattern.shape) == ["/"] * len(rows)


def test_points_and_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-not-overlapped"
    result = open_run(run)
    rows, curves = result.breakdowns.collectives.rows, result.cost_curves
    assert curves
    drawn = figures.bandwidth(rows, curves, LIGHT)
    points = {(x, y) for trace in drawn.data if trace.mode == "markers" for x, y in zip(trace.x, trace.y, strict=True)}
    assert points == {(row.bytes_mean, row.busbw_gb_s) for row in rows if row.busbw_gb_s and row.bytes_mean}
    lines = [trace for trace in drawn.data if trace.mode == "lines" and trace.line.width]
    assert len(lines) == sum(len(curve.bus_gb_s) > 1 for curve in curves)
    assert len(
        {trace.marker.color + str(trace.marker.symbol[0]) for trace in drawn.data if trace.mode == "markers"}
    ) == len({(row.op, row.group) for row in rows if row.busbw_gb_s and row.bytes_mean})
    assert "the fitted costs that predictions use" in text(shown("collectives", run, monkeypatch))


def test_no_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    for file in run.glob("ranks/*/collectives.jsonl"):
        file.unlink()
    assert "No collective was recorded" in text(shown("collectives", run, monkeypatch))


def test_all_to_alls_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_simulated(run_of(Experts(popular=hot(1, 2.0, 4), layers=2)), tmp_path / "run")
    told = exchange_table(open_run(tmp_path / "run").breakdowns.collectives.all_to_alls)
    test = shown("collectives", tmp_path / "run", monkeypatch)
    assert [list(row) for row in test.table[-1].value.values.tolist()] == [
        [plain(cell) for cell in row] for row in told.texts()
    ]
    assert plain(told.notes[0]) in text(test)


def test_no_table_of_all_to_alls_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "All-to-alls" not in text(shown("collectives", write_run(tmp_path / "run"), monkeypatch))


def test_a_slow_link_is_not_shown_as_a_slow_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for a rank that is late because its results come late: words and colours are the link's."""
    run = SAMPLES / "fsdp2-slow-link-rank1"
    result = open_run(run)
    rows = result.breakdowns.collectives.rows
    bars = {bar.name: bar for bar in figures.waits(rows, 17, LIGHT, [1]).data}
    assert "communication: waiting for a rank" not in bars
    assert spaced("waiting for the link of rank 1") in map(spaced, bars)
    assert LIGHT.part[Part.WAITING] not in {bar.marker.color for bar in bars.values()}
    assert figures.last(rows[0], LIGHT, [1]).layout.yaxis.ticktext == ("rank 1 (link)",)
    test = shown("collectives", run, monkeypatch)
    assert "waiting is for its link, not for its computation" in text(test)
    assert list(test.dataframe[0].proto.column_order)[:2] == ["Operation", "Waited for"], "visible without scrolling"
    overview = text(shown("overview", run, monkeypatch))
    assert plain("Rank 1 hardly waits: the others wait for it, because of its link.") in overview


def test_a_straggler_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown("collectives", SAMPLES / "fsdp2-straggler-rank0", monkeypatch)
    assert "link" not in text(test)


def test_a_bar_is_as_long_as_the_calls_of_a_step_take() -> None:
    """So the bars are in the order of the time that collectives cost a step, as the grid of ranks above them counts."""
    table = opened_sample("fsdp2-slow-link-rank1").breakdowns.collectives
    rows = sorted(table.rows, key=lambda row: -row.duration_mean_ns * row.count)
    drawn = figures.waits(rows, 17, LIGHT)
    totals = [sum(bar.x[at] for bar in drawn.data) for at in range(len(rows))]
    assert totals == pytest.approx([row.duration_mean_ns * row.count / 17 / 1e6 for row in rows], rel=0.01)
    assert totals == sorted(totals, reverse=True)
    assert next(note.text for note in drawn.layout.annotations) == "114 ms", "short: on a phone there is no more room"
    calls = [named.partition("kB, ")[2] for named, _ in drawn.data[0].customdata]
    assert calls == ["4 calls a step", "2 calls a step", "", "", ""]  # the third is of 4 bytes
