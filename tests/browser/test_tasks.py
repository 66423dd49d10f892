"""What people come to the dashboard for, each in at most two clicks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, Position, expect

from diag.api import open_run
from diag.serve.server import SAMPLES
from diag.timeline import timeline_of
from tests.app.served import Served, dashboard
from tests.browser import pictured
from tests.browser.chromium import visit
from tests.browser.perfetto import given, stand_in
from tests.tables.test_memory_curve import trained

Click = Callable[[Page], Locator]
MOST_CLICKS = 2


# Clicks of a person, wherever on the page, from its opening on.
_CLICKS = """
window.clicks = 0;
window.addEventListener('click', event => { if (event.isTrusted) window.clicks++; }, true);
"""


class Task(NamedTuple):
    """``opened``: the address at which one begins, as ``diag dashboard`` prints it for a folder, or a run of it;
    ``seen``: the answer on the page, which is not there before the last click."""

    opened: str
    clicks: tuple[Click, ...]
    seen: Callable[[Page], Locator]


def text(words: str | re.Pattern[str]) -> Callable[[Page], Locator]:
    return lambda page: page.get_by_text(words).first


def menu(title: str) -> Click:
    return lambda page: page.get_by_test_id("stSidebarNavLink").filter(has_text=title)


def button(name: str) -> Click:
    return lambda page: page.get_by_role("button", name=name, exact=True)


def advice(words: str) -> Callable[[Page], Locator]:
    return lambda page: page.get_by_role("listitem").filter(has_text=words).first


def figure(page: Page, key: str) -> Locator:
    return page.locator(f"[class*='st-key-{key}-'] .js-plotly-plot")


COMPARED = re.compile(r"The step is .*(shorter|longer|as long)")  # the sentence of the terminal
SLOW_LINK, STRAGGLER = "?run=fsdp2-slow-link-rank1", "?run=fsdp2-straggler-rank0"
TASKS = {
    "which run is worst": Task("", (), advice("critical")),
    "which rank is at fault": Task(STRAGGLER, (), text("at fault ▸ rank 0")),
    "which collective takes longest": Task(
        SLOW_LINK, (menu("Collectives"),), lambda page: page.locator(".ytick").filter(has_text="all-gather 197").first
    ),
    "which module": Task(
        STRAGGLER,
        (menu("Kernels"),),
        lambda page: figure(page, "modules").locator(".annotation").filter(has_text="(root)"),
    ),
    "would prefetch help": Task("?run=fsdp2-not-overlapped", (), advice("prefetch")),
    "what is live at the peak": Task("?run=peak", (menu("Memory"),), text("Allocated at the peak")),
    "the network, or a rank": Task(SLOW_LINK, (menu("Collectives"),), text("The others' waiting is for its link")),
    "what would it be without the fault": Task(SLOW_LINK, (menu("What if"),), text("The step would take")),
    "where memory peaks": Task("?run=fsdp2-root-only", (menu("Memory"),), text("Memory of rank 1 jumps by 30.1")),
    "what to send a colleague": Task(STRAGGLER, (button("Copy as message"),), text("Copied")),
    "did the change help": Task(STRAGGLER, (menu("Compare"),), text(COMPARED)),
    "is it running, and how far": Task(STRAGGLER, (), text("24 of 24 steps")),
    "who hangs": Task("", (button("hung"),), text("A rank did not join the collective: rank 3")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The samples, a trace with memory, and the logs and dumps of a job that hung."""
    root: Path = pictured.write(tmp_path_factory.mktemp("tasks") / "runs")
    (root / "peak").mkdir()
    trained().write(root / "peak", "rank0.json")
    with dashboard(root) as running:
        yield running


@pytest.mark.matrix
@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_two_clicks_at_most(browser: Browser, folder: Served, name: str) -> None:
    task = TASKS[name]
    with visit(browser, height=900, width=1440) as found:
        page = found.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.add_init_script(_CLICKS)
        found.open(folder.at(task.opened), until="rank")
        for click in task.clicks:
            assert not task.seen(page).is_visible(), "it was there before the click"
            click(page).click()
        expect(task.seen(page)).to_be_visible()
        assert page.evaluate("clicks") == len(task.clicks) <= MOST_CLICKS
        assert found.complaints == []


def test_a_module_is_shown_on_the_timeline_by_a_click_on_its_bar(browser: Browser, samples: Served) -> None:
    """The menu, and that click. Both the modules and the operators are on the first screen."""
    with visit(browser, height=900, width=1440) as found:
        page = found.page
        found.open(samples.at(STRAGGLER), until="rank")
        menu("Kernels")(page).click()
        bars = figure(page, "modules")
        expect(bars.locator(".annotation").filter(has_text="blocks.0")).to_be_in_viewport()
        expect(figure(page, "kernels").locator(".annotation").first).to_be_in_viewport()
        found.settle()
        names = bars.locator(".annotation-text").all_text_contents()
        place = next(at for at, name in enumerate(names) if name.startswith("blocks.0"))
        bar = bars.locator(".trace.bars").first.locator(".point path").nth(place).bounding_box()
        assert bar is not None
        page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
        page.wait_for_url("**/timeline**find=blocks.0**")
        expect(page.get_by_text(re.compile("^[1-9][0-9]* on [12] of 2 ranks"))).to_be_visible()
        assert found.complaints == []


def test_collectives_are_sorted_by_a_heading_and_a_tick_shows_that_one(browser: Browser, samples: Served) -> None:
    """The table is drawn on a canvas; what it shows is in a hidden table for screen readers."""
    with visit(browser, height=900, width=1440) as found:
        found.open(samples.at("collectives?run=fsdp2-slow-loader-rank1"), until="Every kind of collective")
        page = found.page
        table = page.get_by_test_id("stDataFrame").first
        table.scroll_into_view_if_needed()
        headings = table.locator("canvas [role=columnheader]")
        expect(headings.filter(has_text="Exposed")).to_have_count(1)
        first = table.locator("canvas [role=row]").nth(1).locator("[role=gridcell]")
        names = [name.split(",")[0] for name in headings.all_inner_texts()]
        longest = dict(zip(names, first.all_inner_texts(), strict=True))
        table.click(position={"x": 300, "y": 18})
        expect(first.nth(names.index("Operation"))).not_to_have_text(longest["Operation"])
        now = dict(zip(names, first.all_inner_texts(), strict=True))
        table.click(position={"x": 17, "y": 54})  # the tick of the first row
        chosen = page.get_by_role("combobox", name="Collective")
        size = round(float(now["Size"].replace(",", "")))
        expect(chosen).to_have_value(re.compile(rf"{now['Operation']} {size}\s"))
        assert found.complaints == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "title", "holds"),
    [
        ("Open step 12 in Perfetto (not profiled)", "rank0-step12-recorded.json", "reduce_scatter"),
        ("All ranks in Perfetto", "step12-2-ranks.zip", "perfetto_manifest"),
    ],
)
def test_any_step_is_opened_in_perfetto_by_its_number(
    browser: Browser, samples: Served, name: str, title: str, holds: str
) -> None:
    clicks = menu("Timeline"), button(name)
    assert len(clicks) <= MOST_CLICKS
    with visit(browser, height=900, width=1440) as found:
        stand_in(found.page)
        found.open(samples.at(STRAGGLER), until="rank")
        clicks[0](found.page).click()
        found.page.get_by_placeholder("step", exact=True).fill("12")
        found.page.keyboard.press("Enter")
        expect(button("Open step 12 in Perfetto (not profiled)")(found.page)).to_be_visible()
        with found.page.context.expect_page() as opened:
            clicks[1](found.page).click()
        expect(opened.value).to_have_title(title)
        assert holds in given(opened.value)
        assert found.complaints == []


@pytest.mark.matrix
def test_a_step_is_opened_in_perfetto_by_a_click_on_its_number(browser: Browser, samples: Served) -> None:
    """The menu, and that click: nothing is typed."""
    timeline = timeline_of(open_run(SAMPLES / "fsdp2-straggler-rank0"))
    step = next(span for span in timeline.steps if span.step == 12)
    middle = (step.begin_ns + step.end_ns) / 2 / timeline.end_ns
    with visit(browser, height=900, width=1440) as found:
        stand_in(found.page)
        found.open(samples.at(STRAGGLER), until="rank")
        menu("Timeline")(found.page).click()
        canvas = found.page.get_by_role("application", name=re.compile("Timeline of"))
        box = canvas.bounding_box()
        assert box is not None
        at: Position = {"x": 172 + middle * (box["width"] - 180), "y": 30.0}  # right of the labels, below the axis
        canvas.hover(position=at)
        expect(found.page.get_by_text("Click: show it; with Shift: open it of rank 0 in Perfetto")).to_be_visible()
        with found.page.context.expect_page() as opened:
            canvas.click(position=at, modifiers=["Shift"])
        expect(opened.value).to_have_title("rank0-step12-recorded.json")
        canvas.click(position=at)
        found.page.wait_for_url("**step=12**")
        assert found.complaints == []
