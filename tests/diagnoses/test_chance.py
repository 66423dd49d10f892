"""The chance of a count: the tail of a binomial, of few tries and of very many."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.diagnoses.culprits import at_least, of_any


def _exact(successes: int, tries: int, probability: float) -> Fraction:
    exact = Fraction(probability)
    each = (comb(tries, k) * exact**k * (1 - exact) ** (tries - k) for k in range(successes, tries + 1))
    return sum(each, Fraction(0))


@given(st.integers(0, 80), st.integers(0, 80), st.floats(1e-6, 1.0))
def test_it_is_the_exact_sum(successes: int, tries: int, probability: float) -> None:
    found = at_least(successes, tries, probability)
    assert found == pytest.approx(float(_exact(successes, tries, probability)), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("tries", [1_000, 3_000, 2_600_000])
def test_many_tries_have_a_chance_too(tries: int) -> None:
    """A binomial of 1,030 tries is more than a float holds: it ended the analysis of each long run."""
    assert at_least(tries // 2, tries, 0.5) == pytest.approx(0.5, abs=0.02)
    assert at_least(tries, tries, 0.5) < 1e-300
    assert at_least(0, tries, 0.0) == 1.0
    assert at_least(1, tries, 0.0) == 0.0


def test_of_any_ranks_of_a_large_job() -> None:
    assert of_any(8, 2, 0.001) == pytest.approx(28 * 0.001)
    assert of_any(24_576, 12_000, 1e-9) == 1.0
    assert of_any(24_576, 12_000, 0.0) == 0.0
