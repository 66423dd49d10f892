"""Writing that survives a crash: append-only lines, atomic replacement, a byte budget, and no exception ever.

A training job must not fail because its profiler could not write. A full disk costs only the lines that do not fit, as
space may become free. Any other error of a stream, such as a server that does not answer, costs its lines for a while;
then the file is opened again. The reason goes into the heartbeat and is printed once on standard error.

A stream that has used its budget goes on: its oldest part is removed.
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
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .layout import numbered_parts, part_of
from .policy import RECORDING
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
    """Bytes that a stream of a rank may take on the disk. ``parts``: how many files a stream has at most."""

    def __init__(self, limit: int, parts: int = 4) -> None:
        self.limit, self.parts = limit, parts

    def make_room(self, size: int, files: Iterable[Path]) -> bool:
        """Removes the oldest of the files until one more of this size fits. Returns False, and leaves them, if it is
        larger than the budget. Raises OSError."""
        if size > self.limit:
            return False
        sizes = [(status.st_mtime_ns, status.st_size, path) for path in files if (status := _status(path)) is not None]
        total = size + sum(of_file for _, of_file, _ in sizes)
        for _, of_file, path in sorted(sizes):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= of_file
        return True


def too_large_for(budget: Budget, size: int) -> str:
    return f"it takes {size:,} bytes, and {budget.limit:,} bytes of the byte budget are for such files"


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


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
    """An append-only stream of JSON lines, in one or more files, its parts: see ``layout.part_of``. A part that has
    its share of the budget is followed by the next one, and the oldest is removed where the whole would exceed the
    budget. So the newest lines stay, and a file only grows until it goes.

    Lines are written with one system call, so a kill leaves at most one truncated line, at the end, which readers skip
    and count. The file is opened at the first line; forked children do not write.
    """

    def __init__(self, path: Path, budget: Budget, complaints: Complaints) -> None:
        self._path = path
        self._budget = budget
        self._complaints = complaints
        self._fd: int | None = None
        self._parts: deque[_Part] = deque()  # the last one is written
        self._pid = os.getpid()
        self._off = False
        self._refused: set[int | None] = set()  # the errors that were said
        self._again_s = 0.0  # when a file that could not be written is tried again
        # Called with each record that is the first of a further part, before it is encoded: what the records refer to
        # may go with an earlier part.
        self.at_begin: Callable[[Any], object] = lambda _record: None

    def write(self, *records: Any) -> int:
        """Writes one line per record, all in one write if they are of one part; on a full disk, the first ones that
        fit. ``bytes`` are a line already. Returns the number of lines written."""
        if self._off or not records or os.getpid() != self._pid or time.monotonic() < self._again_s:
            return 0
        lines: list[bytes] = []  # that are not written yet
        size = written = 0
        try:
            if not self._parts:
                self._parts.extend(_Part(*found) for found in numbered_parts(self._path) or [(0, self._path)])
            for record in records:
                if self._parts[-1].size + size >= self._budget.limit // self._budget.parts:
                    written += self._write(lines)
                    lines, size = [], 0
                    self._begin_part()
                try:
                    if self._parts[-1].number and not self._parts[-1].size and not lines:
                        self.at_begin(record)
                    lines.append(record if isinstance(record, bytes) else encode(record))
                    size += len(lines[-1])
                except (TypeError, ValueError, AttributeError) as error:  # a field that is not JSON, such as a tensor
                    self._leave_out(error)
            return written + self._write(lines)
        except _FullError as error:
            self._leave_out(error.why)
            return written + error.lines
        except OSError as error:
            if not is_full(error):
                self._let_go()
                self._again_s = time.monotonic() + RECORDING.again_s
            self._leave_out(error)
            return written

    def _write(self, lines: list[bytes]) -> int:
        if not lines:
            return 0
        data = b"".join(lines)
        self._make_room(len(data))
        part = self._parts[-1]
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(part.path, _APPEND, 0o644)
            size = os.fstat(self._fd).st_size
            if size > part.size:  # a write that failed had put a part of a line there, which readers skip
                size += os.write(self._fd, b"\n")
            part.size = size
        written = os.write(self._fd, data)
        part.size += written
        if written != len(data):  # whole lines stay; a partial one is cut, as the next would continue it
            whole_bytes = data.rfind(b"\n", 0, written) + 1
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written + whole_bytes)
            part.size += whole_bytes - written
            raise _FullError(disk_full("short write"), data.count(b"\n", 0, whole_bytes))
        return len(lines)

    def _begin_part(self) -> None:
        self._let_go()
        number = self._parts[-1].number + 1
        self._parts.append(_Part(number, part_of(self._path, number)))

    def _make_room(self, size: int) -> None:
        total = size + sum(part.size for part in self._parts)
        while total > self._budget.limit and len(self._parts) > 1:
            oldest = self._parts[0]
            oldest.path.unlink(missing_ok=True)
            total -= self._parts.popleft().size

    def close(self) -> None:
        self._off = True
        if os.getpid() == self._pid:
            self._let_go()

    def _let_go(self) -> None:
        descriptor, self._fd = self._fd, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # never closed again: the number may be of a file of the training by now
                os.close(descriptor)

    def _leave_out(self, why: object) -> None:
        number = getattr(why, "errno", None)
        if number not in self._refused:
            self._complaints.add(f"lines of {self._path.name} are left out", why)
        self._refused.add(number)


class _Part:
    """A file of a stream, and its size."""

    def __init__(self, number: int, path: Path) -> None:
        self.number, self.path = number, path
        status = _status(path)
        self.size = status.st_size if status is not None else 0


class _FullError(Exception):
    """The disk is full. ``lines``: how many lines were written before."""

    def __init__(self, why: OSError, lines: int) -> None:
        super().__init__(why)
        self.why, self.lines = why, lines


def open_private(path: Path) -> io.FileIO:
    """An unbuffered file, truncated for writing. If this creates it, only its owner may read it: for command lines, the
    environment and a training's output. Raises OSError."""
    return io.FileIO(path, "wb", opener=_private_descriptor)


def append_to(path: Path) -> io.FileIO:
    """An unbuffered file opened for appending, created if there is none. Raises OSError, also for a symbolic link."""
    return io.FileIO(path, "ab", opener=lambda name, _flags: os.open(name, _APPEND, 0o644))


def _private_descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK, _PRIVATE)


def own_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter. OSError where it is somebody else's, or a link."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or (hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid()):
        raise PermissionError(13, "the folder is another user's", str(folder))


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
