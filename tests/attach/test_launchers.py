"""Launchers other than torchrun: each rank is recorded once, under its own number, and the training stays as it was.

docs/launchers.md says what was tried by hand beside these. Those whose launcher is not installed are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.collectors.identity import rank_and_world
from diag.collectors.layout import RunLayout
from diag.collectors.settings import SITE
from tests.attach.trainings import is_stalled, steps_of
from tests.command import analyze_json, diag, diag_process
from tests.ports import free_port

LAUNCHED = str(Path(__file__).with_name("launched.py"))
STEPS = 24


def losses(output: str) -> list[str]:
    """The ranks' lines: they may come in any order, and two on one line."""
    return sorted(re.findall(r"rank \d+ loss -?0x\w\.\w+p[-+]\d+", output))


def ranks_of(run: Path) -> dict[int, dict[str, Any]]:
    """What rank.json says of each."""
    return {rank: json.loads(files.identity.read_text()) for rank, files in RunLayout(run).ranks().items()}


def is_recorded(run: Path) -> dict[str, Any]:
    """What ``diag analyze`` says of a run with two ranks, in which everything is there."""
    ranks = ranks_of(run)
    assert {rank: (one["rank"], one["world_size"]) for rank, one in ranks.items()} == {0: (0, 2), 1: (1, 2)}
    assert [len(steps_of(run, rank)) for rank in range(2)] == [STEPS, STEPS]
    assert all(json.loads(files.heartbeat.read_text())["done"] for files in RunLayout(run).ranks().values())
    result = analyze_json(run)
    assert (result["run"]["world_size"], result["run"]["strategy"], result["run"]["backend"]) == (2, "ddp", "gloo")
    return result


def alone(*command: str) -> list[str]:
    """The losses of a training that nobody records."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def recorded(run: Path, *command: str) -> list[str]:
    """The same under ``diag run``."""
    done = diag_process("run", "--no-trace", "--out", run, "--", *command)
    assert done.returncode == 0, done.stderr
    assert "nothing more is recorded" not in done.stderr
    return losses(done.stdout)


def on_two_ranks(way: str, *options: str) -> list[str]:
    return [sys.executable, LAUNCHED, way, "--port", str(free_port()), *options]


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_straggler_of_torch_multiprocessing(tmp_path: Path, way: str) -> None:
    """Forked ranks end without Python's atexit. They leave their process group as it is, as many scripts do."""
    options = ["--slow-rank", "1", "--no-destroy"]
    ours = recorded(tmp_path / "run", *on_two_ranks(way, *options))
    is_stalled(is_recorded(tmp_path / "run"))
    assert ours == alone(*on_two_ranks(way, *options))
    assert len(ours) == 2


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_crash_of_a_rank_of_torch_multiprocessing(tmp_path: Path, way: str) -> None:
    """torch.multiprocessing catches the exception: the rank that raised it is recorded as failed all the same."""
    done = diag_process("run", "--no-trace", "--out", tmp_path, "--", *on_two_ranks(way, "--crash-at", "5"))
    assert done.returncode == 1
    files = RunLayout(tmp_path).rank(1)
    assert json.loads(files.heartbeat.read_text())["phase"] == "failed: ValueError"
    assert "ValueError: planted in step 5" in files.error.read_text()
    assert len(steps_of(tmp_path, rank=1)) == 5
    answer = json.loads(diag("triage", tmp_path, "--json").stdout)
    assert (answer["verdict"]["fault_class"], [one["rank"] for one in answer["culprits"]]) == (
        "rank_killed_exception",
        [1],
    )


@pytest.mark.matrix
def test_straggler_of_notebook_launcher(tmp_path: Path) -> None:
    """Accelerate's, which forks the ranks out of the notebook's process."""
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    ours = recorded(tmp_path / "run", *on_two_ranks("notebook", "--slow-rank", "1"))
    is_stalled(is_recorded(tmp_path / "run"))
    assert [one["local_rank"] for one in ranks_of(tmp_path / "run").values()] == [0, 1]
    assert ours == alone(*on_two_ranks("notebook", "--slow-rank", "1"))


MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
with_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


@pytest.mark.matrix
@with_mpirun
def test_straggler_under_mpirun(tmp_path: Path) -> None:
    ours = recorded(tmp_path / "run", *MPIRUN, *on_two_ranks("mpi", "--slow-rank", "1"))
    is_stalled(is_recorded(tmp_path / "run"))
    assert [one["local_rank"] for one in ranks_of(tmp_path / "run").values()] == [0, 1]
    assert ours == alone(*MPIRUN, *on_two_ranks("mpi", "--slow-rank", "1"))


@pytest.mark.matrix
@with_mpirun
def test_mpirun_of_ranks_without_a_process_group(tmp_path: Path) -> None:
    """As with Horovod or mpi4py: only the launcher's variables say which rank a process is."""
    recorded(tmp_path, *MPIRUN, *on_two_ranks("mpi", "--no-group"))
    assert {rank: one["world_size"] for rank, one in ranks_of(tmp_path).items()} == {0: 2, 1: 2}
    assert [len(steps_of(tmp_path, rank)) for rank in range(2)] == [STEPS, STEPS]


@pytest.mark.matrix
def test_straggler_under_srun(tmp_path: Path) -> None:
    """Where Slurm is not installed or does not run, its variables are set as it sets them."""
    run = tmp_path / "run"
    train = " ".join(on_two_ranks("slurm", "--slow-rank", "1"))
    ranks = f"""
        export SLURM_NTASKS=2 SLURM_JOB_ID=7
        SLURM_PROCID=1 SLURM_LOCALID=1 {train} &
        SLURM_PROCID=0 SLURM_LOCALID=0 {train} && wait $!
    """
    if shutil.which("srun") and subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0:
        ranks = f"srun --ntasks 2 {train}"
    job = f'eval "$({sys.executable} -m diag attach --no-trace --out {run})"\n{ranks}'
    done = subprocess.run(["sh", "-c", job], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    is_stalled(is_recorded(run))
    assert [one["local_rank"] for one in ranks_of(run).values()] == [0, 1]
    assert len(losses(done.stdout)) == 2


def test_environment_for_launchers_that_start_no_shell(tmp_path: Path) -> None:
    """For --env-file, and for Ray's runtime_env: the same variables in both forms."""
    printed = {}
    for form in ("lines", "json"):
        done = diag_process("attach", "--format", form, "--trace-skip", "5", "--out", tmp_path / form)
        assert done.returncode == 0, done.stderr
        printed[form] = done.stdout
    variables = json.loads(printed["json"])
    assert variables["DIAG_RUN_DIR"] == str(tmp_path / "json")
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(SITE)
    assert json.loads(variables["DIAG_COLLECTOR"])["trace_skip"] == 5
    pairs = dict(line.split("=", 1) for line in printed["lines"].splitlines())
    folders = {form: str(tmp_path / form) for form in ("json", "lines")}
    same = {name: value.replace(folders["json"], folders["lines"]) for name, value in variables.items()}
    assert pairs == same


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 0, 1)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, (3, 1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 1, 4)),
        ({"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"}, (3, 1, 4)),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}, (3, 1, 4)),
        # mpirun within a Slurm job, and torchrun started by mpirun.
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
            (3, 0, 4),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}, (3, 0, 4)),
        ({"RANK": "", "SLURM_PROCID": "none"}, (0, 0, 1)),
    ],
)
def test_rank_in_the_variables_of_launchers(variables: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert rank_and_world(variables) == expected
