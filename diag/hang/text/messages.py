"""What single messages state: a communicator's life, a collective call, a variable, a version, a world size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..model import MOST_RANKS, Call, Evidence

_FIELD = re.compile(
    r"\b(comm|rank|n[rR]anks|cudaDev|busId|commId|parent|color|splitCount|childCount) "
    r"(\(nil\)|0x[0-9a-fA-F]+|-?[0-9a-fA-F:.]+)"
)
_EVENT = re.compile(r"- ?(Init|Destroy|Abort) (START|COMPLETE)\b")
_CALL = re.compile(
    r"(\w+): opCount ([0-9a-fA-F]+) sendbuff \S+ recvbuff \S+ "
    r"count (\d+) datatype (\d+) op (\d+) root (-?\d+) comm (\S+)"
)
_ENV = re.compile(r"\b((?:R?NCCL|RCCL)_\w+) set (?:by environment )?to (.{0,1000})$")
_VERSION = re.compile(r"\bR?NCCL version (\d+\.\d[\w.+-]*)")


@dataclass(frozen=True, slots=True)
class Event:
    """ "comm .. rank R nranks N .. - Init COMPLETE" of any version: the fields are read by name, the order varies."""

    what: str  # Init, Destroy, Abort
    complete: bool
    comm: str  # the pointer: means something within its process only
    rank: int
    size: int
    device: int | None
    bus_id: str
    comm_id: str  # "" before 2.16, and for splits from 2.23 on
    parent: str  # the pointer of the communicator that was split
    split: str  # which split of the parent: its count and colour


def event_of(text: str) -> Event | None:
    """None for what is not, or not wholly, such a line."""
    found = _EVENT.search(text)
    if found is None:
        return None
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(text, 0, found.start()):
        fields.setdefault(match[1].lower(), match[2])
    try:
        rank, size = int(fields["rank"]), int(fields["nranks"])
        device = int(fields["cudadev"]) if "cudadev" in fields else None
    except (KeyError, ValueError):
        return None
    if "comm" not in fields or not 0 <= rank < size <= MOST_RANKS:
        return None
    count = fields.get("splitcount", fields.get("childcount", ""))
    return Event(
        what=found[1],
        complete=found[2] == "COMPLETE",
        comm=fields["comm"],
        rank=rank,
        size=size,
        device=device,
        bus_id=fields.get("busid", ""),
        comm_id=fields.get("commid", ""),
        parent=fields.get("parent", ""),
        split=f"split {count} color {fields.get('color', '')}" if "parent" in fields else "",
    )


def call_of(text: str, evidence: Evidence) -> tuple[str, Call] | None:
    """(the communicator's pointer, the call). opCount is printed in hexadecimal."""
    match = _CALL.search(text)
    if match is None:
        return None
    op, count, elements, datatype, _, root, comm = match.groups()
    return comm, Call(op, int(count, 16), int(elements), int(datatype), int(root), evidence)


def variable_of(text: str) -> tuple[str, str] | None:
    """ "NCCL_IB_HCA set by environment to mlx5." as (name, value); the value ends at the dot that NCCL adds."""
    match = _ENV.search(text)
    return (match[1], match[2].rstrip().removesuffix(".")) if match else None


def version_of(text: str) -> str:
    """ "2.21.5+cuda12.4", or ""."""
    match = _VERSION.search(text)
    return match[1] if match else ""


# Who prints how many ranks there are: PyTorch's elastic agent, launchers, Lightning, fairseq, DDP, TCPStore, users.
_WORLD = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bglobal_world_sizes?=\[(\d+)",
        r"\bWORLD_SIZE['\"]?\s*[=:]\s*['\"]?(\d+)",
        # Not the size of a group: "data parallel world size: 4", "tp world size".
        r"(?<!parallel )(?<!group )(?<!local )(?<!role )(?<!\b[tdpec]p )(?<!data )(?<!tensor )(?<!expert )"
        r"\b[wW]orld[_ ]?size['\"]?\s*(?:[=:]|is)?\s*['\"]?(\d+)",
        r"\bMEMBER: \d+/(\d+)",
        r"\bdistributed init \(rank \d+, world (\d+)\)",
        r"\bTotal number of processes: (\d+)",
        r"\bnum_processes[=:]\s*(\d+)",
    )
)
_NODES = re.compile(r"(?:--nnodes|\bmax_nodes|\bnnodes|--num_machines|--num_nodes)\s*[=: ]\s*(?:\d+:)?(\d+)\b")
_EACH = re.compile(r"(?:--?nproc[-_]per[-_]node|\bnproc_per_node|--num_gpus)\s*[=: ]\s*(\d+)\b")
WORLD_ANCHORS = (
    "global_world_size",
    "WORLD_SIZE",
    "world_size",
    "world size",
    "World size",
    "MEMBER: ",
    "distributed init (rank",
    "Total number of processes",
    "num_processes",
    "nnodes",
    "max_nodes",
    "nproc_per_node",
    "nproc-per-node",
    "num_gpus",
)


def world_size_of(text: str) -> int | None:
    """As printed outright; not "role_world_sizes" or "group_world_size", which count other things."""
    for pattern in _WORLD:
        if (match := pattern.search(text)) and 0 < int(match[1]) <= MOST_RANKS:
            return int(match[1])
    return None


def nodes_of(text: str) -> tuple[int | None, int | None]:
    """(nodes, processes on each), as far as a launcher's line says."""
    nodes, each = _NODES.search(text), _EACH.search(text)
    return (int(nodes[1]) if nodes else None), (int(each[1]) if each else None)
