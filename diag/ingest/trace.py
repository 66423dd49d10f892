"""One rank's Kineto trace: a header in memory and a table of events that is read by the part that is asked for.

A trace of five million events has a gigabyte of text. What an analysis needs of it are a few columns of some
categories, so the events stay in Parquet (or in memory, for small files) and `Trace.select` reads the rest of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from . import kineto_names as names

# What `Trace.select` returns. Times in ns since 1970 where the trace has a base time or writes absolute times.
# ``thread`` is an index into Trace.threads; ``device`` and ``stream`` are null on the host, ``correlation`` where there
# is none: it is the same number for a call on the host and the work that it launched on the device. ``args_row``, null
# where no arguments were kept, is what `Trace.with_arguments` reads.
COLUMNS = ("ts_ns", "dur_ns", "name", "cat", "thread", "device", "stream", "correlation", "args_row")
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


@dataclass(frozen=True, eq=False)
class Events:
    """Duration events as they are stored: codes instead of text, times without the trace's base. ``frames``: for each
    category, the columns of STORED and ROW in the order of the file; ``arguments`` has the columns of ARGUMENTS,
    ``counters`` those of COUNTERS."""

    frames: tuple[pl.LazyFrame, ...]
    names: pl.Series
    categories: tuple[str, ...]
    arguments: pl.DataFrame
    counters: pl.DataFrame

    @property
    def rows(self) -> int:
        return sum(int(frame.select(pl.len()).collect().item()) for frame in self.frames)

    def matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        """For each name, whether it matches the regular expression."""
        found = self._matching.get(pattern)
        if found is None:
            found = self._matching[pattern] = self.names.str.contains(pattern).to_numpy()
        return found

    @cached_property
    def _matching(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {}

    @cached_property
    def name_type(self) -> pl.Enum:
        return pl.Enum(self.names)

    @cached_property
    def category_type(self) -> pl.Enum:
        return pl.Enum(self.categories)


class Derived(Protocol):
    """A place beside a trace's tables for what an analysis derives from it."""

    def load(self, name: str) -> bytes | None: ...

    def save(self, name: str, data: bytes) -> None: ...


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file holds, whatever its name is: the header's fields as they stand there, and the events."""

    distributed: object
    devices: object
    base_ns: int
    host: str | None
    threads: tuple[tuple[str, str], ...]
    begin_ns: int  # without the base, like the events
    end_ns: int
    untimed_events: int  # left out: no start that could be read
    gaps: tuple[str, ...]
    events: Events
    derived: Derived | None = None  # None: the file is read anew each time


@dataclass(frozen=True, eq=False)
class Trace:
    """What one file says. ``begin_ns`` and ``end_ns`` are the first start and the last end of its events."""

    path: str  # a file, an address, or an archive and its member
    rank: int | None
    world_size: int | None
    host: str | None
    backend: str | None
    device_names: tuple[str, ...]
    base_ns: int
    groups: dict[str, tuple[int, ...]]  # process group name: its global ranks
    threads: tuple[tuple[str, str], ...]  # process and thread as the profiler writes them; on a device: device, stream
    begin_ns: int
    end_ns: int
    stored: Events
    untimed_events: int = 0  # left out: no start that could be read
    gaps: tuple[str, ...] = ()  # what of the file was not kept, and why
    derived: Derived | None = None

    @property
    def has_gpu(self) -> bool:
        return any(category in names.DEVICE_CATEGORIES for category in self.stored.categories)

    @property
    def events(self) -> pl.DataFrame:
        """All duration events: for small traces and tests. An analysis selects."""
        return self.select(arguments=True)

    @property
    def counters(self) -> pl.DataFrame:
        """Allocator samples, columns of COUNTERS, by time; empty without ``profile_memory``."""
        return self.stored.counters.with_columns(pl.col("ts_ns") + self.base_ns)

    def select(
        self, *categories: str, name: str | None = None, arguments: bool = False, within: tuple[int, int] | None = None
    ) -> pl.DataFrame:
        """Events of these categories (all, without any) whose name matches the regular expression, sorted by
        (ts_ns, -dur_ns): parents come before their children.

        ``within``: only events that start in this window, ``[begin, end)`` in ns. ``arguments``: with the columns of
        ARGUMENTS. The columns are those of COLUMNS otherwise. The expression is matched once a distinct name, so it
        costs no more on five million events than on five.
        """
        stored = self.stored
        frames = [
            frame
            for category, frame in zip(stored.categories, stored.frames, strict=True)
            if not categories or category in categories
        ]
        tests = []
        if name is not None:
            codes = np.flatnonzero(stored.matching(name))
            if not len(codes):
                frames = []  # most traces have none of one library's names, and that is known without reading an event
            tests.append(pl.col("name").is_in(codes.tolist()))
        if within is not None:
            begin, end = (edge - self.base_ns for edge in within)
            tests.append((pl.col("ts_ns") >= begin) & (pl.col("ts_ns") < end))
        found = self._finished(pl.concat([f.filter(*tests) for f in frames]).collect()) if frames else self._nothing
        return self.with_arguments(found) if arguments else found

    @cached_property
    def _nothing(self) -> pl.DataFrame:
        return self._finished(pl.DataFrame(schema=STORED).with_row_index(ROW))

    def _finished(self, events: pl.DataFrame) -> pl.DataFrame:
        """Stored events in order of time, with the columns of COLUMNS."""
        stored = self.stored
        events = events[_by_time(events)]
        # For work on a device the profiler writes the device and the stream as process and thread.
        kinds = [c in names.DEVICE_CATEGORIES or c.startswith("gpu_") for c in stored.categories]
        elsewhere = ~np.array([*kinds, False])[events["cat"].to_numpy()]
        numbers = self._thread_numbers[:, events["thread"].to_numpy()]
        numbers[:, elsewhere] = -1
        device, stream = (pl.lit(pl.Series(column)) for column in numbers)
        return events.select(
            pl.col("ts_ns") + self.base_ns,
            "dur_ns",
            pl.col("name").cat.to(stored.name_type),
            pl.col("cat").cat.to(stored.category_type),
            "thread",
            pl.when(device >= 0).then(device).alias("device"),
            pl.when(stream >= 0).then(stream).alias("stream"),
            "correlation",
            ARGS_ROW,
        )

    @cached_property
    def _thread_numbers(self) -> npt.NDArray[np.int32]:
        """Process and thread of each of ``threads`` as numbers; -1 where they are none. Shape (2, threads)."""
        found = [[_trailing_number(label) for label in thread] for thread in self.threads]
        return np.array(found, dtype=np.int32).reshape(-1, 2).T

    def unsorted(self, *categories: str, columns: Sequence[str]) -> pl.DataFrame:
        """Only these columns of all events of the categories, codes as they are stored and in no order: a third of the
        time and memory of `select`."""
        stored = self.stored
        frames = [f for c, f in zip(stored.categories, stored.frames, strict=True) if c in categories]
        found = pl.concat([pl.LazyFrame(schema=STORED).with_row_index(ROW), *frames]).select(*columns).collect()
        return found.with_columns(pl.col("ts_ns") + self.base_ns) if "ts_ns" in columns else found

    def with_arguments(self, events: pl.DataFrame) -> pl.DataFrame:
        """The events with the columns of ARGUMENTS in the place of ``args_row``: many columns, for the few events."""
        rows = self.stored.arguments.with_row_index(ARGS_ROW)
        return events.join(rows, on=ARGS_ROW, how="left", maintain_order="left").drop(ARGS_ROW)

    def says(self, events: pl.DataFrame, pattern: str) -> pl.Series:
        """For each of these events of the trace, whether its name matches; costs a match a distinct name."""
        matching = self.stored.matching(pattern)
        code = events["name"].to_physical().to_numpy()
        return pl.Series(matching[code] if len(matching) else code.astype(np.bool_))


def _by_time(events: pl.DataFrame) -> npt.NDArray[np.int64]:
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


def _trailing_number(label: str) -> int:
    """7 of ``7`` and of ``stream 7``; -1 without one that fits."""
    found = re.search(r"(\d{1,9})$", label)
    return int(found.group(1)) if found else -1
