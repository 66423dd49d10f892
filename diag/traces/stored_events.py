"""The events of one trace as they are stored: codes instead of text, in Parquet or in memory, category by category."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct, field

# Arguments of the few events whose arguments are read: communication, and operators whose shapes tell their work.
ARGUMENTS: dict[str, type[pl.DataType]] = {
    "coll_name": pl.String,
    "in_elems": pl.Int64,
    "out_elems": pl.Int64,
    "dtype": pl.String,
    "group_name": pl.String,
    "group_ranks": pl.String,
    "group_size": pl.Int64,
    "seq": pl.Int64,
    "input_dims": pl.String,
    "input_type": pl.String,
    "told_stream": pl.Int64,  # of an operator of Triton's, on the host
}
ARGS_ROW = "args_row"  # of an event: its row in the table of arguments
ROW = "row"  # of a stored event: its place among those of its category in the file
STORED: dict[str, type[pl.DataType]] = {
    "ts_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "name": pl.UInt32,
    "cat": pl.UInt8,
    "thread": pl.UInt32,
    "correlation": pl.Int64,
    ARGS_ROW: pl.UInt32,
}
# Allocator samples of a trace recorded with profile_memory; bytes.
COUNTERS: dict[str, type[pl.DataType]] = {
    "ts_ns": pl.Int64,
    "device_type": pl.Int16,
    "device": pl.Int16,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}


class Process(Struct):
    """What a file says of one of its processes beside its events. ``ranks``: those that its events' arguments name;
    ``raw``: its id before the ranks' traces were merged into one file."""

    name: str = ""
    ranks: set[int] = field(default_factory=set)
    raw: str = ""


# A category of no more rows is held in memory while it is looked at again and again: an analysis of one trace asks for
# events some thirty times, and each time polars needs 2 to 8 ms to find them in a file. Mostly 30 MB together.
_HELD_ROWS = 300_000
_HELD_CATEGORIES = 8
# Of a trace with more names than this the names are its own; so are all once so many were seen.
_FEW_NAMES, _MOST_NAMES = 10_000, 200_000


class _Vocabulary:
    """Names of all traces, and which of them match the regular expressions that were asked for. The ranks of a run have
    nearly all names in common, and to compile forty expressions takes polars 7 ms, each time that it is asked."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._matching: dict[str, npt.NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def indices(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """The places of these names in the vocabulary."""
        for name in names:
            if name not in self._index:
                self._index[name] = len(self._names)
                self._names.append(name)
        return np.array([self._index[name] for name in names], dtype=np.int64)

    def matching(self, pattern: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For the names at these places, whether they match."""
        known = self._matching.setdefault(pattern, np.zeros(0, dtype=np.bool_))
        if len(indices) and len(known) <= int(indices.max()):
            # What one trace is asked all are: one call for all expressions that lack the same names.
            behind = [text for text, answers in self._matching.items() if len(answers) == len(known)]
            new = pl.Series("name", self._names[len(known) :], dtype=pl.String).to_frame()
            found = new.select(pl.col("name").str.contains(text).alias(text) for text in behind)
            for column in found:
                self._matching[column.name] = np.concatenate((self._matching[column.name], column.to_numpy()))
            known = self._matching[pattern]
        return known[indices]


_VOCABULARY = _Vocabulary()


class Events(Struct, frozen=True, eq=False, dict=True):
    """Duration events as they are stored: codes instead of text, times without the trace's base. ``frames``: for each
    category, the columns of STORED and ROW in the order of the file; ``arguments`` has the columns of ARGUMENTS,
    ``counters`` those of COUNTERS."""

    frames: tuple[pl.DataFrame | pl.LazyFrame, ...]
    names: pl.Series
    categories: tuple[str, ...]
    arguments: pl.DataFrame
    counters: pl.DataFrame

    @property
    def rows(self) -> int:
        return sum(int(frame.lazy().select(pl.len()).collect().item()) for frame in self.frames)

    def matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        """For each name, whether it matches the regular expression."""
        if pattern not in self._matching:
            if self._indices is not None:
                self._matching[pattern] = _VOCABULARY.matching(pattern, self._indices)
            else:
                name = self.names.to_frame("name").select(pl.col("name").str.contains(pattern))
                self._matching[pattern] = name.to_series().to_numpy()
        return self._matching[pattern]

    def chosen(
        self, codes: Sequence[int], named: npt.NDArray[np.bool_] | None, within: tuple[int, int] | None
    ) -> pl.DataFrame:
        """The rows of these categories with such names that start in ``[begin, end)``, category by category."""
        found = [self._chosen(code, named, within) for code in codes]
        return pl.concat(found or [pl.DataFrame(schema=STORED).with_row_index(ROW)])

    def _chosen(self, code: int, named: npt.NDArray[np.bool_] | None, within: tuple[int, int] | None) -> pl.DataFrame:
        held = _held(self, code)
        if held is None:
            tests = [pl.col("name").is_in(np.flatnonzero(named).tolist())] if named is not None else []
            if within is not None:
                tests.append((pl.col("ts_ns") >= within[0]) & (pl.col("ts_ns") < within[1]))
            return self.frames[code].lazy().filter(*tests).collect()
        chosen = np.ones(len(held), dtype=np.bool_)
        if named is not None:
            chosen &= named[held["name"].to_numpy()]
        if within is not None:
            start = held["ts_ns"].to_numpy()
            chosen &= (start >= within[0]) & (start < within[1])
        return held if chosen.all() else held[np.flatnonzero(chosen)]

    def columns(self, codes: Sequence[int], names: Sequence[str], least_ns: int = 0) -> pl.DataFrame:
        """These columns of all rows of these categories that last so long, category by category."""
        found = [pl.DataFrame(schema=STORED).select(names)]
        for code in codes:
            held = _held(self, code)
            rows = held.lazy() if held is not None else self.frames[code].lazy()
            found.append((rows.filter(pl.col("dur_ns") >= least_ns) if least_ns else rows).select(names).collect())
        return pl.concat(found)

    @cached_property
    def with_nothing(self) -> pl.DataFrame:
        """The table of arguments, with a row of nulls behind the last."""
        return pl.concat([self.arguments, pl.DataFrame({key: [None] for key in ARGUMENTS}, schema=ARGUMENTS)])

    @cached_property
    def _matching(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {}

    @cached_property
    def _indices(self) -> npt.NDArray[np.int64] | None:
        """The names' places in the vocabulary of all traces; None where they are too many."""
        if len(self.names) > _FEW_NAMES or len(_VOCABULARY) + len(self.names) > _MOST_NAMES:
            return None
        return _VOCABULARY.indices(self.names.to_list())

    @cached_property
    def name_type(self) -> pl.Enum:
        return pl.Enum(self.names)

    @cached_property
    def category_type(self) -> pl.Enum:
        return pl.Enum(self.categories)


@lru_cache(maxsize=_HELD_CATEGORIES)
def _held(events: Events, code: int) -> pl.DataFrame | None:
    """The rows of a category; None where they are many, and in a file."""
    frame = events.frames[code]
    if isinstance(frame, pl.DataFrame):
        return frame
    rows = frame.select(pl.len()).collect().item()
    return frame.collect() if rows <= _HELD_ROWS else None


def by_time(events: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The order by (ts_ns, -dur_ns, place in the file). A sort by start and a second one of the ties take a third
    of the memory of sorting whole rows."""
    start, dur, row = (events[key].to_numpy() for key in ("ts_ns", "dur_ns", ROW))
    order = np.argsort(start, kind="stable")
    same = start[order][1:] == start[order][:-1]
    if same.any():
        at = np.flatnonzero(np.append(same, False) | np.append(False, same))
        ties = order[at]
        order[at] = ties[np.lexsort((row[ties], -dur[ties], start[ties]))]
    return order
