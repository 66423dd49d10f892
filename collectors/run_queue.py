"""How long the training's thread was ready to run and had no core: what other processes on the host cost it."""

from __future__ import annotations

import os
import threading

_FIELD = 1  # of "on a core, waiting for one, slices": Documentation/scheduler/sched-stats.rst


class RunQueue:
    """Of the thread that first reads, which must be the one that trains; Linux only. A read takes some microseconds."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._pid = 0
        self._before = 0

    def read(self) -> int | None:
        """Nanoseconds since the last read, 0 the first time; None where the system does not tell."""
        if self._pid != os.getpid():  # the first time, and in a forked child, whose thread is another one
            self._pid = os.getpid()
            self._fd = _opened()
            self._before = self._waited() or 0
        waited = self._waited()
        if waited is None:
            return None
        found, self._before = waited - self._before, waited
        return found

    def _waited(self) -> int | None:
        if self._fd is None:
            return None
        try:
            return int(os.pread(self._fd, 100, 0).split()[_FIELD])
        except (OSError, ValueError, IndexError):
            return None


def _opened() -> int | None:
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
