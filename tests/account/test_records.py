"""Ranks whose records are partitioned together are each as if alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from diag.account.joined import joined_steps
from diag.account.on_line import on_line
from diag.account.policy import CRITICAL_PATH
from diag.account.rank_steps import COLUMNS, RankSteps
from diag.account.records import Recorded, partition
from diag.collectors.records import CollectiveRow, PhaseRow, StepRecord
from diag.model.steps import Detail, RankStep
from diag.rundir.columns import Rows, Steps
from tests.simulate import MS, Plan, simulate


def shown(steps: Iterable[RankStep]) -> list[object]:
    return [
        (
            *(getattr(step, name) for name in ("rank", "step", "begin_ns", "end_ns", "source", "overlapped_comm_ns")),
            *(getattr(step, name) for name in ("optimizer_ns", "comm_known", "hidden_known")),
            list(step.collectives),
            *(getattr(step.segments, name).tolist() for name in ("start_ns", "end_ns", "kind", "detail")),
        )
        for step in steps
    ]


def recorded() -> list[Recorded]:
    """Clocks that are decades apart, a rank without steps, one on a device, calls outside of steps, a receive."""
    ranks = [
        Recorded(rank, tables.steps, tables.rows, tables.groups, on_device=rank == 1)
        for rank, tables in simulate(Plan(3, 6, jitter=0.2)).ranks.items()
    ]
    begin = 10**18
    steps = [
        StepRecord(
            n, begin + n * MS, begin + n * MS + MS - 5, [PhaseRow("forward", begin + n * MS - 9, begin + n * MS + 99)]
        )
        for n in range(3)
    ]
    rows = [
        CollectiveRow("p2p 0>3", 0, "recv", 8, "float32", begin - 50, begin + 70, begin + 20, begin + 70),
        CollectiveRow(
            "0", 0, "barrier", 0, "", begin + MS - 9, begin + MS + 30, begin + MS - 9, begin + MS + 30, False
        ),
        CollectiveRow("0", 1, "barrier", 0, "", begin + 9 * MS, begin + 10 * MS, None, None),
    ]
    far = Recorded(3, Steps.of(steps), Rows.of(rows), {"0": [0, 3]}, on_device=False)
    return [
        *ranks[:2],
        far,
        far._replace(rank=4, steps=Steps.of(())),
        far._replace(rank=5, idle={Detail.LAUNCH: _IDLE}),
        ranks[2],
    ]


_IDLE = Rows.of(()).start_ns.reshape(0, 2)


@pytest.mark.parametrize("at_once", [1, 1 << 21])
def test_ranks_together_are_each_as_alone(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setitem(vars(CRITICAL_PATH), "numbers_at_once", at_once)
    alone = [steps for each in recorded() for steps in partition([each])]
    together = list(partition(recorded()))
    assert list(map(len, together)) == [6, 6, 3, 0, 3, 6]
    assert list(map(shown, together)) == list(map(shown, alone))
    first, second, third = together[2]
    assert [call.op for call in first.collectives] == ["recv", "barrier"]
    assert [call.op for call in second.collectives] == ["barrier"]
    assert not third.collectives


def test_a_table_of_steps_is_the_same_made_of_its_rows() -> None:
    for table in partition(recorded()):
        again = RankSteps.of(list(table))
        assert shown(again) == shown(table)
        assert [getattr(again, name).tolist() for name in COLUMNS] == [
            getattr(table, name).tolist() for name in COLUMNS
        ]
        assert len(again.calls) == len(table.calls)


def test_rows_that_are_chosen_by_columns_are_those_of_the_objects() -> None:
    for table in partition(recorded()):
        odd = table.step % 2 == 1
        assert shown(table.take(odd)) == shown([step for step in table if step.step % 2])
        in_odd = {call.key for step in table if step.step % 2 for call in step.collectives}
        assert {call.key for call in joined_steps([table.take(odd)]).calls.objects} == in_odd


def test_steps_that_follow_each_other_are_a_view_of_the_table() -> None:
    for table in partition(recorded()):
        assert shown(table.take(slice(1, 3))) == shown(list(table)[1:3])
    table = max(partition(recorded()), key=len)
    some = table.take(slice(1, 3))
    assert len(some) == 2
    assert all(np.shares_memory(getattr(some, name), getattr(table, name)) for name in COLUMNS)
    assert np.shares_memory(some.segments.every.start_ns, table.segments.every.start_ns)


def test_tables_of_steps_are_joined_as_their_rows_are() -> None:
    tables = list(partition(recorded()))
    parts = [RankSteps.together([table.take(slice(at, None, 2)) for table in tables]) for at in (0, 1)]
    joined = joined_steps(parts)
    by_rank = sorted((step for part in parts for step in part), key=lambda step: step.rank)
    assert shown(joined) == shown(by_rank)
    assert len(joined.calls) == sum(len(table.calls) for table in tables)
    assert shown(RankSteps.of(by_rank)) == shown(by_rank)


def test_the_numbers_of_ranks_put_together_lie_in_memory_once() -> None:
    own = {table.rank[0]: table for table in partition(recorded()) if table}
    every, views = RankSteps.with_views(own)
    assert shown(every) == [of_step for table in own.values() for of_step in shown(table)]
    assert list(map(shown, views.values())) == list(map(shown, own.values()))
    for view in views.values():
        assert np.shares_memory(view.segments.every.start_ns, every.segments.every.start_ns)
        assert np.shares_memory(view.calls.start_ns, every.calls.start_ns)


def test_ranks_lie_apart_on_the_line() -> None:
    table = RankSteps.together(list(partition(recorded())))
    shift_ns, pieces = on_line(table)
    assert (pieces[0].start_ns == table.segments[0].start_ns + shift_ns[0]).all()
    reach = -1
    for rank in np.unique(table.rank):
        of_rank = table.take(table.rank == rank)
        moved = np.unique(shift_ns[table.rank == rank])
        times = [edge for each in of_rank for edge in (each.begin_ns, each.end_ns)]
        times += [edge for each in of_rank for call in each.collectives for edge in (call.start_ns, call.end_ns)]
        assert len(moved) == 1
        assert min(times) + moved[0] > reach
        reach = max(times) + moved[0]


def test_a_shifted_table_has_its_steps_pieces_and_calls_later() -> None:
    for table in partition(recorded()):
        for before, after in zip(table, table.on_clock(lambda ns: ns + 7), strict=True):
            assert (after.begin_ns, after.end_ns) == (before.begin_ns + 7, before.end_ns + 7)
            assert (after.segments.start_ns == before.segments.start_ns + 7).all()
            assert [call.end_ns for call in after.collectives] == [call.end_ns + 7 for call in before.collectives]
