"""Runs in folders of their own that are parts of one training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diag.collectors.launchers import scheduled_as
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import training_of, update_manifest
from diag.collectors.records import Manifest
from diag.history.lineage import goes_on_with, origin_of, parts_of_trainings
from diag.model.history import History, Origin, Stretch
from diag.rundir.run import find_jobs
from diag.summaries import open_history, open_lives
from tests.command import diag as diag_command
from tests.history.planted import Training

S = 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 steps, one that resumed from its checkpoint after step 49, and one of another training."""
    root = tmp_path_factory.mktemp("resumed")
    first = Training(root / "z", ranks=2)
    first.train(60).close(exit_code=1)
    second = Training(root / "a", ranks=2, begin_ns=first.end_ns + 30 * S, first_step=50)
    second.train(60).close(exit_code=0)
    Training(root / "b", ranks=2, begin_ns=first.end_ns + 400 * S).train(40).close(exit_code=0)
    update_manifest(RunLayout(root / "z"), run_id="one")
    update_manifest(RunLayout(root / "a"), run_id="two", training="one", resumed_step=50)
    update_manifest(RunLayout(root / "b"), run_id="three")
    return root


def test_a_run_that_resumed_in_another_folder_is_one_life_with_it(folder: Path) -> None:
    document = json.loads(diag_command("history", folder / "a", folder / "z", "--json").stdout)
    assert [Path(attempt["path"]).name for attempt in document["attempts"]] == ["z", "a"]
    (restart,) = document["restarts"]
    assert (restart["resumed_at"], restart["repeated"], restart["ended"]) == (50, 10, "failed")
    assert sum(document["goodput"]["parts_ns"].values()) == document["goodput"]["wall_ns"]


def test_runs_of_other_trainings_are_told_apart(folder: Path) -> None:
    assert [name for name, _ in open_lives(find_jobs([folder]))] == ["b", "z + a"]


def test_a_part_says_that_it_is_one(folder: Path) -> None:
    notes = {name: open_history(folder / name).goodput.notes for name in "az"}  # type: ignore[union-attr]
    assert any("began in another run, and went on with step 50 here" in note for note in notes["a"])
    assert notes["z"] == ()


def test_a_checkpoint_of_a_resumed_run_names_the_first_run(folder: Path) -> None:
    assert [training_of(RunLayout(folder / name)) for name in "zab"] == ["one", "one", "three"]
    assert training_of(RunLayout(folder / "nothing")) == ""


# -- without a checkpoint that says it ---------------------------------------------------------------------------------


def run(first: int, last: int, begin_s: int, ended: str = "failed", **origin: object) -> History:
    end_s = begin_s + last + 1 - first
    stretches = tuple(
        Stretch(step, step, 1, (begin_s + step - first) * S, (begin_s + step + 1 - first) * S, S, S)
        for step in range(first, last + 1)
    )
    made = History("R", 2, 0, stretches, (), begin_unix_ns=begin_s * S, end_unix_ns=end_s * S, ended=ended)
    return replace(made, origin=Origin(**origin))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["job", "scheduled"])
def test_runs_of_one_job_whose_numbers_go_on_are_one_training(name: str) -> None:
    before = run(0, 99, 1_000, "finished", **{name: "4711"})
    assert goes_on_with(before, run(80, 120, 2_000, **{name: "4711"}))
    assert not goes_on_with(before, run(80, 120, 2_000, **{name: "4712"})), "another job"
    assert not goes_on_with(before, run(80, 120, 1_050, **{name: "4711"})), "at the same time"
    assert not goes_on_with(before, run(150, 170, 2_000, **{name: "4711"})), "nothing between them is known"
    assert not goes_on_with(run(0, 99, 1_000), run(80, 120, 2_000)), "no job is named"


def test_steps_that_are_counted_anew_go_on_if_the_command_is_the_same_and_had_not_come_to_its_end() -> None:
    before = run(0, 99, 1_000, scheduled="4711", command=("train.py",))
    assert goes_on_with(before, run(0, 50, 2_000, scheduled="4711", command=("train.py",)))
    assert not goes_on_with(before, run(0, 50, 2_000, scheduled="4711", command=("train.py", "--lr", "1")))
    finished = replace(before, ended="finished")
    assert not goes_on_with(finished, run(0, 50, 2_000, scheduled="4711", command=("train.py",)))


def test_the_third_part_goes_on_with_the_second() -> None:
    parts = {"x": [run(50, 99, 2_000, job="j")], "y": [run(90, 130, 3_000, job="j")], "z": [run(0, 60, 1_000, job="j")]}
    assert parts_of_trainings(parts) == [["z", "x", "y"]]


def test_the_folder_of_the_records_is_no_part_of_the_command() -> None:
    one, other = (Manifest(argv=["run", *out, "--nproc", "2", "train.py"]) for out in (("--out", "A"), ("--out=B",)))
    assert origin_of(one).command == origin_of(other).command == ("run", "--nproc", "2", "train.py")


def test_requeues_are_of_one_scheduled_job() -> None:
    job = {"SLURM_JOB_ID": "17"}
    assert scheduled_as(job) == scheduled_as({**job, "SLURM_RESTART_COUNT": "2"}) != scheduled_as({"PBS_JOBID": "17"})
    assert scheduled_as({}) == ""
