"""Every page of every kind of run, in two sizes and two themes: nothing is cut, nothing is asked of another machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from diag.app.pages import Contents, pages_for
from diag.serve.server import SAMPLES
from tests.app.runs import write_run
from tests.app.served import dashboard
from tests.app.test_hang_page import written
from tests.app.test_live import unended
from tests.app.test_outcome import run_that
from tests.browser.chromium import PATIENCE_MS, Scheme, Visit, visit
from tests.tables.test_breakdowns import two_ranks

REAL = Path(__file__).parents[3] / "shared" / "traces" / "dlrm_v100_8ranks"
WIDE: tuple[int, Scheme] = (1440, "light")
NARROW: tuple[int, Scheme] = (800, "dark")


def traces(folder: Path) -> Path:
    two_ranks(folder)
    return folder


def real(folder: Path) -> Path:
    if not REAL.exists():
        pytest.skip("no ../shared/traces beside this checkout")
    return REAL


KINDS: dict[str, tuple[Callable[[Path], Path], tuple[tuple[int, Scheme], ...]]] = {
    "sample": (lambda _: SAMPLES / "ddp-straggler-rank0", (WIDE,)),
    "traces of a device": (traces, (NARROW,)),
    "real traces": (real, (WIDE,)),
    "died": (run_that, (NARROW,)),
    "hung": (lambda folder: written(folder / "logs", "duplicate_gpu"), (WIDE,)),
    "live": (lambda folder: unended(write_run(folder / "run", slow_data_ms={1: 40})), (NARROW,)),
}


def check(found: Visit, asked: list[str]) -> None:
    """What is on the page now."""
    found.settle()
    assert found.page.get_by_test_id("stException").count() == 0
    main = found.page.get_by_test_id("stMain")
    assert main.evaluate("it => it.scrollWidth - it.clientWidth") <= 1
    assert {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))} == {"127.0.0.1"}
    assert found.complaints == []


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_every_page(browser: Browser, tmp_path: Path, kind: str) -> None:
    made, sizes = KINDS[kind]
    contents = Contents.LOGS if kind == "hung" else Contents.RUNS
    paths = [page.path for page in pages_for(Path(), [Path()], contents) if not page.of_folder]
    with dashboard(made(tmp_path)) as served:
        for width, scheme in sizes:
            with visit(browser, scheme) as found:
                asked: list[str] = []
                found.page.on("request", lambda request, asked=asked: asked.append(request.url))
                found.page.set_viewport_size({"width": width, "height": 1000})
                for path in paths:
                    found.page.goto(served.at("" if path == paths[0] else path))
                    found.page.get_by_test_id("stMain").locator("h1, [role=alert]").first.wait_for(timeout=PATIENCE_MS)
                    check(found, asked)
