"""The pass of each collective, its exposed transfer and the compute around it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from diag.account.calls import Calls, Some
from diag.model.accounts import Attribution, StepAccounts
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep, Segments
from diag.tables.passes import PhasedCall, PhasedCalls, phased_calls

OPS = ("all_gather", "reduce_scatter", "all_reduce")
PIECES = (
    (Kind.COMPUTE, Detail.FORWARD),
    (Kind.COMPUTE, Detail.BACKWARD),
    (Kind.COMPUTE, Detail.OPTIMIZER),
    (Kind.COMPUTE, Detail.NONE),
    (Kind.IDLE, Detail.BACKWARD),
    (Kind.COMM, Detail.NONE),
)


def call(number: int, op: str, start_ns: int, end_ns: int) -> CollectiveCall:
    return CollectiveCall(("g", number, op), op, "g", (0, 1), 64, start_ns, end_ns)


def step_of(
    number: int, begin_ns: int, pieces: list[tuple[Kind, Detail, int]], calls: list[CollectiveCall]
) -> RankStep:
    edges = begin_ns + np.cumsum([0, *(ns for _, _, ns in pieces)])
    kinds, details = (np.array([piece[at] for piece in pieces], dtype=np.int8) for at in (0, 1))
    cut = Segments(edges[:-1], edges[1:], kinds, details)
    return RankStep(0, number, begin_ns, int(edges[-1]), "records", cut, 0, 0, calls)


def columns_of(steps: list[RankStep]) -> PhasedCalls:
    attribution = Attribution(StepAccounts.of(()), (0,), 0, True, True, (), rank_steps=tuple(steps))
    return phased_calls(attribution, [step.step for step in steps])


def phased(steps: list[RankStep]) -> list[PhasedCall]:
    return list(columns_of(steps))


def in_a_table(steps: list[RankStep]) -> list[RankStep]:
    """The same steps, whose calls are rows of one table."""
    calls = Calls.of([call for step in steps for call in step.collectives])
    edges = np.cumsum([0, *(len(step.collectives) for step in steps)])
    return [replace(step, collectives=Some(calls, np.arange(*edges[at : at + 2]))) for at, step in enumerate(steps)]


def test_a_gather_belongs_to_the_work_after_it_and_a_reduction_to_that_before() -> None:
    pieces = [
        (Kind.COMM, Detail.NONE, 10),  # 100
        (Kind.COMPUTE, Detail.FORWARD, 20),  # 110
        (Kind.COMM, Detail.NONE, 5),  # 130
        (Kind.COMPUTE, Detail.FORWARD, 20),  # 135
        (Kind.COMPUTE, Detail.BACKWARD, 40),  # 155
        (Kind.COMM, Detail.NONE, 15),  # 195
    ]
    calls = [
        call(0, "all_gather", 100, 110),
        call(1, "all_gather", 130, 135),
        call(2, "reduce_scatter", 165, 205),
        call(3, "reduce_scatter", 195, 210),
        call(4, "all_reduce", 99, 120),  # began before the step
    ]
    rows = phased([step_of(7, 100, pieces, calls)])
    assert [(row.op, row.phase, row.place, row.places) for row in rows] == [
        ("all_gather", Detail.FORWARD, 0, 2),
        ("all_gather", Detail.FORWARD, 1, 2),
        ("reduce_scatter", Detail.BACKWARD, 0, 2),
        ("reduce_scatter", Detail.BACKWARD, 1, 2),
    ]
    # What two calls share counts for the first; the computing between a call and the next of its kind could hide it.
    assert [row.exposed_ns for row in rows] == [10, 5, 10, 5]
    assert [row.room_ns for row in rows] == [0, 20, 0, 0]
    assert [row.after_ns for row in rows] == [40, 20, 0, 0]


@st.composite
def runs(draw: st.DrawFn) -> list[RankStep]:
    """Some steps of a rank, cut at random, with calls at random: also some that begin outside of their step."""
    steps, time, number = [], 1000, 0
    for at in range(draw(st.integers(1, 4))):
        time += draw(st.integers(0, 5))
        pieces = [
            (*draw(st.sampled_from(PIECES)), length)
            for length in draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))
        ]
        calls = []
        for op in draw(st.lists(st.sampled_from(OPS), max_size=5)):
            start = time + draw(st.integers(-3, 40))
            calls.append(call(number, op, start, start + draw(st.integers(0, 20))))
            number += 1
        steps.append(step_of(at, time, pieces, calls))
        time = steps[-1].end_ns
    return steps


@given(runs())
@settings(max_examples=150)
def test_steps_together_have_the_rows_of_each_step_alone(steps: list[RankStep]) -> None:
    alone = [row for step in steps for row in phased([step])]
    assert phased(steps) == alone
    assert phased(in_a_table(steps)) == alone


@given(runs())
def test_rows_are_chosen_by_columns_as_by_objects(steps: list[RankStep]) -> None:
    columns, rows = columns_of(steps), phased(steps)
    chosen = columns.take(columns.with_op(OPS[:2]) & columns.of_data & ~columns.in_pass(Detail.BACKWARD))
    assert list(chosen) == [row for row in rows if row.op in OPS[:2] and row.of_data and row.phase != Detail.BACKWARD]


def test_without_calls_there_are_no_rows() -> None:
    nothing = PhasedCalls.joined([])
    assert not len(nothing.take(nothing.of_data & nothing.with_op(OPS)))
