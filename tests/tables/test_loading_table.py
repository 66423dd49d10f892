"""Who waits for data, and who waits for whom because of it."""

from __future__ import annotations

import pytest

from diag.api import analyze
from diag.collectors.records import DATA, H2D, PhaseRow
from tests.copies import replace
from tests.simulate import MS, Plan, simulate


def test_a_slow_loader_stands_out() -> None:
    table = analyze(simulate(Plan(ranks=4, extra=lambda step, rank: {DATA: 40 * MS} if rank == 2 else {}))).loading
    slow = table.rows[2]
    assert slow.wait_mean_ns == pytest.approx(41 * MS, rel=0.02)
    assert slow.excess_ns == pytest.approx(40 * MS, rel=0.02)
    assert slow.others_waited_ns == pytest.approx(40 * MS, rel=0.05)
    assert slow.waited_steps == 1.0
    for row in (*table.rows[:2], table.rows[3]):
        assert row.wait_mean_ns == pytest.approx(MS, rel=0.05)
        assert row.others_waited_ns < MS
        assert row.waited_steps == 0.0


def test_bursts_show_in_the_longest_wait() -> None:
    plan = Plan(extra=lambda step, rank: {DATA: 80 * MS} if step % 4 == 3 else {})
    for row in analyze(simulate(plan)).loading.rows:
        assert row.wait_max_ns == pytest.approx(81 * MS, rel=0.02)
        assert row.wait_median_ns == pytest.approx(MS, rel=0.05)
        assert 0 < row.waited_steps < 0.5


def test_a_rank_alone_has_nobody_to_be_slower_than() -> None:
    (row,) = analyze(simulate(Plan(ranks=1))).loading.rows
    assert row.excess_ns is None


def test_the_loaders_settings() -> None:
    table = analyze(simulate(Plan(trainer={"num_workers": 3, "prefetch_factor": 4, "pin_memory": True}))).loading
    assert (table.workers, table.prefetch_factor, table.queue, table.pin_memory) == (3, 4, 12, True)
    alone = analyze(simulate(Plan(trainer={"num_workers": 0, "prefetch_factor": 4}))).loading
    assert alone.queue == 0
    tables = simulate(Plan())
    assert tables.manifest is not None
    silent = analyze(replace(tables, manifest=replace(tables.manifest, trainer={}))).loading
    assert (silent.workers, silent.prefetch_factor, silent.queue, silent.pin_memory) == (None, None, None, None)
    loader = {"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    seen = analyze(replace(tables, manifest=replace(tables.manifest, trainer={}, loader=loader))).loading
    assert (seen.workers, seen.queue, seen.pin_memory) == (2, 4, False)


def test_copies_that_the_host_makes() -> None:
    tables = simulate(Plan())
    assert analyze(tables).loading.rows[0].host_copy_ns is None
    copying = {
        rank: replace(
            own,
            steps=tuple(
                replace(s, phases=[*s.phases, PhaseRow(H2D, s.begin_ns, s.begin_ns + 3 * MS)]) for s in own.steps
            ),
        )
        for rank, own in tables.ranks.items()
    }
    assert analyze(replace(tables, ranks=copying)).loading.rows[1].host_copy_ns == 3 * MS
