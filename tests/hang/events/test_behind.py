"""Who is behind: one question, whatever the rows were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from diag.events.behind import Waits, uneven, uneven_counters, waits_of
from diag.events.differs import Kind
from diag.events.rows import Call, Did, Event, JobRank

RowWaits = Waits[JobRank, Event[JobRank]]
ALL: Mapping[object, Sequence[JobRank]] = {"world": tuple(map(JobRank, range(4)))}


def asked(events: Sequence[Event[JobRank]], groups: Mapping[object, Sequence[JobRank]] = ALL) -> RowWaits:
    return waits_of(events, groups)


def row(rank: int, number: int, did: Did = Did.WAITS, group: str = "world", op: str = "all_reduce") -> Event[JobRank]:
    return Event(JobRank(rank), number, Call(op), did, group)


def test_the_member_that_did_not_come() -> None:
    waits = asked([row(0, 5), row(1, 5), row(3, 5), row(2, 4, Did.LAUNCHED)])
    assert (waits.absent, waits.stuck) == ((2,), ())
    assert waits.awaited() == {0: (2,), 1: (2,), 3: (2,)}


def test_a_member_that_waits_elsewhere_is_passed_through() -> None:
    groups = {**ALL, "pair": (JobRank(2), JobRank(3))}
    waits = asked([row(0, 5), row(1, 5), row(2, 9, group="pair"), row(2, 4, Did.LAUNCHED)], groups)
    assert waits.absent == (3,)


def test_all_have_come_and_it_does_not_end() -> None:
    waits = asked([row(rank, 5) for rank in range(4)])
    assert (waits.roots, waits.silent) == ((), ())
    assert [event.number for event in waits.stuck] == [5]


@pytest.mark.parametrize("first", range(4))
def test_the_member_that_did_not_finish_what_its_peers_finished(first: int) -> None:
    """Also if it is the first of those that wait in the next one."""
    events = [row(first, 5), *(row(rank, 6) for rank in (first, *range(4)))]
    waits = asked(events)
    assert waits.roots == (first,)


def test_members_that_wait_for_each_other() -> None:
    groups = {"a": (JobRank(0), JobRank(1)), "b": (JobRank(0), JobRank(1))}
    waits = asked([row(0, 1, group="a"), row(1, 1, group="b")], groups)
    assert (waits.roots, waits.circle) == ((), (0, 1))


@pytest.mark.parametrize(
    ("counters", "behind", "ahead"),
    [
        ((9, 9, 7, 8), (2,), ()),
        ((5, 5, 5, 6), (0, 1, 2), (3,)),  # what one waits in, the others have not called: the many are behind
        ((5, 6), (0,), ()),
    ],
)
def test_of_counters_the_least_is_behind(
    counters: Sequence[int], behind: tuple[int, ...], ahead: tuple[int, ...]
) -> None:
    found = uneven_counters({JobRank(rank): number for rank, number in enumerate(counters)})
    assert found is not None
    assert (found.behind, found.ahead, found.crossed) == (behind, ahead, ())


def test_even_counters_name_nobody() -> None:
    assert uneven_counters({JobRank(0): 4, JobRank(1): 4}) is None


def test_more_of_one_call_and_fewer_of_another_is_no_delay() -> None:
    found = uneven({JobRank(2): (-1, 1), JobRank(3): (-2, 0)}, map(JobRank, range(4)))
    assert (found.crossed, found.behind) == ((2,), ())
    assert found.kind is Kind.OPERATION  # as many calls as the others, and another one among them
    fewer = uneven({JobRank(2): (-2, 1)}, map(JobRank, range(4)))
    assert (fewer.crossed, fewer.kind) == ((2,), Kind.NUMBER)
