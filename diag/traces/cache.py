"""The cache of large trace files, in Parquet, so that opening one again reads a fraction of it.

An entry is keyed by a file's content, not its name, and by the version of this reader. It is written next to its place
and moved there when complete; if the cache cannot be written or read, that costs time, never a result.

What is read back is what was written: contents.bin has a digest of every table, and each file that is no table begins
with its own (``shelf``). So a damaged entry is no entry, and the trace is read again. Where no secret is needed to make
a digest, tables of more rows than their bytes can hold are refused.

    <cache>/<version>/<content key>/contents.json    identifies the folder as an entry
    <cache>/<version>/<content key>/contents.bin     header and totals; size, digest and rows of each table
    <cache>/<version>/<content key>/*.parquet        events (in parts), names, arguments, counters
    <cache>/<version>/<content key>/*.bin            what analyses derived from the trace
    <cache>/<version>/paths/<hash>.json              a file's size and time, and the key of its content then
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from diag.collectors.files import replace_file
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import read_regular
from diag.decoding import json_decoder
from diag.deferred import Schema, pl
from diag.model import DAMAGED
from diag.traces.policy import TRACE_READING
from diag.traces.trace import ARGUMENTS, COUNTERS, ROW, STORED, Events, Process

from .shelf import (
    FILES,
    PART,
    Shelf,
    Shelves,
    blocks_of,
    checksum_of,
    is_own_folder,
)
from .trace import Contents

SAVED = "contents"
_SCHEMAS: dict[str, Schema] = {
    "names.parquet": Schema(name="String"),
    "arguments.parquet": ARGUMENTS,
    "counters.parquet": COUNTERS,
}


class Saved(msgspec.Struct):
    distributed: Any
    devices: Any
    base_ns: int
    host: str | None
    threads: list[tuple[str, str]]
    begin_ns: int
    end_ns: int
    untimed_events: int
    gaps: list[str]
    categories: list[str]
    places: list[tuple[int, int]]
    processes: dict[str, Process]
    tables: dict[str, Table]  # by the name of the file


class Table(msgspec.Struct):
    size: int
    digest: str
    rows: int


class _Stamp(msgspec.Struct):
    size: int
    mtime_ns: int
    key: str


class Cache(Shelves, frozen=True, dict=True):
    """The traces that are kept in a folder of entries."""

    def key_of(self, path: Path) -> str:
        """The key of a file's content. Reads the file unless its size and time are unchanged since the last time."""
        status = path.stat()
        stamp_path, seal = self._stamp(path), self.seal
        if stamp_path is not None and seal is not None:
            with suppress(OSError, *DAMAGED):
                data = seal.opened(
                    read_regular(stamp_path, RECORDED_FILES.document_bytes, self.folder), stamp_path.name
                )
                stamp = json_decoder(_Stamp).decode(data or b"")
                if (stamp.size, stamp.mtime_ns) == (status.st_size, status.st_mtime_ns):
                    return stamp.key
        key = f"{status.st_size:x}-{checksum_of(path):08x}"
        # A file younger than its clock's grain may still change without a new time.
        if stamp_path is not None and seal is not None and time.time_ns() - status.st_mtime_ns > 2_000_000_000:
            with suppress(OSError):
                if not stamp_path.parent.is_symlink():
                    stamp = _Stamp(status.st_size, status.st_mtime_ns, key)
                    replace_file(stamp_path, seal.closed(msgspec.json.encode(stamp), stamp_path.name))
        return key

    def _stamp(self, path: Path) -> Path | None:
        if self.entries is None:
            return None
        return self.entries / "paths" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"

    def load(self, key: str) -> Contents | None:
        """The entry of this key; None if there is none, or it cannot be read."""
        entries, seal = self.entries, self.seal
        if entries is None or seal is None:
            return None
        folder = entries / key
        shelf = Shelf(folder, key, seal)
        try:
            if not all(map(is_own_folder, (entries, folder))):
                return None
            saved = json_decoder(Saved).decode(shelf.load(SAVED) or b"")
            if not all(_is_whole(folder, name, table) for name, table in saved.tables.items()):
                return None
            if not seal.secret and not _can_be(folder, saved.tables):
                return None
            tables = {name: pl.read_parquet(folder / name, n_rows=saved.tables[name].rows + 1) for name in _SCHEMAS}
            if any(len(table) != saved.tables[name].rows for name, table in tables.items()):
                return None
            frames = [_scan(folder, saved.tables, code) for code in range(len(saved.categories))]
        except (OSError, KeyError, *DAMAGED, pl.exceptions.PolarsError):
            return None
        with suppress(OSError):
            os.utime(folder)  # the least recently used entries go first
        return Contents(
            distributed=saved.distributed,
            devices=saved.devices,
            base_ns=saved.base_ns,
            host=saved.host,
            threads=tuple(saved.threads),
            begin_ns=saved.begin_ns,
            end_ns=saved.end_ns,
            untimed_events=saved.untimed_events,
            gaps=tuple(saved.gaps),
            events=Events(
                frames=tuple(frames),
                names=tables["names.parquet"].to_series(),
                categories=tuple(saved.categories),
                arguments=tables["arguments.parquet"],
                counters=tables["counters.parquet"],
            ),
            places=tuple(saved.places),
            processes=saved.processes,
            derived=shelf,
        )


class UnwritableError(Exception):
    """The cache cannot be written, mostly because the disk is full. Not an OSError: the trace is fine."""


def _is_whole(folder: Path, name: str, table: Table) -> bool:
    """Whether the file is the one that was written. The size is compared first: it costs nothing."""
    status = (folder / name).lstat()
    is_same = bool(FILES.fullmatch(name)) and stat.S_ISREG(status.st_mode) and status.st_size == table.size
    return is_same and digest_of(folder / name) == table.digest


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()  # most processors compute it, 1 to 2 GB/s
    for block in blocks_of(path, path.parent):
        digest.update(block)
    return digest.hexdigest()


def _can_be(folder: Path, tables: Mapping[str, Table]) -> bool:
    """Whether the tables have columns of ours, and not many more rows than their bytes can hold: a forged table of
    112 kB took 2.1 GB. Reads the files' footers. Tables that are no events are read up to the rows named."""
    rows, size = (sum(getattr(table, of) for table in tables.values()) for of in ("rows", "size"))
    if rows > TRACE_READING.rows_a_byte * size + TRACE_READING.rows_of_equal_values:
        return False
    if any(dict(pl.read_parquet_schema(folder / name)) != dict(_SCHEMAS.get(name, STORED)) for name in tables):
        return False
    events = [name for name in tables if name not in _SCHEMAS]
    if not events:
        return True
    in_files = pl.scan_parquet([folder / name for name in events]).select(pl.len()).collect().item()
    return int(in_files) == sum(tables[name].rows for name in events)


def _scan(folder: Path, names: Iterable[str], category: int) -> pl.LazyFrame:
    parts = sorted(folder / name for name in names if (part := PART.fullmatch(name)) and int(part[1]) == category)
    return pl.scan_parquet(parts, row_index_name=ROW) if parts else pl.LazyFrame(schema=STORED).with_row_index(ROW)
