"""Processes that end early: by a signal or by an exception."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

_ELASTIC = "torch/distributed/elastic/multiprocessing/api.py"
_ERRORS = "torch/distributed/elastic/multiprocessing/errors/__init__.py"
_LOCAL = r"(?:.*?local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\))?"


_ORTE = "Open MPI, orterun/orterun.c help text"
_SRUN = "Slurm, src/srun/libsrun/launch.c"
_TASKS = r"tasks? (?P<tasks>[\d,-]+)"


def _ended(name: str, number: int, says: str) -> tuple[Signature, ...]:
    """What launchers say of a process that ended by a signal: torchrun at once and in its last block, mpirun, srun and
    ``diag run``, each once."""
    words = _WORDS[number]
    return (
        Signature(
            f"exitcode-{name}",
            (f"exitcode: -{number})",),
            rf"failed \(exitcode: -{number}\){_LOCAL}",
            "torch 1.9+",
            _ELASTIC,
            says,
        ),
        Signature(
            f"signal-{name}",
            (f"Signal {number} (",),
            rf"Signal {number} \(\w+\) received by PID (?P<pid>\d+)",
            "torch 1.9+",
            _ERRORS,
            says,
        ),
        Signature(
            f"mpirun-{name}",
            (f"exited on signal {number} (",),
            r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal "
            rf"{number} \(",
            "Open MPI 1.3+",
            _ORTE,
            says,
        ),
        Signature(
            f"srun-{name}",
            (f": {words}",),
            rf"srun: error: (?P<host>[^\s:]+): {_TASKS}: {words}",
            "any Slurm",
            _SRUN,
            says,
        ),
        Signature(
            f"diag-{name}",
            ("diag: the training ended early",),
            rf"^diag: the training ended early: rank (?P<rank>\d+): killed by {name.upper()}\b",
            "all",
            "diag run",
            says,
        ),
    )


_UCX = r"(?:\[(?P<host>[^:\]\s]+):(?P<pid>\d+)\s*:\d+:\d+\] )?"
_WORDS = {9: "Killed", 7: "Bus error", 11: "Segmentation fault"}  # strsignal's


CLASSES = (
    FaultClass(
        id="rank_killed_sigkill",
        title="a rank was killed (SIGKILL)",
        priority=1,
        next_steps=(
            "On {host}: `dmesg -T | grep -i 'killed process'` tells the kernel's out-of-memory killer from a scheduler "
            "or a person; a bare SIGKILL is not proof of either.",
            "If it was memory: fewer DataLoader workers, no copies of the data set per worker, or a larger memory "
            "limit "
            "of the job or container.",
        ),
        signatures=(
            *_ended("sigkill", 9, "The launcher saw the process end by SIGKILL."),
            Signature(
                "kernel-oom",
                ("Out of memory: Killed process", "Out of memory: Kill process", "Memory cgroup out of memory: Killed"),
                r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?",
                "any kernel",
                "kernel log",
                "The kernel's out-of-memory killer ended process {pid}.",
            ),
        ),
    ),
    FaultClass(
        id="rank_killed_sigbus",
        title="a rank died of SIGBUS",
        priority=1,
        next_steps=(
            "On {host}: `df -h /dev/shm` while the job runs; a full /dev/shm is the usual cause: `docker run "
            "--shm-size=16g`, or an emptyDir volume with medium Memory in Kubernetes.",
            "Otherwise: a file that was mapped and then cut (data set, checkpoint) or failing memory (`dmesg -T | "
            "grep -i "
            "mce`).",
        ),
        signatures=(
            *_ended("sigbus", 7, "The launcher saw the process end by SIGBUS."),
            Signature(
                "caught-sigbus",
                ("Caught signal 7 (Bus error", "Fatal Python error: Bus error"),
                _UCX + r"Caught signal 7 \(Bus error|Fatal Python error: Bus error",
                "UCX's handler; Python 3.3+",
                "ucs/debug/debug.c; Python faulthandler",
                "The process caught a bus error.",
            ),
            Signature(
                "worker-bus-error",
                ("killed by signal: Bus error",),
                r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>\d+)[^)]*\) is killed by signal: Bus error",
                "torch 1.0+",
                "torch/utils/data/_utils/signal_handling.py",
                "A DataLoader worker died of a bus error.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="rank_killed_sigsegv",
        title="a rank crashed (SIGSEGV)",
        priority=1,
        next_steps=(
            "Run with `python -X faulthandler` (or PYTHONFAULTHANDLER=1) for the stack of rank {rank} at the crash; "
            "with "
            "`ulimit -c unlimited` a core file tells the native frames.",
        ),
        signatures=(
            *_ended("sigsegv", 11, "The launcher saw the process end by SIGSEGV."),
            Signature(
                "caught-sigsegv",
                ("Caught signal 11 (Segmentation fault", "Fatal Python error: Segmentation fault"),
                _UCX + r"Caught signal 11 \(Segmentation fault|Fatal Python error: Segmentation fault",
                "UCX's handler; Python 3.3+",
                "ucs/debug/debug.c; Python faulthandler",
                "The process crashed.",
            ),
        ),
    ),
    FaultClass(
        id="rank_killed_exception",
        title="a rank raised an exception",
        priority=1,
        next_steps=(
            "Mend what rank {rank} raised; the others only waited for it.",
            "torchrun shows the exception itself if the entry point is wrapped in "
            "`torch.distributed.elastic.multiprocessing.errors.record`.",
        ),
        rule="A traceback that is not itself about a lost peer or a time-out, earlier than the time-outs elsewhere.",
        signatures=(
            Signature(
                "traceback",
                ("Traceback (most recent call last)",),
                r"Traceback \(most recent call last\)",
                "any Python",
                "Python traceback module",
                "A Python traceback begins.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "exception",
                ("Error", "Exception", "KeyboardInterrupt", "StopIteration", "SystemExit"),
                r"^\s{0,8}(?P<exception>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Iteration|Exit))"
                r"(?:: (?P<message>.*)|:?\s*)$",
                "any Python",
                "Python traceback module",
                "It raised {exception}.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "exitcode",
                ("failed (exitcode:",),
                rf"failed \(exitcode: (?P<exitcode>-?\d+)\){_LOCAL}",
                "torch 1.9+",
                _ELASTIC,
                "The launcher saw the process end with {exitcode}.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
)
