"""The cache of large trace files, in Parquet, so that opening one again reads a fraction of it.

An entry is keyed by a file's content, not its name, and by the version of this reader. It is written next to its place
and moved there when complete; if the cache cannot be written or read, that costs time, never a result.

Others may write to the folder's storage. So links in it are not followed, entries have the permissions of the user's
umask, and only files with our names are removed, in folders with our names whose contents.json identifies an entry.

    <cache>/<version>/<content key>/contents.json    header and totals
    <cache>/<version>/<content key>/*.parquet        events (in parts), names, arguments, counters
    <cache>/<version>/paths/<hash>.json              a file's size and time, and the key of its content then
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from isal import isal_zlib
from msgspec import Struct, field

from diag.collectors.files import replace_file
from diag.collectors.layout import run_of
from diag.collectors.reading import ANSWER_BYTES, DOCUMENT_BYTES, open_regular, read_regular
from diag.model import DAMAGED
from diag.traces.trace import ROW, STORED, Events, Process

from .trace import Contents

ENVIRONMENT = "DIAG_CACHE"  # a folder, or "off"
LIMIT_ENVIRONMENT = "DIAG_CACHE_GB"
_LIMIT_GB = 20.0
_ROWS_A_PART = 500_000
_READ_BYTES = 1 << 20

_VERSION = re.compile(r"[0-9a-f]{12}")
_KEY = re.compile(r"[0-9a-f]{1,16}-[0-9a-f]{8}(-[0-9a-f]{16})?|[0-9a-f]{32}(-[0-9a-f]{16})?")
_CONTENTS = "contents.json"
_PART = re.compile(r"events-(\d+)-\d{5,}\.parquet")
_FILE = re.compile(
    rf"{re.escape(_CONTENTS)}|{_PART.pattern}|(names|arguments|counters)\.parquet|[\w-]+\.bin|\.[\w-]+\.bin\.[0-9a-f]+\.tmp"
)


class _Saved(msgspec.Struct):
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
    sizes: dict[str, int]  # of the entry's files: a file of another size was truncated or overwritten
    key: str


class _Entry(msgspec.Struct):
    """The fields of contents.json that identify an entry; earlier versions do not name their key."""

    sizes: dict[str, int]
    key: str = ""


class _Stamp(msgspec.Struct):
    size: int
    mtime_ns: int
    key: str


class Cache(Struct, frozen=True):
    """A folder of entries. ``folder`` None: nothing is cached."""

    folder: Path | None
    from_user: bool = False  # set by the user: then data of a run directory goes there as well

    @property
    def _entries(self) -> Path | None:
        return self.folder / _version() if self.folder is not None else None

    def key_of(self, path: Path) -> str:
        """The key of a file's content. Reads the file unless its size and time are unchanged since the last time."""
        status = path.stat()
        stamp_path = self._stamp(path)
        if stamp_path is not None:
            with suppress(OSError, *DAMAGED):
                stamp = msgspec.json.decode(read_regular(stamp_path, DOCUMENT_BYTES, self.folder), type=_Stamp)
                if (stamp.size, stamp.mtime_ns) == (status.st_size, status.st_mtime_ns):
                    return stamp.key
        key = f"{status.st_size:x}-{_checksum(path):08x}"
        # A file younger than its clock's grain may still change without a new time.
        if stamp_path is not None and time.time_ns() - status.st_mtime_ns > 2_000_000_000:
            with suppress(OSError):
                if not stamp_path.parent.is_symlink():
                    replace_file(stamp_path, msgspec.json.encode(_Stamp(status.st_size, status.st_mtime_ns, key)))
        return key

    def _stamp(self, path: Path) -> Path | None:
        if self._entries is None:
            return None
        return self._entries / "paths" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"

    def load(self, key: str) -> Contents | None:
        """The entry of this key; None if there is none, or it cannot be read."""
        if self._entries is None:
            return None
        folder = self._entries / key
        try:
            if not all(map(_is_own_folder, (self._entries, folder))):
                return None
            saved = msgspec.json.decode(read_regular(folder / _CONTENTS, ANSWER_BYTES, folder), type=_Saved)
            if not all(_FILE.fullmatch(name) and _has_size(folder / name, size) for name, size in saved.sizes.items()):
                return None
            tables = {name: pl.read_parquet(folder / f"{name}.parquet") for name in ("names", "arguments", "counters")}
            frames = [_scan(folder, saved.sizes, code) for code in range(len(saved.categories))]
        except (OSError, *DAMAGED, pl.exceptions.PolarsError):
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
                names=tables["names"].to_series(),
                categories=tuple(saved.categories),
                arguments=tables["arguments"],
                counters=tables["counters"],
            ),
            places=tuple(saved.places),
            processes=saved.processes,
            derived=Shelf(folder),
        )

    @contextmanager
    def writing(self, key: str) -> Iterator[Writer | None]:
        """A writer for a new entry, which is kept if `Writer.finish` was reached; None if nothing can be cached."""
        writer = self._writer(key)
        try:
            yield writer
        finally:
            if writer is not None:
                _remove(writer.folder)

    def _writer(self, key: str) -> Writer | None:
        if self._entries is None:
            return None
        try:
            self._entries.mkdir(parents=True, exist_ok=True)
            if not _is_own_folder(self._entries):
                return None
            folder = self._entries / f".{key}-{uuid.uuid4().hex[:12]}"
            folder.mkdir()  # with the permissions of the user's umask: others may be meant to read it
            return Writer(folder, self._entries / key)
        except OSError:
            return None

    def prune(self, limit_gb: float | None = None) -> None:
        if self.folder is None:
            return
        limit = (limit_gb if limit_gb is not None else _limit_gb()) * 1e9
        with suppress(OSError):
            entries = sorted(_entries_below(self.folder), key=lambda entry: -entry[1])
            for path, _, size in entries:
                limit -= size
                if limit < 0:
                    _remove(path)


class Shelf(Struct, frozen=True):
    folder: Path

    def load(self, name: str) -> bytes | None:
        try:
            return read_regular(self.folder / f"{name}.bin", ANSWER_BYTES, self.folder)
        except OSError:
            return None

    def save(self, name: str, data: bytes) -> None:
        with suppress(OSError):
            replace_file(self.folder / f"{name}.bin", data)


class UnwritableError(Exception):
    """The cache cannot be written, mostly because the disk is full. Not an OSError: the trace is fine."""


class Writer(Struct):
    """Writes one entry, then moves it to its place. UnwritableError if that fails."""

    folder: Path
    place: Path
    parts: int = 0
    _rows: int = 0
    _open: list[pl.DataFrame] = field(default_factory=list)

    def write(self, part: pl.DataFrame) -> None:
        self._open.append(part)
        self._rows += len(part)
        if self._rows >= _ROWS_A_PART:
            self._flush()

    def _flush(self) -> None:
        if self._open:
            categories = 1 + max(int(part["cat"].max() or 0) for part in self._open)  # type: ignore[arg-type]
            for code, rows in enumerate(_by_category(self._open, categories)):
                if len(rows):
                    _write(rows, self.folder / f"events-{code}-{self.parts:05}.parquet")
            self.parts, self._rows, self._open = self.parts + 1, 0, []

    def finish(self, contents: Contents) -> None:
        self._flush()
        events = contents.events
        _write(events.names.to_frame(), self.folder / "names.parquet")
        _write(events.arguments, self.folder / "arguments.parquet")
        _write(events.counters, self.folder / "counters.parquet")
        try:
            sizes = {file.name: file.stat().st_size for file in self.folder.iterdir()}
            saved = _Saved(
                contents.distributed, contents.devices, contents.base_ns, contents.host, list(contents.threads),
                contents.begin_ns, contents.end_ns, contents.untimed_events, list(contents.gaps),
                list(events.categories), list(contents.places), contents.processes, sizes, self.place.name,
            )  # fmt: skip
            (self.folder / _CONTENTS).write_bytes(msgspec.json.encode(saved))
        except OSError as error:
            raise UnwritableError(str(error)) from error
        if os.path.lexists(self.place):  # damaged, or another process was faster
            _remove(self.place)
        with suppress(FileExistsError, OSError):  # another process was faster with the same content
            self.folder.replace(self.place)


def user_cache() -> Cache:
    """The cache that the environment names, else the one in the user's cache folder."""
    setting = os.environ.get(ENVIRONMENT)
    if setting:
        return Cache(None if setting == "off" else Path(setting), from_user=True)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Cache((Path(base) if base else Path.home() / ".cache") / "diag")
    except RuntimeError:  # no home
        return Cache(None)


@cache
def _version() -> str:
    """Hash of this package's sources: entries written by other code are not read."""
    return hash_of_sources(*Path(__file__).parent.rglob("*.py"))


def hash_of_sources(*files: Path) -> str:
    """A name for the output of these sources: other code has other output."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]


def _is_own_folder(folder: Path) -> bool:
    return stat.S_ISDIR(folder.lstat().st_mode)


def _has_size(file: Path, size: int) -> bool:
    status = file.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def _entries_below(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """The entries of all versions: path, time of last use, and the bytes that they take on disk, which are fewer than
    the file size for a file with holes."""
    for version in _folders_in(folder, _VERSION):
        for entry in _folders_in(version, _KEY):
            with suppress(OSError):
                files = _files_of(entry)
                if any(name == _CONTENTS for name, _ in files) and _is_entry(entry):
                    yield entry, entry.lstat().st_mtime_ns, sum(512 * status.st_blocks for _, status in files)


def _folders_in(folder: Path, name: re.Pattern[str]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / e.name for e in entries if name.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_entry(folder: Path) -> bool:
    """Whether the folder's contents.json is ours, and of this entry."""
    try:
        entry = msgspec.json.decode(read_regular(folder / _CONTENTS, ANSWER_BYTES, folder), type=_Entry)
    except (OSError, *DAMAGED):
        return False
    return entry.key in ("", folder.name) and "names.parquet" in entry.sizes


def _files_of(entry: Path | int) -> list[tuple[str, os.stat_result]]:
    """The regular files in a folder that have names of ours. OSError if it cannot be read."""
    with os.scandir(entry) as entries:
        return [
            (e.name, e.stat(follow_symlinks=False))
            for e in entries
            if _FILE.fullmatch(e.name) and e.is_file(follow_symlinks=False)
        ]


def _remove(entry: Path) -> None:
    """Removes our files from the folder of an entry, and the folder if nothing else is in it. Not by path: between two
    system calls a folder may be replaced by a link to another one, whose files are not ours."""
    with suppress(OSError):
        descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # contents.json goes last: after a kill, the remains of an entry can still be identified.
            for name, _ in sorted(_files_of(descriptor), key=lambda file: file[0] == _CONTENTS):
                os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        entry.rmdir()


def _limit_gb() -> float:
    try:
        return float(os.environ[LIMIT_ENVIRONMENT])
    except (KeyError, ValueError):
        return _LIMIT_GB


def _by_category(parts: Sequence[pl.DataFrame], categories: int) -> list[pl.DataFrame]:
    """The rows of the parts, a table for each category. A pass for each category takes a third of the time of grouping,
    as there are few."""
    together = pl.concat([pl.DataFrame(schema=STORED), *parts])
    return [together.filter(pl.col("cat") == code) for code in range(categories)]


def _scan(folder: Path, names: Iterable[str], category: int) -> pl.LazyFrame:
    parts = sorted(folder / name for name in names if (part := _PART.fullmatch(name)) and int(part[1]) == category)
    return pl.scan_parquet(parts, row_index_name=ROW) if parts else pl.LazyFrame(schema=STORED).with_row_index(ROW)


def _write(table: pl.DataFrame, path: Path) -> None:
    try:
        # Not compressed: codes and times are packed well enough (8 bytes an event, with lz4 it would be 5), and writing
        # takes two thirds of the time, reading a third. No statistics: no query selects few rows by their values.
        table.write_parquet(path, compression="uncompressed", statistics=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UnwritableError(str(error)) from error


def _checksum(path: Path) -> int:
    """CRC-32 of the file: guards against changes, not against forgery; a gigabyte takes a tenth of a second."""
    checksum = 0
    with open_regular(path, run_of(path), buffering=0) as file:
        while block := file.read(_READ_BYTES):
            checksum = isal_zlib.crc32(block, checksum)
    return checksum
