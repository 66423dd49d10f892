"""A run that is still training, and a folder of runs, as a person sees them."""

import os
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from diag.collectors.layout import RunLayout
from diag.rundir.policy import SILENCE
from tests.app.runs import write_run
from tests.app.served import dashboard
from tests.app.test_live import cut, unended
from tests.browser.chromium import PATIENCE_MS, visit

_WATCH = """
window.unsteady = [];
setInterval(() => {
  for (const stale of document.querySelectorAll('[data-stale=true]'))
    if (getComputedStyle(stale).opacity < 1) window.unsteady.push('faded');
  for (const mark of document.querySelectorAll('[data-testid=stSpinner], [data-testid=stStatusWidget]'))
    if (getComputedStyle(mark).display !== 'none') window.unsteady.push(mark.dataset.testid);
}, 20);
"""
# Whatever Streamlit fades an element to: it does so only where a page takes long to draw, as it need not here.
_FADED = """() => {
  const faded = document.createElement('div');
  faded.dataset.stale = 'true';
  faded.style.opacity = '0.3';
  document.querySelector('[data-testid=stMain]').append(faded);
  const opacity = getComputedStyle(faded).opacity;
  faded.remove();
  return opacity;
}"""


def test_new_steps_appear_by_themselves(browser: Browser, tmp_path: Path) -> None:
    run = unended(write_run(tmp_path / "run", slow_data_ms={1: 40}))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)
    with dashboard(run) as served, visit(browser) as found:
        later = time.time() + 3600  # the run goes on, however long the page takes to appear
        os.utime(RunLayout(run).rank(0).steps, (later, later))
        found.open(served.at(), until="6 of 8")
        expect(found.page.get_by_text("training").first).to_be_visible()
        expect(found.page.get_by_text("8 steps · 9.52 steps/s").first).to_be_visible()
        spark = found.page.get_by_test_id("stSidebar").get_by_role("img", name="step time over")
        expect(spark).to_have_accessible_name(re.compile(r"step time over 8\ssteps: .* ms"))
        found.page.evaluate(_WATCH)
        for rank, files in RunLayout(run).ranks().items():
            files.steps.write_text(whole[rank])
        found.page.get_by_text("12 steps · ").first.wait_for()
        expect(spark).to_have_accessible_name(re.compile(r"step time over 12\ssteps: .* ms"))
        found.page.get_by_text("10 of 12").first.wait_for(timeout=PATIENCE_MS)
        found.settle()
        assert found.page.evaluate("window.unsteady") == []
        assert found.page.evaluate(_FADED) == "1"
        assert found.complaints == []


def test_a_run_that_was_silent_and_goes_on_is_followed(browser: Browser, tmp_path: Path) -> None:
    """Its storage stalled, or its libraries were imported for minutes: the page needs no reload."""
    run = unended(write_run(tmp_path / "run"))
    whole = {rank: files.steps.read_text() for rank, files in RunLayout(run).ranks().items()}
    cut(run, 8)
    before = time.time() - SILENCE.unclear_s / 2
    for file in run.rglob("*"):
        os.utime(file, (before, before))
    with dashboard(run) as served, visit(browser) as found:
        found.open(served.at(), until="6 of 8")
        menu = found.page.get_by_test_id("stSidebar")
        expect(menu.get_by_text("unknown").first).to_be_visible()
        for rank, files in RunLayout(run).ranks().items():
            files.steps.write_text(whole[rank])
        expect(menu.get_by_text("12 steps · ").first).to_be_visible()
        found.page.get_by_text("10 of 12").first.wait_for(timeout=PATIENCE_MS)
        assert found.complaints == []


@pytest.mark.matrix
def test_a_run_that_does_not_exist_yet_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    with dashboard(tmp_path / "later") as served, visit(browser) as found:
        found.open(served.at(), until="Waiting for later")
        write_run(tmp_path / "made", slow_data_ms={1: 40}).rename(tmp_path / "later")
        found.page.get_by_text("the data loader of rank 1 is slow").first.wait_for(timeout=PATIENCE_MS)
        assert found.complaints == []


@pytest.mark.matrix
def test_a_run_is_chosen_from_the_list(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", slow_data_ms={1: 40})
    with dashboard(tmp_path) as served, visit(browser) as found:
        found.open(served.at(), until="Curves")
        found.page.get_by_role("button", name="two", exact=True).click()
        found.page.wait_for_url("**/overview?**run=two**rank=1**")
        found.settle()
        expect(found.page.get_by_role("heading", name="two").first).to_be_visible()
        assert found.complaints == []
