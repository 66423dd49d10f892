"""Whatever a command of diag can read opens on a page that shows it, and the menu leads to no dead page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.app.address import runs_of
from diag.app.pages import Contents, contents_of, pages_for
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from tests.allocator import train
from tests.app.runs import write_run
from tests.app.shown import text
from tests.app.test_pages import page
from tests.hang.flight import torch_pickle
from tests.hang.flight.boards import dump
from tests.inspector.files import write_job
from tests.tables.lane_traces import write_gpu_traces

CAPTURED = Path(__file__).parents[1] / "hang" / "captured" / "hang-loader-2-ranks"
GROUPS = {"0": (0, 1)}
CALLS = {0: "0:all_reduce 0:all_reduce?", 1: "0:all_reduce"}


def pickled_dumps(folder: Path) -> None:
    for rank, calls in CALLS.items():
        (folder / f"_dump_{rank}").write_bytes(torch_pickle.dumps(dump(rank, GROUPS, calls)))


def json_dumps(folder: Path) -> None:
    for rank, calls in CALLS.items():
        (folder / f"dump_{rank}.json").write_text(json.dumps(dump(rank, GROUPS, calls)))


def logs(folder: Path) -> None:
    shutil.copytree(CAPTURED / "ranks", folder / "logs")


def snapshots(folder: Path) -> None:
    train().write(folder / "rank0.pickle")


def durations(folder: Path) -> None:
    write_job(folder / "inspector", GROUPS, lambda rank, number, ranks: 100.0)


def traces(folder: Path) -> None:
    write_gpu_traces(folder / "traces")


@pytest.mark.parametrize(
    ("write", "contents", "title"),
    [
        (pickled_dumps, Contents.LOGS, "Hang triage"),
        (json_dumps, Contents.LOGS, "Hang triage"),
        (logs, Contents.LOGS, "Hang triage"),
        (snapshots, Contents.SNAPSHOTS, "Memory"),
        (durations, Contents.RUNS, "shown"),
        (traces, Contents.RUNS, "shown"),
    ],
)
def test_every_kind_of_input_opens_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], contents: Contents, title: str
) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    write(folder)
    assert contents_of(folder, *runs_of(folder)) == contents
    test = page(folder, monkeypatch)
    assert test.title[0].value == title
    assert "cannot be shown" not in text(test)
    assert not test.error


def test_a_single_dump_opens_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json_dumps(tmp_path)
    assert page(tmp_path / "dump_0.json", monkeypatch).title[0].value == "Hang triage"


def test_nothing_to_show_leaves_one_page_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    runs, jobs = runs_of(tmp_path)
    assert [shown.title for shown in pages_for(tmp_path, runs, contents_of(tmp_path, runs, jobs))] == ["Overview"]
    assert "neither a run directory nor a trace" in page(tmp_path, monkeypatch).error[0].value


def test_a_run_without_a_step_shows_the_triage_of_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    update_manifest(RunLayout(run), exit_code=1)
    for files in RunLayout(run).ranks().values():
        files.steps.unlink()
        files.collectives.unlink()
    RunLayout(run).rank(1).log.write_text("Traceback (most recent call last):\n  ...\nRuntimeError: no such layer\n")
    runs, jobs = runs_of(run)
    assert [shown.title for shown in pages_for(run, runs, contents_of(run, runs, jobs))] == ["Hang triage"]
    said = text(page(run, monkeypatch))
    assert "no such layer" in said
    assert "What to do" in said
