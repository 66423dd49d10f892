"""The operations of backends that compute on the host which are under way when a profiler window is to end.

A backend writes the time at which an operation ended into the profiler's record of it. torch frees these records when a
profiler stops, without asking whether all operations have ended. An operation that begins in a window and ends after it
then writes to freed memory: SIGSEGV or SIGABRT, or a training that hangs. So a window ends after its operations.
"""

from __future__ import annotations

import time
from typing import Any

from .policy import RECORDING


class Works:
    """The ``Work`` objects of asynchronous operations that began while a window recorded."""

    def __init__(self) -> None:
        self.watching = False
        self._ending: list[Any] = []  # their backend ends them
        self._waited_for: list[Any] = []  # sends and receives end in the training's wait for them

    def begun(self, work: Any, ends_by_itself: bool) -> None:
        if self.watching:
            (self._ending if ends_by_itself else self._waited_for).append(work)

    def under_way(self) -> bool:
        self._ending = [work for work in self._ending if not work.is_completed()]
        self._waited_for = [work for work in self._waited_for if not work.is_completed()]
        return bool(self._ending or self._waited_for)

    def wait(self) -> None:
        """Waits for those that end by themselves, at the end of a training that left them; not for ever."""
        self.watching, self._waited_for = False, []
        until = time.monotonic() + RECORDING.patience_s
        while self.under_way() and time.monotonic() < until:
            time.sleep(0.005)
        self._ending = []
