"""Inputs of every kind that ``diag`` reads, each with one dimension that grows: lines, ranks, groups, members, depth,
names, numbers. ``tests/test_growth.py`` and ``tests/bench/growth.py`` hold the cost of reading them against their size.

A table for each reader; a row is a dimension, the ``n`` whose reading takes a measurable time, and the input of size
``n``: the content of files by name, or what the reader's ``form`` makes files of. The bytes grow no faster than ``n``.
"""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import gzip
import json
import pickle
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.growing_pages import page, timeline
from tests.hang.ras import reports
from tests.inspector.files import collective, header, lines, metadata
from tests.many_ranks import Job, write_summaries

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp-healthy"

# The words of a command, or what reads a folder. IN is the folder, or the only file in it where that is what a user
# names; OUT is beside it.
Command = Sequence[str] | Callable[[Path], None]
ANALYZE, TRIAGE, PLAN = ("analyze", "IN", "--json"), ("triage", "IN", "--json"), ("plan", "IN")
SUMMARY = ("analyze", "IN", "--json", "--summary")
REPORT, COMPARE, CHECK = (
    ("report", "IN", "-o", "OUT.html"),
    ("compare", "IN", "IN", "--json"),
    ("check", "IN", "--max-step", "1s"),
)
OPEN = ("open", "IN", "--rank", "0", "-o", "OUT.json")
PROMETHEUS, JSONL = ("export", "IN", "--format", "prometheus"), ("export", "IN", "--format", "jsonl", "-o", "OUT.jsonl")
CURVES = ("export", "IN", "--format", "tensorboard", "-o", "OUT")

Files = Mapping[str, bytes | str]  # a name that ends in / is an empty folder
Content = Callable[[int], Any]


@dataclass(frozen=True)
class Growing:
    reader: str
    dimension: str
    size: int
    content: Content
    form: Callable[[Any], Any]
    command: Command = ANALYZE

    @property
    def name(self) -> str:
        return f"{self.reader}: {self.dimension}"

    def build(self, folder: Path, size: int) -> None:
        made = self.content(size)
        files = made if isinstance(made, dict) or callable(made) else self.form(made)
        if callable(files):
            files(folder)
            return
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir()
            elif isinstance(content, str):
                path.write_text(content)
            else:
                path.write_bytes(content)

    def arguments(self, folder: Path) -> list[str]:
        assert not callable(self.command)
        given = next(folder.iterdir()) if self.command == PLAN else folder
        return [str(given) if word == "IN" else word.replace("OUT", f"{folder}-out") for word in self.command]


INPUTS: list[Growing] = []


def table(
    reader: str,
    form: Callable[[Any], Any],
    command: Command,
    *rows: tuple[str, int, Content] | tuple[str, int, Content, Command],
) -> None:
    for dimension, size, content, *other in rows:
        INPUTS.append(Growing(reader, dimension, size, content, form, other[0] if other else command))


def also(reader: str, command: Command, names: Iterable[str], smaller: int = 1) -> None:
    """Inputs of other readers once more, for this one."""
    for name in names:
        (row,) = (row for row in INPUTS if row.name == name)
        INPUTS.append(Growing(reader, name, max(2, row.size // smaller), row.content, row.form, command))


def each(n: int, make: Callable[[int], Iterable[Any]]) -> list[Any]:
    return [made for i in range(n) for made in make(i)]


def joined(all_files: Iterable[Files]) -> Files:
    return {name: content for files in all_files for name, content in files.items()}


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


def with_name(data: bytes | str, length: int) -> bytes:
    """Packed, with a name of this length in its gzip header."""
    packed = gzip.compress(data.encode() if isinstance(data, str) else data, mtime=0)
    return packed[:3] + b"\x08" + packed[4:10] + b"a" * length + b"\0" + packed[10:]


EMPTY_MEMBER = gzip.compress(b"", mtime=0)


def trace(events: Iterable[dict[str, Any]], rank: int = 0, ranks: int = 1, groups: Sequence[Any] = ()) -> bytes:
    about = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": list(groups)}
    return json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": list(events)}).encode()


def packed(events: Iterable[dict[str, Any]], **about: Any) -> bytes:
    return gzip.compress(trace(events, **about), 1)


def of_ranks(ranks: int, events: list[dict[str, Any]]) -> Files:
    return {f"rank{rank}.json.gz": packed(events, rank=rank, ranks=ranks) for rank in range(ranks)}


def event(cat: str, name: str, ts: float, dur: float, pid: int = 1, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def mark(number: int, ts: float, dur: float) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def op(ts: float, dur: float = 1.0, name: str = "aten::mm", tid: int = 1, **args: Any) -> dict[str, Any]:
    return event("cpu_op", name, ts, dur, tid=tid, **args)


def launched(
    n: int, at: float, name: str = "gemm", stream: int = 7, dur: float = 5.0, **args: Any
) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 1.0, correlation=n),
        event("kernel", name, at + 2, dur, 0, stream, device=0, stream=stream, correlation=n, **args),
    ]


def all_reduce(n: int, at: float, ranks: Sequence[int] | str = (0, 1), group: str = "0") -> list[dict[str, Any]]:
    named = {
        "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", "Process Group Name": group,
        "Process Group Ranks": ranks if isinstance(ranks, str) else str(list(ranks)), "Group size": 2, "Seq": n,
    }  # fmt: skip
    return launched(n, at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, **named)


def step_of(events: list[dict[str, Any]], steps: int = 4) -> list[dict[str, Any]]:
    """The events with marks of steps that cover them."""
    end = max((event["ts"] + event["dur"] for event in events), default=100.0) + 10
    return [mark(n, n * end / steps, end / steps - 1) for n in range(steps)] + events


def ops(n: int) -> list[dict[str, Any]]:
    return step_of([op(i * 2.0) for i in range(n)])


def marks(n: int) -> list[dict[str, Any]]:
    return [*(mark(i, i * 10.0, 9.0) for i in range(n)), op(5.0)]


def module(i: int, n: int) -> dict[str, Any]:
    ids = {"Python id": i + 1, "Python parent id": i, "Python module id": i}
    return event("python_function", f"nn.Module: Block_{i}", float(i), 4.0 * n - 2 * i, **ids)


def flow(i: int) -> list[dict[str, Any]]:
    return [
        {"cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ph": ph, "id": i, "ts": i * 2.0, "dur": 0} for ph in "sf"
    ]


def allocated(i: int) -> dict[str, Any]:
    args = {"Addr": i, "Bytes": 10 - 20 * (i % 2), "Device Type": 1, "Device Id": 0, "Total Allocated": 10}
    return {**event("cpu_instant_event", "[memory]", i * 10.0, 0, **args), "ph": "i", "s": "t"}


def copied(i: int) -> dict[str, Any]:
    return event(
        "gpu_memcpy",
        "Memcpy HtoD (Pageable -> Device)",
        i * 10.0,
        2.0,
        0,
        7,
        device=0,
        stream=7,
        correlation=i,
        bytes=10,
    )


def form_of_trace(made: Any) -> Files:
    return {"rank0.json": made} if isinstance(made, bytes) else {"rank0.json.gz": packed(made)}


ONE_OP = step_of([op(1.0)])

# fmt: off
table("trace", form_of_trace, ANALYZE,
    ("CPU operators", 20_000, ops),
    ("kernels", 10_000, lambda n: step_of(each(n, lambda i: launched(i + 1, i * 10.0)))),
    ("overlapping kernels", 10_000, lambda n: step_of(each(n, lambda i: launched(i + 1, i * 10.0, dur=1e6, stream=7 + i % 3)))),
    ("collectives of two ranks", 3_000, lambda n: of_ranks(2, step_of(each(n, lambda i: all_reduce(i + 1, i * 10.0))))),
    ("marks of steps", 2_000, marks),
    ("marks of steps on two ranks", 1_000, lambda n: of_ranks(2, marks(n))),
    ("marks of one step, nested", 5_000, lambda n: [mark(1, i, 4.0 * n - 2 * i) for i in range(n)] + [op(5.0)]),
    ("names of operators", 10_000, lambda n: step_of([op(i * 2.0, name=f"op{i}") for i in range(n)])),
    ("names of kernels", 5_000, lambda n: step_of(each(n, lambda i: launched(i + 1, i * 10.0, name=f"kernel{i}")))),
    ("depth of nested operators", 10_000, lambda n: step_of([op(i, 4.0 * n - 2 * i) for i in range(n)])),
    ("depth of nested modules", 3_000, lambda n: step_of([module(i, n) for i in range(n)] + each(50, lambda i: launched(i + 1, n + i * 2.0)))),
    ("threads", 5_000, lambda n: step_of([op(i * 2.0, 100.0, tid=i) for i in range(n)])),
    ("streams", 2_000, lambda n: step_of(each(n, lambda i: launched(i + 1, i * 10.0, stream=i)))),
    ("process groups", 1_000, lambda n: {"rank0.json.gz": packed(
        step_of(each(n, lambda i: all_reduce(i + 1, i * 10.0, group=str(i)))), ranks=2,
        groups=[{"pg_name": str(i), "pg_desc": f"g{i}", "pg_size": 2, "ranks": [0, 1]} for i in range(n)])}),
    ("ranks of a process group", 20_000, lambda n: {"rank0.json.gz": packed(
        step_of(each(20, lambda i: all_reduce(i + 1, i * 10.0, str(list(range(n // 20)))))), ranks=n,
        groups=[{"pg_name": "0", "pg_desc": "g", "pg_size": n, "ranks": list(range(n))}])}),
    ("ranges of ranks named", 2_000, lambda n: {"rank0.json.gz": packed(
        step_of(each(n, lambda i: all_reduce(i + 1, i * 10.0, "[0, 1, ..., 1048575]", group=str(i)))), ranks=1 << 20)}),
    ("flows", 10_000, lambda n: ops(n) + each(n, flow)),
    ("one correlation", 5_000, lambda n: step_of(each(n, lambda i: launched(1, i * 10.0)))),
    ("length of a name", 1_000_000, lambda n: step_of([op(1.0, name="x" * n)])),
    ("depth of arguments", 20_000, lambda n: trace(step_of([op(1.0, deep="HERE")])).replace(b'"HERE"', b"[" * n + b"]" * n)),
    ("digits of a number", 200_000, lambda n: trace(step_of([op(1.0, big="HERE")])).replace(b'"HERE"', b"9" * n)),
    ("digits of a time", 200_000, lambda n: trace(ONE_OP).replace(b'"ts": 1.0', b'"ts": ' + b"9" * n)),
    ("operators, indented", 10_000, lambda n: json.dumps(json.loads(trace(ops(n))), indent=4).encode()),
    ("copies and allocations", 5_000, lambda n: step_of([copied(i) for i in range(n)] + [allocated(i) for i in range(n)])),
    ("synchronizations", 5_000, lambda n: step_of(each(n, lambda i: [
        *launched(i + 1, i * 10.0), event("cuda_runtime", "cudaStreamSynchronize", i * 10.0 + 3, 5.0, correlation=n + i + 1)]))),
    ("files", 20, lambda n: of_ranks(n, step_of(each(20, lambda i: all_reduce(i + 1, i * 10.0, range(n)))))),
    ("files of one rank", 20, lambda n: {
        f"a{at}.json.gz": packed(step_of(each(20, lambda i, at=at: all_reduce(i + 1, at * 1e6 + i * 10.0)))) for at in range(n)}),
    ("windows of one rank", 20, lambda n: {
        f"a{at}.json.gz": packed([mark(at, at * 1e6, 900.0), op(at * 1e6 + 5)]) for at in range(n)}),
    ("processes without ranks", 20, lambda n: {
        f"a{at}.json.gz": gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": [
            {**event, "pid": 100 + at} for event in step_of(each(5, lambda i, at=at: launched(i + 1, at * 1e9 + i * 10.0)))]}).encode(), 1)
        for at in range(n)}),
    ("jobs in folders", 20, lambda n: joined(below(f"job{at}", of_ranks(2, [
        {**event, "ts": event["ts"] + at * 1e9} for event in step_of(each(5, lambda i: all_reduce(i + 1, i * 10.0)))])) for at in range(n))),
    ("empty files", 300, lambda n: {f"{at}.json": b"{}" for at in range(n)}),
    ("gzip members", 20_000, lambda n: {"rank0.json.gz": EMPTY_MEMBER * n + gzip.compress(trace(ONE_OP))}),
    ("name in a gzip header", 600_000, lambda n: {
        "rank0.json.gz": with_name(trace(ONE_OP), n), "rank1.json.gz": packed(ONE_OP, rank=1)}),
)
# fmt: on

# -- traces of other tools ---------------------------------------------------------------------------------------------


def foreign(n: int, process: str = "", **more: Any) -> bytes:
    named = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process}}] if process else []
    return json.dumps(
        {"traceEvents": named + [{**event("x", f"f{i}", i * 2.0, 1.0), **more} for i in range(n)]}
    ).encode()


def text(value: str) -> Callable[[int], bytes]:
    return lambda n: (value * n).encode()


# fmt: off
table("foreign trace", lambda made: {"a.json": made}, ANALYZE,
    *((f"events of {name}", 5_000, lambda n, process=process: foreign(n, process)) for name, process in (
        ("XProf", "/device:TPU:0"), ("TensorFlow", "/job:worker/replica:0"), ("Ascend's profiler", "Ascend Hardware"),
        ("the legacy profiler", "CPU functions"), ("rocprof", "HIP API"))),
    *((f"events of {name}", 5_000, lambda n, cat=cat: foreign(n, cat=cat)) for name, cat in (
        ("VizTracer", "FEE"), ("torch.compile", "dynamo_timed"), ("py-spy", "py-spy"), ("ONNX Runtime", "Node"), ("Chrome", "blink"),
        ("Ray", "task::f"), ("a converter of Nsight Systems", "cuda_api"), ("nobody", "x"))),
    ("begins and ends", 5_000, lambda n: json.dumps([
        {"ph": ph, "name": "f", "pid": 1, "tid": 1, "ts": i * 2.0 + (ph == "E")} for i in range(n) for ph in "BE"]).encode()),
    ("processes", 2_000, lambda n: json.dumps([
        {"ph": "M", "name": "process_name", "pid": i, "args": {"name": f"p{i}"}} for i in range(n)]).encode()),
    ("categories", 5_000, lambda n: json.dumps([event(f"c{i}", "f", i, 1.0) for i in range(n)]).encode()),
    ("phases", 5_000, lambda n: json.dumps([{**event("c", "f", i, 1.0), "ph": f"p{i}"} for i in range(n)]).encode()),
    ("nodes of an execution trace", 5_000, lambda n: json.dumps({"schema": "1.1", "nodes": [{"id": i, "name": f"n{i}"} for i in range(n)]}).encode()),
    ("records of rocprofv3", 5_000, lambda n: json.dumps({"rocprofiler-sdk-tool": [{"records": [{"id": i} for i in range(n)]}]}).encode()),
    ("keys at the top", 5_000, lambda n: json.dumps({f"k{i}": i for i in range(n)}).encode()),
    ("lines of JSON", 5_000, text('{"a": 1}\n')),
    ("lines of anything", 20_000, text("step 1 loss 0.5\n")),
    ("open brackets", 20_000, text("[")),
    ("quotes", 20_000, text('"')),
    ("markup", 20_000, lambda n: b"<html>" + b"<p>x</p>" * n),
)
table("other tools", lambda made: made, ANALYZE,
    *((f"files of {name}", 300, lambda n, ending=ending, head=head: {f"f{i}{ending}": head for i in range(n)}) for name, ending, head in (
        ("Nsight Systems", ".nsys-rep", b"x"), ("an SQLite database", ".sqlite", b"SQLite format 3\0" + b"NVTX_EVENTS"),
        ("TensorBoard", ".tfevents.1", b"x"), ("rocprof", ".csv", b'"Kind","Agent_Id"\n'), ("cProfile", ".prof", b"x"))),
    ("length of a database", 1 << 20, lambda n: {"a.sqlite": b"SQLite format 3\0" + bytes(n)}),
    ("stacks with counts", 20_000, lambda n: {"a.txt": "main;f;g 1\n" * n}),
    ("frames of a stack", 20_000, lambda n: {"a.folded": "main;" * n + "g 1\n"}),
    ("lines of TORCH_TRACE", 5_000, lambda n: {"a.log": 'V1121 22:44:58.452000 24602 torch/_logging/structured.py:22] {"str": ["a", 1]}\n' * n}),
)
# fmt: on

Member = tuple[tarfile.TarInfo, bytes]


def archive(members: Iterable[Member]) -> bytes:
    packed_members = []
    for info, data in members:
        info.size = len(data)
        packed_members.append(info.tobuf(format=tarfile.GNU_FORMAT) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
    return gzip.compress(b"".join(packed_members) + bytes(1024), 1)


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Member:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info, data


def pax(keys: int) -> bytes:
    def line(key: bytes) -> bytes:
        return b"%d %s" % (len(key) + 3, key)

    return b"".join(line(b"%x=v\n" % key) for key in range(0x1000000, 0x1000000 + keys))


# fmt: off
table("archive", lambda members: {"all.tar.gz": archive(members)}, ANALYZE,
    ("empty members", 2_000, lambda n: (member(f"{i}.txt") for i in range(n))),
    ("members that are no traces", 1_000, lambda n: (member(f"{i}.json", b"{}") for i in range(n))),
    ("traces", 20, lambda n: (member(f"rank{i}.json", trace(ops(50), rank=i, ranks=n)) for i in range(n))),
    ("archives", 50, lambda n: {f"{at}.tar.gz": archive([member("rank0.json", trace(ONE_OP, rank=at, ranks=n))]) for at in range(n)}),
    ("members after a global header", 250, lambda n: [member("x", pax(5_000), tarfile.XGLTYPE), *(member(f"{i}.txt") for i in range(n))]),
    ("headers of members", 100, lambda n: each(n, lambda i: [member("x", pax(2_000), tarfile.XHDTYPE), member("x")])),
    ("global headers", 300, lambda n: [member("x", pax(20), tarfile.XGLTYPE) for _ in range(n)]),
    ("long names", 500, lambda n: each(n, lambda i: [
        member("x", b"d/" * 1_000 + b"%d.json" % i, tarfile.GNUTYPE_LONGNAME), member("x", b"{}")])),
    ("gzip members", 20_000, lambda n: {"all.tar.gz": EMPTY_MEMBER * n + archive([member("rank0.json", trace(ONE_OP))])}),
)
# fmt: on

# -- Flight Recorder ---------------------------------------------------------------------------------------------------


def entry(number: int, group: str = "0", state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": [group, "g"], "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_758_610_505_037_133_755 + number, "input_sizes": [[1000]],
        "input_dtypes": ["Float"], "output_sizes": [[1000]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": 0, "time_discovered_completed_ns": 1 if state == "completed" else None,
        "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def waiting(number: int, group: str = "0", **more: Any) -> dict[str, Any]:
    return entry(number, group, "scheduled", **more)


def dump(rank: int, entries: Sequence[Any], groups: Mapping[str, Iterable[int]], form: str = "pickle") -> Files:
    status = {"last_enqueued_collective": 5, "last_started_collective": 5, "last_completed_collective": 4}
    document = {
        "version": "2.10", "nccl_version": "2.27.3", "entries": list(entries), "pg_status": dict.fromkeys(groups, status),
        "pg_config": {name: {"name": name, "desc": f"g{name}", "ranks": str(list(ranks))} for name, ranks in groups.items()},
    }  # fmt: skip
    name = f"nccl_trace_rank_{rank}"
    return {name: pickle.dumps(document, 2)} if form == "pickle" else {f"{name}.json": json.dumps(document)}


def dumps(ranks: int, entries: Callable[[int], Sequence[Any]], groups: Mapping[str, Iterable[int]], form: str) -> Files:
    return joined(dump(rank, entries(rank), groups, form) for rank in range(ranks))


PAIR = {"0": range(2)}
FRAMES = [{"name": f"f{i}", "filename": "a.py", "line": i} for i in range(60)]


def frames(n: int, file: str = "a.py") -> list[dict[str, Any]]:
    return [{"name": f"f{i}", "filename": file, "line": i} for i in range(n)]


# fmt: off
for _form in ("pickle", "json"):
    table(f"dump ({_form})", lambda made, form=_form: dumps(*made, form), TRIAGE,
        ("entries", 1_000, lambda n: (2, lambda rank: [entry(i, state="scheduled" if i == n - 1 else "completed") for i in range(n - rank)], PAIR)),
        ("groups", 500, lambda n: (
            2, lambda rank: [entry(i, str(i), "scheduled" if rank else "completed") for i in range(n)], {str(i): range(2) for i in range(n)})),
        ("ranks of a group", 20_000, lambda n: (2, lambda rank: [waiting(i) for i in range(5 - rank)], {"0": range(n)})),
        ("sizes of an entry", 10_000, lambda n: (2, lambda _: [waiting(1, input_sizes=[[i] for i in range(n)])], PAIR)),
    )
table("dump (pickle)", lambda made: dumps(*made, "pickle"), TRIAGE,
    ("frames", 5_000, lambda n: (2, lambda _: [waiting(1, frames=frames(n, "train.py"))], PAIR)),
    ("ranks", 50, lambda n: (n, lambda rank: [waiting(i) for i in range(10 - (rank == 3))], {"0": [0, 1, 2, 3, n - 1]})),
    ("dumps of one rank", 50, lambda n: joined(below(f"set{at}", dump(0, [waiting(at * 100 + i) for i in range(10)], PAIR)) for at in range(n))),
    ("point-to-point calls of rings", 100, lambda n: joined(
        dump(rank, [waiting(1, is_p2p=True, profiling_name=f"nccl:recv {rank}<-{(rank + 1) % n}", p2p_seq_id=1)], {"0": [rank, (rank + 1) % n]})
        for rank in range(n))),
)
# fmt: on

# -- snapshots of memory -----------------------------------------------------------------------------------------------


def snapshot(segments: Sequence[Any], traces: Sequence[Any] = (), name: str = "rank0") -> Files:
    document = {
        "segments": segments,
        "device_traces": [list(traces)],
        "allocator_settings": {},
        "external_annotations": [],
    }
    return {f"{name}.pickle": pickle.dumps(document, 4)}


def segment(address: int, blocks: Sequence[Any], size: int) -> dict[str, Any]:
    return {
        "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": list(blocks),
    }  # fmt: skip


def block(address: int, size: int = 512, **more: Any) -> dict[str, Any]:
    known = {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
    return {**known, "frames": [{"name": "forward", "filename": "/home/me/train.py", "line": address % 97}], **more}


def allocation(i: int, frames: Sequence[Any], action: str, address: int) -> dict[str, Any]:
    about = {"size": 512, "stream": 0, "time_us": 0, "compile_context": "N/A", "user_metadata": ""}
    return {**about, "action": action, "addr": address, "frames": list(frames)}


BLOCK = [segment(0, [block(0)], 512)]

# fmt: off
table("memory snapshot", lambda segments: snapshot(segments), ANALYZE,
    ("blocks", 10_000, lambda n: [segment(0, [block(i * 512) for i in range(n)], n * 512)]),
    ("segments", 5_000, lambda n: [segment(i << 20, [block(i << 20)], 1 << 20) for i in range(n)]),
    ("events", 10_000, lambda n: snapshot(BLOCK, [
        allocation(i, [{"name": f"f{i}", "filename": "a.py", "line": i}], "alloc" if i % 3 else "free_completed", (i // 3) * 512) for i in range(n)])),
    ("events that are never freed", 10_000, lambda n: snapshot(BLOCK, [allocation(i, FRAMES[:20], "alloc", i * 512) for i in range(n)])),
    ("failed allocations", 5_000, lambda n: snapshot(BLOCK, [allocation(i, FRAMES[:5], "oom", i) for i in range(n)])),
    ("frames of a block", 20_000, lambda n: [segment(0, [block(0, frames=frames(n))], 512)]),
    ("frames of events", 500, lambda n: snapshot(BLOCK, [
        allocation(i, [{"name": f"f{i}-{j}", "filename": "a.py", "line": j} for j in range(60)], "alloc", i * 512) for i in range(n)])),
    ("blocks that share their frames", 5_000, lambda n: [segment(0, [block(i * 512, frames=FRAMES) for i in range(n)], n * 512)]),
    ("files", 50, lambda n: joined(snapshot(BLOCK, name=f"rank-{rank}") for rank in range(n))),
)
# fmt: on

# -- logs --------------------------------------------------------------------------------------------------------------


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


def log(text: Iterable[str]) -> str:
    return "\n".join(text) + "\n"


def inits(ranks: int, **more: Any) -> list[str]:
    return [init(rank, ranks, **more) for rank in range(ranks)]


def restart(i: int) -> list[str]:
    return [
        "W1121 22:44:58.452000 24602 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1",
        *inits(2, communicator=i), "step 1 loss 1.0", *raised(1),
        f"E1121 22:44:58.537000 24602 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: {i}) of binary: /opt/venv/bin/python",
        "I1121 22:44:59.537000 24602 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. 3/3 attempts left; will restart worker group",
    ]  # fmt: skip


def attempt(i: int) -> list[str]:
    ends = [raised(1) if rank == 1 else [watchdog(rank)] for rank in range(4)]
    return [
        f"[default{rank}]:{text}" for rank in range(4) for text in (init(rank, 4, i), "step 1 loss 1.0", *ends[rank])
    ]


def failure(rank: int) -> list[str]:
    return [
        f"[{rank}]:", "  time      : 2026-11-21_22:44:58", "  host      : h", f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : -9 (pid: {rank})", "  error_file: <N/A>", f"  traceback : Signal 9 (SIGKILL) received by PID {rank}",
    ]  # fmt: skip


def mismatch(rank: int) -> str:
    def print_of(shape: int) -> str:
        return f"CollectiveFingerPrint(SequenceNumber=35, OpType=ALLREDUCE, TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"

    return f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: {print_of(rank)}, but Rank {rank + 1} is running collective: {print_of(7)}."


STACK = [
    "Current thread 0x00007f (most recent call first):",
    '  File "train.py", line 5 in step',
    '  File "train.py", line 9 in <module>',
    "",
]
DURING = ("[rank0]: ", "[rank0]: During handling of the above exception, another exception occurred:", "[rank0]: ")


def spied(n: int) -> list[str]:
    threads = (
        f'Thread {i} (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:{i})'
        for i in range(n)
    )
    return ["Process 123: python train.py", "Python v3.11.7 (/usr/bin/python3.11)", "", *threads]


# fmt: off
table("log", lambda made: {"a.log": log(made)}, TRIAGE,
    ("lines", 20_000, lambda n: [*(f"step {i} loss 0.5" for i in range(n)), watchdog(1)]),
    ("lines of NCCL", 10_000, lambda n: [*(f"h:1:{i} [0] NCCL INFO Channel 00/0 : {i % 8}[0] -> 1[1] via P2P/IPC" for i in range(n)), watchdog(1)]),
    ("ranks of a communicator", 1_000, lambda n: [*inits(n), watchdog(1)]),
    ("ranks that never initialised", 1_000, lambda n: [init(rank, n + 1, state="START") for rank in range(n)]),
    ("huge communicators", 100, lambda n: [init(i, 1_000_000, i, host=f"h{i}") for i in range(n)]),
    ("huge communicators beside a timeout", 100, lambda n: [
        *(init(0, 1_000_000, i) for i in range(n)), *(watchdog(0, group=str(i)) for i in range(n)), watchdog(999_999)]),
    ("communicators", 1_000, lambda n: [*each(n, lambda i: inits(2, communicator=i)), watchdog(1)]),
    ("timeouts of ranks", 1_000, lambda n: each(n, lambda rank: [watchdog(rank, 800 + rank % 3), status(rank, 799 + rank % 3)])),
    ("timeouts of groups", 1_000, lambda n: each(n, lambda i: [watchdog(i % 8, i, str(i)), status(i % 8, i, str(i))])),
    ("timeouts with other sizes", 1_000, lambda n: [watchdog(rank, 812, size=rank + 1) for rank in range(n)]),
    ("calls", 2_000, lambda n: [*inits(2), *each(n, lambda i: [call(0, i), call(1, i)]), watchdog(1)]),
    ("calls of communicators", 1_000, lambda n: [*each(n, lambda i: [
        text for rank in range(2) for text in (init(rank, 2, i), call(rank, 5 - (i == 7 and rank), i))]), watchdog(1)]),
    ("calls of ranks", 1_000, lambda n: [*inits(n), *(call(rank, 9 - (rank == 3), ranks=n) for rank in range(n)), watchdog(1)]),
    ("exceptions of ranks", 1_000, lambda n: each(n, raised)),
    ("kinds of exceptions", 1_000, lambda n: each(n, lambda rank: raised(rank, f"ValueError{rank}: {rank}"))),
    ("frames of an exception", 5_000, lambda n: [
        raised(0)[0], *(f'[rank0]:   File "train.py", line {i}, in f{i}' for i in range(n)), raised(0)[2]]),
    ("chained exceptions", 1_000, lambda n: each(n, lambda i: [*raised(0, f"ValueError: {i}"), *DURING])),
    ("restarts", 200, lambda n: each(n, restart)),
    ("attempts of ranks", 200, lambda n: each(n, attempt)),
    ("reports of torchrun", 500, lambda n: ["=" * 60, "train.py FAILED", "-" * 60, "Failures:", *each(n, failure), "=" * 60]),
    ("hosts", 1_000, lambda n: [
        *(init(rank, n, host=f"host{rank}") for rank in range(n)),
        *(f"host{rank}:{rank + 10}:1 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error" for rank in range(n))]),
    ("failed connections", 1_000, lambda n: [
        f"h{i}:{i}:1 [0] NCCL WARN socketProgressOpt: Call to recv from 10.0.{i // 250 % 250}.{i % 250}<{i % 60000}> failed : Connection reset by peer"
        for i in range(n)]),
    ("kills", 1_000, lambda n: [
        f"E1121 22:44:58.537000 24602 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: {i % 8} (pid: {i}) of binary: /opt/venv/bin/python"
        for i in range(n)]),
    ("errors of GPUs", 1_000, lambda n: [
        f"kernel: NVRM: Xid (PCI:0000:{i % 256:02x}:00): {13 + i % 80}, pid={i}, name=python, GPU has fallen off the bus." for i in range(n)]),
    ("files", 100, lambda n: {f"rank_{rank}.log": log([init(rank, n), "step 1 loss 0.5", watchdog(rank, 800 + (rank == 3))]) for rank in range(n)}),
    ("files of communicators", 50, lambda n: {
        f"rank_{rank}.log": log([*(init(rank, 1_000_000, i) for i in range(20)), watchdog(rank)]) for rank in range(n)}),
    ("length of a line", 500_000, lambda n: [watchdog(1), "h:1:1 [0] NCCL WARN " + "x=1 [rank " * (n // 10)]),
    ("length of a number", 100_000, lambda n: [
        watchdog(1), watchdog(2).replace("812", "8" * n), init(0, 2).replace("nranks 2", "nranks " + "2" * n)]),
    ("gzip members", 20_000, lambda n: {"a.log.gz": EMPTY_MEMBER * n + gzip.compress(watchdog(1).encode())}),
    ("name in a gzip header", 600_000, lambda n: {"a.log.gz": with_name(watchdog(1), n)}),
    ("steps of ranks", 1_000, lambda n: [*(f"[rank{rank}] step {5 + (rank != 3)} loss 0.5" for rank in range(n)), watchdog(1)]),
    ("missing ranks in a barrier", 1_000, lambda n: [
        f"[rank{rank}]: torch.distributed.DistBackendError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/{rank}" for rank in range(n)]),
    ("ranks in a mismatch", 1_000, lambda n: [mismatch(rank) for rank in range(n)]),
    ("stacks", 500, lambda n: {f"stacks_rank{rank}.txt": log(STACK * n) for rank in range(2)}),
    ("py-spy's stacks", 500, lambda n: {f"py-spy-rank{rank}.txt": log(spied(n)) for rank in range(2)}),
)
# fmt: on


def ras(ranks: int, counts: dict[int, dict[str, int]]) -> reports.Job:
    return reports.job(reports.Comm(list(range(ranks)), counts=counts), world=ranks)


def late(ranks: int) -> reports.Job:
    return ras(ranks, {ranks - 1: {"AllReduce": 60}})


# fmt: off
table("RAS", lambda text: {"ras.txt": log(text)}, TRIAGE,
    ("ranks (text)", 500, lambda n: [reports.text(late(n))]),
    ("ranks (JSON)", 500, lambda n: {"ras.json": log([reports.as_json(late(n))])}),
    ("ranks that all differ", 500, lambda n: {"ras.json": log([reports.as_json(ras(n, {i: {"AllReduce": i} for i in range(n)}))])}),
    ("reports", 100, lambda n: [reports.text(late(8))] * n),
    ("files", 50, lambda n: {f"ras{at}.txt": log([reports.text(late(8))]) for at in range(n)}),
)
# fmt: on

# -- run directories ---------------------------------------------------------------------------------------------------

MINUTE_NS = 5_765_391_474_100  # on the sample's clock


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (SAMPLE / "ranks" / "00000" / name).read_text().splitlines()]


def run(ranks: int = 2, steps: int = 16, **more: Any) -> dict[str, bytes | str]:
    """The sample's ranks, so many times, with so many of its steps, one after another."""
    manifest = json.loads((SAMPLE / "manifest.json").read_text())
    identity = json.loads((SAMPLE / "ranks" / "00000" / "rank.json").read_text())
    of_steps, calls = recorded("steps.jsonl"), recorded("collectives.jsonl")
    took = of_steps[-1]["end_ns"] - of_steps[0]["begin_ns"] + 1_000_000
    files = {"manifest.json": json.dumps({**manifest, "world_size": ranks, "mesh": {"dp": ranks}, **more})}
    for rank in range(ranks):
        files[f"ranks/{rank:05d}/rank.json"] = json.dumps(
            {**identity, "rank": rank, "local_rank": rank, "world_size": ranks, "pid": 100 + rank}
        )
        for name, found in (("steps.jsonl", of_steps), ("collectives.jsonl", calls)):
            files[f"ranks/{rank:05d}/{name}"] = jsonl(
                moved(found[step % len(found)], step // len(found) * took)
                | {"step": step}
                | groups_of(found[0], step, ranks)
                for step in range(steps)
            )
    return files


def groups_of(line: dict[str, Any], step: int, ranks: int) -> dict[str, Any]:
    return {"groups": {"0": list(range(ranks))} if step == 0 else {}} if "rows" in line else {}


def moved(value: Any, by: int) -> Any:
    """The document with its times (any number as large as one) later."""
    if isinstance(value, dict):
        return {key: moved(inner, by) if key != "memory" else inner for key, inner in value.items()}
    if isinstance(value, list):
        return [moved(inner, by) for inner in value]
    return value + by if isinstance(value, int) and value > 10**12 else value


def jsonl(documents: Iterable[Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in documents)


def also_of_ranks(name: str, content: Callable[[int], str], ranks: int = 2, **about: Any) -> Files:
    """A run in which each rank has one more file."""
    return {**run(ranks, **about), **{f"ranks/{rank:05d}/{name}": content(rank) for rank in range(ranks)}}


def with_lines(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Files:
    """A run of four steps whose lines in this file are changed."""
    files = run(steps=4)
    for rank in range(2):
        path = f"ranks/{rank:05d}/{name}"
        files[path] = jsonl({**line, **change(line)} for line in map(json.loads, str(files[path]).splitlines()))
    return files


def rows(line: dict[str, Any], n: int, group_and_seq: Callable[[int], tuple[str, int]]) -> list[list[Any]]:
    first = line["rows"][0][5]
    return [
        [*group_and_seq(i), "all_reduce", 1000, "float32", *(first + i * 10 + by for by in (0, 5, 0, 5))] for i in range(n)
    ]  # fmt: skip


def groups(line: dict[str, Any], of_all: dict[str, list[int]]) -> dict[str, Any]:
    return {"groups": of_all if line["step"] == 0 else {}}


def took(rank: int, i: int, group: int = 0, seq: int | None = None) -> list[Any]:
    return [
        str(group),
        i if seq is None else seq,
        "all_reduce",
        1000,
        "float32",
        5_765_500_000_000 + i * 1000,
        500 + rank * 300,
    ]


def durations(lines: Callable[[int], Iterable[tuple[list[Any], dict[str, list[int]]]]]) -> Files:
    def of_rank(rank: int) -> str:
        return jsonl({"rows": found, "groups": members, "recorder": "nccl"} for found, members in lines(rank))

    return also_of_ranks("durations.jsonl", of_rank, steps=4)


def samples(n: int, name: str, sample: Callable[[int], dict[str, Any]]) -> Files:
    return also_of_ranks(name, lambda _: jsonl(sample(MINUTE_NS + i * 10**6) for i in range(n)))


DEVICE = {
    "unavailable": "", "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "power_mw": 700_000, "temperature_c": 60, "utilization_percent": 90,
    "memory_used": 1 << 30, "throttle_reasons": [], "ecc_corrected": 0, "ecc_uncorrected": 0, "pcie_tx_kb_s": 1, "pcie_rx_kb_s": 1,
    "nvlink_tx_kib": 1, "nvlink_rx_kib": 1,
}  # fmt: skip
PHASES = ("forward", "backward", "optimizer")


def windows(n: int) -> Files:
    files = run(ranks=1, steps=n)
    steps = map(json.loads, str(files["ranks/00000/steps.jsonl"]).splitlines())
    for number, step in enumerate(steps):
        begin = step["begin_ns"] / 1000
        files[f"ranks/00000/trace-step{number:06d}.json.gz"] = packed([mark(number, begin, 1000.0), op(begin + 5)])
    return files


# fmt: off
table("run", lambda made: made, ANALYZE,
    ("steps", 500, lambda n: run(steps=n)),
    ("ranks", 8, lambda n: run(ranks=n)),
    ("steps, exported", 500, lambda n: run(steps=n), PROMETHEUS),
    ("ranks, triaged", 16, lambda n: also_of_ranks("log.txt", lambda rank: log(raised(rank)), n), TRIAGE),
    ("steps, triaged", 500, lambda n: also_of_ranks("heartbeat.json", lambda _: json.dumps(
        {"unix_ns": 10**18, "monotonic_ns": 10**12, "step": n, "phase": "backward", "steps": n}), steps=n), TRIAGE),
    ("collectives of a step", 500, lambda n: with_lines("collectives.jsonl", lambda line: {
        "rows": rows(line, n, lambda i: ("0", line["step"] * n + i))})),
    ("groups", 500, lambda n: with_lines("collectives.jsonl", lambda line: {
        **groups(line, {str(i): [0, 1] for i in range(n)}), "rows": rows(line, n, lambda i: (str(i), line["step"]))})),
    ("ranks of a group", 20_000, lambda n: with_lines("collectives.jsonl", lambda line: groups(line, {"0": list(range(n))}))),
    ("phases of a step", 500, lambda n: with_lines("steps.jsonl", lambda line: {
        "phases": [(PHASES[i % 3], line["begin_ns"] + i * 100, line["begin_ns"] + i * 100 + 90) for i in range(n)]})),
    ("garbage collections", 1_000, lambda n: with_lines("steps.jsonl", lambda line: {
        "gc": [[line["begin_ns"] + i * 100, line["begin_ns"] + i * 100 + 90] for i in range(n)]})),
    ("durations", 2_000, lambda n: durations(lambda rank: (
        ([took(rank, i) for i in range(at, min(at + 50, n))], {} if at else {"0": [0, 1]}) for at in range(0, n, 50)))),
    ("groups with durations", 500, lambda n: durations(lambda rank: [
        ([took(rank, i, group=i, seq=1) for i in range(n)], {str(i): [0, 1] for i in range(n)})])),
    ("groups with durations that change their ranks", 500, lambda n: durations(lambda _: (
        ([took(0, i)], {"0": [0, 1, i + 2]}) for i in range(n)))),
    ("samples of devices", 3_000, lambda n: samples(n, "device.jsonl", lambda at: {**DEVICE, "monotonic_ns": at})),
    ("samples of the host", 3_000, lambda n: samples(n, "host.jsonl", lambda at: {
        "monotonic_ns": at, "interval_ns": 10**6, "pauses": [[at, at + 800]]})),
    ("readings of the machine", 3_000, lambda n: samples(n, "machine.jsonl", lambda at: {
        "monotonic_ns": at, "values": {"net.eth0.rx_errors": at}, "whole": False})),
    ("checkpoints", 500, lambda n: also_of_ranks("checkpoints.jsonl", lambda _: jsonl(
        {"step": i, "start_ns": MINUTE_NS + i * 10**6, "blocking_ns": 1000, "bytes": 10} for i in range(n)))),
    ("restarts", 16, lambda n: joined([run(steps=4), *(below(f"restart-{at}", run(steps=4)) for at in range(1, n + 1))])),
    ("restarts, triaged", 16, lambda n: joined([run(steps=4), *(
        below(f"restart-{at}", {**run(steps=4), "ranks/00001/log.txt": log(raised(1))}) for at in range(1, n + 1))]), TRIAGE),
    ("windows of the profiler", 20, windows),
    ("folders of ranks that are empty", 300, lambda n: {**run(), **{f"ranks/{rank:05d}/": "" for rank in range(2, n)}}),
    ("names that are no ranks", 500, lambda n: {**run(), **{f"ranks/x{at}/": "" for at in range(n)}}),
    ("exits", 5_000, lambda n: {
        **run(world_size=n), "exits.json": json.dumps([{"rank": i, "exit_code": 1, "first": i == 0} for i in range(n)])}, TRIAGE),
    ("a mesh of many dimensions", 5_000, lambda n: run(mesh={f"a{i}": 1 for i in range(n)})),
    ("ranks with summaries", 100, lambda n: lambda folder: write_summaries(Job(n, steps=50), folder), SUMMARY),
    ("steps in summaries", 500, lambda n: lambda folder: write_summaries(Job(8, steps=n), folder), SUMMARY),
    ("copies", 10, lambda n: joined(below(f"job{at}", run(steps=4)) for at in range(n))),
)
# fmt: on

# -- NCCL Inspector ----------------------------------------------------------------------------------------------------


def inspector(process: int, records: int = 20, communicators: int = 1, ranks: int = 2, group: str = "0xa") -> Files:
    by, took_us = metadata("v4.0", "h", 100 + process), [collective(i, 100.0 + process) for i in range(records)]
    abouts = [header(group + (str(at) if at else ""), process, ranks) for at in range(communicators)]
    return {f"h-pid{100 + process}.log": "".join(lines("v4.0", about, by, took_us) for about in abouts)}


def inspectors(processes: int, **more: Any) -> Files:
    return joined(inspector(process, **more) for process in range(processes))


def one_dump(group: str = "0x1", pid: int = 1) -> str:
    return lines("v4.0", header(group, 0, 2), metadata("v4.0", "h", pid), [collective(1, 100.0)])


def sample_for_prometheus(rank: int, i: int) -> str:
    labels = f'node="h",gpu="GPU{rank}",comm_name="c{i}",nranks="2",collective="AllReduce",message_size="1-2MB"'
    return f"nccl_collective_exec_time_microseconds{{{labels}}} {100 + rank}\n"


# fmt: off
table("Inspector", lambda made: {"inspector.log.gz": made}, ANALYZE,
    ("records", 2_000, lambda n: inspectors(2, records=n)),
    ("processes", 50, lambda n: inspectors(n, ranks=n)),
    ("processes of jobs of their own", 50, lambda n: joined(inspector(process, group=f"0x{process}") for process in range(n))),
    ("processes in one file", 1_000, lambda n: {"h-pid1.log": "".join(one_dump(f"0x{process}", process) for process in range(n))}),
    ("communicators", 500, lambda n: inspectors(2, communicators=n, records=2)),
    ("huge communicators", 500, lambda n: inspectors(2, communicators=n, records=2, ranks=1 << 20)),
    ("blank lines, packed", 1 << 22, lambda n: gzip.compress(one_dump().encode() + b"\n" * n)),
    ("records, packed", 5_000, lambda n: gzip.compress(one_dump().encode() * n)),
    ("name in a gzip header", 600_000, lambda n: {**inspectors(2), "inspector.log.gz": with_name(one_dump(), n)}),
    ("samples for Prometheus", 1_000, lambda n: {
        f"nccl_inspector_metrics_{rank}.prom": "".join(sample_for_prometheus(rank, i) for i in range(n)) for rank in range(2)}),
)
# fmt: on

# -- configurations ----------------------------------------------------------------------------------------------------

# fmt: off
table("YAML", lambda text: {"c.yaml": text}, PLAN,
    ("keys", 1_000, lambda n: "distributed_type: FSDP\n" + "".join(f"k{i}: {i}\n" for i in range(n))),
    ("depth in flow", 500, lambda n: "a: " + "[" * n + "]" * n + "\n"),
    ("depth of mappings in flow", 500, lambda n: "a: " + "{a: " * n + "1" + "}" * n + "\n"),
    ("depth of blocks", 100, lambda n: "".join(" " * i + "a:\n" for i in range(n))),
    ("depth of sequences", 500, lambda n: "a:\n " + "- " * n + "1\n"),
    ("anchors", 500, lambda n: "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, n))),
    ("merged mappings", 500, lambda n: "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i}\n  <<: *a{i - 1}\n  k{i}: 1\n" for i in range(1, n))),
    ("digits", 50_000, lambda n: "a: " + "9" * n + "\n"),
    ("sexagesimal digits", 5_000, lambda n: "a: 1" + ":59" * n + "\nb: 1" + ":59" * n + ".5\n"),
    ("binary digits", 50_000, lambda n: "a: 0b" + "1" * n + "\nb: 0x" + "f" * n + "\nc: 0" + "7" * n + "\n"),
    ("documents", 500, lambda n: "a: 1\n---\n" * n),
    ("length of a key", 100_000, lambda n: "a" * n + ": 1\n"),
    ("length of a text with blanks", 20_000, lambda n: 'a: "' + "x \\\n  " * n + '"\n'),
)
table("JSON", lambda text: {"c.json": text}, PLAN,
    ("keys", 1_000, lambda n: json.dumps({"zero_optimization": {"stage": 3}, **{f"k{i}": i for i in range(n)}})),
    ("depth", 500, lambda n: '{"a": ' * n + "1" + "}" * n),
    ("depth of lists", 500, lambda n: '{"a": ' + "[" * n + "]" * n + "}"),
    ("digits", 50_000, lambda n: '{"train_batch_size": ' + "9" * n + "}"),
    ("comments", 2_000, lambda n: '{"a": 1, // x\n' + "/* // */ // \n" * n + '"b": [1,],}'),
    ("quotes in comments", 2_000, lambda n: '{"a": 1, //' + '"\\' * n + "\n}"),
    ("spaces", 20_000, lambda n: '{"a": 1,' + " " * n + "// x\n" + "\n" * n + "}"),
)
table("TOML", lambda text: {"c.toml": text}, PLAN,
    ("keys", 1_000, lambda n: "[training]\n" + "".join(f"k{i} = {i}\n" for i in range(n))),
    ("tables", 500, lambda n: "".join(f"[t{i}]\na = 1\n" for i in range(n))),
    ("depth of a key", 500, lambda n: ".".join(["a"] * n) + " = 1\n"),
    ("depth of tables", 20, lambda n: "".join("[" + ".".join(["a"] * i) + "]\n" for i in range(1, n))),
    ("depth of lists", 500, lambda n: "a = " + "[" * n + "]" * n + "\n"),
    ("digits", 50_000, lambda n: "[training]\nseq_len = " + "9" * n + "\n"),
    ("length of a text", 100_000, lambda n: '[training]\na = """' + '\\"\n' * n + '"""\n'),
)
# fmt: on

TRACES = (
    "trace: CPU operators",
    "trace: kernels",
    "trace: collectives of two ranks",
    "trace: marks of steps",
    "trace: names of kernels",
)
OF_RUNS = ("run: steps", "run: ranks", "run: collectives of a step", "run: groups")

also("open", OPEN, (*TRACES, "trace: depth of nested operators", "run: windows of the profiler"))
also("open", (*OPEN, "--step", "1"), OF_RUNS)
also(
    "report",
    REPORT,
    (*TRACES, "trace: files", "trace: depth of nested modules", *OF_RUNS, "run: durations"),
)
also("compare", COMPARE, (*TRACES, "trace: files", *OF_RUNS, "run: durations"))
also("check", CHECK, (*TRACES[:2], *OF_RUNS))
also("export jsonl", JSONL, (*OF_RUNS, "run: samples of devices"))
also("export tensorboard", CURVES, OF_RUNS)
also("triage", TRIAGE, (*OF_RUNS, "run: durations", "run: copies", "trace: collectives of two ranks"))
also(
    "timeline",
    timeline,
    (
        *TRACES,
        "trace: overlapping kernels",
        "trace: threads",
        "trace: depth of nested operators",
        "trace: depth of nested modules",
        *OF_RUNS,
    ),
)
for _page, _names in {
    "overview": (*TRACES, "trace: files", *OF_RUNS), "timeline": (*TRACES[:2], *OF_RUNS), "kernels": TRACES, "collectives": (TRACES[2], *OF_RUNS),
    "memory": ("trace: copies and allocations", *OF_RUNS), "input": OF_RUNS, "what-if": OF_RUNS,
}.items():  # fmt: skip
    also(f"page {_page}", page(_page), _names)
