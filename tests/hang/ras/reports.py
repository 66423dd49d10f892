"""Writes NCCL RAS reports of a job whose state is known: text as NCCL 2.24, 2.26 and 2.30 print it, and JSON.

What is printed, and who is named, follows rasClientRunInit, rasClientRunComms and rasDumpCommsToJSON.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest, RankRecord

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
RESULTS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 6: "Remote process error"}


@dataclass
class Comm:
    """``ranks``: the job's rank of each of its ranks. Everything else by rank in the communicator."""

    ranks: list[int]
    hash: int = 0x78DB921D1C117B4A
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    usual: dict[str, int] = field(default_factory=lambda: {"AllReduce": 64})
    status: dict[int, str] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)  # asynchronous
    init_errors: dict[int, int] = field(default_factory=dict)

    def count(self, rank: int, op: str) -> int:
        return self.counts.get(rank, {}).get(op, self.usual.get(op, 0))


@dataclass
class Job:
    """``per_host`` ranks on each of 10.0.0.1, 10.0.0.2, ..., pids from 1000; ``silent`` and ``dead``: of the job."""

    comms: list[Comm]
    world: int = 8
    per_host: int = 4
    version: str = "2.30.7"
    silent: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    time: str = "2026-11-10 12:00:00"

    def host(self, rank: int) -> str:
        return f"10.0.0.{rank // self.per_host + 1}"

    def pid(self, rank: int) -> int:
        return 1000 + rank

    def gpu(self, rank: int) -> int:
        return rank % self.per_host

    @property
    def new(self) -> bool:
        return self.version >= "2.26"

    def gone(self, comm: Comm) -> list[int]:
        return [n for n, rank in enumerate(comm.ranks) if rank in self.silent or rank in self.dead]

    def status(self, comm: Comm, n: int) -> str:
        return comm.status.get(n, "RUNNING")

    def there(self, comm: Comm) -> list[int]:
        gone = self.gone(comm)
        return [n for n in range(len(comm.ranks)) if n not in gone and self.status(comm, n) != "NOCOMM"]


def job(comm: Comm | None = None, **fields: object) -> Job:
    """Eight ranks in one communicator."""
    return Job([comm or Comm(list(range(8)))], **fields)  # type: ignore[arg-type]


# Text


def text(state: Job, verbose: bool = True) -> str:
    out = [
        f"NCCL version {state.version} compiled with CUDA 12.8",
        "CUDA runtime version 12080, driver version 13000",
        "",
        "Job summary",
        "===========",
        "",
    ]
    nodes = -(-state.world // state.per_host)
    if state.world % state.per_host == 0:
        out += [
            "  Nodes  Processes         GPUs  Processes     GPUs",
            "(total)   per node  per process    (total)  (total)",
            f"{nodes:7d}  {state.per_host:9d}  {1:11d}  {state.world:9d}  {state.world:7d}",
        ]
    else:
        out += [
            "  Nodes  Processes         GPUs",
            "          per node  per process",
            f"{nodes - 1:7d}  {state.per_host:9d}  {1:11d}",
            f"{1:7d}  {state.world % state.per_host:9d}  {1:11d}",
            "",
            "  Nodes  Processes         GPUs",
            "(total)    (total)      (total)",
            f"{nodes:7d}  {state.world:9d}  {state.world:11d}",
        ]
    out += ["", "Communicators... (0.002s)", "=============", ""]
    errors, warnings = [], []
    if state.comms:
        out += [
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
        ]
    else:
        out.append("No communicator data collected!")
    for group, comm in enumerate(state.comms):
        lines, more = _errors(state, comm, group, verbose), _warnings(state, comm, group, verbose)
        errors += lines
        warnings += more
        kinds = [kind for kind in ("INCOMPLETE", "ERROR") if any(f") {kind}" in line for line in lines)]
        kinds += ["MISMATCH"] * bool(more)
        statuses = {state.status(comm, n) for n in state.there(comm)}
        highest = max(statuses, key=["NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT"].index)
        out.append(
            f"{group:5d}  {1:8d}  {nodes:8d}  {'3-4' if lines else '4':>8s}  {len(comm.ranks):8d}"
            f"  {len(state.there(comm)):8d}  {highest:>8s}  {','.join(kinds) or 'OK':>6s}"
        )
    out += ["", "Errors", "======", ""]
    if state.silent:
        one = len(state.silent) == 1
        out += ["INCOMPLETE", f"  Missing communicator data from {len(state.silent)} job process{'' if one else 'es'}"]
        out += [_process(state, rank) for rank in state.silent if one or verbose or len(state.silent) <= 10] + [""]
    if state.dead:
        words = "process is" if len(state.dead) == 1 else "processes are"
        out += ["DEAD", f"  {len(state.dead)} job {words} considered dead (unreachable via the RAS network)"]
        out += [_process(state, rank) for rank in state.dead] + [""]
    out += [*errors, "Warnings", "========", ""]
    if state.silent:
        out += ["TIMEOUT", "  Encountered 2 communication timeouts while gathering communicator data", ""]
    return "\n".join([*out, *warnings]) + "\n"


def _process(state: Job, rank: int) -> str:
    return f"  Process {state.pid(rank)} on node {state.host(rank)} managing GPU {state.gpu(rank)}"


def _where(state: Job, comm: Comm, n: int) -> str:
    rank = comm.ranks[n]
    return f"GPU {state.gpu(rank)} managed by process {state.pid(rank)} on node {state.host(rank)}"


def _is_outlier(count: int, verbose: bool, total: int | None = None) -> bool:
    if count == 1:
        return True
    if verbose:
        return total is None or count < total * 0.5
    return count <= 10 and (total is None or count <= total * 0.25)


def _errors(state: Job, comm: Comm, group: int, verbose: bool) -> list[str]:
    out = []
    gone = state.gone(comm)
    if gone:
        out += [f"#{group}-0 ({comm.hash:016x}) INCOMPLETE"]
        out += [f"  Missing communicator data from {len(gone)} rank{'s' if len(gone) > 1 else ''}"]
        if state.new:
            out += [f"  Rank {n} -- {_where(state, comm, n)}" for n in gone if _is_outlier(len(gone), verbose)]
        elif _is_outlier(len(gone), verbose):
            out += [f"  The missing rank{'s' if len(gone) > 1 else ''}: {','.join(map(str, gone))}"]
        out.append("")
    found = []
    for words, results in (("Initialization", comm.init_errors), ("Asynchronous", comm.errors)):
        if not results:
            continue
        s = "s" if len(results) > 1 else ""
        found.append(f"  {words} error{s} on {len(results)} rank{s}")
        for result, number in Counter(results.values()).most_common():
            ranks = [n for n, of_rank in sorted(results.items()) if of_rank == result]
            if number > 1:
                found.append(f"  {number} ranks reported {RESULTS[result]}")
                found += [f"  Rank {n} -- {_where(state, comm, n)}" for n in ranks if _is_outlier(number, verbose)]
            else:
                found.append(f"  Rank {ranks[0]} reported {RESULTS[result]} -- {_where(state, comm, ranks[0])}")
    return out + ([f"#{group}-0 ({comm.hash:016x}) ERROR", *found, ""] if found else [])


def _warnings(state: Job, comm: Comm, group: int, verbose: bool) -> list[str]:
    out = []
    there = state.there(comm)
    size = len(comm.ranks)
    statuses = {n: state.status(comm, n) for n in range(size) if n not in state.gone(comm)}
    if len(set(statuses.values())) > 1:
        out.append("  Communicator ranks have different status")
        for status, number in Counter(statuses.values()).most_common():
            ranks = [n for n, of_rank in statuses.items() if of_rank == status]
            shown = status if state.new else status.replace("NOCOMM", "UNKNOWN")
            if number > 1:
                out.append(f"  {number} ranks have status {shown}")
                if _is_outlier(number, verbose, size):
                    if shown == "UNKNOWN":
                        out.append(f"  The unknown ranks: {','.join(map(str, ranks))}")
                    else:
                        out += [f"  Rank {n} -- {_where(state, comm, n)}" for n in ranks]
            elif shown == "UNKNOWN":
                out.append(f"  Rank {ranks[0]} has status UNKNOWN")
            else:
                out.append(f"  Rank {ranks[0]} has status {shown} -- {_where(state, comm, ranks[0])}")
    for op in OPS if state.new else ("collective",):
        counts = {n: comm.count(n, op) if state.new else sum(comm.count(n, one) for one in OPS) for n in there}
        if len(set(counts.values())) < 2:
            continue
        out.append(f"  Communicator ranks have different {op} operation counts")
        levels = sorted(Counter(counts.values()).items(), key=lambda item: (item[1], item[0]), reverse=True)
        for count, number in levels:
            ranks = [n for n, of_rank in counts.items() if of_rank == count]
            launched = f"launched up to operation {count}" if count or not state.new else "not launched any operations"
            if number > 1:
                out.append(f"  {number} ranks have {launched}")
                if _is_outlier(number, verbose, size):
                    out += [f"  Rank {n} -- {_where(state, comm, n)}" for n in ranks]
            else:
                out.append(f"  Rank {ranks[0]} has {launched} -- {_where(state, comm, ranks[0])}")
        out.append("")
    return [f"#{group}-0 ({comm.hash:016x}) MISMATCH", *out] if out else []


# JSON


def as_json(state: Job) -> str:
    comms = []
    for comm in state.comms:
        there = set(state.there(comm))
        ranks, missing = [], []
        for n, rank in enumerate(comm.ranks):
            who = {
                "rank": n,
                "host": state.host(rank),
                "pid": state.pid(rank),
                "cuda_dev": state.gpu(rank),
                "nvml_dev": state.gpu(rank),
            }
            if n not in there:
                gone = rank in state.silent or rank in state.dead
                missing.append({**who, "status": {"unresponsive": gone, "considered_dead": rank in state.dead}})
                continue
            status = state.status(comm, n)
            flags = {
                "init_state": comm.init_errors.get(n, 7 if status == "INIT" else 0),
                "async_error": comm.errors.get(n, 0),
                "finalize_called": status == "FINALIZE",
                "destroy_flag": False,
                "abort_flag": status == "ABORT",
            }
            ranks.append({**who, "status": flags, "collective_counts": {op: comm.count(n, op) for op in OPS}})
        comms.append(
            {
                "hash": f"0x{comm.hash:x}",
                "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
                "size": len(comm.ranks),
                "ranks_count": len(ranks),
                "missing_ranks_count": len(missing),
                "ranks": ranks,
                "missing_ranks": missing,
            }
        )
    document = {
        "nccl_version": state.version,
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 13000,
        "timestamp": state.time,
        "communicators_count": len(comms),
        "communicators": comms,
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 2 * bool(state.silent)},
    }
    printed = json.dumps(document, indent=2) + "\n"
    if state.version in ("2.28.7", "2.28.9"):  # which leave out a comma
        head, _, tail = printed.partition('"missing_ranks": [')
        while tail:
            damaged, mark, rest = tail.partition('"missing_ranks": [')
            entries, end, others = damaged.partition("\n      ]")
            for gpu in range(state.per_host):
                entries = entries.replace(f'"nvml_dev": {gpu},\n', f'"nvml_dev": {gpu}\n')
            head += '"missing_ranks": [' + entries + end + others
            tail = rest if mark else ""
        printed = head
    return printed


# The run directory


def write_run(state: Job, root: Path, host: str = "", device: str = "NVIDIA H100", **of_manifest: object) -> RunLayout:
    """The job's ranks as their collectors have recorded them, while it trains. ``host``: of all of them; "": this
    one."""
    layout = RunLayout(root)
    root.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(run_id="test", world_size=state.world, backend="nccl", strategy="ddp")
    layout.manifest.write_text(json.dumps({**asdict(manifest), "exit_code": None, **of_manifest}))
    for rank in range(state.world):
        files = layout.rank(rank)
        files.folder.mkdir(parents=True, exist_ok=True)
        at, gpu = host or socket.gethostname(), state.gpu(rank)
        identity = RankRecord(rank, gpu, state.world, at, state.pid(rank), "boot", 0, 0, device, gpu)
        files.identity.write_text(json.dumps(asdict(identity)))
    return layout
