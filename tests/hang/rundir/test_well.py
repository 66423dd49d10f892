"""A run that ended well is said to have ended well, by the command and as JSON; any other is judged as it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import FAILED, Heartbeat, RankExit, RankRecord, StepRecord
from diag.ended.ends import is_gone
from diag.ended.rundir import read_runs
from diag.ended.state import standing
from diag.hang.api import triage
from diag.rundir import states
from diag.words.formatting import NBSP
from tests.command import diag

NCCL_WARNS = "node1:10:11 [0] misc/socket.cc:99 NCCL WARN something that no signature knows\n"
OUT_OF_MEMORY = "node1:10:11 [0] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'\n"


def run_of(folder: Path, ranks: int = 2, steps: int = 16) -> RunLayout:
    """A run whose ranks all came to the end of the training, as the collectors and the launcher leave it."""
    layout = RunLayout(folder / "run")
    update_manifest(layout, world_size=ranks, exit_code=0)
    for rank in range(ranks):
        files = layout.rank(rank)
        files.folder.mkdir(parents=True)
        files.identity.write_bytes(encode(RankRecord(rank, rank, ranks, "node1", 100 + rank, "", 0, 0, "cpu")))
        files.stdout.write_text("step 1 loss 2.0\n")
        files.heartbeat.write_bytes(encode(Heartbeat(1, 1, steps - 1, "done", done=True, steps=steps)))
    return layout


def beat(layout: RunLayout, rank: int, **changes: object) -> None:
    file = layout.rank(rank).heartbeat
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **changes}))


def on_host(layout: RunLayout, rank: int, host: str) -> None:
    file = layout.rank(rank).identity
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "host": host}))


def manifest(layout: RunLayout, **changes: object) -> None:
    layout.manifest.write_text(json.dumps({**json.loads(layout.manifest.read_bytes()), **changes}))


@pytest.mark.parametrize(("ranks", "who"), [(1, "the only rank"), (2, "all 2 ranks")])
def test_a_run_that_ended_well(tmp_path: Path, ranks: int, who: str) -> None:
    found = triage([str(run_of(tmp_path, ranks).root)])
    assert found.fault_class == "healthy"
    assert found.headline == (
        f"The run ended well: {who} reached the end of the training, after step 15, with exit code 0. "
        "There is nothing to triage."
    )
    assert (found.culprits, found.victims, found.next_steps) == ((), (), ())
    assert [Path(one.path).name for one in found.evidence] == ["manifest.json", *["heartbeat.json"] * ranks]


def test_the_command_says_the_same(tmp_path: Path) -> None:
    run = run_of(tmp_path).root
    found = triage([str(run)])
    ended = diag("triage", run, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdict"] == {
        "fault_class": "healthy", "confidence": found.confidence, "culprit_confidence": None,
        "headline": found.headline,
    }  # fmt: skip
    text = " ".join(diag("triage", run).stdout.split())
    assert found.headline in text
    assert "What to do" not in text


def test_it_needs_no_log(tmp_path: Path) -> None:
    layout = run_of(tmp_path)
    for rank in range(2):
        layout.rank(rank).stdout.unlink()
    assert triage([str(layout.root)]).fault_class == "healthy"


def test_a_warning_did_not_hold_it_up(tmp_path: Path) -> None:
    layout = run_of(tmp_path)
    layout.rank(0).log.write_text(NCCL_WARNS)
    assert triage([str(layout.root)]).fault_class == "healthy"


def test_a_cause_that_a_log_names_is_told(tmp_path: Path) -> None:
    layout = run_of(tmp_path)
    layout.rank(0).log.write_text(OUT_OF_MEMORY)
    assert triage([str(layout.root)]).fault_class == "cuda_oom"


UNKNOWN: dict[str, Callable[[RunLayout], object]] = {
    "ended by a signal": lambda run: manifest(run, ended_by={"signal": "SIGTERM", "unix_ns": 1}),
    "failed": lambda run: manifest(run, exit_code=1),
    "still training": lambda run: (manifest(run, exit_code=None), beat(run, 1, done=False, phase="forward")),
    "another node is not done": lambda run: (beat(run, 1, done=False, phase="forward"), on_host(run, 1, "node2")),
    "a rank raised": lambda run: beat(run, 1, phase=f"{FAILED}ValueError", failed_in="forward"),
    "a rank left no heartbeat": lambda run: run.rank(1).heartbeat.unlink(),
    "a rank is missing": lambda run: manifest(run, world_size=3),
    "world size unknown": lambda run: manifest(run, world_size=None),
    "a record of an exit": lambda run: run.exits.write_text(json.dumps([asdict(RankExit(1, -15))])),
    "a damaged heartbeat": lambda run: run.rank(1).heartbeat.write_bytes(b"{"),
}


@pytest.mark.parametrize("spoil", UNKNOWN.values(), ids=UNKNOWN)
def test_where_it_is_not_known_nothing_is_claimed(tmp_path: Path, spoil: Callable[[RunLayout], object]) -> None:
    layout = run_of(tmp_path)
    spoil(layout)
    found = triage([str(layout.root)])
    assert found.fault_class != "healthy"
    assert "ended well" not in found.headline


def test_without_a_launcher_the_ranks_decide(tmp_path: Path) -> None:
    layout = run_of(tmp_path)
    manifest(layout, exit_code=None)
    found = triage([str(layout.root)])
    assert found.fault_class == "healthy"
    assert "no launcher recorded an exit code" in found.headline


def test_a_log_beside_the_run_may_be_of_another_job(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("step 1 loss 2.0\n")
    found = triage([str(run_of(tmp_path).root), str(tmp_path / "other.log")])
    assert found.fault_class == "undetermined"


@pytest.mark.parametrize("hosts", [("node-a", "node-a"), ("node-a", "node-b")])
def test_the_stacks_are_taken_on_the_host_of_the_process(hosts: tuple[str, str], tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    update_manifest(layout, run_id="x", world_size=2)
    for rank, host in enumerate(hosts):
        layout.rank(rank).folder.mkdir(parents=True)
        layout.rank(rank).identity.write_bytes(encode(RankRecord(rank, 0, 2, host, 40 + rank, "boot", 0, 0, "cpu")))
        layout.rank(rank).heartbeat.write_bytes(encode(Heartbeat(0, 0, 5 + rank, ("forward", "backward")[rank])))
        steps = [StepRecord(n, n * 10**8, n * 10**8 + 1, []) for n in range(5)]  # else it has not begun
        layout.rank(rank).steps.write_bytes(b"".join(map(encode, steps)))
    (run,) = read_runs([str(layout.root)])
    (step,) = standing(run).next_steps
    on = [f" on {host}" if len(set(hosts)) > 1 else "" for host in hosts]
    assert f"`py-spy dump --pid 40`{on[0]}, `py-spy dump --pid 41`{on[1]}." in step


def test_ranks_that_are_alike_are_told_together_also_beyond_those_that_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SILENCE", SimpleNamespace(**{**vars_of(states.SILENCE), "most_heartbeats_read": 2}))
    layout = run_of(tmp_path, ranks=5)
    manifest(layout, exit_code=None)
    hour_ago = time.time_ns() - 3600 * 10**9
    for rank in range(5):
        on_host(layout, rank, f"another{rank}")
        beat(layout, rank, unix_ns=hour_ago, monotonic_ns=10**12, step=99, phase="between steps", done=False)
        os.utime(layout.rank(rank).heartbeat, ns=(hour_ago, hour_ago))
    (run,) = read_runs([str(layout.root)])
    assert run.judged is not None
    assert len(run.judged.ranks) == 2
    assert "Ranks 0, 1, 2, 3, 4: between steps, before step 99." in standing(run).headline.replace(NBSP, " ")


def vars_of(policy: object) -> dict[str, object]:
    return {name: getattr(policy, name) for name in dir(policy) if not name.startswith("_")}


@pytest.mark.parametrize("off_s", [-600, 600])
def test_a_clock_that_is_late_or_ahead_makes_no_rank_disappear(off_s: int, tmp_path: Path) -> None:
    """By the storage, the first rank wrote just now and the second a minute ago; both clocks are off."""
    layout, now, off = run_of(tmp_path), time.time_ns(), off_s * 10**9
    manifest(layout, exit_code=1)
    for rank, age in ((0, 0), (1, 60 * 10**9)):
        on_host(layout, rank, "another")
        files, began = layout.rank(rank), now - 3600 * 10**9
        files.identity.write_text(json.dumps({**json.loads(files.identity.read_bytes()), "unix_ns": began + off}))
        beat(layout, rank, unix_ns=now - age + off, step=5, phase="forward", done=False)
        os.utime(files.heartbeat, ns=(now - age, now - age))
        os.utime(files.identity, ns=(began, began))
    (run,) = read_runs([str(layout.root)])
    assert [is_gone(run, run.ranks[rank]) for rank in (0, 1)] == [False, True]
