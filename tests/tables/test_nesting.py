"""Innermost ranges against the plain definition, and times that add up."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from diag.tables import nesting

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2)), max_size=30)
MOMENTS = st.lists(st.tuples(st.integers(-2, 60), st.integers(-1, 2)), max_size=20)


def frame(spans: list[tuple[int, int, int]]) -> pl.DataFrame:
    columns = {"ts_ns": pl.Int64, "dur_ns": pl.Int64, "thread": pl.Int64}
    return pl.DataFrame(spans, schema=columns, orient="row").sort(["ts_ns", "dur_ns"], descending=[False, True])


@given(SPANS, MOMENTS)
def test_the_latest_range_that_is_open(spans: list[tuple[int, int, int]], moments: list[tuple[int, int]]) -> None:
    ranges = frame(spans)
    rows = list(ranges.iter_rows())
    expected = [
        max((i for i, (s, d, t) in enumerate(rows) if t == thread and s <= at < s + d), default=-1)
        for at, thread in moments
    ]
    asked = np.array(moments, dtype=np.int64).reshape(-1, 2)
    assert nesting.enclosing(ranges, asked[:, 0], asked[:, 1]).tolist() == expected


def test_own_times_of_nested_ranges_add_up_to_their_union() -> None:
    #           outer       inner     innermost  beside      another thread
    ranges = frame([(0, 100, 0), (10, 50, 0), (20, 10, 0), (70, 20, 0), (0, 30, 1)])
    parent = nesting.parents(ranges)
    assert nesting.own_time(ranges, parent).sum() == 130
    named = {(s, d): nesting.own_time(ranges, parent)[i] for i, (s, d, _) in enumerate(ranges.iter_rows())}
    assert named == {(0, 100): 30, (10, 50): 40, (20, 10): 10, (70, 20): 20, (0, 30): 30}
    depth = nesting.depths(parent)
    assert {(s, d): depth[i] for i, (s, d, _) in enumerate(ranges.iter_rows())}[20, 10] == 2
