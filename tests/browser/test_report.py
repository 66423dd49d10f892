"""The HTML report by keyboard, and in the width of a laptop: every control is reached and seen, no table is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from diag.api import open_run
from diag.app.html_report.render import render
from diag.serve.server import SAMPLES
from tests.browser.chromium import Visit, visit

# What a pointer can press or scroll, in the order of the page, with what is written on it.
_CONTROLS = """() => [...document.querySelectorAll('a[href], button, summary, .scroll, pre')]
  .filter(it => it.checkVisibility() && (it.matches('a, button, summary') || it.scrollWidth > it.clientWidth))
  .map(it => it.textContent.trim().slice(0, 60))"""
_FOCUSED = """() => {
  const it = document.activeElement, {outlineStyle: style, outlineWidth: width} = getComputedStyle(it);
  return it === document.body ? null : [it.textContent.trim().slice(0, 60), style !== 'none' && width !== '0px'];
}"""
_MOST_STOPS = 200


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """Of a run with advice that has code to copy."""
    file = tmp_path / "report.html"
    file.write_bytes(render(open_run(SAMPLES / "fsdp2-not-overlapped"), "diag report R", "1").encode())
    with visit(browser, height=900, width=1100) as found:
        found.page.goto(file.as_uri())
        expect(found.page.locator(".plot .main-svg").first).to_be_visible()
        yield found
        assert found.complaints == []


def test_every_control_is_reached_and_seen(opened: Visit) -> None:
    page = opened.page
    for summary in page.locator("summary").all():  # also what is in them
        if summary.is_visible() and summary.evaluate("it => !it.parentElement.open"):
            summary.click()
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); getSelection().removeAllRanges(); }")
    page.locator("body").evaluate("it => { it.tabIndex = -1; it.focus(); it.removeAttribute('tabindex'); }")
    stops: list[str] = []
    while len(stops) < _MOST_STOPS:
        page.keyboard.press("Tab")
        focused = page.evaluate(_FOCUSED)
        if focused is None:
            break
        assert focused[1], f"{focused[0]}: nobody sees that it has the focus"
        stops.append(focused[0])
    wanted = page.evaluate(_CONTROLS)
    assert len(wanted) > 10
    assert [one for one in wanted if one not in stops] == []


def test_keys_do_what_a_click_does(opened: Visit) -> None:
    fold = opened.page.locator("details:visible").first
    was_open = fold.evaluate("it => it.open")
    fold.locator("summary").focus()
    for key, state in (("Enter", not was_open), ("Space", was_open)):
        opened.page.keyboard.press(key)
        expect(fold).to_have_js_property("open", state)
    opened.page.get_by_role("link", name="Coverage", exact=True).focus()
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("heading", name="Coverage")).to_be_in_viewport()


def test_no_table_is_cut(opened: Visit) -> None:
    tables = opened.page.locator(".scroll:has(table)")
    expect(tables.first).to_be_attached()
    for table in tables.all():
        if table.is_visible():
            assert table.evaluate("it => it.scrollWidth <= it.clientWidth"), table.inner_text()[:200]
