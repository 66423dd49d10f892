"""The lines that a file has got since it was last read."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from diag.collectors.layout import run_of
from diag.collectors.reading import LINE_BYTES, open_regular, too_large
from diag.errors import DAMAGED

T = TypeVar("T")


class RestartedError(Exception):
    """The file is another one, or shorter than what was read of it: another process writes it anew."""


class Tail(Generic[T]):
    """Records of a .jsonl file that grows, each given once. A line is read when its end is there."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.unreadable = 0
        self.refusal = ""  # why it could not be read the last time
        self._read = 0  # bytes
        self._file: int | None = None  # inode
        self._decode = msgspec.json.Decoder(kind).decode

    @property
    def exists(self) -> bool:
        """Whether there was a file when it was last read."""
        return self._file is not None

    def read(self) -> list[T]:
        """What is new. RestartedError where the file is another one by now."""
        found: list[T] = []
        try:
            about = self.path.stat()
            if about.st_size < self._read or self._file not in (None, about.st_ino):
                raise RestartedError
            self.refusal = ""
            if about.st_size == self._read and stat.S_ISREG(about.st_mode):
                self._file = about.st_ino
                return []
            with open_regular(self.path, run_of(self.path)) as file:
                self._file = about.st_ino
                file.seek(self._read)
                for line in iter(partial(file.readline, LINE_BYTES), b""):
                    if not line.endswith(b"\n"):  # it is being written
                        if len(line) == LINE_BYTES:
                            self.refusal = too_large(LINE_BYTES)
                        break
                    self._read += len(line)
                    if line.strip():
                        self._take(line, found)
        except FileNotFoundError:  # not there yet
            pass
        except OSError as error:  # no regular file, no permission, or a file system that fails just now
            self.refusal = str(error.strerror or error)
        return found

    def _take(self, line: bytes, found: list[T]) -> None:
        try:
            found.append(self._decode(line))
        except DAMAGED:
            self.unreadable += 1
