"""The steps and collectives of one rank as columns of numpy.

Both are sequences of the records that the files hold: a record is made when it is asked for. Whatever goes through all
of them takes the columns, which cost a tenth of the records in time and in memory. Columns are read only: one that has
the same value everywhere stores it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from itertools import chain, islice, pairwise, starmap
from operator import attrgetter
from typing import Any, Final, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from diag.collectors.layout import MOST_NS
from diag.collectors.records import (
    CollectiveLine,
    CollectiveRow,
    LoaderQueue,
    MemoryRecord,
    PhaseRow,
    StepRecord,
)
from diag.model import UNKNOWN, HugeError
from diag.model.parts import repeated, stored_once
from diag.model.ragged import edges_of, entries_of, is_named, owners, places_from

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]  # places in ``names``
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]
Places = npt.NDArray[Any] | slice  # of records, or a mask of them

_AT_ONCE = 4_096  # records that an iteration makes together

T = TypeVar("T")


class Columns(Sequence[T]):
    """Each field but ``names`` is a column: an array with a row for each record, or ``Ragged``."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    @cache
    def columns(cls) -> tuple[str, ...]:
        every = fields(cls)  # type: ignore[arg-type]
        return tuple(column.name for column in every if column.name not in ("names", "groups"))

    def take(self, places: Places) -> Self:
        """The records at these places, of a slice, or those for which a mask is true; mostly all of them."""
        if isinstance(places, slice):
            if places.indices(len(self)) == (0, len(self), 1):
                return self
        elif places.dtype == np.bool_:
            if places.all():
                return self
            places = np.flatnonzero(places)
        elif len(places) == len(self) and (places == np.arange(len(places))).all():
            return self
        taken = {name: _taken(getattr(self, name), places) for name in self.columns()}
        return replace(self, **taken)  # type: ignore[type-var]

    def sorted_by(self, name: str) -> Self:
        """The records in the order of a column. Most are in it already."""
        column = getattr(self, name)
        return self if (column[1:] >= column[:-1]).all() else self.take(np.argsort(column, kind="stable"))

    def _records(self, first: int, last: int) -> Iterator[T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self._records(first, min(first + _AT_ONCE, len(self)))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> T | Self:
        if isinstance(place, slice):
            return self.take(place)
        at = range(len(self))[place]
        return next(self._records(at, at + 1))

    def __eq__(self, other: object) -> bool:
        """With any sequence of the same records."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == others for own, others in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Columns[CollectiveRow]):
    """The collectives of a rank, in the order of its file. The columns are the fields of ``CollectiveRow``; ``step`` is
    the step in which each began. ``group``, ``op`` and ``dtype`` are places in ``names``."""

    step: Ints
    group: Codes
    seq: Ints
    op: Codes
    bytes: Ints
    dtype: Codes
    start_ns: Ints
    end_ns: Ints  # UNKNOWN for None, like the next two, and ``received_bytes``
    wait_start_ns: Ints
    wait_end_ns: Ints
    whole: Bools
    received_bytes: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[CollectiveRow], steps: Sequence[int] = ()) -> Rows:
        """``steps``: of each row; UNKNOWN without them."""
        if isinstance(rows, Rows):
            return rows
        builder = RowsBuilder()
        builder.add(rows, np.array(steps or [UNKNOWN] * len(rows), dtype=np.int64))
        return builder.built()

    @classmethod
    def joined(cls, several: Sequence[Rows]) -> Rows:
        """One after the other, with the names that occur in them."""
        codes: dict[str, int] = {}
        columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in cls.columns()}
        for rows in several:
            used = np.unique(np.concatenate([rows.group, rows.op, rows.dtype])).tolist()
            own = np.zeros(len(rows.names), dtype=np.int32)
            own[used] = [codes.setdefault(rows.names[code], len(codes)) for code in used]
            for name, parts in columns.items():
                column = getattr(rows, name)
                parts.append(own[column] if name in ("group", "op", "dtype") else column)
        together: dict[str, Any] = {name: stored_once(np.concatenate(parts)) for name, parts in columns.items()}
        return cls(**together, names=tuple(codes))

    @property
    def waited(self) -> Bools:
        """Whether a thread of the training waited for the collective."""
        mask: Bools = (self.wait_start_ns != UNKNOWN) & (self.wait_end_ns != UNKNOWN)
        return mask

    def of_groups(self, prefix: str) -> Bools:
        """Whether the name of the group begins so."""
        begins = np.array([name.startswith(prefix) for name in self.names], dtype=np.bool_)
        mask: Bools = begins[self.group] if len(begins) else np.zeros(len(self), dtype=np.bool_)
        return mask

    def __len__(self) -> int:
        return len(self.step)

    def _records(self, first: int, last: int) -> Iterator[CollectiveRow]:
        at = slice(first, last)
        columns = (
            _named(self.group[at], self.names),
            self.seq[at].tolist(),
            _named(self.op[at], self.names),
            self.bytes[at].tolist(),
            _named(self.dtype[at], self.names),
            self.start_ns[at].tolist(),
            _optional(self.end_ns[at]),
            _optional(self.wait_start_ns[at]),
            _optional(self.wait_end_ns[at]),
            self.whole[at].tolist(),
            _optional(self.received_bytes[at]),
        )
        return starmap(CollectiveRow, zip(*columns, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Any number of entries for each record: those of record i are ``first[i]`` to ``first[i + 1]`` of the other
    columns. ``name``: places in the records' ``names``; only zeros where entries have none."""

    first: Ints
    name: Codes
    left: Ints
    right: Ints

    @property
    def owner(self) -> Ints:
        """The place of each entry's record."""
        return owners(self.first)

    def take(self, places: Ints | slice) -> Ragged:
        entries, first = entries_of(self.first, places)
        columns = (_taken(column, entries) for column in (self.name, self.left, self.right))
        return Ragged(first, *columns)

    def entries(self, first: int, last: int, names: tuple[str, ...]) -> Iterator[list[tuple[str, int, int]]]:
        """Of each record from ``first`` on: (name, left, right)."""
        edges = self.first[first : last + 1].tolist()
        at = slice(edges[0], edges[-1])
        name = _named(self.name[at], names) if names else [""] * (edges[-1] - edges[0])
        every = list(zip(name, self.left[at].tolist(), self.right[at].tolist(), strict=True))
        return (every[begin - edges[0] : end - edges[0]] for begin, end in pairwise(edges))


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Columns[StepRecord]):
    """The steps of a rank. The columns are the fields of ``StepRecord``. ``window``, and the names of ``phases`` and
    ``cpu``, are places in ``names``. ``left`` and ``right`` are begin and end in ``phases`` and ``gc``, the time on a
    core and the time queued for one in ``cpu``. ``memory`` and ``queue`` have a row for each step, with the fields of
    MemoryRecord and LoaderQueue; the first is UNKNOWN where there is no record."""

    step: Ints
    begin_ns: Ints
    end_ns: Ints
    phases: Ragged
    window: Codes
    micro_batches: Ints
    tokens: Ints
    loss: Floats  # NaN for None
    gc: Ragged
    memory: Ints
    on_cpu_ns: Ints  # UNKNOWN for None, like the next
    queued_ns: Ints
    cpu: Ragged
    held: Objects
    queue: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> Steps:
        if isinstance(records, Steps):
            return records
        builder = StepsBuilder()
        builder.add(records)
        return builder.built()

    @property
    def numbers(self) -> set[int]:
        return set(self.step.tolist())

    def places_of(self, numbers: npt.ArrayLike) -> Ints:
        """The places of the steps of these numbers, which are all recorded. Of several steps of one number, the
        last."""
        order = np.argsort(self.step, kind="stable")
        places: Ints = order[np.searchsorted(self.step, numbers, side="right", sorter=order) - 1]
        return places

    def of_numbers(self, numbers: Collection[int]) -> Steps:
        """The steps of these numbers."""
        return self.take(np.isin(self.step, np.fromiter(numbers, np.int64, len(numbers))))

    def of_spans(self, spans: Sequence[tuple[int, int]]) -> Steps:
        """The steps from the first to before the second number of each span. They are in the order of their numbers:
        the cost does not depend on the others."""
        first, last = np.searchsorted(self.step, np.array(spans, dtype=np.int64).reshape(-1, 2)).T
        return self.take(slice(first[0], last[0]) if len(spans) == 1 else places_from(first, last - first))

    def codes(self, names: Sequence[str], otherwise: int = -1) -> Ints:
        """For each of the ``names`` of the steps, its index in these."""
        return np.array([names.index(name) if name in names else otherwise for name in self.names], dtype=np.int64)

    def in_phases(self, *phases: str) -> Bools:
        """Whether an entry of ``phases`` is one of these."""
        return self.codes(phases)[self.phases.name] >= 0

    def with_phase(self, phase: str) -> Bools:
        """Whether a step has this phase."""
        return np.bincount(self.phases.owner[self.in_phases(phase)], minlength=len(self)) > 0

    def spent_ns(self, *phases: str) -> Ints:
        """Of each step, in these phases."""
        spent = np.where(self.in_phases(*phases), self.phases.right - self.phases.left, 0)
        until = np.concatenate(([0], np.cumsum(spent)))[self.phases.first]
        return np.diff(until)

    def queue_of(self, field: str) -> Ints:
        """The column of a field of LoaderQueue; UNKNOWN where there is no record."""
        column: Ints = self.queue[:, LoaderQueue._fields.index(field)]
        return column

    def memory_of(self, field: str) -> Ints:
        """The column of a field of MemoryRecord; UNKNOWN where it is None, or there is no record."""
        column: Ints = self.memory[:, _MEMORY.index(field)]
        return column

    def in_window(self, window: str) -> Bools:
        """Whether ``StepRecord.window`` is this."""
        return is_named(self.window, self.names, window)

    def __len__(self) -> int:
        return len(self.step)

    def _records(self, first: int, last: int) -> Iterator[StepRecord]:
        at = slice(first, last)
        columns = (
            self.step[at].tolist(),
            self.begin_ns[at].tolist(),
            self.end_ns[at].tolist(),
            ([PhaseRow(*entry) for entry in entries] for entries in self.phases.entries(first, last, self.names)),
            _named(self.window[at], self.names),
            self.micro_batches[at].tolist(),
            self.tokens[at].tolist(),
            [None if loss != loss else loss for loss in self.loss[at].tolist()],
            ([(begin, end) for _, begin, end in entries] for entries in self.gc.entries(first, last, ())),
            (
                None if row[0] == UNKNOWN else MemoryRecord(row[0], *map(_known, row[1:]))
                for row in self.memory[at].tolist()
            ),
            _optional(self.on_cpu_ns[at]),
            _optional(self.queued_ns[at]),
            (
                {name: (on_cpu, queued) for name, on_cpu, queued in entries}
                for entries in self.cpu.entries(first, last, self.names)
            ),
            self.held[at].tolist(),
            (None if row[0] == UNKNOWN else LoaderQueue(*row) for row in self.queue[at].tolist()),
        )
        return starmap(StepRecord, zip(*columns, strict=True))


class _Builder:
    """Columns from records that come in parts, so that only the records of one part are in memory. Nothing of a part
    with a number that does not fit is taken: HugeError."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        names, parts = len(self._codes), {name: len(parts) for name, parts in self._parts.items()}
        try:
            yield
        except HugeError:
            self._codes = dict(islice(self._codes.items(), names))
            self._parts = {name: self._parts[name][:count] for name, count in parts.items()}
            raise

    def _put(self, name: str, part: npt.NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(part)

    def _coded(self, names: Sequence[str]) -> Codes:
        if names and names.count(names[0]) == len(names):  # as most columns are; a tenth of the time
            return np.full(len(names), self._codes.setdefault(names[0], len(self._codes)), dtype=np.int32)
        for name in dict.fromkeys(names):
            self._codes.setdefault(name, len(self._codes))
        return np.fromiter(map(self._codes.__getitem__, names), np.int32, len(names))

    def _put_ragged(self, name: str, counts: Sequence[int], entries: Sequence[tuple[str, int, int]]) -> None:
        names, left, right = zip(*entries, strict=True) if entries else ((), (), ())
        self._put(f"{name}.count", np.array(counts, dtype=np.int64))
        self._put(f"{name}.name", self._coded(names))
        self._put(f"{name}.left", _ints(left))
        self._put(f"{name}.right", _ints(right))

    def _column(self, name: str) -> Any:
        return stored_once(np.concatenate(self._parts.pop(name)))

    def _ragged(self, name: str) -> Ragged:
        first = edges_of(np.concatenate(self._parts.pop(f"{name}.count")))
        return Ragged(first, *(self._column(f"{name}.{column}") for column in ("name", "left", "right")))


_MEMORY = [column.name for column in fields(MemoryRecord)]
_of_memory = attrgetter(*_MEMORY)
_STEP = [column.name for column in fields(StepRecord)]
_of_step = attrgetter(*_STEP)


class RowsBuilder(_Builder):
    def add_lines(self, lines: Sequence[CollectiveLine]) -> None:
        steps = _ints([line.step for line in lines])
        rows = list(chain.from_iterable(line.rows for line in lines))
        self.add(rows, np.repeat(steps, [len(line.rows) for line in lines]))

    def add(self, rows: Sequence[CollectiveRow], steps: Ints) -> None:
        columns = zip(*rows, strict=True) if rows else [()] * len(CollectiveRow._fields)
        with self._all_or_nothing():
            self._put("step", steps)
            for name, values in zip(CollectiveRow._fields, columns, strict=True):
                if name in ("group", "op", "dtype"):
                    self._put(name, self._coded(values))
                elif name == "whole":
                    self._put(name, np.array(values, dtype=np.bool_))
                else:
                    self._put(name, _ints(values))

    def built(self) -> Rows:
        if not self._parts:
            self.add((), np.zeros(0, dtype=np.int64))
        columns = {name: self._column(name) for name in Rows.columns()}
        return Rows(**columns, names=tuple(self._codes))


class StepsBuilder(_Builder):
    """``before``: steps that come first."""

    def __init__(self, before: Steps | None = None) -> None:
        super().__init__()
        if before is None:
            return
        self._codes = {name: code for code, name in enumerate(before.names)}
        for name in Steps.columns():
            column = getattr(before, name)
            if isinstance(column, Ragged):
                self._put(f"{name}.count", np.diff(column.first))
                for each in ("name", "left", "right"):
                    self._put(f"{name}.{each}", getattr(column, each))
            else:
                self._put(name, column)

    def add(self, records: Sequence[StepRecord]) -> None:
        with self._all_or_nothing():
            self._add(records)

    def _add(self, records: Sequence[StepRecord]) -> None:
        columns: dict[str, Sequence[Any]] = dict(
            zip(_STEP, zip(*map(_of_step, records), strict=True) if records else [()] * len(_STEP), strict=True)
        )
        for name in ("step", "begin_ns", "end_ns", "micro_batches", "tokens", "on_cpu_ns", "queued_ns"):
            self._put(name, _ints(columns[name]))
        self._put("window", self._coded(columns["window"]))
        loss = np.array(columns["loss"], dtype=np.float64)
        if (np.abs(loss) >= MOST_NS).any():
            raise HugeError
        self._put("loss", loss)
        memory = [None if of_step is None else _of_memory(of_step) for of_step in columns["memory"]]
        self._put("memory", _table(memory, len(_MEMORY)))
        self._put("queue", _table(columns["queue"], len(LoaderQueue._fields)))
        held = np.empty(len(records), dtype=np.object_)
        held[:] = columns["held"]
        for of_step in filter(None, columns["held"]):
            _ints(astuple(of_step))
        self._put("held", held)
        phases, pauses, cpu = (columns[name] for name in ("phases", "gc", "cpu"))
        self._put_ragged("phases", list(map(len, phases)), list(chain.from_iterable(phases)))
        self._put_ragged("gc", list(map(len, pauses)), [("", *pause) for of_step in pauses for pause in of_step])
        spent = [(phase, *times) for of_step in cpu for phase, times in of_step.items()]
        self._put_ragged("cpu", list(map(len, cpu)), spent)

    def built(self) -> Steps:
        if not self._parts:
            self.add(())
        ragged = ("phases", "gc", "cpu")
        columns: dict[str, Any] = {
            name: self._ragged(name) if name in ragged else self._column(name) for name in Steps.columns()
        }
        return Steps(**columns, names=tuple(self._codes))


def _ints(values: Sequence[int | None]) -> Ints:
    """With UNKNOWN for None. HugeError for a number that does not fit."""
    unknown = 0
    try:
        try:
            column = np.fromiter(values, np.int64, len(values))
        except TypeError:  # there is a None; to look for one in each column takes as long as to make it
            unknown = values.count(None)
            if unknown == len(values):
                return np.full(len(values), UNKNOWN, dtype=np.int64)
            known = (UNKNOWN if value is None else value for value in values)
            column = np.fromiter(known, np.int64, len(values))
    except OverflowError as error:
        raise HugeError from error
    if len(column) and (int(column.max()) >= MOST_NS or np.count_nonzero(column <= -MOST_NS) != unknown):
        raise HugeError
    return column


def _table(rows: Sequence[Sequence[int | None] | None], width: int) -> Ints:
    """[rows, width], with UNKNOWN for None."""
    if rows.count(None) == len(rows):
        return np.full((len(rows), width), UNKNOWN, dtype=np.int64)
    missing = (None,) * width
    columns = zip(*(missing if row is None else row for row in rows), strict=True)
    return np.stack([_ints(column) for column in columns], axis=1)


def _taken(column: Any, places: Ints | slice) -> Any:
    if isinstance(column, Ragged):
        return column.take(places)
    if isinstance(places, slice) or column.strides[0]:
        return column[places]
    return repeated(column[:1], len(places))


def _named(codes: Codes, names: Sequence[str]) -> list[str]:
    return [names[code] for code in codes.tolist()]


def _optional(values: Ints) -> list[int | None]:
    known = values != UNKNOWN
    if known.all():
        return list(values.tolist())
    return list(map(_known, values.tolist()))


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


NO_ROWS: Final = Rows.of(())
NO_STEPS: Final = Steps.of(())
