"""What the variables of launchers say: which rank a process is, and which attempt of which job. Standard library only.

An attempt is one start of a training on all its nodes. A requeue of the job makes the next one, as does a restart by
torchrun.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .settings import ATTACH_VARIABLE, JOIN, RESTARTS_VARIABLE, restarts

# Rank, local rank and world size in the launchers' variables: torchrun and compatible launchers, Open MPI, MPICH and
# Intel MPI, Slurm. Slurm comes last: processes that mpirun starts within a Slurm job have the variables of both, and
# Slurm's then describe the step that mpirun runs in.
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def first_number(environ: Mapping[str, str], names: Iterable[str], otherwise: int) -> int:
    return next((int(value) for name in names if (value := environ.get(name, "")).isdecimal()), otherwise)


class Job(NamedTuple):
    """A job as its scheduler names it. ``attempt``: how often the scheduler started it again; None where it does not
    count. ``variable``: from which the name comes."""

    scheduler: str
    name: str
    attempt: int | None
    variable: str

    @property
    def key(self) -> str:
        """Equal in all processes of an attempt of the job. Without characters that a shell or a file would change."""
        parts = [self.scheduler, self.name, *([] if self.attempt is None else [str(self.attempt)])]
        return ":".join(re.sub(r"[^\w.-]", "_", part) for part in parts)


class _Scheduler(NamedTuple):
    name: str
    job: tuple[str, ...]  # the variable of the job's name, and further ones that belong to it
    attempt: str = ""  # the variable that counts its starts; not set before the first requeue
    counts: bool = False  # an empty count is the first start


# Kubernetes tells a container the name of its job by the downward API alone: see ``KUBERNETES``. The first that is set
# counts: a JobSet makes a Job of each of its parts, and Ray often runs within one of the others.
_SCHEDULERS = (
    _Scheduler("jobset", ("DIAG_JOBSET",), "DIAG_JOBSET_RESTART", counts=True),
    _Scheduler("pytorchjob", ("DIAG_PYTORCHJOB",)),
    _Scheduler("kubernetes", ("DIAG_KUBERNETES_JOB",)),
    _Scheduler("slurm", ("SLURM_JOB_ID",), "SLURM_RESTART_COUNT", counts=True),
    _Scheduler("pbs", ("PBS_JOBID",)),
    _Scheduler("lsf", ("LSB_JOBID", "LSB_JOBINDEX")),
    _Scheduler("flux", ("FLUX_JOB_ID",)),
    _Scheduler("ray", ("RAY_JOB_ID",)),
)

# The variables above that Kubernetes has to be asked for, and the labels of a pod that have them. A label that a pod
# lacks gives an empty variable.
KUBERNETES = {
    "DIAG_JOBSET": "jobset.sigs.k8s.io/jobset-name",
    "DIAG_JOBSET_RESTART": "jobset.sigs.k8s.io/restart-attempt",
    "DIAG_PYTORCHJOB": "training.kubeflow.org/job-name",
    "DIAG_KUBERNETES_JOB": "batch.kubernetes.io/controller-uid",
}


def job_in(environ: Mapping[str, str] = os.environ) -> Job | None:
    """The job that this process belongs to, and which attempt of it; None where no variable names one."""
    for scheduler in _SCHEDULERS:
        name = "-".join(value for each in scheduler.job if (value := environ.get(each, "")) not in ("", "0"))
        if not environ.get(scheduler.job[0]) or not name:
            continue
        attempt = first_number(environ, [scheduler.attempt], 0) if scheduler.counts else None
        return Job(scheduler.name, name, attempt, scheduler.job[0])
    return None


def scheduled_as(environ: Mapping[str, str] = os.environ) -> str:
    """Equal in all attempts of the scheduler's job that this process belongs to: a digest, as its name may be a secret.
    "" where no variable names one."""
    job = job_in(environ)
    return digest(f"{job.scheduler}:{job.name}") if job is not None else ""


def digest(name: str) -> str:
    """Stands for a name that others need not see."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def joins(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether several attempts share the run directory: `diag attach` was evaluated, maybe once for each of them."""
    return environ.get(ATTACH_VARIABLE, "").partition(":")[0] == JOIN


def joining(job: Job | None) -> str:
    """The value of ATTACH_VARIABLE for such a run directory. It carries the job to nodes on which the launcher does not
    hand its variables on; without a job, each process looks for itself."""
    return f"{JOIN}:{job.key}" if job is not None else JOIN


_STEP = "step:"


def attempt_key(world_size: int, environ: Mapping[str, str] = os.environ) -> str:
    """Equal in all processes of an attempt, as far as the variables say: the job and its count of starts, torchrun's
    run and its count of restarts, and the step of Slurm if that is the whole training. "" where they say nothing.
    Attempts that the launcher does not count may share a key."""
    parts = [_job_key(environ)]
    if run_id := torchrun_id(environ):
        parts.append(f"torchrun:{run_id}:{restarts(environ)}")
    elif RESTARTS_VARIABLE in environ:
        parts.append(f"torchrun:{restarts(environ)}")
    elif is_slurm_step(world_size, environ):
        parts.append(f"{_STEP}{environ.get('SLURM_STEP_ID')}")
    return " ".join(filter(None, parts))


def names_one_start(key: str) -> bool:
    """Whether no later attempt can have this ``attempt_key``: each start of a training is a step of its own."""
    return any(part.startswith(_STEP) for part in key.split(" "))


def _job_key(environ: Mapping[str, str]) -> str:
    """The key of the job in which `diag attach` was evaluated, or of this process's own: where both are of one
    scheduler, somebody evaluated it in another job, from which this one was submitted."""
    carried = environ.get(ATTACH_VARIABLE, "").partition(":")[2]
    job = job_in(environ)
    if job is not None and (not carried or carried.partition(":")[0] == job.scheduler):
        return job.key
    return carried


def torchrun_id(environ: Mapping[str, str] = os.environ) -> str:
    """Of the training that torchrun started; "" without one. "none" is what torchrun takes where it is not given."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if run_id == "none" else run_id


def is_slurm_step(world_size: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a step of Slurm is the whole training: not where mpirun or a srun for each node started its processes."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    others = any(environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "RAY_JOB_ID"))
    return bool(environ.get("SLURM_STEP_ID")) and tasks.isdecimal() and int(tasks) == world_size and not others
