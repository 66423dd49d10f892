"""The paths of all steps, followed together: the same as each step's path followed by itself, one hop after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.account.calls import Listed, Matched, calls_in
from diag.account.critical_path import (
    Readiness,
    Timeline,
    details_of,
    held_up,
    kinds_of,
    readiness,
    walks,
)
from diag.account.policy import CRITICAL_PATH
from diag.account.rank_steps import RankSteps
from diag.model.keys import Key
from diag.model.ragged import edges_of
from diag.model.steps import CollectiveCall, CriticalPath, Detail, Kind, PathPiece, RankStep, Segments

UNIT_NS = 20_000  # a wait of two is noise
COMM = int(Kind.COMM)

Path = tuple[list[PathPiece], tuple[Key, ...], frozenset[Key]]


def releasing_call(line: Timeline, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Place and start of the call that ended nearest to ``end_ns``, of those open in the window."""
    best: tuple[int, int] | None = None
    nearest = 0
    for place in line.by_end.tolist():
        start, end = int(line.calls.start_ns[place]), int(line.calls.end_ns[place])
        if end <= start_ns:
            continue
        if start < end_ns and (best is None or abs(end - end_ns) < nearest):
            best, nearest = (place, start), abs(end - end_ns)
        if end > end_ns and best is not None:
            break
    return best


def last_ready(came: Readiness, number: int, present: Sequence[int]) -> tuple[int, int] | None:
    """The last rank to be ready of those present, and when; None if fewer than two took part."""
    if number < 0:
        return None
    at = came.members(number)
    members = zip(came.matched.rank[at].tolist(), came.ready_ns[at].tolist(), strict=True)
    ready = [(ready, rank) for rank, ready in members if rank in present]
    return (max(ready)[1], max(ready)[0]) if len(ready) > 1 else None


def walk(steps: Mapping[int, RankStep], lines: Mapping[int, Timeline], came: Readiness) -> Path:
    """The path through one step, backwards from the end of the rank that is done last."""
    rank = min(steps, key=lambda rank: (-steps[rank].end_ns, steps[rank].segments.total(Kind.COMM), rank))
    time = steps[rank].end_ns
    pieces: list[PathPiece] = []
    keys: dict[Key, int] = {}
    jumped: set[Key] = set()

    def add(line: Timeline, first: int, last: int, start: int, end: int, key: Key | None = None) -> None:
        if key is not None:
            keys.setdefault(key, len(keys))
        if end <= start:
            return
        begins, ends = line.start_ns[first : last + 1].tolist(), line.end_ns[first : last + 1].tolist()
        begins[0], ends[-1] = start if key is not None else max(start, begins[0]), end
        kinds, details = kinds_of(line.label).tolist(), details_of(line.label).tolist()
        pieces[:0] = [
            PathPiece(rank, *edges, Kind(kinds[at]), Detail(details[at]), key)
            for at, edges in enumerate(zip(begins, ends, strict=True), first)
        ]

    while time > steps[rank].begin_ns:
        line, begin, before = lines[rank], steps[rank].begin_ns, time
        index = int(np.searchsorted(line.start_ns, time)) - 1
        if index < 0 or line.end_ns[index] < time:
            break
        first = int(np.searchsorted(line.end_ns, begin, side="right"))
        comm = max(np.flatnonzero(line.communicating[: index + 1]).tolist(), default=-1)
        if comm < 0 or line.end_ns[comm] <= begin or not len(came.matched):
            add(line, first, index, begin, time)
            break
        if comm < index:
            add(line, comm + 1, index, begin, time)
            time = int(line.end_ns[comm])
        start = max(int(line.start_ns[comm]), begin)
        call = releasing_call(line, start, time)
        if call is not None and start < call[1] < time:
            start = call[1]
        key = line.calls.key(call[0]) if call is not None else None
        last = None
        if call is not None and key not in jumped:
            last = last_ready(came, int(came.numbers[rank][call[0]]), list(steps))
        if last is None or last[0] == rank or min(last[1], time) - start <= CRITICAL_PATH.noise_of_waits_ns:
            add(line, comm, comm, start, time, key)
            time = start
            if time >= before:
                break
            continue
        arrival = min(last[1], time)
        add(line, comm, comm, arrival, time, key)
        rank, time = last[0], arrival
        if key is not None:
            jumped.add(key)
    return pieces, tuple(keys), frozenset(jumped)


def met_at(path: CriticalPath, changes: Collection[int], came: Readiness, numbers: Sequence[int]) -> list[int]:
    """Collectives of a step at which its path met other ranks, in order of arrival."""
    matched, late = came.matched, came.nearly_last()
    arrivals = sorted(
        (int(came.ready_ns[at]), matched.keys_of[number], number, int(matched.rank[at]))
        for number in numbers
        for at in range(int(matched.edges[number]), int(matched.edges[number + 1]))
        if late[at]
    )
    starts = path.start_ns.tolist()
    held = []
    for arrival, _, number, rank in arrivals if starts else ():
        before = sum(start < arrival for start in starts) - 1
        near = [path.pieces()[min(max(at, 0), len(starts) - 1)] for at in (before, before + 1)]
        on_path = any(piece.rank == rank and piece.start_ns <= arrival <= piece.end_ns for piece in near)
        if on_path or arrival == starts[0] or number in changes:
            held.append(number)
    return list(dict.fromkeys(held))


@st.composite
def runs(draw: st.DrawFn) -> dict[int, list[RankStep]]:
    """A few ranks with a few steps, cut at random, and with calls at random."""
    count, small = draw(st.integers(1, 3)), st.integers(0, 4)
    runs: dict[int, list[RankStep]] = {}
    for rank in range(draw(st.integers(1, 4))):
        time, sequence = draw(small), 0
        steps = []
        for number in range(count):
            time += draw(small) * draw(st.booleans())  # time between steps
            lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
            kinds = draw(st.lists(st.sampled_from((Kind.COMPUTE, COMM)), min_size=len(lengths), max_size=len(lengths)))
            edges = UNIT_NS * np.cumsum([time, *lengths])
            calls = []
            for length in draw(st.lists(small, max_size=4)):
                start = UNIT_NS * (time + draw(st.integers(0, 20)))
                key = ("g", sequence, "all_reduce")
                calls.append(CollectiveCall(key, "all_reduce", "g", (), 0, start, start + UNIT_NS * length))
                sequence += draw(st.sampled_from((1, 1, 1, 2)))
            time += sum(lengths)
            cut = Segments(edges[:-1], edges[1:], np.array(kinds, np.int8), np.zeros(len(kinds), np.int8))
            if draw(st.integers(0, 9)):  # else the rank did not record it
                begin, end = int(edges[0]), int(edges[-1])
                steps.append(RankStep(rank, number, begin, end, "records", cut, 0, 0, calls))
        runs[rank] = steps
    return {rank: steps for rank, steps in runs.items() if steps}


@given(runs())
@settings(max_examples=60)
def test_paths_followed_together_are_those_of_each_step(ranks: dict[int, list[RankStep]]) -> None:
    calls = {rank: calls_in([step.collectives for step in steps])[0] for rank, steps in ranks.items()}
    lines = {rank: Timeline(RankSteps.of(steps)) for rank, steps in ranks.items()}
    came = readiness(Matched(calls), lines)
    by_step = {number: {s.step: s for s in steps} for number, steps in ranks.items()}
    numbers = sorted(set[int]().union(*by_step.values()))
    steps = [{rank: own[number] for rank, own in by_step.items() if number in own} for number in numbers]
    every, changes = walks(numbers, lines, came, frozenset(ranks))
    paths = [every.path(at) for at in range(len(steps))]
    changed_at = [
        [code % len(came.matched) for code in changes.tolist() if code // len(came.matched) == at]
        for at in range(len(steps))
    ]
    for path, changed, members in zip(paths, changed_at, steps, strict=True):
        at_keys = frozenset(came.matched.keys_of[number] for number in changed)
        assert (path.pieces(), path.keys, at_keys) == walk(members, lines, came)
    begun = [list(range(number, len(came.matched), len(steps))) for number in range(len(steps))]
    listed = Listed(
        np.array([of for of_step in begun for of in of_step], dtype=np.int64), edges_of(list(map(len, begun)))
    )
    held = held_up(came, listed, every, changes)
    each_held = [held.of(np.array([at])).numbers.tolist() for at in range(len(steps))]
    assert each_held == [
        met_at(path, changed, came, of_step) for path, changed, of_step in zip(paths, changed_at, begun, strict=True)
    ]
