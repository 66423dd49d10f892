"""Collectives step by step: the same totals as the table's, with waiting and transfer apart."""

from __future__ import annotations

from collections import Counter

import pytest

from diag.show.compare import change_of, differences_by_name, named_table
from diag.tables.by_step import exposed_by_step
from diag.tables.of_runs import COLLECTIVES, NamedTime
from tests.samples import opened_sample

SLOW, HEALTHY = "fsdp2-straggler-rank0", "fsdp2-not-overlapped"


@pytest.mark.parametrize("name", [SLOW, HEALTHY, "ddp-healthy", "fsdp2-slow-link-rank1"])
def test_the_steps_add_up_to_the_table(name: str) -> None:
    result = opened_sample(name)
    table = result.breakdowns.collectives
    whole = Counter[tuple[str, str]]()
    for row in table.rows:
        whole[row.op, row.axis] += row.exposed_ns
    found = exposed_by_step(result.attribution)
    assert found.keys() == whole.keys()
    for key, of_steps in found.items():
        assert len(of_steps.exposed_ns) == len(result.attribution.counted)
        assert of_steps.exposed_ns.mean() == pytest.approx(whole[key] / table.rank_steps)
        assert of_steps.transfer_ns is not None
        assert (of_steps.transfer_ns <= of_steps.exposed_ns).all()


def test_a_late_rank_is_waiting_and_not_transfer() -> None:
    """The rank sleeps 200 ms in every step, which one of two ranks waits."""
    before, after = opened_sample(HEALTHY), opened_sample(SLOW)
    (times, *_) = differences_by_name(before, after)
    assert times.of == COLLECTIVES
    found = [change_of(row) for row in times.rows]
    assert all(change.ns is not None for change in found)
    waiting = sum(change.waiting_ns or 0 for change in found) / 1e6
    transfer = sum(change.transfer_ns or 0 for change in found) / 1e6
    assert waiting == pytest.approx(100, abs=15)
    assert abs(transfer) < 15
    for row, change in zip(times.rows, found, strict=True):
        assert change.ns is not None
        low, likely, high = change.ns
        assert low <= likely <= high
        assert likely == pytest.approx((row.ns[1] or 0) - (row.ns[0] or 0), abs=2)
    headings = [column.name for column in named_table(times, ("before", "after")).columns]
    assert headings[3:7] == ["difference", "95% interval", "of which waiting", "of which transfer"]


def test_what_is_not_known_step_by_step_has_no_interval() -> None:
    assert change_of(NamedTime("mm", (1.0, 2.0), (1.0, 1.0))) == (None, None, None)
