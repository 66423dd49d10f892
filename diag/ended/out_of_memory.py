"""Allocations of device memory that failed, as the ranks' logs and error files of a run directory report them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from diag.collectors.layout import OOM, RankLayout, RunLayout
from diag.collectors.reading import read_tail
from diag.ended.policy import ENDED
from diag.rundir.job_ranks import job_ranks

# Calls of the runtimes of CUDA and HIP, and messages that name a failed one.
RUNTIME_CALLS = tuple(
    f"{runtime}{name}"
    for runtime in ("cuda", "hip")
    for name in ("Device", "Event", "Free", "Func", "Get", "Graph", "Host", "Init", "Ipc", "Launch", "Malloc", "Mem",
                 "Module", "Occupancy", "Peer", "Pointer", "Set", "Stream")
)  # fmt: skip
RUNTIME_ERRORS = ("Cuda error ", "CUDA error ", "HIP error ", "CUDA runtime error ", "CUDA failure ", "HIP failure ")
CALL_FAILED = (
    r"(?:\b(?P<call>(?:cuda|hip)[A-Z]\w+)(?:\([^()\n]{0,200}\))? failed(?: with(?: error)?)? ?:? ?|"
    r"\b(?:Cuda|CUDA|HIP)(?: runtime)? (?:error|failure) (?:[^\s:]+:\d+ '|"
    r"in (?P<function>(?:cuda|hip)[A-Z]\w+)[^:\n]{0,200}: ))"
)


@dataclass(frozen=True)
class Message:
    """``anchors``: literals of which every such line holds at least one. ``unless``: literals that make it something
    else."""

    anchors: tuple[str, ...]
    regex: str
    unless: tuple[str, ...] = ()

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        # At most as many digits as 64 bits need: Python refuses to parse numbers of thousands of digits.
        return re.compile(self.regex.replace(r"\d+", r"\d{1,20}"))

    def sizes(self, line: str) -> list[int | None]:
        """The bytes of each failed allocation in a line, None where the message has no size."""
        if any(word in line for word in self.unless):
            return []
        return [bytes_of(match.groupdict().get("size") or "") for match in self._compiled.finditer(line)]


# Words of a line that tells of no failed allocation: advice, a program that goes on, NCCL's trial of multicast memory,
# and the kernel's own killer, which is about the host.
_ADVICE = ("avoid", "prevent", "If you", "if you", "may ", "might ", "could ", "in case", "When ", "when ")
# Exceptions of the same name about the memory of a JVM, a container or Ray's node
_OF_THE_HOST = ("java.lang.", "Container killed", "Task was killed", "running low on memory")
_WENT_ON = ("skipping", "retrying", "falling back")
_OF_NVLS = ("Multicast memory", "transport/nvls.cc")
_OF_THE_KERNEL = ("Killed process", "Kill process", "oom_kill")
_NO_FAILURE = "this is not a failure"

MESSAGES: Mapping[str, Message] = {
    "nccl-out-of-memory": Message(
        ("Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'", "Cuda failure"),
        r"Cuda failure ?(?:2 ?)?'?out of memory'?",
        ("Multicast memory", "transport/nvls.cc"),
    ),
    "cuda-calloc": Message(
        ("Failed to CUDA calloc", "Failed to CUDA malloc"),
        r"Failed to CUDA (?:m|c)alloc(?: async)?(?: (?P<size>\d+) bytes)?",
        ("Multicast memory",),
    ),
    "runtime-out-of-memory": Message((*RUNTIME_CALLS, *RUNTIME_ERRORS), CALL_FAILED + r"[^'\n]*out of memory"),
    "xla-out-of-memory": Message(
        ("RESOURCE_EXHAUSTED: ",),
        r"RESOURCE_EXHAUSTED: (?:[\w ]{0,40}: )?(?:(?:Out of memory|Error allocating device buffer)(?:[^\n]{0,80}? "
        r"allocate (?P<size>[\d.]+ ?(?:bytes|[KMGT]i?B?)))?|Failed to allocate request for "
        r"(?P<asked>[\d.]+ ?[KMGT]?i?B)(?: \(\d+B\) on device ordinal (?P<gpu>\d+))?)|"
        r"RESOURCE_EXHAUSTED: [^\n]{0,120}?(?:Ran out of memory in memory space|Attempting to (?:reserve|allocate) "
        r"(?P<wanted>[\d.]+[KMGT]?)[^\n]{0,60}?That was not possible)",
    ),
    "tensorflow-out-of-memory": Message(
        ("OOM when allocating tensor", "ran out of memory trying to allocate"),
        r"OOM when allocating tensor with shape|Allocator \([^()\n]{1,60}\) ran out of memory trying to allocate "
        r"(?P<size>[\d.]+ ?[KMGT]?i?B)",
        (_NO_FAILURE,),
    ),
    "other-out-of-memory": Message(
        (
            "NPU out of memory",
            "XPU out of memory",
            "MPS backend out of memory",
            "MODULE:PT_DEVMEM Allocation failed",
            "ERROR_OUT_OF_DEVICE_MEMORY",
            "PI_ERROR_OUT_OF_RESOURCES",
            "UR_RESULT_ERROR_OUT_OF_RESOURCES",
            "SYNHELPER workspace Allocation of size",
            "Failed to alloc DEVICE memory",
            "memory isn't enough and alloc failed",
            "EL0004: ",
        ),
        r"(?:NPU|XPU) out of memory(?:\. Tried to allocate (?P<size>[\d.]+ [KMGT]iB))?|MPS backend out of memory|"
        r"MODULE:PT_DEVMEM Allocation failed|\b(?:ZE|UR)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY\b|(?:PI|"
        r"UR_RESULT)_ERROR_OUT_OF_RESOURCES|"
        r"SYNHELPER workspace Allocation of size[^\n]{0,40}failed|Failed to alloc DEVICE memory|"
        r"\bEL0004: |Device\(id: ?(?P<gpu>\d+)\) memory isn't enough and alloc failed",
    ),
    "engine-out-of-memory": Message(
        (
            "No available memory for the cache blocks",
            "is less than desired GPU memory utilization",
            "Not enough memory. Please try to increase --mem-fraction-static",
            "Not enough memory. Please try increasing --mem-fraction-static",
        ),
        r"No available memory for the cache blocks|"
        r"(?:Free memory on device (?:cuda:(?P<gpu>\d+) )?[^\n]{0,80})?is less than desired GPU memory utilization|"
        r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static",
    ),
    "named-out-of-memory": Message(
        (
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "hipErrorMemoryAllocation",
            "_ALLOC_FAILED",
        ),
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\bcudaErrorMemoryAllocation\b|\bhipError(?:OutOfMemory|MemoryAllocation)\b|"
        r"\b(?:CU|HIP|ROC)(?:BLAS|DNN|SOLVER|SPARSE|RAND|FFT)_(?:STATUS_)?ALLOC_FAILED\b",
        (*_OF_NVLS, _NO_FAILURE),
    ),
    "julia-out-of-memory": Message(
        ("Out of GPU memory",),
        r"(?:^|: )Out of GPU memory(?: trying to allocate (?P<size>[\d.]+ (?:bytes|[KMGT]iB)))?(?=\s*$| on device )",
        (*_ADVICE, *_WENT_ON),
    ),
    "rmm-out-of-memory": Message(
        ("bad_alloc: out_of_memory: ", "RMM failure at"),
        r"\bbad_alloc: out_of_memory: (?:CUDA error(?: \(failed to allocate (?P<size>\d+ bytes)\))?|RMM failure)|"
        r"\bRMM failure at:[^\n]{1,300}?: (?:Maximum pool size exceeded|Not enough room to grow)",
    ),
    "opencl-out-of-memory": Message(
        ("MEM_OBJECT_ALLOCATION_FAILURE",),
        r"(?<![A-Za-z])(?:CL_)?MEM_OBJECT_ALLOCATION_FAILURE\b",
    ),
    "paddle-out-of-memory": Message(
        ("Out of memory error on GPU",),
        r"Out of memory error on GPU (?P<gpu>\d+)\. Cannot allocate (?P<size>[\d.]+ ?[KMGT]?i?B)",
    ),
    "torch-out-of-memory": Message(
        ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory"),
        r"(?:OutOfMemoryError: )?(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<size>[\d.]+ "
        r"[KMGT]iB)(?:[. ]+\(?GPU (?P<gpu>\d+))?)?|CUDA error: out of memory|\bOutOfMemoryError",
        ("out of memory errors", "avoid CUDA out of", "prevent CUDA out of", *_OF_THE_HOST, *_WENT_ON),
    ),
    # The words of any program: a word of the device before them. Advice about memory has words of its own.
    "device-out-of-memory": Message(
        ("ut of memory", "OUT_OF_MEMORY", "ut of device memory"),
        r"(?:\b(?:cu|cuda|hip)[A-Z]\w{2,40}|(?<![A-Za-z])(?:CUDA|Cuda|cuda|HIP|GPU|Gpu|gpu|THCuda|OpenACC|OpenCL)(?!\d)|"
        r"\w\.cu[: ])[^\n]{0,160}?(?:[oO]ut of (?:device )?memory|OUT_OF_MEMORY)(?![^\n]{0,20}\bkill)|"
        r"^[^\n]{0,40}\b[oO]ut of (?:device memory|memory allocating (?P<size>[\d,]+ bytes)(?: of device memory)?)",
        (*_OF_NVLS, *_ADVICE, *_WENT_ON, *_OF_THE_KERNEL, "ut of memory errors", "not out of", _NO_FAILURE),
    ),
}
_ANCHORS = tuple(dict.fromkeys(anchor for message in MESSAGES.values() for anchor in message.anchors))


class Reported(NamedTuple):
    """An out-of-memory error of a log: the file; and in bytes, None if the message has none, the size that did not fit,
    what was free on the device, what was reserved by PyTorch but unallocated, and the capacity of the device."""

    path: Path
    size: int | None
    free: int | None = None
    unallocated: int | None = None
    capacity: int | None = None


# torch's message, c10/cuda/CUDACachingAllocator.cpp: since 2.1, and before.
_AMOUNT = r"([\d.]{1,20}) ([KMGT]?i?B|bytes)"
_FREE = (
    re.compile(rf"capacity of {_AMOUNT} of which {_AMOUNT} is free"),
    re.compile(rf"total capacity; .{{0,80}}?; {_AMOUNT} free"),
)
_CAPACITY = (re.compile(rf"total capacity of {_AMOUNT}"), re.compile(rf"{_AMOUNT} total capacity"))
_UNALLOCATED = re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated")
_ALLOCATED, _RESERVED = (
    re.compile(rf"{_AMOUNT} already allocated"),
    re.compile(rf"{_AMOUNT} reserved in total by PyTorch"),
)
_SIZE = re.compile(r"([\d.,]+) ?(?:bytes|([KMGT]?)i?B?)")


def bytes_of(text: str) -> int | None:
    """A size as messages of allocators have it, in bytes; None if it is none. Their MB is MiB."""
    match = _SIZE.fullmatch(text)
    try:
        return round(float(match[1].replace(",", "")) * 1024 ** " KMGT".index(match[2] or " ")) if match else None
    except (ValueError, OverflowError):
        return None


def _last_amount(pattern: re.Pattern[str], text: str) -> int | None:
    found = [match.groups()[-2:] for match in pattern.finditer(text)]
    return bytes_of(" ".join(found[-1])) if found else None


def _first_amount(patterns: Iterable[re.Pattern[str]], text: str) -> int | None:
    found = (_last_amount(pattern, text) for pattern in patterns)
    return next((amount for amount in found if amount is not None), None)


def _free_of(text: str) -> tuple[int | None, int | None]:
    """What was free on the device, and what PyTorch had reserved without giving it out."""
    free = _first_amount(_FREE, text)
    unallocated = _last_amount(_UNALLOCATED, text)
    allocated, reserved = _last_amount(_ALLOCATED, text), _last_amount(_RESERVED, text)
    if unallocated is None and allocated is not None and reserved is not None:
        unallocated = max(0, reserved - allocated)
    return free, unallocated


def out_of_memory_lines(layout: RunLayout, ranks: Iterable[int]) -> dict[int, Reported]:
    """For each of these ranks whose log ends with an out-of-memory error, what it says."""
    lines = {}
    for rank in ranks:
        files = layout.rank(rank)
        names = files.names()
        for entry in (RankLayout.error, RankLayout.log):
            there = names is None or entry.name in names
            reported = _reported(files.at(entry.name), files) if there else None
            if reported is not None:
                lines[rank] = reported
                break
    return lines


def _reported(path: Path, files: RankLayout) -> Reported | None:
    try:
        text = read_tail(path, ENDED.out_of_memory_tail_bytes, files.run)[0].decode(errors="replace")
    except OSError:  # no such file, or one that the analysis reports
        return None
    if not any(anchor in text for anchor in _ANCHORS):
        return None
    sizes = [size for line in text.splitlines() for message in MESSAGES.values() for size in message.sizes(line)]
    if not sizes:
        return None
    return Reported(path, next(filter(None, sizes), None), *_free_of(text), _first_amount(_CAPACITY, text))


def look_at_snapshot(layouts: Iterable[RunLayout], ranks: Collection[int | None]) -> str:
    """The command that shows the allocator's snapshot of a rank that ran out of memory, else of another one; that of
    the failed allocation, else one of a step near it. "" if there is none."""
    with suppress(OSError):
        snapshots = [
            (rank not in ranks, f"memory-{OOM}-" not in path.name, rank, path)
            for layout in layouts
            if layout.is_run()
            for rank, files in job_ranks(layout, whole=True).files.items()
            for path in files.memory_snapshots()
        ]
        if snapshots:
            _, _, rank, path = min(snapshots)
            return f"`diag analyze {path}` shows what was allocated on rank {rank}."
    return ""
