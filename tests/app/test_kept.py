"""The first screen that is kept is the one that an analysis would give now, and stands there while one is made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from diag.api import open_run, state_of
from diag.app import address, kept
from diag.app.kept import FirstScreen, Keeping
from diag.app.markup import plain
from diag.app.picture import picture_of
from diag.app.run_view import view_of
from diag.app.theme import DARK
from diag.app.views import overview
from diag.rundir.policy import ANSWERS
from tests.app.runs import write_run
from tests.app.shown import metrics, shown, text
from tests.app.test_pages import page
from tests.patience import PATIENCE_S


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Large enough to be worth keeping something of it."""
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    run = write_run(tmp_path / "large", slow_data_ms={1: 40})
    (run / "notes.bin").write_bytes(bytes(ANSWERS.least_bytes))
    return run


def _kept() -> None:
    import sys
    from pathlib import Path

    from diag.api import state_of
    from diag.app.kept import Keeping
    from diag.app.views.overview import show_last_screen

    run = Path(sys.argv[1])
    screen = Keeping.begun(state_of(run)).last()
    assert screen is not None
    show_last_screen(state_of(run), screen)


def last_screen(run: Path) -> FirstScreen | None:
    """The one that was kept, as a page that opens the run has it."""
    return Keeping.begun(state_of(run)).last()


def test_it_says_what_the_page_says(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_screen(run) is None, "nothing was drawn yet"
    whole = shown("overview", run, monkeypatch)
    drawn = AppTest.from_function(_kept, default_timeout=PATIENCE_S).run()
    assert not drawn.exception
    assert metrics(drawn) == metrics(whole)
    assert {*text(drawn).splitlines()} <= {*text(whole).splitlines()}
    screen, view = last_screen(run), view_of(open_run(run))
    assert screen is not None
    assert screen.verdict == view.page.verdict
    assert plain(screen.verdict.headline).replace("\u00a0", " ") in text(drawn)
    assert screen.pictures["dark"] == picture_of(view, DARK, next(iter(view.result.advice), None))


def test_it_is_not_shown_of_a_run_that_has_changed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where neither the size nor the time of a file tells."""
    shown("overview", run, monkeypatch)
    assert last_screen(run) is not None
    notes = run / "notes.bin"
    before = notes.stat()
    notes.write_bytes(b"1" + bytes(ANSWERS.least_bytes - 1))
    os.utime(notes, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert last_screen(run) is None


def test_what_changes_while_it_is_analysed_is_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(run)
    os.utime(run / "ranks" / "00000" / "steps.jsonl")
    monkeypatch.setattr(address, "version_of", lambda state: (0, False))
    address._analysed(state)
    keeping = address.keeping(run)
    assert keeping is not None
    assert keeping.answers is None


def test_nothing_is_kept_of_a_run_that_failed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How it failed stands first."""
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"exit_code": 0', '"exit_code": 1'))
    shown("overview", run, monkeypatch)
    assert last_screen(run) is None


def test_it_is_drawn_before_the_analysis(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown("overview", run, monkeypatch)
    again = shutil.move(run, run.parent / "elsewhere")  # another path: not analysed yet, and nothing is kept
    events: list[str] = []
    draw, analyse = overview.show_last_screen, address.analyse

    def noted(*arguments: Any) -> None:
        events.append("screen")
        draw(*arguments)

    def analysing(state: Any) -> Any:
        events.append("analysis")
        return analyse(state)

    monkeypatch.setattr(overview, "show_last_screen", noted)
    monkeypatch.setattr(address, "analyse", analysing)
    page(again, monkeypatch)
    assert events == ["analysis"]
    address._RUNS.clear()  # as another dashboard
    page(again, monkeypatch)
    assert events == ["analysis", "screen", "analysis"]


def test_check_sums_are_taken_once_to_show_it_and_to_keep_the_next(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown("overview", run, monkeypatch)
    again = shutil.move(run, run.parent / "elsewhere")
    page(again, monkeypatch)
    address._RUNS.clear()
    taken: list[str] = []
    whole = kept.answers_on
    monkeypatch.setattr(kept, "answers_on", lambda *asked: taken.append(asked[0][0]) or whole(*asked))
    page(again, monkeypatch)
    assert taken == [str(again)]
    (again / "notes.bin").write_bytes(bytes(ANSWERS.least_bytes + 1))
    page(again, monkeypatch)
    assert taken == [str(again)] * 2


def test_no_code_is_hashed_where_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "small")
    monkeypatch.setattr(kept, "_code", lambda: pytest.fail("of what would it be the code?"))
    assert last_screen(run) is None
    shown("overview", run, monkeypatch)
