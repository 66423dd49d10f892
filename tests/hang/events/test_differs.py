"""Who differs: one question, whatever the rows were read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.ended.model import Clue
from diag.events.differs import By, Kind, Known, first_met, unlike_most, who_differs
from diag.events.rows import Call, Event, JobRank
from diag.hang.job import JobLogs
from diag.hang.rules.mismatch import clues as of_logs
from tests.hang.flight.boards import find
from tests.hang.reason.builders import Job, call


def met(*ops: str, sizes: Sequence[int] = ()) -> list[Event[JobRank]]:
    return [Event(JobRank(rank), 7, Call(op, sizes=sizes[rank] if sizes else 0)) for rank, op in enumerate(ops)]


@pytest.mark.parametrize(
    ("ops", "sizes", "kind", "odd"),
    [
        (("sum", "sum", "gather"), (1, 1, 1), Kind.OPERATION, (2,)),
        (("sum", "sum", "sum"), (1, 8, 1), Kind.SIZE, (1,)),
        (("sum", "sum", "gather"), (1, 2, 3), Kind.OPERATION, (2,)),  # of calls that differ the sizes say nothing
    ],
)
def test_the_minority_differs(ops: Sequence[str], sizes: Sequence[int], kind: Kind, odd: tuple[int, ...]) -> None:
    difference = who_differs(met(*ops, sizes=sizes))
    assert difference is not None
    assert (difference.kind, difference.odd, difference.by) == (kind, odd, By.VOTE)


@pytest.mark.parametrize(
    ("known", "odd", "by"),
    [
        (None, (0, 1), By.NOTHING),
        (Known(steady={JobRank(0): True, JobRank(1): False}), (1,), By.HISTORY),
        (Known(lawless=[JobRank(0)]), (0,), By.LAW),
        (Known(named={JobRank(1): 2}), (1,), By.REPORT),
        (Known(lawless=[JobRank(0), JobRank(1)]), (0, 1), By.NOTHING),
    ],
)
def test_of_two_something_else_must_show_it(known: Known[JobRank] | None, odd: tuple[int, ...], by: By) -> None:
    difference = who_differs(met("sum", "gather"), known=known)
    assert difference is not None
    assert (difference.odd, difference.by) == (odd, by)
    assert difference.confidence < 0.65 or by is not By.NOTHING


def test_only_the_first_difference_counts() -> None:
    calls: Mapping[int, str] = {0: "aab", 1: "aab", 2: "abc"}
    events = [Event(JobRank(rank), place, Call(op)) for rank, ops in calls.items() for place, op in enumerate(ops)]
    assert {event.number for event in first_met(events)} == {1}
    assert first_met(event for event in events if event.number == 0) == []


# -- The same disagreement, of rank 2 of 4, in what each source records ------------------------------------------------


def logs_of_nccl(_: Path) -> list[Clue]:
    job = Job()
    job.communicate(calls={rank: [call(5, count=200 if rank == 2 else 100)] for rank in range(4)})
    return of_logs(JobLogs(job.logs()))


def logs_of_watchdogs(_: Path) -> list[Clue]:
    job = Job()
    for rank in range(4):
        job.timeout(rank, 5, numel=200 if rank == 2 else 100)
    return of_logs(JobLogs(job.logs()))


def dumps(folder: Path) -> list[Clue]:
    calls = {rank: f"0:all_reduce[{200 if rank == 2 else 100}]?" for rank in range(4)}
    return list(find(folder, {"0": (0, 1, 2, 3)}, calls).clues)


@pytest.mark.parametrize("source", [logs_of_nccl, logs_of_watchdogs, dumps])
def test_every_source_names_the_same_rank(source: Callable[[Path], list[Clue]], tmp_path: Path) -> None:
    (clue,) = source(tmp_path)
    assert (clue.fault_class, clue.ranks) == ("mismatch_shape", {2})
    assert clue.confidence >= 0.8


def test_watchdogs_of_two_ranks_show_which_sizes_do_not_fit_the_group() -> None:
    """An all-gather of two puts out twice what goes in."""
    job = Job(world=2)
    for rank, out in ((0, 200), (1, 300)):
        job.timeout(rank, 5, "_ALLGATHER_BASE", 100)
        line, words = job.lines[-1], ("NumelOut=100", f"NumelOut={out}")
        job.lines[-1] = replace(line, text=line.text.replace(*words), raw=line.raw.replace(*words))
    (clue,) = of_logs(JobLogs(job.logs()))
    assert (clue.fault_class, clue.ranks) == ("mismatch_shape", {1})


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ("aab", [2]),
        ("aabc", [2, 3]),  # no majority, and yet more than any other
        ("ab", [0, 1]),
        ("aabb", [0, 1, 2, 3]),
        ("aa", []),
        ("a", []),
    ],
)
def test_of_values_alone_those_unlike_most_are_odd(values: str, odd: list[int]) -> None:
    assert unlike_most({JobRank(at): value for at, value in enumerate(values)}) == odd
