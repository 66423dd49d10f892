"""From what was found to its moment on the timeline, and the chosen rank and step from page to page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from diag.api import open_run
from diag.show.page import place_of
from tests.app.served import Served
from tests.browser.chromium import visit
from tests.browser.conftest import RUN, headline_of


def test_a_finding_leads_to_the_timeline_and_its_step_to_the_other_pages(browser: Browser, served: Served) -> None:
    result = open_run(RUN)
    cause = result.cause
    assert cause is not None
    place = place_of(result, cause)
    assert place is not None
    with visit(browser) as found:
        found.open(served.at(), until=headline_of(result))
        page = found.page
        page.get_by_role("link", name=f"Rank {place.rank}, step {place.step} on the timeline").first.click()
        page.wait_for_url(re.compile(rf"/timeline\?.*step={place.step}\b"))
        found.settle()
        assert f"rank={place.rank}" in page.url
        page.get_by_role("link", name="Overview").click()
        page.get_by_text(f"Every step of rank {place.rank}").first.wait_for()
        found.settle()
        assert f"step={place.step}" in page.url
        assert found.complaints == []


def test_the_picture_beside_a_finding_leads_to_its_moment(browser: Browser, served: Served) -> None:
    """By mouse and by keyboard; what is said of the ranks is in the picture's name."""
    result = open_run(RUN)
    cause = result.cause
    assert cause is not None
    place = place_of(result, cause)
    assert place is not None
    with visit(browser, height=900) as found:
        page = found.page
        for press in (lambda it: it.click(), lambda it: it.press("Enter")):
            found.open(served.at(), until=headline_of(result))
            page.get_by_role("heading", name="Findings").scroll_into_view_if_needed()
            picture = page.get_by_role("button", name=f"Step {place.step} over time").first
            picture.scroll_into_view_if_needed()
            expect(picture).to_contain_text(f"▸ rank {place.rank}")
            press(picture)
            page.wait_for_url(re.compile(rf"/timeline\?.*step={place.step}\b"))
            found.settle()
            assert f"rank={place.rank}" in page.url
        assert found.complaints == []


@pytest.mark.matrix
def test_a_cell_of_a_heat_map_leads_to_its_step(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        found.open(served.at(), until="Who waits")
        page = found.page
        page.get_by_role("heading", name="Who waits").evaluate("it => it.scrollIntoView()")
        field = page.locator(".js-plotly-plot").filter(has=page.locator(".heatmaplayer image")).first
        field.scroll_into_view_if_needed()
        box = field.locator(".nsewdrag").first.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75
        page.mouse.move(x, y)
        field.locator(".hoverlayer .hovertext").first.wait_for()
        hovered = field.locator(".hoverlayer .hovertext").first.text_content() or ""
        page.mouse.click(x, y)
        cell = re.search(r"rank.(\d+), step (\d+)", hovered)
        assert cell is not None, hovered
        page.wait_for_url(re.compile(rf"rank={cell[1]}&step={cell[2]}\b"))
        found.settle()
        expect(page.get_by_role("link", name=f"Rank {cell[1]}, step {cell[2]} on the timeline").first).to_be_visible()
        assert found.complaints == []
