"""What is asked of the ranks of a running training at its address: its packers hand it on, and carry the answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag.api import local_path
from diag.collectors.layout import RunLayout
from diag.rundir.runs import last_steps, state_of
from tests.command import diag_process
from tests.patience import PATIENCE_S
from tests.store.servers import Server

pytestmark = pytest.mark.matrix


@contextmanager
def training(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *faults: str) -> Iterator[RunLayout]:
    """A training of two ranks, at least 20 steps of which have arrived."""
    monkeypatch.setenv("DIAG_NODE_FOLDER", str(tmp_path / "nodes"))
    command = [
        sys.executable, "-m", "diag", "run", "--nproc", "2", "--strategy", "ddp", "--preset", "tiny", "--no-trace",
        "--steps", "10000", "--timeout", "600", "--hang-timeout", "600", "--pack",
        "--pack-interval", "1", "--out", server.address,
    ]  # fmt: skip
    for fault in faults:
        command += ["--inject", fault]
    log = (tmp_path / "training.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            layout = RunLayout(local_path(server.address))
            steps = last_steps(layout.rank(0).steps)
            if steps and steps[-1].step >= 20:
                yield layout
                return
            time.sleep(1)
        pytest.fail((tmp_path / "training.log").read_text()[-2000:])
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        log.close()


def test_a_window_of_a_training_at_an_address(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with training(server, tmp_path, monkeypatch, "slow-loader:ms=60") as layout:
        asked = diag_process("trace", server.address, "--steps", "2", "--json")
        assert asked.returncode == 0, asked.stderr + asked.stdout
        answers = json.loads(asked.stdout)["ranks"]
        assert [answer["rank"] for answer in answers] == [0, 1]
        assert all(Path(answer["path"]).is_file() for answer in answers)
        assert [len(files.traces()) for files in layout.ranks().values()] == [1, 1]


def test_the_stacks_of_a_stuck_training_at_an_address(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(server, tmp_path, monkeypatch, "hang:rank=1,step=25,where=collective") as layout:
        deadline = time.monotonic() + PATIENCE_S
        while not state_of(layout.root, with_answer=False).stuck:
            assert time.monotonic() < deadline
            time.sleep(2)
            local_path(server.address)
        asked = diag_process("triage", server.address, "--stacks", "--json")
        assert [culprit["rank"] for culprit in json.loads(asked.stdout)["culprits"]] == [1], asked.stderr
        assert "left no stacks" not in asked.stdout
        for files in RunLayout(local_path(server.address)).ranks().values():
            assert "most recent call first" in files.stacks.read_text()
