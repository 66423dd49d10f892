"""What crashes, strangers and full disks leave behind: a clear statement, the rest analysed, never a traceback."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.records import DATA
from tests.command import analyze_json, diag, diag_process
from tests.simulate import MS, Plan, simulate, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """Three ranks, slow data on rank 1."""
    plan = Plan(ranks=3, extra=lambda step, rank: {DATA: 60 * MS} if rank == 1 else {})
    return write_run(simulate(plan), tmp_path / "run")


def reasons(result: dict[str, object]) -> str:
    return json.dumps(result["coverage"]["skipped"])  # type: ignore[index]


def test_an_undamaged_run_is_complete(run: RunLayout) -> None:
    result = analyze_json(run.root)
    assert result["verdict"]["culprit"]["ranks"] == [1]
    assert result["coverage"]["skipped"] == []
    assert json.loads(run.verdict.read_text())["verdict"] == result["verdict"]


def test_a_kill_in_the_middle_of_a_line(run: RunLayout) -> None:
    steps = run.rank(2).steps
    steps.write_bytes(steps.read_bytes()[:-37])
    result = analyze_json(run.root, expect=4)
    assert "steps.jsonl" in reasons(result)
    assert "truncated" in reasons(result)
    assert result["verdict"]["culprit"]["ranks"] == [1]


def test_a_rank_that_never_started(run: RunLayout) -> None:
    shutil.rmtree(run.rank(2).folder)
    result = analyze_json(run.root, expect=4)
    assert result["coverage"]["ranks_missing"] == [2]
    assert "no data from rank 2" in reasons(result)
    assert result["verdict"]["culprit"]["ranks"] == [1]
    text = diag("analyze", run.root)
    assert text.returncode == 4
    assert "2 of 3 ranks" in text.stdout
    assert "no data from rank 2: not started, or recorded in another node's folder" in " ".join(text.stdout.split())


def test_a_rank_that_recorded_nothing_but_its_name(run: RunLayout) -> None:
    run.rank(0).steps.unlink()
    result = analyze_json(run.root, expect=4)
    assert result["coverage"]["ranks_missing"] == [0]


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "aten::mm"')[:-12],
        gzip.compress(b'{"traceEvents": [')[:11],
        b"",
        b"not gzip at all",
        gzip.compress(b'{"hello": "world"}'),
        gzip.compress(b"[" * 100_000),
        gzip.compress(b'{"traceEvents": "\xff\xfe"}'),
    ],
    ids=["cut", "cut-header", "empty", "no-gzip", "other-json", "nested", "not-utf8"],
)
def test_a_damaged_trace_in_a_run(run: RunLayout, content: bytes) -> None:
    run.rank(1).trace(10).write_bytes(content)
    result = analyze_json(run.root, expect=4)
    assert "trace-step000010.json.gz" in reasons(result)
    assert result["verdict"]["culprit"]["ranks"] == [1], "the records are still there"


def test_a_damaged_manifest(run: RunLayout) -> None:
    run.manifest.write_text('{"run_id": "x", "world_si')
    result = analyze_json(run.root, expect=4)
    assert "manifest.json" in reasons(result)
    assert result["verdict"]["culprit"]["ranks"] == [1]


def test_an_empty_directory(tmp_path: Path) -> None:
    ended = diag("analyze", tmp_path)
    assert ended.returncode == 1
    assert str(tmp_path) in ended.stderr
    assert "contains neither a run directory nor a trace" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    ended = diag("analyze", tmp_path / "nowhere", "--json")
    assert ended.returncode == 1
    error = json.loads(ended.stdout)
    assert error["schema_version"] == 1
    assert error["error"]["exit_code"] == 1
    assert error["error"]["path"].endswith("nowhere")
    assert error["error"]["hint"]


@pytest.mark.parametrize("name", ["photo.png", "events.json", "trace.json.gz"])
def test_a_file_that_is_not_a_trace(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(range(256)) * 40)
    ended = diag("analyze", path)
    assert ended.returncode == 1
    assert name in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_run_that_never_made_a_step(tmp_path: Path) -> None:
    layout = write_run(simulate(Plan(steps=0)), tmp_path / "run")
    ended = diag("analyze", layout.root)
    assert ended.returncode == 1
    assert "recorded no step" in ended.stderr


def test_usage_mistakes_end_with_2(tmp_path: Path) -> None:
    for arguments in (
        ["analyze"],
        ["run", "--inject", "no-such-fault"],
        ["run", "--strategy", "zero9", "--out", str(tmp_path / "r")],
        ["run", "--strategy", "ddp", "--wrap", "root", "--out", str(tmp_path / "r")],
    ):
        ended = diag(*arguments)
        assert ended.returncode == 2, (arguments, ended.stderr)
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "r").exists()


def test_a_folder_that_already_holds_a_run_is_not_overwritten(run: RunLayout) -> None:
    ended = diag_process("run", "--steps", "1", "--out", run.root)
    assert ended.returncode == 1
    assert "already holds a run" in ended.stderr
