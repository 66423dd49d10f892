"""Bounds over every path between clocks, against the sums of all paths, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diag.account.match import Bounds, closure, least_between, reference

_FAR = 3 * 10**18  # clocks that are a century apart


def plain(bounds: Bounds) -> Bounds:
    closed = bounds.copy()
    for via in range(len(closed)):
        np.minimum(closed, closed[:, via][:, None] + closed[via][None, :], out=closed)
    return closed


@st.composite
def _bounds(draw: st.DrawFn) -> Bounds:
    clocks = draw(st.integers(2, 7))
    widths = draw(st.lists(st.integers(-3, 40), min_size=clocks**2, max_size=clocks**2))
    offset = np.array(draw(st.lists(st.integers(0, _FAR), min_size=clocks, max_size=clocks)), dtype=np.int64)
    bounds = np.array(widths, dtype=np.int64).reshape(clocks, clocks) + offset[None, :] - offset[:, None]
    np.fill_diagonal(bounds, 0)
    return bounds


@given(_bounds())
def test_paths_that_cannot_be_narrower_are_left_out(bounds: Bounds) -> None:
    closed, known = closure(bounds, np.ones(bounds.shape, dtype=np.bool_))
    assert known.all()
    assert (closed == plain(bounds)).all()


@given(_bounds())
def test_the_reference_has_the_narrowest_bounds(bounds: Bounds) -> None:
    width = (bounds + bounds.T).tolist()
    assert reference(bounds) == min(range(len(width)), key=lambda clock: (sorted(width[clock]), clock))


@given(st.data(), st.integers(1, 9), st.integers(1, 4), st.sampled_from((1, 1 << 31)))
def test_least_differences_are_those_of_each_two_clocks(
    data: st.DataObject, collectives: int, clocks: int, unit: int
) -> None:
    """``unit``: with the larger one, 32 bits are not enough."""
    offset = np.array(data.draw(st.lists(st.integers(0, _FAR), min_size=clocks, max_size=clocks)), dtype=np.int64)
    numbers = st.lists(st.integers(-5, 40), min_size=collectives * clocks, max_size=collectives * clocks)
    starts, ends = (
        offset + unit * np.array(data.draw(numbers), dtype=np.int64).reshape(collectives, clocks) for _ in range(2)
    )
    assert least_between(ends, starts).tolist() == [
        [min(int(ends[k, a]) - int(starts[k, b]) for k in range(collectives)) for b in range(clocks)]
        for a in range(clocks)
    ]
