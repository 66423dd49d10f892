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


# A line after which the program does nothing more that can fail or hang
ENDED_WELL = (
    Ending(("Next: diag analyze",), r"^Recorded in .+\. Next: diag analyze", "diag run"),
    Ending(("Out of bounds values",), r"Out of bounds values *: 0 OK", "nccl-tests (common.cu)"),
    Ending(
        ("orker group successfully finished", "orker group finished (", "torchelastic.worker.status.SUCCEEDED"),
        r"\b[Ww]orker group (?:successfully finished|finished \((?:WorkerState\.)?SUCCEEDED\))|"
        r"\"torchelastic\.worker\.status\.SUCCEEDED\"",
        "torchrun (elastic/agent/server/api.py)",
    ),
    Ending(
        (" passed",),
        r"^=* ?\d+ passed(?:, \d+ (?:skipped|deselected|xfailed|xpassed|warnings?))* in \d[\d.]*s\b|"
        r"^test result: ok\. \d+ passed; 0 failed|^100% tests passed, 0 tests failed out of \d+|"
        r"^All tests passed \(\d+ assertions? in ",
        "pytest; Rust's libtest; CTest (cmCTestTestHandler.cxx); Catch2",
    ),
    Ending(
        ("[  PASSED  ] ", "Ran "),
        r"^\[  PASSED  \] \d+ tests?\.|^Ran [1-9]\d* tests? in \d[\d.]*s\s*$",
        "googletest (gtest.cc); Python's unittest (runner.py)",
    ),
    Ending(
        ("Result = PASS", "Test PASSED"), r"^Result = PASS\s*$|^Test PASSED\s*$", "NVIDIA's cuda-samples (deviceQuery)"
    ),
    Ending(
        ("train_au_meet_expectation: ",),
        r"\btrain_au_meet_expectation: (?:success|fail)\b",
        "DLIO and MLPerf Storage (statscounter.py)",
    ),
    Ending(("total images/sec: ",), r"^total images/sec: \d[\d.]*\s*$", "tf_cnn_benchmarks (benchmark_cnn.py)"),
    Ending(
        ("Total img/sec on ",),
        r"^Total img/sec on \d+ (?:GPU|CPU|HPU)\(s\): \d[\d.]*",
        "Horovod's synthetic benchmarks (pytorch_synthetic_benchmark.py)",
    ),
    Ending(
        ('"run_stop"',),
        r':::MLL(?:OG)? [^\n]{0,300}"key": "run_stop",[^\n]{0,300}"status": "success"',
        "MLPerf (mlperf_logging, mllog/constants.py)",
    ),
    Ending(("GPU ",), r"^\s*GPU \d{1,2}: OK\s*$", "gpu-burn (gpu_burn-drv.cpp)"),
    Ending(("*** Best metric: ",), r"\*\*\* Best metric: \d[\d.]* \(epoch \d+\)", "timm (train.py)"),
    Ending(
        ("Training time ",),
        r"\bTraining time (?:\d+ days?, )?\d+:\d\d:\d\d(?:\.\d+)?\s*$",
        "torchvision's references (train.py), DETR and MAE (main.py)",
    ),
    Ending(("one training in ",), r"\bdone training in \d[\d.]* seconds", "fairseq (fairseq_cli/train.py)"),
    Ending(("he training was finished at ",), r"\bThe training was finished at \d+ epochs", "ESPnet (trainer.py)"),
    Ending(
        ("otal training time: ",),
        r"\bTotal training time: (?:\d+ days?, )?\d+:\d\d:\d\d(?:\.\d+)? \(",
        "Detectron2 (engine/hooks.py), maskrcnn-benchmark (engine/trainer.py)",
    ),
    Ending(
        ("[exiting program ",),
        r"\[exiting program (?:after \d[\d.]* minutes|(?:at iteration|after) \d+)\b",
        "Megatron-LM (training.py)",
    ),
    Ending(("Final validation metrics: ",), r"Final validation metrics: \{", "verl (ppo/ray_trainer.py)"),
    Ending(
        ("Test is a success! You are now",),
        r"^Test is a success! You are now ready",
        "Accelerate (accelerate/commands/test.py)",
    ),
    Ending(
        ("PaddlePaddle is installed successfully!",), r"\bPaddlePaddle is installed successfully!", "Paddle (run_check)"
    ),
    Ending(
        ("Pod completed",),
        r"^LAUNCH INFO [\d: ,-]+Pod completed\s*$",
        "Paddle's launcher (launch/controllers/controller.py)",
    ),
    Ending(
        ("tests completed and failed residual checks",),
        r"^\s*0 tests completed and failed residual checks",
        "HPL (HPL_pdtest.c)",
    ),
    Ending(
        ("# All processes entering MPI_Finalize",),
        r"^# All processes entering MPI_Finalize",
        "Intel MPI Benchmarks (imb.cpp)",
    ),
    Ending(
        ("Total wall time: ", "Finished mdrun on rank 0 ", "JOB DONE.", "PROGRAM ENDED AT", "SUCCESS COMPLETE WRF"),
        r"^Total wall time: \d+:\d\d:\d\d\s*$|^Finished mdrun on rank 0 |^\s*JOB DONE\.\s*$|"
        r"\bPROGRAM ENDED AT +\d{4}-|\bSUCCESS COMPLETE WRF\b",
        "LAMMPS (lammps.cpp), GROMACS (mdrun), Quantum ESPRESSO (environment.f90), CP2K (environment.F), WRF",
    ),
    Ending(
        ("Finalising parallel run", "] End of program"),
        r"^Finalising parallel run\s*$|^\[Partition \d+\]\[Node \d+\] End of program\s*$",
        "OpenFOAM (Pstream, UPstream.C), NAMD over Charm++ (converse)",
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
_KINDS = "PyTorchJob|TFJob|MPIJob|XGBoostJob|XGBJob|PaddleJob|MXJob|JAXJob|TrainJob|JobSet|RayJob"

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
        ("xit_status", "Successfully completed.", "return value ", "Exit status: ", "exit_status"),
        r"\b[Ee]xit_status ?[= ] ?(?P<batch>-?\d+)\b|^\s*(?P<lsf>Successfully completed)\.\s*$|"
        r"\(1\) Normal termination \(return value (?P<condor>\d+)\)|^\s*Exit status: (?P<time>\d+)\s*$|"
        r"^exit_status +(?P<qacct>\d+)\b",
        "OpenPBS and Torque (qstat -f, tracejob); LSF (bsub's report); HTCondor (condor_event.cpp); GNU time (time.c); "
        "Grid Engine (qacct)",
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
        "Ray (dashboard/modules/job/cli.py); SageMaker's SDK (sagemaker/session.py) and its toolkit in the container, "
        "which the processes of other hosts than the first print as well (sagemaker_training/entry_point.py)",
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
