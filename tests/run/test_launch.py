"""How ``diag run`` starts and ends: two nodes in one run directory, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.watch.launch import Launch, open_run_directory, require_torch
from tests.command import analyze_json, diag_process
from tests.patience import PATIENCE_S
from tests.ports import free_port


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "diag", "run", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.matrix
def test_two_nodes_share_one_run_directory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shared = ["--nnodes", "2", "--nproc", "1", "--steps", "8", "--rdzv-id", "job-7"]
    shared += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--out", str(run)]
    nodes = [start(*shared), start(*shared)]
    for node in nodes:
        _, errors = node.communicate(timeout=PATIENCE_S)
        assert node.returncode == 0, errors
    result = analyze_json(run)
    assert result["run"]["ranks"] == [0, 1]
    assert (result["run"]["world_size"], result["run"]["exit_code"]) == (2, 0)
    assert len(result["steps"]) == 8
    # The job is over: a third launcher with the same words would mix two runs.
    assert diag_process("run", *shared).returncode == 1


def open_at_once(out: Path, launches: list[Launch]) -> list[DiagError | None]:
    """What each of several launchers that come in the same moment is refused with."""
    together = threading.Barrier(len(launches))

    def open_one(launch: Launch) -> DiagError | None:
        together.wait()
        try:
            open_run_directory(out, launch, ["run"], "fsdp2")
        except DiagError as error:
            return error
        return None

    with ThreadPoolExecutor(len(launches)) as pool:
        return list(pool.map(open_one, launches))


def test_nodes_that_start_in_the_same_moment_share_the_folder(tmp_path: Path) -> None:
    launches = [Launch(nproc=1, nnodes=8, rdzv_id="job-7", rdzv_endpoint="node-0:29500")] * 8
    for attempt in range(20):
        assert open_at_once(tmp_path / str(attempt), launches) == [None] * 8


def test_of_two_jobs_that_start_in_the_same_moment_one_gets_the_folder(tmp_path: Path) -> None:
    launches = [Launch(nproc=1), Launch(nproc=1), Launch(nproc=1, nnodes=2, rdzv_id="7", rdzv_endpoint="n:1")]
    for attempt in range(20):
        refusals = [error for error in open_at_once(tmp_path / str(attempt), launches) if error is not None]
        assert ["already holds a run" in str(error) for error in refusals] == [True, True]
        assert {path.name for path in (tmp_path / str(attempt)).iterdir()} == {"manifest.json", "ranks"}


def test_sigterm_ends_the_ranks_and_is_passed_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = start("--steps", "100000", "--no-trace", "--out", run)
    steps = RunLayout(run).rank(1).steps
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not (steps.exists() and steps.read_bytes().count(b"\n") > 5):
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert json.loads(RunLayout(run).manifest.read_text())["exit_code"] == 128 + signal.SIGTERM
    for identity in run.glob("ranks/*/rank.json"):
        pid = json.loads(identity.read_text())["pid"]
        assert not Path(f"/proc/{pid}").exists() or os.waitpid(pid, os.WNOHANG)
    assert len(analyze_json(run)["steps"]) >= 5


def test_several_nodes_need_a_name_for_the_job(tmp_path: Path) -> None:
    ended = diag_process("run", "--nnodes", "2", "--out", tmp_path / "r")
    assert ended.returncode == 2
    assert "--rdzv-id" in ended.stderr


def test_without_torch_the_hint_names_the_python_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A light install records the training of another environment."""
    monkeypatch.setattr("diag.errors.is_installed", lambda module: module != "torch")
    with pytest.raises(DiagError, match="torch, which a training needs") as raised:
        require_torch(", or start it with the Python that trains")
    assert "pip install 'torch>=" in raised.value.hint
    assert raised.value.hint.endswith(", or start it with the Python that trains")
