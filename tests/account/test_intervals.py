"""The interval algebra against a bitmap of single nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from diag.account import intervals as iv
from diag.account.intervals import Layer, Painted, covers, disjoint, within
from diag.model.steps import Detail, Kind

SIZE = 64
PAIRS = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def bitmap(intervals: iv.Intervals) -> npt.NDArray[np.bool_]:
    bits = np.zeros(SIZE, dtype=np.bool_)
    for start, end in intervals:
        bits[max(start, 0) : max(end, 0)] = True
    return bits


def is_normal(intervals: iv.Intervals) -> bool:
    return bool((intervals[:, 0] < intervals[:, 1]).all() and (intervals[1:, 0] > intervals[:-1, 1]).all())


@given(PAIRS, PAIRS)
def test_algebra(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = iv.make(a), iv.make(b)
    cases = (
        (iv.union(x, y), bitmap(x) | bitmap(y)),
        (iv.intersect(x, y), bitmap(x) & bitmap(y)),
        (iv.subtract(x, y), bitmap(x) & ~bitmap(y)),
    )
    for found, expected in cases:
        assert is_normal(found)
        assert (bitmap(found) == expected).all()
        assert iv.total(found) == expected.sum()


@given(PAIRS, st.integers(0, SIZE), st.integers(0, SIZE))
def test_windows_and_membership(a: list[tuple[int, int]], begin: int, end: int) -> None:
    x = iv.make(a)
    inside = np.zeros(SIZE, dtype=np.bool_)
    inside[begin:end] = True
    assert (bitmap(within(x, begin, end)) == (bitmap(x) & inside)).all()
    assert (covers(x, np.arange(SIZE)) == bitmap(x)).all()


@given(st.lists(PAIRS, max_size=5), st.integers(0, SIZE), st.integers(0, SIZE))
def test_painting_is_exact(layers: list[list[tuple[int, int]]], begin: int, end: int) -> None:
    begin, end = min(begin, end), max(begin, end)
    labelled = [Layer(Kind.COMPUTE, detail, iv.make(layer)) for detail, layer in zip(Detail, layers, strict=False)]
    (segments,) = Painted(disjoint(labelled)).cut(np.array([begin]), np.array([end]))
    parts = [np.stack((segments.start_ns[[i]], segments.end_ns[[i]]), axis=1) for i in range(len(segments.start_ns))]
    assert sum(iv.total(part) for part in parts) == end - begin
    assert np.array([bitmap(part) for part in parts], dtype=int).reshape(-1, SIZE).sum(axis=0).max(initial=0) <= 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_covered(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    covered = sum(any(a <= t < b for a, b in pairs) for t in range(start, end))
    assert iv.Covered(iv.make(pairs)).between(np.array([start]), np.array([end])).tolist() == [covered]
