"""The life of a run: a click on the mark of an incident opens its steps on the timeline."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from tests.app.served import dashboard
from tests.browser.chromium import visit
from tests.history.planted import Training


def test_a_click_on_an_incident_opens_its_steps(browser: Browser, tmp_path: Path) -> None:
    Training(tmp_path / "run", ranks=2).train(60).stall(9000, 1).train(40).close(0)
    with dashboard(tmp_path / "run") as served, visit(browser) as found:
        page = found.page
        found.open(served.at("history"), until="Click the mark of an incident")
        mark = page.locator(".js-plotly-plot .scatterlayer .point").first
        box = mark.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_url("**/timeline?**step=60**")
        assert found.complaints == []
