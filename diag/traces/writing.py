"""Writes traces into the cache (``diag.traces.cache``)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from diag.deferred import pl
from diag.traces.policy import TRACE_READING
from diag.traces.trace import STORED

from .cache import SAVED, Cache, Saved, Table, UnwritableError, digest_of
from .pruning import remove_entry
from .shelf import CONTENTS, Entry, Seal, Shelf, is_own_folder
from .trace import Contents


@contextmanager
def writing(cache: Cache, key: str) -> Iterator[Writer | None]:
    """A writer for a new entry, which is kept if `Writer.finish` was reached; None if nothing can be cached."""
    writer = _writer(cache, key)
    try:
        yield writer
    finally:
        if writer is not None:
            remove_entry(writer.folder)


def _writer(cache: Cache, key: str) -> Writer | None:
    entries, seal = cache.entries, cache.seal
    if entries is None or seal is None:
        return None
    try:
        entries.mkdir(parents=True, exist_ok=True)
        if not is_own_folder(entries):
            return None
        folder = entries / f".{key}-{uuid.uuid4().hex[:12]}"
        folder.mkdir()  # with the permissions of the user's umask: others may be meant to read it
        return Writer(folder, entries / key, seal)
    except OSError:
        return None


class Writer(Struct):
    """Writes one entry, then moves it to its place. UnwritableError if that fails."""

    folder: Path
    place: Path
    seal: Seal
    parts: int = 0
    _tables: dict[str, Table] = field(default_factory=dict)
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
            saved = Saved(
                contents.distributed, contents.devices, contents.base_ns, contents.host, list(contents.threads),
                contents.begin_ns, contents.end_ns, contents.untimed_events, list(contents.gaps),
                list(events.categories), list(contents.places), contents.processes, self._tables,
            )  # fmt: skip
            Shelf(self.folder, self.place.name, self.seal).must_save(SAVED, msgspec.json.encode(saved))
            entry = Entry({name: table.size for name, table in self._tables.items()}, self.place.name)
            (self.folder / CONTENTS).write_bytes(msgspec.json.encode(entry))
        except OSError as error:
            raise UnwritableError(str(error)) from error
        if os.path.lexists(self.place):  # damaged, or another process was faster
            remove_entry(self.place)
        with suppress(FileExistsError, OSError):  # another process was faster with the same content
            self.folder.replace(self.place)

    def _write(self, table: pl.DataFrame, name: str) -> None:
        path = self.folder / name
        try:
            # Not compressed: codes and times are packed well enough (8 bytes an event, with lz4 it would be 5), and
            # writing takes two thirds of the time, reading a third. No statistics: no query selects few rows by their
            # values.
            table.write_parquet(path, compression="uncompressed", statistics=False)
            self._tables[name] = Table(path.stat().st_size, digest_of(path), len(table))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UnwritableError(str(error)) from error


def _by_category(parts: Sequence[pl.DataFrame], categories: int) -> list[pl.DataFrame]:
    """The rows of the parts, a table for each category. A pass for each category takes a third of the time of grouping,
    as there are few."""
    together = pl.concat([pl.DataFrame(schema=STORED), *parts])
    return [together.filter(pl.col("cat") == code) for code in range(categories)]
