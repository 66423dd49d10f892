"""One rank's Kineto trace: a header in memory and a table of events that is read by the part that is asked for.

A trace of five million events has a gigabyte of text. What an analysis needs of it are a few columns of some
categories, so the events stay in Parquet (or in memory, for small files) and `Trace.select` reads the rest of nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from . import kineto_names as names

# What `Trace.select` returns. Times in ns since 1970 where the trace has a base time or writes absolute times.
# ``name`` and ``cat`` are Enums; ``thread`` is an index into Trace.threads; null where an event has no such argument.
COLUMNS: dict[str, Any] = {
    "ts_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "name": pl.UInt32,
    "cat": pl.UInt8,
    "thread": pl.UInt32,
    "device": pl.Int32,
    "stream": pl.Int32,
    "correlation": pl.Int64,
}
# Arguments of the few events whose arguments are read: communication, and operators whose shapes tell their work.
ARGUMENTS: dict[str, Any] = {
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
}
ARGS_ROW = "args_row"  # of a stored event: its row in the table of arguments, null for most
_ROW = "row"
STORED: dict[str, Any] = {**COLUMNS, ARGS_ROW: pl.UInt32}
# Allocator samples of a trace recorded with profile_memory; bytes.
COUNTERS: dict[str, Any] = {
    "ts_ns": pl.Int64,
    "device_type": pl.Int16,
    "device": pl.Int16,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}


@dataclass(frozen=True, eq=False)
class Events:
    """Duration events as they are stored: codes instead of text. ``frame`` has the columns of STORED, in any order of
    rows; ``arguments`` those of ARGUMENTS; ``counters`` those of COUNTERS."""

    frame: pl.LazyFrame
    names: pl.Series
    categories: tuple[str, ...]
    arguments: pl.DataFrame
    counters: pl.DataFrame

    @cached_property
    def name_type(self) -> pl.Enum:
        return pl.Enum(self.names)

    @cached_property
    def category_type(self) -> pl.Enum:
        return pl.Enum(self.categories)


@dataclass(frozen=True, eq=False)
class Trace:
    """What one file says. ``begin_ns`` and ``end_ns`` are the first start and the last end of its events."""

    path: Path
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
        return self.stored.counters

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
        wanted = stored.frame.with_row_index(_ROW)  # events of one moment stay in the order of the file
        if categories:
            codes = [code for code, category in enumerate(stored.categories) if category in categories]
            wanted = wanted.filter(pl.col("cat").is_in(codes))
        if name is not None:
            codes = stored.names.str.contains(name).arg_true().to_list()
            wanted = wanted.filter(pl.col("name").is_in(codes))
        if within is not None:
            wanted = wanted.filter(pl.col("ts_ns") >= within[0], pl.col("ts_ns") < within[1])
        if not arguments:
            wanted = wanted.drop(ARGS_ROW)
        found = (
            wanted.sort(["ts_ns", "dur_ns", _ROW], descending=[False, True, False])
            .drop(_ROW)
            .with_columns(pl.col("name").cat.to(stored.name_type), pl.col("cat").cat.to(stored.category_type))
            .collect()
        )
        if not arguments:
            return found
        rows = stored.arguments.with_row_index(ARGS_ROW)
        return found.join(rows, on=ARGS_ROW, how="left", maintain_order="left").drop(ARGS_ROW)
