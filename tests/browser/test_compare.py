"""Two runs side by side: the answer, its picture and what was changed need no scrolling."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from diag.collectors.layout import RunLayout
from diag.serve.server import SAMPLES
from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import Scheme, visit

BEFORE, AFTER = "fsdp2-slow-loader-rank1", "fsdp2-straggler-rank0"
WIDE_BEFORE, WIDE_AFTER = "wide-before", "wide-after"

_SPANNED = "track => track.lastElementChild.getBoundingClientRect().right - track.getBoundingClientRect().left"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("runs")
    for name, workers in ((BEFORE, 1), (AFTER, 4)):
        shutil.copytree(SAMPLES / name, folder / name)
        layout = RunLayout(folder / name)
        manifest = json.loads(layout.manifest.read_text())
        manifest["trainer"]["num_workers"] = workers
        layout.manifest.write_text(json.dumps(manifest))
    for name, slow in ((WIDE_BEFORE, {21: 41, 30: 11}), (WIDE_AFTER, {30: 11})):
        write_run(folder / name, ranks=40, slow_data_ms=slow)
    with dashboard(folder) as running:
        yield running


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), pytest.param(800, "dark", marks=pytest.mark.matrix)], ids=str
)
def test_the_difference_what_was_changed_and_the_steps(
    browser: Browser, served: Served, width: int, scheme: Scheme
) -> None:
    with visit(browser, scheme, height=900, width=width) as found:
        page = found.page
        found.open(served.at(f"compare?run={AFTER}&with={BEFORE}"), until="Settings that differ")
        expect(page.get_by_text("shorter steps")).to_be_in_viewport()
        changed = page.get_by_role("row").filter(has_text="num workers")
        expect(changed.get_by_role("cell")).to_have_text(["num workers", "1", "4"])
        verdicts = page.get_by_role("row").filter(has_text="the data loader of rank 1 is slow")
        expect(verdicts).to_be_in_viewport()
        if width == 1440:
            said = verdicts.get_by_test_id("stMarkdownContainer").nth(2).bounding_box()
            assert said is not None
            assert said["width"] > 500, "it takes the room that there is"
        picture = page.get_by_role("slider", name=f"From the step of {BEFORE} to the step of {AFTER}")
        curves = page.get_by_role("slider", name="step time and loss by step")
        later = page.get_by_role("img", name="A figure that is drawn when it is in view")
        for figure in (picture, curves):
            figure.or_(later).first.scroll_into_view_if_needed()
            expect(figure).to_be_visible()
            box = figure.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width
            assert box["width"] >= 400, "room for names and bars"
        for figure in (picture, curves):
            if width == 1440:
                expect(figure).to_be_in_viewport(ratio=0.9)
        ranks = page.get_by_role("listbox")
        ranks.last.scroll_into_view_if_needed()
        expect(ranks).to_have_count(2)
        for of_run, fault in ((0, 1), (1, 0)):
            expect(ranks.nth(of_run).get_by_text("at fault")).to_have_text(f"at fault ▸ rank {fault}")
        longest = [ranks.nth(at).locator(".track").first.evaluate(_SPANNED) for at in (0, 1)]
        assert longest[0] > longest[1] > 0, "on one scale: the step of the slow loader is longer"
        assert page.get_by_test_id("stMain").evaluate("it => it.scrollWidth - it.clientWidth") <= 1
        assert found.complaints == []


def test_many_ranks_of_both_runs_are_grids(browser: Browser, served: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        found.open(served.at(f"compare?run={WIDE_AFTER}&with={WIDE_BEFORE}"), until="Every rank of both runs")
        grids = found.page.get_by_role("img", name="40 ranks of 40 hosts")
        expect(grids).to_have_count(2)
        expect(found.page.get_by_text("Most: rank 21")).to_be_visible()
        expect(found.page.get_by_text("Most: rank 30")).to_be_visible()
        expect(found.page.locator(".legend").filter(has_text="40.0 ms")).to_have_count(2)  # one scale
        changed = found.page.get_by_role("row").filter(has_text="node21")
        expect(changed.get_by_role("cell")).to_have_text(["21", "node21", "40.0", "0", "-40.0\u00a0ms"])
        assert found.complaints == []


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three runs with each of two settings; the loaders differ from run to run."""
    folder: Path = tmp_path_factory.mktemp("repeated")
    for prefetch, loads_ms in ((0, (20, 24, 22)), (1, (2, 5, 3))):
        for at, ms in enumerate(loads_ms):
            run = write_run(folder / f"prefetch{prefetch}-{at}", slow_data_ms={0: ms, 1: ms})
            layout = RunLayout(run)
            manifest = json.loads(layout.manifest.read_text())
            layout.manifest.write_text(json.dumps(manifest | {"trainer": {"prefetch": prefetch}}))
    with dashboard(folder) as running:
        yield running


def test_two_runs_are_compared_with_their_repeats(browser: Browser, repeated: Served) -> None:
    with visit(browser, height=900, width=1440) as found:
        page = found.page
        found.open(repeated.at("compare?run=prefetch1-0&with=prefetch0-0"), until="With their repeats")
        said = page.get_by_text("Over the repeats the step is 21% shorter")
        expect(said).to_be_visible()
        expect(said).to_contain_text(
            "87.0\u00a0ms with prefetch 0 (3\u00a0runs), 68.3\u00a0ms with prefetch 1 (3\u00a0runs)"
        )
        row = page.get_by_role("row").filter(has_text="prefetch1-0, prefetch1-1, prefetch1-2")
        expect(row).to_contain_text("67.0\u00a0ms to 70.0\u00a0ms")
        page.get_by_text("Mean of repeats, in a band").click()
        curves = page.get_by_role("list", name="Legend").filter(has_text="prefetch 0")
        expect(curves.get_by_role("button")).to_have_text(["prefetch 0", "prefetch 1"])
        assert found.complaints == []


def test_repeats_are_one_curve_each_and_a_click_leaves_one_of_them(browser: Browser, repeated: Served) -> None:
    with visit(browser, height=1400, width=1440) as found:
        page = found.page
        found.open(repeated.at(), until="All numbers")
        for name in [f"prefetch{prefetch}-{at}" for prefetch in (0, 1) for at in range(3)]:
            page.get_by_role("checkbox", name=f"Choose {name}", exact=True).check()
            found.settle()
        expect(page.get_by_text("Means of repeated runs").first).to_be_visible()
        page.get_by_role("heading", name="Curves").scroll_into_view_if_needed()
        entries = page.get_by_role("list", name="Legend").last.get_by_role("button")
        expect(entries).to_have_text(["prefetch 0", "prefetch 1"])
        figure = page.get_by_test_id("stPlotlyChart").last
        lines = figure.locator(".scatterlayer .trace")
        expect(lines.first).to_be_visible()
        seen = "all => all.map(it => it.style.opacity)"
        entries.first.click()
        expect(entries.first).to_have_attribute("aria-pressed", "true")
        faint = lines.evaluate_all(seen)
        assert {"1", "0.07"} == set(faint)
        assert faint.count("1") == faint.count("0.07")
        entries.first.press("Enter")
        assert set(lines.evaluate_all(seen)) == {"1"}, "all of them again"
        assert found.complaints == []
