"""Pages on a phone: figures and tables are as wide as its window, and nothing of them is cut off."""

from __future__ import annotations

from itertools import product

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.app.served import Served
from tests.browser.chromium import visit

WIDTH, HEIGHT = 390, 844  # pixels


def box(of: Locator) -> dict[str, float]:
    found = of.bounding_box()
    assert found is not None
    return {"left": found["x"], "right": found["x"] + found["width"], **found}


def test_bars_have_the_width_of_the_phone_and_their_names_are_whole(browser: Browser, samples: Served) -> None:
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at("kernels?run=fsdp2-straggler-rank0"), until="Operators and modules")
        for title in ("Operators", "Modules", "Critical path by module"):
            found.page.get_by_role("heading", name=title, exact=True).evaluate("it => it.scrollIntoView()")
            figure = found.page.locator(
                f"h3:has-text('{title}') >> xpath=following::*[contains(@class,'js-plotly-plot')][1]"
            )
            expect(figure.locator(".annotation").first).to_be_visible()
            found.settle()
            whole = box(figure)
            assert whole["right"] <= WIDTH, title
            longest = max(box(bar)["right"] for bar in figure.locator(".bars .point path").all())
            assert longest - whole["left"] > 0.85 * whole["width"], title
            for name in figure.locator(".annotation").all():
                assert box(name)["right"] <= whole["right"] + 1, name.inner_text()
        assert found.complaints == []


def test_names_and_numbers_of_a_prediction_are_whole(browser: Browser, samples: Served) -> None:
    """None is crossed by the line that marks the measured step."""
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(
            samples.at("what-if?run=fsdp2-slow-link-rank1&baseline=fsdp2-not-overlapped"), until="The step would"
        )
        found.page.get_by_text("The step would").first.evaluate("it => it.scrollIntoView()")
        figure = found.page.locator(".js-plotly-plot").first
        written = figure.locator(".annotation-text")
        expect(written).to_have_count(3)
        found.settle()
        texts, marks = ([box(one) for one in found.all()] for found in (written, figure.locator(".shapelayer path")))
        assert max(text["right"] for text in texts) <= box(figure)["right"]
        assert len(marks) == 2
        for text, mark in product(texts, marks):
            assert mark["y"] + mark["height"] <= text["y"] + 1 or mark["y"] >= text["y"] + text["height"] - 1
        assert found.complaints == []


def test_a_legend_stands_above_its_figure_several_names_to_a_line(browser: Browser, samples: Served) -> None:
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at("?run=fsdp2-slow-loader-rank1"), until="Where the time goes")
        found.page.get_by_text("Every step of rank 1").evaluate("it => it.scrollIntoView()")
        legend, figure = (
            found.page.get_by_role("list", name="Legend").first,
            found.page.locator(".js-plotly-plot").first,
        )
        expect(figure).to_be_attached()
        names = legend.get_by_role("listitem")
        expect(names.filter(has_text="profiler window")).to_be_visible()
        found.settle()
        whole = [box(name) for name in names.all()]
        assert len({name["y"] for name in whole}) < len(whole)
        assert max(name["right"] for name in whole) <= WIDTH
        assert box(legend)["y"] + box(legend)["height"] <= box(figure)["y"]
        assert figure.locator(".legend").count() == 0
        assert found.complaints == []


def test_curves_of_many_runs_have_their_height_below_the_legend(browser: Browser, samples: Served) -> None:
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at(), until="All numbers")
        found.page.get_by_role("heading", name="Curves").evaluate("it => it.scrollIntoView()")
        legend = found.page.get_by_role("list", name="Legend")
        expect(legend.get_by_role("listitem")).to_have_count(6)
        legend.evaluate("it => it.scrollIntoView()")
        figure = found.page.locator(".js-plotly-plot").first
        expect(figure.locator(".annotation-text").first).to_have_text("step time, ms")
        found.settle()
        step_time, _, loss, _ = map(box, figure.locator(".annotation-text").all())
        assert step_time["y"] >= box(legend)["y"] + box(legend)["height"]
        assert loss["y"] - step_time["y"] > 0.45 * box(figure)["height"]
        assert found.complaints == []


def test_a_step_that_is_many_times_as_long_is_said_in_times(browser: Browser, samples: Served) -> None:
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at("compare?run=fsdp2-slow-link-rank1&with=fsdp2-not-overlapped"), until="The step is")
        expect(found.page.get_by_text("The step is 8.25 times as long: 34.9")).to_be_in_viewport()
        assert found.complaints == []


@pytest.mark.parametrize(("path", "last"), [("memory?run=gpu-memory-nearly-full", "Its price")])
def test_no_column_of_a_table_is_cut_off(browser: Browser, samples: Served, path: str, last: str) -> None:
    with visit(browser, height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at(path), until=last)
        assert box(found.page.get_by_role("columnheader", name=last))["right"] <= WIDTH
        assert found.complaints == []


def test_verdict_and_picture_stand_below_each_other_in_a_small_window(browser: Browser, samples: Served) -> None:
    """Beside the menu, columns would have a third of the window each."""
    with visit(browser, "dark", height=900, width=800) as found:
        found.open(samples.at("?run=fsdp2-slow-loader-rank1"), until="without the fault")
        verdict = found.page.get_by_text("Data-bound (90%").first
        picture = found.page.get_by_text("without the fault").first
        expect(picture).to_be_in_viewport()
        assert box(picture)["y"] > box(verdict)["y"] + box(verdict)["height"]
        assert box(verdict)["width"] > 400
        assert found.complaints == []


# What is written on canvases.
_WRITTEN = """() => {
    window.written = new Set();
    const {fillText} = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (...all) {
        window.written.add(all[0]);
        return fillText.apply(this, all);
    };
}"""


@pytest.mark.parametrize("width", [WIDTH, 800])
def test_the_names_of_the_timeline_are_whole_and_its_legend_is_short(
    browser: Browser, samples: Served, width: int
) -> None:
    with visit(browser, "dark", height=HEIGHT, width=width) as found:
        page = found.page
        page.add_init_script(f"({_WRITTEN})()")
        found.open(samples.at("timeline?run=fsdp2-straggler-rank0"), until="In this window")
        legend = page.get_by_label("Colours")
        entries = legend.locator(":scope > *")
        expect(legend).to_contain_text("communication: waiting for a rank")
        names = {
            *("time", "steps", "recorded collectives", "operators, main thread", "operators, other threads", "ranges"),
            *("● ▸ rank 0", "rank 1", "+ 16 rows with little or nothing"),
            *("memory of the process · 339 MB to 348 MB", "bus bandwidth · 1.05 kB/s to 564 MB/s"),
            *("0", "2", "10", "20", "22"),  # steps: every second one, which is as many as have room
        }
        page.wait_for_function(
            "names => names.every(name => [...written].some(text => text.replaceAll('\\u00a0', ' ') === name))",
            arg=sorted(names),
        )
        assert len({round(box(entry)["y"] / 12) for entry in entries.all()}) <= 3
        more = legend.get_by_role("button", name="others")
        more.click()
        for kind in ("idle", "data wait", "embedding"):
            expect(legend.get_by_text(kind, exact=True)).to_be_visible()
        legend.get_by_role("button", name="fewer colours").click()
        expect(more).to_be_visible()
        assert found.complaints == []


def test_numbers_stand_two_to_a_row(browser: Browser, samples: Served) -> None:
    with visit(browser, "dark", height=HEIGHT, width=WIDTH) as found:
        found.open(samples.at("memory?run=fsdp2-root-only"), until="Model states")
        cards = found.page.get_by_test_id("stMetric").filter(has_text="MB")
        expect(cards).to_have_count(5)
        _, *of_states = cards.all()
        tops = [box(card)["y"] for card in of_states]
        assert tops[0] == tops[1] < tops[2] == tops[3]
        for value in found.page.get_by_test_id("stMetricValue").all():
            assert value.evaluate(
                "it => [it, ...it.querySelectorAll('*')].every(each => each.scrollWidth <= each.clientWidth + 1)"
            )
        assert found.complaints == []
