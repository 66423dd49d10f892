"""Parts, blames and pieces of steps as columns: each row is the object that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model.accounts import STEP_COLUMNS, StepAccount, StepAccounts
from diag.model.parts import PartColumns
from diag.model.steps import Blame, CriticalPath, Detail, IdleParts, Kind, Parts, Pieces, Segments, Stall

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
    listed = [
        StepAccount(at, 0, columns[ends[at] : ends[at + 1]] if rows else tuple(by_step[at]), _NO_PATH, ())
        for at, rows in zip(kept, as_rows, strict=True)
    ]
    steps = StepAccounts.of(listed)
    chosen, owner = steps.parts, steps.of_part
    assert list(chosen) == [parts for at in kept for parts in by_step[at]]
    assert chosen.column("idle_parts.queued_ns").tolist() == [parts.idle_parts.queued_ns for parts in chosen]
    assert owner.tolist() == [place for place, at in enumerate(kept) for _ in by_step[at]]
    assert [list(step.parts) for step in steps] == [by_step[at] for at in kept]


_NONE = np.zeros(0, dtype=np.int64)
_NO_PATH = CriticalPath(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, ())


_BLAMES = st.lists(st.builds(Blame, st.integers(0, 5), st.sampled_from(Kind), st.sampled_from(Detail), _NS), max_size=4)


@given(st.lists(_BLAMES, max_size=4))
def test_rows_are_the_blames_that_they_were_made_of(by_step: list[list[Blame]]) -> None:
    steps = StepAccounts.of([StepAccount(at, 0, (), _NO_PATH, blames) for at, blames in enumerate(by_step)])
    assert [list(step.blames) for step in steps] == by_step
    every, owner = steps.blames, steps.of_blame
    assert [every[at] for at in range(len(every))] == [blame for blames in by_step for blame in blames]
    assert owner.tolist() == [at for at, blames in enumerate(by_step) for _ in blames]


_KEYS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from("bc")), max_size=3, unique=True)


@st.composite
def _accounts(draw: st.DrawFn) -> StepAccount:
    keys = tuple(draw(_KEYS))
    pieces = draw(st.lists(st.tuples(st.integers(0, 3), _NS, st.integers(-1, len(keys) - 1)), max_size=4))
    ends = np.cumsum([0, *(ns for _, ns, _ in pieces)])
    column = np.zeros(len(pieces), dtype=np.int64)
    rank, collective = (np.array([piece[at] for piece in pieces], dtype=np.int64) for at in (0, 2))
    return StepAccount(
        draw(st.integers(0, 9)), int(ends[-1]), tuple(draw(st.lists(_parts(), max_size=2))),
        CriticalPath(rank, ends[:-1], ends[1:], column, column, collective, keys), draw(_BLAMES),
        draw(st.booleans()), draw(st.sampled_from(("", "warm-up"))), draw(st.booleans()), draw(_NS), draw(_NS),
    )  # fmt: skip


_NAMES = (*STEP_COLUMNS, "note")


def _told(steps: Iterable[StepAccount]) -> list[tuple[Any, ...]]:
    return [
        (
            list(step.parts),
            step.path.pieces(),
            step.path.keys,
            list(step.blames),
            *(getattr(step, name) for name in _NAMES),
        )
        for step in steps
    ]


@given(st.lists(_accounts(), max_size=5), st.data())
@settings(max_examples=30)
def test_a_table_of_steps_has_the_steps_that_it_was_made_of(listed: list[StepAccount], data: st.DataObject) -> None:
    steps = StepAccounts.of(listed)
    assert _told(steps) == _told(listed)
    cut = data.draw(st.integers(0, len(listed)))
    assert _told(StepAccounts.joined([StepAccounts.of(listed[:cut]), StepAccounts.of(listed[cut:])])) == _told(listed)
    chosen = data.draw(st.lists(st.sampled_from(range(len(listed))), unique=True)) if listed else []
    assert _told(steps.take(np.array(chosen, dtype=np.int64))) == _told([listed[at] for at in chosen])
    assert _told(steps[cut:]) == _told(listed[cut:])
    mask = np.array([step.usable for step in listed], dtype=np.bool_)
    assert _told(steps.take(mask)) == _told([step for step in listed if step.usable])
    keys = steps.paths.keys.keys()
    assert [keys[at] if at >= 0 else None for at in steps.paths.key_places.tolist()] == [
        piece.collective for step in listed for piece in step.path.pieces()
    ]


def test_pieces_of_any_steps_are_those_of_each_step() -> None:
    edges = np.array([0, 2, 2, 5])
    times, kinds = np.arange(5), np.zeros(5, dtype=np.int8)
    one, other = (Pieces(Segments(times + since, times + since + 1, kinds, kinds), edges) for since in (0, 100))
    alone = Segments(times, times + 1, kinds, kinds)
    steps = [one[0], one[1], one[2], other[1], other[2], alone, alone, one[2], other[0]]
    together = Pieces.of(steps)
    assert [step.start_ns.tolist() for step in together] == [step.start_ns.tolist() for step in steps]
    assert one.take(slice(None)) is one
