"""The account of a large trace's steps, cached with its tables, so that a second analysis starts from there.

An account depends only on the trace, the kernels that the user calls communication, the windows and the code: its name
is a hash of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from diag.decoding import msgpack_decoder
from diag.model.steps import RankStep
from diag.traces.shelf import hash_of_sources, with_thresholds
from diag.traces.trace import Trace

from . import cpu, gpu
from .intervals import Window
from .kept_steps import KeptSteps, keep, steps_from
from .rank_steps import RankSteps


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
) -> Sequence[RankStep]:
    """The accounts of the windows, from the cache or computed."""
    if trace.derived is None:
        return account()
    shown = (list(windows), rank, trace.rank, trace.world_size, sorted(trace.groups.items()), trace.undivided)
    key = repr((*shown, trace.comm_kernels))
    name = f"steps-{code()}-{sha256(key.encode()).hexdigest()[:16]}"
    data = trace.derived.load(name)
    if data is not None:
        try:
            return steps_from(msgpack_decoder(KeptSteps).decode(data))
        except (msgspec.DecodeError, KeyError, IndexError, ValueError):
            pass
    steps = account()
    trace.derived.save(name, msgspec.msgpack.encode(keep(RankSteps.of(steps))))
    return steps


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
