"""`diag attach` joins: all processes of an attempt of a job record together, and a requeue makes the next attempt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.collectors.attempts import attempt_of
from diag.collectors.files import encode
from diag.collectors.identity import job_of
from diag.collectors.launchers import Job, attempt_key, job_in, joining
from diag.collectors.layout import RunLayout
from diag.collectors.living import boot_id
from diag.collectors.records import Heartbeat, RankRecord
from diag.collectors.settings import JOIN, SITE, run_dir_from
from tests.command import diag

JOINED = {"DIAG_ATTACH": JOIN}


# -- what the variables say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, ("slurm", "7", 0)),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, ("slurm", "7", 2)),
        ({"PBS_JOBID": "12[3].server"}, ("pbs", "12[3].server", None)),
        ({"LSB_JOBID": "5", "LSB_JOBINDEX": "0"}, ("lsf", "5", None)),
        ({"LSB_JOBID": "5", "LSB_JOBINDEX": "2"}, ("lsf", "5-2", None)),
        ({"RAY_JOB_ID": "01000000", "SLURM_JOB_ID": "7"}, ("slurm", "7", 0)),
        ({"RAY_JOB_ID": "01000000"}, ("ray", "01000000", None)),
        # The env of `diag attach --format k8s`, where a label that the pod lacks is an empty variable.
        ({"DIAG_JOBSET": "", "DIAG_PYTORCHJOB": "", "DIAG_KUBERNETES_JOB": "ab-1"}, ("kubernetes", "ab-1", None)),
        ({"DIAG_JOBSET": "t", "DIAG_JOBSET_RESTART": "1", "DIAG_KUBERNETES_JOB": "ab-1"}, ("jobset", "t", 1)),
        ({"DIAG_JOBSET": "", "DIAG_PYTORCHJOB": "train"}, ("pytorchjob", "train", None)),
    ],
)
def test_job_in_the_variables_of_schedulers(variables: dict[str, str], expected: tuple[Any, ...] | None) -> None:
    job = job_in(variables)
    assert (job and job[:3]) == expected
    assert job is None or job.variable in variables


def test_key_has_nothing_that_a_shell_would_change() -> None:
    assert Job("pbs", "12[3].a b'", None, "PBS_JOBID").key == "pbs:12_3_.a_b_"


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
ELASTIC = {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SRUN, SRUN | {"SLURM_RESTART_COUNT": "1"}),
        (SRUN, SRUN | {"SLURM_JOB_ID": "8"}),
        (SRUN, SRUN | {"SLURM_STEP_ID": "1"}),  # srun twice in a script
        (ELASTIC, ELASTIC | {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (ELASTIC | SRUN, ELASTIC | SRUN | {"SLURM_RESTART_COUNT": "1"}),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
    ],
)
def test_another_attempt_has_another_key(one: dict[str, str], other: dict[str, str]) -> None:
    assert attempt_key(4, JOINED | one) != attempt_key(4, JOINED | other)
    assert job_of(JOINED | one, 4) != job_of(JOINED | other, 4)


@pytest.mark.parametrize(
    "others",
    [
        # One srun a node, mpirun within Slurm, and Ray whose nodes are steps: the step is no attempt.
        SRUN | {"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "1"},
        SRUN | {"SLURM_STEP_ID": "1", "OMPI_COMM_WORLD_RANK": "3", "SLURM_STEP_NUM_TASKS": "4"},
        SRUN | {"SLURM_STEP_ID": "1", "RAY_JOB_ID": "01000000"},
        {},  # ssh: nothing but what `diag attach` gave to the launcher
        {"RAY_JOB_ID": "01000000"},
    ],
)
def test_the_job_of_the_launcher_is_that_of_its_ranks(others: dict[str, str]) -> None:
    job = {"SLURM_JOB_ID": "7"}
    told = {"DIAG_ATTACH": joining(job_in(job))}
    assert attempt_key(4, told | job) == attempt_key(4, told | others)


def test_a_job_submitted_from_within_another_is_its_own() -> None:
    told = {"DIAG_ATTACH": joining(job_in({"SLURM_JOB_ID": "7"}))}
    assert attempt_key(4, told | {"SLURM_JOB_ID": "8"}) == attempt_key(4, JOINED | {"SLURM_JOB_ID": "8"})


def test_restarts_by_torchrun_have_their_folder_under_diag_run_alone() -> None:
    environ = {"DIAG_RUN_DIR": "/r", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert run_dir_from(environ | {"DIAG_ATTACH": "1"}) == Path("/r/restart-2")
    assert run_dir_from(environ | JOINED) == Path("/r")


# -- the folder of the attempt -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody beats while it is waited for the next heartbeat."""
    monkeypatch.setattr("diag.collectors.attempts.sleep", lambda _seconds: None)


ENDED, FAILED, KILLED, RUNS = "ended", "failed", "killed", "runs"


def records(run: RunLayout, rank: int, state: str, world_size: int = 2, host: str = "elsewhere") -> None:
    """The rank's files, as a process of another host leaves them."""
    ago_ns = 0 if state == RUNS else 3600 * 10**9
    now_ns = time.time_ns() - ago_ns
    identity = RankRecord(rank, 0, world_size, host, 1, "another boot", 1, now_ns, "cpu")
    phase = "failed: ValueError" if state == FAILED else "forward"
    files = run.rank(rank)
    files.folder.mkdir(parents=True)
    files.identity.write_bytes(encode(identity))
    files.heartbeat.write_bytes(encode(asdict(Heartbeat(now_ns, 1, 5, phase, done=state in (ENDED, FAILED)))))
    for path in (files.identity, files.heartbeat):
        os.utime(path, ns=(now_ns, now_ns))


def place(run: RunLayout, rank: int, world_size: int = 2, **variables: str) -> str:
    found = attempt_of(run, rank, world_size, JOINED | variables)
    return str(found.root.relative_to(run.root))


def test_ranks_of_an_attempt_meet_and_a_requeue_makes_the_next(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    assert [place(run, rank, SLURM_JOB_ID="7") for rank in (1, 0)] == [".", "."]
    records(run, 0, RUNS)  # a requeue may come before the old heartbeat is old
    assert place(run, 1, SLURM_JOB_ID="7") == "."
    again = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    assert [place(run, rank, **again) for rank in (0, 1)] == ["restart-1", "restart-1"]
    assert place(run, 1, SLURM_JOB_ID="8") == "restart-2"
    assert place(run, 1, **again) == "restart-1"


@pytest.mark.parametrize("state", [ENDED, FAILED, KILLED])
def test_where_nothing_counts_a_rank_that_ended_leaves_its_place(tmp_path: Path, state: str) -> None:
    run = RunLayout(tmp_path)
    assert [place(run, rank) for rank in (0, 1)] == [".", "."]
    for rank in (0, 1):
        records(run, rank, state)
    assert [place(run, rank) for rank in (1, 0)] == ["restart-1", "restart-1"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_runs_where_the_clock_is_late_keeps_its_place(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunLayout(tmp_path)
    place(run, 0)
    records(run, 0, KILLED)  # by its clock, which is an hour late

    def beats(seconds: float) -> None:
        file = run.rank(0).heartbeat
        file.write_bytes(encode(json.loads(file.read_text()) | {"unix_ns": time.time_ns() - 3599 * 10**9}))

    monkeypatch.setattr("diag.collectors.attempts.sleep", beats)
    assert place(run, rank) == "."


def test_a_rank_that_runs_keeps_its_place(tmp_path: Path) -> None:
    """Then the second process of this rank says that it is not recorded."""
    run = RunLayout(tmp_path)
    place(run, 0)
    records(run, 0, RUNS)
    assert place(run, 0) == "."


@pytest.mark.parametrize(("state", "world_size", "expected"), [
    (RUNS, 2, "."),
    (ENDED, 2, "."),  # ranks without a process group need not begin together
    (FAILED, 2, "restart-1"),
    (KILLED, 2, "restart-1"),
    (RUNS, 4, "restart-1"),
])  # fmt: skip
def test_a_rank_that_had_not_begun_when_the_others_failed(
    tmp_path: Path, state: str, world_size: int, expected: str
) -> None:
    run = RunLayout(tmp_path)
    place(run, 0)
    records(run, 0, state)
    assert place(run, 1, world_size) == expected


def test_a_step_of_slurm_is_one_attempt_however_its_ranks_end(tmp_path: Path) -> None:
    run, step = RunLayout(tmp_path), SRUN | {"SLURM_STEP_NUM_TASKS": "2"}
    place(run, 0, **step)
    records(run, 0, FAILED)
    assert place(run, 1, **step) == "."


def test_a_process_of_this_host_is_asked_for(tmp_path: Path) -> None:
    """Its heartbeat may be young: a loop in a script starts the next training at once."""
    run = RunLayout(tmp_path)
    place(run, 0)
    records(run, 0, RUNS)
    child = subprocess.Popen(["sleep", "60"])
    identity = json.loads(run.rank(0).identity.read_text())
    host = os.uname().nodename
    about = identity | {"host": host, "boot_id": boot_id(), "pid": child.pid, "monotonic_ns": time.monotonic_ns()}
    run.rank(0).identity.write_bytes(encode(about))
    assert place(run, 0) == "."
    run.rank(0).identity.write_bytes(encode(about | {"monotonic_ns": 1}))  # another process had this number
    assert place(run, 0) == "restart-1"
    run.rank(0).identity.write_bytes(encode(about))
    child.kill()
    child.wait()
    shutil.rmtree(run.restart(1).root)
    assert place(run, 0) == "restart-1"


def test_what_another_command_recorded_is_left_alone(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    records(run, 0, RUNS)
    assert place(run, 1) == "restart-1"


def evaluated(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The text in a script that stops at the first error, and after it a training that ends with 7."""
    environment = {"PATH": os.environ["PATH"], **variables}
    script = f'set -eu\n{text}\n[ -z "${{DIAG_ATTACH-}}" ] && exit 7\nexit 8'
    return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)


def test_every_node_evaluates_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first, second = (diag("attach", "--out", tmp_path) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout
    assert "DIAG_ATTACH=join:slurm:7:0" in first.stdout
    assert evaluated(first.stdout).returncode == 8


@pytest.mark.parametrize("form", ["shell", "json"])
def test_where_it_cannot_record_the_evaluated_text_says_so(tmp_path: Path, form: str) -> None:
    """A run of `diag run` is there."""
    records(RunLayout(tmp_path), 0, ENDED)
    said = diag("attach", "--out", tmp_path, "--format", form)
    assert said.returncode == 1
    if form == "json":
        assert not said.stdout
        return
    ended = evaluated(said.stdout, DIAG_ATTACH="join")  # of a shell from which the job was submitted
    assert ended.returncode == 7
    assert "NOT RECORDED" in ended.stderr
    assert str(tmp_path) in ended.stderr


def test_a_recorder_that_is_not_there_is_noticed_where_the_text_is_evaluated(tmp_path: Path) -> None:
    text = diag("attach", "--out", tmp_path).stdout.replace(str(SITE), "/nowhere/site")
    ended = evaluated(text)
    assert ended.returncode == 8
    assert "NOT RECORDED: cannot read /nowhere/site" in ended.stderr


@pytest.mark.parametrize("out", ["/shared/run", "memory://bucket/run"])
def test_env_of_a_pod(out: str) -> None:
    """It is printed where neither the folder nor the container's recorder is."""
    said = diag("attach", "--out", out, "--format", "k8s", "--recorder", "/opt/diag/")
    assert said.returncode == 0, said.stderr
    (entries,) = yaml.safe_load(said.stdout).values()
    values = {entry["name"]: entry["value"] for entry in entries if "value" in entry}
    assert (values["DIAG_ATTACH"], values["PYTHONPATH"]) == (JOIN, "/opt/diag/collectors/attach/site")
    assert (values["DIAG_RUN_DIR"] == out) is ("DIAG_PACK" not in values) is (out == "/shared/run")
    labels = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in entries if "valueFrom" in entry}
    assert labels["DIAG_JOBSET_RESTART"] == "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
    assert job_in(dict.fromkeys(labels, "1")) is not None
    assert not Path("/shared/run").exists()


def test_env_of_a_pod_names_places_in_the_container() -> None:
    assert diag("attach", "--out", "run", "--format", "k8s").returncode == 2
