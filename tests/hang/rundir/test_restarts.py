"""A training that its launcher restarted: each attempt is triaged by itself, and the first cause that is known is
reported."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.errors import DiagError
from diag.hang.api import investigate, triage
from tests.hang.rundir.test_accounts import DONE, write_rank
from tests.hang.rundir.test_ends import AT, BUG, LOST, Ended, record, traceback, written

LOG = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242\n"


def test_the_attempts_are_not_mixed(tmp_path: Path) -> None:
    first = RunLayout(tmp_path / "run")
    for run in (first, first.restart(1)):
        update_manifest(run, world_size=1)
        run.rank(0).folder.mkdir(parents=True)
        run.rank(0).log.write_text(LOG)
        run.rank(0).flight_recorder_asked(0).write_bytes(b"\x80\x04")
    for run in (first, first.restart(1)):
        found = investigate([str(run.root)])
        assert {Path(path).parent for path in found.logs.paths} == {run.rank(0).folder}
        said = [path for path, _ in found.triage.gaps if path]
        assert said
        assert {Path(path).parent for path in said} == {run.rank(0).folder}
    # A folder of that name that is nobody's attempt is looked into.
    other = tmp_path / "logs" / "restart-1"
    other.mkdir(parents=True)
    (other / "log.txt").write_text(LOG)
    assert investigate([str(tmp_path / "logs")]).logs.paths == (str(other / "log.txt"),)


FAILED = {0: Ended(-15), 1: Ended(1, True, error=record(f"{BUG}\nof shard 3"))}
VICTIMS = {rank: Ended(1, log=traceback(LOST[0])) for rank in range(2)}
OTHER = {0: Ended(-15), 1: Ended(1, True, error=record("FileExistsError: checkpoint-1 exists"))}


def attempts(folder: Path, *ends: dict[int, Ended]) -> RunLayout:
    run = RunLayout(folder / "run")
    for number, one in enumerate(ends):
        written(run.restart(number), one)
    return run


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ((FAILED,), "After restart 1 it failed again, in the same way."),
        ((FAILED, FAILED), "After restarts 1, 2 it failed again, in the same way."),
        (
            (OTHER,),
            "After restart 1 it failed in another way: Rank 1 raised FileExistsError: checkpoint-1 exists "
            f"{AT}, and ended",
        ),
        ((OTHER, FAILED), "After restart 2 it failed again, in the same way."),
        ((VICTIMS,), "After restart 1 no cause is known: "),
    ],
)
def test_the_first_attempt_is_reported(tmp_path: Path, later: tuple[dict[int, Ended], ...], words: str) -> None:
    run = attempts(tmp_path, FAILED, *later)
    found = triage([str(run.root)])
    assert (found.fault_class, [culprit.rank for culprit in found.culprits]) == ("rank_killed_exception", [1])
    assert f"raised {BUG} {AT}, and ended" in found.headline
    assert words in found.headline
    if later[0] is OTHER:
        assert str(run.restart(1).rank(1).error) in {evidence.path for evidence in found.evidence}
        assert "checkpoint-1" in triage([str(run.restart(1).root)]).headline
    assert "restart" not in triage([str(run.restart(len(later)).root)]).headline


def test_a_later_attempt_where_the_first_names_no_cause(tmp_path: Path) -> None:
    found = triage([str(attempts(tmp_path, VICTIMS, FAILED).root)])
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert f"raised {BUG}" in found.headline
    assert "That was after the first restart: the records of the first attempt name no cause." in found.headline


def test_attempts_that_end_alike_without_a_known_fault(tmp_path: Path) -> None:
    """Nothing failed again: that both ended well, or that nothing is known of either, is no failure."""
    well = RunLayout(tmp_path / "well")
    for attempt in (well, well.restart(1)):
        update_manifest(attempt, world_size=2, exit_code=0)
        for rank in range(2):
            attempt.rank(rank).folder.mkdir(parents=True)
            write_rank(attempt, rank, DONE, time.time_ns(), 2)
    for run, fault_class in ((well, "healthy"), (attempts(tmp_path, VICTIMS, VICTIMS), "undetermined")):
        found = triage([str(run.root)])
        assert found.fault_class == fault_class
        assert found.headline.endswith(". It was the same after restart 1.")


def test_attempts_that_left_nothing(tmp_path: Path) -> None:
    run = attempts(tmp_path, FAILED)
    run.restart(1).ranks_folder.mkdir(parents=True)
    assert "After restart 1 it left no logs or records." in triage([str(run.root)]).headline
    for number in range(2):
        RunLayout(tmp_path / "empty").restart(number).ranks_folder.mkdir(parents=True)
    with pytest.raises(DiagError, match="no log and no Flight Recorder dump"):
        triage([str(tmp_path / "empty")])
