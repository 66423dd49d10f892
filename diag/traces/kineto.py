"""One rank's Kineto (torch.profiler) trace: from the bytes of a file to a `Trace`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from diag.collectors.layout import MOST_RANKS
from diag.errors import DiagError

from . import foreign, kineto_json, several_ranks
from . import kineto_names as names
from .event_chunks import Cutter, exact_cut
from .event_table import EventTable, whole
from .fast.kineto_text import KinetoText
from .kineto_events import add_events
from .sources import opened
from .text_stream import blocks, damaged
from .trace import Contents, Trace

_UNCLOSED = "its array of events has no closing bracket: what was written last may be missing"


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
    head, tail = _documents(cutter, name)
    add_events(table, tail.events)
    framed = table.profiled or head.devices is not None or tail.devices is not None
    if not table.rows and (table.untimed or framed):
        raise foreign.no_events(name)
    if not table.rows or not (framed or foreign.is_ours(table.categories)):
        names_of = {process.name or pid for pid, process in table.processes.items()}
        raise foreign.no_events_of_ours(name, table.categories, table.phases, names_of, cutter.beginning)
    return Contents(
        distributed=head.distributed or tail.distributed,
        devices=head.devices or tail.devices,
        base_ns=whole(head.base_ns) or whole(tail.base_ns) or 0,
        host=_text(head.host_name or tail.host_name),
        threads=table.threads,
        begin_ns=table.begin_ns,
        end_ns=table.end_ns,
        untimed_events=table.untimed,
        gaps=(*table.gaps, _UNCLOSED) if cutter.unclosed else table.gaps,
        events=table.events(),
        places=table.places,
        processes=table.processes,
    )


def _documents(cutter: Cutter, name: str) -> tuple[kineto_json.Document, kineto_json.Document]:
    """What is before and behind the chunks. DiagError where the file is no whole trace."""
    head, tail = cutter.documents()
    try:
        first = kineto_json.document(head, name)
        return first, kineto_json.document(tail, name) if tail else first  # the key may be written with escapes
    except DiagError as error:
        if not tail:
            raise foreign.no_trace(name, head, whole=True, otherwise=error) from error
        if cutter.unclosed and "nested too deeply" not in error.message and not exact_cut(cutter.rest)[2]:
            raise damaged(name, "the JSON ends early, the file is truncated") from error
        raise


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


def as_traces(contents: Contents, path: str, rank: int | None = None) -> list[Trace]:
    """The contents as the trace at a path, or as the traces of several ranks where the file holds the events of
    several. DiagError where it does and they cannot be told apart."""
    parts = several_ranks.parts(contents, path)
    if not parts:
        return [as_trace(contents, path, rank)]
    return [as_trace(part.contents, path, part.rank, of_several=len(parts) > 1) for part in parts]


def as_trace(contents: Contents, path: str, rank: int | None = None, of_several: bool = False) -> Trace:
    """The contents as the trace at a path. Without a rank the header names it, else the file's or its folder's name;
    neither does for a file ``of_several`` ranks."""
    info = contents.distributed if isinstance(contents.distributed, dict) else {}
    if rank is None and not of_several:
        rank = _index(info.get("rank"))
        rank = rank if rank is not None else several_ranks.only_rank(contents)
        rank = rank if rank is not None else names.rank_from_path(path)
    gaps = contents.gaps
    world_size = _index(info.get("world_size"))
    if world_size is not None and world_size > MOST_RANKS:
        world_size, gaps = None, (*gaps, f"says that the run has {world_size:,} ranks: not believed")
    return Trace(
        path=path,
        rank=rank,
        world_size=world_size,
        host=contents.host,
        backend=_text(info.get("backend")),
        device_names=_device_names(contents.devices),
        base_ns=contents.base_ns,
        groups=_groups(info.get("pg_config")),
        descriptions=_descriptions(info.get("pg_config")),
        threads=contents.threads,
        begin_ns=contents.begin_ns + contents.base_ns,
        end_ns=contents.end_ns + contents.base_ns,
        stored=contents.events,
        untimed_events=contents.untimed_events,
        gaps=gaps,
        derived=contents.derived,
        host_pids=several_ranks.host_pids(contents),
        process_names=tuple(process.name for process in contents.processes.values() if process.name),
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
        found[str(item["pg_name"])] = ranks or tuple(range(min(_index(item.get("pg_size")) or 0, MOST_RANKS))) * (
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
