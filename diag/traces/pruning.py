"""Removes entries that were not used for longest, where a folder of them grows too large (``diag.traces.shelf``).

Only files with our names are removed, in folders with our names whose contents.json identifies an entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import read_regular
from diag.decoding import json_decoder
from diag.model import DAMAGED
from diag.traces.policy import TRACE_READING

from .shelf import CONTENTS, FILES, Entry

LIMIT_ENVIRONMENT = "DIAG_CACHE_GB"
_VERSION = re.compile(r"[0-9a-f]{12}")
_KEY = re.compile(r"[0-9a-f]{1,16}-[0-9a-f]{8}(-[0-9a-f]{16})?|[0-9a-f]{32}(-[0-9a-f]{16})?")


def prune(folder: Path | None, limit_gb: float | None = None) -> None:
    """Removes the entries in a folder that are beyond the limit, by default the user's."""
    if folder is None:
        return
    limit = (limit_gb if limit_gb is not None else _limit_gb()) * 1e9
    with suppress(OSError):
        entries = sorted(_entries_below(folder), key=lambda entry: -entry[1])
        for path, _, size in entries:
            limit -= size
            if limit < 0:
                remove_entry(path)


def keep_newest(entry: Path, prefix: str, most: int) -> None:
    """Removes files of an entry whose names begin with this, but for the newest ones."""
    with suppress(OSError), _opened(entry) as descriptor:
        own = [(name, status) for name, status in _files_of(descriptor) if name.startswith(prefix)]
        for name, _ in sorted(own, key=lambda file: -file[1].st_mtime_ns)[most:]:
            os.unlink(name, dir_fd=descriptor)


def _entries_below(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """The entries of all versions: path, time of last use, and the bytes that they take on disk, which are fewer than
    the file size for a file with holes."""
    for version in _folders_in(folder, _VERSION):
        for entry in _folders_in(version, _KEY):
            with suppress(OSError):
                files = _files_of(entry)
                if any(name == CONTENTS for name, _ in files) and _is_entry(entry):
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
        entry = json_decoder(Entry).decode(read_regular(folder / CONTENTS, RECORDED_FILES.answer_bytes, folder))
    except (OSError, *DAMAGED):
        return False
    return entry.key == folder.name or (not entry.key and "names.parquet" in entry.sizes)


def _files_of(entry: Path | int) -> list[tuple[str, os.stat_result]]:
    """The regular files in a folder that have names of ours. OSError if it cannot be read."""
    with os.scandir(entry) as entries:
        return [
            (e.name, e.stat(follow_symlinks=False))
            for e in entries
            if FILES.fullmatch(e.name) and e.is_file(follow_symlinks=False)
        ]


def remove_entry(entry: Path) -> None:
    """Removes our files from the folder of an entry, and the folder if nothing else is in it."""
    with suppress(OSError):
        with _opened(entry) as descriptor:
            # contents.json goes last: after a kill, the remains of an entry can still be identified.
            for name, _ in sorted(_files_of(descriptor), key=lambda file: file[0] == CONTENTS):
                os.unlink(name, dir_fd=descriptor)
        entry.rmdir()


@contextmanager
def _opened(entry: Path) -> Iterator[int]:
    """The folder. Its files are not removed by path: between two system calls it may be replaced by a link to another
    one, whose files are not ours."""
    descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _limit_gb() -> float:
    try:
        return float(os.environ[LIMIT_ENVIRONMENT])
    except (KeyError, ValueError):
        return TRACE_READING.cache_gb
