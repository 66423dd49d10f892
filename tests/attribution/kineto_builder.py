"""Synthetic Kineto traces whose truth the test knows. Times in ns from the trace's own zero."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

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
        self, start: int, end: int, direction: str = "HtoD", launch: int | None = None, until: int | None = None
    ) -> KinetoBuilder:
        """A copy; the call that made it lasts ``until``, 1 ns by default."""
        name = f"Memcpy {direction} (x -> y)"
        return self._device("gpu_memcpy", name, start, end, launch, "cudaMemcpyAsync", 7, MAIN, {}, until)

    def gloo(self, op: str, start: int, end: int, dims: str = "[[1000]]") -> KinetoBuilder:
        return self.range(f"gloo:{op}", start, end, WIRE, {"Input Dims": json.loads(dims), "Input type": ["float"]})

    def write(self, folder: Path, name: str = "trace.json", *, compress: bool = False) -> Path:
        data = json.dumps({**self.header, "traceEvents": self.events}).encode()
        path = folder / (name + ".gz" if compress else name)
        path.write_bytes(gzip.compress(data) if compress else data)
        return path

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
