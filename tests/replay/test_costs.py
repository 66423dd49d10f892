"""What a collective of another size is said to take, and how sure that is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.replay.costs import Costs, Curve, Level, Point, fit
from diag.replay.program import Collective, Line, Program, Stretch
from tests.replay.fsdp import MS, Fsdp, simulate
from tests.replay.test_replay import program_of


def curve(*points: tuple[float, float]) -> Curve:
    return Curve(tuple(Point(size, ns, 0.0) for size, ns in points))


def linear(*sizes: float, latency: float = 5e6, beta: float = 2.0) -> Curve:
    return curve(*((size, latency + beta * size) for size in sizes))


@pytest.mark.parametrize("size", [1e3, 3e5, 2e6, 5e7, 1e9])
def test_latency_and_bytes_are_found_inside_and_outside(size: float) -> None:
    found = linear(4, 1e6, 4e6, 32e6).at(size)
    assert found.mid == pytest.approx(5e6 + 2 * size, rel=0.1)
    assert found.low <= 5e6 + 2 * size <= found.high


def test_a_measured_size_costs_what_was_measured() -> None:
    assert linear(1e6, 4e6).at(4e6) == (13e6, 13e6, 13e6)


def test_one_size_says_all_latency_to_all_bandwidth() -> None:
    only = curve((1e6, 10e6))
    assert only.at(4e6) == (10e6, 20e6, 40e6)
    assert only.at(2.5e5) == (2.5e6, 5e6, 10e6)
    assert only.latency() == (0, 5e6, 10e6)


def test_the_interval_widens_with_the_distance() -> None:
    known = linear(1e6, 16e6)
    widths = [(found.high - found.low) / found.mid for found in map(known.at, (16e6, 32e6, 128e6))]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_noise_between_two_close_sizes_sets_no_slope() -> None:
    """The last two sizes say that bytes cost nothing; the one of half the size knows better."""
    found = curve((1e6, 10e6), (3.9e6, 30.5e6), (4e6, 30e6)).at(8e6)
    assert found.mid == pytest.approx(56e6, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.integers(10**3, 10**9)), min_size=1, max_size=6, unique_by=lambda p: p[0]
    ),
    st.integers(1, 10**10),
)
def test_a_range_is_positive_and_ordered(points: list[tuple[int, int]], size: int) -> None:
    low, mid, high = curve(*sorted(points)).at(size)
    assert 0 < low <= mid * (1 + 1e-9)
    assert mid <= high * (1 + 1e-9)


def test_an_operation_of_one_size_borrows_what_latency_is() -> None:
    """A model of one unit has one size of gather; its tiny all-reduces tell the latency."""
    program = program_of(simulate(Fsdp(units=((32_000_000, 50 * MS),))))
    costs = fit(program)
    found = costs.curves["0@0", "all_gather"]
    assert found.borrowed
    assert found.at(4_000_000).mid == pytest.approx(3 * MS + 8 * MS, rel=0.02)
    assert any("too few sizes" in line for line in costs.borrowed(program.collectives()))


def test_an_outlier_stays_one() -> None:
    """Costs scale what was measured, so that the mean of a step with hiccups stays its mean."""
    costs = Costs({("g", "all_gather"): linear(1e6, 8e6)})
    late = Collective(("g", 0, "all_gather"), "all_gather", "g", 1_000_000, "float32", 0, 70 * MS, {0: 0, 1: 0})
    assert costs.resized(late, 8_000_000, Level.LIKELY) == pytest.approx(10 * 21e6, rel=0.01)


def test_without_sizes_there_is_no_cost() -> None:
    unknown = Collective(("g", 0, "barrier"), "barrier", "g", 0, "", 0, 5 * MS, {0: 0, 1: 0})
    stretch = Stretch((0,), {0: 0, 1: 0}, {0: (0,), 1: (0,)}, {0: Line.of(()), 1: Line.of(())}, {unknown.key: unknown})
    costs = fit(Program((stretch,)))
    assert costs.curve(unknown) is None
    assert costs.resized(unknown, 10, Level.SLOW) == 5 * MS
