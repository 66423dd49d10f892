"""Parses single messages, and gathers the processes and communicators that they describe."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from diag.ended.model import Source
from diag.hang.model import MOST_RANKS, NcclCall
from diag.hang.policy import HANG_READING
from diag.hang.text.prefixes import ParsedLine

# -- Single messages: a communicator's life, a collective call, a variable, a version, a world size --------------------

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
class CommunicatorEvent:
    """ "comm .. rank R nranks N .. - Init COMPLETE" in any version: fields are read by name, their order varies."""

    what: str  # Init, Destroy, Abort
    complete: bool
    comm: str  # the pointer: meaningful within its process only
    rank: int
    size: int
    device: int | None
    bus_id: str
    comm_id: str  # "" before 2.16, and for splits from 2.23 on
    parent: str  # the pointer of the communicator that was split
    split: str  # which split of the parent: its count and colour


def event_of(text: str) -> CommunicatorEvent | None:
    """None where a line is not, or not completely, such a message."""
    event = _EVENT.search(text)
    if event is None:
        return None
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(text, 0, event.start()):
        fields.setdefault(match[1].lower(), match[2])
    try:
        rank, size = int(fields["rank"]), int(fields["nranks"])
        device = int(fields["cudadev"]) if "cudadev" in fields else None
    except (KeyError, ValueError):
        return None
    if "comm" not in fields or not 0 <= rank < size <= MOST_RANKS:
        return None
    count = fields.get("splitcount", fields.get("childcount", ""))
    return CommunicatorEvent(
        what=event[1],
        complete=event[2] == "COMPLETE",
        comm=fields["comm"],
        rank=rank,
        size=size,
        device=device,
        bus_id=fields.get("busid", ""),
        comm_id=fields.get("commid", ""),
        parent=fields.get("parent", ""),
        split=f"split {count} color {fields.get('color', '')}" if "parent" in fields else "",
    )


def call_of(text: str, evidence: Source) -> tuple[str, NcclCall] | None:
    """(communicator pointer, call). opCount is printed in hexadecimal."""
    match = _CALL.search(text)
    if match is None:
        return None
    op, count, elements, datatype, _, root, comm = match.groups()
    return comm, NcclCall(op, int(count, 16), int(elements), int(datatype), int(root), evidence)


# The number of ranks, as printed by PyTorch's elastic agent, launchers, Lightning, fairseq, DDP, TCPStore, users.
_WORLD = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bglobal_world_sizes?=\[(\d+)",
        r"\bWORLD_SIZE['\"]?\s*[=:]\s*['\"]?(\d+)",
        r"\bWORLD_SIZE in environ: \d+/(\d+)",  # Swin Transformer, and programs made from it
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
_TORCHRUN = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:launch|run))\b(?!.*nnodes)")
_EACH = re.compile(r"(?:--?nproc[-_]per[-_]node|\bnproc_per_node|--num_gpus)\s*[=: ]\s*(\d+)\b")
# The process that a command starts: flags of scripts and launchers, and variables before the command, with a number
_FLAG = r"(?:(?<=[\s'\"])|^)(?:{})[=\s'\",]{{1,4}}(\d{{1,7}})(?=[\s'\",;)]|$)"
_RANK_VARIABLE = re.compile(_FLAG.format(r"(?:(?:OMPI_COMM_WORLD|PMIX?)_)?RANK"))
_RANK_FLAG = re.compile(_FLAG.format(r"--?(?:(?:global|world)[_-])?rank"))
_LOCAL_FLAG = re.compile(_FLAG.format(r"--?local[_-]rank|LOCAL_RANK"))
_LAUNCHER = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:launch|run)|accelerate launch|deepspeed|horovodrun)\b")
# "--rank" of other programs is that of a matrix (LoRA): these words are of a process among others.
_AMONG_OTHERS = re.compile(r"(?i)world|dist|master|ddp|(?:cuda|gpu)[-_]?id|local[-_]rank|init[-_]method")
_NODE_FLAG = re.compile(_FLAG.format(r"--?(?:node|machine)[_-]rank|NODE_RANK"))
WORLD_ANCHORS = (
    "global_world_size", "WORLD_SIZE", "world_size", "world size", "World size", "MEMBER: ", "distributed init (rank",
    "Total number of processes", "num_processes", "nnodes", "max_nodes", "nproc_per_node", "nproc-per-node", "num_gpus",
)  # fmt: skip


def world_size_of(text: str) -> int | None:
    """The printed world size; not "role_world_sizes" or "group_world_size", which count other things."""
    for pattern in _WORLD:
        if (match := pattern.search(text)) and 0 < int(match[1]) <= MOST_RANKS:
            return int(match[1])
    return None


@dataclass(frozen=True, slots=True)
class Started:
    """The process that a command starts, as far as the command says it."""

    rank: int | None = None
    local_rank: int | None = None


def started_by(command: str) -> Started:
    """The rank of the process that a command starts, ``--rank 3`` or ``RANK=3``, and its number on the host,
    ``--local_rank=1``. The number of a node is the rank where the command starts one process on each."""
    rank, local, node = (flag.search(command) for flag in (_RANK_VARIABLE, _LOCAL_FLAG, _NODE_FLAG))
    if (
        rank is None
        and _AMONG_OTHERS.search(command)
        and not _LAUNCHER.search(command)
        and "lora" not in command.lower()
    ):
        rank = _RANK_FLAG.search(command)
    each = _EACH.search(command)
    if rank is None and node is not None and each is not None and int(each[1]) == 1:
        rank = node
    return Started(int(rank[1]) if rank else None, int(local[1]) if local else None)


# -- Facts gathered while reading: processes, and the communicators of each, by pointer --------------------------------
#
# A process is known by (host, pid, hint). The hint is a rank from a launcher or a file name, since pids repeat between
# containers with one host name. ``read`` decides in the end whether hints can be trusted.


Hint = tuple[str, int]  # its source ("[rankN]", "mpirun", "srun", "file"), the rank
ProcessKey = tuple[str, int | None, Hint | None]


@dataclass(slots=True)
class OneSided:
    """A communicator as one process knows it."""

    event: CommunicatorEvent
    file: int
    line: int  # of its first line
    started: bool = False
    completed: bool = False
    ended: str = ""


@dataclass(slots=True)
class ProcessFacts:
    """All that the lines of one process state."""

    communicators: list[OneSided] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    local_rank: int | None = None
    device: int | None = None
    files: set[int] = field(default_factory=set)
    last_ns: int | None = None


class Facts:
    def __init__(self) -> None:
        self.processes: dict[ProcessKey, ProcessFacts] = {}
        self.worlds: Counter[int] = Counter()  # sizes as printed
        self.nodes: dict[int, tuple[int | None, int | None]] = {}  # by file: nodes, processes on each
        self.by_rank: set[Hint] = set()  # hints on lines that name no process
        self.aliases: dict[str, set[str]] = {}  # by a launcher's name of a host: NCCL's names of it
        self.deduplicated = False
        self.unread_events: Counter[int] = Counter()  # by file
        self.left_out = 0
        self._by_pointer: dict[tuple[ProcessKey, str], list[OneSided]] = {}
        self._same: dict[str, str] = {}  # equal strings of many processes are kept once
        self._communicators = 0

    def process(self, key: ProcessKey) -> ProcessFacts:
        facts = self.processes.get(key)
        if facts is None:
            facts = self.processes[key] = ProcessFacts()
        return facts

    def add_line(self, parsed: ParsedLine, key: ProcessKey, file: int, line: int) -> None:
        """Takes in a line with an identity anchor. Only NCCL's own lines create processes."""
        text = parsed.text
        if parsed.source == "nccl":
            # Where host and pid were cut off, only Init lines can be attributed.
            if parsed.pid is not None or event_of(text) is not None:
                process = self.process(key)
                process.files.add(file)
                if parsed.outer_host and parsed.outer_host != parsed.host:
                    self.aliases.setdefault(parsed.outer_host, set()).add(parsed.host)
                process.local_rank = parsed.local_rank if process.local_rank is None else process.local_rank
                if parsed.time_ns is not None:
                    process.last_ns = max(process.last_ns or 0, parsed.time_ns)
                self._nccl(text, key, process, file, line)
            return
        if (size := world_size_of(text)) is not None:
            self.worlds[size] += 1
        nodes, each = _NODES.search(text), _EACH.search(text)
        if nodes or each:
            before = self.nodes.get(file, (None, None))
            of_command = 1 if _TORCHRUN.search(text) else None  # a command without the number of nodes starts one
            self.nodes[file] = int(nodes[1]) if nodes else before[0] or of_command, int(each[1]) if each else before[1]

    def _nccl(self, text: str, key: ProcessKey, process: ProcessFacts, file: int, line: int) -> None:
        if variable := _ENV.search(text):
            if len(process.env) < HANG_READING.most_variables:  # NCCL adds a dot behind the value
                process.env[self._one(variable[1])] = self._one(variable[2].rstrip().removesuffix("."))
        elif " - " in text or "- Init" in text:
            event = event_of(text)
            if event is not None:
                self._event(event, key, process, file, line)
            elif "Init COMPLETE" in text or "Init START" in text:
                self.unread_events[file] += 1
        elif version := _VERSION.search(text):
            process.version = self._one(version[1])

    def _event(self, event: CommunicatorEvent, key: ProcessKey, process: ProcessFacts, file: int, line: int) -> None:
        known = self._by_pointer.setdefault((key, event.comm), [])
        side = next((side for side in reversed(known) if _same(side, event)), None)
        if side is None:
            if self._communicators >= HANG_READING.most_communicators:
                self.left_out += 1
                return
            self._communicators += 1
            side = OneSided(event, file, line)
            known.append(side)
            process.communicators.append(side)
        elif event.comm_id and not side.event.comm_id:
            side.event = event
        # A communicator that ends was initialised; before 2.18 nothing is printed at the start.
        side.started = True
        if event.what == "Init":
            side.completed |= event.complete
        elif event.complete:
            side.completed, side.ended = True, "destroyed" if event.what == "Destroy" else "aborted"

    def _one(self, text: str) -> str:
        return self._same.setdefault(text, text)


def _same(side: OneSided, event: CommunicatorEvent) -> bool:
    """Whether a line is about this communicator: addresses are reused after a communicator is gone."""
    if side.event.rank != event.rank or side.event.size != event.size:
        return False
    if event.what != "Init":
        return not side.ended
    if side.event.comm_id and event.comm_id and side.event.comm_id != event.comm_id:
        return False
    return not side.ended and not (side.completed and (event.complete is False))
