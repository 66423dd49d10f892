"""One rank's Kineto (torch.profiler) trace: from the bytes of a file to a `Trace`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from diag.errors import DiagError

from . import kineto_json
from . import kineto_names as names
from .comm_rules import CommRule
from .event_chunks import Cutter
from .event_table import EventTable, whole
from .kineto_events import add_events
from .kineto_text import KinetoText
from .sources import opened
from .text_stream import blocks, file_name
from .trace import Contents, Trace

MAX_RANKS = 1 << 20  # ten times the largest run known


def read_trace(path: Path | str) -> Trace:
    """The trace in a .json or .json.gz file. DiagError when the file is not a whole trace or holds no event."""
    with opened(str(path)) as file:
        return as_trace(read_contents(file, str(path)), str(path))


def read_contents(file: BinaryIO, name: str, write: Callable[[pl.DataFrame], None] | None = None) -> Contents:
    """Everything that is kept of a file, in memory or, part by part, wherever ``write`` puts it.

    The text is never in memory as a whole, so only what is kept grows with the file. DiagError when it is not a whole
    Kineto trace, with the reason; what was written until then is of no use.
    """
    table = EventTable(write)
    text = KinetoText(table, name)
    cutter = Cutter(blocks(file, name), name)
    while pieces := cutter.next_chunk():
        if not text.decode(pieces):
            _decode_any(table, cutter, b"".join(pieces), name)
    rest = cutter.rest
    if rest:
        head = kineto_json.document(cutter.header + b"]}", name)
        tail = kineto_json.document(b'{"traceEvents": [' + rest, name)
        add_events(table, tail.events)
    else:
        head = tail = kineto_json.document(cutter.header, name)
        add_events(table, head.events)  # the key may be written with escapes
    if not table.rows:
        raise DiagError(
            f"{file_name(name)}: the trace holds no event with a duration",
            hint="The profiler was stopped before its first active step; record a longer window.",
            path=name,
        )
    return Contents(
        distributed=head.distributed or tail.distributed,
        devices=head.devices or tail.devices,
        base_ns=whole(head.base_ns) or whole(tail.base_ns) or 0,
        host=_text(head.host_name or tail.host_name),
        threads=table.threads,
        begin_ns=table.begin_ns,
        end_ns=table.end_ns,
        untimed_events=table.untimed,
        gaps=table.gaps,
        events=table.events(),
    )


def _decode_any(table: EventTable, cutter: Cutter, chunk: bytes, name: str) -> None:
    """The chunk by the general decoder; cut again where the guess of a boundary was wrong."""
    try:
        events = kineto_json.events(chunk, name)
    except DiagError as error:
        chunk = cutter.again(chunk)
        if not chunk.strip() and not cutter.closed:
            raise error
        events = kineto_json.events(chunk, name)
    add_events(table, events)


def as_trace(contents: Contents, path: str, rank: int | None = None, comm_kernels: tuple[CommRule, ...] = ()) -> Trace:
    """The contents as the trace at a path. Without a rank the header names it, else the path's last part."""
    info = contents.distributed if isinstance(contents.distributed, dict) else {}
    rank = rank if rank is not None else _index(info.get("rank"))
    gaps = contents.gaps
    world_size = _index(info.get("world_size"))
    if world_size is not None and world_size > MAX_RANKS:
        world_size, gaps = None, (*gaps, f"says that the run has {world_size:,} ranks: not believed")
    return Trace(
        path=path,
        rank=rank if rank is not None else names.rank_from_name(file_name(path)),
        world_size=world_size,
        host=contents.host,
        backend=_text(info.get("backend")),
        device_names=_device_names(contents.devices),
        base_ns=contents.base_ns,
        groups=_groups(info.get("pg_config")),
        descriptions=_descriptions(info.get("pg_config")),
        comm_kernels=comm_kernels,
        threads=contents.threads,
        begin_ns=contents.begin_ns + contents.base_ns,
        end_ns=contents.end_ns + contents.base_ns,
        stored=contents.events,
        untimed_events=contents.untimed_events,
        gaps=gaps,
        derived=contents.derived,
    )


def parse_ranks(value: object) -> tuple[int, ...]:
    """Global ranks from a list, ``"[0, 1]"`` or ``"0,1"``; () where the list was shortened ("[0, ..., 127]")."""
    if isinstance(value, str):
        return _parse_ranks(value)
    if not isinstance(value, list | tuple):
        return ()
    ranks = [_index(item) for item in value]
    return tuple(rank for rank in ranks if rank is not None) if None not in ranks else ()


@lru_cache(maxsize=1024)
def _parse_ranks(text: str) -> tuple[int, ...]:
    return () if "..." in text else parse_ranks([part for part in text.strip("[]() ").split(",") if part.strip()])


def _index(value: object) -> int | None:
    """A rank, a size: a non-negative integer."""
    found = whole(value)
    return found if found is not None and found >= 0 else None


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value)


def _device_names(properties: object) -> tuple[str, ...]:
    if not isinstance(properties, list):
        return ()
    return tuple(str(item["name"]) for item in properties if isinstance(item, dict) and item.get("name"))


def _groups(config: object) -> dict[str, tuple[int, ...]]:
    """The ranks of the process groups, by name."""
    found = {}
    for item in _configured(config):
        ranks = parse_ranks(item.get("ranks"))
        # An empty list stands for the default group in some versions.
        found[str(item["pg_name"])] = ranks or tuple(range(min(_index(item.get("pg_size")) or 0, MAX_RANKS))) * (
            item.get("pg_desc") == "default_pg"
        )
    return found


def _descriptions(config: object) -> dict[str, str]:
    """What the process groups are for, by name, where they say it."""
    return {str(item["pg_name"]): str(item["pg_desc"]) for item in _configured(config) if item.get("pg_desc")}


def _configured(config: object) -> list[dict[str, Any]]:
    """Process groups from pg_config, which is a list of objects, or an object by name, or text holding either."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return []
    if isinstance(config, dict):
        config = [
            {"pg_name": name, **(value if isinstance(value, dict) else {"ranks": value})}
            for name, value in config.items()
        ]
    if not isinstance(config, list):
        return []
    return [item for item in config if isinstance(item, dict) and item.get("pg_name") is not None]
