"""Snapshots of the allocator that the collectors write, with a stand-in for torch's functions: when asked, near
out-of-memory, and when an allocation fails; and that none of it can end a training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diag.api import open_memory_snapshots
from diag.collectors import accelerator, identity, memory_snapshots, session
from diag.collectors.accelerator import CUDA, Accelerator
from diag.collectors.background import TraceRequests
from diag.collectors.budget import Budget, Complaints
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import OOM, RunLayout
from diag.collectors.memory_snapshots import MemorySnapshots
from diag.collectors.reading import read_object
from diag.collectors.records import TRACE_RECORDED, MemoryRecord, TraceAsked
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from tests.allocator import MIB, train
from tests.collectors.test_device_run import HostAsDevice
from tests.patience import PATIENCE_S

ON = CollectorSettings(trace=False, nvml=False, memory_snapshots=True, memory_history=500, interval_s=0.02)
FULL = MemoryRecord(rss=1, allocated=95, reserved=96, capacity=100)
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Device(HostAsDevice):
    """With a caching allocator that has a history."""

    def __init__(self, observed: bool = True) -> None:
        self.allocator = train()
        self.histories: list[int | None] = []
        self.observer: Callable[[int, int, int, int], None] | None = None
        self.observed = observed

    def memory_snapshot(self) -> dict[str, Any]:
        return self.allocator.snapshot()

    def record_memory_history(self, most_events: int | None) -> None:
        self.histories.append(most_events)

    def observe_out_of_memory(self, observer: Callable[[int, int, int, int], None]) -> bool:
        self.observer = observer if self.observed else None
        return self.observed


class Rank:
    """The snapshots of rank 1 in a run."""

    def __init__(self, folder: Path, device: Any, settings: CollectorSettings = ON, budget: int = 1 << 30) -> None:
        self.files, self.complaints, self.step = RunLayout(folder).rank(1), Complaints(1), 7
        self.snapshots = MemorySnapshots(
            settings, self.files, 1, device, Budget(budget), self.complaints, lambda: self.step
        )
        self.snapshots.start()

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.files.folder.iterdir()) if self.files.folder.exists() else []


def test_one_that_was_asked_for_can_be_read(tmp_path: Path) -> None:
    rank = Rank(tmp_path, Device())
    rank.snapshots.ask(TraceAsked(3, 7, 0, memory=True))
    assert rank.snapshots.answer == (3, TRACE_RECORDED)
    assert rank.names == ["memory-asked-step000007.pickle"]
    (account,) = open_memory_snapshots(tmp_path).accounts
    assert (account.rank, account.rank_known, account.step, account.reason) == (1, True, 7, "asked")
    assert account.peak_allocated == 17 * MIB
    rank.step = 9
    rank.snapshots.ask(TraceAsked(4, 9, 0, memory=True))
    assert [path.name for path in rank.files.memory_snapshots()] == [
        "memory-asked-step000007.pickle", "memory-asked-step000009.pickle",
    ]  # fmt: skip


def test_asking_needs_no_history_and_a_cpu_says_why_not(tmp_path: Path) -> None:
    device = Device()
    rank = Rank(tmp_path / "off", device, CollectorSettings())
    rank.snapshots.ask(TraceAsked(1, 7, 0, memory=True))
    assert rank.snapshots.answer == (1, TRACE_RECORDED)
    assert device.histories == []
    cpu = Rank(tmp_path / "cpu", None, CollectorSettings())
    cpu.snapshots.ask(TraceAsked(1, 7, 0, memory=True))
    assert "computes on the CPU" in cpu.snapshots.answer[1]
    assert cpu.complaints.messages == []
    wanted = Rank(tmp_path / "wanted", None)
    assert "computes on the CPU" in wanted.complaints.messages[0]


def test_the_first_step_near_the_capacity_leaves_one(tmp_path: Path) -> None:
    rank = Rank(tmp_path, Device())
    rank.snapshots.look(MemoryRecord(rss=1, allocated=89, reserved=99, capacity=100), 3)
    rank.snapshots.serve()
    assert rank.names == []
    rank.snapshots.look(FULL, 4)
    rank.snapshots.serve()
    rank.snapshots.look(FULL, 5)
    rank.snapshots.serve()
    assert rank.names == ["memory-near-oom-step000004.pickle"]
    off = Rank(tmp_path / "off", Device(), CollectorSettings())
    off.snapshots.look(FULL, 4)
    off.snapshots.serve()
    assert off.names == []


def test_the_first_failed_allocation_leaves_one(tmp_path: Path) -> None:
    device = Device()
    rank = Rank(tmp_path, device)
    assert device.observer is not None
    device.observer(0, 1 << 30, 1 << 20, 1 << 10)
    device.observer(0, 1 << 30, 1 << 20, 1 << 10)
    rank.snapshots.stop(type(OUT_OF_MEMORY))
    assert rank.names == ["memory-oom-step000007.pickle"]
    assert device.histories == [500, None]
    device.observer(0, 1 << 30, 1 << 20, 1 << 10)  # it cannot be taken back: after the end it does nothing
    assert rank.names == ["memory-oom-step000007.pickle"]


@pytest.mark.parametrize(("error", "names"), [(OUT_OF_MEMORY, ["memory-oom-step000007.pickle"]), (ValueError("x"), [])])
def test_without_an_observer_the_exception_tells(tmp_path: Path, error: Exception, names: list[str]) -> None:
    rank = Rank(tmp_path, Device(observed=False))
    rank.snapshots.stop(type(error))
    assert rank.names == names


def test_what_cannot_be_written_is_said_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Rank(tmp_path / "small", Device(), budget=100)
    small.snapshots.ask(TraceAsked(1, 7, 0, memory=True))
    assert "100 bytes of the byte budget" in small.snapshots.answer[1]
    assert small.names == []

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    rank = Rank(tmp_path / "full", Device())
    monkeypatch.setattr(memory_snapshots.pickle, "dump", full)
    rank.snapshots.look(FULL, 4)
    rank.snapshots.serve()
    assert "No space left" in rank.complaints.messages[0]
    assert rank.names == []


def test_whatever_torch_raises_stays_here(tmp_path: Path) -> None:
    class Broken(Device):
        def memory_snapshot(self) -> dict[str, Any]:
            raise RuntimeError("no snapshot of this pool")

    rank = Rank(tmp_path, Broken())
    rank.snapshots.ask(TraceAsked(1, 7, 0, memory=True))
    assert "no snapshot of this pool" in rank.snapshots.answer[1]
    rank.snapshots.stop(type(OUT_OF_MEMORY))
    assert "no snapshot of this pool" in rank.complaints.messages[0]

    class Older(Device):
        def record_memory_history(self, most_events: int | None) -> None:
            raise TypeError("unexpected keyword argument 'stacks'")

    older = Rank(tmp_path / "older", Older())
    assert "history is not recorded" in older.complaints.messages[0]


class Slow(Device):
    """Its allocator is being read until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def memory_snapshot(self) -> dict[str, Any]:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().memory_snapshot()


def test_an_allocation_that_fails_while_one_is_written_waits_for_it(tmp_path: Path) -> None:
    """The state at the failure is what a user asks for; that of a moment before does not show it."""
    device = Slow()
    rank = Rank(tmp_path, device)
    rank.snapshots.look(FULL, 6)
    near = threading.Thread(target=rank.snapshots.serve)
    near.start()
    assert device.begun.wait(PATIENCE_S)
    assert device.observer is not None
    failed = threading.Thread(target=device.observer, args=(0, 1, 1, 1))
    failed.start()
    device.go_on.set()
    near.join(PATIENCE_S)
    failed.join(PATIENCE_S)
    assert rank.names == ["memory-near-oom-step000006.pickle", "memory-oom-step000007.pickle"]
    assert rank.complaints.messages == []


def test_it_waits_no_longer_than_its_patience(tmp_path: Path) -> None:
    """A training that is about to raise must not hang."""
    device = Slow()
    rank = Rank(tmp_path, device)
    asking = threading.Thread(target=rank.snapshots.ask, args=(TraceAsked(1, 7, 0, memory=True),))
    asking.start()
    assert device.begun.wait(PATIENCE_S)
    assert rank.snapshots.write(OOM, 7, patience_s=0.01) == "another snapshot was being written"
    device.go_on.set()
    asking.join(PATIENCE_S)
    assert rank.snapshots.answer == (1, TRACE_RECORDED)


def test_requests_are_told_apart(tmp_path: Path) -> None:
    windows: list[TraceAsked] = []
    snapshots: list[TraceAsked] = []
    requests = TraceRequests(tmp_path / "asked.json", 0, windows.append, snapshots.append)
    replace_file(tmp_path / "asked.json", encode(TraceAsked(1, 5, 0, memory=True)))
    requests.look()
    requests.look()
    (tmp_path / "asked.json").unlink()
    replace_file(tmp_path / "asked.json", encode(TraceAsked(2, 9, 3, ranks=[0])))
    requests.look()
    assert ([one.number for one in snapshots], [one.number for one in windows]) == ([1], [2])


def test_what_is_asked_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of torch/cuda/memory.py, by their names and arguments."""
    asked: list[Any] = []
    memory = SimpleNamespace(
        _snapshot=lambda: {"segments": [], "device_traces": []},
        _record_memory_history=lambda *args, **kwargs: asked.append((args, kwargs)),
    )
    module = SimpleNamespace(Event=object, memory=memory, init=lambda: asked.append("init"))
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    device = Accelerator(torch.device("cuda", 0), CUDA)
    assert device.memory_snapshot() == {"segments": [], "device_traces": []}
    device.record_memory_history(100)
    device.record_memory_history(None)
    assert asked == [(("all",), {"context": "alloc", "stacks": "python", "max_entries": 100}), ((None,), {})]
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)  # as in a build without CUDA
    assert device.observe_out_of_memory(print) is False
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", asked.append, raising=False)
    assert device.observe_out_of_memory(print) is True
    assert asked[2:] == ["init", print], "torch crashes where the device is not in use yet"
    record = torch.cuda.memory._record_memory_history
    assert set(asked[0][1]) <= set(record.__signature__.parameters)  # type: ignore[attr-defined]


def test_a_job_that_is_running_answers_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    for module in (session, identity, accelerator):
        monkeypatch.setattr(module, "accelerator_of", lambda _device: device)
    off = CollectorSettings(trace=False, nvml=False, interval_s=0.02)
    layout = RunLayout(tmp_path)
    with Collector(tmp_path, off, torch.device("cpu")) as collector, collector.step(4):
        replace_file(layout.trace_asked, encode(TraceAsked(2, 4, 0, memory=True)))
        until = time.monotonic() + 60
        while read_object(layout.rank(0).heartbeat, None).get("trace_answer") != TRACE_RECORDED:
            assert time.monotonic() < until
            time.sleep(0.02)
    assert json.loads(layout.rank(0).heartbeat.read_text())["trace_number"] == 2
    assert layout.rank(0).memory_snapshots() == [layout.rank(0).memory_snapshot("asked", 4)]


def _run_out_of_memory(folder: Path, device: Device) -> None:
    with Collector(folder, ON, torch.device("cpu")) as collector:
        with collector.step(0):
            pass
        with collector.step(1):
            assert device.observer is not None
            device.observer(0, 2 << 30, 1 << 30, 0)
            raise OUT_OF_MEMORY


def test_a_training_that_runs_out_of_memory_leaves_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    device.capacity = (1 << 30) + 1  # the peaks of the stand-in are 1 GiB
    for module in (session, identity, accelerator):
        monkeypatch.setattr(module, "accelerator_of", lambda _device: device)
    with pytest.raises(torch.OutOfMemoryError):
        _run_out_of_memory(tmp_path, device)
    files = RunLayout(tmp_path).rank(0)
    assert [path.name for path in files.memory_snapshots()] == [
        "memory-near-oom-step000000.pickle", "memory-oom-step000001.pickle",
    ]  # fmt: skip
    assert not any("memory" in error for error in json.loads(files.heartbeat.read_text())["errors"])
    assert {one.reason for one in open_memory_snapshots(tmp_path).accounts} == {"near-oom", "oom"}
