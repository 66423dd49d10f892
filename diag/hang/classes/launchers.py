"""What launchers print about a process of theirs that ended: one pattern a program's message.

Groups of the patterns, as far as a message has them: ``rank`` or ``ranks`` of the job, ``process`` (its number among
the launcher's processes), ``tasks`` of srun, ``pid``, ``host``; ``exitcode``, negative or above 128 for a signal. The
code says of which class the end is (``ended_as``).
"""

from __future__ import annotations

from diag.ended.codes import ASKS, fault_of_signal, signal_name, signal_number
from diag.hang.classes.base import SUGGESTS, LogPattern, confirms

ABORTED = 6  # SIGABRT
# NTSTATUS as Windows' exit codes: access violation, illegal instruction, stack overflow, damaged heap, fail-fast
_CRASHES_OF_WINDOWS = (0xC0000005, 0xC000001D, 0xC00000FD, 0xC0000374, 0xC0000409)
_INTERRUPTED_ON_WINDOWS = 0xC000013A
EXCEPTION = "rank_killed_exception"


def ended_as(code: int | None) -> str:
    """The class of an end with this exit code; "" where somebody asked the process to end, or it ended well."""
    if code is None:
        return EXCEPTION
    if code & 0xFFFFFFFF in _CRASHES_OF_WINDOWS:
        return "rank_killed_sigsegv"
    number = signal_number(code)
    if code == 0 or signal_name(number) in ASKS or code & 0xFFFFFFFF == _INTERRUPTED_ON_WINDOWS:
        return ""
    return fault_of_signal(number) or EXCEPTION


ENDS: dict[str, LogPattern] = {
    "srun-exited": confirms(
        (": Exited with exit code ", ": Aborted"),
        r"srun: error: (?P<host>[^\s:]+): tasks? (?P<tasks>[\d,-]+): (?:Exited with exit code "
        r"(?P<exitcode>\d+)|Aborted)",
        "Slurm 2+; src/srun/libsrun/launch.c",
        "srun saw task {tasks} on {host} end[ with exit code {exitcode}].",
        SUGGESTS,
    ),
    "horovod-exited": confirms(
        ("exit with status code ",),
        r"\bProcess (?P<rank>\d+) exit with status code (?P<exitcode>\d+)",
        "Horovod 0.18+; horovod/runner/gloo_run.py",
        "Horovod saw process {rank} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "spawned": confirms(
        ("terminated with the following error",),
        r"^(?:-- )?Process (?P<process>\d+) terminated with the following error",
        "torch 1.0+; torch/multiprocessing/spawn.py",
        "The traceback of process {process} follows.",
        SUGGESTS,
    ),
    "child-process": confirms(
        ("Process ", "PoolWorker-"),
        r"^Process (?:\w*Process|\w*PoolWorker)-\d+(?::\d+)*:\s*$",
        "any; Lib/multiprocessing/process.py, of a process that the program itself started",
        "The traceback of a process that a rank started follows.",
        SUGGESTS,
    ),
    "elastic-child": confirms(
        ("Child process ",),
        r"Child process (?P<pid>\d+) \(local_rank (?P<local_rank>\d+)\) FAILED \(exitcode (?P<exitcode>-?\d+)\)",
        "torch 1.9; torch/distributed/elastic/multiprocessing/errors/__init__.py",
        "The launcher saw local rank {local_rank} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "mpd-exited": confirms(
        ("xit status of rank ",),
        r"[eE]xit status of rank (?P<rank>\d+): (?:killed by signal (?P<signal>\d+)|return code (?P<exitcode>\d+))",
        "MPICH2 1.0 to 1.4; mpd, mpiexec.py",
        "mpiexec saw rank {rank} end.",
        SUGGESTS,
    ),
    "mpirun-aborted": confirms(
        ("signal 6 (Abort",),
        r"process rank (?P<rank>\d+) with PID (?:\d+|[xX*]+) on node (?P<host>\S+) exited on signal (?P<signal>6) \(",
        "Open MPI 1.3+; orte/tools/orterun/help-orterun.txt",
        "mpirun saw rank {rank} abort.",
        SUGGESTS,
    ),
    "spawn-exited": confirms(
        (" terminated with exit code ", " terminated with signal SIGABRT"),
        r"\bprocess (?P<process>\d+) terminated with (?:exit code (?P<exitcode>\d+)|signal SIGABRT)",
        "torch 1.0+; torch/multiprocessing/spawn.py",
        "torch.multiprocessing saw process {process} end[ with exit code {exitcode}].",
        SUGGESTS,
    ),
    "paddle-aborted": confirms(
        ("trainer process with rank=[",),
        r"Out of all (?P<size>\d+) trainers, the trainer process with rank=\[(?P<ranks>[\d, ]+)\] was aborted",
        "Paddle 1.6+; python/paddle/distributed/utils/launch_utils.py",
        "Paddle's launcher saw the process of rank {ranks} fail.",
        SUGGESTS,
    ),
    "paddle-exited": confirms(
        ("Container rank ",),
        r"Container rank (?P<rank>\d+) status failed .*? code (?P<exitcode>-?\d+) log ",
        "Paddle 2.3+; python/paddle/distributed/launch/job/container.py",
        "Paddle's launcher saw rank {rank} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "mpi-improper": confirms(
        ("has exited due to process rank ",),
        r"has exited due to process rank (?P<rank>\d+) with PID \d+ on(?: node (?P<host>[\w.-]+))?",
        "Open MPI 1.3+, PRRTE; orte/tools/orterun/help-orterun.txt, src/mca/errmgr/base",
        "mpirun saw rank {rank} end without MPI_Finalize, or after it called MPI_Abort.",
        SUGGESTS,
    ),
    "elastic-event": confirms(
        ("torchelastic.worker.status.FAILED",),
        r"\"torchelastic\.worker\.status\.FAILED\".*?\"global_rank\": (?P<rank>\d+).*?\"hostname\": "
        r"\"(?P<host>[^\"]{1,253})",
        "torch 1.9+; torch/distributed/elastic/agent/server/api.py",
        "The agent reports that the worker of rank {rank} failed.",
        SUGGESTS,
    ),
    "hydra-exited": confirms(
        ("EXIT CODE: ",),
        r"^=\s+EXIT CODE: (?P<exitcode>\d+)\s*$",
        "MPICH 3+, Intel MPI; hydra, src/pm/hydra/lib/utils/exec.c",
        "Hydra saw a process end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "pdsh-exited": confirms(
        ("ssh exited with exit code ",),
        r"\bpdsh@[^:\s]+: (?P<host>[^:\s]+): ssh exited with exit code (?!255\b)(?P<exitcode>\d+)",
        "pdsh 2+, under DeepSpeed; src/pdsh/dsh.c",
        "pdsh saw the command on {host} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "pod-exited": confirms(
        (" exited with code ",),
        r"(?:(?P<operator>\bPod: [\w-]+\.)|^)(?P<host>[A-Za-z0-9][\w.-]{0,252}) exited with code (?P<exitcode>\d+)"
        r"(?(operator)(?![\w.])|\s*$)|"
        r"\brank (?P<rank>\d+) exited with code (?P<code>[1-9]\d*)\b",
        "Kubeflow's training operator 1.0+; pkg/controller.v1/common/pod.go; docker compose, pkg/compose/printer.go; "
        "mpiexec of HPE PALS",
        "[The container of {host} ended with exit code {exitcode}.][The launcher saw rank {rank} end with exit code "
        "{code}.]",
        SUGGESTS,
    ),
    "pod-failed": confirms(
        (" Error ", " CrashLoopBackOff "),
        r"^(?P<host>[a-z0-9][a-z0-9.-]{0,252}) +\d+/\d+ +(?:Error|CrashLoopBackOff) +\d+ ",
        "Kubernetes, kubectl get pods; pkg/printers/internalversion/printers.go",
        "The container of {host} ended with an error.",
        SUGGESTS,
    ),
    "sglang-exited": confirms(
        ("scheduler died during initialization", "scheduler is dead", "Scheduler or DataParallelController "),
        r"Rank (?P<rank>\d+) scheduler (?:died during initialization \(exit code: (?P<exitcode>-?\d+)\)|is dead\.)|"
        r"Scheduler or DataParallelController (?P<pid>\d+) terminated with (?P<code>-?\d+)",
        "SGLang 0.3+; sglang/srt/entrypoints/engine.py",
        "SGLang saw the scheduler[ of rank {rank}][ {pid}] end.",
        SUGGESTS,
    ),
    "sglang-child": confirms(
        ("Child process unexpectedly failed with exitcode=",),
        r"Child process unexpectedly failed with exitcode=(?P<exitcode>-?\d+)\. pid=(?P<pid>\d+)",
        "SGLang 0.4+; sglang/srt/utils.py",
        "SGLang saw its process {pid} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "vllm-worker-died": confirms(
        (" died, exit code: ",),
        r"\bWorker \w{1,60} pid (?P<pid>\d+) died, exit code: (?P<exitcode>-?\d+)",
        "vLLM 0.4 to 0.8; vllm/executor/multiproc_worker_utils.py",
        "vLLM saw worker process {pid} end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "vllm-core-died": confirms(
        ("Failed core proc(s): {",),
        r"Failed core proc\(s\): \{'\w+': (?P<exitcode>-?\d+)",
        "vLLM 0.9+; vllm/v1/engine/utils.py",
        "vLLM saw its engine's process end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "vllm-died": confirms(
        (" died unexpectedly, shutting down executor",),
        r"(?:Worker proc VllmWorker(?:_\w+)?-(?P<rank>\d+)|RayWorkerProc rank=\[(?P<ranks>[\d, ]+)\]) died "
        r"unexpectedly, shutting down executor",
        "vLLM 0.8+; vllm/v1/executor/multiproc_executor.py, ray_executor_v2.py",
        "vLLM saw worker [{rank}][{ranks}] die, which printed no reason here.",
        SUGGESTS,
    ),
    "systemd-exited": confirms(
        (" exited, code=",),
        r"\b(?:Main|Control) process exited, code=(?:(?:killed|dumped), status=(?P<signal>\d+)/|"
        r"exited, status=(?P<exitcode>\d+)/)",
        "systemd 38+; src/core/unit.c (unit_log_process_exit)",
        "systemd saw the service's process end[ with exit code {exitcode}][ by signal {signal}].",
        SUGGESTS,
    ),
    "recorded-signal": confirms(
        ("FAILED", "xit_status", "Exited ("),
        r"[ |]FAILED[ |]+\d+:(?P<signal>4|7|8|9|11)\b|(?:\b[Ee]xit_status(?: ?= ?| +)|\bExited \()"
        r"(?P<exitcode>1(?:2[89]|[34]\d))\b",
        "Slurm, src/sacct/print.c; OpenPBS and Torque, qstat -f; Grid Engine, qacct; docker ps",
        "The record of the job says that a signal ended it[: number {signal}][: exit code {exitcode}].",
        SUGGESTS,
    ),
    "pycharm-exited": confirms(
        ("Process finished with exit code ",),
        r"^Process finished with exit code (?P<exitcode>-?\d+)(?: \(0x[0-9A-Fa-f]+\))?\s*$",
        "PyCharm; platform/lang-api, ProcessTerminatedListener.java",
        "The program ended with exit code {exitcode}.",
        SUGGESTS,
    ),
    "launch-exited": confirms(
        ("returned non-zero exit status ",),
        r"CalledProcessError: Command '\['[^]]*'--local[_-]rank=\d+'[^]]*\]' returned non-zero exit status "
        r"(?P<exitcode>\d+)",
        "torch 1.0 to 1.8; torch/distributed/launch.py",
        "torch.distributed.launch saw a process end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "nvflare-exited": confirms(
        ("process finished with execution code: ",),
        r"\bprocess finished with execution code: (?P<exitcode>-?\d+)",
        "NVIDIA FLARE 1+; nvflare/private/fed/client/client_executor.py",
        "NVFlare's client saw the process of its job end with exit code {exitcode}.",
        SUGGESTS,
    ),
    "mindspore-exited": confirms(
        ("exit with exception.",),
        r"Worker process (?P<pid>\d+) exit with exception\.",
        "MindSpore 2.3+; mindspore/parallel/cluster/process_entity/_api.py",
        "MindSpore's launcher saw worker process {pid} fail.",
        SUGGESTS,
    ),
}
