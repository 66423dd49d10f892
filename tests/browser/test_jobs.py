"""A folder with the traces of two jobs, in the browser: both are listed, and each opens."""

from pathlib import Path

from playwright.sync_api import Browser

from diag.api import open_run
from tests.app.served import dashboard
from tests.browser.chromium import visit
from tests.browser.conftest import headline_of
from tests.traces.test_jobs import HOUR, put_job


def test_two_jobs_of_a_folder_are_listed_and_opened(browser: Browser, tmp_path: Path) -> None:
    put_job(tmp_path, "fast_rank{}.json")
    put_job(tmp_path, "slow_rank{}.json", pid=900, at_ns=HOUR, slow_ms=10)
    with dashboard(tmp_path) as served:
        for scheme, width in (("light", 1440), ("dark", 800)):
            with visit(browser, scheme) as found:  # type: ignore[arg-type]
                found.page.set_viewport_size({"width": width, "height": 1000})
                found.open(served.at("runs"), until="Why these are several runs")
                assert found.page.get_by_text("not the same job as fast").first.is_visible()
                found.open(served.at("?run=slow"), until=headline_of(open_run(f"{tmp_path}::slow")))
                assert found.complaints == []
