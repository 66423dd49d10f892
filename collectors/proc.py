"""Numbers that Linux tells of a process, read once a step from a file that stays open: four times cheaper."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_forks = 0  # that led to this process, of those this module has seen: cheaper than to ask the system for its number


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class ProcFile:
    """A small file of fields; ``path`` is asked again in a forked child, of which the file tells something else."""

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._fd: int | None = None
        self.process = -1  # whose file was read: how many forks lie before it

    def number(self, field: int) -> int | None:
        """The integer in a field, counted from 0; None where the system does not tell."""
        fields = self._fields()
        try:
            return int(fields[field])
        except (ValueError, IndexError):
            return None

    def numbers(self) -> list[int] | None:
        """All fields; None where the system does not tell, or one is no integer."""
        try:
            return [int(field) for field in self._fields()] or None
        except ValueError:
            return None

    def _fields(self) -> list[bytes]:
        if self.process != _forks:
            self.process = _forks
            try:
                self._fd = os.open(self._path(), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = None
        if self._fd is None:
            return []
        try:
            return os.pread(self._fd, 200, 0).split()
        except OSError:
            return []

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
