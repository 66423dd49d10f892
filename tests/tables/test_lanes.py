"""Whatever the zoom: pixels add up to exactly the time that is covered, and bars are exactly the events."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diag.tables.zoom import (
    MOST_ROWS,
    Bars,
    Category,
    Lane,
    Pixels,
    by_name,
    make_lane,
    pixel_edges,
    read_bars,
    read_lanes,
)

NAMES = ("a", "b", "c")
SPANS = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 40), st.integers(0, 2)), max_size=40)
WINDOWS = st.tuples(st.integers(-30, 150), st.integers(1, 120)).map(lambda w: (w[0], w[0] + w[1]))


def lane_of(spans: list[tuple[int, int, int]]) -> Lane:
    events = np.array([(start, start + dur) for start, dur, _ in spans], dtype=np.int64).reshape(-1, 2)
    return make_lane("lane", Category.HOST, events, np.array([code for *_, code in spans], dtype=np.uint32), NAMES)


def covered(spans: list[tuple[int, int, int]]) -> set[int]:
    return {ns for start, dur, _ in spans for ns in range(start, start + dur)}


@given(SPANS, WINDOWS, st.integers(1, 50))
def test_pixels_add_up_to_the_covered_time(
    spans: list[tuple[int, int, int]], window: tuple[int, int], most: int
) -> None:
    lane, (begin, end) = lane_of(spans), window
    edges = pixel_edges(begin, end, most)
    assert (edges[0], edges[-1]) == (begin, end)
    assert (np.diff(edges) > 0).all()
    assert len(edges) - 1 == min(most, end - begin)
    busy = covered(spans)
    assert lane.busy_ns(edges).tolist() == [len(busy & set(range(a, b))) for a, b in pairwise(edges)]
    assert lane.busy_in(begin, end) == len(busy & set(range(begin, end)))


@given(SPANS, WINDOWS)
def test_bars_are_the_events(spans: list[tuple[int, int, int]], window: tuple[int, int]) -> None:
    begin, end = window
    (row,) = read_lanes([lane_of(spans)], begin, end)
    expected = Counter(
        (start, start + dur, NAMES[code]) for start, dur, code in spans if start < end and start + dur > begin
    )
    if isinstance(row, Pixels):
        assert row.events == sum(expected.values())
        deepest = max(sum(a <= t < b for a, b, _ in expected.elements()) for t in range(-20, 160))
        assert deepest > MOST_ROWS
        return
    assert Counter(zip(row.start_ns.tolist(), row.end_ns.tolist(), row.names, strict=True)) == expected
    for number in range(row.rows):
        own = row.row == number
        assert (row.start_ns[own][1:] >= row.end_ns[own][:-1]).all(), "two events of one row overlap"


@given(st.lists(SPANS, min_size=1, max_size=5), WINDOWS, st.integers(0, 60))
def test_no_more_bars_than_allowed(many: list[list[tuple[int, int, int]]], window: tuple[int, int], most: int) -> None:
    lanes = [lane_of(spans) for spans in many]
    rows = read_lanes(lanes, *window, most_bars=most, most_pixels=10)
    assert [row.lane for row in rows] == lanes
    bars = [row for row in rows if isinstance(row, Bars)]
    assert sum(len(row.names) for row in bars) <= most
    for row in rows:
        if isinstance(row, Pixels):
            assert row.busy_ns.sum() == row.lane.busy_in(*window)
    together = read_bars(lanes, *window, most_bars=most)
    assert (together is None) == any(isinstance(row, Pixels) for row in rows)


@given(SPANS, WINDOWS)
def test_names_add_up(spans: list[tuple[int, int, int]], window: tuple[int, int]) -> None:
    begin, end = window
    expected: Counter[str] = Counter()
    for start, dur, code in spans:
        expected[NAMES[code]] += max(0, min(start + dur, end) - max(start, begin))
    assert {one.name: one.total_ns for one in by_name([lane_of(spans)], begin, end)} == {
        name: total for name, total in expected.items() if total
    }


def test_nested_events_stand_below_what_calls_them() -> None:
    (row,) = read_lanes([lane_of([(0, 100, 0), (0, 40, 1), (10, 10, 2), (50, 20, 1)])], 0, 100)
    assert isinstance(row, Bars)
    assert list(zip(row.names, row.row.tolist(), strict=True)) == [("a", 0), ("b", 1), ("c", 2), ("b", 1)]


def test_an_event_that_began_long_before_the_window_is_seen() -> None:
    lane = lane_of([(0, 1000, 0), *((start, 1, 1) for start in range(1, 900, 2))])
    assert lane.visible(950, 960).tolist() == [0]
    assert lane.busy_in(950, 960) == 10


def test_nothing() -> None:
    empty = make_lane("nothing", Category.IDLE, np.zeros((0, 2), dtype=np.int64))
    (row,) = read_lanes([empty], 0, 10)
    assert isinstance(row, Bars)
    assert (row.rows, row.names) == (1, ())
    assert empty.busy_ns(pixel_edges(0, 10)).tolist() == [0] * 10
