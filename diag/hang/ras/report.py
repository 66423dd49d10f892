"""One report of NCCL RAS, whatever form it was printed in, and the reader of its JSON form (``ncclras -f json``).

Facts of NCCL's src/ras/client_support.cc and the guide's ras.rst, with the versions that print them:

* Counts are collectives that the host has launched. Sends, receives and collectives of CUDA graphs are not counted.
  2.24 and 2.25 have one count a rank, 2.26 and newer one for each of Broadcast, Reduce, AllGather, ReduceScatter and
  AllReduce.
* JSON since 2.28.7. 2.28.7 and 2.28.9 leave out a comma in each entry of ``missing_ranks``.
* A process that does not answer within 5 s is missing ("unresponsive"), after 60 s without a connection it is "dead".
* ``init_state`` and ``async_error`` are ncclResult_t; 7 is "in progress".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

import msgspec

from diag.decoding import json_decoder
from diag.ended.model import Source
from diag.hang.text.prefixes import ISO, iso_ns

from ..model import MOST_RANKS

Gaps = dict[tuple[str, str], None]  # (path, what could not be read), in order

RUNNING = "RUNNING"
NO_MEMBER = ("NOCOMM", "UNKNOWN")  # the process answered, and is no member (any more, or yet)
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
    8: "Timeout",
}
_IN_PROGRESS = 7
REMOTE_ERROR = _RESULTS[6]


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a communicator, or a process. Fields that are not printed are None or ""."""

    rank: int | None = None  # in the communicator
    host: str = ""
    pid: int | None = None
    gpu: int | None = None  # its CUDA device; of a process the first


@dataclass(frozen=True, slots=True)
class Level:
    """Ranks that share a value. ``members``: those that are named, often none of a large level."""

    value: int | str
    number: int
    members: tuple[Member, ...]
    evidence: Source


@dataclass(frozen=True)
class Comm:
    """A communicator. ``counts``: by collective ("" before 2.26), the most frequent level first; in text only
    collectives whose counts differ. ``vectors``: all counts of each rank, in JSON only."""

    hash: str  # 16 hexadecimal digits
    size: int | None
    evidence: Source
    counts: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    statuses: tuple[Level, ...] = ()
    unreachable: Level | None = None
    dead: frozenset[int] = frozenset()  # of the unreachable, those that RAS has given up
    init_errors: tuple[Level, ...] = ()
    async_errors: tuple[Level, ...] = ()
    vectors: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    members: Mapping[int, Member] = field(default_factory=dict)  # by rank, where known

    @property
    def name(self) -> str:
        return f"communicator 0x{self.hash}"


@dataclass(frozen=True)
class Row:
    """A row of the text's table: communicators of one size, status and kind of error."""

    comms: int
    size: int
    ranks: int
    status: str
    errors: str
    evidence: Source


@dataclass(frozen=True)
class Report:
    """One answer of RAS. ``whole``: it was not cut off."""

    evidence: Source
    version: str = ""
    time_ns: int | None = None
    gpus: int | None = None  # of the job
    json: bool = False
    whole: bool = False
    empty: bool = False  # "No communicator data collected!"
    rows: tuple[Row, ...] = ()
    comms: Mapping[str, Comm] = field(default_factory=dict)  # by hash; of text those with something to say
    absent: Level | None = None  # processes that did not answer
    dead: Level | None = None  # processes that RAS has given up
    timeouts: int = 0


_DOCUMENT = re.compile(rb'\{\s*"nccl_version"\s*:')
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s*\n\s*"status")')


_Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Status(msgspec.Struct):
    init_state: _Number = 0
    async_error: _Number = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Rank(msgspec.Struct):
    rank: _Number
    host: str = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, _Number] = msgspec.field(default_factory=dict)


class _MissingStatus(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(msgspec.Struct):
    rank: _Number
    host: str = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    status: _MissingStatus = msgspec.field(default_factory=_MissingStatus)


class _Comm(msgspec.Struct):
    hash: str
    size: _Number
    secondary_hash: str = ""
    ranks: list[_Rank] = msgspec.field(default_factory=list)
    missing_ranks: list[_MissingRank] = msgspec.field(default_factory=list)


class _Ras(msgspec.Struct):
    timeouts_count: _Number = 0


class _Document(msgspec.Struct):
    communicators: list[_Comm]
    nccl_version: str = ""
    timestamp: str = ""
    ras: _Ras = msgspec.field(default_factory=_Ras)


_DECODER = json_decoder(_Document)
_HASH = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")


def json_reports(path: str, data: bytes, gaps: Gaps) -> list[Report]:
    """The reports of one or several JSON documents."""
    starts = [match.start() for match in _DOCUMENT.finditer(data)] or [max(0, data.find(b"{"))]
    reports = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        piece = _NO_COMMA.sub(rb"\1,\2", data[start : data.rfind(b"}", start, end) + 1])
        if not piece:
            if data:
                gaps[path, "an NCCL RAS report is cut off before its first communicator"] = None
            continue
        try:
            document = _DECODER.decode(piece)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            gaps[path, f"an NCCL RAS report is cut off or damaged: {str(problem)[:120]}"] = None
            continue
        reports.append(_report(path, document, gaps))
    return reports


def _report(path: str, document: _Document, gaps: Gaps) -> Report:
    comms = {}
    gpus = set()
    absent: dict[Member, bool] = {}
    here = Source(path, 0, f"NCCL RAS report of {document.timestamp or 'unknown time'}")
    for communicator in document.communicators:
        name = _HASH.fullmatch(communicator.hash)
        sound = name is not None and 0 < communicator.size <= MOST_RANKS
        ranks = {rank.rank: rank for rank in communicator.ranks if 0 <= rank.rank < communicator.size}
        missing = {
            rank.rank: rank
            for rank in communicator.missing_ranks
            if 0 <= rank.rank < communicator.size and rank.rank not in ranks
        }
        if not sound or len(ranks) < len(communicator.ranks) or len(missing) < len(communicator.missing_ranks):
            gaps[path, "a communicator of an NCCL RAS report is damaged and is skipped"] = None
            continue
        comm = _comm(path, cast(re.Match[str], name)[1].lower().zfill(16), communicator, ranks, missing)
        # Communicators with the same hash differ in the secondary hash.
        comms[comm.hash if comm.hash not in comms else f"{comm.hash} {communicator.secondary_hash}"] = comm
        gpus |= {(member.host, member.pid, member.gpu) for member in comm.members.values()}
        for rank in missing.values():
            if rank.status.unresponsive:
                process = replace(comm.members[rank.rank], rank=None)
                absent[process] = absent.get(process, False) or rank.status.considered_dead
    time = ISO.match(document.timestamp)
    return Report(
        evidence=here,
        version=document.nccl_version[:40],
        time_ns=iso_ns(time) if time else None,
        gpus=len(gpus) or None,
        json=True,
        whole=True,
        empty=not comms,
        comms=comms,
        absent=_processes([process for process, dead in absent.items() if not dead], here, "without an answer"),
        dead=_processes([process for process, dead in absent.items() if dead], here, "considered dead"),
        timeouts=document.ras.timeouts_count,
    )


def _processes(processes: list[Member], here: Source, words: str) -> Level | None:
    if not processes:
        return None
    text = f"{len(processes)} process{'es' if len(processes) > 1 else ''} {words}: " + ", ".join(
        f"process {process.pid} on {process.host}" for process in processes[:4]
    )
    return Level(words, len(processes), tuple(processes), replace(here, text=text))


def _comm(path: str, name: str, communicator: _Comm, ranks: dict[int, _Rank], missing: dict[int, _MissingRank]) -> Comm:
    everybody: dict[int, _Rank | _MissingRank] = {**ranks, **missing}
    members = {
        number: Member(
            number,
            rank.host[:256] if rank.host != "unknown" else "",
            rank.pid if rank.pid >= 0 else None,
            rank.cuda_dev if rank.cuda_dev >= 0 else None,
        )
        for number, rank in sorted(everybody.items())
    }
    where = f"communicator 0x{name} of {communicator.size} ranks"

    def levels(values: Mapping[int, int | str], words: str) -> tuple[Level, ...]:
        """The most frequent value first; if equally frequent, the greater one, as in the text."""
        by_value: dict[int | str, list[int]] = defaultdict(list)
        for number, value in values.items():
            by_value[value].append(number)
        ordered = sorted(by_value.items(), key=lambda item: (len(item[1]), item[0]), reverse=True)
        return tuple(
            Level(
                value,
                len(numbers),
                tuple(members[number] for number in numbers),
                Source(path, 0, f"{where}: {_some(numbers)}: {words} {value}"),
            )
            for value, numbers in ordered
        )

    ops = list(dict.fromkeys(op for rank in ranks.values() for op in rank.collective_counts))
    counts = {}
    for op in ops:
        of_op = levels({number: rank.collective_counts.get(op, 0) for number, rank in ranks.items()}, f"{op} launched")
        counts[op[:40]] = of_op
    statuses = {number: _status(rank.status) for number, rank in ranks.items()}
    statuses |= {number: NO_MEMBER[0] for number, rank in missing.items() if not rank.status.unresponsive}
    gone = [number for number, rank in missing.items() if rank.status.unresponsive]
    text = f"{where}: no data of {_some(gone)}"
    return Comm(
        hash=name,
        size=communicator.size,
        evidence=Source(path, 0, where),
        counts=counts,
        statuses=levels(statuses, "status"),
        unreachable=Level("", len(gone), tuple(members[n] for n in gone), Source(path, 0, text)) if gone else None,
        dead=frozenset(number for number in gone if missing[number].status.considered_dead),
        init_errors=levels(_errors({n: rank.status.init_state for n, rank in ranks.items()}), "initialisation"),
        async_errors=levels(_errors({n: rank.status.async_error for n, rank in ranks.items()}), "asynchronous error"),
        vectors={n: tuple(rank.collective_counts.get(op, 0) for op in ops) for n, rank in ranks.items()},
        members=members,
    )


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers[:8]))}{more}"


def _errors(results: Mapping[int, int]) -> dict[int, int | str]:
    return {
        number: _RESULTS.get(result, "Unexpected error")
        for number, result in results.items()
        if result not in (0, _IN_PROGRESS)
    }


def _status(status: _Status) -> str:
    """The status, in the order in which NCCL checks the flags."""
    if status.abort_flag:
        return "ABORT"
    if status.finalize_called or status.destroy_flag:
        return "FINALIZE"
    return RUNNING if status.init_state == 0 else "INIT"
