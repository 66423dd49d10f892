"""The memory page in a browser: a curve of a trace and snapshots of two ranks, of which one ran out of memory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from diag.api import open_run
from diag.app.theme import DARK, theme_of
from diag.app.views import allocations
from diag.serve.server import SAMPLES
from diag.show.page import page_of
from diag.words.formatting import size, spaced
from tests.allocator import FORWARD, MIB, train
from tests.app.served import Served, dashboard
from tests.browser.chromium import Scheme, visit
from tests.tables.test_memory_curve import trained

VIEWS = Path(allocations.__file__).parent

_TOP = """(canvas, shades) => {
    const scale = window.devicePixelRatio, {width, height} = canvas;
    const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
    for (let i = 0; i < data.length; i += 4) {
        const hex = "#" + [0, 1, 2].map(k => data[i + k].toString(16).padStart(2, "0")).join("");
        if (shades.includes(hex)) return Math.floor(i / 4 / width) / scale;
    }
}"""


def filled(curve: Locator) -> float:
    """The part of the plot's height that the curve has at its peak."""
    top = curve.evaluate(_TOP, [shade.lower() for shade in theme_of("light").memory.values()])
    tall, above, below = 300, 22, 34  # pixels
    return (tall - below - float(top)) / (tall - below - above)


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
        assert filled(curve) > 0.45, "the allocation of 67.1 MB that failed leaves room for the curve"
        expect(live.first).to_have_text(
            re.compile(r"9.44\sMB.*model.py:12 forward · activations, 2 allocations.*train.py:40")
        )
        curve.click(position={"x": 75, "y": 100})  # the beginning: only the parameters
        expect(picture.get_by_text("Live here: 4.19 MB")).to_be_visible()
        expect(live).to_have_count(1)
        page.emulate_media(color_scheme="dark")  # the page is drawn again
        expect(picture).to_have_attribute("style", re.compile(DARK.ink))
        expect(picture.get_by_text("Live here: 4.19 MB")).to_be_visible()
        expect(curve).to_be_focused()
        page.keyboard.press("Home")
        expect(picture.get_by_text("At the peak: 24.1 MB")).to_be_visible()
        expect(picture.get_by_role("listitem", name="Segment of")).to_have_count(5)
        assert found.complaints == []
        sizes = [0, 12, 999_999, 4_194_304, 24_117_248, 999_700_000, 150_754_820_096]
        shared = (VIEWS / "common.js").read_text("utf-8")
        drawn = page.evaluate(f"sizes => {{ {shared}; return sizes.map(bytes); }}", sizes)
        assert drawn == [size(each) for each in sizes], "one size reads the same in pictures and sentences"


def test_an_allocation_that_failed_is_on_the_first_page(browser: Browser, recorded: Served) -> None:
    with visit(browser, width=1440, height=900) as found:
        found.open(recorded.at(), until="Out of memory")
        said = found.page.get_by_role("alert").filter(has_text="an allocation of 67.1 MB failed on ranks 0, 1")
        expect(said.get_by_text("10.5 MB free and PyTorch had 6.29 MB reserved but unallocated")).to_be_visible()
        expect(said.get_by_role("listitem").filter(has_text="expandable_segments:True")).to_be_visible()
        expect(said.get_by_role("link", name="Memory")).to_be_visible()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two samples of a GPU: one whose memory is nearly full, and one that is slow."""
    folder: Path = tmp_path_factory.mktemp("samples")
    for name in ("gpu-memory-nearly-full", "gpu-hf-trainer"):
        shutil.copytree(SAMPLES / name, folder / name, ignore=shutil.ignore_patterns("verdict.json", "*.cache"))
    with dashboard(folder) as running:
        yield running


def test_a_run_whose_memory_is_nearly_full_is_not_green(browser: Browser, folder: Served) -> None:
    """Neither in the folder nor on its first page, which says what each change would leave."""
    with visit(browser, width=1440, height=900) as found:
        found.open(folder.at("runs"), until="All numbers")
        row = found.page.get_by_role("listitem").filter(has=found.page.get_by_role("checkbox"))
        full = row.filter(has_text="gpu-memory-nearly-full")
        expect(full).to_contain_text("Device memory is nearly full on rank 0")
        expect(full).to_contain_text("warning")
        expect(full).not_to_contain_text("healthy")
        full.get_by_role("button", name="gpu-memory-nearly-full", exact=True).click()
        page = found.page
        expect(page.get_by_text("Device memory is nearly full on rank 0. The speed is healthy")).to_be_visible()
        page.get_by_text("What to do Leave headroom").wait_for()
        (action,) = page.get_by_text("What to do Leave headroom").all_text_contents()
        terminal = page_of(open_run(SAMPLES / "gpu-memory-nearly-full")).verdict.action
        assert spaced(action).removeprefix("What to do ").removesuffix(" Memory") == spaced(terminal)
        expect(page.get_by_text("145 GB of 150 GB")).to_be_visible()
        assert found.complaints == []
