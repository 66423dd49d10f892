"""Synthetic Kineto traces whose truth the test knows. Times in ns from the trace's own zero."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

Layout = Literal["compact", "indented", "kineto"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
PID, MAIN, AUTOGRAD, WIRE = 100, 1, 2, 3
BASE_NS = 1_735_689_600_000_000_000


class KinetoBuilder:
    """Collects events; every method returns the builder, so that a trace reads as one list of what happens."""

    def __init__(
        self, rank: int | None = 0, world_size: int = 2, backend: str = "nccl", base_ns: int = BASE_NS
    ) -> None:
        self.base_ns = base_ns
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": base_ns,
            "host_name": "node-a",
            "deviceProperties": [{"id": 0, "name": "Test GPU"}],
        }
        if rank is not None:
            groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": [*range(world_size)]}]
            self.header["distributedInfo"] = {
                "backend": backend, "rank": rank, "world_size": world_size, "pg_config": groups,
            }  # fmt: skip
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def event(
        self, cat: str, name: str, start: int, end: int, tid: int | str = MAIN, pid: int = PID, **args: Any
    ) -> KinetoBuilder:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": args,
            }
        )
        return self

    def step(self, number: int, start: int, end: int, prefix: str = "diag.step#") -> KinetoBuilder:
        return self.range(f"{prefix}{number}", start, end)

    def range(
        self, name: str, start: int, end: int, tid: int = MAIN, args: dict[str, Any] | None = None
    ) -> KinetoBuilder:
        return self.event("user_annotation", name, start, end, tid, **(args or {}))

    def op(self, name: str, start: int, end: int, tid: int = MAIN, **args: Any) -> KinetoBuilder:
        return self.event("cpu_op", name, start, end, tid, **args)

    def runtime(self, name: str, start: int, end: int, tid: int = MAIN, **args: Any) -> KinetoBuilder:
        return self.event("cuda_runtime", name, start, end, tid, **args)

    def kernel(
        self,
        start: int,
        end: int,
        name: str = "gemm",
        launch: int | None = None,
        stream: int = 7,
        tid: int = MAIN,
        **args: Any,
    ) -> KinetoBuilder:
        """A kernel and, where ``launch`` says when, the host's call that launched it (1 ns long)."""
        return self._device("kernel", name, start, end, launch, "cudaLaunchKernel", stream, tid, args)

    def copy(
        self,
        start: int,
        end: int,
        direction: str = "HtoD",
        launch: int | None = None,
        until: int | None = None,
        stream: int = 7,
    ) -> KinetoBuilder:
        """A copy; the call that made it lasts ``until``, 1 ns by default."""
        name = f"Memcpy {direction} (x -> y)"
        return self._device("gpu_memcpy", name, start, end, launch, "cudaMemcpyAsync", stream, MAIN, {}, until)

    def gloo(self, op: str, start: int, end: int, dims: str = "[[1000]]") -> KinetoBuilder:
        return self.range(f"gloo:{op}", start, end, WIRE, {"Input Dims": json.loads(dims), "Input type": ["float"]})

    def memory(
        self,
        at: int,
        allocated: int | None,
        reserved: int | None,
        device: int = 0,
        size: int = 512,
        addr: int | None = 140_000_000_000_000,
        tid: int = MAIN,
        kind: int = 1,
    ) -> KinetoBuilder:
        """An allocation on the GPU (released where ``size`` is negative): what the allocator holds after it, in bytes.
        None: an older profiler does not record that. ``kind``: 1 CUDA, 6 HIP, 0 the host."""
        told = {"Device Type": kind, "Device Id": device, "Addr": addr, "Bytes": size}
        told |= {"Total Allocated": allocated, "Total Reserved": reserved}
        args = {key: value for key, value in told.items() if value is not None}
        self._plain("i", at, cat="cpu_instant_event", s="t", name="[memory]", args=args)
        self.events[-1]["tid"] = tid
        return self

    def flows(self) -> KinetoBuilder:
        """Kineto's arrow from each launch to its kernel: two events that share an id."""
        for event in list(self.events):
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                ends = {"ph": "f", "bp": "e"} if event["cat"] in ("kernel", "gpu_memcpy") else {"ph": "s"}
                keys = {key: event[key] for key in ("pid", "tid", "ts")}
                self.events.append({**ends, "id": correlation, **keys, "cat": "ac2g", "name": "ac2g"})
        return self

    def framed(self) -> KinetoBuilder:
        """What the profiler writes around the events: names of the processes, its own span, and two instants."""
        for key, value in (("name", "python3"), ("labels", "CPU"), ("sort_index", PID)):
            self._plain("M", 0, tid=0, name=f"process_{key}", args={key: value})
        end = max((event["ts"] + event.get("dur", 0) for event in self.events), default=0)
        span = {"ph": "X", "cat": "Trace", "ts": 0, "dur": end, "pid": "Spans", "tid": "PyTorch Profiler"}
        self.events.append({**span, "name": "PyTorch Profiler (0)", "args": {"Op count": 0}})
        self._plain("i", 0, s="g", pid="Traces", tid="Trace PyTorch Profiler", name="Iteration Start: PyTorch Profiler")
        return self._plain("i", round(end * 1000), s="g", pid="", tid="", name="Record Window End")

    def text(self, layout: Layout = "compact") -> str:
        return serialised(self.header, self.events, layout)

    def write(
        self, folder: Path, name: str = "trace.json", *, compress: bool = False, layout: Layout = "compact"
    ) -> Path:
        data = self.text(layout).encode()
        path = folder / (name + ".gz" if compress else name)
        path.write_bytes(gzip.compress(data) if compress else data)
        return path

    def _plain(self, ph: str, at: int, **keys: Any) -> KinetoBuilder:
        self.events.append({"ph": ph, "pid": PID, "tid": MAIN, "ts": at / 1000, **keys})
        return self

    def _device(
        self,
        cat: str,
        name: str,
        start: int,
        end: int,
        launch: int | None,
        call: str,
        stream: int,
        tid: int,
        args: dict[str, Any],
        until: int | None = None,
    ) -> KinetoBuilder:
        self._correlation += 1
        here = {"device": 0, "stream": stream, "correlation": self._correlation}
        if launch is not None:
            self.runtime(call, launch, until or launch + 1, tid, correlation=self._correlation)
        return self.event(cat, name, start, end, stream, 0, **here, **args)


def nccl_args(op: str, elems: int, seq: int | None = None, group: str = "0") -> dict[str, Any]:
    """What recent profilers write beside an NCCL kernel."""
    found: dict[str, Any] = {
        "Collective name": op, "In msg nelems": elems, "Out msg nelems": elems, "dtype": "Float",
        "Process Group Name": group, "Process Group Ranks": "[0, 1]", "Group size": 2,
    }  # fmt: skip
    return found if seq is None else {**found, "Seq": seq}


# -- text --------------------------------------------------------------------------------------------------------------

# Which keys Kineto (output_json.cpp) writes on one line, by phase; an event's other keys follow on the last one.
_LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "X": (("ph", "cat", "name", "pid", "tid"), ("ts", "dur")),
    "span": (("ph", "cat", "ts", "dur"), ("pid", "tid"), ("name",)),
    "M": (("name", "ph", "ts", "pid", "tid"),),
    "s": (("ph", "id", "pid", "tid", "ts"), ("cat", "name")),
    "f": (("ph", "id", "pid", "tid", "ts"), ("cat", "name", "bp")),
    "sample": (("ph", "cat", "s", "name"), ("pid", "tid"), ("ts",)),
    "i": (("name", "ph", "s"), ("pid", "tid", "ts")),
}
_AFTER_EVENTS = ("traceName", "displayTimeUnit", "baseTimeNanoseconds")


def serialised(header: Mapping[str, Any], events: Sequence[Any], layout: Layout = "compact") -> str:
    """The trace as text: as json.dumps writes it, the same indented, or exactly as Kineto prints it, which puts the
    base time behind the events."""
    if layout != "kineto":
        return json.dumps({**header, "traceEvents": list(events)}, indent=2 if layout == "indented" else None)
    before = [_header_entry(key, value) for key, value in header.items() if key not in _AFTER_EVENTS]
    after = [_header_entry(key, value) for key, value in header.items() if key in _AFTER_EVENTS]
    body = ",".join(f"\n  {_kineto_event(event)}" for event in events)
    return "\n{\n" + ",\n".join([*before, f'  "traceEvents": [{body}\n  ]', *after]) + "\n}"


def _header_entry(key: str, value: Any) -> str:
    if key == "deviceProperties" and isinstance(value, list):
        items = ",".join(f"\n    {{\n      {json.dumps(item)[1:-1]}\n    }}" for item in value)
        return f'  "{key}": [{items}\n  ]'
    return f"  {json.dumps(key)}: {json.dumps(value)}"


def _kineto_event(event: Any) -> str:
    if not isinstance(event, Mapping) or not event:
        return json.dumps(event)
    kind = event.get("ph")
    kind = {"Trace": "span", "cpu_instant_event": "sample"}.get(str(event.get("cat")), kind)
    lines = [[key for key in line if key in event] for line in _LINES.get(str(kind), _LINES["X"])]
    lines[-1] += [key for key in event if key != "args" and not any(key in line for line in lines)]
    texts = [", ".join(_kineto_field(key, event[key]) for key in line) for line in lines if line]
    args = event.get("args")
    if isinstance(args, Mapping) and args:
        texts.append(
            '"args": {\n      ' + ", ".join(_kineto_field(key, value) for key, value in args.items()) + "\n    }"
        )
    elif "args" in event:
        texts.append(_kineto_field("args", args))
    return "{\n    " + ",\n    ".join(texts) + "\n  }"


def _kineto_field(key: str, value: Any) -> str:
    is_time = key in ("ts", "dur") and isinstance(value, float) and abs(value) < 1e12
    return f"{json.dumps(key)}: {f'{value:.3f}' if is_time else json.dumps(value)}"
