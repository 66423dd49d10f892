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
