"""Who is behind: the members at which the chains of waiting end.

A member waits, in each of its pending calls, for the members that have not made it; where all have, for those that are
held up by an earlier call of their own. In a program that does not block itself, every member's calls fit one common
order, and such a wait always leads to something earlier in it. So the chains end: at a member that others wait for and
that waits for nothing (it is stuck in its program, or is gone), at one whose device stopped, or at one of which nothing
was read. A member that is late in one group because it waits in another is passed through and never a culprit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from diag.events.differs import Kind
from diag.events.operations import needs_all
from diag.events.policy import COLLECTIVES
from diag.events.rows import Did, Event, M
from diag.events.vote import vote

O = TypeVar("O")  # noqa: E741 -- what a source records of a call

# -- Pending calls, each once, with all members that wait in it --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingCall(Generic[M, O]):
    """A collective, send or receive in which members wait. ``others``: all members that must take part, with the
    waiters. ``held_up``: waiters that are still in an earlier call of their own. ``finished``: members that have
    completed it. ``stops``: the waiters did not finish what their peers could not finish without them. ``comes_first``:
    of a pair, the waiter waits in nothing else before it."""

    op: O
    key: Hashable
    waiters: tuple[M, ...]
    others: tuple[M, ...]
    missing: tuple[M, ...] = ()  # members that have not made it
    unknown: tuple[M, ...] = ()  # members of which nothing was read: they may not have made it
    held_up: tuple[M, ...] = ()
    finished: tuple[M, ...] = ()
    pair: bool = False
    stops: bool = False
    comes_first: bool = True


def pending_calls(
    events: Iterable[Event[M]],
    members: Mapping[Hashable, Collection[M]],
    op_of: Callable[[Event[M]], O],
    order: Mapping[M, Sequence[Hashable]],
    read: Collection[M] | None = None,
) -> list[PendingCall[M, O]]:
    """The collectives in which a member waits, by group and number. A member without an event in a group has made no
    call of it. ``order``, ``read``: see ``who_is_behind``."""
    waiting: dict[tuple[Hashable, int], dict[M, Event[M]]] = defaultdict(dict)
    reached: dict[Hashable, dict[M, int]] = defaultdict(dict)
    for event in events:
        at = reached[event.group]
        at[event.who] = max(event.number, at.get(event.who, event.number))
        if event.did is Did.WAITS:
            waiting[event.group, event.number].setdefault(event.who, event)
    calls: list[PendingCall[M, O]] = []
    followed: dict[Hashable, int] = defaultdict(int)
    for key in sorted(waiting, key=lambda key: (str(key[0]), key[1])):
        group, number = key
        followed[group] += 1
        if followed[group] > COLLECTIVES.pending_followed:
            continue
        waiters, at = waiting[key], reached[group]
        everybody = members.get(group, ())
        known = [member for member in everybody if read is None or member in read]
        missing = tuple(member for member in known if member not in at or at[member] < number)
        absent = set(missing)
        finished = tuple(member for member in known if member not in waiters and member not in absent)
        event = next(iter(waiters.values()))
        for_all = needs_all(event.call.op)
        # Where a member has finished a call that needs all members, all have made it.
        unknown = () if (finished and for_all) or read is None else tuple(m for m in everybody if m not in read)
        # At most half of the members stop: with more, those that finished would be the odd ones.
        whole = len(waiters) + len(finished) == len(everybody)
        calls.append(
            PendingCall(
                op_of(event),
                key,
                tuple(waiters),
                tuple(everybody),
                missing,
                unknown,
                tuple(member for member in waiters if order[member][0] != key),
                finished,
                stops=whole and for_all and len(finished) >= len(waiters),
            )
        )
    return calls


@dataclass(frozen=True, slots=True)
class Waits(Generic[M, O]):
    """``absent``: members that others wait for and that wait for nothing. ``stopped``: members with calls that they
    have not finished and their peers have. ``silent``: members that others wait for and of which nothing was read.
    ``circle``: members that wait for each other and for nobody else, if none of these is there. ``stuck``: calls that
    all members have made and none has finished. ``late``: members that are behind, which their own waiting does not
    explain."""

    stopped: Mapping[M, tuple[O, ...]]
    absent: tuple[M, ...]
    silent: tuple[M, ...]
    circle: tuple[M, ...]
    stuck: tuple[O, ...]
    late: tuple[M, ...]
    waited_for: Mapping[M, tuple[PendingCall[M, O], ...]]
    pending_calls: tuple[PendingCall[M, O], ...]

    @property
    def roots(self) -> tuple[M, ...]:
        return tuple(sorted({*self.stopped, *self.absent}))

    def awaited(self) -> dict[M, tuple[M, ...]]:
        """By member that waits, the members that have not made its calls."""
        calls: dict[M, list[tuple[M, ...]]] = defaultdict(list)
        for call in self.pending_calls:
            late = tuple(sorted((*call.missing, *call.unknown)))
            for member in call.waiters:
                calls[member].append(late)
        return {
            member: late[0] if len(late) == 1 else tuple(sorted(set().union(*late))) for member, late in calls.items()
        }


def who_is_behind(
    calls: Sequence[PendingCall[M, O]],
    order: Mapping[M, Sequence[Hashable]],
    read: Collection[M] | None = None,
) -> Waits[M, O]:
    """All waits, and where their chains end. ``order``: keys of each member's pending calls in the order in which it
    made them. ``read``: members of which something was read; None where all are known."""
    stopped = _stopped(calls)
    waited_for: dict[M, list[PendingCall[M, O]]] = defaultdict(list)
    silent: set[M] = set()
    stuck: list[O] = []
    targets: dict[M, list[int]] = {}  # member -> numbers of its pending calls
    of_call: list[tuple[M, ...]] = []
    for call in calls:
        waiters = [member for member in call.waiters if member not in stopped]
        if not waiters:
            continue
        late = dict.fromkeys((*call.missing, *(member for member in stopped if member in call.others)))
        for member in waiters:
            targets.setdefault(member, []).append(len(of_call))
        of_call.append((*late, *call.held_up))
        for member in late:
            waited_for[member].append(call)
        if late or call.held_up:
            continue
        silent.update(call.unknown)
        for member in call.unknown:
            waited_for[member].append(call)
        if not call.unknown and (not call.pair or call.comes_first):
            stuck.append(call.op)
    absent = tuple(
        sorted(member for member in waited_for if (read is None or member in read) and not order.get(member))
    )
    needed = {member: ops for member, ops in stopped.items() if waited_for.get(member)} or stopped
    roots = {*needed, *absent, *silent}
    return Waits(
        stopped=needed,
        absent=absent,
        silent=tuple(sorted(silent)),
        circle=() if roots or stuck else circle(targets, of_call),
        stuck=tuple(stuck),
        late=_late(calls, order, roots),
        waited_for={member: tuple(its_calls) for member, its_calls in waited_for.items()},
        pending_calls=tuple(calls),
    )


def waits_of(events: Sequence[Event[M]], members: Mapping[Hashable, Collection[M]]) -> Waits[M, Event[M]]:
    """``who_is_behind`` for events in the order of each member's calls, where something was read of all members."""
    order: dict[M, list[Hashable]] = defaultdict(list)
    for event in events:
        if event.did is Did.WAITS:
            order[event.who].append((event.group, event.number))
    return who_is_behind(pending_calls(events, members, lambda event: event, order), order)


def _stopped(calls: Sequence[PendingCall[M, O]]) -> dict[M, tuple[O, ...]]:
    """Members with pending calls that others finished, though these cannot finish without them: their device, or the
    thread that watches it, stopped."""
    stopped: dict[M, list[O]] = defaultdict(list)
    for call in calls:
        for member in call.waiters if call.stops else ():
            stopped[member].append(call.op)
    return {member: tuple(ops) for member, ops in stopped.items()}


def _late(calls: Sequence[PendingCall[M, O]], order: Mapping[M, Sequence[Hashable]], roots: set[M]) -> tuple[M, ...]:
    """Members that have not made a call that a peer has made, though the peer waits in all calls in which they wait.
    That waiting did not keep the peer from making the call, so it does not explain why they are late. Holds where the
    members run one program and block in the same places; a rank that alone reads the loss back would look the same."""
    pending = {member: set(keys) for member, keys in order.items()}
    place = {(member, key): at for member, keys in order.items() for at, key in enumerate(keys)}
    in_pairs = {member for call in calls if call.pair for member in call.waiters}
    late: set[M] = set()
    for call in calls:
        if call.pair:
            continue
        candidates = [
            member
            for member in call.missing
            if member not in roots and member not in in_pairs and member not in late and pending.get(member)
        ]
        for member in candidates:
            for waiter in call.waiters[:8]:
                if pending[member] <= set(order[waiter][: place[waiter, call.key]]):
                    late.add(member)
                    break
    return tuple(sorted(late))


# -- Circles: members that wait for each other -------------------------------------------------------------------------


def circle(calls_of: Mapping[M, Sequence[int]], members_of: Sequence[tuple[M, ...]]) -> tuple[M, ...]:
    """The members of a circle that waits for nobody outside of it; empty where there is none.

    ``calls_of``: by member, the calls in which it waits; ``members_of``: by call, the members that it waits for. The
    member that a search against the waits finishes last lies in a component without outgoing waits (Kosaraju).
    """
    waits_of: dict[int, list[M]] = {}  # call -> members waiting in it
    waited_in: dict[M, list[int]] = {}  # member -> pending calls that wait for it
    for member, calls in calls_of.items():
        for call in calls:
            waits_of.setdefault(call, []).append(member)
    for call, members in enumerate(members_of):
        for member in members:
            waited_in.setdefault(member, []).append(call)
    last: M | None = None
    seen: set[M] = set()
    for start in calls_of:
        if start not in seen:
            last = start
            _visit(start, waited_in, waits_of, seen)
    if last is None:
        return ()
    ring: set[M] = set()
    _visit(last, calls_of, dict(enumerate(members_of)), ring, include_start=False)
    return tuple(sorted(ring)) if last in ring else ()


def _visit(
    start: M,
    first: Mapping[M, Sequence[int]],
    second: Mapping[int, Sequence[M]],
    seen: set[M],
    include_start: bool = True,
) -> None:
    """Adds to ``seen`` every member that is reached through one mapping and then the other."""
    if include_start:
        seen.add(start)
    left, passed = [start], set[int]()
    while left:
        for call in first.get(left.pop(), ()):
            if call in passed:
                continue
            passed.add(call)
            for member in second.get(call, ()):
                if member not in seen:
                    seen.add(member)
                    left.append(member)


# -- Counters of calls: how far each member is, though not what it waits in --------------------------------------------

Counts = tuple[int, ...]  # of each operation, or of all together


@dataclass(frozen=True, slots=True)
class Uneven(Generic[M]):
    """Members whose counters differ from the usual ones. ``crossed``: they made more calls of one operation and fewer
    of another, so they made other calls; ``kind``: whether instead of the usual ones, as many in all. Without such:
    ``behind``, those that are furthest behind. What few have made in addition (``ahead``), all others have not: then
    these are behind, however many they are."""

    behind: tuple[M, ...] = ()
    ahead: tuple[M, ...] = ()
    crossed: tuple[M, ...] = ()
    kind: Kind | None = None


def usual_counts(counts: Iterable[Counts]) -> Counts:
    """The most frequent ones; if equally frequent, the greatest."""
    votes = Counter(counts)
    return vote({its: votes[its] for its in sorted(votes, key=sum, reverse=True)}).usual


def uneven(differs: Mapping[M, Collection[int]], members: Iterable[M]) -> Uneven[M]:
    """``differs``: for members with other counters than the usual ones, how far each counter differs."""
    crossed = tuple(member for member, apart in differs.items() if min(apart) < 0 < max(apart))
    if crossed:
        even = all(sum(differs[member]) == 0 for member in crossed)
        return Uneven(crossed=crossed, kind=Kind.OPERATION if even else Kind.NUMBER)
    below = {member: sum(apart) for member, apart in differs.items() if max(apart) <= 0}
    if below:
        least = min(below.values())
        return Uneven(tuple(member for member, apart in below.items() if apart == least))
    return Uneven(tuple(member for member in members if member not in differs), tuple(differs))


def uneven_counters(counters: Mapping[M, int]) -> Uneven[M] | None:
    """Of one counter of each member; None where all are even."""
    (usual,) = usual_counts((number,) for number in counters.values())
    differs = {member: [number - usual] for member, number in counters.items() if number != usual}
    return uneven(differs, counters) if differs else None
