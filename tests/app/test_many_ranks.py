"""Every page of a run of thousands of ranks, of which only summaries are read: at once, and what they do not tell is
said."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.app.address import runs_of
from diag.app.pages import contents_of, pages_for
from tests.app.shown import RUN_PAGES, shown, text
from tests.many_ranks import Job, write_summaries

RANKS, SLOW = 2_048, 700


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job(RANKS, extra_us={SLOW: {"forward": 60_000}})
    return write_summaries(job, tmp_path_factory.mktemp("many") / "run").root


def test_the_overview_names_the_rank(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = text(shown("overview", run, monkeypatch))
    assert f"Rank {SLOW} is slower than the others in forward" in said
    assert "2048 of 2,048 ranks" in said
    assert "16 of 2,048 ranks" in said
    assert "Every rank" not in said
    assert "The verdict rests on the ranks' summaries of steps 0 to 99" in said


def test_waiting_for_data_is_in_the_summaries(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Means of 98 counted steps." in text(shown("input", run, monkeypatch))


def test_the_menu_has_no_page_that_needs_records(run: Path) -> None:
    runs, jobs = runs_of(run)
    titles = [page.title for page in pages_for(run, runs, contents_of(run, runs, jobs))]
    assert titles == ["Overview", "History", "Input", "Hang triage"]


@pytest.mark.parametrize(
    "page", [path for path in RUN_PAGES if path not in ("overview", "history", "input", "compare")]
)
def test_a_page_that_needs_records_says_what_records_them(
    page: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = shown(page, run, monkeypatch)
    assert len(test.title) == 1
    assert f"`diag trace {run} --ranks {SLOW}`" in test.info[0].value
