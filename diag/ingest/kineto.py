"""One rank's Kineto (torch.profiler) trace as a frozen `Trace`: a header and a table of events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from diag.errors import DiagError

from . import kineto_names as names
from .kineto_json import NO_ARGS, Args, Event, read_document
from .trace import ARGS_ROW, ARGUMENTS, COUNTERS, STORED, Events, Trace

_INT_ARGS = ("device", "stream", "correlation", "in_elems", "out_elems", "group_size", "seq")
_TEXT_ARGS = ("coll_name", "dtype", "group_name", "group_ranks")
# Shapes are the bulk of a trace recorded with record_shapes; only communication needs them.
_SHAPES_FOR = ("gloo:", "nccl:", "c10d::", "record_param_comms")
_FAR_NS = (1 << 62) - 1  # the year 2116: a later time is damage, and a start plus a duration must fit int64


def read_trace(path: Path | str) -> Trace:
    """The trace in a .json or .json.gz file. DiagError when the file is not a whole trace or holds no event."""
    path = Path(path)
    document = read_document(path)
    info = document.distributed if isinstance(document.distributed, dict) else {}
    base_ns = _whole(document.base_ns) or 0
    kept = [event for event in document.events if event.ph == "X"]
    events, threads = _table(kept, base_ns)
    frame = events.frame.collect()
    if frame.is_empty():
        raise DiagError(
            f"{path.name}: the trace holds no event with a duration",
            hint="The profiler was stopped before its first active step; record a longer window.",
            path=path,
        )
    rank = _whole(info.get("rank"))
    return Trace(
        path=path,
        rank=rank if rank is not None else names.rank_from_name(path.name),
        world_size=_whole(info.get("world_size")),
        host=_text(document.host_name),
        backend=_text(info.get("backend")),
        device_names=_device_names(document.devices),
        base_ns=base_ns,
        groups=_groups(info.get("pg_config")),
        threads=threads,
        begin_ns=frame["ts_ns"].min(),
        end_ns=(frame["ts_ns"] + frame["dur_ns"]).max(),
        stored=events,
        untimed_events=len(kept) - _profiler_spans(kept) - len(frame),
    )


def parse_ranks(value: object) -> tuple[int, ...]:
    """Global ranks from a list, ``"[0, 1]"`` or ``"0,1"``; () where the list was shortened ("[0, ..., 127]")."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = [part for part in value.strip("[]() ").split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        return ()
    ranks = [_whole(item) for item in value]
    return tuple(rank for rank in ranks if rank is not None) if None not in ranks else ()


def exact_ns(texts: Iterable[msgspec.Raw]) -> pl.Series:
    """Nanoseconds (Int64) of microseconds written as decimal text, to the nanosecond; null where it is no number."""
    raw = list(texts)
    lines = b"\n".join(raw)
    column = (
        pl.read_csv(lines, has_header=False, schema={"us": pl.String}, quote_char=None)["us"]
        if raw
        else pl.Series("us", [], pl.String)
    )
    if len(column) != len(raw):  # a value spread over lines: an object where a number belongs
        column = pl.Series("us", [bytes(item).decode("utf-8", "replace").strip('"') for item in raw])
    return (
        column.str.strip_chars('" \r').cast(pl.Decimal(38, 3), strict=False).to_physical().cast(pl.Int64, strict=False)
    )


def _table(events: list[Event], base_ns: int) -> tuple[Events, tuple[tuple[str, str], ...]]:
    args = [event.args or NO_ARGS for event in events]
    is_range = (pl.col("cat") == names.CPU_OP) & pl.col("name").str.contains(names.RANGE_PATTERN)
    columns = {
        "ts_ns": exact_ns(event.ts for event in events),
        "dur_ns": exact_ns(event.dur for event in events),
        "name": _texts([event.name or "" for event in events]),
        "cat": _categories([event.cat for event in events]),
        "pid": _labels([event.pid for event in events]),
        "tid": _labels([event.tid for event in events]),
        **{key: _integers([getattr(arg, key) for arg in args]) for key in _INT_ARGS},
        **{key: _texts([_text(getattr(arg, key)) for arg in args]) for key in _TEXT_ARGS},
        **_shapes(events, args),
    }
    table = (
        pl.DataFrame(columns)
        .filter(pl.col("ts_ns").is_between(-_FAR_NS, _FAR_NS - abs(base_ns)), pl.col("cat") != "trace")
        .with_columns(
            pl.col("ts_ns") + base_ns,
            # Kineto writes -1 for an activity whose end it lost.
            pl.col("dur_ns").fill_null(0).clip(0, _FAR_NS),
            pl.when(is_range).then(pl.lit(names.ANNOTATION)).otherwise(pl.col("cat")).alias("cat"),
        )
        .with_row_index(ARGS_ROW)
    )
    kinds = tuple(table["cat"].unique(maintain_order=True))
    distinct = table["name"].unique(maintain_order=True)
    threads = tuple(table.select("pid", "tid").unique(maintain_order=True).iter_rows())
    of_thread = {thread: code for code, thread in enumerate(threads)}
    coded = table.with_columns(
        pl.col("name").cast(pl.Enum(distinct)).to_physical(),
        pl.col("cat").cast(pl.Enum(kinds)).to_physical(),
        pl.Series("thread", [of_thread[thread] for thread in table.select("pid", "tid").iter_rows()], pl.UInt32),
    )
    return Events(
        frame=coded.select(pl.col(key).cast(kind, strict=False) for key, kind in STORED.items()).lazy(),
        names=distinct,
        categories=kinds,
        arguments=table.select(pl.col(key).cast(kind) for key, kind in ARGUMENTS.items()),
        counters=pl.DataFrame(schema=COUNTERS),
    ), threads


def _profiler_spans(events: list[Event]) -> int:
    """Events that describe the profiler itself, as long as the whole recording."""
    return sum(1 for event in events if event.cat == "Trace")


def _shapes(events: list[Event], args: list[Args]) -> dict[str, pl.Series]:
    wanted = [i for i, event in enumerate(events) if event.name and event.name.startswith(_SHAPES_FOR)]
    found: dict[str, pl.Series] = {}
    for key in ("input_dims", "input_type"):
        column: npt.NDArray[np.object_] = np.full(len(events), None, dtype=object)
        for i in wanted:
            column[i] = bytes(getattr(args[i], key)).decode("utf-8", "replace")
        found[key] = pl.Series(key, column.tolist(), dtype=pl.String)
    return found


def _categories(values: list[str | None]) -> pl.Series:
    known = {value: names.category(value or "") for value in set(values)}
    return pl.Series([known[value] for value in values], dtype=pl.String)


def _texts(values: list[str | None]) -> pl.Series:
    return pl.Series(values, dtype=pl.String)


def _labels(values: list[str | int | float | None]) -> pl.Series:
    known = {value: "" if value is None else str(value) for value in set(values)}
    return pl.Series([known[value] for value in values], dtype=pl.String)


def _integers(values: list[Any]) -> pl.Series:
    """Int64; null for what is no integer or too large (Kineto writes 2**64 - 1 for "none")."""
    return pl.Series(values, dtype=pl.Int64, strict=False)


def _whole(value: object) -> int | None:
    """A non-negative integer from a number or its text."""
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) < 19 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < _FAR_NS else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _FAR_NS else None


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value)


def _device_names(properties: object) -> tuple[str, ...]:
    if not isinstance(properties, list):
        return ()
    return tuple(str(item["name"]) for item in properties if isinstance(item, dict) and item.get("name"))


def _groups(config: object) -> dict[str, tuple[int, ...]]:
    """Process groups from pg_config, which is a list of objects, or an object by name, or text holding either."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return {}
    if isinstance(config, dict):
        config = [
            {"pg_name": name, **(value if isinstance(value, dict) else {"ranks": value})}
            for name, value in config.items()
        ]
    if not isinstance(config, list):
        return {}
    found = {}
    for item in config:
        if isinstance(item, dict) and item.get("pg_name") is not None:
            ranks = parse_ranks(item.get("ranks"))
            # An empty list stands for the default group in some versions.
            found[str(item["pg_name"])] = ranks or tuple(range(_whole(item.get("pg_size")) or 0)) * (
                item.get("pg_desc") == "default_pg"
            )
    return found
