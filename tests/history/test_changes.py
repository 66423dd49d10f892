"""Change points of a series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.history.changes import _levels, change_points, level
from diag.history.policy import HISTORY


def noise(count: int, correlated: float, random: np.random.Generator, spread: float = 0.05) -> np.ndarray:
    """Step times around 100 without a change, each like the one before it, with evaluations among them."""
    values = np.zeros(count)
    drawn = random.standard_normal(count) * np.sqrt(1 - correlated**2)
    for at in range(1, count):
        values[at] = correlated * values[at - 1] + drawn[at]
    values = 100 * (1 + spread * values)
    values[:: max(7, count // 20)] *= 5
    return values


@pytest.mark.parametrize("count", [1, 9, 20, 333])
def test_the_levels_of_windows_are_those_of_each(count: int) -> None:
    windows = np.random.default_rng(4).lognormal(15, 1, (7, count))
    kept = count - int(HISTORY.trimmed_share * count)
    assert _levels(windows).tolist() == [level(window) for window in windows]
    assert level(windows[0]) == np.sort(windows[0])[:kept].mean()


@pytest.mark.parametrize("correlated", [0.0, 0.5, 0.9])
def test_noise_of_any_correlation_has_no_change(correlated: float) -> None:
    random = np.random.default_rng(3)
    found = [change_points(noise(600, correlated, random, spread=0.15)) for _ in range(60)]
    assert sum(map(bool, found)) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 700), st.floats(0, 0.5), st.integers(0, 2**32), st.floats(0, 0.3))
def test_steady_steps_have_none(count: int, correlated: float, seed: int, spread: float) -> None:
    places = change_points(noise(count, correlated, np.random.default_rng(seed), spread))
    assert places == [] or spread > 0  # what is alike, never changes
    assert all(0 < place < count for place in places)


@pytest.mark.parametrize(("count", "at"), [(120, 60), (1_000, 800), (1_000, 950), (100_000, 81_200)])
def test_a_change_is_found_where_it_is(count: int, at: int) -> None:
    values = noise(count, 0.3, np.random.default_rng(5), spread=0.03)
    values[at:] *= 1.14
    (place,) = change_points(values)
    assert abs(place - at) <= 5


def test_a_slow_stretch_has_two_ends() -> None:
    values = noise(3_000, 0.3, np.random.default_rng(6))
    values[1_200:1_300] *= 1.4
    first, second = change_points(values)
    assert abs(first - 1_200) <= 20
    assert abs(second - 1_300) <= 20
    assert level(values[first:second]) == pytest.approx(140, rel=0.05)


def test_less_than_a_warning_is_no_change() -> None:
    values = noise(4_000, 0.0, np.random.default_rng(7), spread=0.001)
    values[2_000:] *= 1.04
    assert change_points(values) == []


def test_equal_values_have_no_change() -> None:
    assert change_points(np.full(500, 7.0)) == []
