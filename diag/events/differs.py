"""Who differs: members of a group that do not agree about a collective.

A vote decides which of them are wrong. Where it does not, other evidence may: a member that calls what it did not call
one step before, sizes that do not fit the size of the group, a report that names a member.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

from diag.events.policy import COLLECTIVES
from diag.events.rows import Call, Event, M
from diag.events.vote import vote


class Kind(StrEnum):
    """In what they differ. The values are ids of fault classes."""

    OPERATION = "mismatch_op"
    SIZE = "mismatch_shape"
    NUMBER = "desync"


class By(StrEnum):
    """What shows which members are wrong."""

    VOTE = "the others agree"
    HISTORY = "unlike its calls of the step before"
    LAW = "its sizes do not fit the size of the group"
    REPORT = "a report names it"
    NOTHING = "it is unknown which is wrong"


_ASPECTS: Mapping[str, Kind] = {
    "op": Kind.OPERATION,
    "root": Kind.OPERATION,
    "sizes": Kind.SIZE,
    "types": Kind.SIZE,
    "number": Kind.NUMBER,
}


@dataclass(frozen=True)
class Difference(Generic[M]):
    """``odd``: the members that are wrong; all where nothing shows which. ``usual``: an event of the others, else the
    most frequent one. ``strange``: the first event that differs from it. ``shift``: how many calls the odd members left
    out (positive) or made in addition (negative), if the later calls agree with that."""

    kind: Kind
    aspect: str  # op, root, sizes, types or number
    odd: tuple[M, ...]
    by: By
    usual: Event[M]
    strange: Event[M]
    shift: int = 0

    @property
    def fault_class(self) -> str:
        return self.kind.value

    @property
    def open(self) -> bool:
        return self.by is By.NOTHING

    @property
    def confidence(self) -> float:
        if self.open:
            return COLLECTIVES.differs_openly
        return COLLECTIVES.differs_from_itself if self.by is By.HISTORY else COLLECTIVES.differs_from_most


@dataclass(frozen=True)
class Known(Generic[M]):
    """What else may show which members are wrong. ``steady``: of each member whose step before is known, whether it
    calls the same again; ``lawless``: those whose sizes do not fit the size of the group; ``named``: how often reports
    name a member."""

    steady: Mapping[M, bool] | None = None
    lawless: Collection[M] = ()
    named: Mapping[M, int] | None = None


def first_met(events: Iterable[Event[M]]) -> list[Event[M]]:
    """The events of the first collective about which members of a group differ; none where all agree."""
    by_number: dict[int, list[Event[M]]] = defaultdict(list)
    for event in events:
        by_number[event.number].append(event)
    for number in sorted(by_number):
        if len({event.call for event in by_number[number]}) > 1:
            return by_number[number]
    return []


def who_differs(
    met: Sequence[Event[M]],
    *,
    known: Known[M] | None = None,
    since: Callable[[M], Sequence[Hashable]] | None = None,
    step: Sequence[Hashable] | None = None,
    with_numbers: bool = False,
    number_first: bool = False,
) -> Difference[M] | None:
    """The members that differ; None where all agree.

    ``met``: one event of each member, in the collective in which they meet. Or that in which each of them is, and then
    numbers are compared as well (``with_numbers``), before all else if ``number_first``. ``since``: a member's calls
    from this one on. ``step``: a whole step from this call on, where ``since`` ends with the step: then one call that
    agrees again shows that another was left out.
    """
    if len(met) < 2:
        return None
    aspects = ["op", "root", "sizes", "types"]
    if with_numbers:
        aspects.insert(0 if number_first else len(aspects), "number")
    aspect = next((name for name in aspects if len({_value(event, name) for event in met}) > 1), None)
    if aspect is None:
        return None
    values = {event.who: _value(event, aspect) for event in met}
    odd, by = _vote(values, known or Known())
    right = [event for event in met if event.who not in odd] or met
    most = vote(Counter(values[event.who] for event in right)).usual
    usual = next(event for event in right if values[event.who] == most)
    wrong = [event for event in met if event.who in odd]
    strange = next((event for event in wrong if values[event.who] != most), wrong[0])
    shift = 0
    if since is not None and step is not None:
        shift = int(
            all(
                _agrees(step, since(who), 1, 1, several=False)
                for who in (odd if by is not By.NOTHING else [strange.who])
            )
        )
    elif since is not None and by is not By.NOTHING:
        shift = shift_of(since(usual.who), [since(who) for who in odd])
    kind = Kind.NUMBER if shift else _ASPECTS[aspect]
    return Difference(kind, aspect, tuple(sorted(odd)), by, usual, strange, shift)


def unlike_most(values: Mapping[M, Hashable]) -> list[M]:
    """The members that have another value than most; all where nothing shows which are wrong, none where all agree."""
    difference = who_differs([Event(who, 0, Call(sizes=value)) for who, value in values.items()])
    return list(difference.odd) if difference is not None else []


def _value(event: Event[M], aspect: str) -> Hashable:
    value: Hashable = event.number if aspect == "number" else getattr(event.call, aspect)
    return value


def _vote(values: Mapping[M, Hashable], known: Known[M]) -> tuple[list[M], By]:
    """The members that are wrong, and what shows it."""
    voted = vote(Counter(values.values()))
    minority = [who for who, value in values.items() if value != voted.usual]
    if voted.most:
        return minority, By.VOTE
    unsteady = [who for who in values if not (known.steady or {}).get(who, False)]
    if known.steady and 0 < len(unsteady) < len(values):
        return unsteady, By.HISTORY
    lawless = [who for who in values if who in known.lawless]
    if 0 < len(lawless) < len(values):
        return lawless, By.LAW
    if voted.clear:
        return minority, By.VOTE
    if known.named and (named := vote(known.named)).clear:
        return [named.usual], By.REPORT
    return list(values), By.NOTHING


def shift_of(usual: Sequence[Hashable], odd: Sequence[Sequence[Hashable]]) -> int:
    """The number of calls by which all odd members are ahead of a usual one (they left out that many), negative if they
    are behind it; 0 where the later calls agree without a shift. None in a sequence: a call that is not known."""
    if any(_agrees(usual[1:], calls[1:], 0, 1, several=False) for calls in odd):
        return 0
    for shift in (sign * size for size in range(1, COLLECTIVES.most_shift + 1) for sign in (1, -1)):
        if all(_agrees(usual, calls, shift, COLLECTIVES.calls_after_shift, several=True) for calls in odd):
            return shift
    return 0


def _agrees(usual: Sequence[Hashable], odd: Sequence[Hashable], shift: int, least: int, several: bool) -> bool:
    theirs, ours = (usual[shift:], odd) if shift > 0 else (usual, odd[-shift:])
    agreed = set()
    count = 0
    for left, right in zip(theirs, ours, strict=False):
        if left is None or right is None:
            continue
        if left != right:
            return False
        count += 1
        agreed.add(left)
    # A sequence of equal calls agrees with itself at any shift.
    return count >= least and (not several or len(agreed) > 1)
