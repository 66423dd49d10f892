"""The cost of a collective of another size: curves through the measured transfers, with their uncertainty.

One line through all sizes is not enough on gloo (20 % mean error on held-out sizes, 68 % at worst), so
between neighbouring sizes the curve is interpolated in the logarithms; beyond all of them the last segment continues
straight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from math import exp, log
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from diag.replay.policy import REPLAY
from diag.replay.program import Collective, Program
from diag.tables.bandwidth import bus_factor


class Level(IntEnum):
    """The end of the uncertain range that a program is replayed with: the fastest, likeliest or slowest wire."""

    FAST = 0
    LIKELY = 1
    SLOW = 2


class Range(NamedTuple):
    """Nanoseconds, ascending."""

    low: float
    mid: float
    high: float


class Point(NamedTuple):
    """The median transfer of one size; ``error``: relative error of the median."""

    bytes: float
    ns: float
    error: float


class Curve(Struct, frozen=True):
    """Points by ascending size, at least one. ``borrowed``: from other operations, by bytes on the wire."""

    points: tuple[Point, ...]
    borrowed: bool = False

    def at(self, size: float) -> Range:
        points = self.points
        if size < points[0].bytes:
            return self._below(size)
        if size > points[-1].bytes:
            return self._above(size)
        after = next(i for i, point in enumerate(points) if point.bytes >= size)
        if points[after].bytes == size:
            return _around(points[after].ns, points[after].error)
        return _between(points[after - 1], points[after], size)

    def latency(self) -> Range:
        """The cost of a collective of size zero; with one measured size, anything up to the cost of that."""
        first = self.points[0]
        if len(self.points) == 1:
            return Range(0.0, first.ns / 2, first.ns)
        alpha, _ = self._segment(0)
        return Range(0.0 if alpha < 0.5 * first.ns else 0.5 * alpha, alpha, first.ns)

    def _below(self, size: float) -> Range:
        edge, ratio = self.points[0], size / self.points[0].bytes
        if len(self.points) == 1:
            return _widened(Range(edge.ns * ratio, edge.ns * ratio**0.5, edge.ns), edge.error)
        alpha, beta = self._segment(0)
        mid = alpha + beta * size
        return _widened(Range(min(mid, edge.ns * ratio ** self._slope(0)), mid, edge.ns), edge.error)

    def _above(self, size: float) -> Range:
        edge, ratio = self.points[-1], size / self.points[-1].bytes
        if len(self.points) == 1:
            return _widened(Range(edge.ns, edge.ns * ratio**0.5, edge.ns * ratio), edge.error)
        alpha, beta = self._segment(-1)
        mid = alpha + beta * size
        return _widened(Range(min(mid, edge.ns * ratio ** self._slope(-1)), mid, edge.ns * ratio), edge.error)

    def _ends(self, which: int) -> tuple[Point, Point]:
        """The first (0) or last (-1) segment: from the edge to the nearest point of at least twice or half its size, so
        that the noise of two similar sizes does not set the slope; to the other end where there is no such point."""
        edge = self.points[which]
        inward = self.points[1:] if which == 0 else self.points[-2::-1]
        far = next((p for p in inward if max(p.bytes, edge.bytes) >= 2 * min(p.bytes, edge.bytes)), inward[-1])
        return (edge, far) if which == 0 else (far, edge)

    def _segment(self, which: int) -> tuple[float, float]:
        """(alpha, beta) of the straight line through the first or last segment; neither is negative."""
        a, b = self._ends(which)
        beta = min(max(0.0, (b.ns - a.ns) / (b.bytes - a.bytes)), a.ns / a.bytes)
        edge = self.points[which]
        return max(0.0, edge.ns - beta * edge.bytes), beta

    def _slope(self, which: int) -> float:
        a, b = self._ends(which)
        return min(1.0, max(0.0, log(b.ns / a.ns) / log(b.bytes / a.bytes)))


class Costs(Struct, frozen=True):
    curves: dict[tuple[str, str], Curve]

    def curve(self, collective: Collective) -> Curve | None:
        """None where no transfer of a known size was measured."""
        return self.curves.get((collective.group, collective.op))

    def resized(self, collective: Collective, size: float, level: Level) -> int:
        """The transfer with ``size`` bytes: the measured one, scaled as the curve changes from size to size. An outlier
        stays one, so that means stay means."""
        curve = self.curve(collective)
        if curve is None or not collective.bytes or size == collective.bytes:
            return collective.transfer_ns
        return round(collective.transfer_ns * curve.at(size)[level] / curve.at(collective.bytes).mid)

    def merged(self, members: Sequence[Collective], level: Level) -> int:
        size = sum(c.bytes for c in members)
        curve = self.curve(members[0])
        if curve is None or not all(c.bytes for c in members):
            return sum(c.transfer_ns for c in members)
        expected = sum(curve.at(c.bytes).mid for c in members)
        return round(sum(c.transfer_ns for c in members) * curve.at(size)[level] / expected)

    def of(self, collective: Collective, level: Level) -> int:
        """The transfer that the curve predicts, whatever was measured."""
        curve = self.curve(collective)
        return round(curve.at(collective.bytes)[level]) if curve and collective.bytes else collective.transfer_ns

    def borrowed(self, collectives: Iterable[Collective]) -> tuple[str, ...]:
        """A sentence for each operation whose curve rests on others, or on one size."""
        used = {(c.group, c.op) for c in collectives if (c.group, c.op) in self.curves}
        lines = {
            f"{op} was measured at too few sizes: other sizes are estimated from other operations, by bytes on the wire"
            for group, op in used
            if self.curves[group, op].borrowed
        } | {
            f"{op} was measured at one size only: other sizes range from latency-bound to bandwidth-bound costs"
            for group, op in used
            if len(self.curves[group, op].points) == 1
        }
        return tuple(sorted(lines))


def fit(program: Program) -> Costs:
    """Curves through the medians of the measured transfers, without queueing."""
    samples: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    members: dict[str, int] = {}
    for collective in program.collectives():
        if collective.bytes > 0 and collective.transfer_ns > 0 and len(collective.ranks) > 1:
            samples[collective.group, collective.op][collective.bytes].append(collective.transfer_ns)
            members[collective.group] = max(members.get(collective.group, 0), len(collective.ranks))
    measured = {
        key: Curve(tuple(_point(s, times) for s, times in sorted(sizes.items()))) for key, sizes in samples.items()
    }
    curves = {}
    for (group, op), curve in measured.items():
        others = {other_op: c for (g, other_op), c in measured.items() if g == group and other_op != op}
        curves[group, op] = _with_borrowed(op, curve, others, members[group], program.gloo)
    return Costs(curves)


def _with_borrowed(op: str, curve: Curve, others: dict[str, Curve], ranks: int, gloo: bool) -> Curve:
    """The curve. Where its sizes are too few or too close to separate latency from bandwidth, it also has points of
    other operations, at sizes far from its own. Nearer points would not help: an all-gather and a reduce-scatter of one
    size took the same time on an emulated wire and nearly the same on loopback, where the bandwidth factors predict
    half and double."""
    first, last = curve.points[0].bytes, curve.points[-1].bytes
    factor = bus_factor(op, ranks, gloo)
    if last >= REPLAY.span_of_sizes * first or factor is None:
        return curve
    more = []
    for other_op, other_curve in others.items():
        ratio = bus_factor(other_op, ranks, gloo)
        if ratio is None:
            continue
        for point in other_curve.points:
            size = point.bytes * ratio / factor
            if not first / REPLAY.span_of_sizes < size < last * REPLAY.span_of_sizes:
                # A larger size takes no less time, a smaller one no more: other operations have other latencies.
                bound = curve.points[0].ns if size < first else curve.points[-1].ns
                ns = min(point.ns, bound) if size < first else max(point.ns, bound)
                more.append(Point(size, ns, max(point.error, REPLAY.error_between_sizes)))
    by_size = {point.bytes: point for point in (*more, *curve.points)}
    return Curve(tuple(by_size[size] for size in sorted(by_size)), borrowed=bool(more))


def _point(size: int, times: Sequence[int]) -> Point:
    values = np.array(times, dtype=np.float64)
    median = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - median))) / median
    return Point(float(size), median, spread / len(values) ** 0.5)


def _between(a: Point, b: Point, size: float) -> Range:
    """Interpolated between two neighbours: in the logarithms, or in the sizes themselves where they are far apart.

    Latency plus bytes bends upward in the logarithms: between 4 bytes and 40 MB a straight line gave four times the
    transfer that was then measured.
    """
    weight = log(size / a.bytes) / log(b.bytes / a.bytes)
    far = b.bytes > REPLAY.span_of_sizes * a.bytes
    # An interpolation is most certain at its ends.
    error = max(a.error, b.error) + (REPLAY.error_far_from_sizes if far else REPLAY.error_between_sizes) * min(
        1.0, 2 * min(weight, 1 - weight)
    )
    if far:
        return _around(a.ns + (b.ns - a.ns) * (size - a.bytes) / (b.bytes - a.bytes), error)
    return _around(exp((1 - weight) * log(a.ns) + weight * log(b.ns)), error)


def _around(ns: float, error: float) -> Range:
    return Range(ns / (1 + error), ns, ns * (1 + error))


def _widened(bounds: Range, error: float) -> Range:
    return Range(bounds.low / (1 + error), bounds.mid, bounds.high * (1 + error))
