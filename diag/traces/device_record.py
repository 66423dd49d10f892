"""Whether a trace has the work of the device: recorded, not recorded, or recorded in a form that diag does not read.

A trace without kernels looks like a run on the CPU, and its operators like computation. It is one only if nothing in it
points to a device: no call launches work, no operator that only a GPU has, no event of another accelerator.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import Struct

from . import kineto_names as names
from .foreign import is_known

if TYPE_CHECKING:
    from .trace import Trace


class DeviceWork(Enum):
    """What a trace has of the work of an accelerator."""

    RECORDED = "recorded"
    NOT_RECORDED = "not recorded"  # launched, and no kernel in the trace
    NOT_UNDERSTOOD = "not understood"  # events of an accelerator whose kinds are not known
    CAPTURED = "captured"  # launches went into a CUDA graph and ran nothing
    NONE = "none"  # a run on the CPU


class DeviceRecord(Struct, frozen=True):
    """``holds``, ``lacks`` and ``collect``: what the trace holds, what it lacks for a diagnosis, and which collection
    would decide; "" where nothing is missing. ``share``: of the trace's time, in which events that are not understood
    run; 0 to 1."""

    work: DeviceWork
    holds: str = ""
    lacks: str = ""
    collect: str = ""
    share: float = 0.0
    launches: int = 0  # calls on the host that launch work; counted where the trace may lack device work
    device_events: int = 0

    @property
    def decides(self) -> bool:
        """Whether the trace shows what the run computed: on a device, or on the CPU alone."""
        return self.work in (DeviceWork.RECORDED, DeviceWork.NONE)

    @property
    def text(self) -> str:
        """What is missing, as a sentence; "" where nothing is."""
        return f"The trace holds {self.holds}, but not {self.lacks}: {self.collect}." if self.holds else ""


# Of accelerators whose device events libkineto writes in categories of their own (ActivityType.h), and of Ascend's and
# AWS's plugins. Host calls of the same backends end in _runtime or _driver.
_ACCELERATOR = re.compile(r"(?:mtia|hpu|privateuse1|neuron|npu|glow)_\w+$")
_ACCELERATOR_NAMES = {
    "mtia": "an MTIA accelerator", "hpu": "a Gaudi accelerator (HPU)", "privateuse1": "an out-of-tree accelerator",
    "neuron": "a Neuron accelerator", "npu": "an Ascend NPU", "glow": "a Glow accelerator",
}  # fmt: skip
# Process names of Ascend's msprof, whose events have no category.
_ASCEND = re.compile(r"Ascend Hardware|(?:CANN|NPU|HCCL)\b", re.I)
# Operators that exist on CUDA, ROCm or Apple's MPS alone (linear_backward), NCCL's collectives, and calls that leave
# work to a stream.
_GPU_OP_PATTERN = (
    r"^(?:nccl:|aten::(?:cudnn_|_cudnn|miopen_|record_stream$|_flash_attention_|_efficient_attention_|_thnn_fused_"
    r"|_fused_rms_norm_cuda|_cslt_|linear_backward$|_mps_|\w+_mps$)|triton_(?:poi|red|per|tem|mm)_)"
)
_CAPTURE_PATTERN = r"^(?:cuda|hip|cu)StreamBeginCapture"
_RANGE_PROFILER = "cuda_profiler_range"

# Of a trace's time, above which events of unknown kind may be work that matters.
_LEAST_SHARE = 0.02
# Launch calls without work on the device. In whole traces of CUDA and ROCm 0 to 26 % (driver calls within runtime
# calls have numbers of their own), in captures of graphs 39 to 99 %.
_CAPTURED_SHARE, _LOST_SHARE = 0.3, 0.9
_MANY_LAUNCHES = 100

_PROFILE = "profile with ProfilerActivity.CUDA (or XPU) next to CPU, and check the log for CUPTI or ROCtracer errors"


def record_of(trace: Trace) -> DeviceRecord:
    """What the trace has of the device's work."""
    unknown = _not_understood(trace)
    if unknown is not None:
        return unknown
    launches = device_events = 0
    captures = _any_name(trace, _CAPTURE_PATTERN)
    if not trace.has_gpu or captures or _few_device_events(trace):
        launches, device_events = _launched(trace)
    launched_nothing = 1 - device_events / launches if launches else 0.0
    if captures and launched_nothing > _CAPTURED_SHARE:
        return DeviceRecord(
            DeviceWork.CAPTURED,
            holds=f"the capture of a CUDA graph: {launches - device_events:,} of {launches:,} launch calls ran nothing",
            lacks="the replays of the graph that make up the run",
            collect="profile steps after the warm-up, when the graphs are captured",
            launches=launches,
            device_events=device_events,
        )
    if launches and (not trace.has_gpu or (launches >= _MANY_LAUNCHES and launched_nothing > _LOST_SHARE)):
        ranges = " (CUPTI's range profiler was on, which replaces the record of kernels)"
        return DeviceRecord(
            DeviceWork.NOT_RECORDED,
            holds=f"{launches:,} calls that launch work on a device and {device_events or 'no'} event"
            f"{'' if device_events == 1 else 's'} of that work"
            f"{ranges if _RANGE_PROFILER in trace.stored.categories else ''}",
            lacks="the kernels, copies and collectives on the device",
            collect=_PROFILE,
            launches=launches,
            device_events=device_events,
        )
    if trace.has_gpu:
        return DeviceRecord(DeviceWork.RECORDED)
    if (trace.backend and "nccl" in trace.backend) or _any_name(trace, _GPU_OP_PATTERN):
        return DeviceRecord(
            DeviceWork.NOT_RECORDED,
            holds="operators that run on a GPU, as the host issued them",
            lacks="the calls that launch their kernels, nor the kernels",
            collect=_PROFILE,
        )
    return DeviceRecord(DeviceWork.NONE)


def _not_understood(trace: Trace) -> DeviceRecord | None:
    """Events of an accelerator whose kinds are not known, where they take a share of the time."""
    known = (*names.DEVICE_CATEGORIES, *names.LAUNCH_CATEGORIES)
    categories = [category for category in trace.stored.categories if category not in known]
    foreign = [category for category in categories if _ACCELERATOR.match(category)]
    device = [category for category in foreign if not category.endswith(("_runtime", "_driver"))]
    device += [category for category in categories if not is_known(category) and _elsewhere(trace, category)]
    ascend = any(_ASCEND.match(name) for name in trace.process_names)
    share = _share(trace, device)
    if not foreign and share < _LEAST_SHARE:
        return None
    if foreign and trace.has_gpu and share < _LEAST_SHARE:
        return None
    families = dict.fromkeys(category.split("_")[0] for category in foreign)
    who = next((_ACCELERATOR_NAMES[family] for family in families if family in _ACCELERATOR_NAMES), "an accelerator")
    if ascend and not foreign:
        who = "an Ascend NPU"
    what = (
        f"category {', '.join(sorted(category for category in device if category))}" if any(device) else "no category"
    )
    events = f"events of {who} ({what}) in {share:.0%} of its time" if device else f"runtime calls of {who}"
    return DeviceRecord(
        DeviceWork.NOT_UNDERSTOOD,
        holds=events,
        lacks="what diag needs to tell computation, communication and waiting apart on this device",
        collect="use the vendor's analyser for the device, or a backend that reports kernels to Kineto as `kernel`",
        share=share,
    )


def _elsewhere(trace: Trace, category: str) -> bool:
    """Whether events of this category are in no process of the host."""
    threads = trace.unsorted(category, columns=("thread",))["thread"].unique()
    return not {trace.threads[thread][0] for thread in threads} & set(trace.host_pids)


def _share(trace: Trace, categories: list[str]) -> float:
    """Of the trace's time, in which at least one event of these categories runs."""
    if not categories or trace.end_ns <= trace.begin_ns:
        return 0.0
    events = trace.unsorted(*categories, columns=("ts_ns", "dur_ns")).sort("ts_ns")
    if events.is_empty():
        return 0.0
    begin = events["ts_ns"].to_numpy()
    end = np.maximum.accumulate(begin + events["dur_ns"].to_numpy())
    before = np.concatenate((begin[:1], end[:-1]))
    covered = np.maximum(end - np.maximum(begin, before), 0).sum()
    return float(covered / (trace.end_ns - trace.begin_ns))


def _launched(trace: Trace) -> tuple[int, int]:
    """How many calls launch work, and for how many of them the device has an event."""
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("name", "correlation"))
    if calls.is_empty():
        return 0, 0
    launching = trace.stored.matching(names.LAUNCH_PATTERN)[calls["name"].to_numpy()]
    numbers = calls["correlation"].filter(pl.Series(launching))
    work = trace.unsorted(*names.DEVICE_CATEGORIES, columns=("correlation",))["correlation"].drop_nulls().unique()
    return len(numbers), int(numbers.is_in(work.implode()).sum())


def _few_device_events(trace: Trace) -> bool:
    """Whether the device has so few events that its record may be lost."""
    stored = trace.stored

    def rows(categories: tuple[str, ...]) -> int:
        frames = [f for f, category in zip(stored.frames, stored.categories, strict=True) if category in categories]
        return sum(int(frame.lazy().select(pl.len()).collect().item()) for frame in frames)

    return rows(names.DEVICE_CATEGORIES) < (1 - _LOST_SHARE) * rows(names.LAUNCH_CATEGORIES)


def _any_name(trace: Trace, pattern: str) -> bool:
    return bool(trace.stored.matching(pattern).any())
