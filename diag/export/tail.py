"""The lines that a file has got since it was last read."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class RestartedError(Exception):
    """The file is another one, or shorter than what was read of it: another process writes it anew."""


class Tail(Generic[T]):
    """Records of a .jsonl file that grows, each given once. A line is read when its end is there."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.unreadable = 0
        self._read = 0  # bytes
        self._file: int | None = None  # inode
        self._decode = msgspec.json.Decoder(kind).decode

    @property
    def exists(self) -> bool:
        """Whether there was a file when it was last read."""
        return self._file is not None

    def read(self) -> list[T]:
        """What is new. RestartedError where the file is another one by now."""
        try:
            stat = self.path.stat()
            size = stat.st_size
            if size < self._read or self._file not in (None, stat.st_ino):
                raise RestartedError
            self._file = stat.st_ino
            if size == self._read:
                return []
            with self.path.open("rb") as file:
                file.seek(self._read)
                content = file.read(size - self._read)
        except OSError:  # not there yet, or a file system that fails just now
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        found = []
        for line in whole.split(b"\n"):
            if not line.strip():
                continue
            try:
                found.append(self._decode(line))
            except msgspec.DecodeError:
                self.unreadable += 1
        return found
