"""A folder of runs, as a person sees it: worst first, each with its cause, to open, to compare, against a baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from diag.api import compare_runs, open_run
from diag.show.compare import headline
from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import visit
from tests.browser.conftest import headline_of

PHONE = 390
_RIGHT = "it => Math.max(...[...it.querySelectorAll('th, td')].map(cell => cell.getBoundingClientRect().right))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("runs")
    write_run(root / "alright")
    write_run(root / "slow", slow_data_ms={1: 40})
    write_run(root / "third")
    return root


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with dashboard(folder) as running:
        yield running


def rows(page: Page) -> Locator:
    return page.get_by_role("list").get_by_role("listitem").filter(has=page.get_by_role("checkbox"))


def test_a_folder_opens_with_its_runs_worst_first(browser: Browser, served: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        found.open(served.at("?baseline=alright"), until="All numbers")
        first, second = rows(found.page).nth(0), rows(found.page).nth(1)
        expect(first).to_contain_text("The data loader of rank 1 is slow")
        expect(second).to_contain_text("healthy")
        expect(first.get_by_role("button", name="slow", exact=True)).to_be_visible()
        for text in ("critical", "finished", "rank 1", "105 ms", "+59%"):
            expect(first).to_contain_text(text.replace(" ms", "\u00a0ms"))
        expect(first.locator(".cause b")).to_have_text("rank\u00a01")
        expect(first.locator(".cause")).to_have_text(re.compile("^The data loader of rank\\s1 is slow"))
        expect(second).to_contain_text("baseline")
        assert first.get_by_role("img").get_attribute("aria-label") == "step time over 12\u00a0steps: 105 to 105 ms"
        first.get_by_role("button").click()
        expect(found.page.get_by_role("heading", name="slow", exact=True)).to_be_visible()
        assert found.complaints == []


def test_runs_are_sorted_by_a_heading(browser: Browser, served: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        found.open(served.at("?baseline=alright"), until="All numbers")
        page = found.page
        names = rows(page).locator(".name")
        expect(names.first).to_have_text("slow")
        worst = names.all_inner_texts()
        head = page.get_by_role("toolbar", name="Sort the runs")
        head.get_by_role("button", name="Run").click()
        expect(names).to_have_text(["alright", "slow", "third"])
        head.get_by_role("button", name="Run").click()
        expect(names).to_have_text(["third", "slow", "alright"])
        head.get_by_role("button", name="Change").focus()
        page.keyboard.press("Enter")
        expect(names.first).to_have_text("slow")
        page.keyboard.press("Enter")
        expect(names.last).to_have_text("slow")
        expect(head.get_by_role("button", name="Change")).to_be_focused()
        rows(page).last.get_by_role("checkbox").check()  # which draws the page again
        expect(page.get_by_text("1 ticked run")).to_be_visible()
        expect(names.last).to_have_text("slow")
        head.get_by_role("button", name="Cause, worst first").click()
        expect(names).to_have_text(worst)
        assert found.complaints == []


def test_a_press_during_which_the_list_is_drawn_again_is_a_click(browser: Browser, served: Served) -> None:
    """A tick draws the page again, here in other colours, so that all rows are others."""
    with visit(browser, height=900, width=1440) as found:
        found.open(served.at("?baseline=alright"), until="All numbers")
        page = found.page
        rows(page).get_by_role("button", name="third", exact=True).hover()
        page.mouse.down()
        page.emulate_media(color_scheme="dark")
        page.get_by_role("checkbox", name="Choose slow", exact=True).evaluate("it => it.click()")
        expect(page.get_by_text("1 ticked run")).to_be_visible()
        found.settle()
        page.mouse.up()
        expect(page.get_by_role("heading", name="third", exact=True)).to_be_visible()
        assert found.complaints == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["compare", "collectives", "timeline", "first"])
def test_no_column_of_a_table_is_cut_on_a_phone(browser: Browser, served: Served, path: str) -> None:
    with visit(browser, height=844, width=PHONE) as found:
        page = found.page
        address = "?run=slow" if path == "first" else f"{path}?run=slow"
        found.open(served.at(address), until="slow")
        tables = page.get_by_test_id("stTable")
        if path != "first":
            expect(tables.first).to_be_attached()
        for table in tables.all():
            right = table.evaluate(_RIGHT)
            assert right <= PHONE
        assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= PHONE
        assert found.complaints == []


def test_two_ticked_runs_are_compared_in_the_words_of_the_terminal(
    browser: Browser, served: Served, folder: Path
) -> None:
    sentence = headline(compare_runs(open_run(folder / "alright"), open_run(folder / "slow")))
    with visit(browser) as found:
        found.open(served.at(), until="All numbers")
        for name in ("alright", "slow"):
            found.page.get_by_role("checkbox", name=f"Choose {name}").check()
        found.page.get_by_role("button", name="Compare alright with slow").click()
        found.page.wait_for_url("**/compare**")
        expect(found.page.get_by_text(sentence).first).to_be_visible()
        assert found.complaints == []


def test_what_differs_between_many_ticked_runs(browser: Browser, served: Served, folder: Path) -> None:
    with visit(browser, height=1400) as found:
        found.open(served.at("?baseline=alright"), until="All numbers")
        page = found.page
        for name in ("alright", "slow", "third"):
            page.get_by_role("checkbox", name=f"Choose {name}", exact=True).check()
            found.settle()
        page.get_by_text("What differs between the ticked runs").click()
        for name in ("slow", "third"):
            said = headline(compare_runs(open_run(folder / "alright"), open_run(folder / name)))
            expect(page.get_by_text(f"{name} against alright: {said}")).to_be_visible()
        page.get_by_text("Difference by collective, kernel and module").first.evaluate("it => it.scrollIntoView()")
        expect(page.get_by_text("Exposed time of collectives: mean milliseconds of a rank's step")).to_be_visible()
        assert found.complaints == []


def legend_of_curves(page: Page) -> Locator:
    return page.get_by_role("list", name="Legend").get_by_role("listitem")


def look_of_curves(page: Page) -> dict[str, str]:
    """The colour of each run in the legend of the curves."""
    entries = legend_of_curves(page)
    shades = entries.locator("i").evaluate_all("all => all.map(it => getComputedStyle(it).borderTopColor)")
    return dict(zip(entries.all_text_contents(), shades, strict=True))


def test_a_run_keeps_its_colour_whatever_is_ticked(browser: Browser, served: Served) -> None:
    with visit(browser, height=1400) as found:
        found.open(served.at(), until="All numbers")
        page = found.page
        expect(legend_of_curves(page)).to_have_count(3)
        before = look_of_curves(page)
        assert len(set(before.values())) == 3
        for name, colour in before.items():
            row = rows(page).filter(has=page.get_by_role("button", name=name, exact=True))
            expect(row.locator(".swatch")).to_have_css("border-top-color", colour)
        for name in ("third", "slow"):
            page.get_by_role("checkbox", name=f"Choose {name}", exact=True).check()
            found.settle()
        expect(legend_of_curves(page)).to_have_count(2)
        assert look_of_curves(page) == {name: before[name] for name in ("slow", "third")}
        expect(rows(page).filter(has_text="alright").locator(".swatch")).to_have_count(0)
        assert found.complaints == []


@pytest.mark.parametrize("width", [PHONE, 1440])
def test_names_and_values_of_a_comparison_do_not_lie_over_each_other(
    browser: Browser, served: Served, width: int
) -> None:
    with visit(browser, height=1400, width=width) as found:
        found.open(served.at("compare?run=slow&with=alright"), until="Difference by part of the step")
        texts = found.page.locator(".js-plotly-plot").first.locator(".annotation-text")
        expect(texts.first).to_contain_text("alright 66.0 ms")
        expect(texts.last).to_contain_text("slow 105 ms")
        boxes = sorted((box for each in texts.all() if (box := each.bounding_box())), key=lambda box: box["y"])
        assert len(boxes) == texts.count() > 3
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        assert all(upper["y"] + upper["height"] <= lower["y"] for upper, lower in pairwise(boxes))
        assert found.complaints == []


def test_an_address_of_one_run_opens_that_run(browser: Browser, served: Served, folder: Path) -> None:
    with visit(browser) as found:
        found.open(served.at("?run=slow&rank=0"), until=headline_of(open_run(folder / "slow")))
        found.page.wait_for_url("**rank=0**")
        expect(found.page.get_by_role("heading", name="slow", exact=True)).to_be_visible()
        found.open(served.at("hang?run=nowhere"), until="nowhere is not in this folder")


def test_a_phone_shows_a_run_on_a_few_lines(browser: Browser, served: Served) -> None:
    with visit(browser, "dark", height=844, width=PHONE) as found:
        found.open(served.at(), until="All numbers")
        box = rows(found.page).first.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE
        assert found.page.get_by_test_id("stMain").evaluate("it => it.scrollWidth - it.clientWidth") <= 1
        assert found.complaints == []
