"""Inputs of every kind that ``diag`` reads, each with one dimension that grows: lines, ranks, groups, members, depth,
names, numbers. ``tests/test_growth.py`` and ``tests/bench/growth.py`` hold the cost of reading them against their size.

A builder fills an empty folder with an input of size ``n``; the bytes on disk grow no faster than ``n``.
"""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import gzip
import json
import pickle
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hang.ras import reports
from tests.inspector.files import collective, header, lines, metadata
from tests.many_ranks import Job, write_summaries

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp-healthy"
SUMMARY = ("analyze", "IN", "--json", "--summary")
ANALYZE, TRIAGE, PLAN, EXPORT = ("analyze", "IN", "--json"), ("triage", "IN", "--json"), ("plan", "IN"), (
    "export", "IN", "--format", "prometheus",
)  # fmt: skip

Builder = Callable[[Path, int], None]


@dataclass(frozen=True)
class Growing:
    """``size``: an ``n`` whose reading takes a measurable time. ``command``: IN is the folder, or the only file in it
    where that is what a user names."""

    reader: str
    dimension: str
    build: Builder
    size: int
    command: Sequence[str] = ANALYZE

    @property
    def name(self) -> str:
        return f"{self.reader}: {self.dimension}"

    def arguments(self, folder: Path) -> list[str]:
        files = list(folder.iterdir())
        given = files[0] if self.command == PLAN else folder
        return [str(given) if word == "IN" else word for word in self.command]


INPUTS: list[Growing] = []


def grows(reader: str, dimension: str, size: int, command: Sequence[str] = ANALYZE) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        INPUTS.append(Growing(reader, dimension, build, size, command))
        return build

    return register


# -- traces ------------------------------------------------------------------------------------------------------------


def trace(
    events: Iterable[dict[str, Any]], rank: int = 0, ranks: int = 1, groups: Sequence[Any] = (), **more: Any
) -> bytes:
    document = {
        "schemaVersion": 1, **more,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": list(groups)},
        "traceEvents": list(events),
    }  # fmt: skip
    return json.dumps(document).encode()


def mark(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
    }


def op(ts: float, dur: float = 1.0, name: str = "aten::mm", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(
    n: int, at: float, name: str = "gemm", stream: int = 7, dur: float = 5.0, **args: Any
) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 1.0, "args": {"correlation": n}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at + 2, "dur": dur, "args": {"device": 0, "stream": stream, "correlation": n, **args}},
    ]  # fmt: skip


def all_reduce(
    n: int, at: float, ranks: Sequence[int] | str = (0, 1), group: str = "0", **args: Any
) -> list[dict[str, Any]]:
    named = {
        "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", "Process Group Name": group,
        "Process Group Ranks": ranks if isinstance(ranks, str) else str(list(ranks)), "Group size": 2, "Seq": n, **args,
    }  # fmt: skip
    return launched(n, at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, **named)


def step_of(events: list[dict[str, Any]], steps: int = 4) -> list[dict[str, Any]]:
    """The events with marks of steps that cover them."""
    end = max((event["ts"] + event["dur"] for event in events), default=100.0) + 10
    return [mark(n, n * end / steps, end / steps - 1) for n in range(steps)] + events


def put(folder: Path, events: list[dict[str, Any]], name: str = "rank0.json.gz", **more: Any) -> None:
    data = trace(events, **more)
    (folder / name).write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)


@grows("trace", "CPU operators", 20_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([op(i * 2.0) for i in range(n)]))


@grows("trace", "kernels", 10_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([event for i in range(n) for event in launched(i + 1, i * 10.0)]))


@grows("trace", "overlapping kernels", 10_000)
def _(folder: Path, n: int) -> None:
    events = [event for i in range(n) for event in launched(i + 1, i * 10.0, dur=1e6, stream=7 + i % 3)]
    put(folder, step_of(events))


@grows("trace", "collectives of two ranks", 3_000)
def _(folder: Path, n: int) -> None:
    for rank in range(2):
        put(
            folder,
            step_of([e for i in range(n) for e in all_reduce(i + 1, i * 10.0)]),
            f"rank{rank}.json.gz",
            rank=rank,
            ranks=2,
        )


@grows("trace", "marks of steps", 2_000)
def _(folder: Path, n: int) -> None:
    put(folder, [*(mark(i, i * 10.0, 9.0) for i in range(n)), op(5.0)])


@grows("trace", "marks of steps on two ranks", 1_000)
def _(folder: Path, n: int) -> None:
    for rank in range(2):
        put(folder, [*(mark(i, i * 10.0, 9.0) for i in range(n)), op(5.0)], f"rank{rank}.json.gz", rank=rank, ranks=2)


@grows("trace", "marks of one step, nested", 5_000)
def _(folder: Path, n: int) -> None:
    put(folder, [mark(1, i, 4.0 * n - 2 * i) for i in range(n)] + [op(5.0)])


@grows("trace", "names of operators", 10_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([op(i * 2.0, name=f"op{i}") for i in range(n)]))


@grows("trace", "names of kernels", 5_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([event for i in range(n) for event in launched(i + 1, i * 10.0, name=f"kernel{i}")]))


@grows("trace", "depth of nested operators", 10_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([op(i, 4.0 * n - 2 * i) for i in range(n)]))


@grows("trace", "depth of nested modules", 3_000)
def _(folder: Path, n: int) -> None:
    event = {"ph": "X", "cat": "python_function", "pid": 1, "tid": 1}
    calls = [
        {
            **event,
            "name": f"nn.Module: Block_{i}",
            "ts": float(i),
            "dur": 4.0 * n - 2 * i,
            "args": {"Python id": i + 1, "Python parent id": i, "Python module id": i},
        }
        for i in range(n)
    ]
    put(folder, step_of([*calls, *(e for i in range(50) for e in launched(i + 1, n + i * 2.0))]))


@grows("trace", "threads", 5_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([op(i * 2.0, 100.0, tid=i) for i in range(n)]))


@grows("trace", "streams", 2_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([event for i in range(n) for event in launched(i + 1, i * 10.0, stream=i)]))


@grows("trace", "process groups", 1_000)
def _(folder: Path, n: int) -> None:
    groups = [{"pg_name": str(i), "pg_desc": f"g{i}", "pg_size": 2, "ranks": [0, 1]} for i in range(n)]
    put(
        folder,
        step_of([e for i in range(n) for e in all_reduce(i + 1, i * 10.0, group=str(i))]),
        groups=groups,
        ranks=2,
    )


@grows("trace", "ranks of a process group", 20_000)
def _(folder: Path, n: int) -> None:
    group = {"pg_name": "0", "pg_desc": "g", "pg_size": n, "ranks": list(range(n))}
    events = [e for i in range(20) for e in all_reduce(i + 1, i * 10.0, str(list(range(n // 20))))]
    put(folder, step_of(events), groups=[group], ranks=n)


@grows("trace", "ranges of ranks named", 2_000)
def _(folder: Path, n: int) -> None:
    put(
        folder,
        step_of([e for i in range(n) for e in all_reduce(i + 1, i * 10.0, "[0, 1, ..., 1048575]", group=str(i))]),
        ranks=1 << 20,
    )


@grows("trace", "flows", 10_000)
def _(folder: Path, n: int) -> None:
    flow = {"cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1}
    put(
        folder,
        step_of([op(i * 2.0) for i in range(n)])
        + [{**flow, "ph": ph, "id": i, "ts": i * 2.0, "dur": 0} for i in range(n) for ph in "sf"],
    )


@grows("trace", "one correlation", 5_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([event for i in range(n) for event in launched(1, i * 10.0)]))


@grows("trace", "length of a name", 1_000_000)
def _(folder: Path, n: int) -> None:
    put(folder, step_of([op(1.0, name="x" * n)]))


@grows("trace", "depth of arguments", 20_000)
def _(folder: Path, n: int) -> None:
    text = trace(step_of([op(1.0, deep="HERE")])).replace(b'"HERE"', b"[" * n + b"]" * n)
    (folder / "rank0.json").write_bytes(text)


@grows("trace", "digits of a number", 200_000)
def _(folder: Path, n: int) -> None:
    (folder / "rank0.json").write_bytes(trace(step_of([op(1.0, big="HERE")])).replace(b'"HERE"', b"9" * n))


@grows("trace", "digits of a time", 200_000)
def _(folder: Path, n: int) -> None:
    (folder / "rank0.json").write_bytes(trace(step_of([op(1.0)])).replace(b'"ts": 1.0', b'"ts": ' + b"9" * n))


@grows("trace", "operators, indented", 10_000)
def _(folder: Path, n: int) -> None:
    document = json.loads(trace(step_of([op(i * 2.0) for i in range(n)])))
    (folder / "rank0.json").write_text(json.dumps(document, indent=4))


@grows("trace", "copies and allocations", 5_000)
def _(folder: Path, n: int) -> None:
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "dur": 2.0}
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "s": "t", "dur": 0}
    events = [
        {**copy, "ts": i * 10.0, "args": {"device": 0, "stream": 7, "correlation": i, "bytes": 10}} for i in range(n)
    ]
    events += [
        {
            **memory,
            "ts": i * 10.0,
            "args": {"Addr": i, "Bytes": 10 - 20 * (i % 2), "Device Type": 1, "Device Id": 0, "Total Allocated": 10},
        }
        for i in range(n)
    ]
    put(folder, step_of(events))


@grows("trace", "synchronizations", 5_000)
def _(folder: Path, n: int) -> None:
    wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 1, "dur": 5.0}
    put(
        folder,
        step_of(
            [
                e
                for i in range(n)
                for e in [*launched(i + 1, i * 10.0), {**wait, "ts": i * 10.0 + 3, "args": {"correlation": n + i + 1}}]
            ]
        ),
    )


@grows("trace", "files", 20)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        put(
            folder,
            step_of([e for i in range(20) for e in all_reduce(i + 1, i * 10.0, range(n))]),
            f"rank{rank}.json.gz",
            rank=rank,
            ranks=n,
        )


@grows("trace", "files of one rank", 20)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        put(folder, step_of([e for i in range(20) for e in all_reduce(i + 1, at * 1e6 + i * 10.0)]), f"a{at}.json.gz")


@grows("trace", "empty files", 300)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        (folder / f"{at}.json").write_bytes(b"{}")


@grows("trace", "gzip members", 20_000)
def _(folder: Path, n: int) -> None:
    empty = gzip.compress(b"", mtime=0)
    (folder / "rank0.json.gz").write_bytes(empty * n + gzip.compress(trace(step_of([op(1.0)]))))


@grows("trace", "name in a gzip header", 600_000)
def _(folder: Path, n: int) -> None:
    packed = gzip.compress(trace(step_of([op(1.0)])), mtime=0)
    (folder / "rank0.json.gz").write_bytes(packed[:3] + b"\x08" + packed[4:10] + b"a" * n + b"\0" + packed[10:])
    put(folder, step_of([op(1.0)]), "rank1.json.gz", rank=1)


# -- archives ----------------------------------------------------------------------------------------------------------


def archive(folder: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], name: str = "all.tar.gz") -> None:
    with gzip.open(folder / name, "wb", 1) as file:
        for info, data in members:
            info.size = len(data)
            file.write(info.tobuf(format=tarfile.GNU_FORMAT) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
        file.write(bytes(1024))


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


def pax(keys: int) -> bytes:
    def line(key: bytes) -> bytes:
        return b"%d %s" % (len(key) + 3, key)

    return b"".join(line(b"%x=v\n" % key) for key in range(0x1000000, 0x1000000 + keys))


@grows("archive", "empty members", 2_000)
def _(folder: Path, n: int) -> None:
    archive(folder, ((member(f"{i}.txt"), b"") for i in range(n)))


@grows("archive", "members that are no traces", 1_000)
def _(folder: Path, n: int) -> None:
    archive(folder, ((member(f"{i}.json"), b"{}") for i in range(n)))


@grows("archive", "traces", 20)
def _(folder: Path, n: int) -> None:
    archive(
        folder,
        (
            (member(f"rank{i}.json"), trace(step_of([op(j * 2.0) for j in range(50)]), rank=i, ranks=n))
            for i in range(n)
        ),
    )


@grows("archive", "archives", 50)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        archive(folder, [(member("rank0.json"), trace(step_of([op(1.0)]), rank=at, ranks=n))], f"{at}.tar.gz")


@grows("archive", "members after a global header", 250)
def _(folder: Path, n: int) -> None:
    archive(folder, [(member("x", tarfile.XGLTYPE), pax(5_000)), *((member(f"{i}.txt"), b"") for i in range(n))])


@grows("archive", "headers of members", 100)
def _(folder: Path, n: int) -> None:
    archive(
        folder,
        [
            (member("x", kind), data)
            for i in range(n)
            for kind, data in ((tarfile.XHDTYPE, pax(2_000)), (tarfile.REGTYPE, b""))
        ],
    )


@grows("archive", "global headers", 300)
def _(folder: Path, n: int) -> None:
    archive(folder, [(member("x", tarfile.XGLTYPE), pax(20)) for _ in range(n)])


@grows("archive", "long names", 500)
def _(folder: Path, n: int) -> None:
    archive(
        folder,
        [
            (member("x", kind), data)
            for i in range(n)
            for kind, data in ((tarfile.GNUTYPE_LONGNAME, b"d/" * 1_000 + b"%d.json" % i), (tarfile.REGTYPE, b"{}"))
        ],
    )


@grows("archive", "gzip members", 20_000)
def _(folder: Path, n: int) -> None:
    archive(folder, [(member("rank0.json"), trace(step_of([op(1.0)])))])
    path = folder / "all.tar.gz"
    path.write_bytes(gzip.compress(b"", mtime=0) * n + path.read_bytes())


# -- Flight Recorder ---------------------------------------------------------------------------------------------------


def entry(number: int, group: str = "0", state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": [group, "g"], "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_758_610_505_037_133_755 + number, "input_sizes": [[1000]],
        "input_dtypes": ["Float"], "output_sizes": [[1000]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": 0, "time_discovered_completed_ns": 1 if state == "completed" else None,
        "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(folder: Path, rank: int, entries: Sequence[Any], groups: dict[str, Any], form: str = "pickle") -> None:
    config = {name: {"name": name, "desc": f"g{name}", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    status = {
        name: {"last_enqueued_collective": 5, "last_started_collective": 5, "last_completed_collective": 4}
        for name in groups
    }
    document = {
        "version": "2.10",
        "pg_config": config,
        "nccl_version": "2.27.3",
        "pg_status": status,
        "entries": list(entries),
    }
    if form == "pickle":
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
    else:
        (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(document))


for _form in ("pickle", "json"):

    @grows(f"dump ({_form})", "entries", 1_000, TRIAGE)
    def _(folder: Path, n: int, form: str = _form) -> None:
        for rank in range(2):
            dump(
                folder,
                rank,
                [entry(i, state="scheduled" if i == n - 1 else "completed") for i in range(n - rank)],
                {"0": range(2)},
                form,
            )

    @grows(f"dump ({_form})", "groups", 500, TRIAGE)
    def _(folder: Path, n: int, form: str = _form) -> None:
        for rank in range(2):
            entries = [entry(i, str(i), "scheduled" if rank else "completed") for i in range(n)]
            dump(folder, rank, entries, {str(i): range(2) for i in range(n)}, form)

    @grows(f"dump ({_form})", "ranks of a group", 20_000, TRIAGE)
    def _(folder: Path, n: int, form: str = _form) -> None:
        for rank in range(2):
            dump(folder, rank, [entry(i, state="scheduled") for i in range(5 - rank)], {"0": range(n)}, form)

    @grows(f"dump ({_form})", "sizes of an entry", 10_000, TRIAGE)
    def _(folder: Path, n: int, form: str = _form) -> None:
        for rank in range(2):
            dump(
                folder, rank, [entry(1, state="scheduled", input_sizes=[[i] for i in range(n)])], {"0": range(2)}, form
            )


@grows("dump (pickle)", "frames", 5_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    frames = [{"name": f"f{i}", "filename": "train.py", "line": i} for i in range(n)]
    for rank in range(2):
        dump(folder, rank, [entry(1, state="scheduled", frames=frames)], {"0": range(2)})


@grows("dump (pickle)", "ranks", 50, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        dump(folder, rank, [entry(i, state="scheduled") for i in range(10 - (rank == 3))], {"0": [0, 1, 2, 3, n - 1]})


@grows("dump (pickle)", "dumps of one rank", 50, TRIAGE)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        (folder / f"set{at}").mkdir()
        dump(folder / f"set{at}", 0, [entry(at * 100 + i, state="scheduled") for i in range(10)], {"0": range(2)})


@grows("dump (pickle)", "point-to-point calls of rings", 100, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        entries = [
            entry(1, state="scheduled", is_p2p=True, profiling_name=f"nccl:recv {rank}<-{(rank + 1) % n}", p2p_seq_id=1)
        ]
        dump(folder, rank, entries, {"0": [rank, (rank + 1) % n]})


# -- snapshots of memory -----------------------------------------------------------------------------------------------


def snapshot(folder: Path, segments: Sequence[Any], traces: Sequence[Any] = ()) -> None:
    document = {
        "segments": list(segments),
        "device_traces": [list(traces)],
        "allocator_settings": {},
        "external_annotations": [],
    }
    (folder / "rank0.pickle").write_bytes(pickle.dumps(document, 4))


def segment(address: int, blocks: Sequence[Any], size: int) -> dict[str, Any]:
    return {
        "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": list(blocks),
    }  # fmt: skip


def block(address: int, size: int = 512, **more: Any) -> dict[str, Any]:
    frames = [{"name": "forward", "filename": "/home/me/train.py", "line": address % 97}]
    return {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": frames,
        **more,
    }


@grows("memory snapshot", "blocks", 10_000)
def _(folder: Path, n: int) -> None:
    snapshot(folder, [segment(0, [block(i * 512) for i in range(n)], n * 512)])


@grows("memory snapshot", "segments", 5_000)
def _(folder: Path, n: int) -> None:
    snapshot(folder, [segment(i << 20, [block(i << 20)], 1 << 20) for i in range(n)])


@grows("memory snapshot", "events", 10_000)
def _(folder: Path, n: int) -> None:
    event = {"size": 512, "stream": 0, "time_us": 0, "compile_context": "N/A", "user_metadata": ""}
    events = [
        {
            **event,
            "action": "alloc" if i % 3 else "free_completed",
            "addr": (i // 3) * 512,
            "frames": [{"name": f"f{i}", "filename": "a.py", "line": i}],
        }
        for i in range(n)
    ]
    snapshot(folder, [segment(0, [block(0)], 512)], events)


@grows("memory snapshot", "frames of a block", 20_000)
def _(folder: Path, n: int) -> None:
    frames = [{"name": f"f{i}", "filename": "a.py", "line": i} for i in range(n)]
    snapshot(folder, [segment(0, [block(0, frames=frames)], 512)])


@grows("memory snapshot", "blocks that share their frames", 5_000)
def _(folder: Path, n: int) -> None:
    frames = [{"name": f"f{i}", "filename": "a.py", "line": i} for i in range(60)]
    snapshot(folder, [segment(0, [block(i * 512, frames=frames) for i in range(n)], n * 512)])


@grows("memory snapshot", "files", 50)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        snapshot(folder, [segment(0, [block(0)], 512)])
        (folder / "rank0.pickle").rename(folder / f"rank-{rank}.pickle")


# -- logs --------------------------------------------------------------------------------------------------------------


def log(folder: Path, text: Iterable[str], name: str = "a.log") -> None:
    (folder / name).write_text("\n".join(text) + "\n")


def init(rank: int, ranks: int, communicator: int = 1, state: str = "COMPLETE", host: str = "h") -> str:
    return (
        f"{host}:{rank + 10}:{rank + 10} [0] NCCL INFO comm 0x{communicator:x}{rank:04x} rank {rank} nranks {ranks} cudaDev 0 busId 1000 "
        f"commId 0x{communicator:x} - Init {state}"
    )


def watchdog(rank: int, seq: int = 812, group: str = "0", size: int = 1) -> str:
    return (
        f"[rank{rank}]:[E1121 02:07:08.408271257 ProcessGroupNCCL.cpp:629] [PG ID {group} PG GUID {group} Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600028 "
        "milliseconds before timing out."
    )


def status(rank: int, done: int, group: str = "0") -> str:
    return (
        f"[rank{rank}]:[E1121 02:07:08.508271257 ProcessGroupNCCL.cpp:1800] [PG ID {group} PG GUID {group} Rank {rank}] Exception (either an error or "
        f"timeout) detected by watchdog at work: {done + 1}, last enqueued NCCL work: {done + 2}, last completed NCCL work: {done}."
    )


def call(rank: int, count: int, communicator: int = 1, ranks: int = 2, name: str = "AllReduce") -> str:
    return (
        f"h:{rank + 10}:{rank + 10} [0] NCCL INFO {name}: opCount {count:x} sendbuff 0x1 recvbuff 0x2 count 1000 datatype 7 op 0 root 0 "
        f"comm 0x{communicator:x}{rank:04x} [nranks={ranks}] stream 0x9"
    )


def raised(rank: int, error: str = "RuntimeError: boom") -> list[str]:
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "train.py", line {rank % 50}, in <module>',
        f"[rank{rank}]: {error}",
    ]


@grows("log", "lines", 20_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [*(f"step {i} loss 0.5" for i in range(n)), watchdog(1)])


@grows("log", "lines of NCCL", 10_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [f"h:1:{i} [0] NCCL INFO Channel 00/0 : {i % 8}[0] -> 1[1] via P2P/IPC" for i in range(n)] + [watchdog(1)],
    )


@grows("log", "ranks of a communicator", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [*(init(rank, n) for rank in range(n)), watchdog(1)])


@grows("log", "ranks that never initialised", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [init(rank, n + 1, state="START") for rank in range(n)])


@grows("log", "huge communicators", 100, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (init(i, 1_000_000, i, host=f"h{i}") for i in range(n)))


@grows("log", "huge communicators beside a timeout", 100, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [*(init(0, 1_000_000, i) for i in range(n)), *(watchdog(0, group=str(i)) for i in range(n)), watchdog(999_999)],
    )


@grows("log", "communicators", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [*(init(rank, 2, i) for i in range(n) for rank in range(2)), watchdog(1)])


@grows("log", "timeouts of ranks", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (text for rank in range(n) for text in (watchdog(rank, 800 + rank % 3), status(rank, 799 + rank % 3))))


@grows("log", "timeouts of groups", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (text for i in range(n) for text in (watchdog(i % 8, i, str(i)), status(i % 8, i, str(i)))))


@grows("log", "timeouts with other sizes", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (watchdog(rank, 812, size=rank + 1) for rank in range(n)))


@grows("log", "calls", 2_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [*(init(rank, 2) for rank in range(2)), *(call(rank, i) for i in range(n) for rank in range(2)), watchdog(1)],
    )


@grows("log", "calls of communicators", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    lines = [
        text for i in range(n) for rank in range(2) for text in (init(rank, 2, i), call(rank, 5 - (i == 7 and rank), i))
    ]
    log(folder, [*lines, watchdog(1)])


@grows("log", "calls of ranks", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [
            *(init(rank, n) for rank in range(n)),
            *(call(rank, 9 - (rank == 3), ranks=n) for rank in range(n)),
            watchdog(1),
        ],
    )


@grows("log", "exceptions of ranks", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (text for rank in range(n) for text in raised(rank)))


@grows("log", "kinds of exceptions", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (text for rank in range(n) for text in raised(rank, f"ValueError{rank}: {rank}")))


@grows("log", "frames of an exception", 5_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    frames = [f'[rank0]:   File "train.py", line {i}, in f{i}' for i in range(n)]
    log(folder, ["[rank0]: Traceback (most recent call last):", *frames, "[rank0]: RuntimeError: boom"])


@grows("log", "chained exceptions", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    between = "[rank0]: During handling of the above exception, another exception occurred:"
    log(
        folder, (text for i in range(n) for text in (*raised(0, f"ValueError: {i}"), "[rank0]: ", between, "[rank0]: "))
    )


@grows("log", "restarts", 200, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (
        text for i in range(n) for text in (
            "W1121 22:44:58.452000 24602 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1",
            *(init(rank, 2, i) for rank in range(2)), "step 1 loss 1.0", *raised(1),
            f"E1121 22:44:58.537000 24602 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: {i}) of binary: /opt/venv/bin/python",
            "I1121 22:44:59.537000 24602 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. 3/3 attempts left; will restart worker group",
        )
    ))  # fmt: skip


@grows("log", "attempts of ranks", 200, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, (
        f"[default{rank}]:{text}" for i in range(n) for rank in range(4)
        for text in (init(rank, 4, i), "step 1 loss 1.0", *(raised(1) if rank == 1 else [watchdog(rank)]))
    ))  # fmt: skip


@grows("log", "reports of torchrun", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    failure = [
        "[{0}]:",
        "  time      : 2026-11-21_22:44:58",
        "  host      : h",
        "  rank      : {0} (local_rank: {0})",
        "  exitcode  : -9 (pid: {0})",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID {0}",
    ]
    log(
        folder,
        [
            "=" * 60,
            "train.py FAILED",
            "-" * 60,
            "Failures:",
            *(text.format(i) for i in range(n) for text in failure),
            "=" * 60,
        ],
    )


@grows("log", "hosts", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [
            *(init(rank, n, host=f"host{rank}") for rank in range(n)),
            *(
                f"host{rank}:{rank + 10}:1 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error"
                for rank in range(n)
            ),
        ],
    )


@grows("log", "failed connections", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        (
            f"h{i}:{i}:1 [0] NCCL WARN socketProgressOpt: Call to recv from 10.0.{i // 250 % 250}.{i % 250}<{i % 60000}> failed : Connection reset by peer"
            for i in range(n)
        ),
    )


@grows("log", "kills", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        (
            f"E1121 22:44:58.537000 24602 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: {i % 8} (pid: {i}) of binary: /opt/venv/bin/python"
            for i in range(n)
        ),
    )


@grows("log", "errors of GPUs", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        (
            f"kernel: NVRM: Xid (PCI:0000:{i % 256:02x}:00): {13 + i % 80}, pid={i}, name=python, GPU has fallen off the bus."
            for i in range(n)
        ),
    )


@grows("log", "files", 100, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        log(folder, [init(rank, n), "step 1 loss 0.5", watchdog(rank, 800 + (rank == 3))], f"rank_{rank}.log")


@grows("log", "files of communicators", 50, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(n):
        log(folder, [init(rank, 1_000_000, i) for i in range(20)] + [watchdog(rank)], f"rank_{rank}.log")


@grows("log", "length of a line", 500_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [watchdog(1), "h:1:1 [0] NCCL WARN " + "x=1 [rank " * (n // 10)])


@grows("log", "length of a number", 100_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [watchdog(1), watchdog(2).replace("812", "8" * n), init(0, 2).replace("nranks 2", "nranks " + "2" * n)])


@grows("log", "gzip members", 20_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    (folder / "a.log.gz").write_bytes(gzip.compress(b"", mtime=0) * n + gzip.compress(watchdog(1).encode()))


@grows("log", "name in a gzip header", 600_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    packed = gzip.compress(watchdog(1).encode(), mtime=0)
    (folder / "a.log.gz").write_bytes(packed[:3] + b"\x08" + packed[4:10] + b"a" * n + b"\0" + packed[10:])


@grows("log", "steps of ranks", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(folder, [*(f"[rank{rank}] step {5 + (rank != 3)} loss 0.5" for rank in range(n)), watchdog(1)])


@grows("log", "missing ranks in a barrier", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [
            *(
                f"[rank{rank}]: torch.distributed.DistBackendError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/{rank}"
                for rank in range(n)
            )
        ],
    )


@grows("log", "ranks in a mismatch", 1_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=35, OpType=ALLREDUCE, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda)), but Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=35, OpType=ALLREDUCE, TensorShape=[7], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))."
    log(folder, (f"[rank{rank}]: " + text.format(rank, rank, rank + 1) for rank in range(n)))


@grows("log", "stacks", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(2):
        stack = [
            "Current thread 0x00007f (most recent call first):",
            '  File "train.py", line 5 in step',
            '  File "train.py", line 9 in <module>',
            "",
        ]
        log(folder, stack * n, f"stacks_rank{rank}.txt")


@grows("log", "py-spy's stacks", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    for rank in range(2):
        stack = [
            "Process 123: python train.py",
            "Python v3.11.7 (/usr/bin/python3.11)",
            "",
            *(
                f'Thread {i} (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:{i})'
                for i in range(n)
            ),
        ]
        log(folder, stack, f"py-spy-rank{rank}.txt")


# -- RAS ---------------------------------------------------------------------------------------------------------------


@grows("RAS", "ranks (text)", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [reports.text(reports.job(reports.Comm(list(range(n)), counts={n - 1: {"AllReduce": 60}}), world=n))],
        "ras.txt",
    )


@grows("RAS", "ranks (JSON)", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [reports.as_json(reports.job(reports.Comm(list(range(n)), counts={n - 1: {"AllReduce": 60}}), world=n))],
        "ras.json",
    )


@grows("RAS", "ranks that all differ", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    log(
        folder,
        [
            reports.as_json(
                reports.job(reports.Comm(list(range(n)), counts={i: {"AllReduce": i} for i in range(n)}), world=n)
            )
        ],
        "ras.json",
    )


@grows("RAS", "reports", 100, TRIAGE)
def _(folder: Path, n: int) -> None:
    report = reports.text(reports.job(reports.Comm(list(range(8)), counts={7: {"AllReduce": 60}})))
    log(folder, [report] * n, "ras.txt")


@grows("RAS", "files", 50, TRIAGE)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        log(
            folder,
            [reports.text(reports.job(reports.Comm(list(range(8)), counts={7: {"AllReduce": 60}})))],
            f"ras{at}.txt",
        )


# -- run directories ---------------------------------------------------------------------------------------------------


def run(folder: Path, ranks: int = 2, steps: int = 16, **more: Any) -> None:
    """The sample's ranks, so many times, with so many of its steps, one after another."""
    manifest = json.loads((SAMPLE / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "world_size": ranks, "mesh": {"dp": ranks}, **more}))
    sample = SAMPLE / "ranks" / "00000"
    identity = json.loads((sample / "rank.json").read_text())
    recorded = [json.loads(text) for text in (sample / "steps.jsonl").read_text().splitlines()]
    took = recorded[-1]["end_ns"] - recorded[0]["begin_ns"] + 1_000_000
    for rank in range(ranks):
        own = folder / "ranks" / f"{rank:05d}"
        own.mkdir(parents=True)
        (own / "rank.json").write_text(
            json.dumps({**identity, "rank": rank, "local_rank": rank, "world_size": ranks, "pid": 100 + rank})
        )
        for name in ("steps.jsonl", "collectives.jsonl"):
            texts = (sample / name).read_text().splitlines()
            with (own / name).open("w") as file:
                for step in range(steps):
                    line = json.loads(texts[step % len(texts)])
                    by = step // len(texts) * took
                    file.write(json.dumps(moved(line, by) | {"step": step} | groups_of(line, step, ranks)) + "\n")


def groups_of(line: dict[str, Any], step: int, ranks: int) -> dict[str, Any]:
    return {"groups": {"0": list(range(ranks))} if step == 0 else {}} if "rows" in line else {}


def moved(value: Any, by: int) -> Any:
    """The document with its times (any number as large as one) later."""
    if isinstance(value, dict):
        return {key: moved(inner, by) if key != "memory" else inner for key, inner in value.items()}
    if isinstance(value, list):
        return [moved(inner, by) for inner in value]
    return value + by if isinstance(value, int) and value > 10**12 else value


def jsonl(folder: Path, name: str, documents: Iterable[Any], rank: int = 0) -> None:
    (folder / "ranks" / f"{rank:05d}" / name).write_text("".join(json.dumps(one) + "\n" for one in documents))


@grows("run", "steps", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=n)


@grows("run", "ranks", 8)
def _(folder: Path, n: int) -> None:
    run(folder, ranks=n)


@grows("run", "steps, exported", 500, EXPORT)
def _(folder: Path, n: int) -> None:
    run(folder, steps=n)


@grows("run", "ranks, triaged", 16, TRIAGE)
def _(folder: Path, n: int) -> None:
    run(folder, ranks=n)
    for rank in range(n):
        log(folder / "ranks" / f"{rank:05d}", raised(rank), "log.txt")


@grows("run", "steps, triaged", 500, TRIAGE)
def _(folder: Path, n: int) -> None:
    run(folder, steps=n)
    for rank in range(2):
        beat = {"unix_ns": 10**18, "monotonic_ns": 10**12, "step": n, "phase": "backward", "steps": n}
        (folder / "ranks" / f"{rank:05d}" / "heartbeat.json").write_text(json.dumps(beat))


@grows("run", "collectives of a step", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        path = folder / "ranks" / f"{rank:05d}" / "collectives.jsonl"
        found = [json.loads(text) for text in path.read_text().splitlines()]
        for line in found:
            first, *_ = line["rows"][0][5:]
            line["rows"] = [
                [
                    "0",
                    line["step"] * n + i,
                    "all_reduce",
                    1000,
                    "float32",
                    first + i * 10,
                    first + i * 10 + 5,
                    first + i * 10,
                    first + i * 10 + 5,
                ]
                for i in range(n)
            ]
        jsonl(folder, "collectives.jsonl", found, rank)


@grows("run", "groups", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        path = folder / "ranks" / f"{rank:05d}" / "collectives.jsonl"
        found = [json.loads(text) for text in path.read_text().splitlines()]
        for line in found:
            first, *_ = line["rows"][0][5:]
            line["groups"] = {str(i): [0, 1] for i in range(n)} if line["step"] == 0 else {}
            line["rows"] = [
                [
                    str(i),
                    line["step"],
                    "all_reduce",
                    1000,
                    "float32",
                    first + i * 10,
                    first + i * 10 + 5,
                    first + i * 10,
                    first + i * 10 + 5,
                ]
                for i in range(n)
            ]
        jsonl(folder, "collectives.jsonl", found, rank)


@grows("run", "ranks of a group", 20_000)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        path = folder / "ranks" / f"{rank:05d}" / "collectives.jsonl"
        found = [json.loads(text) for text in path.read_text().splitlines()]
        for line in found:
            line["groups"] = {"0": list(range(n))} if line["step"] == 0 else {}
        jsonl(folder, "collectives.jsonl", found, rank)


@grows("run", "phases of a step", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        path = folder / "ranks" / f"{rank:05d}" / "steps.jsonl"
        found = [json.loads(text) for text in path.read_text().splitlines()]
        for line in found:
            begin = line["begin_ns"]
            line["phases"] = [
                [("forward", "backward", "optimizer")[i % 3], begin + i * 100, begin + i * 100 + 90] for i in range(n)
            ]
        jsonl(folder, "steps.jsonl", found, rank)


@grows("run", "garbage collections", 1_000)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        path = folder / "ranks" / f"{rank:05d}" / "steps.jsonl"
        found = [json.loads(text) for text in path.read_text().splitlines()]
        for line in found:
            line["gc"] = [[line["begin_ns"] + i * 100, line["begin_ns"] + i * 100 + 90] for i in range(n)]
        jsonl(folder, "steps.jsonl", found, rank)


@grows("run", "durations", 2_000)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        rows = [
            ["0", i, "all_reduce", 1000, "float32", 5_765_500_000_000 + i * 1000, 500 + rank * 300] for i in range(n)
        ]
        jsonl(
            folder,
            "durations.jsonl",
            (
                {"rows": rows[i : i + 50], "groups": {"0": [0, 1]} if not i else {}, "recorder": "nccl"}
                for i in range(0, n, 50)
            ),
            rank,
        )


@grows("run", "groups with durations", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        rows = [
            [str(i), 1, "all_reduce", 1000, "float32", 5_765_500_000_000 + i * 1000, 500 + rank * 300] for i in range(n)
        ]
        jsonl(
            folder,
            "durations.jsonl",
            [{"rows": rows, "groups": {str(i): [0, 1] for i in range(n)}, "recorder": "nccl"}],
            rank,
        )


@grows("run", "groups with durations that change their ranks", 500)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for rank in range(2):
        found = [
            {
                "rows": [["0", i, "all_reduce", 1000, "float32", 5_765_500_000_000 + i * 1000, 500]],
                "groups": {"0": [0, 1, i + 2]},
                "recorder": "nccl",
            }
            for i in range(n)
        ]
        jsonl(folder, "durations.jsonl", found, rank)


@grows("run", "samples of devices", 3_000)
def _(folder: Path, n: int) -> None:
    run(folder)
    sample = {
        "unavailable": "",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "power_mw": 700_000,
        "temperature_c": 60,
        "utilization_percent": 90,
        "memory_used": 1 << 30,
        "throttle_reasons": [],
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "pcie_tx_kb_s": 1,
        "pcie_rx_kb_s": 1,
        "nvlink_tx_kib": 1,
        "nvlink_rx_kib": 1,
    }
    for rank in range(2):
        jsonl(
            folder, "device.jsonl", ({**sample, "monotonic_ns": 5_765_391_474_100 + i * 10**6} for i in range(n)), rank
        )


@grows("run", "samples of the host", 3_000)
def _(folder: Path, n: int) -> None:
    run(folder)
    for rank in range(2):
        jsonl(
            folder,
            "host.jsonl",
            (
                {
                    "monotonic_ns": 5_765_391_474_100 + i * 10**6,
                    "interval_ns": 10**6,
                    "pauses": [[5_765_391_474_100 + i * 10**6, 5_765_391_474_900 + i * 10**6]],
                }
                for i in range(n)
            ),
            rank,
        )


@grows("run", "checkpoints", 500)
def _(folder: Path, n: int) -> None:
    run(folder)
    for rank in range(2):
        jsonl(
            folder,
            "checkpoints.jsonl",
            (
                {"step": i, "start_ns": 5_765_391_474_100 + i * 10**6, "blocking_ns": 1000, "bytes": 10}
                for i in range(n)
            ),
            rank,
        )


@grows("run", "restarts", 16)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for at in range(1, n + 1):
        run(folder / f"restart-{at}" if (folder / f"restart-{at}").mkdir() is None else folder, steps=4)


@grows("run", "restarts, triaged", 16, TRIAGE)
def _(folder: Path, n: int) -> None:
    run(folder, steps=4)
    for at in range(1, n + 1):
        (folder / f"restart-{at}").mkdir()
        run(folder / f"restart-{at}", steps=4)
        log(folder / f"restart-{at}" / "ranks" / "00001", raised(1), "log.txt")


@grows("run", "windows of the profiler", 20)
def _(folder: Path, n: int) -> None:
    run(folder, ranks=1, steps=n)
    own = folder / "ranks" / "00000"
    begins = [json.loads(text)["begin_ns"] / 1000 for text in (own / "steps.jsonl").read_text().splitlines()]
    for step, begin in enumerate(begins):
        put(own, [mark(step, begin, 1000.0), op(begin + 5)], f"trace-step{step:06d}.json.gz")


@grows("run", "folders of ranks that are empty", 300)
def _(folder: Path, n: int) -> None:
    run(folder)
    for rank in range(2, n):
        (folder / "ranks" / f"{rank:05d}").mkdir()


@grows("run", "names that are no ranks", 500)
def _(folder: Path, n: int) -> None:
    run(folder)
    for at in range(n):
        (folder / "ranks" / f"x{at}").mkdir()


@grows("run", "exits", 5_000, TRIAGE)
def _(folder: Path, n: int) -> None:
    run(folder, world_size=n)
    (folder / "exits.json").write_text(json.dumps([{"rank": i, "exit_code": 1, "first": i == 0} for i in range(n)]))


@grows("run", "a mesh of many dimensions", 5_000)
def _(folder: Path, n: int) -> None:
    run(folder, mesh={f"a{i}": 1 for i in range(n)})


@grows("run", "ranks with summaries", 100, SUMMARY)
def _(folder: Path, n: int) -> None:
    write_summaries(Job(n, steps=50), folder)


@grows("run", "steps in summaries", 500, SUMMARY)
def _(folder: Path, n: int) -> None:
    write_summaries(Job(8, steps=n), folder)


@grows("run", "copies", 10)
def _(folder: Path, n: int) -> None:
    for at in range(n):
        (folder / f"job{at}").mkdir()
        run(folder / f"job{at}", steps=4)


# -- NCCL Inspector ----------------------------------------------------------------------------------------------------


def inspector(
    folder: Path, process: int, records: int = 20, groups: int = 1, ranks: int = 2, group: str = "0xa", host: str = "h"
) -> None:
    text = "".join(
        lines(
            "v4.0",
            header(group + (str(at) if at else ""), process, ranks),
            metadata("v4.0", host, 100 + process),
            [collective(i, 100.0 + process) for i in range(records)],
        )
        for at in range(groups)
    )
    (folder / f"{host}-pid{100 + process}.log").write_text(text)


@grows("Inspector", "records", 2_000)
def _(folder: Path, n: int) -> None:
    for process in range(2):
        inspector(folder, process, records=n)


@grows("Inspector", "processes", 50)
def _(folder: Path, n: int) -> None:
    for process in range(n):
        inspector(folder, process, ranks=n)


@grows("Inspector", "processes of jobs of their own", 50)
def _(folder: Path, n: int) -> None:
    for process in range(n):
        inspector(folder, process, ranks=2, group=f"0x{process}")


@grows("Inspector", "processes in one file", 1_000)
def _(folder: Path, n: int) -> None:
    with (folder / "h-pid1.log").open("w") as file:
        for process in range(n):
            file.write(
                lines("v4.0", header(f"0x{process}", 0, 2), metadata("v4.0", "h", process), [collective(1, 100.0)])
            )


@grows("Inspector", "communicators", 500)
def _(folder: Path, n: int) -> None:
    for process in range(2):
        inspector(folder, process, groups=n, records=2)


@grows("Inspector", "huge communicators", 500)
def _(folder: Path, n: int) -> None:
    for process in range(2):
        inspector(folder, process, groups=n, records=2, ranks=1 << 20)


@grows("Inspector", "blank lines, packed", 1 << 22)
def _(folder: Path, n: int) -> None:
    text = lines("v4.0", header("0x1", 0, 2), metadata("v4.0", "h", 1), [collective(1, 100.0)])
    (folder / "inspector.log.gz").write_bytes(gzip.compress(text.encode() + b"\n" * n))


@grows("Inspector", "records, packed", 5_000)
def _(folder: Path, n: int) -> None:
    text = lines("v4.0", header("0x1", 0, 2), metadata("v4.0", "h", 1), [collective(1, 100.0)])
    (folder / "inspector.log.gz").write_bytes(gzip.compress(text.encode() * n))


@grows("Inspector", "name in a gzip header", 600_000)
def _(folder: Path, n: int) -> None:
    for process in range(2):
        inspector(folder, process)
    text = lines("v4.0", header("0x1", 0, 2), metadata("v4.0", "h", 1), [collective(1, 100.0)])
    packed = gzip.compress(text.encode(), mtime=0)
    (folder / "inspector.log.gz").write_bytes(packed[:3] + b"\x08" + packed[4:10] + b"a" * n + b"\0" + packed[10:])


@grows("Inspector", "samples for Prometheus", 1_000)
def _(folder: Path, n: int) -> None:
    for rank in range(2):
        with (folder / f"nccl_inspector_metrics_{rank}.prom").open("w") as file:
            for i in range(n):
                file.write(
                    f'nccl_collective_exec_time_microseconds{{node="h",gpu="GPU{rank}",comm_name="c{i}",nranks="2",collective="AllReduce",message_size="1-2MB"}} {100 + rank}\n'
                )


# -- configurations ----------------------------------------------------------------------------------------------------


def config(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


@grows("YAML", "keys", 1_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "distributed_type: FSDP\n" + "".join(f"k{i}: {i}\n" for i in range(n)))


@grows("YAML", "depth in flow", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: " + "[" * n + "]" * n + "\n")


@grows("YAML", "depth of mappings in flow", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: " + "{a: " * n + "1" + "}" * n + "\n")


@grows("YAML", "depth of blocks", 100, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "".join(" " * i + "a:\n" for i in range(n)))


@grows("YAML", "depth of sequences", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a:\n " + "- " * n + "1\n")


@grows("YAML", "anchors", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, n)))


@grows("YAML", "merged mappings", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(
        folder,
        "c.yaml",
        "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: *a{i - 1}\n  k{i}: 1\n" for i in range(1, n)),
    )


@grows("YAML", "digits", 50_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: " + "9" * n + "\n")


@grows("YAML", "sexagesimal digits", 5_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: 1" + ":59" * n + "\nb: 1" + ":59" * n + ".5\n")


@grows("YAML", "binary digits", 50_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: 0b" + "1" * n + "\nb: 0x" + "f" * n + "\nc: 0" + "7" * n + "\n")


@grows("YAML", "documents", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a: 1\n---\n" * n)


@grows("YAML", "length of a key", 100_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", "a" * n + ": 1\n")


@grows("YAML", "length of a text with blanks", 20_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.yaml", 'a: "' + "x \\\n  " * n + '"\n')


@grows("JSON", "keys", 1_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", json.dumps({"zero_optimization": {"stage": 3}, **{f"k{i}": i for i in range(n)}}))


@grows("JSON", "depth", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"a": ' * n + "1" + "}" * n)


@grows("JSON", "depth of lists", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"a": ' + "[" * n + "]" * n + "}")


@grows("JSON", "digits", 50_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"train_batch_size": ' + "9" * n + "}")


@grows("JSON", "comments", 2_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"a": 1, // x\n' + "/* // */ // \n" * n + '"b": [1,],}')


@grows("JSON", "quotes in comments", 2_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"a": 1, //' + '"\\' * n + "\n}")


@grows("JSON", "spaces", 20_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.json", '{"a": 1,' + " " * n + "// x\n" + "\n" * n + "}")


@grows("TOML", "keys", 1_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", "[training]\n" + "".join(f"k{i} = {i}\n" for i in range(n)))


@grows("TOML", "tables", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", "".join(f"[t{i}]\na = 1\n" for i in range(n)))


@grows("TOML", "depth of a key", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", ".".join(["a"] * n) + " = 1\n")


@grows("TOML", "depth of tables", 20, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", "".join("[" + ".".join(["a"] * i) + "]\n" for i in range(1, n)))


@grows("TOML", "depth of lists", 500, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", "a = " + "[" * n + "]" * n + "\n")


@grows("TOML", "digits", 50_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", "[training]\nseq_len = " + "9" * n + "\n")


@grows("TOML", "length of a text", 100_000, PLAN)
def _(folder: Path, n: int) -> None:
    config(folder, "c.toml", '[training]\na = """' + '\\"\n' * n + '"""\n')
