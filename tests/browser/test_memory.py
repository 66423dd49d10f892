"""The memory page in a browser: a curve of a trace and snapshots of two ranks, of which one ran out of memory."""

from __future__ import annotations

import re
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
        assert page.get_by_text("What would lower the peak").is_visible()
        assert page.get_by_text("What would have made room for the 56.6 MB").is_visible()
        for above, picture in (
            ("Over time", "Memory of the device on rank 0 by category"),
            ("Peak: 24.1 MB allocated", "Allocated memory before the snapshot"),
        ):
            page.get_by_text(above).first.evaluate("it => it.scrollIntoView()")
            expect(page.get_by_role("slider", name=picture)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert found.complaints == []


def test_a_moment_shows_what_is_live_there(browser: Browser, recorded: Served) -> None:
    with visit(browser, width=1440, height=1400) as found:
        found.open(recorded.at("memory"), until="Memory snapshots")
        page = found.page
        page.get_by_text("Peak: 24.1 MB allocated").first.evaluate("it => it.scrollIntoView()")
        curve = page.get_by_role("slider", name="Allocated memory before the snapshot")
        picture = page.locator("section.memory", has=curve)
        live = picture.get_by_role("list", name="Live allocations by stack").get_by_role("listitem")
        expect(picture.get_by_text("At the peak: 24.1 MB")).to_be_visible()
        expect(live).to_have_count(4)
        expect(live.first).to_have_text(
            re.compile("9.44 MB.*model.py:12 forward · activations, 2 allocations.*train.py:40")
        )
        curve.click(position={"x": 75, "y": 100})  # the beginning: only the parameters
        expect(picture.get_by_text("Live here: 4.19 MB")).to_be_visible()
        expect(live).to_have_count(1)
        page.keyboard.press("Home")
        expect(picture.get_by_text("At the peak: 24.1 MB")).to_be_visible()
        expect(picture.get_by_role("listitem", name="Segment of")).to_have_count(5)
        assert found.complaints == []


def test_an_allocation_that_failed_is_on_the_first_page(browser: Browser, recorded: Served) -> None:
    with visit(browser, width=1440, height=900) as found:
        found.open(recorded.at(), until="Out of memory")
        said = found.page.get_by_role("alert").filter(has_text="an allocation of 67.1 MB failed on ranks 0, 1")
        expect(said.get_by_text("10.5 MB free and PyTorch had 6.29 MB reserved but unallocated")).to_be_visible()
        expect(said.get_by_role("listitem").filter(has_text="expandable_segments:True")).to_be_visible()
        expect(said.get_by_role("link", name="Memory")).to_be_visible()
