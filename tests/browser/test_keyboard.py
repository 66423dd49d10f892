"""The dashboard by keyboard alone: from link to list to button, and one sees where one is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import Visit, visit

_MOST_TABS = 60
# What of an element and of what is around it tells that it has the focus.
_LOOK = """node => {
    const found = [];
    for (let at = node, up = 0; at && up < 4; at = at.parentElement, up++) {
        const style = getComputedStyle(at);
        found.push([style.outlineStyle, style.outlineColor, style.boxShadow, style.borderColor, style.backgroundColor]);
    }
    return JSON.stringify(found);
}"""
# The key of the figure that has the focus, also if only its place has; "" where none has.
_FIGURE = """() => {
    const host = document.activeElement, node = host.shadowRoot?.activeElement || host;
    if (!node.matches(".later, .js-plotly-plot")) return "";
    return host.closest("[class*='st-key-']").className.match(/st-key-(?:later-)?(\\S+)/)[1];
}"""
_IS_FOCUSED = "node => node === node.getRootNode().activeElement"  # also in the shadow of a component


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root: Path = tmp_path_factory.mktemp("runs")
    write_run(root / "one")
    write_run(root / "two", slow_data_ms={1: 40})
    with dashboard(root) as running:
        yield running


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Visit]:
    with visit(browser) as found:
        found.open(served.at("?run=one"), until="Confidence")
        yield found


def tab_to(page: Page, target: Locator) -> None:
    """Presses Tab until the element has the focus, and sees that it shows."""
    expect(target).to_have_count(1)
    before = target.evaluate(_LOOK)
    for _ in range(_MOST_TABS):
        page.keyboard.press("Tab")
        if target.evaluate(_IS_FOCUSED):
            break
    expect(target).to_be_focused()
    handle = target.element_handle()
    page.wait_for_function(f"([node, before]) => ({_LOOK})(node) !== before", arg=[handle, before])
    expect(target).to_be_in_viewport()


def pick(page: Page, target: Locator, name: str) -> None:
    """Chooses from the list that has the focus, with arrow keys and Enter."""
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("listbox")).to_be_visible()
    option = page.get_by_role("option", name=name, exact=True)
    expect(option).to_be_visible()
    wanted = option.get_attribute("id")
    for _ in range(page.get_by_role("option").count()):
        if target.get_attribute("aria-activedescendant") == wanted:
            break
        page.keyboard.press("ArrowDown")
    expect(target).to_have_attribute("aria-activedescendant", wanted or "")
    page.keyboard.press("Enter")


def test_a_link_opens_its_page(opened: Visit) -> None:
    page = opened.page
    tab_to(page, page.get_by_role("link", name="Timeline", exact=True))
    page.keyboard.press("Enter")
    page.wait_for_url("**/timeline**")
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    assert opened.complaints == []


@pytest.mark.matrix
def test_another_run_is_chosen_from_the_list(opened: Visit) -> None:
    page = opened.page
    box = page.get_by_role("combobox", name=re.compile(r"\bRun\b"))
    tab_to(page, box)
    pick(page, box, "two")
    page.wait_for_url("**run=two**")
    expect(page.get_by_role("heading", name="two", exact=True)).to_be_visible()
    expect(page.get_by_text("Every step of rank 1").first).to_be_visible()
    assert opened.complaints == []


@pytest.mark.matrix
def test_a_button_and_what_it_opens(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        page = found.page
        found.open(served.at("timeline?run=two&step=3"), until="In this window")
        tab_to(page, page.get_by_role("button", name="Next step"))
        page.keyboard.press("Space")
        page.wait_for_url("**step=4**")
        found.settle()
        assert found.complaints == []


@pytest.mark.matrix
def test_the_evidence_is_folded_and_unfolded(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        page = found.page
        found.open(served.at("?run=two"), until="Findings")
        fold = page.locator("summary").filter(has_text="Evidence").first
        inside = page.locator("details").filter(has_text="Evidence").first.get_by_role("table")
        expect(inside).to_be_visible()
        tab_to(page, fold)
        page.keyboard.press("Enter")
        expect(inside).to_be_hidden()
        page.keyboard.press("Enter")
        expect(inside).to_be_visible()
        assert found.complaints == []


def in_tree(page: Page, figure: str) -> tuple[int, int]:
    """Of a figure in the accessibility tree of the browser: the place of the mark that was reached, and how many marks
    it has. The protocol tells numbers alone: what is said about the mark is ``aria-valuetext``."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    (found,) = (
        node
        for node in nodes
        if node.get("role", {}).get("value") == "slider" and figure in node.get("name", {}).get("value", "")
    )
    most = next(each["value"]["value"] for each in found["properties"] if each["name"] == "valuemax")
    return found["value"]["value"], most


def test_a_figure_says_by_keyboard_what_the_pointer_sees(browser: Browser, served: Served) -> None:
    with visit(browser, height=600) as found:
        page = found.page
        found.open(served.at("?run=two"), until="Every step of rank")
        bars = page.get_by_role("slider", name="for every step of rank 1")
        # It is drawn when one comes to its place, and has the focus then. While it is drawn, because one has come near,
        # neither can have the focus: the next figure has it, from which it is a step back.
        expect(page.locator(".st-key-later-history .later")).to_have_count(1)
        passed = False
        for _ in range(_MOST_TABS):
            page.keyboard.press("Shift+Tab" if passed else "Tab")
            reached = page.evaluate(_FIGURE)
            if reached == "history":
                break
            if reached:
                expect(bars).to_have_count(1)
                passed = True
        expect(bars).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(bars).to_have_attribute("aria-valuenow", "1")
        page.keyboard.press("ArrowRight")
        expect(bars).to_have_attribute("aria-valuenow", "2")
        expect(bars).to_have_attribute("aria-valuetext", re.compile("^1, .*compute: .* ms.*data wait: .* ms"))
        assert in_tree(page, "for every step of rank 1") == (2, 12)
        expect(page.locator(".hoverlayer").get_by_text("compute :").first).to_be_visible()
        page.keyboard.press("Enter")
        page.wait_for_url("**step=1")
        found.settle()
        expect(bars).to_have_count(1)  # while it is drawn anew, Streamlit has both on the page
        expect(bars).to_be_focused()
        page.keyboard.press("End")
        expect(bars).to_have_attribute("aria-valuenow", "12")
        assert found.complaints == []


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["", "memory", "input", "collectives", "kernels", "what-if", "compare", "history"])
def test_every_figure_of_a_page_can_be_read(browser: Browser, samples: Served, path: str) -> None:
    with visit(browser, height=4000) as found:
        found.open(
            samples.at(f"{path}?run=fsdp2-straggler-rank0"),
            until="of 2 ranks" if not path else "fsdp2-straggler-rank0 ·",
        )
        page = found.page
        expect(page.locator(".later")).to_have_count(0)
        found.settle()
        figures = page.locator(".js-plotly-plot")
        expect(page.locator(".js-plotly-plot[role=slider]")).to_have_count(figures.count())
        for figure in figures.all():
            figure.focus()
            page.keyboard.press("ArrowRight")
            expect(figure).not_to_have_attribute("aria-valuetext", re.compile("^(Arrow keys.*)?$"))
            name, most = (figure.get_attribute(each) or "" for each in ("aria-label", "aria-valuemax"))
            assert in_tree(page, name) == (1, int(most))
        assert found.complaints == []
