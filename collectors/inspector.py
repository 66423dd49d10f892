"""What the recorder and the readers know of NCCL Inspector's records; ``diag.rundir.inspector`` has the other facts."""

from __future__ import annotations

from .records import ALL_TO_ALL, RECV, SEND

# ncclFuncToString of src/enqueue.cc: the names of torch.distributed's operations.
_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": ALL_TO_ALL,
    "AllToAll": ALL_TO_ALL,
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": SEND,
    "Recv": RECV,
}


def operation_of(name: str) -> str:
    """torch.distributed's name of an operation that NCCL names so; another one in lower case."""
    return _OPERATIONS.get(name) or name.lower()[:40]
