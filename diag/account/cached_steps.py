"""The account of a large trace's steps, cached with its tables, so that a second analysis starts from there.

An account depends only on the trace, the kernels that the user calls communication, the windows and the code: its name
is a hash of these. The cache holds data (msgpack and bytes of arrays), never code: a run directory may come from
anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from diag.model.steps import RankStep, Segments, Stall
from diag.traces.cache import hash_of_sources, with_thresholds
from diag.traces.trace import Trace

from . import cpu, gpu
from .calls import Calls, Group, Some, calls_in
from .intervals import Window

_TYPES = {"group": np.int32, "label": np.int32, "op": np.int32, "dtype": np.int32, "inferred": np.bool_}


class _CachedStep(msgspec.Struct, array_like=True):
    step: int
    begin_ns: int
    end_ns: int
    edges: bytes  # int64: where the pieces start, and where the last one ends
    kind: bytes
    detail: bytes
    overlapped_comm_ns: int
    optimizer_ns: int
    calls: bytes  # int64: their places
    stalls: list[Stall]
    pieces: int
    fused_ns: int


class _CachedSteps(msgspec.Struct, array_like=True):
    steps: list[_CachedStep]
    calls: dict[str, bytes]  # the columns of ``Calls``, of the types above or int64
    groups: list[Group]
    names: list[str]


def windows_of(trace: Trace) -> list[Window]:
    """The windows of the trace's steps, from the cache or computed."""
    name = f"windows-{code()}-{int(trace.undivided)}-{trace.step_shift}{_named_by_user(trace)}"
    data = trace.derived.load(name) if trace.derived is not None else None
    if data is not None:
        try:
            return msgspec.msgpack.decode(data, type=list[tuple[int, int, int]])
        except msgspec.DecodeError:
            pass
    windows: list[Window] = gpu.step_windows(trace) if trace.has_gpu else cpu.step_windows(trace)
    if trace.derived is not None:
        trace.derived.save(name, msgspec.msgpack.encode(windows))
    return windows


def steps_of(
    trace: Trace, windows: Sequence[Window], rank: int, account: Callable[[], list[RankStep]]
) -> list[RankStep]:
    """The accounts of the windows, from the cache or computed."""
    if trace.derived is None:
        return account()
    shown = (list(windows), rank, trace.rank, trace.world_size, sorted(trace.groups.items()), trace.undivided)
    key = repr((*shown, trace.comm_kernels))
    name = f"steps-{code()}-{sha256(key.encode()).hexdigest()[:16]}"
    data = trace.derived.load(name)
    if data is not None:
        try:
            return _from_cache(rank, msgspec.msgpack.decode(data, type=_CachedSteps))
        except (msgspec.DecodeError, KeyError, ValueError):
            pass
    steps = account()
    trace.derived.save(name, msgspec.msgpack.encode(_to_cache(steps)))
    return steps


def _to_cache(steps: Sequence[RankStep]) -> _CachedSteps:
    calls, places = calls_in([step.collectives for step in steps])
    cached = [
        _CachedStep(
            step.step,
            step.begin_ns,
            step.end_ns,
            np.append(step.segments.start_ns, step.segments.end_ns[-1:]).tobytes(),
            step.segments.kind.tobytes(),
            step.segments.detail.tobytes(),
            step.overlapped_comm_ns,
            step.optimizer_ns,
            of_step.tobytes(),
            list(step.stalls),
            step.pieces,
            step.fused_ns,
        )
        for step, of_step in zip(steps, places, strict=True)
    ]
    columns = {name: getattr(calls, name).tobytes() for name in Calls.columns()}
    return _CachedSteps(cached, columns, list(calls.groups), list(calls.names))


def _from_cache(rank: int, cached: _CachedSteps) -> list[RankStep]:
    """ValueError if the arrays do not fit together."""
    columns: dict[str, Any] = {
        name: np.frombuffer(cached.calls[name], _TYPES.get(name, np.int64)) for name in Calls.columns()
    }
    calls = Calls(**columns, groups=tuple(cached.groups), names=tuple(cached.names))
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    _check_places(calls.group, len(cached.groups))
    for codes in (calls.label, calls.op, calls.dtype):
        _check_places(codes, len(cached.names))
    return [_step_from_cache(rank, step, calls) for step in cached.steps]


def _step_from_cache(rank: int, cached: _CachedStep, calls: Calls) -> RankStep:
    edges = np.frombuffer(cached.edges, dtype=np.int64)
    kind, detail = (np.frombuffer(data, dtype=np.int8) for data in (cached.kind, cached.detail))
    if not len(kind) == len(detail) == max(0, len(edges) - 1):
        raise ValueError("arrays of different lengths")
    places = np.frombuffer(cached.calls, dtype=np.int64)
    _check_places(places, len(calls))
    return RankStep(
        rank,
        cached.step,
        cached.begin_ns,
        cached.end_ns,
        "trace",
        Segments(edges[:-1], edges[1:], kind, detail),
        cached.overlapped_comm_ns,
        cached.optimizer_ns,
        Some(calls, places),
        stalls=tuple(cached.stalls),
        pieces=cached.pieces,
        fused_ns=cached.fused_ns,
    )


def _check_places(places: npt.NDArray[np.signedinteger], count: int) -> None:
    if len(places) and not (int(places.min()) >= 0 and int(places.max()) < count):
        raise ValueError("a place beyond the table")


def _named_by_user(trace: Trace) -> str:
    """The part of a cache name that stands for the user's own names of communication; "" without any."""
    return f"-{sha256(repr(trace.comm_kernels).encode()).hexdigest()[:16]}" if trace.comm_kernels else ""


def code() -> str:
    """Stands for the code that makes an account, and for the thresholds that it uses."""
    return with_thresholds(_sources(), "account", "traces", "rundir")


@cache
def _sources() -> str:
    rooms = (Path(__file__).parents[1] / room for room in ("account", "traces", "model", "rundir"))
    return hash_of_sources(*(source for room in rooms for source in room.rglob("*.py")))
