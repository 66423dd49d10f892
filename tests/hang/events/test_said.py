"""Who reports of programs name."""

from __future__ import annotations

from diag.events.said import Report, Said, who_said_so


def test_who_is_named_once_and_who_only_waits() -> None:
    reports = [Report(names=(3, 1), came=(0, 2)), Report(names=(1,)), Report(came=(2, 4))]
    assert who_said_so(reports) == Said(named=(3, 1), waiting=(0, 2, 4))


def test_a_member_that_is_named_and_came_was_late() -> None:
    assert who_said_so([Report(came=("n1", "n2")), Report(names=("n2",))]) == Said(named=("n2",), waiting=("n1",))


def test_without_reports_nobody_is_named() -> None:
    assert who_said_so(list[Report[int]]()) == Said((), ())
