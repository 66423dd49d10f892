"""The account of a large trace's steps, cached with its tables, so that a second analysis starts from there.

An account depends on nothing but the trace, the kernels that the user calls communication, the windows and the code:
its name is a hash of these. The cache holds data (msgpack and bytes of arrays), never code: a run directory may come
from anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from diag.model.steps import CollectiveCall, RankStep, Segments, Stall
from diag.traces.cache import hash_of_sources
from diag.traces.trace import Trace

from . import cpu, gpu
from .intervals import Window


class _Kept(msgspec.Struct, array_like=True):
    step: int
    begin_ns: int
    end_ns: int
    edges: bytes  # int64: where the pieces start, and where the last one ends
    kind: bytes
    detail: bytes
    overlapped_comm_ns: int
    optimizer_ns: int
    collectives: list[CollectiveCall]
    stalls: list[Stall]
    pieces: int
    fused_ns: int = 0


def windows_of(trace: Trace) -> list[Window]:
    """The windows of the trace's steps, kept or found."""
    name = f"windows-{_code()}-{int(trace.undivided)}-{trace.step_shift}{_named_by_user(trace)}"
    data = trace.derived.load(name) if trace.derived is not None else None
    if data is not None:
        try:
            return msgspec.msgpack.decode(data, type=list[tuple[int, int, int]])
        except msgspec.DecodeError:
            pass
    found: list[Window] = gpu.step_windows(trace) if trace.has_gpu else cpu.step_windows(trace)
    if trace.derived is not None:
        trace.derived.save(name, msgspec.msgpack.encode(found))
    return found


def steps_of(
    trace: Trace, windows: Sequence[Window], rank: int, account: Callable[[], list[RankStep]]
) -> list[RankStep]:
    """The accounts of the windows, kept or made."""
    if trace.derived is None:
        return account()
    shown = (list(windows), rank, trace.rank, trace.world_size, sorted(trace.groups.items()), trace.undivided)
    asked = repr((*shown, trace.comm_kernels))
    name = f"steps-{_code()}-{sha256(asked.encode()).hexdigest()[:16]}"
    data = trace.derived.load(name)
    if data is not None:
        try:
            return [_step(rank, kept) for kept in msgspec.msgpack.decode(data, type=list[_Kept])]
        except (msgspec.DecodeError, ValueError):
            pass
    found = account()
    trace.derived.save(name, msgspec.msgpack.encode([_kept(step) for step in found]))
    return found


def _kept(step: RankStep) -> _Kept:
    cut = step.segments
    return _Kept(
        step.step, step.begin_ns, step.end_ns, np.append(cut.start_ns, cut.end_ns[-1:]).tobytes(), cut.kind.tobytes(),
        cut.detail.tobytes(), step.overlapped_comm_ns, step.optimizer_ns, list(step.collectives),
        list(step.stalls), step.pieces, step.fused_ns,
    )  # fmt: skip


def _step(rank: int, kept: _Kept) -> RankStep:
    edges = np.frombuffer(kept.edges, dtype=np.int64)
    kind, detail = (np.frombuffer(data, dtype=np.int8) for data in (kept.kind, kept.detail))
    if not len(kind) == len(detail) == max(0, len(edges) - 1):
        raise ValueError("arrays of different lengths")
    return RankStep(
        rank, kept.step, kept.begin_ns, kept.end_ns, "trace", Segments(edges[:-1], edges[1:], kind, detail),
        kept.overlapped_comm_ns, kept.optimizer_ns, tuple(kept.collectives),
        stalls=tuple(kept.stalls), pieces=kept.pieces, fused_ns=kept.fused_ns,
    )  # fmt: skip


def _named_by_user(trace: Trace) -> str:
    """A part of a name for the user's own names of communication; "" without any."""
    return f"-{sha256(repr(trace.comm_kernels).encode()).hexdigest()[:16]}" if trace.comm_kernels else ""


@cache
def _code() -> str:
    """Hash of the code that makes an account."""
    rooms = (Path(__file__).parents[1] / room for room in ("account", "traces", "model"))
    return hash_of_sources(*(source for room in rooms for source in room.rglob("*.py")))
