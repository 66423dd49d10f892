"""The vote with which the questions are answered: the value that most members share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Vote(Generic[V]):
    """``usual``: the most frequent value, the first of several; ``most``: more than half of the members have it;
    ``clear``: more than any other value, if there is another one."""

    usual: V
    most: bool
    clear: bool


def vote(votes: Mapping[V, int], of: int | None = None) -> Vote[V]:
    """``votes``: members by value, at least one value. ``of``: the number of all members, where some have no value.

    Raises ValueError without a value.
    """
    usual = max(votes, key=lambda value: votes[value])
    clear = sum(number == votes[usual] for number in votes.values()) == 1
    return Vote(usual, 2 * votes[usual] > (sum(votes.values()) if of is None else of), clear)
