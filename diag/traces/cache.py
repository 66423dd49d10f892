"""The cache of large trace files, in Parquet, so that opening one again reads a fraction of it.

An entry is keyed by a file's content, not its name, and by the version of this reader. It is written next to its place
and moved there when complete; if the cache cannot be written or read, that costs time, never a result.

What is read back is what was written: contents.bin has a digest of every table, and each file that is no table begins
with its own. So a damaged entry is no entry, and the trace is read again. A digest alone stops no forger, and a run
directory may come from anybody: there, digests and the entries' places depend on a secret in the user's cache folder.
Whoever has not written an entry does not read it. In other folders, tables of more rows than their bytes can hold
are refused.

Others may write to the folder's storage. So links in it are not followed, entries have the permissions of the user's
umask, and only files with our names are removed, in folders with our names whose contents.json identifies an entry.

    <cache>/<version>/<content key>/contents.json    identifies the folder as an entry
    <cache>/<version>/<content key>/contents.bin     header and totals; size, digest and rows of each table
    <cache>/<version>/<content key>/*.parquet        events (in parts), names, arguments, counters
    <cache>/<version>/<content key>/*.bin            what analyses derived from the trace
    <cache>/<version>/paths/<hash>.json              a file's size and time, and the key of its content then
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
from isal import isal_zlib
from msgspec import Struct, field

from diag import policy
from diag.collectors.files import create_file, replace_file
from diag.collectors.layout import RunLayout, run_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular, read_regular
from diag.deferred import Schema, pl
from diag.model import DAMAGED
from diag.traces.policy import TRACE_READING
from diag.traces.trace import ARGUMENTS, COUNTERS, ROW, STORED, Events, Process

from .trace import Contents

ENVIRONMENT = "DIAG_CACHE"  # a folder, or "off"
LIMIT_ENVIRONMENT = "DIAG_CACHE_GB"

_VERSION = re.compile(r"[0-9a-f]{12}")
_KEY = re.compile(r"[0-9a-f]{1,16}-[0-9a-f]{8}(-[0-9a-f]{16})?|[0-9a-f]{32}(-[0-9a-f]{16})?")
_CONTENTS = "contents.json"
_SAVED = "contents"
_SECRET, _SECRET_BYTES = "secret", 32
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIGEST_BYTES = 32
_SCHEMAS: dict[str, Schema] = {
    "names.parquet": Schema(name="String"),
    "arguments.parquet": ARGUMENTS,
    "counters.parquet": COUNTERS,
}
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
    tables: dict[str, _Table]  # by the name of the file


class _Table(msgspec.Struct):
    size: int
    digest: str
    rows: int


class _Entry(msgspec.Struct):
    """contents.json, as far as it identifies an entry; earlier versions do not name their key."""

    sizes: dict[str, int]
    key: str = ""


class _Stamp(msgspec.Struct):
    size: int
    mtime_ns: int
    key: str


class Seal(Struct, frozen=True):
    """Puts a digest in front of data. ``secret``: needed to make the digest; empty: the digest shows damage only."""

    secret: bytes

    def closed(self, data: bytes, *names: str) -> bytes:
        """The data behind the digest of it and of its names, which tell where it belongs."""
        return self._digest(data, names) + data

    def opened(self, sealed: bytes, *names: str) -> bytes | None:
        """The data; None if anything of it, or where it lies, is not as it was closed."""
        digest, data = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        return data if hmac.compare_digest(digest, self._digest(data, names)) else None

    def _digest(self, data: bytes, names: tuple[str, ...]) -> bytes:
        made = hashlib.blake2b(msgspec.json.encode(names), key=self.secret, digest_size=_DIGEST_BYTES)
        made.update(data)
        return made.digest()


class Cache(Struct, frozen=True, dict=True):
    """A folder of entries. ``folder`` None: nothing is cached."""

    folder: Path | None
    from_user: bool = False  # set by the user: then data of a run directory goes there as well

    @cached_property
    def _seal(self) -> Seal | None:
        """None if a secret is needed, and the user's cache folder cannot keep one."""
        if self.folder is None or not _lies_in_run(self.folder):
            return Seal(b"")
        secret = _secret()
        return Seal(secret) if secret is not None else None

    @cached_property
    def _entries(self) -> Path | None:
        seal = self._seal
        if self.folder is None or seal is None:
            return None
        version = hashlib.blake2b(_version().encode(), key=seal.secret).hexdigest()[:12] if seal.secret else _version()
        return self.folder / version

    def key_of(self, path: Path) -> str:
        """The key of a file's content. Reads the file unless its size and time are unchanged since the last time."""
        status = path.stat()
        stamp_path, seal = self._stamp(path), self._seal
        if stamp_path is not None and seal is not None:
            with suppress(OSError, *DAMAGED):
                data = seal.opened(
                    read_regular(stamp_path, RECORDED_FILES.document_bytes, self.folder), stamp_path.name
                )
                stamp = msgspec.json.decode(data or b"", type=_Stamp)
                if (stamp.size, stamp.mtime_ns) == (status.st_size, status.st_mtime_ns):
                    return stamp.key
        key = f"{status.st_size:x}-{_checksum(path):08x}"
        # A file younger than its clock's grain may still change without a new time.
        if stamp_path is not None and seal is not None and time.time_ns() - status.st_mtime_ns > 2_000_000_000:
            with suppress(OSError):
                if not stamp_path.parent.is_symlink():
                    stamp = _Stamp(status.st_size, status.st_mtime_ns, key)
                    replace_file(stamp_path, seal.closed(msgspec.json.encode(stamp), stamp_path.name))
        return key

    def _stamp(self, path: Path) -> Path | None:
        if self._entries is None:
            return None
        return self._entries / "paths" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"

    def load(self, key: str) -> Contents | None:
        """The entry of this key; None if there is none, or it cannot be read."""
        entries, seal = self._entries, self._seal
        if entries is None or seal is None:
            return None
        folder = entries / key
        shelf = Shelf(folder, key, seal)
        try:
            if not all(map(_is_own_folder, (entries, folder))):
                return None
            saved = msgspec.json.decode(shelf.load(_SAVED) or b"", type=_Saved)
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
        entries, seal = self._entries, self._seal
        if entries is None or seal is None:
            return None
        try:
            entries.mkdir(parents=True, exist_ok=True)
            if not _is_own_folder(entries):
                return None
            folder = entries / f".{key}-{uuid.uuid4().hex[:12]}"
            folder.mkdir()  # with the permissions of the user's umask: others may be meant to read it
            return Writer(folder, entries / key, seal)
        except OSError:
            return None

    def shelf(self, name: str) -> Shelf | None:
        """The entry for what belongs to no trace but has this name; None if nothing can be kept."""
        entries, seal = self._entries, self._seal
        if entries is None or seal is None:
            return None
        key = hashlib.sha256(name.encode()).hexdigest()[:32]
        folder = entries / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not all(map(_is_own_folder, (entries, folder))):
                return None
            create_file(folder / _CONTENTS, msgspec.json.encode(_Entry({}, key)))
            os.utime(folder)  # the least recently used entries go first
        except OSError:
            return None
        return Shelf(folder, key, seal)

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
    """The files of an entry that are no tables."""

    folder: Path
    key: str
    seal: Seal

    def load(self, name: str) -> bytes | None:
        """What was saved under this name; None if that is not there, or no longer what it was."""
        try:
            sealed = read_regular(self.folder / f"{name}.bin", RECORDED_FILES.answer_bytes, self.folder)
        except OSError:
            return None
        return self.seal.opened(sealed, self.key, name)

    def save(self, name: str, data: bytes) -> None:
        with suppress(OSError):
            self.must_save(name, data)

    def must_save(self, name: str, data: bytes) -> None:
        """As ``save``; OSError if it cannot be written."""
        replace_file(self.folder / f"{name}.bin", self.seal.closed(data, self.key, name))


class UnwritableError(Exception):
    """The cache cannot be written, mostly because the disk is full. Not an OSError: the trace is fine."""


class Writer(Struct):
    """Writes one entry, then moves it to its place. UnwritableError if that fails."""

    folder: Path
    place: Path
    seal: Seal
    parts: int = 0
    _tables: dict[str, _Table] = field(default_factory=dict)
    _rows: int = 0
    _open: list[pl.DataFrame] = field(default_factory=list)

    def write(self, part: pl.DataFrame) -> None:
        self._open.append(part)
        self._rows += len(part)
        if self._rows >= TRACE_READING.rows_of_part:
            self._flush()

    def _flush(self) -> None:
        if self._open:
            categories = 1 + max(int(part["cat"].max() or 0) for part in self._open)  # type: ignore[arg-type]
            for code, rows in enumerate(_by_category(self._open, categories)):
                if len(rows):
                    self._write(rows, f"events-{code}-{self.parts:05}.parquet")
            self.parts, self._rows, self._open = self.parts + 1, 0, []

    def finish(self, contents: Contents) -> None:
        self._flush()
        events = contents.events
        self._write(events.names.to_frame(), "names.parquet")
        self._write(events.arguments, "arguments.parquet")
        self._write(events.counters, "counters.parquet")
        try:
            saved = _Saved(
                contents.distributed, contents.devices, contents.base_ns, contents.host, list(contents.threads),
                contents.begin_ns, contents.end_ns, contents.untimed_events, list(contents.gaps),
                list(events.categories), list(contents.places), contents.processes, self._tables,
            )  # fmt: skip
            Shelf(self.folder, self.place.name, self.seal).must_save(_SAVED, msgspec.json.encode(saved))
            entry = _Entry({name: table.size for name, table in self._tables.items()}, self.place.name)
            (self.folder / _CONTENTS).write_bytes(msgspec.json.encode(entry))
        except OSError as error:
            raise UnwritableError(str(error)) from error
        if os.path.lexists(self.place):  # damaged, or another process was faster
            _remove(self.place)
        with suppress(FileExistsError, OSError):  # another process was faster with the same content
            self.folder.replace(self.place)

    def _write(self, table: pl.DataFrame, name: str) -> None:
        path = self.folder / name
        try:
            # Not compressed: codes and times are packed well enough (8 bytes an event, with lz4 it would be 5), and
            # writing takes two thirds of the time, reading a third. No statistics: no query selects few rows by their
            # values.
            table.write_parquet(path, compression="uncompressed", statistics=False)
            self._tables[name] = _Table(path.stat().st_size, _digest_of(path), len(table))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UnwritableError(str(error)) from error


def user_cache() -> Cache:
    """The cache that the environment names, else the one in the user's cache folder."""
    setting = os.environ.get(ENVIRONMENT)
    if setting:
        return Cache(None if setting == "off" else Path(setting), from_user=True)
    return Cache(_home())


def _home() -> Path | None:
    """The user's cache folder; None without a home. A relative one would depend on the current folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "diag"  # noqa: PTH117  (a text)
    except RuntimeError:  # no home
        return None
    return folder if folder.is_absolute() else None


def _secret() -> bytes | None:
    """The user's secret, made when it is first needed; None if it cannot be kept, or others could have made it."""
    home = _home()
    if home is None:
        return None
    path = home / _SECRET
    try:
        if not os.path.lexists(path):
            home.mkdir(parents=True, exist_ok=True)
            create_file(path, secrets.token_bytes(_SECRET_BYTES), private=True)
        with open_regular(path, home, buffering=0) as file:
            status = os.fstat(file.fileno())
            secret = file.read(_SECRET_BYTES)
    except OSError:
        return None
    is_ours = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & _OF_OTHERS)
    return secret if is_ours and len(secret) == status.st_size == _SECRET_BYTES else None


def _lies_in_run(folder: Path) -> bool:
    run = RunLayout(folder.parent)
    return folder.name == run.tables.name and run.is_run()


def _version() -> str:
    """Hash of this package's sources: entries written by other code, or with other thresholds, are not read."""
    return with_thresholds(_sources(), "traces")


@cache
def _sources() -> str:
    return hash_of_sources(*Path(__file__).parent.rglob("*.py"))


def with_thresholds(version: str, *rooms: str) -> str:
    """The version, or another one of the same length where a user's file overrides thresholds of these rooms."""
    overridden = policy.digest(*rooms)
    return hashlib.sha256((version + overridden).encode()).hexdigest()[: len(version)] if overridden else version


def hash_of_sources(*files: Path) -> str:
    """A name for the output of these sources: other code has other output."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]


def _is_own_folder(folder: Path) -> bool:
    return stat.S_ISDIR(folder.lstat().st_mode)


def _is_whole(folder: Path, name: str, table: _Table) -> bool:
    """Whether the file is the one that was written. The size is compared first: it costs nothing."""
    status = (folder / name).lstat()
    is_same = bool(_FILE.fullmatch(name)) and stat.S_ISREG(status.st_mode) and status.st_size == table.size
    return is_same and _digest_of(folder / name) == table.digest


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()  # most processors compute it, 1 to 2 GB/s
    for block in _blocks(path, path.parent):
        digest.update(block)
    return digest.hexdigest()


def _can_be(folder: Path, tables: Mapping[str, _Table]) -> bool:
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
        entry = msgspec.json.decode(read_regular(folder / _CONTENTS, RECORDED_FILES.answer_bytes, folder), type=_Entry)
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
        return TRACE_READING.cache_gb


def _by_category(parts: Sequence[pl.DataFrame], categories: int) -> list[pl.DataFrame]:
    """The rows of the parts, a table for each category. A pass for each category takes a third of the time of grouping,
    as there are few."""
    together = pl.concat([pl.DataFrame(schema=STORED), *parts])
    return [together.filter(pl.col("cat") == code) for code in range(categories)]


def _scan(folder: Path, names: Iterable[str], category: int) -> pl.LazyFrame:
    parts = sorted(folder / name for name in names if (part := _PART.fullmatch(name)) and int(part[1]) == category)
    return pl.scan_parquet(parts, row_index_name=ROW) if parts else pl.LazyFrame(schema=STORED).with_row_index(ROW)


def _checksum(path: Path) -> int:
    """CRC-32 of the file: guards against changes, not against forgery; a gigabyte takes a tenth of a second."""
    checksum = 0
    for block in _blocks(path, run_of(path)):
        checksum = isal_zlib.crc32(block, checksum)
    return checksum


def _blocks(path: Path, within: Path | None) -> Iterator[bytes]:
    with open_regular(path, within, buffering=0) as file:
        while block := file.read(TRACE_READING.cache_read_bytes):
            yield block
