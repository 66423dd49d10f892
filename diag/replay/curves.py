"""The fitted costs as data that can be drawn: points and curves by group and operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.model.prospect import CostCurve, CostPoint
from diag.replay.costs import Curve, Range
from diag.replay.predict import Baseline
from diag.tables.bandwidth import bus_factor

_SAMPLES = 48  # of a curve: it bends at its points only, and of these there are few


def curves_of(base: Baseline) -> tuple[CostCurve, ...]:
    """One a group and operation of which a transfer of known size was measured, by their names."""
    members: dict[tuple[str, str], int] = {}
    for collective in base.program.collectives():
        key = collective.group, collective.op
        members[key] = max(members.get(key, 0), len(collective.ranks))
    return tuple(
        _drawable(group, op, curve, members[group, op], base.program.gloo)
        for (group, op), curve in sorted(base.costs.curves.items())
    )


def _drawable(group: str, op: str, curve: Curve, ranks: int, gloo: bool) -> CostCurve:
    factor = bus_factor(op, ranks, gloo)
    sizes = _sizes([point.bytes for point in curve.points])
    line = [(size, curve.at(size)) for size in sizes]
    return CostCurve(
        group=group,
        op=op,
        ranks=ranks,
        borrowed=curve.borrowed,
        points=tuple(
            CostPoint(p.bytes, p.ns, p.error, factor * p.bytes / p.ns if factor and p.ns else None)
            for p in curve.points
        ),
        line=tuple((size, *found) for size, found in line),
        bus_gb_s=tuple(_bus(factor, size, found) for size, found in line) if factor else (),
    )


def _sizes(measured: Sequence[float]) -> list[float]:
    """From the smallest to the largest measured size, evenly in the logarithm, and the measured ones themselves."""
    first, last = measured[0], measured[-1]
    between = np.geomspace(first, last, _SAMPLES)[1:-1].tolist() if last > first else []
    return sorted({*measured, *between})


def _bus(factor: float, size: float, found: Range) -> tuple[float, float, float]:
    slow, likely, fast = (factor * size / ns for ns in reversed(found))
    return slow, likely, fast
