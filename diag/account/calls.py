"""The table ``calls``: each rank's collectives, sends and receives as columns, and the calls of all ranks matched.

A row of ``Calls`` is a ``CollectiveCall``, which is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from diag.collectors.records import RECV, SEND
from diag.model import UNKNOWN
from diag.model.keys import Key, Keys
from diag.model.parts import stored_once
from diag.model.ragged import entries_of, is_named, owners
from diag.model.steps import CollectiveCall
from diag.rundir.columns import Bools, Codes, Columns, Ints

CODED = ("group", "label", "op", "dtype")


class Group(NamedTuple):
    """As in ``CollectiveCall``: ``ranks`` is () and ``size`` 0 if unknown."""

    name: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Calls(Columns[CollectiveCall]):
    """The calls of one rank. ``group`` is a place in ``groups``; ``op``, ``dtype`` and ``label``, the last part of the
    key, are places in ``names``. UNKNOWN stands for None. ``wait_start_ns`` and ``wait_end_ns`` are ``waited_ns``."""

    group: Codes
    seq: Ints
    label: Codes
    op: Codes
    bytes: Ints
    dtype: Codes
    start_ns: Ints
    end_ns: Ints
    inferred: Bools
    wait_start_ns: Ints
    wait_end_ns: Ints
    sent_bytes: Ints
    received_bytes: Ints
    groups: tuple[Group, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, calls: Sequence[CollectiveCall]) -> Calls:
        """Of calls that are objects, in their order."""
        groups: dict[Group, int] = {}
        names: dict[str, int] = {}
        seen: dict[tuple[str, int, int], int] = {}
        group = []
        for call in calls:
            known = call.group, id(call.group_ranks), call.group_size  # hashing a thousand ranks a call is slow
            if known not in seen:
                here = Group(call.group, call.group_ranks, call.group_size)
                seen[known] = groups.setdefault(here, len(groups))
            group.append(seen[known])

        def coded(values: Sequence[str]) -> Codes:
            return np.array([names.setdefault(value, len(names)) for value in values], dtype=np.int32)

        def ints(values: Sequence[int | None]) -> Ints:
            return np.array([UNKNOWN if value is None else value for value in values], dtype=np.int64)

        return cls(
            group=np.array(group, dtype=np.int32),
            seq=ints([call.key[1] for call in calls]),
            label=coded([call.key[2] for call in calls]),
            op=coded([call.op for call in calls]),
            bytes=ints([call.bytes for call in calls]),
            dtype=coded([call.dtype for call in calls]),
            start_ns=ints([call.start_ns for call in calls]),
            end_ns=ints([call.end_ns for call in calls]),
            inferred=np.array([call.inferred for call in calls], dtype=np.bool_),
            wait_start_ns=ints([None if call.waited_ns is None else call.waited_ns[0] for call in calls]),
            wait_end_ns=ints([None if call.waited_ns is None else call.waited_ns[1] for call in calls]),
            sent_bytes=ints([call.sent_bytes for call in calls]),
            received_bytes=ints([call.received_bytes for call in calls]),
            groups=tuple(groups),
            names=tuple(names),
        )

    @classmethod
    def together(cls, several: Sequence[Calls]) -> Calls:
        """One after the other, as they are."""
        if len(several) < 2:
            return several[0] if several else cls.of(())
        groups: dict[Group, int] = {}
        names: dict[str, int] = {}
        columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in cls.columns()}
        for calls in several:
            codes = np.array([names.setdefault(name, len(names)) for name in calls.names], dtype=np.int32)
            of_groups = np.array([groups.setdefault(group, len(groups)) for group in calls.groups], dtype=np.int32)
            for name, parts in columns.items():
                column = getattr(calls, name)
                coded = of_groups if name == "group" else codes if name in CODED else None
                parts.append(column if coded is None or not len(column) else coded[column])
        together: dict[str, Any] = {name: stored_once(np.concatenate(parts)) for name, parts in columns.items()}
        return cls(**together, groups=tuple(groups), names=tuple(names))

    def __len__(self) -> int:
        return len(self.seq)

    @cached_property
    def objects(self) -> list[CollectiveCall]:
        """All calls. Made once: most of what is shown about a step goes through the calls in it."""
        return list(self._records(0, len(self)))

    @property
    def waited(self) -> Bools:
        """Whether it was recorded when a thread of the training was blocked in the call."""
        mask: Bools = self.wait_start_ns != UNKNOWN
        return mask

    def with_op(self, *ops: str) -> Bools:
        return is_named(self.op, self.names, *ops)

    def labelled(self, label: str) -> Bools:
        """Whether the last part of the key is this."""
        return is_named(self.label, self.names, label)

    @property
    def key_columns(self) -> Keys:
        names = tuple(group.name for group in self.groups)
        return Keys(self.group, self.seq, self.label + np.int32(len(names)), (*names, *self.names))

    def key(self, place: int) -> Key:
        return self.groups[self.group[place]].name, int(self.seq[place]), self.names[self.label[place]]

    def on_clock(self, clock: Callable[[Ints], Ints]) -> Calls:
        """The same calls with all their times mapped by ``clock``."""
        return replace(
            self,
            start_ns=clock(self.start_ns),
            end_ns=clock(self.end_ns),
            wait_start_ns=np.where(self.waited, clock(self.wait_start_ns), UNKNOWN),
            wait_end_ns=np.where(self.waited, clock(self.wait_end_ns), UNKNOWN),
        )

    def _records(self, first: int, last: int) -> Iterator[CollectiveCall]:
        at = slice(first, last)
        columns = (
            self.group[at], self.seq[at], self.label[at], self.op[at], self.bytes[at], self.dtype[at],
            self.start_ns[at], self.end_ns[at], self.inferred[at], self.wait_start_ns[at], self.wait_end_ns[at],
            self.sent_bytes[at], self.received_bytes[at],
        )  # fmt: skip
        names, groups = self.names, self.groups
        for group, seq, label, op, size, dtype, start, end, inferred, since, until, sent, received in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            name, ranks, members = groups[group]
            yield CollectiveCall(
                (name, seq, names[label]), names[op], name, ranks, size, start, end, inferred, names[dtype], members,
                None if since == UNKNOWN else (since, until),
                None if sent == UNKNOWN else sent, None if received == UNKNOWN else received,
            )  # fmt: skip


class Some(Sequence[CollectiveCall]):
    """Some calls of a rank, by their places."""

    __slots__ = ("calls", "places")

    def __init__(self, calls: Calls, places: Ints) -> None:
        self.calls, self.places = calls, places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[CollectiveCall]:
        objects = self.calls.objects
        return iter([objects[place] for place in self.places.tolist()])

    @overload
    def __getitem__(self, at: int) -> CollectiveCall: ...
    @overload
    def __getitem__(self, at: slice) -> Some: ...
    def __getitem__(self, at: int | slice) -> CollectiveCall | Some:
        if isinstance(at, slice):
            return Some(self.calls, self.places[at])
        return self.calls.objects[int(self.places[at])]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def calls_in(steps: Sequence[Sequence[CollectiveCall]]) -> tuple[Calls, list[Ints]]:
    """The calls of a rank's steps, each once, though a call may be listed in two steps; and their places in each
    step."""
    some = [step for step in steps if isinstance(step, Some)]
    if some and len(some) == len(steps) and all(step.calls is some[0].calls for step in some):
        calls = some[0].calls
        listed, places = some_of(calls, np.concatenate([step.places for step in some]))
        return listed, np.split(places, np.cumsum([len(step) for step in some[:-1]]))
    place: dict[Key, int] = {}
    once: list[CollectiveCall] = []
    for step in steps:
        for call in step:
            if call.key not in place:
                place[call.key] = len(once)
                once.append(call)
    return Calls.of(once), [np.array([place[call.key] for call in step], dtype=np.int64) for step in steps]


def some_of(calls: Calls, places: Ints) -> tuple[Calls, Ints]:
    """Those of the calls that are at some of these places, and the places among them."""
    listed = np.zeros(len(calls), dtype=np.bool_)
    listed[places] = True
    return (calls, places) if listed.all() else (calls.take(listed), (np.cumsum(listed) - 1)[places])


class Listed(NamedTuple):
    """Numbers of collectives by step: those of step i are ``edges[i]`` to ``edges[i + 1]`` of ``numbers``."""

    numbers: Ints
    edges: Ints

    def of(self, steps: Ints | slice) -> Listed:
        """Those of the steps at these places."""
        at, edges = entries_of(self.edges, steps)
        return Listed(self.numbers[at], edges)


class Matched(Mapping[Key, Mapping[int, CollectiveCall]]):
    """The collectives in which at least two ranks took part, numbered in the order of their first calls. Columns: the
    members of each collective one after the other, in the order of the ranks in ``calls``; those of collective ``c``
    are ``edges[c]`` to ``edges[c + 1]``. ``rank``: the member; ``place``: its call among the calls of its rank; ``at``:
    the same among the calls of all ranks, one rank after the other.

    As a mapping, the members by key."""

    def __init__(self, calls: Mapping[int, Calls]) -> None:
        self.calls = calls
        groups: dict[str, int] = {}
        labels: dict[str, int] = {}
        parts: list[list[Ints]] = []
        for of, own in calls.items():
            own_groups = np.array([groups.setdefault(each.name, len(groups)) for each in own.groups], dtype=np.int64)
            own_labels = np.array([labels.setdefault(name, len(labels)) for name in own.names], dtype=np.int64)
            if count := len(own):
                keys = own_groups[own.group], own.seq, own_labels[own.label]
                parts.append([np.full(count, of), np.arange(count), *keys])
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)] or [np.zeros(0, dtype=np.int64)] * 5
        order = np.lexsort((np.arange(len(columns[0])), *columns[:1:-1]))
        rank, place, group, seq, label = (column[order] for column in columns)
        opens = np.ones(len(rank), dtype=np.bool_)
        opens[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1]) | (label[1:] != label[:-1])
        once = opens.copy()  # a call that is listed twice counts once
        once[1:] |= rank[1:] != rank[:-1]
        number = np.cumsum(opens) - 1
        several = np.bincount(number[once], minlength=number[-1] + 1 if len(number) else 0) > 1
        kept = np.flatnonzero(once & several[number]) if len(number) else np.zeros(0, dtype=np.int64)
        first = np.flatnonzero(opens)[several] if len(number) else kept
        by_first = np.argsort(order[first], kind="stable")
        renumbered = np.zeros(len(several), dtype=np.int64)
        renumbered[np.flatnonzero(several)[by_first]] = np.arange(len(first))
        kept = kept[np.argsort(renumbered[number[kept]], kind="stable")]
        of_call = renumbered[number[kept]]
        self.rank, self.place, self.at = rank[kept], place[kept], order[kept]
        self.sizes: Ints = np.bincount(of_call, minlength=len(first))
        self.edges: Ints = np.concatenate(([0], np.cumsum(self.sizes)))
        self.group, self.seq, self.label = (column[first[by_first]] for column in (group, seq, label))
        self.group_names, self.labels = tuple(groups), tuple(labels)

    def only(self, numbers: Ints) -> Matched:
        """These collectives, in this order."""
        some = Matched({})
        some.calls, some.group_names, some.labels = self.calls, self.group_names, self.labels
        some.group, some.seq, some.label, some.sizes = (
            column[numbers] for column in (self.group, self.seq, self.label, self.sizes)
        )
        members, some.edges = entries_of(self.edges, numbers)
        some.rank, some.place, some.at = self.rank[members], self.place[members], self.at[members]
        return some

    def on_clocks(self, calls: Mapping[int, Calls]) -> Matched:
        """The same collectives of the same calls, with other times."""
        moved = copy(self)  # with all that was found out about them
        moved.calls = calls
        for of_times in ("start_ns", "end_ns"):
            vars(moved).pop(of_times, None)
        return moved

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of ``Calls`` for all members."""
        return self._gathered(lambda calls: getattr(calls, name))

    def _gathered(self, of: Callable[[Calls], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        columns = [of(calls) for calls in self.calls.values()]
        return np.concatenate(columns)[self.at] if columns else np.zeros(0, dtype=np.int64)

    @cached_property
    def of_member(self) -> Ints:
        """The number of each member's collective."""
        return owners(self.edges)

    @cached_property
    def by_rank(self) -> dict[int, Ints]:
        """Where the calls of each rank are among the members."""
        order = np.argsort(self.rank, kind="stable")
        ranks, first = np.unique(self.rank[order], return_index=True)
        edges = [*first.tolist(), len(order)]
        return {rank: order[edges[i] : edges[i + 1]] for i, rank in enumerate(ranks.tolist())}

    @cached_property
    def start_ns(self) -> Ints:
        return self.column("start_ns")

    @cached_property
    def end_ns(self) -> Ints:
        return self.column("end_ns")

    @cached_property
    def sent(self) -> Bools:
        """Whether the member sends."""
        return self._gathered(lambda calls: calls.with_op(SEND)).astype(np.bool_)

    @cached_property
    def pairs(self) -> Bools:
        """By collective: whether it is a send and its receive: the receiver waits for the sender, hardly ever the
        reverse."""
        received = self._gathered(lambda calls: calls.with_op(RECV)).astype(np.bool_)
        return self.all_of(self.sent | received) & self.any_of(self.sent) & self.any_of(received)

    @cached_property
    def handed_over(self) -> Bools:
        """By collective: whether it is a send and its receive, and no thread was blocked in the send."""
        blocked = self.sent & (self.column("wait_start_ns") != UNKNOWN)
        return self.pairs & ~self.any_of(blocked)

    def all_of(self, members: Bools) -> Bools:
        return np.logical_and.reduceat(members, self.edges[:-1]) if len(self) else members

    def any_of(self, members: Bools) -> Bools:
        return np.logical_or.reduceat(members, self.edges[:-1]) if len(self) else members

    def least(self, members: Ints) -> Ints:
        """By collective: the smallest value of its members."""
        return np.minimum.reduceat(members, self.edges[:-1]) if len(self) else members

    def most(self, members: Ints) -> Ints:
        return np.maximum.reduceat(members, self.edges[:-1]) if len(self) else members

    def labelled(self, *labels: str) -> Bools:
        """By collective: whether the last part of its key is one of these."""
        return is_named(self.label, self.labels, *labels)

    @cached_property
    def keys_of(self) -> list[Key]:
        """By number."""
        columns = zip(self.group.tolist(), self.seq.tolist(), self.label.tolist(), strict=True)
        return [(self.group_names[group], seq, self.labels[label]) for group, seq, label in columns]

    @cached_property
    def place_of_key(self) -> Ints:
        """By number: the place of its key among all keys in their order."""
        groups, labels = (
            np.argsort(sorted(range(len(names)), key=names.__getitem__)) for names in (self.group_names, self.labels)
        )
        place: Ints = np.argsort(np.lexsort((labels[self.label], self.seq, groups[self.group])))
        return place

    @cached_property
    def number(self) -> dict[Key, int]:
        return {key: number for number, key in enumerate(self.keys_of)}

    def numbers_of(self, rank: int) -> Ints:
        """For each call of a rank, the number of its collective; -1 where no other rank took part."""
        numbers = np.full(len(self.calls[rank]), -1)
        places = self.by_rank.get(rank, np.zeros(0, dtype=np.int64))
        numbers[self.place[places]] = self.of_member[places]
        return numbers

    def members(self, number: int) -> dict[int, CollectiveCall]:
        at = slice(self.edges[number], self.edges[number + 1])
        columns = zip(self.rank[at].tolist(), self.place[at].tolist(), strict=True)
        return {rank: self.calls[rank].objects[place] for rank, place in columns}

    def __getitem__(self, key: Key) -> dict[int, CollectiveCall]:
        return self.members(self.number[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.seq)
