"""Who left: the members that ended, which of them of their own accord, and which of those first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")  # how a source names who ended: a rank, or a culprit where the rank is unknown


@dataclass(frozen=True, slots=True)
class Ended(Generic[W]):
    """The end of a member. ``time_ns``: when it ended or was last seen, None where no clock shows it. ``first``: its
    launcher saw it end before the others. ``of_others``: it ended because of them: it lost one, waited too long for
    one, or was asked to end."""

    who: W
    time_ns: int | None = None
    first: bool = False
    of_others: bool = False


@dataclass(frozen=True)
class Left(Generic[W]):
    """``first``: those that ended first of their own accord, several where no order is known; ``later``: those that did
    so after them; ``victims``: those that ended because of others."""

    first: tuple[W, ...]
    later: tuple[W, ...]
    victims: tuple[W, ...]


def who_left(
    ends: Iterable[Ended[W]], apart_ns: int, before: Callable[[Ended[W], Ended[W]], bool | None] | None = None
) -> Left[W]:
    """Clocks decide where all ends have a time; among those that they do not tell apart, the launcher's word does.

    ``apart_ns``: what the clocks of two members may differ by, or how late an end may be seen. ``before``: whether one
    ended before another, where a source knows more about clocks than that.
    """
    listed = list(ends)
    own = [end for end in listed if not end.of_others]
    first = own
    if own and all(end.time_ns is not None for end in own):
        earliest = min(own, key=lambda end: end.time_ns or 0)
        if before is None:
            first = [end for end in own if (end.time_ns or 0) - (earliest.time_ns or 0) < apart_ns]
        else:
            first = [end for end in own if end is earliest or before(earliest, end) is not True]
    first = [end for end in first if end.first] or first
    chosen = set(map(id, first))  # of thousands, each compared with each would take minutes
    return Left(
        tuple(end.who for end in first),
        tuple(end.who for end in own if id(end) not in chosen),
        tuple(end.who for end in listed if end.of_others),
    )
