"""Every reader of a run directory takes the same ranks: those of its own job."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diag.api import open_memory_snapshots, open_run, state_of
from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.export.finished_steps import history
from diag.export.run_metrics import RunMetrics
from diag.hang.api import triage
from diag.hang.flight import read_dumps
from diag.hang.ras.live import _Job
from diag.hang.text import read_logs
from diag.live import curves_of
from diag.perfetto import step_of
from diag.rundir import job_ranks as module
from diag.rundir.job_ranks import job_ranks
from diag.rundir.policy import RUN_READING
from diag.watch.traces import answers, ask
from tests.allocator import train
from tests.rundir.test_one_job import HOUR_NS, SECOND_NS, edit, later, recorded

NOW_NS = HOUR_NS + 20 * SECOND_NS
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
)


def furnished(layout: RunLayout, rank: int, log: str) -> None:
    """What other readers look for in a rank's folder."""
    files = layout.rank(rank)
    files.log.write_text(log)
    train().write(files.memory_snapshot("oom", 7), diag={"rank": rank, "step": 7, "reason": "oom"})
    group = {"name": "default_pg", "desc": "default_pg", "ranks": json.dumps([0, 1, 2, 3])}
    dump = {"version": "2.5", "pg_config": {"0": group}, "pg_status": {}, "entries": [], "rank": rank}
    files.flight_recorder_asked(rank).write_bytes(pickle.dumps(dump, protocol=2))
    beat = {"unix_ns": NOW_NS, "monotonic_ns": NOW_NS, "step": 59, "phase": "data", "steps": 60}
    files.heartbeat.write_text(json.dumps(beat))
    os.utime(files.heartbeat, ns=(NOW_NS, NOW_NS))


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """Two of four ranks, which have trained until ``NOW_NS``."""
    layout = recorded(tmp_path / "run", ranks=4)
    for rank in (0, 1):
        furnished(layout, rank, "[rank0]: step 59\n")
        shutil.rmtree(layout.rank(rank + 2).folder)
    return layout


def add_strangers(run: RunLayout, tmp: Path) -> None:
    """A copy of rank 1, and a rank of a job that began when this one had ended."""
    shutil.copytree(run.rank(1).folder, run.rank(2).folder)
    furnished(run, 2, OOM)
    os.utime(run.rank(2).heartbeat, ns=(0, 0))
    shutil.copytree(later(tmp / "other", ranks=4).rank(3).folder, run.rank(3).folder)
    furnished(run, 3, OOM)
    beat = {"unix_ns": 1, "monotonic_ns": 2 * HOUR_NS, "step": 500, "phase": "failed: OutOfMemoryError"}
    run.rank(3).heartbeat.write_text(json.dumps(beat))


def curves(run: RunLayout) -> object:
    read = curves_of(run.root)
    return read and (read.rank, read.steps.tolist(), read.dur_ns.tolist())


def state(run: RunLayout) -> object:
    return replace(state_of(run.root, NOW_NS), changed_ns=0)


def live_state(run: RunLayout) -> object:
    for path in run.root.rglob("*"):
        if path.name != run.rank(0).heartbeat.name:
            os.utime(path, ns=(NOW_NS, NOW_NS))
    return state_of(run.root, NOW_NS + 2 * SECOND_NS)


def opened(run: RunLayout) -> object:
    steps = []
    for rank in range(4):
        try:
            steps.append(step_of(run.root, rank, 5).recorded)
        except DiagError:
            steps.append(b"")
    return steps


def logs(run: RunLayout) -> object:
    read = read_logs([run.root], ["out of memory"])
    return {(process.pid, process.rank) for process in read.processes}, read.paths, len(read.lines)


def triaged(run: RunLayout) -> object:
    answer = triage([str(run.root)])
    return answer.fault_class, answer.confidence, answer.culprits, answer.next_steps


def asked(run: RunLayout) -> object:
    request = ask(run, 1, now=lambda: NOW_NS / 1e9)
    ranks = [answer.rank for answer in answers(run, request)]
    run.trace_asked.unlink()
    return ranks


READERS: dict[str, Callable[[RunLayout], Any]] = {
    "metrics": lambda run: RunMetrics(run.root, per_rank=True).read(NOW_NS),
    "history": lambda run: list(history(run.root)),
    "curves": curves,
    "state": state,
    "standstill": live_state,
    "open": opened,
    "logs": logs,
    "triage": triaged,
    "dumps": lambda run: sorted(read_dumps([run.root]).dumps),
    "snapshots": lambda run: [account.path for account in open_memory_snapshots(run.root).accounts],
    "snapshots-above": lambda run: [account.path for account in open_memory_snapshots(run.root.parent).accounts],
    "ras": lambda run: _Job(run, ()).newest().ranks,
    "asked": asked,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_ranks_of_another_job_change_no_answer(
    reader: Callable[[RunLayout], object], run: RunLayout, tmp_path: Path
) -> None:
    before = reader(run)
    add_strangers(run, tmp_path)
    shutil.rmtree(tmp_path / "other")
    assert before == reader(run)
    assert before


def test_a_metrics_export_and_logs_say_what_is_left_out(run: RunLayout, tmp_path: Path) -> None:
    add_strangers(run, tmp_path)
    said: list[str] = []
    RunMetrics(run.root, say=lambda path, reason: said.append(path)).read(NOW_NS)
    folders = {str(run.rank(rank).folder) for rank in (2, 3)}
    assert folders <= set(said)
    assert folders <= {path for path, _ in read_logs([run.root]).gaps}


def test_polling_reads_an_identity_once(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(job_ranks(run).files) == {0, 1}
    read: list[Path] = []
    monkeypatch.setattr(module, "read_identity", lambda files: (read.append(files.folder), (None, None))[1])
    monkeypatch.setattr(module, "last_steps", lambda path: read.append(path) or [])
    assert set(job_ranks(run).files) == {0, 1}
    assert not read
    edit(run.rank(1).identity, pid=7)
    job_ranks(run)
    assert run.rank(1).folder in read


def test_identities_that_are_known_are_not_read(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {rank: identity for rank, identity in job_ranks(run).identities.items() if identity is not None}
    read: list[str] = []
    monkeypatch.setattr(module, "read_identity", lambda files: (read.append(files.place), (None, None))[1])
    module._READERS.clear()
    found = job_ranks(run, whole=True, known=known)
    assert (found.identities, set(found.files), read) == (known, {0, 1}, [])
    recorded(run.root.parent / "third", ranks=3)
    shutil.copytree(run.root.parent / "third" / "ranks" / "00002", run.rank(2).folder)
    assert 2 in job_ranks(run, whole=True, known=known).files
    assert run.rank(2).place in read


def test_the_state_of_an_analysed_run_reads_no_identity_again(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = state_of(run.root, with_answer=False)
    result = open_run(run.root)
    read: list[str] = []
    monkeypatch.setattr(module, "read_identity", lambda files: (read.append(files.place), (None, None))[1])
    module._READERS.clear()
    assert (result.state, read) == (expected, [])


def test_a_rank_that_starts_beside_an_old_folder_is_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(RUN_READING), "pause_over_reading", 0)
    run = recorded(tmp_path / "run", ranks=3)
    old = recorded(tmp_path / "old", ranks=3, at_ns=lambda rank: HOUR_NS // 2)
    shutil.rmtree(run.rank(2).folder)
    shutil.copytree(old.rank(2).folder, run.rank(2).folder)
    kept = {rank: run.rank(rank).steps.read_bytes() for rank in (0, 1)}
    for rank in kept:
        run.rank(rank).steps.unlink()
    job_ranks(run)  # while no rank of the job has given a sign
    for rank, steps in kept.items():
        run.rank(rank).steps.write_bytes(steps)
    assert set(job_ranks(run).files) == {0, 1}
