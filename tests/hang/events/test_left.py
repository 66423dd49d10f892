"""Who left first, and who only because of that."""

from __future__ import annotations

from diag.events.left import Ended, Left, who_left

S = 10**9


def test_clocks_decide_who_left_first() -> None:
    ends = [Ended("a", 9 * S), Ended("b", 3 * S), Ended("c", 4 * S)]
    assert who_left(ends, 2 * S) == Left(first=("b", "c"), later=("a",), victims=())


def test_the_launcher_decides_between_ends_that_clocks_do_not_tell_apart() -> None:
    ends = [Ended("a", 3 * S), Ended("b", 4 * S, first=True), Ended("c", 9 * S, first=True)]
    assert who_left(ends, 2 * S) == Left(first=("b",), later=("a", "c"), victims=())


def test_without_a_clock_on_each_end_the_launcher_decides_alone() -> None:
    assert who_left([Ended("a"), Ended("b", 4 * S), Ended("c", first=True)], 2 * S).first == ("c",)
    assert who_left([Ended("a"), Ended("b", 4 * S)], 2 * S).first == ("a", "b")


def test_who_ended_because_of_others_is_never_first() -> None:
    left = who_left([Ended("a", 1 * S, first=True, of_others=True), Ended("b", 5 * S)], 2 * S)
    assert left == Left(first=("b",), later=(), victims=("a",))
    assert who_left([Ended("a", of_others=True)], 2 * S).first == ()


def test_a_source_may_know_more_about_its_clocks() -> None:
    ends = [Ended("a", 3 * S), Ended("b", 4 * S)]
    assert who_left(ends, 2 * S, before=lambda one, other: one.who < other.who).first == ("a",)


class _Counted:
    """Counts how often two of its kind are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_thousands_are_not_compared_with_each_other() -> None:
    members = [_Counted() for _ in range(2_000)]
    left = who_left([Ended(member, at * S) for at, member in enumerate(members)], 1_000 * S)
    assert (left.first, left.later) == (tuple(members[:1_000]), tuple(members[1_000:]))
    assert _Counted.compared < 10 * len(members)
