"""How long the training's thread was ready to run and had no core: what other processes on the host cost it."""

from __future__ import annotations

import threading

from .proc import ProcFile

_FIELD = 1  # of "on a core, waiting for one, slices": Documentation/scheduler/sched-stats.rst


class RunQueue:
    """Of the thread that first reads, which must be the one that trains; Linux only. A read takes some microseconds."""

    def __init__(self) -> None:
        self._file = ProcFile(lambda: f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._process = -1
        self._before = 0

    def read(self) -> int | None:
        """Nanoseconds since the last read, 0 the first time; None where the system does not tell."""
        waited = self._file.number(_FIELD)
        if waited is None:
            return None
        if self._process != self._file.process:  # the first time, and in a forked child, whose thread is another one
            self._process, self._before = self._file.process, waited
        found, self._before = waited - self._before, waited
        return found

    def close(self) -> None:
        self._file.close()
