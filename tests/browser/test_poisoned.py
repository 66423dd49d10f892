"""A browser finds no link, no image and no formula in the hostile names of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.app.runs import write_run
from tests.app.served import dashboard
from tests.browser.chromium import visit
from tests.poisoned import Poisoner

_FOLLOWED = """() => [...document.querySelectorAll("a, img, iframe, .katex")]
    .map(node => node.href || node.src || node.outerHTML).filter(text => /evil|mailto|katex/.test(text))"""


@pytest.mark.matrix
def test_names_of_a_run(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", slow_data_ms={1: 40})
    Poisoner(run).write_all("phases", "schema_version", "rows")
    with dashboard(run) as served, visit(browser) as found:
        asked: list[str] = []
        found.page.on("request", lambda request: asked.append(request.url))
        found.open(served.printed, until="Confidence")
        shown = found.page.inner_text("body").replace("\u2060", "")
        assert "https://evil.example/u" in shown
        assert "someone@evil.example" in shown
        assert "www.evil.example" in shown
        assert "[bold]" in shown
        assert found.page.evaluate(_FOLLOWED) == []
        assert [address for address in asked if "evil.example" in address] == []
