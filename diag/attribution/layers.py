"""Painting steps: labelled layers in order of priority, cut into the exact `Segments` of each window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.model import CollectiveCall, Detail, Kind, RankStep, Segments

from . import intervals as iv
from .intervals import Intervals

Window = tuple[int, int, int]  # step, begin_ns, end_ns


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


def cut(layers: Sequence[Layer], begin: int, end: int, rest: Detail = Detail.OTHER) -> Segments:
    """`[begin, end)` in consecutive labelled pieces; what no (disjoint) layer covers is idle with the detail `rest`.

    Neighbours with equal labels are one piece. An empty window has no piece.
    """
    if end <= begin:
        nothing = np.zeros(0, dtype=np.int64)
        return Segments(nothing, nothing, nothing.astype(np.int8), nothing.astype(np.int8))
    parts = [(layer.kind, layer.detail, part) for layer in layers if len(part := within(layer.intervals, begin, end))]
    covered = iv.union(*(part for _, _, part in parts)) if parts else iv.EMPTY
    parts.append((Kind.IDLE, rest, iv.subtract(iv.make([(begin, end)]), covered)))
    pieces = np.concatenate([part for _, _, part in parts])
    kind = np.concatenate([np.full(len(part), kind, dtype=np.int8) for kind, _, part in parts])
    detail = np.concatenate([np.full(len(part), detail, dtype=np.int8) for _, detail, part in parts])
    order = np.argsort(pieces[:, 0], kind="stable")
    return _merged(pieces[order], kind[order], detail[order])


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
    return [
        RankStep(
            rank=rank,
            step=step,
            begin_ns=begin,
            end_ns=end,
            source="trace",
            segments=cut(layers, begin, end),
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


def _merged(pieces: Intervals, kind: npt.NDArray[np.int8], detail: npt.NDArray[np.int8]) -> Segments:
    opens = np.concatenate(([True], (kind[1:] != kind[:-1]) | (detail[1:] != detail[:-1])))
    first = np.flatnonzero(opens)
    start = pieces[first, 0]
    end = np.concatenate((start[1:], pieces[-1:, 1]))
    return Segments(start, end, kind[first], detail[first])
