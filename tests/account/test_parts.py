"""Parts, blames and pieces of steps as columns: each row is the object that it stands for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diag.model.parts import PartColumns, PartRows, parts_of_steps
from diag.model.steps import (
    Blame,
    CriticalPath,
    Detail,
    IdleParts,
    Kind,
    Parts,
    Pieces,
    Segments,
    Stall,
    StepAccount,
    blames_of_steps,
)

_NS = st.integers(0, 10**12)


@st.composite
def _parts(draw: st.DrawFn) -> Parts:
    waited = draw(st.none() | _NS)
    stalls = draw(
        st.lists(st.builds(Stall, _NS, _NS, st.just("queued"), st.just("aten::copy_"), st.just(0.5)), max_size=2)
    )
    return Parts(
        draw(st.integers(0, 5)),
        draw(st.sampled_from(("trace", "records", "events"))),
        *(draw(_NS) for _ in range(9)),
        waited,
        None if waited is None else draw(_NS),
        draw(st.booleans()),
        draw(st.builds(IdleParts, *[_NS] * 6) | st.just(IdleParts())),
        tuple(stalls),
        draw(_NS),
    )


@given(st.lists(st.lists(_parts(), max_size=4), max_size=4))
def test_rows_are_the_parts_that_they_were_made_of(by_step: list[list[Parts]]) -> None:
    every = [parts for of_step in by_step for parts in of_step]
    columns = PartColumns.of(every)
    assert list(columns) == every
    assert list(PartColumns.joined([PartColumns.of(of_step) for of_step in by_step])) == every
    backwards = np.arange(len(every))[::-1]
    assert list(columns.take(backwards)) == every[::-1]
    assert columns.column("idle_parts.by_host_ns").tolist() == [parts.idle_parts.by_host_ns for parts in every]
    assert columns.from_source("trace").tolist() == [parts.source == "trace" for parts in every]


@given(st.lists(st.lists(_parts(), max_size=4), max_size=5), st.data())
def test_the_parts_of_chosen_steps_come_in_the_order_of_the_steps(
    by_step: list[list[Parts]], data: st.DataObject
) -> None:
    columns = PartColumns.of([parts for of_step in by_step for parts in of_step])
    ends = np.cumsum([0, *map(len, by_step)]).tolist()
    kept = data.draw(st.lists(st.sampled_from(range(len(by_step))), unique=True)) if by_step else []
    as_rows = [data.draw(st.booleans()) for _ in kept]
    steps = [
        StepAccount(at, 0, columns[ends[at] : ends[at + 1]] if rows else tuple(by_step[at]), _NO_PATH, ())
        for at, rows in zip(kept, as_rows, strict=True)
    ]
    chosen, owner = parts_of_steps(steps)
    assert list(chosen) == [parts for at in kept for parts in by_step[at]]
    assert chosen.column("idle_parts.queued_ns").tolist() == [parts.idle_parts.queued_ns for parts in chosen]
    assert owner.tolist() == [place for place, at in enumerate(kept) for _ in by_step[at]]
    assert all(isinstance(step.parts, PartRows) == rows for step, rows in zip(steps, as_rows, strict=True))


_NONE = np.zeros(0, dtype=np.int64)
_NO_PATH = CriticalPath(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, ())


_BLAMES = st.lists(st.builds(Blame, st.integers(0, 5), st.sampled_from(Kind), st.sampled_from(Detail), _NS), max_size=4)


@given(st.lists(_BLAMES, max_size=4))
def test_rows_are_the_blames_that_they_were_made_of(by_step: list[list[Blame]]) -> None:
    steps = [StepAccount(at, 0, (), _NO_PATH, blames) for at, blames in enumerate(by_step)]
    assert [list(step.blames) for step in steps] == by_step
    every, owner = blames_of_steps(steps)
    assert [every[at] for at in range(len(every))] == [blame for blames in by_step for blame in blames]
    assert owner.tolist() == [at for at, blames in enumerate(by_step) for _ in blames]


def test_pieces_of_any_steps_are_those_of_each_step() -> None:
    edges = np.array([0, 2, 2, 5])
    times, kinds = np.arange(5), np.zeros(5, dtype=np.int8)
    one, other = (Pieces(Segments(times + since, times + since + 1, kinds, kinds), edges) for since in (0, 100))
    alone = Segments(times, times + 1, kinds, kinds)
    steps = [one[0], one[1], one[2], other[1], other[2], alone, alone, one[2], other[0]]
    together = Pieces.of(steps)
    assert [step.start_ns.tolist() for step in together] == [step.start_ns.tolist() for step in steps]
    assert Pieces.of(steps[:3]) is one
