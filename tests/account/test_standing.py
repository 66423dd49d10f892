"""How long the others stood still for a late rank: the same as from every pair of ranks, in less time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.account import intervals as iv
from diag.account.attribute import attribute
from diag.account.blame import Standing
from diag.account.intervals import CoveredOfMany, Intervals, Times
from diag.collectors.records import FORWARD
from tests.simulate import MS, Plan, simulate

LEAST_NS = 5
times = st.integers(0, 60)
sets = st.lists(st.tuples(times, times), max_size=4)


def by_pairs(standing: list[Intervals], idle: Times, ready: Times, counted: Times) -> list[int]:
    """The definition: of each rank, the median over the others of what they stood still while it did not."""
    found = []
    for late in range(len(ready)):
        waits = []
        for other in range(len(ready)):
            if other != late:
                window = iv.make([(max(int(idle[other]), int(counted[late])), int(ready[late]))])
                other_stood, itself_stood = (iv.total(iv.intersect(standing[r], window)) for r in (other, late))
                waits.append(other_stood - itself_stood)
        waits.sort()
        found.append((waits[(len(waits) - 1) // 2] + waits[len(waits) // 2]) // 2)
    return found


@given(st.lists(st.tuples(sets, times, times, times), min_size=2, max_size=7))
def test_it_is_the_median_over_the_others(ranks: list[tuple[list[tuple[int, int]], int, int, int]]) -> None:
    standing = [iv.make(own) for own, *_ in ranks]
    idle = np.array([min(a, b) for _, a, b, _ in ranks])
    ready = np.array([max(a, b) for _, a, b, _ in ranks])
    counted = np.array([since for *_, since in ranks])
    rows = np.arange(len(ranks))
    every = np.ones((1, len(rows)), dtype=np.bool_)
    (found,) = Standing(standing).usual(rows[None], idle[None], ready[None], every, counted[None], LEAST_NS)
    # A rank for which nobody waited for long may get an upper bound instead.
    exact = np.array(by_pairs(standing, idle, ready, counted))
    assert ((found == exact) | ((exact <= found) & (found <= LEAST_NS))).all()


@given(st.lists(sets, min_size=1, max_size=4), times)
def test_the_stretch_around_a_moment_and_the_next_one(sets: list[list[tuple[int, int]]], time: int) -> None:
    spans = [iv.make(own) for own in sets]
    which, at = np.arange(len(spans)), np.full(len(spans), time)
    covered = CoveredOfMany(spans)
    for own, end, begin in zip(spans, covered.stretch_end(which, at), covered.next_begin(which, at), strict=True):
        assert end == next((stop for start, stop in own if start <= time < stop), time)
        assert begin == next((start for start, _ in own if start > time), np.iinfo(np.int64).max)


@pytest.mark.parametrize("ranks", [16, 64])
def test_a_collective_asks_no_more_of_a_rank_where_there_are_more_ranks(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The questions that are asked of all ranks' waits, for each call: a constant, where pairs would grow."""
    asked, whole = [0], CoveredOfMany.until

    def counting(self: CoveredOfMany, which: Times, times: Times) -> Times:
        asked[0] += np.broadcast(which, times).size
        return whole(self, which, times)

    monkeypatch.setattr(CoveredOfMany, "until", counting)
    plan = Plan(ranks=ranks, steps=6, jitter=0.1, extra=lambda step, rank: {FORWARD: 40 * MS} if rank == 3 else {})
    found = attribute(simulate(plan))
    calls = sum(len(step.collectives) for step in found.rank_steps)
    assert asked[0] <= 4 * calls  # two windows each: at most two middle ranks for each that may be late
    worst = max((blame for step in found.steps for blame in step.blames), key=lambda blame: blame.ns)
    assert worst.rank == 3
    assert worst.ns == pytest.approx(40 * MS, rel=0.2)
