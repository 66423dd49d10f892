"""A training of a user's that stands still: said, or ended where a limit is given, and the rank is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.errors import ExitCode
from tests.attach.trainings import EVENTFUL
from tests.command import analyze_json, diag, diag_process


@pytest.mark.parametrize("recorder", [True, False], ids=["Flight Recorder", "none"])
def test_a_rank_that_never_comes_to_the_collective(recorder: bool, tmp_path: Path) -> None:
    """DDP's all-reduce, which C++ calls. torch before 2.8 has no Flight Recorder for gloo."""
    run = tmp_path / "run"
    ended = diag_process(
        "run", "--nproc", "2", "--no-trace", "--hang-timeout", "2", "--out", run, EVENTFUL, "--hang", "1",
        *(() if recorder else ("--without-recorder",)),
    )  # fmt: skip
    assert ended.returncode == ExitCode.HANG, ended.stderr
    assert "diag: hang: no progress" in ended.stderr
    assert "at fault: rank 1" in " ".join(ended.stderr.split())
    layout = RunLayout(run)
    found = json.loads(layout.hang.read_text())
    assert found["verdict"]["fault_class"] == "missing_rank"
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert "eventful.py" in layout.rank(1).stacks.read_text()
    analysed = analyze_json(run, expect=ExitCode.OK if recorder else ExitCode.DATA_INCOMPLETE)  # for want of a dump
    assert [step["step"] for step in analysed["steps"]] == list(range(6))
    again = diag("triage", run, "--json")
    assert again.returncode == ExitCode.OK, again.stderr
    assert [culprit["rank"] for culprit in json.loads(again.stdout)["culprits"]] == [1]
