"""The timeline shows the numbers of the analysis, for any window, and names stay text."""

from __future__ import annotations

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import Result, open_run
from diag.app.markup import plain
from diag.app.theme import DARK, LIGHT, Theme, ink_on
from diag.app.timeline_data.work import drawn_name, work_colours, work_words
from diag.app.views.timeline import Window, open_command, title, window_between
from diag.collectors.layout import RunLayout
from diag.serve.server import SAMPLES
from diag.show.page import page_of
from diag.tables.zoom import WORK, Category, by_name
from diag.timeline import events_of, timeline_of
from diag.words.formatting import duration, share
from tests.app.runs import write_run
from tests.app.test_pages import address, said
from tests.app.test_theme import contrast
from tests.patience import PATIENCE_S
from tests.tables.lane_traces import STEPS, gpu_trace, write_gpu_traces

EVIL = "<script>alert(1)</script>"
BOLD = "<b>**bold** [link](http://x) $x$ :red[y]</b>"


def _page() -> None:
    import sys
    from pathlib import Path
    from types import SimpleNamespace

    import streamlit as st

    from diag.app.address import opened
    from diag.app.views import timeline

    if st.session_state.get("asked"):  # before any of the choices is drawn, as Streamlit calls back
        timeline.moved(SimpleNamespace(look=st.session_state["asked"]))
    timeline.show(opened(Path(sys.argv[1])))


def page(path: Path, monkeypatch: pytest.MonkeyPatch, **params: str) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", str(path)])
    test = AppTest.from_function(_page, default_timeout=PATIENCE_S)
    for name, value in params.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def canvas(test: AppTest) -> dict[str, Any]:
    """What the canvas is given."""
    (found,) = test.get("bidi_component")
    data: dict[str, Any] = json.loads(found.proto.json)
    return data


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


@pytest.mark.parametrize("step", ["all", str(STEPS[1])])
def test_the_page_holds_the_analysed_numbers(
    traces: Path, result: Result, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = page(traces, monkeypatch, rank="0", step=step)
    begin, end = (round(ms * 1e6) for ms in window_of(test))
    span = {str(span.step): (span.begin_ns, span.end_ns) for span in timeline_of(result).steps}
    assert (begin, end) == span.get(step, (0, timeline_of(result).end_ns))
    lanes = [*timeline_of(result).ranks[0].lanes, *events_of(result, 0)]
    assert table(test, 0) == [
        {
            "Kind": plain(f"{'' if lane in timeline_of(result).ranks[0].lanes else 'trace: '}{title(lane)}"),
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
    command = open_command(traces.resolve(), STEPS[1] if step != "all" else STEPS[0], 0)
    assert [code.value.splitlines()[0] for code in test.code] == [command]
    assert command == f"diag open {traces.resolve()} --rank 0 --step {STEPS[1] if step != 'all' else STEPS[0]}"


def test_the_culprit_and_the_whole_run_first(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert address(test) == {"rank": "1", "beside": "none", "step": "all", "from": "0.000", "to": "1260.000"}
    data = canvas(test)
    assert [(rank["rank"], rank["at_fault"]) for rank in data["ranks"]] == [(0, False), (1, True)]
    assert (data["pinned"], data["window"]) == ([1], [0, 1_260_000_000])
    assert (data["begin"], data["end"]) == (0, 1_260_000_000)


def test_many_ranks_open_at_the_step_of_the_first_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ranks=20, steps=8, slow_data_ms={7: 40})
    place = page_of(open_run(run)).findings[0].place
    assert place is not None
    test = page(run, monkeypatch)
    assert address(test)["step"] == str(place.step)
    data = canvas(test)
    assert data["first"][0] == 7
    assert (len(data["first"]), len(data["ranks"])) == (8, 20)
    assert data["first_order"] == "at fault first, then those that wait longest"
    assert address(page(run, monkeypatch, step="all"))["step"] == "all"


@pytest.mark.parametrize(
    ("name", "category", "drawn"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", "compute",
         "CUDAFunctor_add"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("Memcpy HtoD (Pageable -> Device)", Category.COPY, "Memcpy HtoD (Pageable -> Device)"),
        ("torch/nn/module.py(12): forward", "host", "torch/nn/module.py(12): forward"),
        (EVIL, "compute", EVIL),
    ],
)  # fmt: skip
def test_kernels_are_drawn_without_the_compilers_templates(name: str, category: str, drawn: str) -> None:
    assert drawn_name(name, Category(category)) == drawn


def test_a_link_opens_the_same_view(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "rank": "1", "beside": "0", "step": str(STEPS[1]), "from": "1.100", "to": "1.350", "find": "gemm",
    }  # fmt: skip
    test = page(traces, monkeypatch, **asked)
    assert address(test) == asked
    assert window_of(test) == (1.1, 1.35)
    data = canvas(test)
    assert (data["window"], data["pinned"], data["find"]) == ([1_100_000, 1_350_000], [1, 0], "gemm")
    assert "Rank 1" in said(test)


def test_what_the_canvas_reports_is_in_the_address(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(traces, monkeypatch, rank="0")
    turn = canvas(test)["turn"]
    moved(
        test,
        {
            "step": None,
            "from": 1_100_000,
            "to": 1_350_000,
            "whole": False,
            "pinned": [1, 0],
            "find": "nccl",
            "python": True,
        },
    )
    assert address(test) == {
        "rank": "1", "beside": "0", "step": "all", "from": "1.100", "to": "1.350", "find": "nccl", "python": "1",
    }  # fmt: skip
    assert canvas(test)["turn"] == turn, "the canvas is not moved by what it reported itself"
    moved(test, {"step": None, "from": -50, "to": 3_000_001, "whole": True, "pinned": [1], "find": "", "python": False})
    assert address(test) == {"rank": "1", "beside": "none", "step": "all", "from": "0.000", "to": "3.000"}
    shown = {"from": 1_000_000, "to": 2_000_000, "whole": False, "pinned": [1], "find": "", "python": False}
    moved(test, {"step": STEPS[1], **shown})
    assert (address(test)["step"], canvas(test)["turn"]) == (str(STEPS[1]), turn)
    test.selectbox(key="step").select(str(STEPS[2])).run()
    test.selectbox(key="step").select(str(STEPS[1])).run()
    assert canvas(test)["turn"] == turn + 2
    assert canvas(test)["window"] == [1_000_000, 2_000_000]


def test_of_two_quick_choices_the_first_is_kept(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser asks for the second before it knows the address that the first has led to."""
    test = page(traces, monkeypatch, rank="0", step=str(STEPS[0]))
    before, turn = address(test), canvas(test)["turn"]
    look = {"step": STEPS[1], "from": 1_000_000, "to": 2_000_000, "whole": False, "find": "gemm", "python": False}
    moved(test, look | {"pinned": [0]})
    for name, value in before.items():
        test.query_params[name] = value
    del test.query_params["find"]
    moved(test, look | {"pinned": [1]})
    both = {"rank": "1", "step": str(STEPS[1]), "from": "1.000", "to": "2.000", "find": "gemm"}
    assert address(test) == before | both
    assert canvas(test)["window"] == [1_000_000, 2_000_000]
    assert canvas(test)["turn"] == turn


def moved(test: AppTest, look: dict[str, Any]) -> None:
    """As if the canvas had reported it."""
    test.session_state["asked"] = look
    test.run()
    test.session_state["asked"] = None
    assert not test.exception


def grown(run: Path, steps: int) -> None:
    shutil.rmtree(run)
    write_run(run, steps=steps)


def test_the_whole_of_a_run_that_grows_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=6)
    test = page(run, monkeypatch)
    before, turn = window_of(test), canvas(test)["turn"]
    grown(run, 9)
    test.run()
    assert not test.exception
    assert window_of(test)[1] == pytest.approx(before[1] * 1.5)
    assert canvas(test)["end"] == round(window_of(test)[1] * 1e6)
    assert canvas(test)["turn"] == turn, "the canvas follows by itself, and one who zooms meanwhile is not moved"
    test.number_input(key="to").set_value(100.0).run()
    grown(run, 12)
    test.run()
    assert window_of(test) == (0.0, 100.0)


@pytest.mark.parametrize(("first", "last"), [("x", ""), ("nan", "inf"), ("-1e300", "1e300"), ("0", "0.0")])
def test_a_link_to_what_is_not_there_is_mended(
    traces: Path, first: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = page(traces, monkeypatch, rank="9", step="77", **{"from": first, "to": last})
    mended = address(test)
    assert (mended["rank"], mended["step"], mended["from"]) == ("0", "all", "0.000")
    assert 0 <= float(mended["to"]) <= 3


def test_a_step_sets_the_window(traces: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = {span.step: (span.begin_ns / 1e6, span.end_ns / 1e6) for span in timeline_of(result).steps}
    test = page(traces, monkeypatch, rank="0")
    for step in STEPS:
        test.selectbox(key="step").select(str(step)).run()
        assert (address(test)["step"], window_of(test)) == (str(step), spans[step])


def test_typed_numbers(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(traces, monkeypatch, rank="0", step=str(STEPS[1]))
    test.number_input(key="from").set_value(1.4).run()
    test.number_input(key="to").set_value(1.6).run()
    assert (address(test)["from"], address(test)["to"]) == ("1.400", "1.600")
    assert canvas(test)["window"] == [1_400_000, 1_600_000]


def test_another_rank_keeps_the_window(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(traces, monkeypatch, rank="0", step=str(STEPS[1]), **{"from": "1.100", "to": "1.350"})
    test.selectbox(key="rank").select("1").run()
    assert address(test) == {
        "rank": "1", "beside": "none", "step": str(STEPS[1]), "from": "1.100", "to": "1.350",
    }  # fmt: skip


def test_without_a_trace_it_says_what_to_do(slow_rank_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(slow_rank_1, monkeypatch)
    assert "No trace of rank 1" in test.info[0].value
    assert "`diag run`" in test.info[0].value
    assert canvas(test)["open"]["label"] == "Open step 0 in Perfetto (not profiled)"


def test_a_step_that_no_trace_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    test = page(SAMPLES / "fsdp2-straggler-rank0", monkeypatch, rank="0", step="5")
    assert "cover other steps: 15" in test.info[0].value
    assert canvas(test)["open"]["label"] == "Open step 5 in Perfetto (not profiled)"
    assert "--step 5" in test.code[0].value
    click(test, "Go to step 15")
    assert address(test)["step"] == "15"
    assert not test.info


def test_many_ranks_are_grouped_by_host_the_worst_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "wide", ranks=24, steps=4, slow_data_ms={17: 40})
    for rank in range(24):
        file = RunLayout(path).rank(rank).identity
        file.write_text(json.dumps({**json.loads(file.read_text()), "host": f"node{rank % 3}"}))
    data = canvas(page(path, monkeypatch))
    assert data["by_host"]
    assert data["order"].startswith("worst first")
    assert (data["ranks"][0]["rank"], data["ranks"][0]["at_fault"]) == (17, True)
    hosts = [rank["host"] for rank in data["ranks"]]
    assert hosts[:8] == ["node2"] * 8
    assert len([host for host, before in pairwise(hosts) if host != before]) == 2, "the ranks of a host are together"


def test_loose_clocks_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        made = gpu_trace(rank, names=("gemm", "elementwise"), base_ns=10**18 + 10**13 * rank)
        made.header["host_name"] = f"node-{rank}"
        for event in made.events:
            if event["name"] == "elementwise":
                event["args"] = {key: value for key, value in event["args"].items() if key in ("stream", "device")}
        made.write(tmp_path, f"rank-{rank}.json")
    assert "clock offset to the first rank is not known" in said(page(tmp_path, monkeypatch))


@pytest.mark.parametrize("name", [EVIL, BOLD])
def test_names_stay_text(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gpu_traces(tmp_path / "traces", names=(name, f"nccl {name}"))
    test = page(path, monkeypatch, rank="0", step=str(STEPS[1]))
    assert name not in json.dumps(canvas(test)), "names come with the tiles, as text"
    names = [row["Name"] for row in table(test, 1)]
    assert plain(name) in names
    assert name not in names
    assert "<script>" not in said(test)


def test_numbers_in_either_order_are_a_window() -> None:
    assert window_between(2.0, 1.0) == window_between(1.0, 2.0) == Window(1_000_000, 2_000_000)
    assert window_between(1.0, 1.0).dur_ns == 1000


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_kind_of_work_has_words_and_a_colour_that_can_be_written_on(theme: Theme) -> None:
    colours = work_colours(theme)
    assert len(colours) == len(WORK)
    assert all(work_words(work) for work in WORK)
    assert min(contrast(colour, ink_on(colour)) for colour in colours) >= 4.5
    for text in (theme.ink, theme.soft):
        assert contrast(text, theme.ground) >= 4.5


def test_the_canvas_knows_which_steps_were_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-straggler-rank0"
    windows = [step.step for step in timeline_of(open_run(run)).steps if step.window]
    assert windows
    assert [step for step, _, _, profiled in canvas(page(run, monkeypatch))["steps"] if profiled] == windows
