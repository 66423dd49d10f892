"""Reads and moves the consecutive pieces that a step of one rank is cut into."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diag.model.steps import CollectiveCall, Kind, RankStep, Segments

from .intervals import Intervals

Times = npt.NDArray[np.int64]


def intervals_of(segments: Segments, kind: Kind) -> Intervals:
    """Where the step is of one kind; neighbours stay apart."""
    chosen = segments.kind == kind
    return np.stack((segments.start_ns[chosen], segments.end_ns[chosen]), axis=1)


def shift_call(call: CollectiveCall, delta_ns: int) -> CollectiveCall:
    if delta_ns == 0:
        return call
    return _moved(call, lambda time_ns: time_ns + delta_ns)


def shift(step: RankStep, delta_ns: int) -> RankStep:
    """The same step on a clock that shows ``delta_ns`` more."""
    if delta_ns == 0:
        return step
    return replace(
        step,
        begin_ns=step.begin_ns + delta_ns,
        end_ns=step.end_ns + delta_ns,
        segments=replace(
            step.segments, start_ns=step.segments.start_ns + delta_ns, end_ns=step.segments.end_ns + delta_ns
        ),
        collectives=tuple(shift_call(call, delta_ns) for call in step.collectives),
    )


def on_clock(step: RankStep, clock: Callable[[Times], Times]) -> RankStep:
    """The same step with all its times read by ``clock``, which must not reverse any two of them."""

    def at(time_ns: int) -> int:
        return int(clock(np.array([time_ns], dtype=np.int64))[0])

    segments = replace(step.segments, start_ns=clock(step.segments.start_ns), end_ns=clock(step.segments.end_ns))
    calls = tuple(_moved(call, at) for call in step.collectives)
    return replace(step, begin_ns=at(step.begin_ns), end_ns=at(step.end_ns), segments=segments, collectives=calls)


def _moved(call: CollectiveCall, at: Callable[[int], int]) -> CollectiveCall:
    waited = call.waited_ns and (at(call.waited_ns[0]), at(call.waited_ns[1]))
    return msgspec.structs.replace(call, start_ns=at(call.start_ns), end_ns=at(call.end_ns), waited_ns=waited)
