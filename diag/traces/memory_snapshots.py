"""Reads snapshots of PyTorch's caching allocator, which ``torch.cuda.memory._dump_snapshot`` writes.

A snapshot is a pickle of plain containers: the segments that the allocator holds with their blocks, and, if
``_record_memory_history`` was on, the last events of each device (alloc, free_requested, free_completed, segment_alloc,
segment_map, oom, ...). Both may have the stack of the allocation, innermost frame first. No class of the pickle is ever
instantiated: see ``bounded_pickle``. Checked with nine public snapshots of three forms: in the oldest, blocks have no
address and keep their stacks in ``history``, and events have no time; later ones have both; newer ones have settings
and annotations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from diag.collectors import bounded_pickle
from diag.collectors.bounded_pickle import RefusedError, TruncatedError
from diag.collectors.layout import MOST_RANKS, run_of
from diag.collectors.reading import read_regular
from diag.deferred import Schema, pl
from diag.errors import DiagError
from diag.model import Gap
from diag.model.memory import Category
from diag.traces.policy import TRACE_LIMITS
from diag.words.formatting import counted

from .snapshot_files import rank_of, rank_of_folder

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, OOM = range(6)
_ACTIONS = {
    "alloc": ALLOC,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_map": SEGMENT_ALLOC,  # expandable segments, part by part
    "segment_free": SEGMENT_FREE,
    "segment_unmap": SEGMENT_FREE,
    "oom": OOM,
}
ALLOCATED, AWAITING_FREE, INACTIVE = range(3)
_STATES = {
    "active_allocated": ALLOCATED,
    "active_awaiting_free": AWAITING_FREE,
    "active_pending_free": AWAITING_FREE,
    "inactive": INACTIVE,
}
SEGMENTS = Schema(address="UInt64", size="Int64")
# ``segment``: the row of its segment; ``requested``: bytes requested for the tensor; ``stack``: an index into stacks.
BLOCKS = Schema(
    segment="Int64", address="UInt64", size="Int64", requested="Int64", state="Int8",
    stack="Int64",
)  # fmt: skip
# In order. ``size`` of an alloc or a free is the size requested for the tensor; ``time_us`` is null before torch 2.1;
# ``free``: in an out-of-memory error, the device's free memory.
EVENTS = Schema(
    action="Int8", addr="UInt64", size="Int64", time_us="Int64", free="Int64", stack="Int64",
)  # fmt: skip


NO_STACK = "no stack recorded"
FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
_TORCH = re.compile(r"(?:site|dist)-packages/(?:torch|triton|functorch)/|/torch/csrc/")
_STANDARD_LIBRARY = re.compile(r"/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<")
_OPERATOR = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_ALLOCATES = re.compile(r"_?(?:empty|new_empty|resize)")
_CALL_MODULE = ("_call_impl", "torch/nn/modules/module.py")
_BACKWARD = re.compile(r"torch::autograd::(?:Engine|PythonEngine)|_engine_run_backward")
# Frames of a collective, or of a wrapper that gathers or reduces. Their own set-up holds parameters.
_COMMUNICATES = re.compile(
    r"torch/distributed/(?:distributed_c10d|_functional_collectives|_symmetric_memory|fsdp/|algorithms/)|"
    r"torch/distributed/tensor/[\w/]*(?:_redistribute|_collective)|deepspeed/(?:comm|runtime/(?:comm|zero))/"
)
_COMMUNICATES_IN_C = re.compile(r"\bc10d::")
_SETS_UP = re.compile(r"__init__|_?init_|reset_parameters|_materialize|to_empty|_apply$|_lazy_init|fully_shard$")
_HOLDS_PARAMETERS = re.compile(r"torch/nn/(?:modules/|parameter\.py|init\.py)|torch/distributed/fsdp/")
_RECOMPUTES = "torch/utils/checkpoint.py"


class Stack(Struct, frozen=True):
    """Summary of an allocation's stack: ``frame``, the innermost outside of torch and the standard library;
    ``operator``, the innermost of ATen that does more than allocate; ``module``, the innermost forward of an
    nn.Module. "" if the stack has none. ``phase``: of the step."""

    frame: str = ""
    operator: str = ""
    module: str = ""
    phase: str = OTHER
    category: Category = Category.BEFORE
    calls: tuple[str, ...] = ()  # the frames outside of torch and the standard library, innermost first

    @property
    def place(self) -> str:
        """Where the allocation comes from, if that is known."""
        if self.frame:
            return self.frame
        return f"aten::{self.operator}, called from C++" if self.operator else NO_STACK


class _Stacks:
    """Stacks by number; 0 is the empty one. torch's pickles share the frames, so frames identify a stack by their
    ids."""

    def __init__(self) -> None:
        self.all = [Stack()]
        self._numbers: dict[tuple[int, ...], int] = {}
        self._frames: list[object] = []  # keeps them alive: their ids are keys

    def number(self, frames: object) -> int:
        if not isinstance(frames, (list, tuple)) or not frames:
            return 0
        key = tuple(map(id, frames))
        number = self._numbers.get(key)
        if number is None:
            self._frames.append(frames)
            number = self._numbers[key] = len(self.all)
            self.all.append(_stack(frames))
        return number


def _stack(frames: Sequence[object]) -> Stack:
    user = operator = module = inner = ""
    phase, calls, use = OTHER, list[str](), _Use()
    for entry in frames:
        if not isinstance(entry, Mapping):
            continue
        name, file = _text(entry.get("name")), _text(entry.get("filename"))
        use.look_at(name, file)
        if _BACKWARD.search(name):
            phase = BACKWARD
        if file.endswith(".py"):
            label = f"{file.rpartition('/')[2]}:{_int(entry.get('line'), 0, 1 << 31) or 0} {name}"
            if not _TORCH.search(file) and not _STANDARD_LIBRARY.search(file):
                user = user or label
                if len(calls) < TRACE_LIMITS.most_frames_named:
                    calls.append(label)
            if "torch/optim/" in file and phase == OTHER:
                phase = OPTIMIZER
            if name == _CALL_MODULE[0] and file.endswith(_CALL_MODULE[1]):
                module = module or (inner if inner.endswith(" forward") else "")
                phase = FORWARD if phase == OTHER else phase
            inner = label
        elif not operator and (match := _OPERATOR.search(name)) and not _ALLOCATES.match(match[1]):
            operator = match[1]
    return Stack(user, operator, module, phase, use.category(phase), tuple(calls))


class _Use:
    """What a stack says about the use of its memory, frame by frame from the innermost. Wrappers are outer frames of
    everything that a model computes, so a collective counts only inside of the first call of a module or of user
    code."""

    def __init__(self) -> None:
        self.communicates = self.sets_up = self.recomputes = self._in_model = False

    def look_at(self, name: str, file: str) -> None:
        if not file.endswith(".py"):
            self.communicates |= not self._in_model and bool(_COMMUNICATES_IN_C.search(name))
            return
        self.recomputes |= file.endswith(_RECOMPUTES)
        self.sets_up |= bool(_SETS_UP.match(name) and _HOLDS_PARAMETERS.search(file))
        if not self._in_model and _COMMUNICATES.search(file):
            self.communicates |= not _SETS_UP.match(name)
        self._in_model |= not _TORCH.search(file) or "torch/nn/modules/" in file

    def category(self, phase: str) -> Category:
        if phase == OPTIMIZER:
            return Category.OPTIMIZER
        if self.communicates:
            return Category.COMMUNICATION
        if phase == BACKWARD:
            return Category.ACTIVATIONS if self.recomputes else Category.GRADIENTS
        if self.sets_up:
            return Category.PARAMETERS
        return Category.ACTIVATIONS if phase == FORWARD else Category.OTHER


class DeviceSnapshot(Struct, frozen=True, eq=False):
    """The allocator of one device: data frames with the columns of SEGMENTS, BLOCKS and EVENTS."""

    device: int
    segments: pl.DataFrame
    blocks: pl.DataFrame
    events: pl.DataFrame


class Snapshot(Struct, frozen=True, eq=False):
    """One file. ``rank``: from the data that diag's collectors added, or the file's name; None if neither has it.
    ``step`` and ``reason`` (asked, near-oom, oom): of a snapshot that diag wrote. ``settings``:
    PYTORCH_CUDA_ALLOC_CONF. ``left_out``: entries that could not be understood."""

    path: str
    rank: int | None
    step: int | None
    reason: str
    settings: str
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    left_out: int = 0
    digest: bytes = b""  # of the file


def read_snapshots(files: Iterable[Path | str]) -> tuple[list[Snapshot], list[Gap]]:
    """The snapshots, and a gap for each file that is not one or cannot be read."""
    read: list[Snapshot] = []
    gaps: list[Gap] = []
    same: dict[bytes, str] = {}
    for file in files:
        try:
            snapshot = read_snapshot(file)
        except DiagError as error:
            gaps.append(Gap(str(file), error.message))
            continue
        first = same.setdefault(snapshot.digest, snapshot.path)
        folder = rank_of_folder(Path(file))
        if first != snapshot.path:
            gaps.append(Gap(str(file), f"the same file as {first}; left out"))
        elif None not in (folder, snapshot.rank) and folder != snapshot.rank:
            gaps.append(Gap(str(file), f"written by rank {snapshot.rank}, in the folder of rank {folder}; left out"))
        elif not snapshot.devices:
            gaps.append(Gap(str(file), "holds neither memory nor events: nothing was allocated on a device"))
        else:
            read.append(snapshot)
        if snapshot.left_out:
            entries = counted(snapshot.left_out, "entry", "entries")
            gaps.append(Gap(str(file), f"left out {entries} that could not be parsed"))
    return read, gaps


def read_snapshot(path: Path | str) -> Snapshot:
    """DiagError for a file that cannot be read, is refused or is not a snapshot."""
    try:
        data = read_regular(path, TRACE_LIMITS.most_snapshot_bytes, run_of(path))
        content = bounded_pickle.load(
            data, times=TRACE_LIMITS.snapshot_over_dump, most_bytes=TRACE_LIMITS.most_snapshot_bytes
        )
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror or error}") from error
    except RefusedError as error:
        raise _refusal(path, f"refused: {error}") from error
    except TruncatedError as error:
        raise _refusal(path, f"truncated: {error}") from error
    if isinstance(content, (list, tuple)) and content and all(map(_is_segment, content)):
        content = {"segments": content}  # torch.cuda.memory_snapshot(), before snapshots had events
    if not isinstance(content, dict) or not isinstance(content.get("segments"), (list, tuple)):
        raise _refusal(path, "is a pickle, but not a PyTorch memory snapshot: it has no segments")
    return _snapshot(str(path), content, hashlib.blake2b(data, digest_size=16).digest())


def _refusal(path: Path | str, reason: str) -> DiagError:
    hint = "pass a file that torch.cuda.memory._dump_snapshot(path) wrote; a smaller max_entries makes a smaller file"
    return DiagError(reason, path=path, hint=hint)


def _is_segment(entry: object) -> bool:
    return isinstance(entry, Mapping) and "total_size" in entry


class _Rows(Struct):
    """Collects the rows of one device."""

    segments: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    events: list[tuple[int, int, int, int | None, int | None, int]] = field(default_factory=list)


def _snapshot(path: str, content: Mapping[str, Any], digest: bytes) -> Snapshot:
    stacks, devices = _Stacks(), dict[int, _Rows]()
    lost = sum(not _add_segment(devices, segment, stacks) for segment in content["segments"])
    traces = content.get("device_traces")
    for device, entries in enumerate(traces if isinstance(traces, (list, tuple)) else ()):
        if isinstance(entries, (list, tuple)) and entries:
            rows = devices.setdefault(device, _Rows())
            lost += sum(not _add_event(rows, entry, stacks) for entry in entries)
    settings, written_by_diag = content.get("allocator_settings"), content.get("diag")
    written_by_diag = written_by_diag if isinstance(written_by_diag, Mapping) else {}
    rank = _int(written_by_diag.get("rank"), 0, MOST_RANKS - 1)
    return Snapshot(
        path=path,
        rank=rank if rank is not None else rank_of(path),
        step=_int(written_by_diag.get("step"), 0, 1 << 62),
        reason=_text(written_by_diag.get("reason")),
        settings=_text(settings.get("PYTORCH_CUDA_ALLOC_CONF")) if isinstance(settings, Mapping) else "",
        devices=tuple(_device(device, rows) for device, rows in sorted(devices.items())),
        stacks=tuple(stacks.all),
        left_out=lost,
        digest=digest,
    )


def _device(device: int, rows: _Rows) -> DeviceSnapshot:
    segments, blocks, events = (
        pl.DataFrame(content, schema=schema, orient="row")
        for content, schema in ((rows.segments, SEGMENTS), (rows.blocks, BLOCKS), (rows.events, EVENTS))
    )
    return DeviceSnapshot(device, segments, blocks, events)


def _add_segment(devices: dict[int, _Rows], segment: object, stacks: _Stacks) -> bool:
    """Whether the segment could be understood, with all its blocks."""
    if not isinstance(segment, Mapping):
        return False
    device = _int(segment.get("device", 0), 0, 1 << 10)
    address, size = (
        _int(segment.get("address"), 0, 1 << 63),
        _int(segment.get("total_size"), 0, TRACE_LIMITS.largest_block_bytes),
    )
    blocks = segment.get("blocks", ())
    if device is None or address is None or size is None or not isinstance(blocks, (list, tuple)):
        return False
    rows = devices.setdefault(device, _Rows())
    rows.segments.append((address, size))
    whole, at = True, address
    for block in blocks:
        taken = _block(block, len(rows.segments) - 1, at, stacks)
        if taken is None:
            whole = False
            continue
        rows.blocks.append(taken)
        at = taken[1] + taken[2]
    return whole


def _block(block: object, segment: int, at: int, stacks: _Stacks) -> tuple[int, int, int, int, int, int] | None:
    """``at``: the end of the previous block, used as the address if the block has none."""
    if not isinstance(block, Mapping):
        return None
    address = _int(block.get("address", at), 0, 1 << 63)
    size, state = _int(block.get("size"), 0, TRACE_LIMITS.largest_block_bytes), _STATES.get(_text(block.get("state")))
    if address is None or size is None or state is None:
        return None
    history = block.get("history")
    newest = history[0] if isinstance(history, (list, tuple)) and history else {}
    newest = newest if isinstance(newest, Mapping) else {}
    requested_size = block.get("requested_size", newest.get("real_size"))
    requested = _int(requested_size, 0, TRACE_LIMITS.largest_block_bytes)
    stack = stacks.number(block.get("frames") or newest.get("frames"))
    return segment, address, size, size if requested is None else requested, state, stack


def _add_event(rows: _Rows, entry: object, stacks: _Stacks) -> bool:
    if not isinstance(entry, Mapping):
        return False
    kind = entry.get("action")
    action = _ACTIONS.get(kind) if isinstance(kind, str) else None
    if action is None:
        return isinstance(kind, str)  # a mark of a snapshot, or an action added by a later torch
    addr = _int(entry.get("addr", 0), 0, 1 << 63)
    size = _int(entry.get("size"), 0, TRACE_LIMITS.largest_block_bytes)
    if addr is None or size is None:
        return False
    time_us, free = (
        _int(entry.get("time_us"), 0, TRACE_LIMITS.latest_us),
        _int(entry.get("device_free"), 0, TRACE_LIMITS.largest_block_bytes),
    )
    rows.events.append((action, addr, size, time_us, free, stacks.number(entry.get("frames"))))
    return True


def _int(value: object, least: int, most: int) -> int | None:
    return value if type(value) is int and least <= value <= most else None


def _text(value: object) -> str:
    return value[: TRACE_LIMITS.most_snapshot_text_chars] if isinstance(value, str) else ""
