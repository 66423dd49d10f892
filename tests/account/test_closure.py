"""Bounds over every path between clocks, against the sums of all paths, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diag.account.match import Bounds, closure, reference

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
