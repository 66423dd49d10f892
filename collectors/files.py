"""Writing that survives a crash: append-only lines, atomic replacement, a byte budget, and no exception ever.

A training job must not fail because its profiler could not write. The first error of a stream (permission, budget)
switches that stream off. A full disk costs only the lines that do not fit, as space may become free. The reason goes
into the heartbeat and is printed once on standard error.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import operator
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .text import visible


def is_full(error: object) -> bool:
    """Whether the disk, or this user's quota, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(problem: str) -> OSError:
    """The error for a short write, which the system does not report as an error."""
    return OSError(errno.ENOSPC, f"{problem}, is the disk full?")


_BLOCK = 4096  # bytes, of most file systems
_PRIVATE = 0o600
# A link under one of our names was put there by someone else: its target is neither appended to nor truncated. A pipe
# without a reader does not block the training either.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | _NO_LINK


class Budget:
    """Bytes that one rank may still write. ``whole``: the larger budget that this one is part of."""

    def __init__(self, limit: int, whole: Budget | None = None) -> None:
        self._left = limit
        self._whole = whole

    def take(self, size: int) -> bool:
        """Takes ``size`` bytes if they fit; returns whether they do."""
        if size > self._left or (self._whole is not None and not self._whole.take(size)):
            return False
        self._left -= size
        return True


class Complaints:
    """Errors of the collectors, printed once on standard error and kept for the heartbeat."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._full = False  # it has been printed
        self.messages: list[str] = []

    def add(self, problem: str, why: object) -> None:
        from .masking import masked_ends  # not in each process that imports torch

        message = masked_ends(f"{problem}: {why}")
        self.messages.append(message)
        if is_full(why):  # a full disk affects one file after the other: one line for all
            if self._full:
                return
            self._full = True
            message += " (further errors of a full disk are not printed)"
        with contextlib.suppress(Exception):  # standard error may be closed, or an object of the training
            text = visible(f"diag: rank {self._rank}: {message}; training goes on without it")
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def encode(record: Any) -> bytes:
    """One JSON line of a record (a dataclass or plain containers). Independent of the locale; never contains NaN."""
    try:
        text = _ENCODER.encode(record)
    except ValueError:  # a loss of NaN is worth recording, but not JSON
        text = json.dumps(_finite(json.loads(json.dumps(record, default=_fields))), separators=(",", ":"))
    return text.encode() + b"\n"


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass without copying: ``asdict`` copies deeply, which took most of a step's recording."""
    names, values_of = _getters(record.__class__)
    return dict(zip(names, values_of(record), strict=True))


@functools.cache
def _getters(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(kind.__dataclass_fields__)
    first_value = operator.attrgetter(names[0])
    return names, operator.attrgetter(*names) if len(names) > 1 else lambda record: (first_value(record),)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_fields)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class LineFile:
    """An append-only file of JSON lines. Lines are written with one system call, so a kill leaves at most one truncated
    line, at the end, which readers skip and count. The file is opened at the first line; forked children do not write.
    """

    def __init__(self, path: Path, budget: Budget, complaints: Complaints) -> None:
        self._path = path
        self._budget = budget
        self._complaints = complaints
        self._fd: int | None = None
        self._pid = os.getpid()
        self._off = False
        self._refused = False

    def write(self, *records: Any) -> int:
        """Writes one line per record, all in one write; on a full disk, the first ones that fit. Returns the number of
        lines written."""
        if self._off or os.getpid() != self._pid:
            return 0
        lines = b""
        for record in records:
            try:
                lines += encode(record)
            except (TypeError, ValueError, AttributeError) as error:  # a field that is not JSON, such as a tensor
                self._leave_out(error)
        if not lines:
            return 0
        if not self._budget.take(len(lines)):
            self._stop("byte budget used up")
            return 0
        whole_bytes = 0  # of complete lines
        try:
            if self._fd is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(self._path, _APPEND, 0o644)
            written = os.write(self._fd, lines)
            whole_bytes = lines.rfind(b"\n", 0, written) + 1
            if written != len(lines):  # whole lines stay; a partial one is cut, as the next would continue it
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written + whole_bytes)
                raise disk_full("short write")
        except OSError as error:
            if is_full(error):
                self._leave_out(error)
            else:
                self._stop(error)
        return lines.count(b"\n", 0, whole_bytes)

    def close(self) -> None:
        if self._fd is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = None
        self._off = True

    def _leave_out(self, why: object) -> None:
        if not self._refused:
            self._complaints.add(f"lines of {self._path.name} are left out", why)
        self._refused = True

    def _stop(self, why: object) -> None:
        self.close()
        self._complaints.add(f"{self._path.name} is no longer written", why)


def open_private(path: Path) -> io.FileIO:
    """An unbuffered file, truncated for writing. If this creates it, only its owner may read it: for command lines, the
    environment and a training's output. Raises OSError."""
    return io.FileIO(path, "wb", opener=_private_descriptor)


def append_to(path: Path) -> io.FileIO:
    """An unbuffered file opened for appending, created if there is none. Raises OSError, also for a symbolic link."""
    return io.FileIO(path, "ab", opener=lambda name, _flags: os.open(name, _APPEND, 0o644))


def _private_descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK, _PRIVATE)


def replace_file(path: Path, data: bytes, private: bool = False) -> None:
    """Replaces a file atomically: readers see the old content or the new, never a part. ``private``: only its owner may
    read it. Raises OSError."""
    with _beside(path, data, private) as temporary:
        temporary.replace(path)


def rewrite_file(path: Path, data: bytes, private: bool = False) -> None:
    """As ``replace_file``, but overwrites the file in place if the disk has no room for a second one: a concurrent
    reader may see a part. This needs content of at most one block, which fits where the old content was. Raises
    OSError."""
    try:
        replace_file(path, data, private)
    except OSError as error:
        if not is_full(error) or len(data) > _BLOCK or not path.exists():
            raise
        with path.open("r+b", buffering=0) as file:
            file.write(data)
            file.truncate()


def create_file(path: Path, data: bytes, private: bool = False) -> bool:
    """Creates a file atomically: readers see none or all of it. Returns False if it exists, and leaves it unchanged. Of
    several processes, also on hosts that share a file system, one succeeds. ``private``: see ``replace_file``. Raises
    OSError."""
    with _beside(path, data, private) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: a reader may see a part
            try:
                with open(path, "xb", opener=_private_descriptor if private else None) as file:
                    file.write(data)
            except FileExistsError:
                return False
    return True


@contextlib.contextmanager
def _beside(path: Path, data: bytes, private: bool) -> Iterator[Path]:
    """A temporary file with ``data`` in the folder of ``path``; removed afterwards."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            temporary.touch(_PRIVATE, exist_ok=False)
        temporary.write_bytes(data)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
