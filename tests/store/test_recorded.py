"""Trainings that are recorded to an address: what arrives there, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from diag import processes
from diag.api import open_run
from diag.collectors.layout import RunLayout
from diag.collectors.packing import Packing, keeper_of
from diag.errors import DiagError
from diag.rundir.local import copies_folder, local_path
from diag.rundir.runs import state_of
from diag.rundir.states import State
from diag.watch.packing import packed
from tests.command import diag, diag_process
from tests.patience import PATIENCE_S, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DIAG_NODE_FOLDER", str(tmp_path / "nodes"))
    copies_folder.cache_clear()


def test_a_training_of_ours_is_whole_at_the_address(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/out"
    ran = diag_process("run", "--nproc", "2", "--out", address, "--no-trace", str(EXAMPLE))
    assert ran.returncode == 0, ran.stderr
    assert f"diag analyze {address}" in ran.stderr + ran.stdout
    assert not any(path.is_file() for path in (tmp_path / "out").iterdir())
    result = open_run(address)
    assert (result.attribution.ranks, len(result.attribution.steps)) == ((0, 1), 30)
    assert result.tables.manifest is not None
    assert result.tables.manifest.exit_code == 0
    assert not result.coverage.incomplete
    assert state_of(local_path(address)).state == State.FINISHED


def packers_of(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"diag.store.packer" in command and str(folder).encode() in command:
                found.append(int(process.name))
    return found


def test_a_rank_starts_the_packer_and_another_one_when_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    rank = RunLayout(folder).rank(0)
    rank.folder.mkdir(parents=True)
    training = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({PATIENCE_S})"])
    rank.identity.write_text(f'{{"pid": {training.pid}}}')
    packing = Packing(f"file://{tmp_path}/out", 0.2, sys.executable, processes.__file__)
    failed: list[str] = []
    keeper_of(folder, packing, failed.append).start()

    def stored() -> int:
        deadline = time.monotonic() + PATIENCE_S
        before = len(list((tmp_path / "out").rglob("*.seg")))
        rank.heartbeat.write_text(str(before))
        while (now := len(list((tmp_path / "out").rglob("*.seg")))) == before and not failed:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return now

    try:
        assert stored() == 1
        for pid in packers_of(folder):
            os.kill(pid, signal.SIGKILL)
        assert stored() == 2
        assert not failed
    finally:
        training.kill()
        training.wait()
        for pid in packers_of(folder):
            os.kill(pid, signal.SIGKILL)


_TRAIN = """
import time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


def test_another_rank_takes_over_when_the_first_one_and_its_packer_are_killed(tmp_path: Path) -> None:
    """Under another launcher: the first rank starts the packer, and nothing that was written is lost."""
    address, script = f"file://{tmp_path}/out", tmp_path / "train.py"
    script.write_text(_TRAIN)
    told = diag("attach", "--out", address, "--pack-interval", "1", "--no-watch", "--format", "json")
    assert told.returncode == 0, told.stderr
    ranks: list[subprocess.Popen[bytes]] = []

    def start(rank: int) -> None:
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29512"}
        ranks.append(subprocess.Popen([sys.executable, script], env=os.environ | json.loads(told.stdout) | of_rank))

    def stored(rank: int) -> bytes:
        with suppress(DiagError, OSError):
            return RunLayout(local_path(address)).rank(rank).steps.read_bytes()
        return b""

    try:
        start(0)
        until(lambda: bool(stored(0)))
        (folder,) = (tmp_path / "nodes").glob("diag-*/*")
        (first,) = packers_of(folder)
        start(1)
        until(lambda: bool(stored(1)))
        assert packers_of(folder) == [first]
        ranks[0].kill()
        os.kill(first, signal.SIGKILL)
        seen = stored(1)
        until(lambda: len(stored(1)) > len(seen))
        assert packers_of(folder) not in ([], [first])
        assert stored(0) == RunLayout(folder).rank(0).steps.read_bytes()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        for folder in (tmp_path / "nodes").glob("diag-*/*"):
            for pid in packers_of(folder):
                os.kill(pid, signal.SIGKILL)


def test_a_training_that_ends_while_its_packer_starts_is_stored(tmp_path: Path) -> None:
    rank = RunLayout(tmp_path / "node").rank(0)
    rank.folder.mkdir(parents=True)
    rank.log.write_text("the last line")
    said: list[object] = []
    address = f"file://{tmp_path}/out"
    with packed(tmp_path / "node", Packing(address), said.append):
        pass
    assert not said
    assert RunLayout(local_path(address)).rank(0).log.read_text() == "the last line"
