"""torchrun starts a training anew after a rank has died: each attempt is a record of its own, and none is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.api import list_runs, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from tests.attach.trainings import EVENTFUL, TORCHRUN, alone, losses
from tests.command import analyze_json, diag, diag_process


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each attempt. With the agent's store gloo finds the addresses of the attempt before: of three restarts with
    torch 2.13, none of them recorded, one went well."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


@pytest.mark.matrix
def test_each_attempt_is_recorded(tmp_path: Path) -> None:
    options = ["--max-restarts", "1", EVENTFUL, "--kill", "1", "--once"]
    run = tmp_path / "run"
    done = diag_process("run", "--trace-skip", "2", "--out", run, "--", *TORCHRUN, *options)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == [*alone(6), *alone(12)]
    assert f"diag analyze {run / 'restart-1'}" in done.stderr
    first, second = analyze_json(run / "restart-0"), open_run(run)
    assert [step["step"] for step in first["steps"]] == list(range(6))
    assert [step.step for step in second.attribution.steps] == list(range(12))
    assert (second.tables.world_size, second.coverage.incomplete) == (2, False)
    assert not first["coverage"]["skipped"]
    assert second.tables.root == run / "restart-1"
    assert list_runs(run) == [run, run / "restart-1"]
    why = json.loads(diag("triage", run, "--json").stdout)
    assert why["verdict"]["fault_class"] == "rank_killed_sigkill"
    assert [culprit["rank"] for culprit in why["culprits"]] == [1]
    assert not RunLayout(run / "restart-1").exits.exists()
    manifests = [read_fields(RunLayout(folder)) for folder in (run, run / "restart-1")]
    assert [manifest["exit_code"] for manifest in manifests] == [0, 0]
    assert [manifest["collector"]["attached"]["restarts"] for manifest in manifests] == [0, 1]
