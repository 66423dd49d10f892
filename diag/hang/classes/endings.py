"""What programs print as they reach their end, and what schedulers and container tools record of a job that ended: one
row a program, from its own source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """A line of one program. ``anchors`` and ``regex`` as in LogPattern; ``source``: program and file."""

    anchors: tuple[str, ...]
    regex: str
    source: str


# A line after which nothing is left that can fail or hang: of a launcher or a test runner whose processes have ended,
# or of a program past its last collective. Not the last line of a training (timm, fairseq, DETR, Detectron2,
# Megatron-LM) or of an MPI program (LAMMPS, GROMACS, WRF, HPL): its ranks, its teardown or MPI_Finalize may hang after
# it. Nor a check of devices (gpu-burn, deviceQuery) or one test program of many: what it was run for comes after it.
ENDED_WELL = (
    Ending(("Next: diag analyze",), r"^Recorded in .+\. Next: diag analyze", "diag run"),
    Ending(
        ("Out of bounds values",),
        r"Out of bounds values *: 0 OK",
        "nccl-tests (src/common.cu, below the communicators' end and above MPI_Finalize)",
    ),
    Ending(
        ("orker group successfully finished", "orker group finished (", "torchelastic.worker.status.SUCCEEDED"),
        r"\b[Ww]orker group (?:successfully finished|finished \((?:WorkerState\.)?SUCCEEDED\))|"
        r"\"torchelastic\.worker\.status\.SUCCEEDED\"",
        "torchrun (elastic/agent/server/api.py)",
    ),
    Ending(
        (" passed",),
        r"^=* ?\d+ passed(?:, \d+ (?:skipped|deselected|xfailed|xpassed|warnings?))* in \d[\d.]*s\b|"
        r"^100% tests passed, 0 tests failed out of [1-9]",
        "pytest; CTest (cmCTestTestHandler.cxx)",
    ),
    Ending(
        ("outputs saved in RANKID_output.json",),
        r"\boutputs saved in RANKID_output\.json",
        "DLIO and MLPerf Storage (utils/statscounter.py, save_data; the metrics are printed above barriers)",
    ),
    Ending(
        ("total images/sec: ",),
        r"^total images/sec: \d[\d.]*\s*$",
        "tf_cnn_benchmarks (benchmark_cnn.py; workers of a parameter server wait for each other below it)",
    ),
    Ending(
        ("Test is a success! You are ready",),
        r"^Test is a success! You are ready for your distributed training!",
        "Accelerate (accelerate/commands/test.py, when its processes have ended)",
    ),
    Ending(
        ("Exit code 0",),
        r"^LAUNCH INFO [\d: ,-]+Exit code 0\s*$",
        "Paddle's launcher (distributed/launch/controllers/controller.py, finalize)",
    ),
    Ending(
        ("rain model END ",),
        r"\bTrain model END \d+\.\d\ds\s*$",
        "ModernMT 2 (cli/mmt/neural.py: one process trains, and what is below it copies files)",
    ),
    Ending(
        (") finalized",),
        r"^AMReX \([^)\n]{1,80}\) finalized\s*$",
        "AMReX 18+ (Src/Base/AMReX.cpp, below the MPI_Finalize of amrex::Finalize)",
    ),
    Ending(
        ("Finished on: ", " seconds (wall-clock time, including time waiting for participants)"),
        r"^Finished on: +\w{3}, \d{1,2} \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}\s*$|"
        r"^Duration: +\d+ seconds \(wall-clock time, including time waiting for participants\)\s*$",
        "preCICE's tutorials (tools/log.sh, when the program has ended)",
    ),
)

_PODS = (
    "Completed", "Succeeded", "Running", "Pending", "ContainerCreating", "PodInitializing", "Terminating", "Unknown",
    "Error", "CrashLoopBackOff", "OOMKilled", "Evicted", "ErrImagePull", "ImagePullBackOff", "InvalidImageName",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ContainerCannotRun", "NotReady",
    "DeadlineExceeded", "ContainerStatusUnknown", "NodeLost", "SchedulingGated",
)  # fmt: skip
_SLURM = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "OUT_OF_ME+", "PENDING",
    "PREEMPTED", "RUNNING", "REQUEUED", "REVOKED", "SUSPENDED", "TIMEOUT",
)  # fmt: skip
_KINDS = "PyTorchJob|TFJob|MPIJob|XGBoostJob|PaddleJob|MXJob|JAXJob"

# A state or an exit code that is recorded, in a group of a name of its own
RECORDED = (
    Ending(
        ("State: ", "JobState=", ", ExitCode "),
        r"^\s*State: (?P<seff>[A-Z_]{4,20}) \(exit code \d+\)|\bJobState=(?P<scontrol>[A-Z_]{4,20})\b|"
        r"\bRun time \S+, (?P<mail>[A-Z_]{4,20}), ExitCode \d+",
        "Slurm, contribs/seff/seff, src/scontrol/info_job.c, src/slurmctld/agent.c",
    ),
    Ending(
        tuple(f"{before}{state}" for state in _SLURM for before in (" ", "|")),
        r"[ |](?P<sacct>" + "|".join(state.replace("+", r"\+") for state in _SLURM) + r")(?: by \d+|\+)?[ |]+\d+:\d+\b",
        "Slurm, src/sacct/print.c",
    ),
    Ending(
        ("xit_status", "Successfully completed.", "return value "),
        r"\b[Ee]xit_status ?[= ] ?(?P<batch>-?\d+)\b|^\s*(?P<lsf>Successfully completed)\.\s*$|"
        r"\(1\) Normal termination \(return value (?P<condor>\d+)\)|"
        r"^exit_status +(?P<qacct>\d+)\b",
        "OpenPBS and Torque (qstat -f; tracejob, src/lib/Liblog/pbs_messages.c); LSF (bsub's report); HTCondor "
        "(src/condor_utils/condor_event.cpp); Grid Engine (qacct)",
    ),
    Ending(
        tuple(f" {state}   " for state in _PODS),
        r"^ {0,8}(?P<name>[a-z0-9][a-z0-9.-]{0,252}) +(?:\d+/\d+ +(?P<pod>[A-Z][\w:/]{2,40}) +\d+ |"
        r"(?P<custom>Succeeded|Running|Failed|Created|Restarting|Suspended) +"
        r"(?:(?:\d+[smhd]){1,2}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)\s*$)",
        "kubectl get pods and the training operator's kinds, pkg/printers/internalversion/printers.go",
    ),
    Ending(
        (
            "Exit Code: ",
            "State:  ",
            "Status:  ",
            "Reason:  ",
            "job-controller",
            "successfully completed.",
            " Complete ",
        ),
        r"^\s*Exit Code: +(?P<container>\d+)\s*$|^\s*State: +(?P<state>Running|Waiting)\s*$|"
        r"^Status: +(?P<phase>Succeeded|Running|Failed|Pending|Unknown|Terminating \S[^\n]{0,80})\s*$|"
        rf"^\s*Reason: +(?:{_KINDS})(?P<kind>Succeeded|Failed|Restarting|Evicted|Suspended)\s*$|"
        r"\bCompleted +\S+(?: \(x\d+ over \S+\))? +job-controller +Job (?P<event>completed)|"
        rf"\b(?:{_KINDS}) \S+ (?:is )?(?P<words>successfully completed)\.|"
        r"^[a-z0-9][a-z0-9.-]{0,252} +(?P<listed>Complete) +(?P<completions>\d+)/(?P=completions) +\d",
        "kubectl describe and get jobs (describe.go); Kubernetes' job controller; Kubeflow's training and MPI "
        "operators",
    ),
    Ending(
        ("Exited (", "   Up "),
        r" Exited \((?P<docker>\d+)\) (?:\d+|About|Less)|   (?P<up>Up) (?:\d+|About|Less)[ \w]+?(?:  |\(|$)",
        "docker ps, docker/cli",
    ),
    Ending(
        ("Job 'raysubmit_", " - Training job ", "Reporting training SUCCESS", "for job 'raysubmit_"),
        r"^Job 'raysubmit_\w{1,40}' (?P<ray>succeeded|failed|was stopped)\s*$|"
        r"^Status for job 'raysubmit_\w{1,40}': (?P<rays>PENDING|RUNNING|STOPPED|SUCCEEDED|FAILED)\b|"
        r"\b(?P<sagemaker>Completed|Failed|Stopped) - Training job\b|\bReporting training (?P<toolkit>SUCCESS)\b",
        "Ray (dashboard/modules/job/cli.py); SageMaker's SDK (sagemaker/utils.py, secondary_training_status_message) "
        "and its toolkit in the container, which the processes of other hosts than the first print as well "
        "(sagemaker_training/trainer.py)",
    ),
    Ending(
        ("final status: ", "Final-State : ", "completed successfully"),
        r"^\s*final status: (?P<spark>SUCCEEDED|UNDEFINED|FAILED|KILLED)\s*$|"
        r"^\s*Final-State : (?P<yarn>SUCCEEDED|UNDEFINED|FAILED|KILLED)\s*$|"
        r"\bmapreduce\.Job: Job job_\d+_\d+ (?P<mapreduce>completed successfully)\s*$",
        "Spark (resource-managers/yarn/.../Client.scala, 1.0+); Hadoop 2+ (yarn application -status, "
        "ApplicationCLI.java; mapreduce/Job.java)",
    ),
    Ending(
        ("Job finished (status: ", "phase: ", '"phase": "', "AllJobsCompleted", "jobStatus: "),
        r"\bJob finished \(status: (?:ManagedJobStatus\.|JobStatus\.)?(?P<sky>[A-Z_]{4,30})\)\.|"
        r"^\s*\"?phase\"?: \"?(?P<phases>Pending|Running|Succeeded|Failed|Unknown)\"?,?\s*$|"
        r"^\s*jobStatus: (?P<rayjob>PENDING|RUNNING|STOPPED|SUCCEEDED|FAILED)\s*$|"
        r"\b(?P<jobset>AllJobsCompleted)\b",
        "SkyPilot (sky/skylet/log_lib.py); Kubernetes' pods in YAML and JSON (core/v1, "
        "PodPhase); KubeRay's RayJob (rayjob_types.go); JobSet (jobset_types.go)",
    ),
)

# What is recorded of a job on its way, which a later record of the same job makes old
UNDERWAY = (
    "Created", "Running", "Pending", "ContainerCreating", "PodInitializing", "UNDEFINED",
)  # fmt: skip

# Groups of records of a client that reports on one job
OF_ONE_JOB = ("spark",)

# What a recorded state or exit code is where all is well
DONE = frozenset(
    (
        "COMPLETED",
        "Completed",
        "Complete",
        "completed",
        "SUCCESS",
        "Succeeded",
        "succeeded",
        "SUCCEEDED",
        "AllJobsCompleted",
        "completed successfully",
        "Successfully completed",
        "successfully completed",
        "0",
    )
)


def anchors(endings: tuple[Ending, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(anchor for ending in endings for anchor in ending.anchors))


def regex(endings: tuple[Ending, ...]) -> str:
    return "|".join(ending.regex for ending in endings)


def sources(endings: tuple[Ending, ...]) -> str:
    return "; ".join(ending.source for ending in endings)
