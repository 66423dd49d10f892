"""Allocations of device memory that failed, as the ranks' logs and error files of a run directory report them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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

    def sizes(self, line: str) -> list[str]:
        """The size of each failed allocation in a line, "" where the message has none."""
        if any(word in line for word in self.unless):
            return []
        return [match.groupdict().get("size") or "" for match in self._compiled.finditer(line)]


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
        r"RESOURCE_EXHAUSTED: (?:[\w ]{0,40}: )?(?:Out of memory|Error allocating device buffer)(?:[^\n]{0,80}? "
        r"allocate (?P<size>[\d.]+ ?(?:bytes|[KMGT]i?B?)))?",
    ),
    "torch-out-of-memory": Message(
        ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory"),
        r"(?:OutOfMemoryError: )?(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<size>[\d.]+ "
        r"[KMGT]iB)(?:[. ]+\(?GPU (?P<gpu>\d+))?)?|CUDA error: out of memory|\bOutOfMemoryError",
    ),
}
_ANCHORS = tuple(dict.fromkeys(anchor for message in MESSAGES.values() for anchor in message.anchors))


def out_of_memory_lines(layout: RunLayout, ranks: Iterable[int]) -> dict[int, tuple[Path, str]]:
    """For each of these ranks whose log ends with an out-of-memory error, the file and the size that did not fit as
    the log has it, "" if it has none."""
    lines = {}
    for rank in ranks:
        files = layout.rank(rank)
        for path in (files.error, files.log):
            size = _size(path, files)
            if size is not None:
                lines[rank] = path, size
                break
    return lines


def _size(path: Path, files: RankLayout) -> str | None:
    try:
        text = read_tail(path, ENDED.out_of_memory_tail_bytes, files.run)[0].decode(errors="replace")
    except OSError:  # no such file, or one that the analysis reports
        return None
    if not any(anchor in text for anchor in _ANCHORS):
        return None
    sizes = [size for line in text.splitlines() for message in MESSAGES.values() for size in message.sizes(line)]
    return next(filter(None, sizes), "") if sizes else None


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
