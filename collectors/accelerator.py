"""The accelerator that a rank computes on. No other module knows the types of accelerators.

A ``Kind`` holds what differs between types and has no common name in torch. Everything else comes from
``torch.get_device_module``, looked up once for each device. A type without a ``Kind`` counts as no accelerator: its
training is recorded as one on the CPU.

Times on the device come from the accelerator's events, without ever synchronising with it. A mark is an event recorded
on the current stream. The host never waits for one: after each step it asks whether the step's last event has passed
(``query``, which does not block) and reads the elapsed times of the steps that have.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch

from .records import DeviceCall, DeviceStepRecord, PhaseRow


@dataclass(frozen=True)
class Kind:
    """One type of accelerator."""

    type: str  # of ``torch.device``, and of ``torch.get_device_module``
    backend: str  # of its process groups
    activity: str  # of ``torch.profiler.ProfilerActivity``
    version: str  # the name of its runtime's version in ``torch.version``
    sampler: str = ""  # the library that reads its clocks and errors: "NVML", "amdsmi"; see ``device_sampler``
    # The library and its function that set a thread's stream capture mode; "": there is no such restriction.
    capture_mode: tuple[str, str] = ("", "")
    lacks: str = ""  # without a sampler: the missing records, in words


CUDA = Kind(
    "cuda", "nccl", "CUDA", "cuda", sampler="NVML", capture_mode=("libcuda.so.1", "cuThreadExchangeStreamCaptureMode")
)
# Named after CUDA throughout torch; its nccl is RCCL.
ROCM = Kind(
    "cuda",
    "nccl",
    "CUDA",
    "hip",
    sampler="amdsmi",
    capture_mode=("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
)
XPU = Kind("xpu", "xccl", "XPU", "xpu", lacks="no sampler for Intel GPUs: clocks, power and errors are not recorded")

_KINDS: Mapping[str, Kind] = {kind.type: kind for kind in (ROCM if torch.version.hip else CUDA, XPU)}

# Backends whose collectives run on an accelerator, so that the host does not see when they end.
DEVICE_BACKENDS = frozenset(kind.backend for kind in _KINDS.values())

CPU = torch.device("cpu")


class Peaks(NamedTuple):
    """Bytes that were allocated and reserved at most, and how often the allocator had to try again, or failed."""

    allocated: int
    reserved: int
    retries: int
    ooms: int


_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")


def _within(stats: Mapping[str, Any], names: Sequence[str]) -> int:
    """0 where the statistics are empty: nothing was allocated yet."""
    at: Any = stats
    for name in names:
        at = at.get(name, {})
    return at or 0


def _never() -> bool:
    return False


class Accelerator:
    """One device. The methods are those of its type's module in torch, with the device filled in."""

    def __init__(self, device: torch.device, kind: Kind) -> None:
        module: Any = torch.get_device_module(device)
        self.device, self.kind = device, kind
        self._module = module
        self.event_type: Any = module.Event
        self._make_event = _unpatched(module.Event)
        # Whether the current stream is being captured into a graph, in which no event can be timed.
        self.is_capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", _never)

    @property
    def name(self) -> str:
        return str(self._module.get_device_name(self.device))

    @property
    def capacity(self) -> int:
        """Bytes of memory."""
        return int(self._module.get_device_properties(self.device).total_memory)

    @property
    def uuid(self) -> str | None:
        uuid = getattr(self._module.get_device_properties(self.device), "uuid", None)
        return str(uuid) if uuid else None

    @property
    def pci_address(self) -> str | None:
        """``0000:c1:00.0``; None where torch does not report it."""
        properties = self._module.get_device_properties(self.device)
        domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
        return f"{domain:04x}:{bus:02x}:{slot:02x}.0" if None not in (domain, bus, slot) else None

    def select(self) -> None:
        """Makes it the current device of this process."""
        self._module.set_device(self.device)

    def current_stream(self) -> int:
        """The id of the current stream, unique on the device."""
        return int(self._module.current_stream(self.device).stream_id)

    def event(self, timed: bool = True) -> Event:
        event: Event = self._make_event(enable_timing=timed)
        return event

    def memory_stats(self) -> dict[str, Any]:
        """The allocator's statistics, with peaks since the last reset. Does not wait for the device."""
        stats: dict[str, Any] = self._module.memory_stats(self.device)
        return stats

    def peaks(self) -> Peaks:
        """What each step records of ``memory_stats``. torch makes a sorted dictionary of a hundred names of the nested
        one, which takes several times as long as to read it."""
        nested = getattr(self._module, "memory_stats_as_nested_dict", None)
        if nested is None:
            stats = self.memory_stats()
            return Peaks(*(stats.get(name, 0) for name in _PEAKS))
        stats = nested(device=self.device)
        return Peaks(*(_within(stats, name.split(".")) for name in _PEAKS))

    def memory_snapshot(self) -> dict[str, Any]:
        """The allocator's state, with its last events where they are recorded."""
        snapshot: dict[str, Any] = self._module.memory._snapshot()
        return snapshot

    def record_memory_history(self, most_events: int | None) -> None:
        """Makes torch keep the allocator's last events, with the Python stacks of allocations; None ends it. C++ frames
        are left out: symbolizing them takes minutes when the snapshot is made."""
        record = self._module.memory._record_memory_history
        if most_events is None:
            record(None)
        else:
            record("all", context="alloc", stacks="python", max_entries=most_events)

    def observe_out_of_memory(self, observer: Callable[[int, int, int, int], None]) -> bool:
        """Registers an observer of failed allocations, called with (device, bytes requested, bytes allocated, bytes
        free). Returns whether this torch supports it. It cannot be removed."""
        attach = getattr(torch._C, f"_{self.kind.type}_attach_out_of_memory_observer", None)
        if attach is None:
            return False
        self._module.init()  # torch crashes where the device is not in use yet (pytorch/pytorch#107330)
        attach(observer)
        return True

    def reset_peaks(self) -> None:
        self._module.reset_peak_memory_stats(self.device)

    def rng_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self.device)
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state, self.device)


def _unpatched(event_type: Any) -> Any:
    """An event type for our own events, which keeps the original methods when the training's are replaced."""
    if not isinstance(event_type, type):
        return event_type
    methods = {name: getattr(event_type, name) for name in ("record", "wait") if hasattr(event_type, name)}
    return type("Event", (event_type,), methods)


@cache
def accelerator_of(device: torch.device) -> Accelerator | None:
    """None for the CPU, and for a type without a ``Kind``."""
    kind = _KINDS.get(device.type)
    return Accelerator(device, kind) if kind is not None else None


def _available() -> tuple[Kind | None, Any]:
    """The accelerator type that this build of torch supports and this host has, with its torch module; (None, None)
    without any."""
    # Not ``torch.accelerator.current_accelerator``: in torch 2.6 a build for CUDA raises there without a GPU.
    for kind in _KINDS.values():
        module: Any = torch.get_device_module(kind.type)
        if module.is_available():
            return kind, module
    return None, None


_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal


def query_beside_captures(kind: Kind) -> bool:
    """Lets the calling thread query events while another thread captures a graph; otherwise the capture would fail.
    Returns whether the mode was set."""
    library, function = kind.capture_mode
    if not library:
        return True
    try:
        mode = ctypes.c_int(_THREAD_LOCAL)
        return bool(getattr(ctypes.CDLL(library), function)(ctypes.byref(mode)) == 0)
    except (OSError, AttributeError):
        return False


# NCCL's variable that lets several ranks share a GPU. Without it NCCL refuses them ("Duplicate GPU detected").
MULTI_RANK_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


def current_device() -> torch.device:
    """The current accelerator, which this call initializes; else the CPU."""
    kind, module = _available()
    return torch.device(kind.type, module.current_device()) if kind is not None else CPU


def device_in_use() -> torch.device:
    """The device that this process has initialized so far, else the CPU. Does not initialize an accelerator."""
    kind, module = _available()
    return current_device() if kind is not None and module.is_initialized() else CPU


def device_is_settled() -> bool:
    """Whether the result of ``device_in_use`` is final."""
    kind, module = _available()
    if kind is None:
        return True
    if not module.is_initialized():
        return False
    return module.device_count() == 1 or str(module.current_device()) == os.environ.get("LOCAL_RANK", "")


def device_of_rank(local_rank: int, local_world_size: int) -> torch.device:
    """A rank's accelerator; the CPU where the host has fewer accelerators than ranks and NCCL does not share them."""
    kind, module = _available()
    count = module.device_count() if kind is not None else 0
    if kind is not None and (count >= local_world_size or (count and os.environ.get(MULTI_RANK_VARIABLE) == "1")):
        return torch.device(kind.type, local_rank % count)
    return CPU


def backend_of(device: torch.device) -> str:
    """The backend of process groups whose tensors are on this device."""
    accelerator = accelerator_of(device)
    return accelerator.kind.backend if accelerator is not None else "gloo"


def profiler_activities() -> list[Any]:
    """The activities of a profiler window: operators, and the accelerator's work where there is one."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    kind, _ = _available()
    if kind is not None:
        activities.append(getattr(torch.profiler.ProfilerActivity, kind.activity))
    return activities


def runtime_versions() -> dict[str, str]:
    """The versions of the accelerators' runtimes that this torch was built for."""
    versions = {kind.version: getattr(torch.version, kind.version, None) for kind in _KINDS.values()}
    return {name: version for name, version in versions.items() if version}


# -- times on the device -----------------------------------------------------------------------------------------------


class Event(Protocol):
    """The methods of an accelerator's ``Event`` that this module uses."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def synchronize(self) -> Any: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Mark:
    """A point on a stream; recorded when ``record`` is called."""

    __slots__ = ("event", "recorded")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.recorded = False

    def record(self) -> None:
        self.event.record()
        self.recorded = True


@dataclass(slots=True)
class CallMarks:
    """The marks of a collective; see ``DeviceCall``."""

    start: Mark
    end: Mark
    wait: tuple[Mark, Mark] | None = None
    own_stream: bool = False


@dataclass
class _Step:
    step: int
    begin: Mark
    end: Mark | None = None
    phases: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    collectives: list[tuple[str, int, CallMarks]] = field(default_factory=list)

    def marks(self) -> dict[int, Mark]:
        """Each mark once, by its id: phases share their edges, and DDP's buckets their end. The end of the step, which
        is usually the last one that passes, comes first."""
        every = [self.begin] if self.end is None else [self.end, self.begin]
        for _, start, end in self.phases:
            every += start, end
        for _, _, call in self.collectives:
            every += call.start, call.end, *(call.wait or ())
        return {id(mark): mark for mark in every}


class DeviceClock:
    """Collects marks step by step. ``make_event`` returns an event with timing enabled; events that have passed are
    reused. ``current_stream`` returns the id of the current stream; ``capturing``: whether work is captured into a
    graph, where no event can be timed."""

    MAX_PENDING = 64  # steps that the device may lag behind before the oldest is dropped

    def __init__(
        self,
        make_event: Callable[[], Event],
        current_stream: Callable[[], int] = lambda: 0,
        capturing: Callable[[], bool] = _never,
    ) -> None:
        self._make_event = make_event
        self.current_stream, self.capturing = current_stream, capturing
        self.training_stream = 0  # the stream that steps are marked on
        self._free: list[Event] = []
        self._current: _Step | None = None
        self._pending: deque[_Step] = deque()

    def mark(self, later: bool = False) -> Mark:
        mark = Mark(self._free.pop() if self._free else self._make_event())
        if not later:
            mark.record()
        return mark

    def begin_step(self, step: int) -> None:
        self._current, self.training_stream = _Step(step, self.mark()), self.current_stream()

    def phase(self, name: str, start: Mark, end: Mark) -> None:
        if self._current is not None:
            self._current.phases.append((name, start, end))

    def end_step(self, collectives: list[tuple[str, int, CallMarks]]) -> None:
        if self._current is None:
            return
        self._current.end = self.mark()
        self._current.collectives = collectives
        self._pending.append(self._current)
        self._current = None
        if len(self._pending) > self.MAX_PENDING:
            self._pending.popleft()  # its events may still be in flight, so they are not reused

    def passed(self) -> Iterator[DeviceStepRecord]:
        """The steps that the device has finished, oldest first. Never blocks."""
        while self._pending:
            marks = self._pending[0].marks()
            if not all(mark.event.query() for mark in marks.values() if mark.recorded):
                return
            yield _read(self._pending.popleft(), marks)
            self._free.extend(mark.event for mark in marks.values())


def _read(step: _Step, marks: Mapping[int, Mark]) -> DeviceStepRecord:
    """Each mark's time is asked for once: torch queries both events again, and all of it takes the training's time."""
    begin = step.begin.event
    times = {  # milliseconds, resolution about half a microsecond
        number: round(begin.elapsed_time(mark.event) * 1e6) for number, mark in marks.items() if mark.recorded
    }

    def since_begin(mark: Mark) -> int:
        return times[id(mark)]

    assert step.end is not None
    return DeviceStepRecord(
        step=step.step,
        dur_ns=since_begin(step.end),
        phases=[PhaseRow(name, since_begin(a), since_begin(b)) for name, a, b in step.phases],
        collectives=[
            DeviceCall(
                group,
                seq,
                since_begin(call.start),
                since_begin(call.end),
                since_begin(call.wait[0]) if call.wait is not None else None,
                since_begin(call.wait[1]) if call.wait is not None else None,
                call.own_stream,
            )
            for group, seq, call in step.collectives
            if call.end.recorded
        ],
    )
