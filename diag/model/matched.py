"""The table ``meetings``: collectives that were matched across their ranks, as columns.

A row is a ``MatchedCollective``, which is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from .keys import Keys, names_joined
from .parts import Bools, Ints
from .ragged import edges_of, entries_of, is_named, owners
from .steps import MatchedCollective

Codes = npt.NDArray[np.int32]  # places in ``names``


@dataclass(frozen=True, eq=False)
class MatchedCollectives(Sequence[MatchedCollective]):
    """The columns are the fields of ``MatchedCollective``. ``group``, ``seq`` and ``label`` are its ``key``; they and
    ``op`` are places in ``names``. The members of collective i are ``edges[i]`` to ``edges[i + 1]`` of the last four
    columns: ``rank``, ``wait_ns``, ``tail_ns`` and ``size``, in the order of the ranks."""

    step: Ints
    group: Codes
    seq: Ints
    label: Codes
    op: Codes
    bytes: Ints
    last_arriver: Ints
    arrival_ns: Ints
    transfer_ns: Ints
    complete: Bools
    inferred: Bools
    edges: Ints
    rank: Ints
    wait_ns: Ints
    tail_ns: Ints
    size: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, collectives: Sequence[MatchedCollective]) -> MatchedCollectives:
        if isinstance(collectives, MatchedCollectives):
            return collectives
        codes: dict[str, int] = {}

        def coded(names: Sequence[str]) -> Codes:
            return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)

        def members(field: str) -> Ints:
            return np.array([value for met in collectives for value in getattr(met, field)], dtype=np.int64)

        numbers: dict[str, Any] = {
            name: np.array([getattr(met, name) for met in collectives], dtype=np.bool_ if name in _FLAGS else np.int64)
            for name in ("step", "bytes", "last_arriver", "arrival_ns", "transfer_ns", *_FLAGS)
        }
        return cls(
            **numbers,
            group=coded([met.key[0] for met in collectives]),
            seq=np.array([met.key[1] for met in collectives], dtype=np.int64),
            label=coded([met.key[2] for met in collectives]),
            op=coded([met.op for met in collectives]),
            edges=edges_of([len(met.ranks) for met in collectives]),
            rank=members("ranks"),
            wait_ns=members("wait_ns"),
            tail_ns=members("tail_ns"),
            size=np.array([size for met in collectives for size in met.sizes or (0,) * len(met.ranks)], dtype=np.int64),
            names=tuple(codes),
        )

    @classmethod
    def joined(cls, several: Sequence[MatchedCollectives]) -> MatchedCollectives:
        """One after the other."""
        several = [each for each in several if len(each)] or several[:1]
        if len(several) < 2:
            return several[0] if several else NO_COLLECTIVES
        own, names = names_joined([each.names for each in several])
        columns: dict[str, Any] = {
            name: np.concatenate(
                [
                    code[getattr(each, name)] if name in _NAMED else getattr(each, name)
                    for code, each in zip(own, several, strict=True)
                ]
            )
            for name in (*COLLECTIVE_COLUMNS, *MEMBER_COLUMNS)
        }
        edges = edges_of(np.concatenate([each.sizes for each in several]))
        return cls(**columns, edges=edges, names=names)

    def take(self, places: Ints | Bools | slice) -> Self:
        """The collectives at these places, or those for which a mask is true."""
        if isinstance(places, slice):
            chosen: Ints | slice = places
        elif places.dtype == np.bool_ and places.all():
            return self
        else:
            chosen = np.flatnonzero(places) if places.dtype == np.bool_ else np.asarray(places, dtype=np.int64)
        at, edges = entries_of(self.edges, chosen)
        columns: dict[str, Any] = {name: getattr(self, name)[chosen] for name in COLLECTIVE_COLUMNS}
        members: dict[str, Any] = {name: getattr(self, name)[at] for name in MEMBER_COLUMNS}
        return replace(self, **columns, **members, edges=edges)

    def of_steps(self, numbers: Sequence[int] | frozenset[int] | set[int]) -> Self:
        """Those that began in these steps."""
        return self.take(np.isin(self.step, list(numbers)))

    def with_op(self, *ops: str) -> Bools:
        """Whether the operation is one of these."""
        return is_named(self.op, self.names, *ops)

    @property
    def ops(self) -> frozenset[str]:
        """The names of their operations."""
        return frozenset(self.names[code] for code in np.unique(self.op).tolist())

    def by(self, members: Ints, function: np.ufunc) -> Ints:
        """By collective: a reduction over its members, of which each has one or more."""
        reduced: Ints = function.reduceat(members, self.edges[:-1]) if len(self) else members[:0]
        return reduced

    @property
    def sizes(self) -> Ints:
        """By collective: how many members it has."""
        return np.diff(self.edges)

    @property
    def of_member(self) -> Ints:
        """The place of each member's collective."""
        return owners(self.edges)

    @cached_property
    def _teams(self) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
        sizes, ranks = self.sizes, np.ascontiguousarray(self.rank, dtype=np.int64)
        before = ranks[np.arange(len(ranks)) - np.repeat(sizes, sizes)]  # the same member of the one before, of a size
        differs = (np.diff(sizes, prepend=0) != 0) | self.by(before != ranks, np.logical_or)
        new, data, places = np.flatnonzero(differs), ranks.tobytes(), dict[bytes, int]()
        spans = zip((self.edges[new] * 8).tolist(), (self.edges[new + 1] * 8).tolist(), strict=True)
        team = np.array([places.setdefault(data[begin:end], len(places)) for begin, end in spans], dtype=np.int64)
        teams = tuple(tuple(np.frombuffer(each, dtype=np.int64).tolist()) for each in places)
        return np.repeat(team, np.diff(new, append=len(self))), teams

    @property
    def team(self) -> Ints:
        """The place of each collective's ``ranks`` in ``teams``."""
        return self._teams[0]

    @property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of the collectives, each list once."""
        return self._teams[1]

    @property
    def key_columns(self) -> Keys:
        return Keys(self.group, self.seq, self.label, self.names)

    def __len__(self) -> int:
        return len(self.step)

    def __iter__(self) -> Iterator[MatchedCollective]:
        edges, names, teams = self.edges.tolist(), self.names, self.teams
        wait, tail, size = (column.tolist() for column in (self.wait_ns, self.tail_ns, self.size))
        columns = (
            self.step, self.op, self.bytes, self.team, self.last_arriver, self.arrival_ns, self.transfer_ns,
            self.complete, self.inferred,
        )  # fmt: skip
        for key, i, j, (step, op, of_bytes, team, last, arrival, transfer, complete, inferred) in zip(
            self.key_columns.keys(),
            edges[:-1],
            edges[1:],
            zip(*(column.tolist() for column in columns), strict=True),
            strict=True,
        ):
            yield MatchedCollective(
                step, key, names[op], of_bytes, teams[team], last, arrival, transfer, tuple(wait[i:j]),
                tuple(tail[i:j]), complete, inferred, tuple(size[i:j]),
            )  # fmt: skip

    @overload
    def __getitem__(self, place: int) -> MatchedCollective: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> MatchedCollective | Self:
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        at = range(len(self))[place]
        return next(iter(self.take(slice(at, at + 1))))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


_FLAGS = ("complete", "inferred")
_NAMED = ("group", "label", "op")
MEMBER_COLUMNS = ("rank", "wait_ns", "tail_ns", "size")
COLLECTIVE_COLUMNS = (
    "step", "group", "seq", "label", "op", "bytes", "last_arriver", "arrival_ns", "transfer_ns", "complete", "inferred",
)  # fmt: skip
NO_COLLECTIVES = MatchedCollectives.of(())
