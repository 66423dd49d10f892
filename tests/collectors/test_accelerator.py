"""The types of accelerators, each with a stand-in for its module in torch; and times on a device made of a number,
whose marks pass when it says so, and for which nobody waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from diag.collectors import accelerator
from diag.collectors.accelerator import CUDA, ROCM, XPU, Accelerator, CallMarks, DeviceClock, Kind, Peaks
from diag.collectors.device_sampler import sampler_of
from diag.collectors.identity import identify
from diag.collectors.records import DeviceCall, PhaseRow
from diag.collectors.session import MemoryReader

TYPES = pytest.mark.parametrize("kind", [CUDA, ROCM, XPU], ids=lambda kind: kind.version)


class FakeModule:
    """What ``torch.get_device_module`` returns on a host with two accelerators."""

    def __init__(self) -> None:
        self.initialized, self.resets, self.rng = False, 0, torch.tensor([1, 2], dtype=torch.uint8)
        self.Event = lambda enable_timing: ("event", enable_timing)
        self.selected: list[torch.device] = []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        self.initialized = True
        return 1

    def set_device(self, device: torch.device) -> None:
        self.selected.append(device)

    def get_device_name(self, device: torch.device) -> str:
        return f"Accelerator {device.index}"

    def get_device_properties(self, _device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, _device: torch.device) -> dict[str, int]:
        return {"allocated_bytes.all.peak": 100, "reserved_bytes.all.peak": 200}

    def reset_peak_memory_stats(self, _device: torch.device) -> None:
        self.resets += 1

    def get_rng_state(self, _device: torch.device) -> torch.Tensor:
        return self.rng

    def set_rng_state(self, state: torch.Tensor, _device: torch.device) -> None:
        self.rng = state


def plug_in(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> FakeModule:
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    monkeypatch.setattr(accelerator, "_KINDS", {kind.type: kind})
    monkeypatch.setattr(accelerator, "accelerator_of", accelerator.accelerator_of.__wrapped__)
    return module


@TYPES
def test_every_type_has_its_table(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    module = plug_in(monkeypatch, kind)
    assert accelerator.device_in_use().type == "cpu", "asking does not begin to use it"
    assert not accelerator.device_is_settled()
    device = accelerator.current_device()
    assert (device.type, device.index) == (kind.type, 1)
    assert accelerator.device_in_use() == device
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert accelerator.device_is_settled()
    assert accelerator.device_of_rank(0, 2) == torch.device(kind.type, 0)
    assert accelerator.device_of_rank(0, 3).type == "cpu", "more ranks than accelerators"
    with monkeypatch.context() as shared:
        shared.setenv(accelerator.MULTI_RANK_VARIABLE, "1")
        assert [accelerator.device_of_rank(rank, 3).index for rank in range(3)] == [0, 1, 0], "ranks share them"
    assert accelerator.backend_of(device) == kind.backend
    assert accelerator.profiler_activities()[-1] == getattr(torch.profiler.ProfilerActivity, kind.activity)
    one = Accelerator(device, kind)
    assert (one.name, one.capacity, one.uuid) == ("Accelerator 1", 1 << 30, None)
    assert one.pci_address is None, "this torch does not report it"
    assert one.is_capturing() is False, "a module that has no graphs captures none"
    assert (one.event(), one.event(timed=False)) == (("event", True), ("event", False))
    one.select()
    assert module.selected == [device]
    one.set_rng_state(torch.tensor([3], dtype=torch.uint8))
    assert one.rng_state().tolist() == [3]
    memory = MemoryReader(one).read()
    assert (memory.allocated, memory.reserved, memory.alloc_retries, memory.capacity) == (100, 200, 0, 1 << 30)
    assert module.resets == 2


@pytest.mark.parametrize(
    ("kind", "expected", "unavailable"),
    [
        (CUDA, ["NVML 1"], None),
        (ROCM, ["amdsmi 0000:c1:00.0"], None),
        (XPU, [], "no sampler for Intel GPUs: clocks, power and errors are not recorded"),
    ],
    ids=lambda value: getattr(value, "version", ""),
)
def test_each_library_is_asked_about_its_own_devices(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, expected: list[str], unavailable: str | None
) -> None:
    asked: list[str] = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: asked.append(f"NVML {index}")
    )
    amdsmi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda address: asked.append(f"amdsmi {address}"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    module = plug_in(monkeypatch, kind)
    address = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(module, "get_device_properties", lambda _device: address)
    sampler = sampler_of(Accelerator(torch.device(kind.type, 1), kind))
    assert (asked, sampler.unavailable) == (expected, unavailable)
    assert sampler_of(None).sample().unavailable == "this rank uses no GPU"


def test_a_type_without_a_table_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert accelerator.current_device().type == accelerator.device_of_rank(0, 1).type == "cpu"
    assert accelerator.accelerator_of(torch.device("mps")) is None
    assert accelerator.profiler_activities() == [torch.profiler.ProfilerActivity.CPU]
    assert accelerator.backend_of(torch.device("mps")) == "gloo"
    assert identify(torch.device("mps")).device == "cpu"


class FakeDevice:
    """``now_ms`` is where the device's streams are; an event recorded at t has passed once the device got there."""

    def __init__(self) -> None:
        self.next_ms = 0.0  # when work that is recorded now will run
        self.now_ms = 0.0
        self.events = 0

    def event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ms = -1.0
        self.asked = 0

    def record(self) -> None:
        self.at_ms = self._device.next_ms

    def query(self) -> bool:
        return self.at_ms <= self._device.now_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.query()
        assert end.query(), "elapsed_time of an event that has not passed would wait for the device"
        end.asked += 1
        return end.at_ms - self.at_ms


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    return FakeDevice()


def run_step(device: FakeDevice, clock: DeviceClock, step: int, forward_ms: float) -> None:
    clock.begin_step(step)
    start = clock.mark()
    device.next_ms += forward_ms
    clock.phase("forward", start, clock.mark())
    before, after = clock.mark(), clock.mark(later=True)
    device.next_ms += 2
    after.record()
    clock.end_step([("0", 4, CallMarks(before, after)), ("0", 5, CallMarks(clock.mark(), clock.mark(later=True)))])


def test_a_step_is_read_when_the_device_got_there(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    run_step(device, clock, step=7, forward_ms=10)
    assert list(clock.passed()) == []
    device.now_ms = 12
    (record,) = clock.passed()
    assert (record.step, record.dur_ns) == (7, 12_000_000)
    assert record.phases == [PhaseRow("forward", 0, 10_000_000)]
    assert record.collectives == [DeviceCall("0", 4, 10_000_000, 12_000_000)], (
        "a call whose end nobody marked is left out"
    )


def test_events_are_used_again(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    for step in range(50):
        run_step(device, clock, step, forward_ms=1)
        device.now_ms = device.next_ms
        assert [r.step for r in clock.passed()] == [step]
    assert device.events == 8


def test_each_event_is_read_once(device: FakeDevice) -> None:
    """On a GPU each reading takes four microseconds of the training's thread."""
    clock = DeviceClock(device.event)
    clock.begin_step(0)
    edges = [clock.mark() for _ in range(4)]
    for name, start, end in zip(("data", "forward", "backward"), edges[:-1], edges[1:], strict=True):
        clock.phase(name, start, end)
    waited = clock.mark()
    clock.end_step([("0", seq, CallMarks(edges[2], waited, (waited, waited))) for seq in range(13)])
    (step,) = clock._pending
    events = [mark.event for mark in step.marks().values()]
    list(clock.passed())
    assert [event.asked for event in events] == [1] * 7  # type: ignore[attr-defined]


@TYPES
def test_a_step_s_peaks_are_those_of_torch_s_statistics(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    plug_in(monkeypatch, kind)
    found = accelerator.accelerator_of(torch.device(kind.type, 1))
    assert found is not None
    assert found.peaks() == Peaks(100, 200, 0, 0), "this version has no nested statistics"
    nested = {"allocated_bytes": {"all": {"peak": 300}}, "reserved_bytes": {"all": {"peak": 400}}, "num_ooms": 2}
    monkeypatch.setattr(FakeModule, "memory_stats_as_nested_dict", lambda _module, device: nested, raising=False)
    assert found.peaks() == Peaks(300, 400, 0, 2)
    monkeypatch.setattr(FakeModule, "memory_stats_as_nested_dict", lambda _module, device: {})
    assert found.peaks() == Peaks(0, 0, 0, 0), "nothing was allocated yet"


def test_a_device_that_never_gets_there_costs_bounded_memory(device: FakeDevice) -> None:
    clock = DeviceClock(device.event)
    device.now_ms = -1
    for step in range(3 * DeviceClock.MAX_PENDING):
        run_step(device, clock, step, forward_ms=1)
    assert list(clock.passed()) == []
    device.now_ms = device.next_ms
    assert len(list(clock.passed())) == DeviceClock.MAX_PENDING
