"""The parts of every rank's steps as columns.

A row is a ``Parts``, which is made when it is asked for. Whatever goes through all rows takes the columns: a run of
64 ranks has 640,000 rows after 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from diag.model import UNKNOWN

from .steps import NO_IDLE, IdleParts, Parts, Stall

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_IDLE: Final = IdleParts.__struct_fields__


@dataclass(frozen=True, eq=False)
class PartColumns(Sequence[Parts]):
    """The columns are the fields of ``Parts``. ``source`` is a place in ``sources``; ``idle_parts`` has a column for
    each field of ``IdleParts``, [rows, 6]; ``stalls`` has the rows with stalls only."""

    rank: Ints
    source: npt.NDArray[np.int8]
    dur_ns: Ints
    compute_ns: Ints
    exposed_comm_ns: Ints
    exposed_copy_ns: Ints
    data_wait_ns: Ints
    checkpoint_ns: Ints
    idle_ns: Ints
    overlapped_comm_ns: Ints
    optimizer_ns: Ints
    exposed_wait_ns: Ints  # UNKNOWN for None, like the next
    exposed_transfer_ns: Ints
    hidden_known: Bools
    idle_parts: Ints
    fused_ns: Ints
    stalls: dict[int, tuple[Stall, ...]]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, parts: Sequence[Parts]) -> PartColumns:
        """Of parts that are objects, in their order."""
        sources = tuple(dict.fromkeys(each.source for each in parts))
        columns: dict[str, Any] = {
            name: np.array([getattr(each, name) for each in parts], dtype=np.int64)
            for name in _COLUMNS
            if name not in ("source", "hidden_known", "idle_parts", "exposed_wait_ns", "exposed_transfer_ns")
        }
        for name in ("exposed_wait_ns", "exposed_transfer_ns"):
            values = (getattr(each, name) for each in parts)
            columns[name] = np.array([UNKNOWN if value is None else value for value in values], dtype=np.int64)
        return cls(
            **columns,
            source=np.array([sources.index(each.source) for each in parts], dtype=np.int8),
            hidden_known=np.array([each.hidden_known for each in parts], dtype=np.bool_),
            idle_parts=np.array(
                [[getattr(each.idle_parts, name) for name in _IDLE] for each in parts], dtype=np.int64
            ).reshape(len(parts), len(_IDLE)),
            stalls={at: each.stalls for at, each in enumerate(parts) if each.stalls},
            sources=sources,
        )

    @classmethod
    def joined(cls, several: Sequence[PartColumns]) -> PartColumns:
        """The rows of all of them, one after the other."""
        if len(several) < 2:
            return several[0] if several else cls.of(())
        sources = tuple(dict.fromkeys(name for each in several for name in each.sources))
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in several]) for name in _COLUMNS if name != "source"
        }
        codes = [np.array([sources.index(name) for name in each.sources], dtype=np.int8) for each in several]
        source = [code[each.source] for code, each in zip(codes, several, strict=True) if len(each)]
        first = np.cumsum([0, *map(len, several)]).tolist()
        return cls(
            **columns,
            source=np.concatenate(source) if source else np.zeros(0, dtype=np.int8),
            stalls={
                begin + at: of_step
                for begin, each in zip(first, several, strict=False)
                for at, of_step in each.stalls.items()
            },
            sources=sources,
        )

    def take(self, places: Ints | Bools | slice) -> PartColumns:
        """The rows at these places, in this order; of a slice, views of them."""
        if isinstance(places, slice):
            first, last, _ = places.indices(len(self))
            cut: dict[str, Any] = {name: getattr(self, name)[first:last] for name in _COLUMNS}
            inside = {at - first: of_row for at, of_row in self.stalls.items() if first <= at < last}
            return PartColumns(**cut, stalls=inside, sources=self.sources)
        if places.dtype == np.bool_:
            places = np.flatnonzero(places)
        columns: dict[str, Any] = {name: stored_once(getattr(self, name)[places]) for name in _COLUMNS}
        stalls = {}
        if self.stalls:
            stalls = {at: self.stalls[place] for at, place in enumerate(places.tolist()) if place in self.stalls}
        return PartColumns(**columns, stalls=stalls, sources=self.sources)

    def column(self, field: str) -> Ints:
        """A field in nanoseconds; "idle_parts.queued_ns" and "idle_parts.by_host_ns" as well."""
        name, _, inside = field.partition(".")
        values: Ints = getattr(self, name)
        if not inside:
            return values
        by_name: dict[str, Ints] = dict(zip(_IDLE, values.T, strict=True))
        if inside == "by_host_ns":
            return by_name["not_launched_ns"] + by_name["in_launch_ns"] + by_name["host_call_ns"]
        return by_name[inside]

    def from_source(self, source: str) -> Bools:
        """Whether a row comes from this source: "trace", "records" or "events"."""
        if source not in self.sources:
            return np.zeros(len(self), dtype=np.bool_)
        mask: Bools = self.source == self.sources.index(source)
        return mask

    def __len__(self) -> int:
        return len(self.rank)

    def __iter__(self) -> Iterator[Parts]:
        return self.records(0, len(self))

    @overload
    def __getitem__(self, place: int) -> Parts: ...
    @overload
    def __getitem__(self, place: slice) -> PartRows: ...
    def __getitem__(self, place: int | slice) -> Parts | PartRows:
        if isinstance(place, slice):
            return PartRows(self, range(len(self))[place])
        at = range(len(self))[place]
        return next(self.records(at, at + 1))

    def records(self, first: int, last: int) -> Iterator[Parts]:
        """The rows from ``first`` to before ``last``."""
        at = slice(first, last)
        known = self.exposed_wait_ns[at] != UNKNOWN
        waits, transfers = (
            [value if is_known else None for value, is_known in zip(column[at].tolist(), known.tolist(), strict=True)]
            for column in (self.exposed_wait_ns, self.exposed_transfer_ns)
        )
        idle = [IdleParts(*row) if any(row) else NO_IDLE for row in self.idle_parts[at].tolist()]
        stalls = [self.stalls.get(place, ()) for place in range(first, last)] if self.stalls else [()] * len(idle)
        columns = (
            self.rank[at].tolist(), [self.sources[code] for code in self.source[at].tolist()], self.dur_ns[at].tolist(),
            self.compute_ns[at].tolist(), self.exposed_comm_ns[at].tolist(), self.exposed_copy_ns[at].tolist(),
            self.data_wait_ns[at].tolist(), self.checkpoint_ns[at].tolist(), self.idle_ns[at].tolist(),
            self.overlapped_comm_ns[at].tolist(), self.optimizer_ns[at].tolist(), waits, transfers,
            self.hidden_known[at].tolist(), idle, stalls, self.fused_ns[at].tolist(),
        )  # fmt: skip
        return starmap(Parts, zip(*columns, strict=True))


def stored_once(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same column; its value once if all are the same."""
    if len(column) > 1 and ((column == column[:1]).all() or (column.dtype.kind == "f" and np.isnan(column).all())):
        return repeated(column[:1], len(column))
    return column


def repeated(row: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """A column with so many times its only row, stored once: ``np.broadcast_to`` takes twice as long."""
    row = row.copy()
    column: npt.NDArray[Any] = np.ndarray((count, *row.shape[1:]), row.dtype, row, 0, (0, *row.strides[1:]))
    column.flags.writeable = False
    return column


_COLUMNS: Final = tuple(field.name for field in fields(PartColumns) if field.name not in ("stalls", "sources"))


class PartRows(Sequence[Parts]):
    """Some rows of ``PartColumns`` that follow each other: those of a step."""

    __slots__ = ("columns", "places")

    def __init__(self, columns: PartColumns, places: range) -> None:
        self.columns, self.places = columns, places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Parts]:
        return self.columns.records(self.places.start, self.places.stop)

    @overload
    def __getitem__(self, at: int) -> Parts: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Parts, ...]: ...
    def __getitem__(self, at: int | slice) -> Parts | tuple[Parts, ...]:
        return tuple(self)[at] if isinstance(at, slice) else self.columns[self.places[at]]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
