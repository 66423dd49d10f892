"""Ranks that call collectives on streams until one of them stops, and the recorders that they leave.

Truth by construction: a rank calls its program's entries in order (its CPU runs ahead of its device), a collective ends
when every member's device has come to it, a send and its receive when both have. A culprit stops calling, or its device
stops, or it calls something else. Whatever then stands still is found by running until nothing moves."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.hang.flight.torch_pickle import dumps as torch_dumps

BASE_NS = 1_758_610_505_000_000_000


@dataclass(frozen=True)
class Call:
    """``blocks``: later calls' kernels start after it; ``sync``: the CPU waits for it. ``batch``: sends and receives
    that are launched as one, as (send or recv, peer)."""

    group: str
    op: str
    numel: int = 1024
    peer: int = -1
    blocks: bool = True
    sync: bool = False
    batch: tuple[tuple[str, int], ...] = ()
    dtype: str = "BFloat16"


@dataclass
class Job:
    groups: dict[str, tuple[str, tuple[int, ...]]]  # name -> (desc, ranks)
    programs: dict[int, list[Call]]
    backend: str = "nccl"


@dataclass
class Fault:
    """``kind``: python, device, killed, empty (a dump of 0 bytes), skip, extra, shape, op."""

    kind: str
    at: int


@dataclass
class State:
    """Where everything stands in the end."""

    called: dict[int, int]
    done: dict[int, set[int]]
    seen_done: dict[int, set[int]]  # what the rank's own recorder has learnt
    created: dict[int, list[int]]
    job: Job
    faults: dict[int, Fault] = field(default_factory=dict)

    @property
    def hangs(self) -> bool:
        return any(
            len(self.done[r]) < self.called[r]
            for r in self.called
            if r not in self.faults or self.faults[r].kind == "device"
        )


def run(job: Job, faults: dict[int, Fault], rng: random.Random, run_ahead: int = 200) -> State:
    programs = {rank: _faulty(program, faults.get(rank), job) for rank, program in job.programs.items()}
    job = Job(job.groups, programs, job.backend)
    ends = {
        rank: faults[rank].at if rank in faults and faults[rank].kind in ("python", "killed", "empty") else len(program)
        for rank, program in programs.items()
    }
    keys, pending_calls = _meetings(programs, job)
    called = dict.fromkeys(programs, 0)
    done: dict[int, set[int]] = {rank: set() for rank in programs}
    created: dict[int, list[int]] = {rank: [] for rank in programs}
    low = dict.fromkeys(programs, 0)  # below it everything is done
    skew = {rank: rng.randrange(300_000) for rank in programs}
    arrived: dict[object, int] = defaultdict(int)
    has_arrived: set[tuple[int, int]] = set()
    turn, moved = 0, True
    while moved:
        moved = False
        turn += 1
        for rank, program in programs.items():
            while (
                called[rank] < ends[rank]
                and called[rank] - low[rank] < run_ahead
                and _free(program, called[rank], low[rank])
            ):
                created[rank].append(BASE_NS + turn * 1_000_000 + skew[rank] + called[rank])
                called[rank] += 1
                moved = True
            busy: set[str] = set()
            for index in range(low[rank], called[rank]):
                if index in done[rank]:
                    continue
                call = program[index]
                stopped = rank in faults and faults[rank].kind == "device" and index >= faults[rank].at
                streams = _streams(call)
                if not stopped and not busy & streams and "*" not in busy and (rank, index) not in has_arrived:
                    has_arrived.add((rank, index))
                    for key in keys[rank][index]:
                        arrived[key] += 1
                    moved = True
                busy |= streams
                if call.blocks or stopped:
                    busy.add("*")
            for index in range(low[rank], called[rank]):
                if index in done[rank] or (rank, index) not in has_arrived:
                    continue
                if all(arrived[key] == pending_calls[key] for key in keys[rank][index]):
                    done[rank].add(index)
                    moved = True
            while low[rank] in done[rank]:
                low[rank] += 1
    seen = {rank: set(found) for rank, found in done.items()}
    for rank, fault in faults.items():
        if fault.kind == "device":  # its watchdog stops a little before its device is missed
            late = max(0, fault.at - rng.randrange(1, 6))
            seen[rank] = {index for index in seen[rank] if index < late}
    return State(called, done, seen, created, job, faults)


def _free(program: list[Call], index: int, low: int) -> bool:
    """Whether the CPU may make the next call: nothing it waits for is unfinished."""
    return not any(program[i].sync for i in range(low, index))


def _streams(call: Call) -> set[str]:
    if call.batch:
        return {f"{call.group} {op} {peer}" for op, peer in call.batch}
    return {f"{call.group} {call.op} {call.peer}" if call.peer >= 0 else call.group}


def _faulty(program: list[Call], fault: Fault | None, job: Job) -> list[Call]:
    if fault is None or fault.kind not in ("skip", "extra", "shape", "op"):
        return program
    call = program[fault.at]
    changed = {
        "skip": [],
        "extra": [Call(call.group, "broadcast", 7), call],
        "shape": [Call(call.group, call.op, call.numel + 8, blocks=call.blocks, sync=call.sync)],
        "op": [Call(call.group, "broadcast" if call.op != "broadcast" else "all_reduce", call.numel, sync=call.sync)],
    }[fault.kind]
    return [*program[: fault.at], *changed, *program[fault.at + 1 :]]


def _meetings(programs: dict[int, list[Call]], job: Job) -> tuple[dict[int, list[list[object]]], dict[object, int]]:
    """What each call takes part in, and how many must come. A call that differs from the others' is met by nobody."""
    keys: dict[int, list[list[object]]] = {}
    expected: dict[object, int] = {}
    for rank, program in programs.items():
        counts: dict[object, int] = defaultdict(int)
        keys[rank] = []
        for call in program:
            own: list[object] = []
            for op, peer in call.batch or (((call.op, call.peer),) if call.peer >= 0 else ()):
                pair = (call.group, rank, peer) if op == "send" else (call.group, peer, rank)
                counts[op, pair] += 1
                own.append(("pair", pair, counts[op, pair]))
                expected[own[-1]] = 2
            if not own:
                counts[call.group] += 1
                kind = (call.op, call.numel, call.dtype)
                own.append(("all", call.group, counts[call.group], kind))
                expected[own[-1]] = len(job.groups[call.group][1])
            keys[rank].append(own)
    return keys, expected


# What the recorders leave.


def frames_of(call: Call, where: str) -> list[dict[str, object]]:
    return [
        {"name": call.op, "filename": "torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": where, "filename": "train.py", "line": 17},
        {"name": "main", "filename": "train.py", "line": 99},
    ]


def dump_of(state: State, rank: int, ring: int, only_active: bool = False) -> dict[str, object]:
    """The recorder of one rank, as it would be pickled."""
    job = state.job
    entries: list[dict[str, object]] = []
    sequence: dict[str, int] = defaultdict(int)
    pairs: dict[str, int] = defaultdict(int)
    ops: dict[str, int] = defaultdict(int)
    mine = sorted((name for name, (_, ranks) in job.groups.items() if rank in ranks), key=int)
    ids = {name: index * 2 for index, name in enumerate(mine)}
    gloo = job.backend == "gloo"
    stacks: dict[str, list[dict[str, object]]] = {}
    status = {name: [0, 0] for name in mine}
    record = 0
    for index in range(state.called[rank]):
        call = state.job.programs[rank][index]
        if gloo and (call.batch or call.peer >= 0):
            continue
        done = index in state.seen_done[rank]
        is_pair = bool(call.batch) or call.peer >= 0
        counter = pairs if is_pair else sequence
        counter[call.group] += 1
        desc, ranks = job.groups[call.group]
        parts = call.batch or (((call.op, call.peer),) if call.peer >= 0 else ((call.op, -1),))
        spelled = []
        for op, peer in parts:
            name = f"{job.backend}:{op}"
            if peer >= 0:
                name += f" {ranks.index(rank)}{'->' if op == 'send' else '<-'}{ranks.index(peer)}"
            spelled.append((name, done if not call.batch else False))
        if call.batch:
            spelled.append((f"{job.backend}:coalesced", done))
        size = len(ranks)
        sizes = [[call.numel]]
        out = [[call.numel * size]] if "all_gather" in call.op else sizes
        if "reduce_scatter" in call.op:
            sizes, out = [[call.numel * size]], [[call.numel]]
        for name, finished in spelled:
            ops[call.group] += 1
            entry: dict[str, object] = {
                "frames": stacks.setdefault(call.op, frames_of(call, f"step_{call.op}")),
                "record_id": record,
                "pg_id": ids[call.group],
                "process_group": (call.group, desc),
                "thread_name": "python3",
                "thread_id": "23456",
                "collective_seq_id": sequence[call.group],
                "p2p_seq_id": pairs[call.group],
                "op_id": ops[call.group],
                "profiling_name": name,
                "time_created_ns": state.created[rank][index],
                "input_sizes": sizes,
                "input_dtypes": [call.dtype],
                "output_sizes": out,
                "output_dtypes": [call.dtype],
                "state": "completed" if finished and not gloo else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": state.created[rank][index] + 5 if finished and not gloo else None,
                "retired": finished,
                "timeout_ms": 600000,
                "is_p2p": is_pair,
            }
            record += 1
            if not (only_active and finished):
                entries.append(entry)
        status[call.group][0] = counter[call.group]
        if done:
            status[call.group][1] = counter[call.group]
    config = {n: {"name": n, "desc": job.groups[n][0], "ranks": str(list(job.groups[n][1]))} for n in mine}
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}} if gloo else config,
        "comm_lib_version": "2.27.3",
        "pg_status": {
            str(ids[n]): {
                "last_enqueued_collective": called,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for n, (called, completed) in status.items()
        },
        "entries": entries[-ring:],
    }


def write(folder: Path, state: State, rng: random.Random, ring: int = 2000, only_active: bool = False) -> None:
    """The files of all ranks that leave one, in one of the formats at random."""
    style = rng.choice(["torch", "torch", "json", "gzip"])
    for rank in state.called:
        kind = state.faults[rank].kind if rank in state.faults else ""
        if kind == "killed":
            continue
        path = folder / f"comm_lib_trace_rank_{rank}"
        content = dump_of(state, rank, ring, only_active)
        if kind == "empty":
            path.write_bytes(b"")
        elif style == "torch":
            path.write_bytes(torch_dumps(content))
        elif style == "gzip":
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(torch_dumps(content)))
        else:
            path.write_text(json.dumps(as_json(content)))


def as_json(content: dict[str, object]) -> dict[str, object]:
    """As ``_dump_fr_trace_json`` writes it: no frames, status as text, 0 for what is not known, no empty list of
    entries."""
    entries = [
        {key: 0 if value is None else value for key, value in entry.items() if key != "frames"}
        for entry in content["entries"]  # type: ignore[attr-defined]
    ]
    status = {k: {n: str(v) for n, v in s.items()} for k, s in content["pg_status"].items()}  # type: ignore[attr-defined]
    return {**content, "pg_status": status, **({"entries": entries} if entries else {"entries": []})}
