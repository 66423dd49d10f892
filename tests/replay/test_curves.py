"""The fitted costs as they are drawn: through what was measured, in the bus bandwidth of the table."""

from __future__ import annotations

from itertools import pairwise

import pytest

from diag.api import analyze
from tests.simulate import MS, Plan, simulate

SIZES = (1_000_000, 4_000_000, 16_000_000, 64_000_000)
NS_A_BYTE, LATENCY = 0.5, MS


def test_a_curve_goes_through_its_points() -> None:
    result = analyze(
        simulate(
            Plan(units=4, transfer_ns=LATENCY, ns_a_byte=NS_A_BYTE, sizes=lambda op, unit: SIZES[unit], regather=True)
        )
    )
    curves = {curve.op: curve for curve in result.cost_curves}
    gather = curves["all_gather"]
    assert [point.bytes for point in gather.points] == list(SIZES)
    for point in gather.points:
        assert point.ns == pytest.approx(LATENCY + NS_A_BYTE * point.bytes, rel=0.01)
        assert point.bus_gb_s == pytest.approx(0.5 * point.bytes / point.ns)
        at = next(i for i, row in enumerate(gather.line) if row[0] == point.bytes)
        assert gather.line[at][2] == pytest.approx(point.ns)
        assert gather.bus_gb_s[at][1] == pytest.approx(point.bus_gb_s)
    sizes = [row[0] for row in gather.line]
    assert all(a < b for a, b in pairwise(sizes))
    assert (sizes[0], sizes[-1]) == (SIZES[0], SIZES[-1])
    for (_, fast, likely, slow), (slow_bus, likely_bus, fast_bus) in zip(gather.line, gather.bus_gb_s, strict=True):
        assert fast <= likely <= slow
        assert slow_bus <= likely_bus <= fast_bus
    assert not gather.borrowed
    assert gather.ranks == 2


def test_points_are_those_of_the_table() -> None:
    result = analyze(simulate(Plan(units=4, transfer_ns=LATENCY, ns_a_byte=NS_A_BYTE, sizes=lambda op, u: SIZES[u])))
    curve = {curve.op: curve for curve in result.cost_curves}["all_gather"]
    of_table = {row.bytes_mean: row.busbw_gb_s for row in result.breakdowns.collectives.rows if row.op == "all_gather"}
    for point in curve.points:
        assert point.bus_gb_s == pytest.approx(of_table[int(point.bytes)], rel=0.02)
