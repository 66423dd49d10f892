"""Typed events of any origin into the columns of an event table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl

from .event_table import EventTable, Head, whole
from .kineto_json import NO_ARGS, Args, Event
from .stored_events import ARGS_ROW, COUNTERS, STORED

MEMORY_EVENT = "[memory]"


def add_events(table: EventTable, events: Sequence[Event]) -> None:
    """Duration events and allocator samples into the table; other phases (flows, metadata, marks) are left out."""
    kept, heads = [], []
    for event in events:
        if event.ph == "X":
            head = table.head_of(event)
            if head.kept:
                kept.append(event)
                heads.append(head)
            if event.args is not None and event.args.rank is not None:
                table.says_rank(event)
        else:
            table.phases.add(event.ph)
            if event.ph == "M" and event.name == "process_name":
                table.names_process(event)
    args = [event.args or NO_ARGS for event in kept]
    rows = [table.arguments_row(arg) if _kept(head, arg) else None for head, arg in zip(heads, args, strict=True)]
    columns: dict[str, Any] = {
        "ts_ns": exact_ns(event.ts for event in kept),
        "dur_ns": exact_ns(event.dur for event in kept),
        "name": [head.name for head in heads],
        "cat": [head.cat for head in heads],
        "thread": [head.thread for head in heads],
        "correlation": [
            whole(arg.correlation) if head.launches else None for arg, head in zip(args, heads, strict=True)
        ],
        ARGS_ROW: rows,
    }
    table.add(_frame(columns, STORED))
    samples = [e for e in events if e.ph == "i" and e.name == MEMORY_EVENT and e.args is not None]
    if samples:
        given = [event.args or NO_ARGS for event in samples]
        table.add_counters(
            _frame(
                {
                    "ts_ns": exact_ns(event.ts for event in samples),
                    "device_type": [whole(arg.memory_device_type) for arg in given],
                    "device": [whole(arg.memory_device) for arg in given],
                    "allocated": [whole(arg.allocated) for arg in given],
                    "reserved": [whole(arg.reserved) for arg in given],
                },
                COUNTERS,
            )
        )


def _kept(head: Head, args: Args) -> bool:
    """Whether anybody reads the arguments of such an event."""
    return head.arguments and (args.told or (head.tells_stream and args.stream is not None))


def exact_ns(texts: Iterable[msgspec.Raw]) -> pl.Series:
    """Nanoseconds (Int64) of microseconds written as decimal text, to the nanosecond; null where it is no number."""
    return us_to_ns(pl.Series([bytes(text).decode("utf-8", "replace") for text in texts], dtype=pl.String))


def us_to_ns(text: pl.Series) -> pl.Series:
    """Nanoseconds (Int64) of microseconds written as decimal text, to the nanosecond; null where it is no number.

    Kineto writes whole microseconds or three decimals. What is neither (an exponent, a quoted number) is read as a
    decimal, which takes four times as long.
    """
    if not text.str.contains(".", literal=True).any():
        whole_us = text.cast(pl.Int64, strict=False)
        if whole_us.null_count() == text.null_count():
            return _thousandfold(whole_us)
    elif (text.str.slice(-4, 1) == ".").all():
        digits = text.str.replace(".", "", literal=True).cast(pl.Int64, strict=False)
        if digits.null_count() == text.null_count():
            return digits
    return text.str.strip_chars('" \r').cast(pl.Decimal(38, 3), strict=False).to_physical().cast(pl.Int64, strict=False)


def _thousandfold(us: pl.Series) -> pl.Series:
    """Times 1000; null instead of an overflow."""
    safe = us.abs() <= (1 << 62) // 1000
    return us.to_frame("us").select(pl.when(safe).then(pl.col("us") * 1000)).to_series()


def _frame(columns: dict[str, Any], schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Columns of these types; null for what does not fit."""
    return pl.DataFrame(
        {
            key: value if isinstance(value, pl.Series) else pl.Series(value, dtype=pl.Int64, strict=False)
            for key, value in columns.items()
        }
    ).cast(pl.Schema(schema), strict=False)
