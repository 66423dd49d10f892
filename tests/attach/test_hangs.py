"""A training of a user's that stands still: said, or ended where a limit is given, and the rank is named."""

from __future__ import annotations

import json
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.errors import ExitCode
from tests.attach.trainings import EVENTFUL
from tests.command import analyze_json, diag, diag_process
from tests.recorders import GLOO_IS_RECORDED


@GLOO_IS_RECORDED  # which alone sees the all-reduces of DDP
def test_a_rank_that_never_comes_to_the_collective(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = diag_process(
        "run", "--nproc", "2", "--no-trace", "--hang-timeout", "2", "--out", run, EVENTFUL, "--hang", "1"
    )
    assert ended.returncode == ExitCode.HANG, ended.stderr
    assert "diag: hang: no progress" in ended.stderr
    assert "at fault: rank 1" in " ".join(ended.stderr.split())
    layout = RunLayout(run)
    found = json.loads(layout.hang.read_text())
    assert found["verdict"]["fault_class"] == "missing_rank"
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert "eventful.py" in layout.rank(1).stacks.read_text()
    assert [step["step"] for step in analyze_json(run)["steps"]] == list(range(6))
    again = diag("triage", run, "--json")
    assert again.returncode == ExitCode.OK, again.stderr
    assert [culprit["rank"] for culprit in json.loads(again.stdout)["culprits"]] == [1]
