"""What the GPU's libraries answer to each call that the recorder makes, one after the other, in a process of its own.

``torchrun --nproc-per-node 1 -m tests.gpu.device FOLDER`` writes ``device.json`` after each question: the answer or
what was raised, and the seconds. Whatever ends the process, the answers so far are there, and the question that ended
it is named. Needs torch alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diag.collectors import flight_recorder
from diag.collectors.accelerator import (
    Accelerator,
    accelerator_of,
    current_device,
    profiler_activities,
    query_beside_captures,
)
from diag.collectors.device_sampler import sampler_of
from diag.collectors.durations import TIMING_VARIABLE
from diag.collectors.identity import prepare_environment
from diag.collectors.layout import RunLayout
from tests.gpu.plan import ANSWERS

MS = 1e3
REDUCED, SLEPT_S = 8, 0.05  # all-reduces; seconds that a kernel spins
_CLOCK_KHZ = 1_500_000  # where torch does not report the clock


class Questions:
    """Each method without an underscore is a question; they are asked in their order here."""

    def __init__(self, device: torch.device, accelerator: Accelerator, folder: Path) -> None:
        self._device, self._accelerator, self._folder = device, accelerator, folder

    def identity(self) -> dict[str, Any]:
        torch.ones(1, device=self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        about = torch.cuda.get_device_properties(self._device)
        return {
            "name": self._accelerator.name, "uuid": self._accelerator.uuid, "pci": self._accelerator.pci_address,
            "capacity": self._accelerator.capacity, "free": free, "total": total,
            "capability": list(torch.cuda.get_device_capability(self._device)), "multiprocessors":
            about.multi_processor_count, "clock_khz": getattr(about, "clock_rate", None), "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        }  # fmt: skip

    def events(self) -> dict[str, Any]:
        """A kernel that spins, by two events and by the host; a product of matrices; what an event costs the host."""
        self._spin(0.001)
        begin, end = self._accelerator.event(), self._accelerator.event()
        torch.cuda.synchronize()
        host = time.perf_counter()
        begin.record()
        self._spin(SLEPT_S)
        end.record()
        launched = time.perf_counter() - host
        passed_at_once = end.query()
        end.synchronize()
        host = time.perf_counter() - host
        found = {"events_ms": begin.elapsed_time(end), "host_ms": MS * host, "launch_ms": MS * launched,
                 "passed_at_once": passed_at_once, "stream": self._accelerator.current_stream(),
                 "capturing": self._accelerator.is_capturing()}  # fmt: skip
        many = [self._accelerator.event() for _ in range(1000)]
        for name in ("record", "query"):
            host = time.perf_counter()
            for event in many:
                getattr(event, name)()
            found[f"{name}_us"] = 1e6 * (time.perf_counter() - host) / len(many)
            torch.cuda.synchronize()
        side = 8192
        a, b = (torch.randn(side, side, device=self._device, dtype=torch.bfloat16) for _ in range(2))
        times = []
        for _ in range(8):
            begin.record()
            torch.mm(a, b)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        found["matmul_tflop_s"] = 2 * side**3 / sorted(times)[len(times) // 2] / 1e9
        return found

    def samples(self) -> dict[str, Any]:
        """NVML, idle and while a kernel spins; the last with what changes seldom."""
        sampler = sampler_of(self._accelerator)
        found = [sampler.sample()]
        host = time.perf_counter()
        self._spin(0.5)
        for _ in range(2):
            time.sleep(0.15)
            found.append(sampler.sample())
        torch.cuda.synchronize()
        slow = time.perf_counter()
        found.append(sampler.sample(everything=True))
        slow = time.perf_counter() - slow
        host = time.perf_counter() - host
        sampler.close()
        return {"library": type(sampler).__name__, "samples": [dataclasses.asdict(one) for one in found],
                "everything_ms": MS * slow, "seconds": host}  # fmt: skip

    def recorders(self) -> dict[str, Any]:
        """All-reduces of one rank over NCCL: what the Flight Recorders hold, and their durations against events."""
        layout = RunLayout(self._folder).rank(0)
        layout.folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault(TIMING_VARIABLE, "1")
        prepare_environment(layout)
        host = time.perf_counter()
        dist.init_process_group("nccl", device_id=self._device)
        found: dict[str, Any] = {"connect_s": time.perf_counter() - host, "nccl": list(torch.cuda.nccl.version())}
        values = torch.ones(64 << 20, device=self._device)
        dist.all_reduce(values)
        begin, end = self._accelerator.event(), self._accelerator.event()
        begin.record()
        for _ in range(REDUCED):
            dist.all_reduce(values)
        end.record()
        end.synchronize()
        found["events_ms"] = begin.elapsed_time(end) / REDUCED
        time.sleep(1.5)  # until the watchdog has seen them end
        dumps, problems = flight_recorder.dumps(stacks=False)
        found["bytes"], found["problems"] = {name: len(dump) for name, dump in dumps.items()}, problems
        found["status"] = flight_recorder.status()
        native = flight_recorder.native_recorder()
        if native is not None and native.json is not None:
            entries = json.loads(native.json())["entries"]
            found["entries"], found["first"] = len(entries), entries[:1]
            found["durations_ms"] = [one["duration_ms"] for one in entries if one.get("duration_ms") is not None]
            found["states"] = Counter(one.get("state") for one in entries)
        return found

    def window(self) -> dict[str, Any]:
        """A profiler window with the recorder's activities: what it holds, and what exporting it takes."""
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(24))).to(self._device)
        batch = torch.randn(256, 1024, device=self._device)
        model(batch).sum().backward()
        torch.cuda.synchronize()
        path = self._folder / "window.json"
        host = time.perf_counter()
        with torch.profiler.profile(activities=profiler_activities(), record_shapes=True) as window:
            for _ in range(3):
                model(batch).sum().backward()
            torch.cuda.synchronize()
        stopped = time.perf_counter()
        window.export_chrome_trace(str(path))
        exported = time.perf_counter()
        events = json.loads(path.read_text())["traceEvents"]
        kinds = Counter(str(one.get("cat")) for one in events)
        size = path.stat().st_size
        path.unlink()
        return {"kinds": kinds, "bytes": size, "record_s": stopped - host, "export_s": exported - stopped,
                "kernels_us": sum(one.get("dur", 0) for one in events if one.get("cat") == "kernel")}  # fmt: skip

    def memory(self) -> dict[str, Any]:
        """Peaks against what is asked for, the allocator's history, and the observer of a failed allocation."""
        self._accelerator.reset_peaks()
        before = self._accelerator.memory_stats()
        held = torch.empty(512 << 20, dtype=torch.uint8, device=self._device)
        stats = self._accelerator.memory_stats()
        peak = "allocated_bytes.all.peak"
        found: dict[str, Any] = {
            "asked": held.numel(), "names": len(stats), "retries": stats.get("num_alloc_retries"),
            "grown": stats[peak] - before["allocated_bytes.all.current"], "reserved": stats["reserved_bytes.all.peak"],
        }  # fmt: skip
        self._accelerator.record_memory_history(10_000)
        kept = [torch.empty(1 << 20, device=self._device) for _ in range(100)]
        host = time.perf_counter()
        snapshot = self._accelerator.memory_snapshot()
        found["snapshot_s"] = time.perf_counter() - host
        found["snapshot"] = {
            name: len(value) if hasattr(value, "__len__") else value for name, value in snapshot.items()
        }
        found["events"] = sum(map(len, snapshot.get("device_traces", ())))
        self._accelerator.record_memory_history(None)
        del kept, held
        seen: list[list[int]] = []
        found["observed"] = self._accelerator.observe_out_of_memory(lambda *numbers: seen.append(list(numbers)))
        try:
            torch.empty(4 * self._accelerator.capacity, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            found["out_of_memory"] = str(error)[:300]
        found["observer_told"] = seen
        return found

    def graphs(self) -> dict[str, Any]:
        """Events of another thread, queried while this one captures a graph."""
        a = torch.randn(512, 512, device=self._device)
        torch.mm(a, a)
        torch.cuda.synchronize()
        event = self._accelerator.event()
        event.record()
        answers: list[str] = []
        go, done = threading.Event(), threading.Event()

        def beside() -> None:
            answers.append(f"mode set: {query_beside_captures(self._accelerator.kind)}")
            go.wait(10)
            try:
                answers.append(f"query: {event.query()}")
            except Exception as error:
                answers.append(repr(error)[:300])
            done.set()

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(a, a)
            answers.append(f"capturing: {self._accelerator.is_capturing()}")
            go.set()
            done.wait(10)
        graph.replay()
        torch.cuda.synchronize()
        return {"answers": answers}

    def compiled(self) -> dict[str, Any]:
        """Last: compilers may be missing, and may take long."""
        host = time.perf_counter()
        value = torch.compile(lambda x: torch.relu(x) * 2 + 1)(torch.randn(1 << 20, device=self._device))
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - host, "sum": float(value.sum())}

    def _spin(self, seconds: float) -> None:
        about = torch.cuda.get_device_properties(self._device)
        torch.cuda._sleep(round(seconds * 1e3 * getattr(about, "clock_rate", _CLOCK_KHZ)))


def ask(questions: Any, write: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Asks them all, whatever one raises. ``write`` gets the answers before and after each question."""
    answers: dict[str, Any] = {}
    for name in [name for name in vars(type(questions)) if not name.startswith("_")]:
        begin = time.perf_counter()
        answers[name] = {"error": "it ended the process"}
        write(answers)
        try:
            answers[name] = {"answer": getattr(questions, name)()}
        except Exception as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers[name]["took_s"] = round(time.perf_counter() - begin, 3)
        write(answers)
    return answers


def main(folder: Path) -> None:
    device = current_device()
    accelerator = accelerator_of(device)
    if accelerator is None:
        sys.exit("there is no accelerator")
    accelerator.select()
    path = folder / ANSWERS
    ask(
        Questions(device, accelerator, folder),
        lambda answers: path.write_text(json.dumps(answers, indent=1, default=str) + "\n"),
    )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
