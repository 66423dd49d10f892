"""What if, as a person uses it: the fault is taken away at first, and a slider shows another step at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from diag.api import open_run
from diag.replay.suppose import Supposition
from diag.words.formatting import duration
from tests.app.runs import write_run
from tests.app.served import dashboard
from tests.browser import pictured
from tests.browser.chromium import visit


def test_a_slider_shows_the_step_without_the_fault(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "later", slow_data_ms={1: 40})
    write_run(tmp_path / "mended")
    offered = open_run(run).what_if
    removed, half = (offered.suppose(Supposition((1,), loading=part)).new_step_ns[1] for part in (1.0, 0.5))
    with dashboard(tmp_path) as served, visit(browser) as found:
        found.open(served.at("what-if?run=later&baseline=mended"), until=f"The step would take {duration(removed)}")
        page = found.page
        expect(page.get_by_text("measured: mended").first).to_be_visible()
        heading = page.get_by_role("heading", name="What if")
        heading.evaluate("it => it.dataset.stays = 'yes'")  # a slider does not draw the whole page again
        slider = page.get_by_role("slider", name="Loads like the others")
        slider.focus()
        slider.press("ArrowLeft")
        slider.press("ArrowLeft")
        page.wait_for_url("**loading=50**")
        expect(page.get_by_text(f"The step would take {duration(half)}").first).to_be_visible()
        expect(heading).to_have_attribute("data-stays", "yes")
        assert found.complaints == []


@pytest.mark.matrix
def test_what_tune_has_measured_is_beside_the_prediction(browser: Browser, tmp_path: Path) -> None:
    folder = pictured.write(tmp_path / "folder")
    with dashboard(folder) as served, visit(browser) as found:
        found.open(served.at(f"what-if?run={pictured.RUN}"), until="measured: ")
        assert found.complaints == []
