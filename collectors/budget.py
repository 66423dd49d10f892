"""What a rank writes while it trains: streams of lines within a budget of bytes, and no exception ever.

A training job must not fail because its profiler could not write. A full disk costs only the lines that do not fit, as
space may become free. Any other error of a stream, such as a server that does not answer, costs its lines for a while;
then the file is opened again. The reason goes into the heartbeat and is printed once on standard error.

A stream that has used its budget goes on: its oldest part is removed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .files import APPEND, disk_full, encode, is_full
from .layout import numbered_parts, part_of
from .policy import RECORDING
from .text import visible


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
        self.removed = False  # set, also by another thread, where the files were removed: the next line begins a part
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
                if self.removed or self._parts[-1].size + size >= self._budget.limit // self._budget.parts:
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
            self._fd = os.open(part.path, APPEND, 0o644)
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
        if self.removed:
            self._parts.clear()
            self.removed = False
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
