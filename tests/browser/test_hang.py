"""The page of a hang, as a person sees it: the rank at fault first in the matrix, all stacks as one tree, the lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

from playwright.sync_api import Browser, expect

from diag.app.theme import DARK
from diag.collectors.layout import RunLayout
from tests.app.served import dashboard
from tests.browser.chromium import PATIENCE_MS, visit
from tests.hang.flight.boards import dump
from tests.rundir.test_standstill import LAST_END_NS, training

CAPTURED = Path(__file__).parents[1] / "hang" / "captured" / "h200-hang-before-collective-2-ranks"
S = 10**9


def test_the_rank_at_fault_is_the_first_row(browser: Browser, tmp_path: Path) -> None:
    """On the first screen, beside the answer, also where NCCL RAS has a report and a path is long."""
    shutil.copytree(CAPTURED, tmp_path / "run", ignore=shutil.ignore_patterns("truth.json"))
    with dashboard(tmp_path / "run") as served, visit(browser, height=900, width=1440) as found:
        found.open(served.at("hang"), until="Ranks in each group")
        rows = found.page.get_by_role("rowheader")
        expect(rows).to_have_text(["at fault ▸ rank 1", "rank 0"])
        for row in rows.all():
            expect(row).to_be_in_viewport(ratio=1)
        expect(found.page.get_by_text("#238").last).to_be_in_viewport()
        expect(found.page.get_by_text("the number of each rank's last call")).to_contain_text(
            "1 group more, none of whose calls is known, not drawn"
        )
        assert found.complaints == []


def write_wide(folder: Path) -> Path:
    """Rank 2 of four missed a call; eight groups, which a small window has no room for."""
    groups = {str(number): (0, 1, 2, 3) for number in range(8)}
    for rank in range(4):
        calls = " ".join(f"{name}:all_reduce" for name in groups) + ("" if rank == 2 else " 0:all_gather?")
        (folder / f"_dump_{rank}").write_text(json.dumps(dump(rank, groups, calls)))
    return folder


def test_how_far_the_matrix_is_scrolled_stays_when_the_page_is_drawn_again(browser: Browser, tmp_path: Path) -> None:
    with dashboard(write_wide(tmp_path)) as served, visit(browser, height=844, width=390) as found:
        found.open(served.at(), until="Ranks in each group")
        scrolled = found.page.locator(".matrix .scroll")
        scrolled.evaluate("it => { it.scrollLeft = 150; }")
        found.page.emulate_media(color_scheme="dark")
        expect(found.page.locator(".matrix")).to_have_attribute("style", re.compile(DARK.ink))
        assert scrolled.evaluate("it => it.scrollLeft") == 150
        assert found.complaints == []


def test_in_a_small_window_stacks_stand_below_each_other(browser: Browser, tmp_path: Path) -> None:
    with dashboard(write_wide(tmp_path)) as served, visit(browser, height=900, width=800) as found:
        found.open(served.at(), until="Ranks by 8 groups")
        culprit, victim = found.page.get_by_test_id("stCode").all()
        first, second = culprit.bounding_box(), victim.bounding_box()
        assert first is not None
        assert second is not None
        assert second["y"] >= first["y"] + first["height"]
        assert found.complaints == []


def beats(run: Path, after_s: dict[int, float], age_s: dict[int, float]) -> None:
    """The last heartbeats: how long after the last step they were, and how long ago they came."""
    for rank, after in after_s.items():
        file = RunLayout(run).rank(rank).heartbeat
        written = time.time_ns() - round(age_s[rank] * S)
        beat = json.loads(file.read_text()) | {"unix_ns": written, "monotonic_ns": LAST_END_NS + round(after * S)}
        file.write_text(json.dumps(beat))
        os.utime(file, ns=(written, written))


def test_a_run_that_gets_stuck_says_so_on_the_open_page(browser: Browser, tmp_path: Path) -> None:
    run, later = tmp_path / "run", -3600  # it goes on, however long the page takes to appear
    training(run, {0: (1, 0.1, "backward"), 1: (1, 0.1, "forward")})
    beats(run, {0: 0.1, 1: 0.1}, {0: later, 1: later})
    with dashboard(run) as served, visit(browser) as found:
        found.open(served.at("hang"), until="Hang triage")
        beats(run, {0: 600, 1: 0}, {0: 0, 1: 600})
        expect(found.page.get_by_text("at fault ▸ rank 1").first).to_be_visible()
        expect(found.page.get_by_text("is silent for").first).to_be_visible()
        expect(found.page).to_have_title("stuck: run")  # the tab too
        assert found.complaints == []


def test_a_run_that_gets_stuck_is_no_longer_called_healthy(browser: Browser, tmp_path: Path) -> None:
    """One state on the page, and the standstill first."""
    run, later = tmp_path / "run", -3600
    training(run, {0: (1, 0.1, "backward"), 1: (1, 0.1, "forward")})
    beats(run, {0: 0.1, 1: 0.1}, {0: later, 1: later})
    with dashboard(run) as served, visit(browser) as found:
        found.open(served.at(), until="Healthy")
        badges = found.page.locator(".stMarkdownBadge")
        expect(badges.filter(has_text="training")).to_have_count(2)  # in the sidebar, and beside the verdict
        beats(run, {0: 600, 1: 0}, {0: 0, 1: 600})
        stuck = re.compile("The training is stuck.*its last heartbeat came from forward of step 11")
        expect(found.page.get_by_role("heading", name=stuck)).to_be_visible()
        expect(badges.filter(has_text="stuck")).to_have_count(2)
        expect(badges.filter(has_text=re.compile("training|healthy"))).to_have_count(0)
        expect(found.page.get_by_text("The steps before that: Healthy")).to_be_visible()
        expect(found.page.get_by_text("at fault ▸ rank 1")).to_be_visible()  # drawn again: about the standstill
        expect(found.page.get_by_text("Take the stacks of all ranks:")).to_be_visible()
        assert found.complaints == []


STACK = """Current thread 0x00007fe467df7b80 (most recent call first):
  File "/job/train.py", line 57 in locked
  File "/job/train.py", line 12 in main
"""


def test_the_first_page_of_a_standstill_says_what_to_do_and_shows_the_stack(browser: Browser, tmp_path: Path) -> None:
    """What to do is about the standstill; the rank at fault is marked; its stack comes as soon as it is taken, on the
    open page."""
    run, later = tmp_path / "run", -3600
    training(run, {0: (1, 0.1, "backward"), 1: (1, 0.1, "forward")})
    beats(run, {0: 600, 1: 0}, {0: later, 1: 600})
    with dashboard(run) as served, visit(browser, height=900) as found:
        found.open(served.at(), until="The training is stuck")
        page = found.page
        expect(page.get_by_text("Take the stacks of all ranks:")).to_be_visible()
        expect(page.get_by_text("at fault ▸ rank 1")).to_be_visible()
        expect(page.get_by_text("predicted")).to_have_count(0)
        expect(page.get_by_test_id("stMain").get_by_role("link", name="Hang triage")).to_have_count(1)
        RunLayout(run).rank(1).stacks.write_text(STACK)
        expect(page.get_by_text("Stack of rank 1")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.get_by_text(re.compile(r"locked \(.*train\.py:57")).first).to_be_visible()
        expect(page.get_by_text("Take the stacks of all ranks:")).to_have_count(0)
        assert found.complaints == []


def test_the_page_of_a_hang_is_drawn_again_once_stacks_are_taken(browser: Browser, tmp_path: Path) -> None:
    """The open page, by itself. A job without NCCL has no word of NCCL RAS on it."""
    run, later = tmp_path / "run", -3600
    training(run, {0: (1, 0.1, "backward"), 1: (1, 0.1, "forward")})
    beats(run, {0: 600, 1: 0}, {0: later, 1: 600})
    with dashboard(run) as served, visit(browser) as found:
        found.open(served.at("hang"), until="at fault ▸ rank 1")
        expect(found.page.get_by_role("heading", name="Stacks")).to_have_count(0)
        expect(found.page.get_by_text("NCCL RAS")).to_have_count(0)
        RunLayout(run).rank(1).stacks.write_text(STACK)
        expect(found.page.get_by_role("heading", name="Stacks")).to_be_visible(timeout=PATIENCE_MS)
        expect(found.page.get_by_text(re.compile(r"locked \(.*train\.py:57")).first).to_be_visible()
        assert found.complaints == []


def test_of_many_ranks_that_are_stuck_the_first_screen_shows_where_each_is(browser: Browser, tmp_path: Path) -> None:
    run, ranks = tmp_path / "run", 34
    training(run, {rank: (1, 0.1, "forward" if rank == 5 else "backward") for rank in range(ranks)})
    beats(run, dict.fromkeys(range(ranks), 900) | {5: 0}, dict.fromkeys(range(ranks), -300) | {5: 600})
    with dashboard(run) as served, visit(browser) as found:
        found.open(served.at(), until="The training is stuck")
        fault = re.compile(r"34\s+ranks: 1 at fault, 33 in no collective; at fault: rank\s5")
        expect(found.page.get_by_role("img", name=fault)).to_be_visible()
        found.open(served.at("hang"), until="at fault ▸ rank 5")
        expect(found.page.get_by_text("ranks 0-4, 6-33 (33)")).to_be_visible()
        assert found.complaints == []
