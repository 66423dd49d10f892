"""Painting steps: labelled layers in order of priority, cut into the exact `Segments` of each window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.model.steps import CollectiveCall, Detail, Kind, RankStep, Segments

from . import intervals as iv
from .intervals import Intervals

Window = tuple[int, int, int]  # step, begin_ns, end_ns
_BEFORE = -(1 << 62)  # any moment of any trace


class Layer(Struct, frozen=True):
    """Time with one label. Earlier layers hide later ones."""

    kind: Kind
    detail: Detail
    intervals: Intervals


def disjoint(layers: Sequence[Layer]) -> list[Layer]:
    """The same labels without overlap: each layer keeps what no earlier one covers."""
    covered = iv.EMPTY
    kept = []
    for layer in layers:
        if not len(layer.intervals):  # as of most kinds in most traces
            kept.append(layer)
            continue
        kept.append(Layer(layer.kind, layer.detail, iv.subtract(layer.intervals, covered)))
        covered = iv.union(covered, layer.intervals)
    return kept


class Painted:
    """All time in consecutive labelled pieces; what no (disjoint) layer covers is idle with the detail ``rest``.
    Neighbours with equal labels are one piece. Made once for all steps of a rank."""

    def __init__(self, layers: Sequence[Layer], rest: Detail = Detail.OTHER) -> None:
        covered = iv.union(*(layer.intervals for layer in layers)) if layers else iv.EMPTY
        gaps = np.concatenate(([_BEFORE], covered[:, 1]))
        parts = [(layer.kind, layer.detail, layer.intervals[:, 0]) for layer in layers] + [(Kind.IDLE, rest, gaps)]
        start = np.concatenate([part for _, _, part in parts])
        kind = np.concatenate([np.full(len(part), kind, dtype=np.int8) for kind, _, part in parts])
        detail = np.concatenate([np.full(len(part), detail, dtype=np.int8) for _, detail, part in parts])
        order = np.argsort(start, kind="stable")
        start, kind, detail = start[order], kind[order], detail[order]
        opens = np.concatenate(([True], (kind[1:] != kind[:-1]) | (detail[1:] != detail[:-1])))
        self._start, self._kind, self._detail = start[opens], kind[opens], detail[opens]

    def cut(self, begin: int, end: int) -> Segments:
        """The pieces of ``[begin, end)``. An empty window has no piece."""
        first = int(np.searchsorted(self._start, begin, side="right")) - 1
        last = int(np.searchsorted(self._start, end, side="left")) if end > begin else first
        start = np.maximum(self._start[first:last], begin)
        stop = np.append(start[1:], end) if last > first else start
        return Segments(start, stop, self._kind[first:last], self._detail[first:last])


def cut(layers: Sequence[Layer], begin: int, end: int, rest: Detail = Detail.OTHER) -> Segments:
    """One window of what the layers paint."""
    return Painted(layers, rest).cut(begin, end)


def traced_steps(
    rank: int,
    windows: Sequence[Window],
    layers: Sequence[Layer],
    hidden: Intervals,
    optimizing: Intervals,
    calls: Iterable[tuple[CollectiveCall, ...]],
    fused: Intervals = iv.EMPTY,
) -> list[RankStep]:
    """One exact account per window of a trace. ``layers`` are disjoint; ``hidden``: communication behind compute;
    ``optimizing``: compute or idle of the optimizer; ``calls``: the collectives of each window; ``fused``: kernels that
    compute and communicate at once, part of compute."""
    painted = Painted(layers)
    return [
        RankStep(
            rank=rank,
            step=step,
            begin_ns=begin,
            end_ns=end,
            source="trace",
            segments=painted.cut(begin, end),
            overlapped_comm_ns=iv.total(within(hidden, begin, end)),
            optimizer_ns=iv.total(within(optimizing, begin, end)),
            collectives=collectives,
            fused_ns=iv.total(within(fused, begin, end)),
        )
        for (step, begin, end), collectives in zip(windows, calls, strict=True)
    ]


def within(normal: Intervals, begin: int, end: int) -> Intervals:
    """The part of a normal set inside the window. O(log n + result), so thousands of windows cost no more than one."""
    first = int(np.searchsorted(normal[:, 1], begin, side="right"))
    last = int(np.searchsorted(normal[:, 0], end, side="left"))
    return iv.clip(normal[first:last], begin, end) if last > first else iv.EMPTY


def covers(normal: Intervals, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """For each time, whether a normal set covers it."""
    if not len(normal):
        return np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(normal[:, 0], times, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (times < normal[np.maximum(at, 0), 1])
    return inside


# -- segments ----------------------------------------------------------------------------------------------------------
#
# Reads and moves the consecutive pieces that a step of one rank is cut into.

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
