"""The timeline shows the numbers of the analysis, for any window, and names stay text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from diag.api import Result, open_run
from diag.app.markup import plain
from diag.app.run_view import Part
from diag.app.theme import DARK, LIGHT
from diag.app.views import time_figures as figures
from diag.app.views.time_figures import Window, colour, text, title, words
from diag.app.views.timeline import open_command, window_between
from diag.serve.server import SAMPLES
from diag.tables.zoom import MOST_BARS, Bars, Category, Pixels, by_name, pixel_edges, read_lanes
from diag.words.formatting import duration, share
from tests.app.runs import write_run
from tests.app.test_pages import address, said
from tests.tables.lane_traces import STEPS, gpu_trace, write_gpu_traces

EVIL = "<script>alert(1)</script>"
BOLD = "<b>**bold** [link](http://x) $x$ :red[y]</b>"


def _page() -> None:
    import sys
    from pathlib import Path

    from diag.app.address import opened
    from diag.app.views import timeline

    timeline.show(opened(Path(sys.argv[1])))


def page(path: Path, monkeypatch: pytest.MonkeyPatch, **params: str) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", str(path)])
    test = AppTest.from_function(_page, default_timeout=60)
    for name, value in params.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def charts(test: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def window_of(test: AppTest) -> tuple[float, float]:
    return test.number_input(key="from").value, test.number_input(key="to").value


def click(test: AppTest, label: str) -> None:
    next(button for button in test.button if button.label == label).click()
    test.run()
    assert not test.exception


def table(test: AppTest, number: int) -> list[dict[str, str]]:
    return [dict(row) for row in test.table[number].value.to_dict("records")]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_gpu_traces(tmp_path / "traces")


@pytest.fixture
def result(traces: Path) -> Result:
    return open_run(traces)


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["all", str(STEPS[1])])
def test_the_page_holds_the_analysed_numbers(
    traces: Path, result: Result, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = page(traces, monkeypatch, rank="0", step=step)
    begin, end = (round(ms * 1e6) for ms in window_of(test))
    span = {str(span.step): (span.begin_ns, span.end_ns) for span in result.timeline.steps}
    assert (begin, end) == span.get(step, (0, result.timeline.end_ns))
    lanes = [*result.timeline.ranks[0].lanes, *result.events_of(0)]
    assert table(test, 0) == [
        {
            "Kind": plain(f"{'' if lane in result.timeline.ranks[0].lanes else 'trace: '}{title(lane)}"),
            "Time": duration(lane.busy_in(begin, end)),
            "Share": share(lane.busy_in(begin, end) / (end - begin)),
            "Pieces": f"{len(lane.visible(begin, end)):,}",
        }
        for lane in lanes
        if len(lane.visible(begin, end))
    ]
    device = [lane for lane in lanes if lane.title in ("kernels", "communication", "copies")]
    assert [row["Time"] for row in table(test, 1)] == [duration(one.total_ns) for one in by_name(device, begin, end)]
    assert [row["Name"] for row in table(test, 1)] == [plain(one.name) for one in by_name(device, begin, end)]
    command = open_command(traces.resolve(), 0, STEPS[1] if step != "all" else STEPS[0])
    assert [code.value for code in test.code] == [command]
    assert command == f"diag open {traces.resolve()} --rank 0 --step {STEPS[1] if step != 'all' else STEPS[0]}"


def test_the_culprit_and_the_whole_run_first(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert address(test) == {"rank": "1", "step": "all", "from": "0.000", "to": "1260.000"}
    assert "at fault" in json.dumps(charts(test)[0], ensure_ascii=False)


def test_a_link_opens_the_same_view(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"rank": "1", "step": str(STEPS[1]), "from": "1.100", "to": "1.350"}
    test = page(traces, monkeypatch, **asked)
    assert address(test) == asked
    assert window_of(test) == (1.1, 1.35)
    for chart in charts(test):
        assert chart["layout"]["xaxis"]["range"] == [1.1, 1.35]
    assert "Rank 1" in said(test)


@pytest.mark.parametrize(("first", "last"), [("x", ""), ("nan", "inf"), ("-1e300", "1e300"), ("0", "0.0")])
def test_a_link_to_what_is_not_there_is_mended(
    traces: Path, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = page(traces, monkeypatch, rank="9", step="77", **{"from": first, "to": last})
    mended = address(test)
    assert (mended["rank"], mended["step"], mended["from"]) == ("0", "all", "0.000")
    assert 0 <= float(mended["to"]) <= 3


def test_steps_back_and_forth(traces: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = {span.step: (span.begin_ns / 1e6, span.end_ns / 1e6) for span in result.timeline.steps}
    test = page(traces, monkeypatch, rank="0")
    click(test, "Next step")
    assert (address(test)["step"], window_of(test)) == (str(STEPS[0]), spans[STEPS[0]])
    click(test, "Next step")
    assert (address(test)["step"], window_of(test)) == (str(STEPS[1]), spans[STEPS[1]])
    click(test, "Previous step")
    assert (address(test)["step"], window_of(test)) == (str(STEPS[0]), spans[STEPS[0]])
    assert next(button for button in test.button if button.label == "Previous step").disabled
    test.selectbox(key="step").select(str(STEPS[2])).run()
    assert window_of(test) == spans[STEPS[2]]
    assert next(button for button in test.button if button.label == "Next step").disabled
    click(test, "Whole run")
    assert (address(test)["step"], window_of(test)) == ("all", (0, result.timeline.end_ns / 1e6))


def test_typed_numbers_and_out(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(traces, monkeypatch, rank="0", step=str(STEPS[1]))
    test.number_input(key="from").set_value(1.4).run()
    test.number_input(key="to").set_value(1.6).run()
    assert (address(test)["from"], address(test)["to"]) == ("1.400", "1.600")
    click(test, "Out")
    assert window_of(test) == pytest.approx((1.2, 1.8))
    for _ in range(3):
        click(test, "Out")
    assert window_of(test) == (0, 3)
    assert address(test)["step"] == str(STEPS[1])


def test_another_rank_keeps_the_window(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(traces, monkeypatch, rank="0", step=str(STEPS[1]), **{"from": "1.100", "to": "1.350"})
    test.selectbox(key="rank").select("1").run()
    assert address(test) == {"rank": "1", "step": str(STEPS[1]), "from": "1.100", "to": "1.350"}


def test_without_a_trace_it_says_what_to_do(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert "No trace of rank 1" in test.info[0].value
    assert "`diag run`" in test.info[0].value
    assert not test.code
    assert len(charts(test)) == 2


def test_a_step_that_no_trace_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(SAMPLES / "fsdp2-straggler-rank0", monkeypatch, rank="0", step="5")
    assert "cover other steps: 15" in test.info[0].value
    click(test, "Go to step 15")
    assert address(test)["step"] == "15"
    assert not test.info


def test_many_pieces_are_a_heat_map_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "wide", ranks=70, steps=4, slow_data_ms={66: 40})
    test = page(path, monkeypatch)
    assert test.selectbox(key="shown").value == "waiting"
    assert charts(test)[0]["data"][0]["type"] == "heatmap"
    assert 66 in charts(test)[0]["layout"]["yaxis"]["tickvals"], "who is at fault is named however many ranks there are"
    test.selectbox(key="shown").select("compute").run()
    assert address(test)["shown"] == "compute"
    assert "compute" in charts(test)[0]["data"][0]["hovertemplate"]


def _drag() -> None:
    from types import SimpleNamespace

    import streamlit as st

    from diag.app.views import timeline

    asked = st.session_state["asked"]
    st.session_state[timeline._STATE] = (0.0, 10.0, 0.0, 10.0)
    st.session_state["chart"] = SimpleNamespace(selection=SimpleNamespace(box=asked))
    timeline.zoom("chart")
    st.session_state["looked at"] = (st.session_state.get("from"), st.session_state.get("to"))


@pytest.mark.parametrize(
    ("box", "window"),
    [
        ([{"x": [2.0, 5.5], "y": [0, 1]}], (2.0, 5.5)),
        ([{"x": [5.5, 2.0], "y": [0, 1]}], (2.0, 5.5)),
        ([{"x": [-4, 25], "y": [0, 1]}], (0.0, 10.0)),
        ([{"x": [float("nan"), 1], "y": [0, 1]}], (None, None)),
        ([], (None, None)),
    ],
    ids=["rightwards", "leftwards", "beyond the run", "nonsense", "let go"],
)
def test_a_drag_is_a_window(box: list[dict[str, Any]], window: tuple[float | None, float | None]) -> None:
    test = AppTest.from_function(_drag)
    test.session_state["asked"] = box
    test.run()
    assert not test.exception
    assert test.session_state["looked at"] == window


def test_loose_clocks_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        made = gpu_trace(rank, names=("gemm", "elementwise"), base_ns=10**18 + 10**13 * rank)
        made.header["host_name"] = f"node-{rank}"
        for event in made.events:
            if event["name"] == "elementwise":
                event["args"] = {key: value for key, value in event["args"].items() if key in ("stream", "device")}
        made.write(tmp_path, f"rank-{rank}.json")
    assert "is not tied" in said(page(tmp_path, monkeypatch))


@pytest.mark.parametrize("name", [EVIL, BOLD])
def test_names_stay_text(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gpu_traces(tmp_path / "traces", names=(name, f"nccl {name}"))
    test = page(path, monkeypatch, rank="0", step=str(STEPS[1]))
    for chart in charts(test):
        for trace in chart["data"]:
            for told in (*trace.get("hovertext", ()), *trace.get("text", ()), *trace.get("y", ())):
                assert EVIL[:8] not in str(told)
                assert "<b>**" not in str(told)
    whole = json.dumps([chart["data"] for chart in charts(test)])
    assert name.replace("<", "&lt;").replace(">", "&gt;") in whole
    names = [row["Name"] for row in table(test, 1)]
    assert plain(name) in names
    assert name not in names
    assert "<script>" not in said(test)


# -- figures -----------------------------------------------------------------------------------------------------------


def whole(result: Result) -> Window:
    return Window(0, result.timeline.end_ns)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_of_all_ranks_are_the_pieces_of_their_steps(result: Result, theme) -> None:
    timeline = result.timeline
    bars = figures.bars_of_all(timeline, whole(result))
    assert bars is not None
    figure = figures.overview(timeline, whole(result), bars, theme)
    drawn = {bar.name: bar for bar in figure.data}
    assert set(drawn) == {words(category) for category in timeline.categories}
    for category in timeline.categories:
        bar = drawn[words(category)]
        total = sum(
            lane.busy_in(0, timeline.end_ns) for rank in timeline.ranks.values() if (lane := rank.lane(category))
        )
        assert bar.x.sum() * 1e6 == pytest.approx(total)
        assert bar.marker.color == colour(category, theme)
    assert drawn[Part.WAITING.value].marker.color == theme.part[Part.WAITING]
    assert drawn[Part.HOST.value].marker.color == theme.part[Part.HOST]


def test_the_heat_map_is_the_share_of_each_pixel(result: Result) -> None:
    timeline = result.timeline
    figure = figures.overview(timeline, whole(result), Category.WAITING, LIGHT, culprits=(1,))
    field = next(trace for trace in figure.data if isinstance(trace, go.Heatmap))
    edges = pixel_edges(0, timeline.end_ns)
    np.testing.assert_allclose(field.z, timeline.shares(Category.WAITING, edges), rtol=1e-6)
    assert field.z[1].sum() == 0  # rank 1 is waited for
    assert field.z[0].sum() > 0
    assert (field.x0, field.dx) == (pytest.approx(0.00125), pytest.approx(0.0025))
    assert ["at fault" in name for name in field.y] == [False, True]


def test_lanes_are_bars_where_few_and_pixels_where_many(result: Result) -> None:
    lanes = [*result.timeline.ranks[0].lanes, *result.events_of(0)]
    few = read_lanes(lanes, 0, result.timeline.end_ns)
    assert all(isinstance(row, Bars) for row in few)
    figure = figures.lanes({"all": few}, result.timeline.steps, whole(result), LIGHT)
    drawn = [trace for trace in figure.data if isinstance(trace, go.Bar)]
    assert sum(len(bar.x) for bar in drawn) == sum(len(lane) for lane in lanes) <= MOST_BARS
    kernels = drawn[[lane.title for lane in lanes].index("kernels")]
    assert kernels.base.tolist() == [0.1, 1.1, 2.1]
    assert kernels.x.tolist() == pytest.approx([0.3] * 3)
    assert "gemm" in kernels.hovertext[0]
    assert "300\u00a0µs, from 0.100\u00a0ms" in kernels.hovertext[0]
    many = read_lanes(lanes, 0, result.timeline.end_ns, most_bars=0)
    assert all(isinstance(row, Pixels) for row in many)
    figure = figures.lanes({"all": many}, result.timeline.steps, whole(result), LIGHT)
    fields = [trace for trace in figure.data if isinstance(trace, go.Heatmap)]
    assert len(fields) == len(lanes)
    np.testing.assert_allclose(fields[0].z[0], many[0].share, rtol=1e-6)
    assert fields[0].colorscale[1][1] == colour(lanes[0].category, LIGHT)


def test_numbers_in_either_order_are_a_window() -> None:
    assert window_between(2.0, 1.0) == window_between(1.0, 2.0) == Window(1_000_000, 2_000_000)
    assert window_between(1.0, 1.0).dur_ns == 1000


def test_long_names_end() -> None:
    assert len(text("x" * 4000)) == 160
    assert text(EVIL) == "&lt;script&gt;alert(1)&lt;/script&gt;"
