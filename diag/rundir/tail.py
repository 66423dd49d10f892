"""The lines added to a stream since it was last read."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from diag.collectors.layout import numbered_parts, part_of, run_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular, too_large

from .lines import decoder

T = TypeVar("T")


class RestartedError(Exception):
    """The file is another one, or shorter than the part read so far: another process rewrites it."""


class Tail(Generic[T]):
    """Records of a growing stream, each returned once, after its line is complete. ``most``: if the stream is larger on
    the first read, only this many bytes from its end are read; 0 reads all of it. Pieces that were removed before they
    were read are passed over."""

    def __init__(self, path: Path, kind: type[T], most: int = 0) -> None:
        self.path = path
        self._most = most
        self.unreadable = 0
        self.refusal = ""  # why the last read failed
        self._part = 0  # number of the part that is read
        self._read = 0  # bytes of it
        self._file: int | None = None  # its inode
        self._begun = False  # some part was there
        self._decode = decoder(kind)

    @property
    def exists(self) -> bool:
        """Whether there was a file when it was last read."""
        return self._begun

    def read(self) -> list[T]:
        """The new records. RestartedError if the file is another one now."""
        records: list[T] = []
        self.refusal = ""
        try:
            if not self._begun:
                self._begin()
            while True:
                complete = part_of(self.path, self._part + 1).exists()  # nothing is appended to this one any more
                try:
                    self._read_part(records)
                except FileNotFoundError:  # not created yet, or removed
                    complete = self._begun
                if not complete or self.refusal:
                    break
                later = [number for number, _ in numbered_parts(self.path)]
                if later and later[-1] < self._part:
                    raise RestartedError
                following = [number for number in later if number > self._part]
                if not following:
                    break
                self._part, self._read, self._file = following[0], 0, None
        except OSError as error:  # not a regular file, no permission, or a temporary failure of the file system
            self.refusal = str(error.strerror or error)
        return records

    def _begin(self) -> None:
        """Chooses the first part to read, and where."""
        left = self._most
        for number, path in reversed(numbered_parts(self.path)):
            self._part, size = number, path.stat().st_size
            if self._most and size > left:
                with open_regular(path, run_of(path)) as file:
                    file.seek(size - left)
                    file.readline(RECORDED_FILES.line_bytes)  # the rest of an incomplete line
                    self._read = file.tell()
                break
            left -= size

    def _read_part(self, records: list[T]) -> None:
        path = part_of(self.path, self._part)
        status = path.stat()
        if status.st_size < self._read or self._file not in (None, status.st_ino):
            raise RestartedError
        if status.st_size == self._read and stat.S_ISREG(status.st_mode):
            self._file, self._begun = status.st_ino, True
            return
        with open_regular(path, run_of(path)) as file:
            self._file, self._begun = status.st_ino, True
            file.seek(self._read)
            for line in iter(partial(file.readline, RECORDED_FILES.line_bytes), b""):
                if not line.endswith(b"\n"):  # it is being written
                    if len(line) == RECORDED_FILES.line_bytes:
                        self.refusal = too_large(RECORDED_FILES.line_bytes)
                    break
                self._read += len(line)
                if line.strip():
                    self._take(line, records)

    def _take(self, line: bytes, records: list[T]) -> None:
        record = self._decode(line)
        if record is None:
            self.unreadable += 1
        else:
            records.append(record)
