"""The memory page in a browser: a curve of a trace and snapshots of two ranks, of which one ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.allocator import FORWARD, MIB, train
from tests.app.served import Served, dashboard
from tests.browser.chromium import Scheme, visit
from tests.tables.test_memory_curve import trained


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("memory")
    trained().write(folder, "rank0.json")
    for rank, extra in ((0, 0), (1, 6 * MIB)):
        allocator = train(extra=extra)
        allocator.fail(64 * MIB, 10 * MIB, FORWARD)
        allocator.write(folder / f"rank{rank}.pickle")
    with dashboard(folder) as running:
        yield running


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1440), pytest.param("dark", 800, marks=pytest.mark.matrix)], ids=str
)
def test_the_peak_and_what_is_larger_on_a_rank(browser: Browser, recorded: Served, scheme: Scheme, width: int) -> None:
    with visit(browser, scheme) as found:
        page = found.page
        page.set_viewport_size({"width": width, "height": 900})
        found.open(recorded.at("memory"), until="Memory snapshots")
        found.settle()
        assert page.get_by_text("Rank 1 has the highest peak").first.is_visible()
        assert page.get_by_text("failed at model.py:12 forward").first.is_visible()
        for text in ("peak 190", "peak 24.1"):  # beside the mark of each curve
            expect(page.locator(".js-plotly-plot .textpoint text", has_text=text)).to_have_count(1)
            page.get_by_text("Memory snapshots").first.evaluate("it => it.scrollIntoView()")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert found.complaints == []
