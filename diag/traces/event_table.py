"""Collects the events of one file as codes, chunk by chunk, into Parquet or memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from diag.collectors.layout import MOST_RANKS
from diag.deferred import Schema, pl
from diag.traces.policy import TRACE_LIMITS
from diag.words.formatting import counted

from . import kineto_names as names
from .kineto_json import NO_ARGS, Args, KinetoEvent
from .kineto_names import FAR_NS, whole
from .trace import ARGS_ROW, ARGUMENTS, COUNTERS, ROW, STORED, Events, Process

K = TypeVar("K", str, tuple[str, str])

OTHER_NAMES = "(other names)"

_WITH_LAUNCH = frozenset((*names.DEVICE_CATEGORIES, *names.LAUNCH_CATEGORIES))


class Head(Struct, frozen=True):
    """The category, name and thread of an event as codes. ``stored`` is False for events about the profiler itself."""

    stored: bool
    name: int = 0
    cat: int = 0
    thread: int = 0
    launches: bool = False  # has a correlation
    arguments: bool = False  # its arguments are read
    may_name_stream: bool = False  # an operator on the host that may name a stream of the device


class EventTable(Struct):
    """Grows by `add`. ``write`` takes a finished part away (into a file) and is None for a table in memory."""

    write: Callable[[pl.DataFrame], None] | None = None
    untimed: int = 0
    begin_ns: int = FAR_NS
    end_ns: int = -FAR_NS
    _parts: dict[int, list[pl.DataFrame]] = field(default_factory=dict)  # by category, for a table in memory
    _names: dict[str, int] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)
    _threads: dict[tuple[str, str], int] = field(default_factory=dict)
    _heads: dict[tuple[object, ...], Head] = field(default_factory=dict)
    _arguments: dict[tuple[object, ...], int] = field(default_factory=dict)
    _counters: list[pl.DataFrame] = field(default_factory=list)
    _gaps: dict[str, None] = field(default_factory=dict)  # each reason once, in order
    _places: dict[tuple[int, int], None] = field(default_factory=dict)
    _processes: dict[str, Process] = field(default_factory=dict)
    profiled: bool = False  # the profiler's own span was seen
    phases: set[str] = field(default_factory=set)  # of events without a duration, if the general decoder saw any
    rows: int = 0

    def head_of(self, event: KinetoEvent) -> Head:
        key = (event.cat, event.name, event.pid, event.tid)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) > TRACE_LIMITS.most_heads:
                self._heads.clear()
            head = self._heads[key] = self._new_head(
                event.cat or "", event.name or "", _label(event.pid), _label(event.tid)
            )
        return head

    def _new_head(self, cat: str, name: str, pid: str, tid: str) -> Head:
        category = names.category(cat)
        if category == "trace":
            self.profiled = True
            return Head(stored=False)
        if category == names.CPU_OP and re.match(names.RANGE_PATTERN, name):
            category = names.ANNOTATION
        code = self._category(category)
        thread = self.thread(pid, tid)
        self._places[code, thread] = None
        return Head(
            stored=True,
            name=self._name(name),
            cat=code,
            thread=thread,
            launches=category in _WITH_LAUNCH,
            may_name_stream=category == names.CPU_OP and name.startswith("triton_"),
            arguments=bool(
                re.match(names.ARGUMENT_PATTERN, name)
                or (category == names.KERNEL and re.search(names.KERNEL_PATTERN, name))
            ),
        )

    def thread(self, pid: str | int | float | None, tid: str | int | float | None) -> int:
        """The code of a thread."""
        key = _label(pid)[:256], _label(tid)[:256]
        return self._code(self._threads, key, TRACE_LIMITS.most_threads, ("", OTHER_NAMES))

    def _name(self, name: str) -> int:
        if len(name) > TRACE_LIMITS.most_name_chars:
            self._gap(f"names longer than {TRACE_LIMITS.most_name_chars} characters were truncated")
            name = name[: TRACE_LIMITS.most_name_chars]
        return self._code(self._names, name, TRACE_LIMITS.most_names, OTHER_NAMES)

    def _category(self, category: str) -> int:
        return self._code(self._categories, category[:256], 250, "other")

    def _code(self, codes: dict[K, int], key: K, limit: int, beyond: K) -> int:
        code = codes.get(key)
        if code is None:
            if len(codes) >= limit:
                label = beyond if isinstance(beyond, str) else OTHER_NAMES
                self._gap(f"more than {limit:,} different names, categories or threads: the others are named {label}")
                key = beyond
            code = codes.setdefault(key, len(codes))
        return code

    def add_process_rank(self, event: KinetoEvent) -> None:
        rank = whole(event.args.rank) if event.args is not None else None
        if event.args is not None and rank is not None and 0 <= rank <= MOST_RANKS:
            process = self._process(event)
            process.ranks.add(rank)
            process.raw = process.raw or _label(
                event.args.raw_pid if isinstance(event.args.raw_pid, int | str) else None
            )

    def add_process_name(self, event: KinetoEvent) -> None:
        if event.args is not None and isinstance(event.args.name, str):
            self._process(event).name = event.args.name[:256]

    def _process(self, event: KinetoEvent) -> Process:
        label = _label(event.pid)[:256]
        if len(self._processes) >= TRACE_LIMITS.most_processes:
            return Process()
        return self._processes.setdefault(label, Process())

    def _gap(self, reason: str) -> None:
        self._gaps[reason] = None

    def arguments_row(self, args: Args) -> int:
        """The row of these arguments in the table of arguments; equal arguments share it."""
        row = (
            _text(args.coll_name), whole(args.in_elems), whole(args.out_elems), _text(args.dtype),
            _text(args.group_name), _text(args.group_ranks), whole(args.group_size), whole(args.seq),
            _raw(args.input_dims), _raw(args.input_type), whole(args.stream),
        )  # fmt: skip
        return self._arguments.setdefault(row, len(self._arguments))

    def add(self, part: pl.DataFrame) -> None:
        """A part with the columns of STORED: ``ts_ns`` null if it could not be read, -1 or null for a lost end."""
        timed = part if _in_bounds(part["ts_ns"], -FAR_NS) and _in_bounds(part["dur_ns"], 0) else _timed(part)
        self.untimed += len(part) - len(timed)
        if timed.is_empty():
            return
        self.rows += len(timed)
        start = timed["ts_ns"].to_numpy()
        self.begin_ns = min(self.begin_ns, int(start.min()))
        self.end_ns = max(self.end_ns, int((start + timed["dur_ns"].to_numpy()).max()))
        if self.write is None:
            for (code,), rows in timed.partition_by("cat", as_dict=True).items():
                self._parts.setdefault(code, []).append(rows)
        else:
            self.write(timed)

    def add_counters(self, part: pl.DataFrame) -> None:
        self._counters.append(part)

    @property
    def gaps(self) -> tuple[str, ...]:
        untimed = (f"left out {counted(self.untimed, 'event')} without a readable start time",) if self.untimed else ()
        return (*self._gaps, *untimed)

    @property
    def threads(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._threads)

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(self._categories)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Which threads have events of which category: codes of both."""
        return tuple(self._places)

    @property
    def processes(self) -> dict[str, Process]:
        """The file's information on processes, by the id that events use."""
        return self._processes

    def events(self) -> Events:
        """All events added, without the rows that were written."""
        empty = pl.DataFrame(schema=STORED)
        parts = [pl.concat([empty, *self._parts.get(code, ())]) for code in range(len(self._categories))]
        return Events(
            frames=tuple(part.with_row_index(ROW) for part in parts),
            names=pl.Series("name", list(self._names), dtype=pl.String),
            categories=tuple(self._categories),
            arguments=pl.DataFrame(list(self._arguments), schema=ARGUMENTS, orient="row", strict=False),
            counters=pl.concat([pl.DataFrame(schema=COUNTERS), *self._counters])
            .filter(
                pl.col("ts_ns").is_between(-FAR_NS, FAR_NS),
                pl.col("device_type").is_not_null(),
                pl.col("allocated").fill_null(0) >= 0,
                pl.any_horizontal(pl.col("allocated", "bytes").is_not_null()),
            )
            .sort("ts_ns", maintain_order=True),
        )


def _in_bounds(times: pl.Series, least: int) -> bool:
    """Whether all of them are valid times; true for all chunks of most traces."""
    if times.null_count() or times.is_empty():
        return False
    values = times.to_numpy()
    return bool(values.min() >= least and values.max() <= FAR_NS)


def _timed(part: pl.DataFrame) -> pl.DataFrame:
    starts = pl.col("ts_ns").is_between(-FAR_NS, FAR_NS)
    return part.filter(starts).with_columns(pl.col("dur_ns").fill_null(0).clip(0, FAR_NS))


def _label(value: str | int | float | None) -> str:
    return "" if value is None else str(value)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    return str(value)


def _raw(value: bytes) -> str | None:
    text = bytes(value).decode("utf-8", "replace")
    return None if text in ("null", "") else text


# -- kineto events -----------------------------------------------------------------------------------------------------
#
# Typed events of any origin are converted to the columns of an event table.

MEMORY_EVENT = "[memory]"


def add_events(table: EventTable, events: Sequence[KinetoEvent]) -> None:
    """Duration events and allocator samples into the table; other phases (flows, metadata, marks) are left out."""
    events_kept, heads = [], []
    for event in events:
        if event.ph == "X":
            head = table.head_of(event)
            if head.stored:
                events_kept.append(event)
                heads.append(head)
            if event.args is not None and event.args.rank is not None:
                table.add_process_rank(event)
        else:
            table.phases.add(event.ph)
            if event.ph == "M" and event.name == "process_name":
                table.add_process_name(event)
    args = [event.args or NO_ARGS for event in events_kept]
    rows = [
        table.arguments_row(arg) if _has_stored_arguments(head, arg) else None
        for head, arg in zip(heads, args, strict=True)
    ]
    columns: dict[str, Any] = {
        "ts_ns": exact_ns(event.ts for event in events_kept),
        "dur_ns": exact_ns(event.dur for event in events_kept),
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
        sample_args = [event.args or NO_ARGS for event in samples]
        table.add_counters(
            _frame(
                {
                    "ts_ns": exact_ns(event.ts for event in samples),
                    "device_type": [whole(arg.memory_device_type) for arg in sample_args],
                    "device": [whole(arg.memory_device) for arg in sample_args],
                    "allocated": [whole(arg.allocated) for arg in sample_args],
                    "reserved": [whole(arg.reserved) for arg in sample_args],
                    "bytes": [whole(arg.memory_bytes) for arg in sample_args],
                    "addr": [whole(arg.memory_addr) for arg in sample_args],
                    "thread": [table.thread(event.pid, event.tid) for event in samples],
                },
                COUNTERS,
            )
        )


def _has_stored_arguments(head: Head, args: Args) -> bool:
    return head.arguments and (args.describes_work or (head.may_name_stream and args.stream is not None))


def exact_ns(texts: Iterable[msgspec.Raw]) -> pl.Series:
    """Nanoseconds (Int64) of microseconds written as decimal text, to the nanosecond; null if it is not a number."""
    return us_to_ns(pl.Series([bytes(text).decode("utf-8", "replace") for text in texts], dtype=pl.String))


def us_to_ns(text: pl.Series) -> pl.Series:
    """Nanoseconds (Int64) of microseconds written as decimal text, to the nanosecond; null if it is not a number.

    Kineto writes whole microseconds or three decimals. Other forms (an exponent, a quoted number) are read as decimals,
    which takes four times as long.
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
    safe = us.abs() <= (1 << 62) // 1000
    return us.to_frame("us").select(pl.when(safe).then(pl.col("us") * 1000)).to_series()


def _frame(columns: dict[str, Any], schema: Schema) -> pl.DataFrame:
    """Columns of these types; null for values that do not fit."""
    return pl.DataFrame(
        {
            key: value if isinstance(value, pl.Series) else pl.Series(value, dtype=pl.Int64, strict=False)
            for key, value in columns.items()
        }
    ).cast(pl.Schema(schema), strict=False)
