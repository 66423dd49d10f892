"""A folder, or an address, that holds several runs: some that packers wrote, and others that ranks wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diag.api import find_jobs, list_runs, local_path, open_run
from diag.app.address import name_of, runs_of
from diag.app.views.runs import _caption
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.packing import Packing
from diag.errors import ExitCode
from diag.rundir.following import packed_in
from diag.rundir.runs import state_of
from diag.store.packer import Node
from diag.store.policy import STORES
from diag.store.stores import Store, is_remote
from tests.command import diag
from tests.pieces import HOUR_NS, recorded, split
from tests.store.servers import Server

PACKED = ("alpha", "deep/beta")
NAMES = [*PACKED, "plain"]


@pytest.fixture
def runs(server: Server, tmp_path: Path) -> str:
    """The address of three runs of two nodes each, of jobs of their own."""
    for number, name in enumerate(NAMES):
        run = recorded(tmp_path / "recorded" / name, job=name, start=(2 * number + 1) * HOUR_NS)
        update_manifest(run, run_id=name)
        if name in PACKED:
            for node in split(run, tmp_path / "nodes" / name, [(0, 1), (2, 3)]):
                Node(node.root, Packing(f"{server.address}/{name}", 30.0)).pack(last=True)
            continue
        store = Store(f"{server.address}/{name}")
        for path in filter(Path.is_file, run.root.rglob("*")):
            store.write(str(path.relative_to(run.root)), path.read_bytes())
    return server.address


def test_all_runs_are_listed_and_open_by_the_name_that_is_shown(runs: str, tmp_path: Path) -> None:
    listed = diag("analyze", runs)
    assert listed.returncode == ExitCode.OK, listed.stderr
    said = listed.stdout.split()
    assert [name for name in NAMES if name in said] == NAMES
    assert all(f"{runs}/{name}" in said for name in NAMES)  # as the command that opens it
    assert open_run(f"{runs}/deep/beta").verdict == open_run(tmp_path / "recorded" / "deep/beta").verdict
    assert str(tmp_path / "cache") not in listed.stdout


def test_a_host_that_was_at_fault_in_several_of_them_is_listed(runs: str) -> None:
    shown = diag("history", runs, "--json")
    assert shown.returncode == ExitCode.OK, shown.stderr
    (host,) = json.loads(shown.stdout)["hosts"]
    assert (host["host"], len(host["runs"])) == ("host-1", len(NAMES))


def test_the_dashboard_lists_them_and_looks_seldom(runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = local_path(runs)  # as `diag dashboard` does, also of an address
    looks: list[str] = []
    files = Store.files
    monkeypatch.setattr(Store, "files", lambda store, below="": looks.append(store.address) or files(store, below))
    listed, _ = runs_of(root)
    assert [name_of(root, run) for run in listed] == NAMES
    assert [len(RunLayout(run).ranks()) for run in listed] == [4, 4, 4]
    if is_remote(runs):  # else the folder itself is opened
        assert _caption(root, 3, 3, 0, live=False).endswith(f" in {runs}")
    assert all(state_of(run).ranks == 4 for run in listed)
    monkeypatch.setitem(vars(STORES), "refresh_s", 3600.0)
    looks.clear()
    assert runs_of(root)[0] == listed
    assert not looks


def test_what_arrives_is_followed_and_what_is_gone_is_gone(runs: str, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "alpha" / "node0"
    assert len(find_jobs([local_path(runs)]).jobs) == 3
    log = RunLayout(folder).rank(0).log
    log.write_text("a line\n")
    Node(folder, Packing(f"{server.address}/alpha", 30.0)).pack(last=True)
    packed_in(str(local_path(runs)))
    alpha, beta, _ = list_runs(local_path(runs))
    assert RunLayout(alpha).rank(0).log.read_text() == "a line\n"
    gone = Store(f"{runs}/deep/beta")
    gone.remove(list(gone.files()))
    shutil.rmtree(Path(runs) / "deep", ignore_errors=True)  # of the server that is a folder
    assert [job.name for job in find_jobs([local_path(runs)]).jobs] == ["alpha", "plain"]
    assert beta not in list_runs(local_path(runs))
