"""Reads files that other processes left: regular files only, up to a size cap, and none that lies outside of its run.

A run directory may be on storage that others write to, so any name in it may be a named pipe (opening it blocks
forever), a device (reading it never ends), or a link to a file of the reader that its writer may not see. The rules:

- A file of a run directory is a regular file, and lies in that directory once all links are resolved.
- In a folder that is not a run directory, links to regular files are followed: people collect traces and logs that way.
- A path that the user names may itself be a link; code that also accepts a pipe from a user opens it without
  ``open_regular``.

Refusals are OSErrors whose ``strerror`` is the reason, so they are reported like a file that cannot be read. Standard
library only.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .layout import MARKS, is_folder, run_of
from .policy import RECORDED_FILES

_PIECE = 1 << 16  # bytes

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_NOT_REGULAR = ", not a regular file"
_OUTSIDE = "a link that leads out of the run directory"


def open_regular(path: Path | str, within: Path | str | None = None, buffering: int = -1) -> BinaryIO:
    """The file, opened for reading. OSError if it cannot be opened, is not a regular file, or lies outside of the run
    directory ``within`` once links are resolved."""
    descriptor, _ = _opened(path, within)
    try:
        return os.fdopen(descriptor, "rb", buffering=buffering)
    except OSError:
        os.close(descriptor)
        raise


def _opened(path: Path | str, within: Path | str | None) -> tuple[int, int]:
    """The descriptor of a file as ``open_regular`` opens it, and its size."""
    # Opening a pipe or a device may change it. Not by ``Path``, which thousands of ranks notice.
    _must_be_regular(path, os.stat(path).st_mode)  # noqa: PTH116
    descriptor = os.open(path, _FLAGS)
    try:
        about = os.fstat(descriptor)
        _must_be_regular(path, about.st_mode)  # the opened file: the name may point elsewhere by now
        if within is not None and not _is_below(_place(descriptor, path), within):
            raise OSError(errno.EXDEV, _OUTSIDE, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, about.st_size


def read_regular(path: Path | str, most: int, within: Path | str | None = None) -> bytes:
    """All bytes of a file. OSError as ``open_regular``, and where there are more than ``most``."""
    descriptor, size = _opened(path, within)
    try:
        content = _read(descriptor, 0, most + 1, size) if size <= most else b""
    finally:
        os.close(descriptor)
    if max(size, len(content)) > most:  # it may grow meanwhile
        raise OSError(errno.EFBIG, too_large(most), str(path))
    return content


def read_object(path: Path | str, within: Path | str | None) -> dict[str, Any]:
    """The JSON object in a file that the training wrote; empty where there is none, or it cannot be read. The analyser
    reads with ``diag.rundir.lines``, which reports errors."""
    try:
        return object_of(read_regular(path, RECORDED_FILES.document_bytes, within))
    except OSError:
        return {}


def object_of(text: bytes | str) -> dict[str, Any]:
    """The JSON object of a text; empty where it is none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def whole(value: object) -> int:
    """The whole number that JSON holds. ValueError for what ``int`` would make one of or end with another error on:
    Infinity, NaN, a fraction, a text, a truth value, and digits beyond 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("not a whole number of 64 bits")
    return value


_OF_KIND: dict[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "None": type(None),
    "tuple[str, ...]": (list, tuple),
}


def is_of_kind(value: object, kind: str) -> bool:
    """Whether a value of JSON is of a field's annotation, like ``int | None``: a truth value is no number, Infinity and
    NaN are none either, and whole numbers have 64 bits."""
    if kind.startswith("Literal["):
        return value in ast.literal_eval(kind.removeprefix("Literal"))
    if isinstance(value, bool):
        return "bool" in kind.split(" | ")
    if isinstance(value, int | float) and not -(1 << 63) <= value < 1 << 63:
        return False
    if isinstance(value, list | tuple) and not all(isinstance(item, str) for item in value):
        return False
    return any(isinstance(value, _OF_KIND[part]) for part in kind.split(" | "))


def read_given(path: Path | str, most: int) -> bytes:
    """All bytes of a path that the user named, which may be a pipe. OSError where it cannot be read or holds more than
    ``most``."""
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, too_large(most), str(path))
    return content


def size_of(path: Path | str) -> int:
    """The size of a file in bytes; 0 where it cannot be looked at."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  (there may be a hundred thousand files)
    except OSError:
        return 0


def too_large(most: int) -> str:
    """The reason given for refusing a file of more than ``most`` bytes."""
    return f"too large (more than {most >> 20:,} MiB)" if most >= 1 << 20 else f"too large (more than {most:,} bytes)"


def read_tail(path: Path | str, most: int, within: Path | str | None = None) -> tuple[bytes, bool]:
    """The last ``most`` bytes of a file at most, and whether that is all of it. OSError as ``open_regular``."""
    descriptor, size = _opened(path, within)
    try:
        return _read(descriptor, max(0, size - most), min(most, size), size), size <= most
    finally:
        os.close(descriptor)


def _read(descriptor: int, at: int, most: int, size: int) -> bytes:
    """Up to ``most`` bytes of a file of about this size, from ``at`` on: one system call may return less."""
    parts, end = [], at + most
    while at < end and (part := os.pread(descriptor, min(end - at, max(size + 1, _PIECE)), at)):
        parts.append(part)
        at += len(part)
        if at == size:  # what is written meanwhile comes with the next reading
            break
    return b"".join(parts)


def folder_refusal(folder: Path, run: Path) -> str:
    """Why a folder of a run directory cannot be read; "" if it can."""
    try:
        os.listdir(folder)  # noqa: PTH208  (ten times faster, which ten thousand ranks notice)
    except OSError as error:
        return _plain(error)
    if not os.access(folder, os.X_OK):
        return _plain(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return _OUTSIDE if folder.is_symlink() and not _is_below(os.path.realpath(folder), run) else ""


def _plain(error: OSError) -> str:
    return str(error.strerror or error).lower()


def _must_be_regular(path: Path | str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, kind + _NOT_REGULAR, str(path))


def is_no_file(reason: str) -> bool:
    """Whether the reason for a refusal is a pipe, a device or a socket, which cannot hold a record or a log."""
    return reason.endswith(_NOT_REGULAR)


def _place(descriptor: int, path: Path | str) -> str:
    """The real path of the opened file. Linux names the open file, so changing a link after opening has no effect;
    other systems resolve the path as it is now."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return os.path.realpath(path)


def _is_below(real_path: str, folder: Path | str) -> bool:
    if real_path.startswith(f"{folder}/"):  # it has no links and no dots, and so has none of the folders in it
        return True
    root = os.path.realpath(folder)
    return real_path.startswith(root if root.endswith("/") else root + "/")


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key for names in natural order: rank10 comes after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name) if part]


def walk(
    folder: Path | str,
    refused: Callable[[str, str], object] | None = None,
    *,
    wanted: Callable[[str], bool] | None = None,
    enter: Callable[[str], bool] | None = None,
    follow_folders: bool = False,
    fenced: bool = True,
    order: Callable[[str], Any] | None = natural,
    most: int = RECORDED_FILES.most_entries,
) -> Iterator[str]:
    """The path of every regular file below a folder whose name satisfies ``wanted``. Each folder's files come first,
    sorted by ``order`` of their names: rank10 comes after rank9. ``order`` None: unsorted, which is faster.

    ``refused`` is called with each wanted file and each folder that is left out, and the reason: it cannot be read, is
    a pipe or a device, or is a link that leads out of its run directory. ``enter`` returns whether to descend into a
    folder of this path. ``fenced`` False: links may lead out of run directories, for folders that are the user's alone.
    ``follow_folders``: links to folders are followed too, each folder once, so loops end. The walk does not recurse and
    ends after ``most`` entries, which it reports to ``refused``.
    """
    say = refused if refused is not None else _say_nothing
    # Folders, each with the run directory that it lies in.
    waiting: list[tuple[str, Path | str | None]] = [(str(folder), run_of(Path(folder, "any file")) if fenced else None)]
    visited: set[tuple[int, int]] = set()
    looked_at = 0
    while waiting:
        current, run = waiting.pop()
        try:
            if follow_folders:
                status = Path(current).stat()
                if (status.st_dev, status.st_ino) in visited:
                    continue
                visited.add((status.st_dev, status.st_ino))
            with os.scandir(current) as listing:
                entries = list(listing)
            if order is not None:
                entries.sort(key=lambda entry: order(entry.name))
        except OSError as error:
            say(current, f"cannot be read: {error.strerror}")
            continue
        if fenced and run is None and any(entry.name in MARKS for entry in entries):
            run = current
        subfolders: list[tuple[str, Path | str | None]] = []
        for entry in entries:
            looked_at += 1
            if looked_at > most:
                say(str(folder), f"holds more than {most:,} files and folders: the others were skipped")
                return
            path = current + entry.name if current.endswith("/") else f"{current}/{entry.name}"
            if entry.is_file(follow_symlinks=False):  # most of them, which may be a hundred thousand
                if wanted is None or wanted(entry.name):
                    yield path
                continue
            is_link = entry.is_symlink()
            try:
                mode = _mode(entry)
            except OSError as error:
                if wanted is None or wanted(entry.name):
                    say(path, f"cannot be read: {error.strerror}")
                continue
            if stat.S_ISDIR(mode):
                if (is_link and not follow_folders) or (enter is not None and not enter(path)):
                    continue
                if is_link and run is not None and not _is_below(os.path.realpath(path), run):
                    say(path, f"cannot be read: {_OUTSIDE}")
                    continue
                subfolders.append((path, run))
            elif wanted is None or wanted(entry.name):
                try:
                    _must_be_regular(path, mode)
                    if is_link and run is not None and not _is_below(os.path.realpath(path), run):
                        raise OSError(errno.EXDEV, _OUTSIDE, path)
                except OSError as error:
                    say(path, f"cannot be read: {error.strerror}")
                    continue
                yield path
        waiting += reversed(subfolders)


def linked_folders(folder: Path | str) -> list[str]:
    """The links to folders in a folder, which `walk` does not follow, by name; empty where it cannot be read."""
    try:
        with os.scandir(folder) as listing:
            names = sorted((entry.name for entry in listing if entry.is_symlink()), key=natural)
    except OSError:
        return []
    return [path for name in names if is_folder(path := f"{str(folder).rstrip('/')}/{name}")]


def _mode(entry: os.DirEntry[str]) -> int:
    """The kind of an entry that is no regular file itself, with links resolved; usually without a system call."""
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else entry.stat().st_mode


def _say_nothing(*_: str) -> None:
    return
