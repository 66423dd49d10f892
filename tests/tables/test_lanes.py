"""Whatever the zoom: cells hold exactly the time that is covered, and events are exactly the events."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model.breakdown import KernelKind
from diag.tables.policy import TIMELINE
from diag.tables.tiles import CELLS, FULL, Cells, Events, _depths, _overlap, edges_of, read_row, rows_of, search
from diag.tables.zoom import WORK, Category, Lane, by_name, make_lane
from diag.timeline import events_of, timeline_of
from tests.samples import opened_sample

NAMES = ("a", "b", "c")
SPANS = st.lists(st.tuples(st.integers(-20, 120), st.integers(0, 40), st.integers(0, 2)), max_size=40)
WINDOWS = st.tuples(st.integers(-30, 150), st.integers(1, 120)).map(lambda w: (w[0], w[0] + w[1]))


def lane_of(spans: list[tuple[int, int, int]]) -> Lane:
    events = np.array([(start, start + dur) for start, dur, _ in spans], dtype=np.int64).reshape(-1, 2)
    codes = np.array([code for *_, code in spans], dtype=np.uint32)
    return make_lane("lane", Category.HOST, events, codes, NAMES, codes.astype(np.uint8))


def covered(spans: list[tuple[int, int, int]]) -> set[int]:
    return {ns for start, dur, _ in spans for ns in range(start, start + dur)}


@given(SPANS, WINDOWS, st.integers(1, 50))
def test_pieces_add_up_to_the_covered_time(
    spans: list[tuple[int, int, int]], window: tuple[int, int], most: int
) -> None:
    lane, (begin, end) = lane_of(spans), window
    edges = np.unique(np.linspace(begin, end, most + 1).astype(np.int64))
    busy = covered(spans)
    assert lane.busy_ns(edges).tolist() == [len(busy & set(range(a, b))) for a, b in pairwise(edges)]
    assert lane.busy_in(begin, end) == len(busy & set(range(begin, end)))


@given(SPANS, WINDOWS)
def test_names_add_up(spans: list[tuple[int, int, int]], window: tuple[int, int]) -> None:
    begin, end = window
    expected: Counter[str] = Counter()
    for start, dur, code in spans:
        expected[NAMES[code]] += max(0, min(start + dur, end) - max(start, begin))
    assert {one.name: one.total_ns for one in by_name([lane_of(spans)], begin, end)} == {
        name: total for name, total in expected.items() if total
    }


def test_an_event_that_began_long_before_the_window_is_seen() -> None:
    lane = lane_of([(0, 1000, 0), *((start, 1, 1) for start in range(1, 900, 2))])
    assert lane.visible(950, 960).tolist() == [0]
    assert lane.busy_in(950, 960) == 10


# -- tiles -------------------------------------------------------------------------------------------------------------


@given(SPANS)
def test_rows_hold_every_event_once_and_none_overlap(spans: list[tuple[int, int, int]]) -> None:
    rows = rows_of([lane_of(spans)])
    for row in rows:
        assert (row.start_ns[1:] >= row.end_ns[:-1]).all(), "two events of one row overlap"
    if len(rows) < TIMELINE.most_rows_of_lane:
        held = Counter(pair for row in rows for pair in zip(row.start_ns.tolist(), row.end_ns.tolist(), strict=True))
        assert held == Counter((start, start + dur) for start, dur, _ in spans)


@given(SPANS, st.integers(0, 4), st.integers(-1, 1))
def test_cells_are_the_shares_of_each_kind_of_work(spans: list[tuple[int, int, int]], level: int, tile: int) -> None:
    """Against every nanosecond of every event."""
    for row in rows_of([lane_of(spans)]):
        expected = np.zeros((len(NAMES), CELLS), dtype=np.int64)
        for start, end, code in zip(row.start_ns.tolist(), row.end_ns.tolist(), row.work.tolist(), strict=True):
            for ns in range(start, max(end, start + 1)):  # an event without a duration is visible
                cell = (ns >> level) - tile * CELLS
                if 0 <= cell < CELLS:
                    expected[code, cell] += 1
        with pytest.MonkeyPatch.context() as few:
            few.setitem(vars(TIMELINE), "most_events_of_row", -1)
            read = read_row(row, level, tile)
        assert isinstance(read, Cells)
        shares = np.zeros_like(expected)
        for code, share in read.shares.items():
            shares[code] = share
        np.testing.assert_array_equal(shares, np.ceil(expected * FULL / (1 << level)).astype(np.int64))


@given(SPANS, st.integers(-1, 1))
def test_few_events_are_the_events_of_the_window(spans: list[tuple[int, int, int]], tile: int) -> None:
    begin, end = int(edges_of(3, tile)[0]), int(edges_of(3, tile)[-1])
    for row in rows_of([lane_of(spans)]):
        read = read_row(row, 3, tile)
        assert isinstance(read, Events)
        seen = [
            i
            for i, (a, b) in enumerate(zip(row.start_ns, row.end_ns, strict=True))
            if a < end and max(b, a + 1) > begin
        ]
        assert read.index.tolist() == seen


def test_an_event_without_a_duration_is_in_one_tile_also_at_its_border() -> None:
    border = CELLS << 3
    (row,) = rows_of([lane_of([(border, 0, 0)])])
    assert [len(read.index) for tile in (0, 1) if isinstance(read := read_row(row, 3, tile), Events)] == [0, 1]
    with pytest.MonkeyPatch.context() as few:
        few.setitem(vars(TIMELINE), "most_events_of_row", -1)
        cells = read_row(row, 3, 1)
    assert isinstance(cells, Cells)
    assert cells.shares[0][0] > 0


def test_many_events_are_cells() -> None:
    lane = lane_of([(2 * i, 1, i % 3) for i in range(TIMELINE.most_events_of_row + 1)])
    (row,) = rows_of([lane])
    read = read_row(row, 1, 0)
    assert isinstance(read, Cells)
    assert sorted(read.shares) == [0, 1, 2]
    assert (
        sum(int(share.astype(int).sum()) for share in read.shares.values()) == (TIMELINE.most_events_of_row + 1) * 128
    )


def test_what_is_called_lies_below_what_calls_it() -> None:
    rows = rows_of([lane_of([(0, 100, 0), (0, 40, 1), (10, 10, 2), (50, 20, 1)])])
    names = [[NAMES[code] for code in row.lane.name[row.place].tolist()] for row in rows]
    assert names == [["a"], ["b", "b"], ["c"]]


def test_what_is_called_too_deep_is_counted() -> None:
    rows = rows_of([lane_of([(i, 100 - 2 * i, 0) for i in range(TIMELINE.most_rows_of_lane + 3)])])
    assert len(rows) == TIMELINE.most_rows_of_lane
    assert [row.deeper for row in rows] == [0] * (TIMELINE.most_rows_of_lane - 1) + [3]


def test_the_longest_event_of_a_window() -> None:
    (row,) = rows_of([lane_of([(0, 10, 0), (20, 50, 1), (80, 1, 2)])])
    assert row.longest(5, 30) == 1
    assert row.longest(78, 90) == 2
    assert row.longest(12, 15) is None


@given(SPANS, st.integers(-30, 150))
def test_a_search_finds_every_event_of_the_name_in_turn(spans: list[tuple[int, int, int]], after: int) -> None:
    rows = rows_of([lane_of(spans)])
    found = search(rows, "B")
    starts = sorted(
        int(row.start_ns[i]) for row in rows for i in range(len(row.place)) if row.lane.name[row.place[i]] == 1
    )
    assert found.start_ns.tolist() == starts
    at = found.beside(after, forward=True)
    later = [start for start in starts if start > after]
    assert at is None if not starts else found.start_ns[at] == (later or starts)[0]
    at = found.beside(after, forward=False)
    earlier = [start for start in starts if start < after]
    assert at is None if not starts else found.start_ns[at] == (earlier or starts)[-1]


def test_found_events_are_marked() -> None:
    rows = rows_of([lane_of([(0, 4, 0), (8, 4, 1), (16, 4, 0)])])
    found = search(rows, "b")
    read = read_row(rows[0], 2, 0, found.rows[0])
    assert isinstance(read, Events)
    assert read.found is not None
    assert read.found.tolist() == [False, True, False]


def test_nothing() -> None:
    empty = make_lane("nothing", Category.IDLE, np.zeros((0, 2), dtype=np.int64))
    assert rows_of([empty]) == ()
    assert len(search((), "a")) == 0
    assert search((), "a").beside(0, forward=True) is None
    assert empty.busy_ns(np.arange(11)).tolist() == [0] * 10


def test_a_step_that_begins_before_the_last_range_of_the_one_before_ends_is_a_step() -> None:
    """As the profiled steps of a Hugging Face Trainer: each was in a row of its own, and an optimizer."""
    result = opened_sample("gpu-hf-trainer")
    (rank,) = timeline_of(result).ranks
    lane = next(lane for lane in events_of(result, rank) if lane.title == "ranges")
    depth = _depths(lane.start_ns, lane.end_ns)
    work = {
        lane.names[int(name)]: (int(depth[at]), WORK[int(lane.work[at])]) for at, name in enumerate(lane.name.tolist())
    }
    for step in (1, 2, 3):
        assert work[f"ProfilerStep#{step}"] == (0, Category.HOST)
        assert work[f"diag.step#{step + 10}"] == (1, Category.HOST)
    assert work["Optimizer.step#AdamW.step"] == (2, KernelKind.OPTIMIZER)


def test_a_range_that_ends_after_its_step_does_not_move_the_next_step() -> None:
    """Steps 0 to 10 and 10 to 30; a range from 8 to 11."""
    start, end = np.array([0, 8, 10, 12]), np.array([10, 11, 30, 20])
    assert _depths(start, end).tolist() == [0, 1, 0, 1]


@given(SPANS)
def test_no_two_events_of_a_row_overlap(spans: list[tuple[int, int, int]]) -> None:
    lane = lane_of(spans)
    depth = _depths(lane.start_ns, lane.end_ns)
    assert not _overlap(lane.start_ns, np.maximum(lane.end_ns, lane.start_ns + 1), depth)
