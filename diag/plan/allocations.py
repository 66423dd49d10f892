"""The peak of one profiler window's allocations on the host, read from the allocations themselves.

The profiler's own running total is too high where gloo's threads free what a training thread allocated: the profiler
sees frees of threads that it records only, and gloo's are not. Measured with fully_shard on two ranks: the copy that a
reduce-scatter works on (``c10d::_reduce_scatter_base_``) stays in the total for good in some calls and not in others,
whichever thread drops it last. On a loaded machine the same happens to what an all-gather writes to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from diag.traces.kineto_events import MEMORY_EVENT
from diag.traces.sources import opened
from diag.traces.text_stream import blocks, damaged

_HOST = 0  # the profiler's number of the CPU
_COLLECTIVE = "c10d::"
_GATHERING = "FSDP::all_gather ("  # fully_shard's scope, in which it takes the buffer to gather into


class Allocations(Struct, frozen=True):
    """``peak``: bytes above what was held when the window began. ``unseen``: bytes whose freeing nobody recorded."""

    peak: int
    unseen: int


class Change(Struct, frozen=True):
    """Bytes taken at an address, or given back (negative)."""

    at_us: float
    address: int
    bytes: int


Span = tuple[float, float]


class _Args(Struct):
    bytes: int = msgspec.field(default=0, name="Bytes")
    address: int = msgspec.field(default=0, name="Addr")
    device: int = msgspec.field(default=-1, name="Device Type")


class _Event(Struct):
    name: str = ""
    ph: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def host_allocations(path: str) -> Allocations | None:
    """Of a trace that torch exported with ``profile_memory``; None where no allocation is in it. DiagError for a file
    that is no such trace."""
    with opened(path) as file:
        text = b"".join(blocks(file, path))
    try:
        events = msgspec.json.decode(text, type=_Document).events
    except msgspec.DecodeError as error:
        raise damaged(path, str(error)) from error
    decode = msgspec.json.Decoder(_Args).decode
    changes, calls, gathers = [], [], []
    for event in events:
        if event.name == MEMORY_EVENT:
            own = decode(event.args)
            if own.device == _HOST:
                changes.append(Change(event.ts, own.address, own.bytes))
        elif event.ph == "X" and event.name.startswith(_COLLECTIVE):
            calls.append((event.ts, event.ts + event.dur))
        elif event.ph == "X" and event.name.startswith(_GATHERING):
            gathers.append((event.ts, event.ts + event.dur))
    changes.sort(key=lambda change: change.at_us)
    return peak_of(changes, sorted(calls), sorted(gathers)) if changes else None


def peak_of(changes: Sequence[Change], calls: Sequence[Span], gathers: Sequence[Span] = ()) -> Allocations:
    """``changes`` in order of time; ``calls``: when collectives were being called, and ``gathers``: when fully_shard
    began an all-gather, each disjoint and in order.

    A block whose address is taken again while it is alive was freed unseen. So was one that was taken in a collective's
    call and never freed: since the training waits for its collectives, it is gone when the next block is taken. A
    buffer that was gathered into and never freed is gone when a later one of its size is: they are freed in turn.
    """
    alive: dict[int, int] = {}  # address: the change that took it
    freed: dict[int, int] = {}  # the change that took it: the one that gave it back
    lost: dict[int, int] = {}  # the change that took it: the one by which it was gone
    in_collective, gathering = _within(changes, calls), _within(changes, gathers)
    for number, change in enumerate(changes):
        before = alive.pop(change.address, None)
        if change.bytes <= 0:
            if before is not None:
                freed[before] = number
            continue
        if before is not None:
            lost[before] = before + 1 if in_collective(before) else number
        alive[change.address] = number
    lost |= {number: number + 1 for number in alive.values() if in_collective(number)}
    next_freed: dict[int, int] = {}  # bytes: when the next buffer of an all-gather is given back
    for number in reversed(range(len(changes))):
        size = changes[number].bytes
        if size <= 0 or not gathering(number) or in_collective(number):
            continue
        if number in freed:
            next_freed[size] = freed[number]
        elif size in next_freed:
            lost[number] = min(next_freed[size], lost.get(number, len(changes)))
    gone: dict[int, int] = {}
    for taken, at in lost.items():
        gone[at] = gone.get(at, 0) + changes[taken].bytes
    level = most = 0
    for number, change in enumerate(changes):
        level += change.bytes - gone.get(number, 0)
        most = max(most, level)
    return Allocations(most, sum(changes[number].bytes for number in lost))


def _within(changes: Sequence[Change], spans: Sequence[Span]) -> Callable[[int], bool]:
    """Whether a change, by its number, falls into one of the spans, which are disjoint and in order."""
    begins = [begin for begin, _ in spans]

    def within(number: int) -> bool:
        place = bisect_right(begins, changes[number].at_us) - 1
        return place >= 0 and changes[number].at_us <= spans[place][1]

    return within
