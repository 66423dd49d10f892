"""The timeline as a person uses it: zoom by wheel and keys, search, details, two pinned ranks, a deep link."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from diag.api import Result, open_run
from diag.app.theme import theme_of
from diag.app.timeline_data.source import share, source_of
from diag.app.timeline_data.work import work_colours
from diag.collectors.layout import RunLayout
from diag.collectors.records import FORWARD
from diag.serve.server import SAMPLES
from diag.timeline import timeline_of
from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.app.test_live import cut, unended
from tests.browser.chromium import Scheme, Visit, visit
from tests.browser.perfetto import given, stand_in
from tests.poisoned import POISON
from tests.simulate import Plan, simulate
from tests.simulate import write_run as write_simulated
from tests.tables.lane_traces import FUNCTIONS, US, gpu_trace, write_gpu_traces

EVIL = f"<img src=https://evil.example/i onerror=document.title='owned'>{POISON}"
# Of the canvas: how many colours a part of it holds, which are as many as what is drawn there.
_COLOURS = """(canvas, [x, y, width, height]) => {
    const scale = window.devicePixelRatio;
    const {data} = canvas.getContext("2d").getImageData(x * scale, y * scale, width * scale, height * scale);
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) found.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
    return [...found];
}"""


# Where the top of the canvas has been, since this was called.
_TOPS = """canvas => {
    window.tops = [];
    setInterval(() => {
        const top = Math.round(canvas.getBoundingClientRect().top);
        if (!window.tops.includes(top)) window.tops.push(top);
    }, 5);
}"""
# One colour for each place [x, y]: of three pixels beside each other the one that is wanted, else the middle one.
_AT = """(canvas, places) => {
    const scale = window.devicePixelRatio, context = canvas.getContext("2d");
    return places.map(([x, y, wanted]) => {
        const {data} = context.getImageData(Math.round(x * scale) - 1, Math.round(y * scale), 3, 1);
        const hex = i => "#" + [0, 1, 2].map(k => data[4 * i + k].toString(16).padStart(2, "0")).join("");
        return [0, 1, 2].map(hex).find(colour => colour === wanted) || hex(1);
    });
}"""
# The part of the canvas that has the colour of counters.
_BLUE = """(canvas, [x, y, width, height]) => {
    const scale = window.devicePixelRatio;
    const {data} = canvas.getContext("2d").getImageData(x * scale, y * scale, width * scale, height * scale);
    let blue = 0;
    for (let i = 0; i < data.length; i += 4) blue += data[i] < 90 && data[i + 2] > 150;
    return blue / (data.length / 4);
}"""
# The part of it that has the colour of text and lines.
_INK = """(canvas, [x, y, width, height, ink]) => {
    const scale = window.devicePixelRatio;
    const {data} = canvas.getContext("2d").getImageData(x * scale, y * scale, width * scale, height * scale);
    let dark = 0;
    for (let i = 0; i < data.length; i += 4) dark += [0, 1, 2].every(k => Math.abs(data[i + k] - ink[k]) < 24);
    return dark / (data.length / 4);
}"""
_LABEL, _TOP, _RANK, _LANE = 172, 38, 22, 16  # pixels of the canvas: labels, axis and steps, a rank's row, a lane


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two ranks with a GPU each, of which the kernels have a hostile name."""
    run = write_gpu_traces(
        tmp_path_factory.mktemp("runs") / "traces", names=(f"gemm {EVIL}", "ncclDevKernel_AllReduce"), python=True
    )
    with dashboard(run) as running:
        yield running


def canvas_of(page: Page) -> Locator:
    return page.locator("canvas").first


def open_timeline(found: Visit, served: Served, query: str = "") -> Locator:
    found.open(served.at(f"timeline{query}"), until="In this window")
    canvas = canvas_of(found.page)
    expect(canvas).to_have_attribute("aria-label", re.compile("Timeline of"))
    found.page.wait_for_function(
        f"canvas => ({_COLOURS})(canvas, [182, 40, 400, 38]).length > 1", arg=canvas.element_handle()
    )
    return canvas


def window_of(page: Page) -> tuple[float, float]:
    """In ms, as the address has it."""
    asked = parse_qs(urlsplit(page.url).query)
    return float(asked["from"][0]), float(asked["to"][0])


def moved(page: Page, before: str) -> tuple[float, float]:
    """The window once the address is another than before, and stays as it is."""
    page.wait_for_function("before => location.href !== before", arg=before)
    seen = [page.url]
    while len(seen) < 10 or len({*seen[-10:]}) > 1:  # of a slow drag, the page is sent a part before the rest
        page.wait_for_timeout(200)
        seen.append(page.url)
    return window_of(page)


def cut_events(canvas: Locator, result: Result, pinned: Sequence[int], window: tuple[float, float]) -> list[str]:
    """The events of the pinned ranks that are not drawn from their begin to their end, as far as they lie in the
    window, in ms; narrow ones are left out."""
    box = canvas.bounding_box()
    assert box is not None
    column = (box["width"] - 10) / 2 if len(pinned) > 1 else box["width"]
    colours = work_colours(theme_of("light"))
    places: list[tuple[float, float, str]] = []
    abouts = []
    for number, rank in enumerate(pinned):
        left, wide = number * (column + 10) + _LABEL, column - _LABEL - 8
        begin, scale = window[0] * 1e6, wide / ((window[1] - window[0]) * 1e6)
        rows = source_of(share(result)).rows(rank, False)
        shown = [row for row in rows if len(row.start_ns[row.visible(*(round(ms * 1e6) for ms in window))])]
        for at, row in enumerate(shown):  # rows without an event in the window are folded
            y = _TOP + _RANK * len(timeline_of(result).ranks) + 10 + 42 + _LANE * at
            for start, end, work in zip(row.start_ns.tolist(), row.end_ns.tolist(), row.work.tolist(), strict=True):
                x, until = max(0, (start - begin) * scale), min(wide, (end - begin) * scale)
                if until - x >= 8:
                    places += [(left + x + (until - x - 6) * part / 8 + 3, y, colours[work]) for part in range(9)]
                    name = row.lane.names[int(row.lane.name[row.place[int(np.searchsorted(row.start_ns, start))]])]
                    abouts += [f"rank {rank} {row.title} {name} {start}-{end} at {part}/8" for part in range(9)]
    assert places, "the window has no event to look at"
    seen = canvas.evaluate(_AT, places)
    return [f"{a}: {c}, not {p[2]}" for a, c, p in zip(abouts, seen, places, strict=True) if c != p[2]]


def test_events_are_drawn_whole_at_borders_of_tiles(browser: Browser, tmp_path: Path) -> None:
    """Long events next to a row with more events than a tile holds singly, which is drawn as a picture."""
    for rank in (0, 1):
        made = gpu_trace(rank)
        made.op("long", 120 * US, 2900 * US).op("inner", 1000 * US, 2880 * US)
        for at in range(1600, 2860):
            made.op("tiny", at * US, at * US + 500)
        (tmp_path / "run").mkdir(exist_ok=True)
        made.framed().write(tmp_path / "run", f"rank-{rank}.json", compress=True)
    result = open_run(tmp_path / "run")
    with dashboard(tmp_path / "run") as served, visit(browser, width=1400) as found:
        nothing = {"launched": 0, "launches": [], "counters": []}  # no arrows over the events
        found.page.route("**/timeline-data/overlays*", lambda route: route.fulfill(json=nothing))
        for pinned, window in (((0,), (0.0, 3.0)), ((0, 1), (0.7, 2.95)), ((0,), (1.9, 2.3))):
            beside = f"&beside={pinned[1]}" if len(pinned) > 1 else ""
            canvas = open_timeline(found, served, f"?rank=0{beside}&from={window[0]}&to={window[1]}")
            found.page.wait_for_load_state("networkidle")
            found.page.wait_for_timeout(300)  # for the frame that draws the last tile
            assert cut_events(canvas, result, pinned, window) == []


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1440), ("dark", 800), pytest.param("light", 800, marks=pytest.mark.matrix),
     pytest.param("dark", 1440, marks=pytest.mark.matrix)],
)  # fmt: skip
def test_all_ranks_and_the_lanes_of_two(browser: Browser, traces: Served, scheme: Scheme, width: int) -> None:
    with visit(browser, scheme, width=width) as found:
        asked: list[str] = []
        missing: list[str] = []
        found.page.on("request", lambda request: asked.append(request.url))
        found.page.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
        canvas = open_timeline(found, traces, "?rank=0&beside=1&step=4")
        expect(canvas).to_have_attribute(
            "aria-label", "Timeline of 2 ranks from 1,000 µs to 2,000 µs; all lanes of rank 0 and rank 1"
        )
        box = canvas.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        for half in (0, box["width"] / 2) if box["width"] >= 900 else (0,):
            lanes = canvas.evaluate(_COLOURS, [half, 130, box["width"] / 2, 120])
            assert len(lanes) > 8, "every kind of lane has its colour"
        legend = found.page.get_by_label("Colours")
        if width < 900:  # where not all have room
            legend.get_by_role("button", name="others").click()
        for kind in (
            "compute",
            "communication: waiting for a rank",
            "gemm",
            "all-reduce",
            "copy between host and device",
        ):
            expect(legend.get_by_text(kind, exact=True)).to_be_visible()
        assert {urlsplit(url).hostname for url in asked if not url.startswith(("blob:", "data:"))} == {"127.0.0.1"}
        assert missing == [], "a deep link finds everything where it looks first"
        assert found.complaints == []


def test_the_legend_names_what_one_can_see(browser: Browser, served: Served) -> None:
    """Of a whole run, the kernels of its one profiled step are a few pixels: they are named when asked for."""
    with visit(browser, height=900, width=1440) as found:
        open_timeline(found, served, "?rank=0")
        legend = found.page.get_by_label("Colours")
        found.page.get_by_role("button", name="Whole run").click()
        more = legend.get_by_role("button", name=re.compile(r"\+ \d+ with little time"))
        expect(more).to_be_visible()
        hidden = (more.get_attribute("title") or "").split(", ")
        assert "attention" in hidden
        expect(legend.get_by_text("compute", exact=True)).to_be_visible()
        expect(legend.get_by_text("attention", exact=True)).to_have_count(0)
        more.focus()
        found.page.keyboard.press("Enter")
        for kind in hidden:
            expect(legend.get_by_text(kind, exact=True)).to_be_visible()
        fewer = legend.get_by_role("button", name="fewer colours")
        expect(fewer).to_be_focused()
        found.page.keyboard.press("Enter")
        expect(legend.get_by_text("attention", exact=True)).to_have_count(0)
        shades = legend.locator("i").evaluate_all("squares => squares.map(it => it.style.background)")
        assert len(shades) == len(set(shades)), "one square a colour"
        assert found.complaints == []


def test_wheel_drag_and_keys(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0")
        box = canvas.bounding_box()
        assert box is not None
        assert window_of(page) == (0, 3)
        middle = box["x"] + 172 + (box["width"] - 180) / 2
        page.mouse.move(middle, box["y"] + 50)
        before = page.url
        page.mouse.wheel(0, -600)
        begin, end = moved(page, before)
        assert end - begin < 2.9
        assert (begin + end) / 2 == pytest.approx(1.5, abs=0.02), "the moment under the pointer stays where it is"
        before = page.url
        page.mouse.down()
        page.mouse.move(middle + 100, box["y"] + 50, steps=4)
        page.mouse.up()
        assert moved(page, before)[0] < begin
        before = page.url
        canvas.focus()
        width = window_of(page)[1] - window_of(page)[0]
        page.keyboard.press("w")
        narrower = moved(page, before)
        assert narrower[1] - narrower[0] == pytest.approx(0.8 * width, rel=0.01)
        before = page.url
        page.keyboard.press("d")
        assert moved(page, before)[0] > narrower[0]
        before = page.url
        page.keyboard.press("ArrowLeft")
        assert moved(page, before)[0] == pytest.approx(narrower[0], abs=0.01)
        before = page.url
        page.keyboard.press("Home")
        assert moved(page, before) == (0, 3)
        before = page.url
        page.keyboard.down("Shift")
        page.mouse.move(box["x"] + 172, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 172 + (box["width"] - 180) / 3, box["y"] + 50, steps=4)
        page.mouse.up()
        page.keyboard.up("Shift")
        assert moved(page, before) == pytest.approx((0, 1), abs=0.02)
        found.settle()
        assert found.complaints == []


def test_a_click_shows_launch_and_module_and_a_hostile_name_stays_text(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0&step=4")
        page.get_by_label("Search the events of all ranks by name").fill("gemm")
        page.keyboard.press("Enter")
        details = page.get_by_label("Details of an event")
        expect(details.get_by_role("heading")).to_contain_text("gemm <img src=https")
        expect(details).to_contain_text("aten::outer > aten::mm")
        expect(details).to_contain_text("300\u00a0µs")
        expect(page.get_by_text("2 of 3")).to_be_visible()
        page.get_by_role("button", name="Next match").click()
        expect(page.get_by_text("3 of 3")).to_be_visible()
        page.wait_for_url("**find=gemm**")
        expect(page.get_by_text("6 on 2 of 2 ranks", exact=True)).to_be_visible()
        page.get_by_role("button", name="Next match").click()
        expect(page.get_by_text("rank 1: 1 of 3", exact=True)).to_be_visible()
        page.wait_for_url("**rank=1**")
        page.get_by_role("button", name="Previous match").click()
        expect(page.get_by_text("rank 0: 3 of 3", exact=True)).to_be_visible()
        page.wait_for_url("**rank=0**")
        page.get_by_role("button", name="Close").click()
        expect(details).to_be_hidden()
        expect(canvas).to_be_focused()
        found.settle()
        box = canvas.bounding_box()
        assert box is not None
        canvas.click(position={"x": 172 + (box["width"] - 180) / 2, "y": 50})
        expect(details).to_contain_text("Duration")
        assert page.title() != "owned"
        assert page.locator("img[src*=evil]").count() == 0
        found.settle()
        assert found.complaints == []


def test_functions_of_python_are_switched_on(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0&step=4")
        switch = page.get_by_role("button", name="Python functions")
        expect(switch).to_have_attribute("aria-pressed", "false")
        height = (canvas.bounding_box() or {"height": 0})["height"]
        switch.click()
        page.wait_for_url("**python=1**")
        expect(switch).to_have_attribute("aria-pressed", "true")
        page.wait_for_function("([canvas, high]) => canvas.clientHeight > high", arg=[canvas.element_handle(), height])
        page.get_by_label("Search the events of all ranks by name").fill("forward")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Details of an event")).to_contain_text(FUNCTIONS[1])
        found.open(page.url, until="In this window")
        expect(page.get_by_role("button", name="Python functions")).to_have_attribute("aria-pressed", "true")
        assert found.complaints == []


@pytest.mark.matrix
def test_details_by_keyboard_alone(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0&from=0.150&to=0.350")
        canvas.focus()
        for _ in range(3):  # from the first rank over the second to the rows of the pinned one
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        details = page.get_by_label("Details of an event")
        expect(details).to_contain_text("gemm")
        page.keyboard.press("]")
        expect(details).to_contain_text("1.100000 ms")
        page.keyboard.press("Escape")
        expect(details).to_be_hidden()
        before = page.url
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Shift+P")
        page.wait_for_url("**beside=1**")
        assert page.url != before
        expect(canvas).to_have_attribute("aria-label", re.compile("all lanes of rank 0 and rank 1"))
        page.keyboard.press("0")
        page.keyboard.press("/")
        page.keyboard.type("gemm")
        page.keyboard.press("Enter")
        expect(page.get_by_text("rank 0: 1 of 3", exact=True)).to_be_visible()
        canvas.focus()
        for shown in ("rank 1: 1 of 3", "rank 0: 2 of 3", "rank 1: 2 of 3"):
            page.keyboard.press("n")
            expect(page.get_by_text(shown, exact=True)).to_be_visible()
        for shown in ("rank 0: 2 of 3", "rank 1: 1 of 3"):
            page.keyboard.press("Shift+N")
            expect(page.get_by_text(shown, exact=True)).to_be_visible()
        found.settle()
        assert found.complaints == []


def test_a_gap_says_why_and_a_span_is_measured(browser: Browser, traces: Served) -> None:
    """On the kernels of step 4: nothing from 400 us of step 3 on until 100 us after its begin."""
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0&step=4")
        box = canvas.bounding_box()
        assert box is not None
        width = box["width"] - 180
        details = page.get_by_label("Details of an event")
        lanes = _TOP + 2 * _RANK + 10 + 42
        canvas.click(position={"x": _LABEL + 0.07 * width, "y": lanes + _LANE + 8})
        expect(details).to_contain_text("nothing ran here for 700\u00a0µs")
        expect(details).to_contain_text("launched")
        page.get_by_role("button", name="Measure").click()
        page.mouse.move(box["x"] + _LABEL + width / 4, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + _LABEL + width * 3 / 4, box["y"] + 50, steps=4)
        page.mouse.up()
        expect(details).to_contain_text("Measured: 500\u00a0µs")
        expect(details).to_contain_text("communication: waiting for a rank")
        before = page.url
        page.get_by_role("button", name="Next step").click()
        moved(page, before)
        page.wait_for_url("**step=5**")
        assert found.complaints == []


def test_the_critical_path_is_a_line_through_the_ranks(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        page = found.page
        canvas = open_timeline(found, traces, "?rank=0&step=4")
        ink = ",".join(str(int(theme_of("light").ink[i : i + 2], 16)) for i in (1, 3, 5))
        area = [_LABEL + 5, _TOP, 600, 2 * _RANK]
        has_ink = f"([canvas, area, ink]) => ({_COLOURS})(canvas, area).includes(ink)"
        page.wait_for_function(has_ink, arg=[canvas.element_handle(), area, ink])
        switch = page.get_by_role("button", name="Critical path")
        expect(switch).to_have_attribute("aria-pressed", "true")
        switch.click()
        page.wait_for_function(f"(all) => !({has_ink})(all)", arg=[canvas.element_handle(), area, ink])
        assert found.complaints == []


@pytest.mark.matrix
def test_perfetto_is_given_the_trace_in_the_browser(browser: Browser, traces: Served) -> None:
    with visit(browser) as found:
        stand_in(found.page)
        open_timeline(found, traces, "?rank=1&step=4")
        with found.page.context.expect_page() as opened:
            found.page.get_by_role("button", name="Open step 4 in Perfetto").click()
        expect(opened.value).to_have_title("rank1-step4.json")
        assert "ncclDevKernel_AllReduce" in given(opened.value)
        assert found.complaints == []


def busy_of_ink(canvas: Locator) -> float:
    """The part of eight rows of ranks that has the colour of text and lines."""
    box = canvas.bounding_box()
    assert box is not None
    ink = [int(theme_of("light").ink[place : place + 2], 16) for place in (1, 3, 5)]
    part: float = canvas.evaluate(_INK, [_LABEL + 4, _TOP, box["width"] - _LABEL - 20, 8 * _RANK, ink])
    return part


@pytest.fixture(scope="module")
def many_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Ranks that differ by chance, so that the critical path changes rank at every collective; rank 37 is slower."""
    run = tmp_path_factory.mktemp("runs") / "many"
    plan = Plan(
        ranks=64, steps=10, units=6, jitter=0.05, hosts=lambda rank: f"node{rank // 8}",
        extra=lambda step, rank: {FORWARD: 60_000_000} if rank == 37 else {},
    )  # fmt: skip
    write_simulated(simulate(plan), run)
    with dashboard(run) as running:
        yield running


def test_many_ranks_open_as_one_step_of_the_culprit_and_those_who_wait(browser: Browser, many_ranks: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        canvas, page = open_timeline(found, many_ranks), found.page
        legend = page.get_by_label("Colours")
        expect(page.get_by_text("8 of 64 ranks: at fault first, then those that wait longest")).to_be_visible()
        begin, end = window_of(page)
        step = re.search(r"step=(\d+)", page.url)
        assert step, "one step is in view"
        expect(page.get_by_role("spinbutton", name="Step")).to_have_value(step[1])
        expect(canvas).to_be_in_viewport(ratio=0.95)
        expect(legend).to_contain_text("critical path")
        expect(legend).not_to_contain_text("changes of rank")
        assert busy_of_ink(canvas) < 0.06
        page.get_by_role("button", name="Whole run").click()
        expect(legend).to_contain_text(re.compile("critical path, \\d+ changes of rank: zoom in"))
        assert busy_of_ink(canvas) < 0.06, "many changes of rank are no wall of lines"
        height = (canvas.bounding_box() or {"height": 0})["height"]
        page.get_by_role("button", name="Show all 64 ranks").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Fold ranks")).to_be_focused()
        page.wait_for_function("([canvas, high]) => canvas.clientHeight > high", arg=[canvas.element_handle(), height])
        page.keyboard.press("Enter")
        page.wait_for_function(
            "([canvas, high]) => canvas.clientHeight === high", arg=[canvas.element_handle(), height]
        )
        page.get_by_role("combobox", name="Pinned rank", exact=True).select_option("50")
        expect(page.get_by_text("9 of 64 ranks")).to_be_visible()
        assert end - begin < 400
        assert found.complaints == []


def test_a_press_during_which_the_page_is_drawn_again_is_a_click(browser: Browser, many_ranks: Served) -> None:
    """The page is sent the window a moment after one has zoomed, and answers with all that is on the timeline."""
    with visit(browser, height=900, width=1440) as found:
        canvas, page = open_timeline(found, many_ranks), found.page
        drawn = page.get_by_text(re.compile("^[0-9,.]+ to [0-9,.]+ ms: "))  # below the canvas: it comes after it
        fold = page.get_by_role("button", name="Show all 64 ranks")
        more = page.get_by_label("Colours").get_by_role("button", name=re.compile("with little time"))
        for button, pressed in (
            (fold, page.get_by_role("button", name="Fold ranks")),
            (more, page.get_by_role("button", name="fewer colours")),
        ):
            if button is more and not more.count():
                continue
            canvas.focus()
            before = drawn.inner_text()
            page.keyboard.press("w")
            button.hover()
            page.mouse.down()
            expect(drawn).not_to_have_text(before)
            page.mouse.up()
            expect(pressed).to_be_visible()
        assert found.complaints == []


def test_what_was_asked_about_a_rank_or_step_does_not_stay_with_another(browser: Browser, served: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        canvas, page = open_timeline(found, served, "?rank=0&step=12"), found.page
        details, measure = page.get_by_label("Details of an event"), page.get_by_role("button", name="Measure")

        def measured() -> None:
            box = canvas.bounding_box()
            assert box is not None
            measure.click()
            page.mouse.move(box["x"] + 300, box["y"] + 50)
            page.mouse.down()
            page.mouse.move(box["x"] + 500, box["y"] + 50, steps=4)
            page.mouse.up()
            expect(details).to_contain_text("Measured:")

        def gone() -> None:
            expect(details).to_be_hidden()
            expect(measure).to_have_attribute("aria-pressed", "false")

        measured()
        page.get_by_role("button", name="Next step").click()
        gone()
        measured()
        canvas.evaluate(_TOPS)
        page.get_by_role("combobox", name="Pinned rank", exact=True).select_option("1")
        gone()
        legend = page.get_by_label("Colours")
        expect(canvas).to_have_attribute("aria-label", re.compile("all lanes of rank 1"))
        page.wait_for_load_state("networkidle")
        expect(legend).to_contain_text("critical path")
        assert len(page.evaluate("tops")) == 1, "a click meets what was under the pointer before the legend grew"
        canvas.click(position={"x": 400, "y": 50})
        expect(details).to_contain_text("Duration")
        page.get_by_placeholder("step", exact=True).fill("15")
        page.keyboard.press("Enter")
        gone()
        assert found.complaints == []


def test_in_a_small_window_the_tool_bar_is_one_row(browser: Browser, served: Served) -> None:
    with visit(browser, "dark", height=900, width=800) as found:
        canvas, page = open_timeline(found, served, "?rank=0&step=12"), found.page
        bar, tools = page.get_by_role("toolbar", name="Timeline"), page.get_by_role("button", name="Tools", exact=True)
        box = bar.bounding_box()
        assert box is not None
        assert box["height"] < 40
        expect(page.get_by_role("combobox", name="Pinned rank", exact=True)).to_be_visible()
        search = page.get_by_label("Search the events of all ranks by name")
        expect(search).to_be_hidden()
        expect(tools).to_have_attribute("aria-expanded", "false")
        canvas.focus()
        page.keyboard.press("/")
        expect(search).to_be_focused()
        tools.click()
        expect(search).to_be_hidden()
        assert found.complaints == []


def test_counters_are_lines_between_their_lowest_and_highest_value(browser: Browser) -> None:
    with dashboard(SAMPLES / "gpu-hf-trainer") as served, visit(browser, height=1400) as found:
        answers: list[dict[str, Any]] = []
        found.page.on("response", lambda answer: answers.append(answer.json()) if "/overlays" in answer.url else None)
        canvas = open_timeline(found, served, "?rank=0&step=all")
        found.page.wait_for_function("canvas => canvas.clientHeight > 500", arg=canvas.element_handle())
        found.settle()
        counters = {each["name"]: each for each in answers[-1]["counters"]}
        assert (
            counters["power"]["scale"]
            == f"{counters['power']['lowest']:,.0f} W to {counters['power']['highest']:,.0f} W"
        )
        box = canvas.bounding_box()
        assert box is not None
        wide, high = box["width"] - _LABEL - 8, 34 * len(counters)
        accent = canvas.evaluate(_BLUE, [_LABEL, box["height"] - high - 10, wide, high])
        assert 0.02 < accent < 0.12, "lines, no slabs"
        assert found.complaints == []


@pytest.mark.matrix
def test_hundreds_of_ranks_are_paged(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=130, steps=3, slow_data_ms={77: 40})
    with dashboard(run) as served, visit(browser) as found:
        open_timeline(found, served)
        page = found.page
        page.get_by_role("button", name="Show all 130 ranks").click()
        shown = page.get_by_text(re.compile("ranks shown, worst first"))
        expect(shown).to_contain_text("64 of 130 ranks shown")
        page.get_by_role("button", name="Next 64").click()
        expect(shown).to_contain_text("(places 65 to 128)")
        page.get_by_role("button", name="All", exact=True).click()
        expect(shown).to_contain_text("130 of 130 ranks shown")
        canvas = canvas_of(page)
        page.wait_for_function(  # the last rows are painted, too
            f"canvas => ({_COLOURS})(canvas, [182, 300, 1000, 100]).length > 2", arg=canvas.element_handle()
        )
        assert found.complaints == []


@pytest.mark.matrix
def test_the_whole_of_a_run_that_trains_is_followed_until_one_zooms(browser: Browser, tmp_path: Path) -> None:
    run = unended(write_run(tmp_path / "run", steps=12))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 6)
    with dashboard(run) as served, visit(browser) as found:
        os.utime(RunLayout(run).rank(0).steps)
        canvas = open_timeline(found, served)
        label = canvas.get_attribute("aria-label") or ""
        for rank, files in RunLayout(run).ranks().items():
            files.steps.write_text(whole[rank])
        expect(canvas).not_to_have_attribute("aria-label", label)
        expect(found.page.get_by_text("12 steps").first).to_be_visible()
        label = canvas.get_attribute("aria-label") or ""
        canvas.focus()
        found.page.keyboard.press("w")
        expect(canvas).not_to_have_attribute("aria-label", label)
        closer = canvas.get_attribute("aria-label") or ""
        cut(run, 9)
        found.page.get_by_text("9 steps").first.wait_for()
        expect(canvas).to_have_attribute("aria-label", closer)
        assert found.complaints == []
