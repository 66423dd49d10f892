"""The substrings that the reader itself looks for, beside those that it is asked for."""

from __future__ import annotations

from .messages import WORLD_ANCHORS
from .stacks import OPENERS

CALL = "opCount "
FACTS = (
    "Init START",
    "Init COMPLETE",
    "Destroy COMPLETE",
    "Abort COMPLETE",
    "cudaDev ",
    "NCCL version",
    "NCCL_",
    *WORLD_ANCHORS,
)
DEDUPLICATED = "x across cluster]"
KEPT = (
    "Bootstrap",
    "NET/IB :",
    "NET/IB:",
    "NET/Socket :",
    "NET/Socket:",
    "NET/Plugin",
    "NET/OFI",
    "Using network ",
    "NCCL WARN",
    "] WARN ",
    "[PG ",
    "PG status",
    "Watchdog caught",
    "watchdog",
    "WorkNCCL(",
    "ProcessGroupNCCL",
    "ProcessGroupGloo",
    "ProcessGroupWrapper",
    "CollectiveFingerPrint",
    "monitoredBarrier",
    "TCPStore",
    "socket.cpp",
    "recvValue failed",
    "flight recorder",
    "torch.distributed.elastic",
    "torch/distributed/elastic",
    "Rendezvous",
    "exitcode",
    "closing signal",
    "death signal",
    "Caught signal",
    "SIGTERM",
    "SIGKILL",
    "SIGSEGV",
    "SIGBUS",
    "SIGABRT",
    "is setting up NCCL communicator and",
    "Got completion",
    "MASTER_ADDR",
    "Initializing distributed",
    "srun: ",
    "slurmstepd",
    "mpirun",
    "noticed that process rank",
    "NVRM:",
    "Out of memory",
    "oom-kill",
    "Killed",
    "OOMKilled",
    "frame #",
)
# Long messages that terminals wrap, by an anchor: what each says near its end.
ENDS = {
    "WorkNCCL(": (b" milliseconds", b"blocking wait"),
    "Got completion": (b"vendor",),
    "Watchdog caught": (b" milliseconds",),
    "is setting up NCCL communicator and": (b"got error",),
    "Last enqueued": (b"ast completed",),
    "last enqueued": (b"ast completed",),
    "Multicast memory of size": (b"CUDA error",),
    "message truncated": (b"instead of",),
    "noticed that process rank": (b" signal",),
}
STRUCTURAL = (CALL, *FACTS, DEDUPLICATED, *KEPT, *OPENERS)
