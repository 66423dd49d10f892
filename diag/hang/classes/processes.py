"""Processes that end early: by a signal, an exception, a scheduler, or because storage failed."""

from __future__ import annotations

import re

from diag.ended.codes import signal_name
from diag.hang.classes import programs
from diag.hang.classes.base import (
    NAMES_AN_EFFECT,
    RAISED,
    SUGGESTS,
    UCX,
    WAS_ASKED,
    FaultClass,
    LogPattern,
    confirms,
    of,
)
from diag.hang.classes.launchers import ENDS

_ELASTIC = "torch/distributed/elastic/multiprocessing/api.py"
_ERRORS = "torch/distributed/elastic/multiprocessing/errors/__init__.py"
_LOCAL = r"(?:.*?local_rank: (?P<local_rank>\d+)(?: \(pid: (?P<pid>\d+)\))?)?"

# What GROMACS prints, alone on a line, above the message of what ends it
_OF_GROMACS = (
    "Fatal error:", "Error in user input:", "Inconsistency in user input:", "Simulation instability detected:",
    "Software inconsistency error:", "File input/output error:",
)  # fmt: skip

_ORTE = "Open MPI, orterun/orterun.c help text"
_SRUN = "Slurm, src/srun/libsrun/launch.c"
_TASKS = r"tasks? (?P<tasks>[\d,-]+)"
SAYS = (
    "exitcode",
    "signal",
    "mpirun",
    "srun",
    "pals",
    "jsrun",
    "diag",
    "launcher",
    "shell",
)  # sources of reported ends


def _ended(name: str, number: int, says: str) -> dict[str, LogPattern]:
    """What launchers print about a process that a signal ended: torchrun, mpirun, srun, ``diag run`` and others."""
    words = _WORDS[number]
    return {
        f"exitcode-{name}": LogPattern(
            (f"exitcode: -{number})",), rf"failed \(exitcode: -{number}\){_LOCAL}", f"torch 1.9+; {_ELASTIC}", says
        ),
        f"signal-{name}": LogPattern(
            (f"ignal {number} (", f": -{number} (pid:"),
            rf"(?:[Ss]ignal {number} \(\w+\) received by PID|^\s*exitcode +: -{number} \(pid:) (?P<pid>\d+)",
            f"torch 1.9+; {_ERRORS}",
            says,
        ),
        f"mpirun-{name}": LogPattern(
            (f"exited on signal {number} (",),
            rf"process rank (?P<rank>\d+) with PID (?:(?P<pid>\d+)|[xX*]+) on node (?P<host>\S+?) ?exited on signal "
            rf"{number} \(",
            f"Open MPI 1.3+; {_ORTE}",
            says,
        ),
        f"srun-{name}": LogPattern(
            (f": {words}", *(": Out Of Memory",) * (number == 9)),
            rf"srun: error: (?P<host>[^\s:]+): {_TASKS}: (?:{words}{'|Out Of Memory' * (number == 9)})",
            f"any Slurm; {_SRUN}",
            says,
        ),
        f"diag-{name}": LogPattern(
            ("diag: the training ended early",),
            rf"^diag: the training ended early: rank (?P<rank>\d+): killed by {name.upper()}\b",
            "all; diag/cli/run.py",
            says,
        ),
        f"launcher-{name}": LogPattern(
            (
                f"Signals.{name.upper()}",
                f"return code = -{number}",
                f"return code -{number}",
                f"returncode -{number}",
                f"exit code -{number}",
                f"exit code {128 + number}",
                f"xit code: {128 + number}",
                f"xit code:    {128 + number}",
                f"xit code is {128 + number}",
                f"status code {128 + number}",
                f"Exit Code:    {128 + number}",
                f"exitCode: {128 + number}",
                f"terminated with signal {name.upper()}",
                f"interrupted by signal {number}",
                f"KILLED BY SIGNAL: {number}",
                f"Command terminated by signal {number}",
                f"(signal {number})",
                f"terminated with code -{number}",
                f"exited with code -{number}",
                f"killed by signal: {words}",
                f"exited with signal {number}",
                f"ExitCode -{number}",
                f"ExitCode {128 + number}",
                f"died from signal {number}",
                f") terminated with signal {number}",
                f"exit code: -{number}",
                f"exitcode=-{number}.",
                f"was killed by signal {number}",
                f"signaled to shutdown with signal {number}",
                f"Exit status: {128 + number}",
                f"received signal {name.upper()}({number})",
                f"Signal ({number}) received",
                f"exit signal {words}",
                f"died through signal {name.removeprefix('sig').upper()} ({number})",
                f"Abnormal termination (signal {number})",
                f"terminated by {name.upper()}",
            ),
            rf"Signals\.{name.upper()}\b|(?:(?:\[rank: |\b[Rr]ank )(?P<rank>\d+)\b[\]\w ()]{{0,60}} with )?"
            rf"(?:return ?code ?=? ?|(?:exit )?code )-{number}\b|[eE]xit ?[cC]ode(?::| is)? +{128 + number}\b|"
            rf"(?:process "
            rf"(?P<local_rank>\d+) )?terminated with signal {name.upper()}|interrupted by signal {number}\b|KILLED BY "
            rf"SIGNAL: {number} |Command terminated by signal {number}\b|"
            rf"EXIT STRING: [\w ]+ \(signal {number}\)|exited with signal {number}\b|(?:Process "
            rf"(?P<pid>\d+) )?exits with return code = -{number}\b|\bExitCode (?:-{number}|{128 + number})\b|"
            rf"\brank (?P<number>\d+)\)? (?:died from|terminated with) signal {number}\b|"  # PALS; jsrun
            rf"\bpid \d+ died, exit code: -{number}\b|\bexitcode=-{number}\. pid=|\bExit status: {128 + number}\b|"
            rf"[Pp]rocess \d+ was killed by signal {number}\b|"
            rf"\bprocess was signaled to shutdown with signal {number}\b:?(?: rank=(?P<of_shard>\d+))?|"
            rf"^(?:\S+ )?Signal \({number}\) received\.|"
            rf"\bPE RANK (?P<of_cray>\d+) exit signal {words}\b|"
            rf"(?:\bon host (?P<host>[\w.-]{{1,253}}) [^\n]{{0,120}})?\bjob \S+ died through signal \w+ \({number}\)|"
            rf"\(0\) Abnormal termination \(signal {number}\)|\bexited: \S+ \(terminated by {name.upper()}\b",
            "any; Lib/subprocess.py, deepspeed/launcher/launch.py, torch/multiprocessing/spawn.py, MPICH, HPE PALS, "
            "jsrun, Kubernetes; vLLM, executor/multiproc_worker_utils.py; SGLang, srt/utils.py; Dask, "
            "distributed/nanny.py; Spark, YarnAllocator.scala; Triton server, src/main.cc; TGI, launcher/src/main.rs; "
            "Cray ALPS, aprun; Grid Engine; HTCondor; supervisord",
            says,
            support=NAMES_AN_EFFECT,
            unless=("forcefully exiting",),
        ),
        **({} if number == 9 else programs.of_signal(name, number, words)),
    }


def _of_mvapich(number: int) -> LogPattern:
    """What MVAPICH's handler prints in a process that a signal ends."""
    return LogPattern(
        (f"Caught error: {_WORDS[number]} (signal {number})",),
        rf"\[(?P<host>[^:\]\s]+):mpi_rank_(?P<rank>\d+)\]\[error_sighandler\] Caught error: {_WORDS[number]} \(",
        "MVAPICH2 1.8+; src/mpid/ch3/channels/common/src/error_handling/error_handling.c",
        "The process caught a signal: " + _WORDS[number] + ".",
    )


def _of_open_mpi(number: int) -> LogPattern:
    """What Open MPI's handler prints in a process that a signal ends, behind its host and process."""
    return LogPattern(
        (f"Signal: {_WORDS[number]} ({number})",),
        rf"(?:\[(?P<host>[^:\]\s]+):(?P<pid>\d+)\] )?(?:\*\*\* )?Signal: {_WORDS[number]} \({number}\)",
        "Open MPI 1.2+; opal/util/stacktrace.c",
        "The process caught a signal: " + _WORDS[number] + ".",
        support=NAMES_AN_EFFECT,
    )


def _of_magick(number: int) -> LogPattern:
    """What GraphicsMagick's handler, which any program that links it gets, prints before it aborts the process."""
    return LogPattern(
        (f"Magick: abort due to signal {number} (",),
        rf"\bMagick: abort due to signal {number} \(",
        "GraphicsMagick 1.3; magick/magick.c (MagickPanicSignalHandler)",
        f"The process caught a signal: {_WORDS[number]}.",
        support=NAMES_AN_EFFECT,
    )


def _shell(number: int) -> LogPattern:
    """What shells print when a signal ends a command: bash and dash the text of strsignal, behind the script's line and
    the process or behind the number of a job, zsh its own words behind its name or such a number, fish the signal's
    name. On a terminal the words stand over the beginning of the progress that the command had printed last."""
    words, name = _WORDS[number], signal_name(number)
    others = _TRANSLATED.get(number, ())
    said = "|".join(map(re.escape, (words, *others)))
    return LogPattern(
        (words, *others, f"zsh: {words.lower()}", f" {words.lower()} ", f"terminated by signal {name} ("),
        # Behind the script's line and the number of the process any command may follow.
        rf"^(?P<script>\S+: [^:]{{1,20}}: *)?(?P<pid>\d+ +)?(?:{said})\s*"
        r"(?:$|\([^()]{1,60}\)|[\w./]*(?:python|torchrun|deepspeed|accelerate)|(?(script)(?(pid)\S|(?!))|(?!)))|"
        rf"^\[\d{{1,3}}\] {{0,2}}[+-]? {{1,2}}(?:\d+ {words.lower()}\b|(?:\d+ )?(?:{said})(?=\s{{2,}}\S))|"
        rf"^(?:{said})(?=[^\s.,;:!)'\"\]\[/-])[^\n]{{0,200}}?(?:\d ?/ ?\d|\d%\||\d(?:it/s|s/it)\b)"
        rf"|^zsh: {words.lower()}\b|^fish: Job .{{0,400}} terminated by signal {name} \(",
        "any shell; bash 5.2, jobs.c; dash, src/jobs.c; glibc sysdeps/generic/siglist.h, zsh Src/jobs.c, fish "
        "src/proc.cpp",
        f"The shell saw the process end: {words}.",
        support=SUGGESTS if number == 9 else NAMES_AN_EFFECT,
    )


# How a failed check, and LOG(FATAL), of dmlc-core and of what has its macros begins, behind the time: INFO lines have a
# file, too, so that the check says it, or that the logger itself tells of it (until 2020; DMLC_LOG_BEFORE_THROW).
_OF_DMLC = (
    r"(?:\S{1,200}\bdmlc/logging\.h:\d+: (?:\[[\d:]{8}\] )?(?=\S+:\d+: )[^\n]{1,400}|"
    r"[\w./+-]{1,200}\.(?:cc|cpp|cu|cuh|h|hpp):\d+: (?:[A-Z]\w{2,60}Error: )?Check failed: [^\n]{1,200})"
)

# The handlers of glog, in Caffe2, Paddle and torchcomms, and of Abseil, in JAX and libtpu
_GLOG = r"\*\*\* {} (?:\(@(?:0x[0-9a-f]+|\(nil\))\)(?:, see \S+)? )?received by PID \d+"
# Commands that concern the host of the prompt before them
_STARTED_HERE = (
    "python",
    "torchrun",
    "accelerate ",
    "deepspeed ",
    "bash ",
    "sh ",
    "./",
    "dmesg",
    "sudo ",
    "CUDA_",
    "NCCL_",
)
_WORDS = {
    9: "Killed",
    7: "Bus error",
    11: "Segmentation fault",
    4: "Illegal instruction",
    8: "Floating point exception",
}  # texts of strsignal
# The same in the shell's language: bash 5.2 and glibc 2.36, po/*.po
# Of exceptions whose class is not called an error
_OTHER_EXCEPTIONS = (
    ".exceptions.", ".errors.", ".OutOfResources", "subprocess.TimeoutExpired", "queue.Empty", "queue.Full",
    ".KilledWorker", "BrokenProcessPool", "BrokenThreadPool",
)  # fmt: skip
# Names of errors of a file system, as exceptions of libuv and of what is made with it begin
_ERRNOS = ("ENOSPC", "EDQUOT", "ESTALE", "EROFS", "EIO")
_EVICTED_FOR_STORAGE = (
    "low on resource: ephemeral-storage",
    "local ephemeral storage",
    "ephemeral local storage usage exceeds",
    "low on resource: inodes",
    "DiskPressure",
)
_TRANSLATED = {
    9: (
        "已杀死", "強制終了", "強制結束", "죽었음", "Убито", "Убит", "Вбито", "Getötet", "Abgebrochen (Killed)", "Tué",
        "Processus arrêté", "Terminado (killed)", "Matado", "Morto", "Morto (Killed)", "Ucciso", "Unicestwiony",
    ),
    11: (
        "段错误", "程式記憶體區段錯誤", "세그멘테이션 오류", "Ошибка сегментирования", "Ошибка сегментации",
        "Speicherzugriffsfehler", "Adressierungsfehler", "Erreur de segmentation", "Violación de segmento",
        "Falha de segmentação", "Errore di segmentazione", "Naruszenie ochrony pamięci",
    ),
}  # fmt: skip

CLASSES = (
    FaultClass(
        **of("rank_killed_sigkill"),
        next_steps=(
            "On {there}: `dmesg -T | grep -i 'killed process'` distinguishes the kernel's out-of-memory killer from a "
            "scheduler or a person; a bare SIGKILL is not proof of either.",
            "If it was memory: fewer DataLoader workers, no copies of the data set per worker, or a larger memory "
            "limit of the job or container.",
        ),
        if_read={
            ("is killed by signal: Killed",): (
                "On {host}: `dmesg -T | grep -i 'killed process'` shows whether the kernel's out-of-memory killer "
                "ended the worker, for the host's memory or the limit of the container or job.",
                "Use less memory per worker: fewer workers (num_workers), a smaller prefetch_factor, and arrays or "
                "memory-mapped files in place of Python lists in the data set, which each worker copies as it reads "
                "them.",
            ),
        },
        patterns={
            **_ended("sigkill", 9, "The launcher saw the process end by SIGKILL."),
            "shell-sigkill": _shell(9),
            "oom-killed": LogPattern(
                (
                    "OOMKilled",
                    "oom-kill",
                    "oom_kill",
                    "OOM Killed",
                    "OOM killer",
                    "running low on memory",
                    "TERM_MEMLIMIT",
                    "Exceeded job memory limit",
                    "Exceeded step memory limit",
                    "exceeded memory limit",
                    "System OOM encountered",
                    "earlyoom",
                    "OutOfMemoryError: Container killed due to memory usage",
                    "PBS: job killed: mem ",
                    "systemd-oomd",
                    "low on resource: memory",
                    "tried to allocate more memory than is available",
                    "after using all available RAM",
                    "OUT_OF_MEMORY",
                    "OUT_OF_ME+",
                    "Job has gone over ",
                ),
                r"OutOfMemoryError: Container killed due to memory usage|"
                r"(?:^(?P<host>[a-z0-9][a-z0-9.-]{0,252}) +\d+/\d+ +)?OOMKilled|"
                r"^\[NID (?P<node>\d{1,8})\] [^\n]{0,60}\bApid \d+: OOM killer terminated this process|"
                r"[Dd]etected \d+ oom[-_]kill|"
                r"OOM Killed|by the OOM killer|\bFailed with result 'oom-kill'|\(Result: oom-kill\)|"
                r"due to the node running low on memory|TERM_MEMLIMIT: job killed|Exceeded (?:job|step) memory limit|"
                r"exceeded memory limit \([^)]*\), being killed|PBS: job killed: mem \S+ exceeded|"
                r"systemd-oomd(?:\[\d+\])?:? [Kk]illed|System OOM encountered, victim process|"
                r"earlyoom(?:\[\d+\])?: (?:mem avail: .{0,200})?sending SIGKILL to process|"
                r"The node was low on resource: memory|"
                r"[Nn]otebook tried to allocate more memory than is available|crashed after using all available RAM|"
                # Slurm's states: sacct, scontrol show job, seff, and the subject of its mails
                r"\bOUT_OF_ME(?:MORY\b|\+)[ |]+\d+:\d+\b|\bJobState=OUT_OF_MEMORY\b|^\s*State: OUT_OF_MEMORY\b|"
                r"\bRun time \S+, OUT_OF_MEMORY\b|\"OOMKilled\": ?true\b|"
                r"\bJob has gone over (?:cgroup )?memory limit of \d+",
                "any; Kubernetes (pkg/kubelet/oom), Slurm, LSF (TERM_MEMLIMIT), PBS, systemd (src/core/unit.c; "
                "systemctl-show.c), systemd-oomd (oomd-manager.c), "
                "earlyoom (kill.c), Ray, Kaggle, Colab",
                "The host's memory, or the limit of the container or job, was used up.",
                support=NAMES_AN_EFFECT,
                unless=("potential root causes", "common causes include"),  # Ray lists what may have happened
            ),
            "pod-described": confirms(
                ("Name:  ",),
                r"^Name: {2,}(?P<host>[a-z0-9][a-z0-9.-]{0,252})\s*$",
                "kubectl describe; k8s.io/kubectl/pkg/describe/describe.go",
                "kubectl describes {host}.",
                SUGGESTS,
            ),
            "ray-worker-died": confirms(
                ("exit type: SYSTEM_ERROR",),
                r"(?:Worker IP address: (?P<host>[\w.:-]+?) Worker port: \d+ Worker PID: (?P<pid>\d+) )?"
                r"Worker exit type: SYSTEM_ERROR",
                "Ray 2+; raylet, node_manager.cc",
                "Ray saw a worker process die[ on {host} (pid {pid})] and does not know why.",
                SUGGESTS,
            ),
            "raylet-ended": confirms(
                ("Raylet is terminated: ip=",),
                r"Raylet is terminated: ip=(?P<host>[\w.:-]+?),? id=",
                "Ray 1.13+; raylet, agent_manager.cc, python/ray/_private/worker.py",
                "Ray's daemon on {host} ended, and the message does not decide why.",
                SUGGESTS,
            ),
            "ray-actor": confirms(
                ("\tpid: ", "\tname: ", "\tip: ", "        pid: ", "        name: ", "        ip: "),
                r"^\s+(?P<key>pid|name|ip): (?P<value>[\w.:-]{1,200})\s*$",
                "Ray 2+; ray/exceptions.py (RayActorError)",
                "Ray describes the actor that died.",
                SUGGESTS,
            ),
            "ray-started": confirms(
                (") world_rank=",),
                r"- \((?:node_id=\w+, )?ip=(?P<host>[\w.:-]+?), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)\b",
                "Ray 2.4+; python/ray/train/_internal/backend_executor.py, train/v2/_internal/execution/worker_group",
                "Ray started rank {rank} as process {pid} on {host}.",
                SUGGESTS,
            ),
            "ray-task": confirms(
                ("ray::",),
                r"\bray::[\w.]{1,200}(?:\(\))? \(pid=(?P<pid>\d+), ip=(?P<host>\[?[\w.:-]+?\]?)[,)]",
                "Ray 1+; python/ray/exceptions.py (RayTaskError)",
                "Ray passes on what process {pid} on {host} raised.",
                SUGGESTS,
            ),
            "checkpoint-rank": confirms(
                ("Traceback (most recent call last): (RANK ",),
                r"Traceback \(most recent call last\): \(RANK (?P<rank>\d+)\)",
                "torch 2.0+; torch/distributed/checkpoint/api.py (CheckpointException)",
                "Each rank prints what rank {rank} raised in a checkpoint.",
                SUGGESTS,
            ),
            "ray-memory-monitor": LogPattern(
                ("killed due to memory pressure (OOM)",),
                r"\b[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure \(OOM\)(?:.{0,400}?\bIP: "
                r"(?P<host>[\w.:-]+?)\))?",
                "Ray 2.2+; raylet, node_manager.cc",
                "Ray's memory monitor killed workers[ on {host}].",
                support=NAMES_AN_EFFECT,
            ),
            "ray-memory-threshold": LogPattern(
                ("exceeds the memory usage threshold of", "System memory low at node with IP "),
                r"(?:Memory on the node \(IP: |System memory low at node with IP )(?P<host>[\w.:-]{1,255}?)"
                r"(?:,.{0,600}?exceeds the memory usage threshold of|\. Used memory .{0,200}?, killing latest task)",
                "Ray 2.2+, with the second wording 2.0 and 2.1; raylet, node_manager.cc",
                "Ray's memory monitor killed a worker on {host}.",
                support=NAMES_AN_EFFECT,
            ),
            "yarn-memory": LogPattern(
                ("exceeding memory limits", "beyond the 'PHYSICAL' memory limit", "beyond physical memory limits"),
                r"^(?:.{0,80}?Lost executor \d+ on (?P<host>[\w.-]+): )?.{0,200}?(?:Container killed by YARN for "
                r"exceeding memory limits|is running (?:\d+B )?beyond (?:the 'PHYSICAL' memory limit|physical "
                r"memory limits))",
                "Hadoop 2+, Spark; ContainersMonitorImpl.java, YarnAllocator.scala",
                "YARN killed a container that used more memory than its limit.",
                support=NAMES_AN_EFFECT,
            ),
            "dask-memory": LogPattern(
                ("% memory budget.",),
                r"\bWorker (?:\w+://\S+ \(pid=(?P<pid>\d+)\) )?exceeded \d+% memory budget\. {1,2}Restarting",
                "Dask 1.20+, once with two blanks; distributed/nanny.py, worker_memory.py",
                "Dask's nanny killed a worker that used more memory than its budget.",
                support=NAMES_AN_EFFECT,
            ),
            "kernel-oom": LogPattern(
                (
                    "ut of memory: Killed process",
                    "ut of memory: Kill process",
                    "oom-kill:constraint=",
                    "oom_reaper: reaped",
                ),
                r"(?:[Oo]ut of memory: Kill(?:ed)?|oom_reaper: reaped) process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?|"
                r"oom-kill:constraint=.{0,2000}?,task=(?P<task>[^,]{1,40}),pid=(?P<victim>\d+)",
                "any kernel, with its own summary from 4.19; mm/oom_kill.c",
                "The kernel's out-of-memory killer ended process [{pid}][{victim}].",
            ),
            "kernel-oom-call": confirms(
                ("invoked oom-killer", "killed as a result of limit of"),
                r"(?P<name>\S{1,40}) invoked oom-killer: |Task in \S+ killed as a result of limit of (?P<limit>\S+)",
                "any kernel; mm/oom_kill.c, mm/memcontrol.c",
                "The kernel's out-of-memory killer was called[ by {name}][ at the limit of {limit}].",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        **of("rank_killed_sigbus"),
        explained_on_host=("shm_exhausted",),
        next_steps=(
            "On {host}: `df -h /dev/shm` while the job runs; a full /dev/shm is the usual cause: `docker run "
            "--shm-size=16g`, or an emptyDir volume with medium Memory in Kubernetes.",
            "Otherwise: a memory-mapped file that was truncated (data set, checkpoint) or failing memory (`dmesg -T | "
            "grep -i mce`).",
        ),
        patterns={
            **_ended("sigbus", 7, "The launcher saw the process end by SIGBUS."),
            "shell-sigbus": _shell(7),
            "ompi-sigbus": _of_open_mpi(7),
            "mvapich-sigbus": _of_mvapich(7),
            "magick-sigbus": _of_magick(7),
            "caught-sigbus": LogPattern(
                ("Caught signal 7 (Bus error", "Fatal Python error: Bus error", "*** SIGBUS "),
                UCX + r"Caught signal 7 \(Bus error|Fatal Python error: Bus error|" + _GLOG.format("SIGBUS"),
                "UCX's handler; Python 3.3+; glog; ucs/debug/debug.c; Python faulthandler",
                "The process caught a bus error.",
            ),
            "worker-bus-error": LogPattern(
                (
                    "killed by signal: Bus error",
                    "Unexpected bus error encountered in worker",
                    "Unexpected BUS error encountered in DataLoader worker",
                ),
                r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)[^)]*\) is killed by signal: Bus error|"
                r"Unexpected bus error encountered in worker|Unexpected BUS error encountered in DataLoader worker",
                "torch 1.0+, Paddle; torch/utils/data/_utils/signal_handling.py, torch/csrc/DataLoader.cpp, "
                "paddle/fluid/imperative/data_loader.cc",
                "A DataLoader worker died of a bus error.",
                support=NAMES_AN_EFFECT,
            ),
        },
    ),
    FaultClass(
        **of("rank_killed_sigsegv"),
        next_steps=(
            "Run with `python -X faulthandler` (or PYTHONFAULTHANDLER=1) for the stack of {rank_words} at the crash; "
            "with `ulimit -c unlimited` a core file shows the native frames.",
        ),
        patterns={
            **_ended("sigsegv", 11, "The launcher saw the process end by SIGSEGV."),
            "shell-sigsegv": _shell(11),
            "ompi-sigsegv": _of_open_mpi(11),
            "mvapich-sigsegv": _of_mvapich(11),
            "magick-sigsegv": _of_magick(11),
            **_ended(
                "sigill", 4, "The launcher saw the process end by SIGILL: an instruction that this CPU does not have."
            ),
            **_ended("sigfpe", 8, "The launcher saw the process end by SIGFPE."),
            "glibc-abort": LogPattern(
                (
                    "double free or corruption",
                    "free(): ",
                    "alloc(): ",
                    "munmap_chunk(): ",
                    "malloc_consolidate(): ",
                    "tcache_thread_shutdown(): ",
                    "corrupted size vs. prev_size",
                    "corrupted double-linked list",
                    "stack smashing detected",
                    "buffer overflow detected",
                ),
                r"(?:^|\*\*\* |': )(?P<error>double free or corruption(?: \([^)\n]*\))?|(?:free|malloc|realloc|"
                r"munmap_chunk|malloc_consolidate|tcache_thread_shutdown)\(\): [\w ]+(?:\(\w+\))?|"
                r"corrupted (?:size vs\. prev_size|double-linked list)|(?:stack smashing|buffer overflow) detected)",
                "any; glibc, malloc/malloc.c, debug/fortify_fail.c",
                "The C library aborted the process because its memory is corrupted: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "allocator-abort": LogPattern(
                (
                    "cannot allocate memory for thread-local data: ABORT",
                    "<jemalloc>: ",
                    "Attempt to free invalid pointer",
                ),
                r"(?:^|: )(?P<error>cannot allocate memory for thread-local data): ABORT|^(?P<of_jemalloc><jemalloc>: "
                r"(?:Error allocating TSD|Unsupported system page size))|"
                r"tcmalloc\.cc:\d+\] (?P<of_tcmalloc>Attempt to free invalid pointer)",
                "any; glibc, elf/dl-tls.c; jemalloc, tsd.h, pages.c; gperftools, src/tcmalloc.cc",
                "The allocator aborted the process[: {error}][: {of_jemalloc}][: {of_tcmalloc}].",
                support=NAMES_AN_EFFECT,
            ),
            "worker-segfault": LogPattern(
                ("Unexpected segmentation fault encountered in worker",),
                r"Unexpected segmentation fault encountered in worker",
                "torch 1.0+; torch/csrc/DataLoader.cpp",
                "A DataLoader worker crashed.",
                support=NAMES_AN_EFFECT,
            ),
            "kernel-sigsegv": LogPattern(
                ("]: segfault at ", " general protection fault ip:", "] trap "),
                r"(?P<name>[\w.-]+)\[(?P<pid>\d+)\]:? (?:segfault at [0-9a-f]+ ip|general protection fault ip:|trap "
                r"(?:invalid opcode|divide error|stack segment) ip:)",
                "any kernel; arch/x86/mm/fault.c, arch/x86/kernel/traps.c",
                "The kernel saw process {pid} ({name}) crash.",
                support=NAMES_AN_EFFECT,
            ),
            "caught-sigsegv": LogPattern(
                (
                    "Caught signal 11 (Segmentation fault",
                    "Fatal Python error: Segmentation fault",
                    "*** SIGSEGV ",
                    "!!! Segfault encountered !!!",
                    "[signal SIGSEGV: ",
                    "SIGSEGV (0xb) at pc=",
                    "Windows fatal exception: ",
                    "forrtl: severe (174)",
                    "received signal SIGSEGV",
                ),
                UCX
                + r"Caught signal 11 \(Segmentation fault|Fatal Python error: Segmentation fault|"
                + r"!!!!!!! Segfault encountered !!!!!!!|^\[signal SIGSEGV: |^#\s+SIGSEGV \(0xb\) at pc=|"
                + r"Windows fatal exception: (?:access violation|stack overflow)|forrtl: severe \(174\): SIGSEGV|"
                + r"\breceived signal SIGSEGV[,:]|"
                + _GLOG.format("SIGSEGV"),
                "UCX's handler; Python 3.3+; glog; ucs/debug/debug.c; Python faulthandler; TVM, backtrace.cc; "
                "Go, runtime/signal_unix.go; HotSpot, vmError.cpp; ifort and gfortran, "
                "libgfortran/runtime/backtrace.c; gdb",
                "The process crashed.",
            ),
        },
    ),
    FaultClass(
        **of("rank_killed_exception"),
        context=(  # torchrun's last block
            "Root Cause (first observed failure)",
            "  time      : ",
            "  host      : ",
            "  rank      : ",
            "  exitcode  : ",
        ),
        next_steps=("Fix the exception on {rank_words}{waited}.",),
        if_read={
            ("recomputed metadata: ", "Recomputed values for the following tensors"): (
                "Activation checkpointing ran the forward pass again on {rank_words} and got other tensors: look for a "
                "branch, a random number or a cache that differs between the two. `checkpoint(..., debug=True)` prints "
                "the operators of both.",
                "A shape of [0] is a parameter that DeepSpeed's ZeRO-3 has released by then: use_reentrant=True does "
                "not compare them.",
            ),
            ("exited unexpectedly",): (
                "Look for the worker's own traceback above; `num_workers=0` shows the exception in the rank itself.",
                "A worker without a traceback was killed, usually for memory: `dmesg -T | grep -i 'killed process'` "
                "and `df -h /dev/shm` on {host}.",
            ),
            ("was called before MPI_INIT", "MPI routine before initializing"): (
                "Initialise MPI before the call that the line names, on {rank_words}: MPI_Init, or `import mpi4py.MPI` "
                "without `mpi4py.rc.initialize = False`. A library that calls MPI as it is imported has to come "
                "after it.",
                "Two builds of MPI in one process look the same: compare the libmpi of its extension modules (`ldd`).",
            ),
            ("was called after MPI_FINALIZE", "MPI routine after finalizing"): (
                "Let nothing use MPI after MPI_Finalize on {rank_words}: a destructor, an atexit handler, a file or a "
                "communicator that is not closed before it.",
            ),
            ("Too many open files",): (
                "Raise the limit of open files where the ranks start (`ulimit -n 65536`; LimitNOFILE in systemd, "
                "--ulimit nofile= in Docker).",
                "DataLoader workers pass each tensor as an open file: fewer workers, or "
                "`torch.multiprocessing.set_sharing_strategy('file_system')`.",
            ),
        },
        if_unnamed=(
            "Find out why {rank_words} ended: the end of its own log, and `dmesg -T` on {host}.",
            "torchrun shows an exception itself if the entry point is wrapped in "
            "`torch.distributed.elastic.multiprocessing.errors.record`.",
        ),
        rule="A traceback that is not itself about a lost peer or a time-out, earlier than the time-outs elsewhere.",
        patterns={
            **ENDS,
            **programs.STOPS,
            **programs.STOPS_AT_LAST,
            **programs.RAISED_IN,
            **programs.PROCESSES,
            "host-told": confirms(
                (
                    *(f"{end} {command}" for end in "$#" for command in _STARTED_HERE),
                    "Running on node",
                    "Running on host",
                    "ostname",
                    "HOSTNAME",
                    "SLURMD_NODENAME",
                    "executed on host(s)",
                ),
                # A prompt before a command that starts processes on this host alone, else what job scripts echo
                r"^(?:\([\w.-]{1,40}\) ){0,2}(?:\[[\w.-]{1,40}@(?P<host>[\w-]{1,63})[\w.-]{0,200} [^\]\n]{1,80}\]|"
                r"[\w.-]{1,40}@(?P<prompt>[\w-]{1,63})[\w.-]{0,200}:[~/][^$#\n]{0,200})[$#] "
                rf"(?={'|'.join(map(re.escape, _STARTED_HERE))})(?!.*(?:mpi(?:run|exec)|srun|sbatch|salloc|hostfile|"
                r"nnodes|num_machines|pdsh|horovodrun|kubectl|\bray\b|\bssh\b|docker))|"
                r"^Running on (?:node|host)s?:? {1,4}(?P<node>[\w.-]{1,253})\s*$|"
                r"^(?:Hostname|hostname|HOSTNAME|SLURMD_NODENAME)\s{0,4}[:=] {0,4}(?P<named>[\w.-]{1,253})\s*$|"
                r"Job was executed on host\(s\) <(?:\d+\*)?(?P<executed>[\w.-]{1,253})>, in queue",
                "bash, zsh; job scripts; LSF's report of a job",
                "The log says that it is of host [{host}][{prompt}][{node}][{named}][{executed}].",
                SUGGESTS,
            ),
            "hydra-proxy": confirms(
                ("[proxy:",),
                r"^\[proxy:\d+:\d+@(?P<host>[^\]\s]+)\]",
                "MPICH 1.3+, Intel MPI; src/pm/hydra",
                "Hydra's proxy on {host} reports.",
                SUGGESTS,
            ),
            "cpp-exception": confirms(
                ("terminate called after throwing an instance of",),
                r"terminate called after throwing an instance of '(?P<exception>[^'\n]{1,200})'",
                "any; libstdc++-v3/libsupc++/vterminate.cc",
                "A C++ exception that nobody caught ended the process: {exception}.",
                SUGGESTS,
            ),
            "cpp-what": confirms(
                ("what():",),
                r"^\s*what\(\):\s+(?P<message>.*)",
                "any; libstdc++-v3/libsupc++/vterminate.cc",
                "{message}",
                SUGGESTS,
            ),
            "traceback": confirms(
                ("Traceback (most recent call last)",),
                printed_by="any Python; Python traceback module",
                says="A Python traceback begins.",
                support=SUGGESTS,
            ),
            "chained": confirms(
                ("The above exception was the direct cause of", "During handling of the above exception"),
                printed_by="any Python; Python traceback module",
                says="The exception above led to another one.",
                support=SUGGESTS,
            ),
            "frame": confirms(
                ('", line ', "^^^^^", "~~~~~"),
                r'^\s*File "[^"\n]{1,400}", line \d+|^\s*[~^]{5,}\s*$',
                "any Python; Python traceback module",
                "A frame of a Python traceback.",
                SUGGESTS,
            ),
            "exception": confirms(
                ("Error", "Exception", "KeyboardInterrupt", "StopIteration", "SystemExit", *_OTHER_EXCEPTIONS),
                # SageMaker's toolkit repeats what the training raised (sagemaker_training/errors.py).
                r"^(?:\s{0,8}|ErrorMessage \")(?P<exception>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*"
                r"(?:Error|Exception|Interrupt|Iteration|Exit)"
                r"|Exception|(?:[a-z_]\w*\.){1,8}(?:exceptions|errors|autotuner|subprocess|queue)\.[A-Z]\w{2,60}|"
                r"subprocess\.TimeoutExpired|_?queue\.(?:Empty|Full)|distributed\.scheduler\.KilledWorker|"
                r"concurrent\.futures\.(?:process|thread)\.Broken\w{4,20})"
                r"(?:: (?P<message>.*)|:?\s*)$",
                "any Python; Python traceback module",
                "It raised {exception}.",
                SUGGESTS,
            ),
            "no-module": confirms(
                ("No module named", "can't open file", "Error while finding module specification for"),
                r"\bpython[\d.]*(?:\.exe)?: (?P<message>No module named \S+|can't open file [^\n]{1,200}|"
                r"Error while finding module specification for [^\n]{1,200})",
                "any Python; Lib/runpy.py, Modules/main.c",
                "The interpreter found nothing to run.",
                SUGGESTS,
            ),
            "aborts-itself": confirms(
                (
                    "' panicked at ",
                    "Check failed: ",
                    "dmlc/logging.h:",
                    ": Assertion `",
                    ": Assertion '",
                    "symbol lookup error: ",
                    "error while loading shared libraries: ",
                    "[TensorRT-LLM][ERROR] ",
                    "unable to launch the specified",
                    "There are not enough slots available in the system",
                    "*** MPI_ERR_",
                    "panic: ",
                    "function was called before MPI_INIT",
                    "function was called after MPI_FINALIZE",
                    "Attempting to use an MPI routine",
                    "recomputed metadata: {",
                    ".py: error: ",
                    "rror: unrecognized arguments: ",
                    "--> FOAM FATAL ",
                    "uncaught exception during training: ",
                    "MKL_THREADING_LAYER=",
                    "OMP: Error #",
                    "FAILED ",
                    *_OF_GROMACS,
                ),
                r"(?:^\[(?P<rank>\d+)\] (?=--> FOAM FATAL ))?(?P<message>"
                r"^There are not enough slots available in the system[^\n]{0,80}|"
                r"\*\*\* MPI_ERR_(?!TRUNCATE|PENDING|IN_STATUS)[A-Z_]+: [^\n]{1,120}|^\[TensorRT-LLM\]\[ERROR\] "
                r"[^\n]{0,80}?Assertion failed: [^\n]{1,200}|"
                r"^mpi(?:run|exec) was unable to launch the specified application[^\n]{0,200}|"
                r"^thread '[^']{0,80}' (?:\(\d+\) )?panicked at [^\n]{1,200}|^(?:\[[\d: .-]{8,30}: )?"
                r"(?:F [\w./+-]{1,200}:\d+\] )?Check failed: [^\n]{1,200}|"
                rf"^{_OF_DMLC}|"
                r"^panic: [^\n]{1,200}|"
                r"^(?:[\w./-]{1,80}: )?[\w./+-]{1,200}:\d+: [^\n]{1,400}: Assertion [`'][^\n]{1,200}' failed\.|"
                r"\*\*\* The MPI_\w{1,60}\(\) function was called (?:before MPI_INIT|after MPI_FINALIZE) was invoked|"
                r"\bAttempting to use an MPI routine (?:before initializing|after finalizing) \w+|"
                r"^recomputed metadata: \{[^\n]{1,200}|"
                r"(?:^|(?<=\] ))--> FOAM FATAL (?:IO )?ERROR ?:[^\n]{0,200}|"
                r"\bcontainer_support\.training - uncaught exception during training: [^\n]{1,200}|"
                rf"^(?:{'|'.join(map(re.escape, _OF_GROMACS))})\s*$|"
                r"^[Ee]rror: unrecognized arguments: [^\n]{1,200}|"
                r"^Error: mkl-service \+ Intel\(R\) MKL: [^\n]{1,200}|^OMP: Error #\d+: [^\n]{1,200}|"
                r"^FAILED \S{1,300}::\S{1,300} - (?:\w{1,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)\b[^\n]{0,200}|"
                r"^[\w./-]{1,200}\.py: error: (?:unrecognized arguments: |the following arguments are required: |"
                r"one of the arguments |ambiguous option: |argument [^\n:]{1,80}: (?:invalid |expected |not allowed ))"
                r"[^\n]{1,200}|"
                r"\bsymbol lookup error: [^\n]{1,200}|\berror while loading shared libraries: [^\n]{1,200})",
                "Rust, library/std/src/panicking.rs; glog, Abseil, BytePS; dmlc-core, include/dmlc/logging.h, in "
                "MXNet, XGBoost and DGL; TVM, include/tvm/runtime/logging.h; glibc, assert/assert.c, elf/dl-error.c; "
                "TensorRT-LLM, common/assert.h; Open MPI, help-orterun.txt, ompi/errhandler/errhandler.c; MPICH, "
                "src/mpi/errhan/errnames.txt, and what is made from it; torch 2+, torch/utils/checkpoint.py; Python, "
                "Lib/argparse.py; OpenFOAM, src/OpenFOAM/db/error/error.C; GROMACS, "
                "src/gromacs/utility/fatalerror.cpp; SageMaker's containers until 2018, container_support/training.py; "
                "mkl-service 2+, mkl/_mklinit.c; LLVM's and Intel's OpenMP, openmp/runtime/src/i18n/en_US.txt; "
                "pytest 3+, in its summary, src/_pytest/terminal.py",
                "The program ended itself: {message}.",
                SUGGESTS,
            ),
            "refuses-to-start": confirms(
                (
                    ".py: error: ",
                    ": command not found",
                    "executable file not found in $PATH",
                    ": exec format error",
                    "error: execve(): ",
                ),
                r"^(?P<message>[^\n]{0,200}\bexec: \"[^\"\n]{1,200}\": executable file not found in \$PATH|"
                r"(?:exec |standard_init_linux\.go:\d+: )[^\n]{1,200}: exec format error|[\w./-]{1,200}\.py: error: "
                r"[^\n]{1,200}|(?:\S{1,200}: )?(?:line \d+: )?[\w./-]{1,80}: "
                r"command not found\s*$|[^\n]{0,80}\berror: execve\(\): [^\n]{1,200}: (?:No such file or directory|"
                r"Permission denied|Exec format error))",
                "Python, Lib/argparse.py; bash, sh; runc, libcontainer/init_linux.go; Go, os/exec/lp_unix.go; any "
                "Slurm, src/slurmd/slurmstepd/task.c",
                "The program did not start: {message}.",
                SUGGESTS,
            ),
            "crashed-on-this-rank": confirms(
                ("crashed on this rank",),
                r"(?P<message>\[RANK \d+\] [^\n]{0,80}\bcrashed on this rank)\b",
                "TensorRT-LLM; tensorrt_llm/_torch/pyexecutor/hang_detector.py",
                "The program ended itself: {message}.",
                SUGGESTS,
            ),
            "rank-exitcode": confirms(
                ("terminated with code ", "crashed with exit code ", ") exited with code "),
                # Composer leaves out those that it ends itself.
                r"(?:\[rank: |\bRank |\bGlobal rank )(?P<rank>\d+)(?:\] Child process with PID \d+ terminated with "
                r"code| crashed with exit code| \(PID \d+\) exited with code) (?P<exitcode>-?\d+)",
                "any; Lightning, Composer (composer/cli/launcher.py)",
                "The launcher saw rank {rank} end with {exitcode}.",
                SUGGESTS,
            ),
            "first-to-exit": confirms(
                ("Process name:",),
                r"Process name: +(?:\[(?:\[\d+,\d+\],|[^\]\s@]{1,200}@\d+,)(?P<rank>\d+)\]|(?P<number>\d+)\s*$|"
                r"(?P<host>[\w.-]+)\[\d+\])",
                "Open MPI, PRRTE, Horovod; orterun, prte/tools/prun, horovod/runner",
                "The launcher names the first process that exited with an error.",
                SUGGESTS,
            ),
            "exit-code": confirms(
                ("Exit code: ",),
                r"^\s*Exit code: +(?P<exitcode>-?\d+)\s*$",
                "Open MPI, Horovod, SGLang 0.3+; orterun, horovod/runner, sglang/srt/entrypoints/engine.py",
                "The launcher prints the exit code {exitcode} of the process that it names.",
                SUGGESTS,
            ),
            "mpi-abort": confirms(
                ("MPI_ABORT was invoked on rank", "application called MPI_Abort", " in comm 0): Fatal error"),
                r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator "
                r"MPI(?:_COMM_WORLD| COMMUNICATOR \d+ DUP FROM 0)"
                r"(?:.*?[Ee]rrorcode:? +(?P<exitcode>-?\d+))?|"
                r"Abort\((?P<code>-?\d+)\) on node \d+ \(rank (?P<number>\d+) in comm 0\): (?:application called "
                r"MPI_Abort|Fatal error in )|"
                r"application called MPI_Abort\(MPI_COMM_WORLD, (?P<given>-?\d+)\) - process (?P<process>\d+)",
                "Open MPI 1.3+, MPICH 3+; ompi/mpi/help-mpi-api.txt, src/mpi/init/abort.c",
                "The program called MPI_Abort.",
                SUGGESTS,
            ),
            "error-on-rank": confirms(
                ("rror occurred on rank ", "xception occurred on rank ", "rror on rank ", "xception on rank "),
                r"^\W{0,3}(?:An? |Fatal |Unhandled )?(?:[Ee]rror|[Ee]xception)(?: occurred)? on (?:MPI )?rank "
                r"(?P<rank>\d+)(?:[.:]|\s*$)",
                "programs of MPI that catch what a rank raises and call MPI_Abort: gmx_MMPBSA, MMPBSA.py (main.py)",
                "The program says that rank {rank} failed.",
                SUGGESTS,
            ),
            "mpi-local-abort": confirms(
                ("] Local abort before MPI_INIT", "] Local abort after MPI_FINALIZE"),
                r"^\[(?P<host>[\w.-]{1,253}):\d+\] Local abort (?:before MPI_INIT|after MPI_FINALIZE)",
                "Open MPI 1.5+; ompi/errhandler/errhandler.c, ompi/runtime/ompi_mpi_abort.c",
                "MPI aborted a process on {host}, where it could not tell the others of the job.",
                SUGGESTS,
            ),
            "exits-with": confirms(
                ("exits with return code = ",),
                r"exits with return code = (?P<exitcode>[1-9]\d*)\s*$",
                "DeepSpeed 0.3+; deepspeed/launcher/launch.py",
                "The launcher saw a process end with exit code {exitcode}.",
                SUGGESTS,
            ),
            "hydra-process": confirms(
                (" RUNNING AT ",),
                r"(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)",
                "MPICH, Intel MPI; hydra",
                "Hydra saw process {pid} on {host} end first.",
                SUGGESTS,
            ),
            "exitcode": confirms(
                ("failed (exitcode:",),
                rf"failed \(exitcode: (?P<exitcode>-?\d+)\){_LOCAL}",
                f"torch 1.9+; {_ELASTIC}",
                "The launcher saw the process end with an error.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="storage",
        title="a file system failed or is full",
        priority=1,
        by_line=True,
        next_steps=(
            "On {host}: `df -h; df -i` of the paths that the job writes to, quotas, and `dmesg -T` for I/O errors or a "
            "lost mount.",
        ),
        rules_out={"rank_killed_exception": "the exception is about the file system"},
        patterns={
            **programs.STORAGE,
            "no-space": LogPattern(
                (
                    "No space left on device",
                    "Disk quota exceeded",
                    "Stale file handle",
                    "Read-only file system",
                    "Remote I/O error: '",
                    "Cannot send after transport endpoint shutdown",
                    *(f"{kind}: {name}" for kind in ("Error", "Exception") for name in _ERRNOS),
                ),
                rf"{RAISED}(?P<name>{'|'.join(_ERRNOS)})\b|"
                r"(?P<error>No space left on device|Disk quota exceeded|Stale file handle|Read-only file system|"
                r"Remote I/O error(?=: ')|Cannot send after transport endpoint shutdown)"
                r"(?:: '?(?P<path>/[^'\s]+|(?<=')[^'\s]+))?",
                "any; libc's error texts; libuv, src/uv-common.c",
                "[{error}][{name}][: {path}].",
                unless=("/dev/shm", "shared memory", "posix_fallocate", "NCCL WARN", "file </torch_", "'/psm_"),
            ),
            "evicted-for-storage": LogPattern(
                (*_EVICTED_FOR_STORAGE, "Usage of EmptyDir volume"),
                r"The node was (?P<message>low on resource: (?:ephemeral-storage|inodes))|"
                r"(?P<local>[Pp]od ephemeral local storage usage exceeds[^\n]{0,80}|exceeded its local ephemeral "
                r"storage "
                r"limit[^\n]{0,40})|(?P<volume>Usage of EmptyDir volume \"(?![^\"\n]*shm)[^\n]{1,120})|"
                r"\[(?P<condition>DiskPressure)\]",
                "Kubernetes 1.6+; pkg/kubelet/eviction/eviction_manager.go, helpers.go",
                "Kubernetes evicted the pod[: {message}][: {local}][: {volume}][: the node has {condition}].",
            ),
            "not-written": LogPattern(
                (
                    "Error while serializing: ",
                    "OutOfDiskError",
                    "Local disk is full",
                    "No locks available",
                    "unable to lock file",
                    "Structure needs cleaning",
                    "Operation not supported: '",
                    "File too large: '",
                ),
                r"Error while serializing: (?:(?:IoError\(|I/O error: )(?P<error>[^\n]{1,120})|I/O error:\s*$)|"
                r"ray\.exceptions\.OutOfDiskError(?:: (?P<ray>[^\n]{1,120}))?|"
                r"unable to lock file, errno = (?P<number>\d+)|"
                r"\[Errno (?:27|37|95|117)\] (?P<text>File too large|No locks available|Operation not supported|"
                r"Structure needs cleaning)(?:: '(?P<path>/[^']+)')?",
                "safetensors 0.3+, safetensors/src/tensor.rs; Ray, python/ray/exceptions.py; HDF5, src/H5FDsec2.c; "
                "libc's error texts",
                "Writing failed[: {error}][: {ray}][: HDF5 cannot lock the file, error {number}][: {text}][, {path}].",
            ),
            "not-mounted": LogPattern(
                ("FailedMount ", "FailedAttachVolume "),
                r"\bFailed(?:Mount|AttachVolume) [^\n]{0,120}?(?P<message>(?:MountVolume|Unable to attach|"
                r"AttachVolume)[^\n]{1,160})",
                "Kubernetes 1.6+; pkg/kubelet/events/event.go, pkg/volume/util/operationexecutor",
                "Kubernetes cannot mount a volume: {message}.",
                support=NAMES_AN_EFFECT,
            ),
            "kernel-io": LogPattern(
                (
                    " not responding, ",
                    " has not responded in ",
                    " I/O error, dev ",
                    "Buffer I/O error on dev",
                    "Remounting filesystem read-only",
                    "LustreError: ",
                    "Lustre: ",
                    "EXT4-fs error",
                    "metadata I/O error",
                    "Corruption of in-memory data",
                    "timeout, aborting",
                    "timeout, reset controller",
                    "libceph: ",
                    "ceph: mds",
                    "beegfs: ",
                ),
                r"\bnfs: server (?P<server>\S+) not responding, (?:still trying|timed out)|"
                r"CIFS: VFS: \S+ (?:Server )?(?P<share>\S+) has not responded in \d+ seconds|"
                r"I/O error(?: on|,) dev (?P<device>[\w-]+), (?:sector|logical block)|EXT4-fs error \(device "
                r"(?P<ext4>[\w-]+)\)|XFS \((?P<xfs>[\w-]+)\): (?:metadata I/O error|Corruption of in-memory data)|"
                r"nvme (?P<nvme>nvme\w+): I/O [^\n]{0,60}timeout, (?:aborting|reset controller)|"
                r"libceph: (?P<osd>(?:osd|mon|mds)\d+)[^\n]{0,80}?(?: down$|socket (?:closed|error)|session lost)|"
                r"ceph: (?P<mds>mds\d+) (?:hung|caps stale|reconnect denied)|beegfs: [^\n]{0,120}?Communication error|"
                r"Remounting filesystem read-only|LustreError: [^\n]*?(?:Connection to|operation|client was evicted "
                r"by) (?P<target>[^\s;]+)|"
                r"Lustre: [^\n]{0,160}?Connection to (?P<ost>\S+)[^\n]{0,80}? was lost; in progress operations",
                "any kernel; net/sunrpc/clnt.c, fs/smb/client/connect.c, block/blk-core.c, fs/buffer.c, "
                "fs/ext4/super.c, "
                "fs/xfs/xfs_buf.c, drivers/nvme/host/pci.c, net/ceph/osd_client.c, fs/ceph/mds_client.c; Lustre, "
                "lustre/ptlrpc/import.c; BeeGFS",
                "The kernel waits for storage, or it failed[: the NFS server {server}][: the share {share}][: {device}]"
                "[: {target}][: {ost}][: {ext4}][: {xfs}][: {nvme}][: {osd}][: {mds}].",
                support=NAMES_AN_EFFECT,
            ),
            "io-error": LogPattern(
                (
                    "Input/output error",
                    "Transport endpoint is not connected: '",
                    "PytorchStreamWriter failed",
                    "inline_container.cc",
                ),
                r"(?:\[Errno 5\]|\bfailed with) Input/output error(?:: '?(?P<path>/[^'\s]+|(?<=')[^'\s]+))?|"
                r"Transport endpoint is not connected: '(?P<mount>/[^']+)|PytorchStreamWriter failed writing file|"
                r"inline_container\.cc:\d+\] ?\. ?(?:unexpected pos|file write failed|fwrite)",
                "any; libc's error texts; caffe2/serialize/inline_container.cc",
                "Reading or writing failed[: {path}][: {mount}].",
                unless=("NCCL WARN",),
            ),
        },
    ),
    FaultClass(
        **of("job_cancelled"),
        by_line=True,
        speaker_is_culprit=False,
        next_steps=(
            "If it was not you: look at the scheduler's record of the job (`sacct "
            "--format=JobID,State,ExitCode,Reason`, `kubectl describe pod`): time limit, preemption, a failed node, or "
            "a cancellation.",
        ),
        rule="The scheduler reports it, or it is only known that the processes were asked to stop.",
        patterns={
            "scheduler-cancelled": LogPattern(
                (
                    "DUE TO TIME LIMIT",
                    "DUE TO PREEMPTION",
                    "DUE TO JOB REQUEUE",
                    "DUE TO NODE FAILURE",
                    "PREEMPTED",
                    "NODE_FAIL",
                    "Evicted",
                    "TaintManagerEviction",
                    "Preempted by",
                    "TERM_RUNLIMIT",
                    "TERM_OWNER",
                    *("TERM_ADMIN", "TERM_PREEMPT", "TERM_REQUEUE_", "TERM_DEADLINE", "TERM_WINDOW", "TERM_CPULIMIT"),
                    *("Job was evicted", "Job was aborted by", "xit_status", "Preempted to accommodate"),
                    *("MaxRuntimeExceeded", "MaxWaitTimeExceeded", "Host EC2 (instance ", "due to worker preemption"),
                    "PBS: job killed: walltime",
                    " was preempted",
                    "interruption notice",
                    "longer than specified deadline",
                    "longer than the specified deadline",
                    *("TIMEOUT", "CANCELLED"),
                ),
                r"(?P<reason>DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAILURE))|"
                r"\b(?P<state>PREEMPTED|NODE_FAIL|TERM_(?:RUNLIMIT|OWNER|ADMIN|PREEMPT|REQUEUE_(?:OWNER|ADMIN)|DEADLINE|WINDOW|"
                r"CPULIMIT)|MaxRuntimeExceeded|MaxWaitTimeExceeded)\b|"
                r"\bJob was (?P<condor>evicted|aborted by the user)\b|\b[Ee]xit_status ?[= ] ?(?P<pbs>271)\b|"
                r"\b(?P<queue>Preempted to accommodate) a workload|Host EC2 \(instance [\w-]+\) (?P<batch>terminated)|"
                r"\binterrupted due to (?P<worker>worker preemption)\b|"
                r"(?:Reason|Status|reason):\s*(?P<pod>Evicted)|^[a-z0-9][a-z0-9.-]{0,252} +\d+/\d+ +(?P<row>Evicted) |"
                r"\b(?P<event>Evicted|TaintManagerEviction|Preempted) +(?:\S+ \(x\d+ over \S+\)|\S+) +[\w-]+ +\S|"
                r"PBS: job killed: (?P<limit>walltime) \S+ exceeded|"
                r"\b(?:[Ii]nstance|VM|TPU|[Nn]ode|[Jj]ob) (?:['\"]?[\w./-]{1,120}['\"]? )?was (?P<taken>preempted)\b|"
                r"(?i:\bspot (?:instance )?interruption notice)|"
                r"\b(?:Job|Pod) was active (?:on the node )?(?P<long>longer than )(?:the )?specified deadline|"
                r"(?:\bJobState=|^\s*State: |\bRun time \S+, )(?P<slurm>TIMEOUT|CANCELLED)\b|"
                r"\b(?P<listed>TIMEOUT|CANCELLED)(?: by \d+|\+)?[ |]+0:\d+\b",
                "any Slurm, src/slurmd/slurmstepd; LSF, PBS; HTCondor, src/condor_utils/condor_event.cpp; Kubernetes, "
                "kubectl describe and get events; Kueue, pkg/scheduler/preemption/preemption.go; ECS, SageMaker, Modal",
                "The scheduler ended it[ {reason}][: {state}][: {pod}][: {row}][: {event}][: its {limit} was used up]"
                "[: it was {taken}][: it was active {long}its deadline][: its state is {slurm}][: its state is "
                "{listed}][: the job was {condor}][: PBS ended it with SIGTERM, exit status {pbs}][: {queue} another "
                "one][: its instance was {batch}][: {worker}].",
                unless=("low on resource: memory", *_EVICTED_FOR_STORAGE, "Usage of EmptyDir volume"),
            ),
            "deleted-at-request": LogPattern(
                ("deleted at request of ",),
                r"\bJob (?:to be )?deleted at request of (?P<by>[\w.-]{1,80}@[\w.-]{1,253})",
                "Torque, OpenPBS; src/server/req_delete.c",
                "The job was deleted at the request of {by}.",
            ),
            "step-cancelled": LogPattern(
                (" CANCELLED AT ", "srun: Force Terminated "),
                r"\*\*\* (?:JOB|STEP) \S+ ON (?P<node>\S+) CANCELLED AT |srun: (?P<forced>Force Terminated) "
                r"(?:job|JobId|StepId)",
                "any Slurm; src/slurmd/slurmstepd, src/srun/libsrun/allocate.c",
                "The step was cancelled[ on {node}][: srun says {forced}].",
                support=SUGGESTS,
            ),
            "step-aborted": LogPattern(
                ("srun: Job step aborted: ",),
                r"srun: Job step aborted: Waiting up to \d+ seconds",
                "any Slurm; src/api/step_launch.c: also after a task that failed, with --kill-on-bad-exit, and after "
                "the failure of a node",
                "srun broke the step off, because somebody cancelled it or because a task or a node failed.",
                support=SUGGESTS,
                rivalled=True,
            ),
            "hydra-told-to-stop": LogPattern(
                ("Terminated (signal 15)",),
                r"EXIT STRING: Terminated \(signal 15\)",
                "MPICH 3+, Intel MPI; src/pm/hydra/lib/utils/exec.c",
                "A process was told to end (SIGTERM), and no line shows by whom.",
                support=SUGGESTS,
            ),
            "terminated-on": confirms(
                ("Terminated",),
                r"^(?:(?P<host>[\w.-]{1,253}):? +(?:\[\d+\] +)?)?Terminated\s*$",
                "bash, behind what launchers of several hosts put before each line: "
                "torch_xla/distributed/xla_dist.py, pdsh, clush, mpirun",
                "A process[ on {host}] was told to end (SIGTERM).",
                SUGGESTS,
            ),
            "told-to-stop": LogPattern(
                (
                    "got signal: 15",
                    "Received 15 death signal",
                    "Received Signals.SIGTERM death signal",
                    "*** SIGTERM ",
                    "SIGTERM caught",
                ),
                r"Process \d+ got signal: 15\b|Received (?:15|Signals\.SIGTERM) death signal, shutting down workers|"
                rf"{_GLOG.format('SIGTERM')}|\bSIGTERM caught(?: at|\.)",
                "torch 1.9+, JAX, Paddle; torch/distributed/elastic/agent/server/api.py, the handlers of Abseil and "
                "glog, tsl/distributed_runtime/preemption/preemption_notifier.cc",
                "The process was asked to stop (SIGTERM) by a scheduler, a person, or another node that failed.",
                support=WAS_ASKED,
            ),
            **programs.ASKED,
            "interrupted": LogPattern(
                ("got signal: 2", "got signal: 1", "death signal, shutting down workers", "KeyboardInterrupt"),
                r"Process \d+ got signal: [12]\b|Received (?:[12]|Signals\.SIG(?:INT|HUP)) death signal, shutting down "
                r"workers|^KeyboardInterrupt\b",
                "torch 1.9+; torch/distributed/elastic/agent/server/api.py",
                "A person interrupted it, or its terminal was closed (SIGINT, SIGHUP).",
            ),
        },
    ),
)
