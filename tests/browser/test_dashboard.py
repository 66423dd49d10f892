"""What a person sees and does: the verdict on a sample run, a rank chosen by its bar, no complaint of the browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from diag.api import open_run
from diag.serve.server import SAMPLES
from tests.app.served import Served
from tests.browser.chromium import Scheme, Visit, visit
from tests.browser.conftest import RUN, headline_of
from tests.command import diag

PAPER = 703, 1032  # A4 without its margins, in pixels


@pytest.fixture(scope="module")
def opened(browser: Browser, served: Served) -> Iterator[Visit]:
    with visit(browser) as found:
        found.open(served.at(), until=headline_of(open_run(RUN)))
        yield found


def test_the_verdict_is_what_one_sees_first(opened: Visit) -> None:
    result = open_run(RUN)
    headline = opened.page.get_by_text(headline_of(result)).first.bounding_box()
    assert headline is not None
    assert headline["y"] < 500  # without scrolling, on a small laptop's screen
    assert opened.page.get_by_text(f"rank\u00a0{result.verdict.culprit_ranks[0]}").first.is_visible()
    assert opened.complaints == []


def test_a_click_on_a_rank_shows_that_rank(opened: Visit) -> None:
    page = opened.page
    assert "rank=0" in page.url
    page.get_by_text("What takes longer on one of the two ranks").first.evaluate("it => it.scrollIntoView()")
    figure = page.locator(".js-plotly-plot").filter(has_text="more than the other rank")
    bars = figure.locator(".trace.bars").first.locator(".point path")
    bars.nth(1).hover(force=True)  # plotly listens on a layer above, and a click is on what is hovered over
    page.locator(".hoverlayer .hovertext").first.wait_for()
    bars.nth(1).click(force=True)
    page.wait_for_url("**rank=1**")
    opened.settle()
    assert page.get_by_text("Every step of rank 1").first.is_visible()
    assert opened.complaints == []


@pytest.mark.matrix
def test_the_report_is_downloaded(opened: Visit, browser: Browser, tmp_path: Path) -> None:
    with opened.page.expect_download() as download:
        opened.page.get_by_role("button", name="Report").click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    with visit(browser, offline=True) as found:
        found.page.goto(file.as_uri())
        found.page.get_by_text(open_run(RUN).verdict.headline).first.wait_for()
        assert found.complaints == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.matrix)])
def test_the_report_opens_without_a_network(browser: Browser, tmp_path: Path, scheme: Scheme) -> None:
    file = tmp_path / "report.html"
    ended = diag("report", RUN, "-o", file, "--redact")
    assert ended.returncode == 0, ended.stderr
    with visit(browser, scheme, offline=True) as found:
        asked: list[str] = []
        found.page.on("request", lambda request: asked.append(request.url))
        found.page.goto(file.as_uri())
        found.page.get_by_text(open_run(RUN).verdict.headline).first.wait_for()
        found.page.locator(".js-plotly-plot .plot-container").first.wait_for()
        found.page.get_by_text("What these numbers mean").click()
        assert asked == [file.as_uri()]
        assert found.complaints == []


@pytest.mark.matrix
def test_the_report_prints_on_five_pages_and_its_advice_on_the_first(browser: Browser, tmp_path: Path) -> None:
    run = SAMPLES / "fsdp2-not-overlapped"
    file = tmp_path / "report.html"
    assert diag("report", run, "-o", file).returncode == 0
    with visit(browser, offline=True) as found:
        found.page.goto(file.as_uri())
        found.page.locator(".js-plotly-plot .plot-container").first.wait_for()
        printed = found.page.pdf(format="A4", prefer_css_page_size=True)
        assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 5
        found.page.emulate_media(media="print")
        found.page.set_viewport_size({"width": PAPER[0], "height": PAPER[1]})
        first = found.page.locator(".advice > li").first.bounding_box()
        assert first is not None
        assert first["y"] + first["height"] < PAPER[1]
        assert found.complaints == []


# Texts in the window that are cut, or run out of the box that they are in, those in components as well.
_CUT = """() => {
    const roots = [document.querySelector('[data-testid=stMain]'), document.querySelector('[data-testid=stSidebar]'),
        ...[...document.querySelectorAll('[data-testid^=stBidiComponent]')].map(it => it.shadowRoot)];
    const hasText = it => [...it.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim());
    const found = roots.filter(root => root).flatMap(root => [...root.querySelectorAll('*')]).filter(it => {
        const {width, height, right} = it.getBoundingClientRect();
        return hasText(it) && !it.closest('svg, style, script, canvas, pre') && width > 1 && height > 1 && right > 0
            && it.clientWidth > 1 && it.scrollWidth > it.clientWidth + 1;
    });
    const main = document.querySelector('[data-testid=stMain]');
    const wide = main.scrollWidth > main.clientWidth + 1 ? [main] : [];
    return [...found, ...wide].map(it => it.textContent.slice(0, 80));
}"""
_WIDTHS = 360, 480, 640, 800, 1100, 1366, 1600
_WIDER = "* { letter-spacing: 0.08em !important; }"  # another browser's font may be wider


@pytest.mark.parametrize(
    ("scheme", "page", "until"),
    [
        ("dark", "", "Looked for"),
        *(
            pytest.param("light", page, until, marks=pytest.mark.matrix)
            for page, until in (
                ("memory", "Model states"),
                ("input", "Every rank"),
                ("timeline", "In this window"),
                ("what-if", "The step would take"),
                ("collectives", "By exposed time"),
                ("kernels", "Named by FSDP unit"),
            )
        ),
    ],
)
def test_no_text_is_cut(browser: Browser, served: Served, scheme: Scheme, page: str, until: str) -> None:
    with visit(browser, scheme, height=900) as found:
        found.open(served.at(page), until=until)
        cut = {}
        for letters in ("", _WIDER):
            if letters:
                found.page.add_style_tag(content=letters)
            for width in _WIDTHS:
                found.page.set_viewport_size({"width": width, "height": 900})
                found.settle()
                cut[width, letters] = found.page.evaluate(_CUT)
        assert not any(cut.values()), cut
        assert found.complaints == []


def test_it_says_that_it_reads_until_there_is_something_to_see(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        found.page.goto(served.at(), wait_until="commit")
        reading = found.page.get_by_text("Reading the runs")
        expect(reading).to_be_visible()
        expect(found.page.get_by_role("heading", level=1)).to_be_visible()
        expect(reading).to_be_hidden()
        assert found.complaints == []
