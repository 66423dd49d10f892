"""The events of a training, on their way to the timeline.

What happens in an ordinary training is kept with its time and interpreted some steps at a time. Between two kernels of
a training our code finds its instructions and data out of the caches, and interpreting an event then takes 20 to 50 us;
for one after the other it takes 1 to 4. Whatever begins an evaluation, asks for a profiler window or for a record to be
written is told at once, as is everything before the timeline knows the training, and on a device each end of a step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Protocol

from ..records import BACKWARD, DATA, FORWARD, OPTIMIZER, StepRecord
from ..session import Boundary, Moment
from .timeline import Timeline

_MOST_WAITING = 1024
_STILL_NS = 500_000_000  # without an event, and the training stands still

# Name, values, when it was heard (None: nobody asks), and the boundary between steps that it was.
_Event = tuple[str, tuple[Any, ...], int | Moment | None, Boundary | None]


class Recorder(Protocol):
    """What is used of ``Collector``."""

    doing: tuple[str, int]

    @property
    def on_device(self) -> bool: ...
    def moment(self, ahead: str = "") -> Moment: ...
    def passed(self, name: str, start: Moment, end: Moment, /) -> None: ...
    def step(self, step: int, passed: Callable[[], Boundary | None], /) -> AbstractContextManager[StepRecord]: ...
    def pass_boundary(self, ns: int, /) -> Boundary | None: ...


class Events:
    """Tells them to ``timeline``, all in their order and with the time at which they were heard."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._on_device = recorder.on_device
        self._waiting: deque[_Event] = deque()
        self._moment: Moment | None = None  # when what is told belatedly was heard
        self._boundary: Boundary | None = None  # which it was
        # The training's thread tells, or the heartbeat's where that stands still. A signal handler of the training's
        # may come between any two lines.
        self._telling = threading.RLock()
        self._teller = 0  # which of them is in the middle of it
        # As of the timeline, when it has been told of what waits:
        self._steady = False
        self._optimizing: int | None = None
        self._in_backward = False
        self.passed = recorder.passed
        self.timeline = Timeline(self)

    # -- what the timeline asks ------------------------------------------------------------------------------------

    def moment(self, ahead: str = "") -> Moment:
        return self._moment or self._recorder.moment(ahead)

    def step(self, step: int) -> AbstractContextManager[StepRecord]:
        return self._recorder.step(step, lambda: self._boundary)

    # -- hearing ---------------------------------------------------------------------------------------------------

    def hear(self, name: str, values: tuple[Any, ...]) -> Any:
        """What the timeline's method of this name returns, None of what waits.

        One function, and a plain tuple of each event: every call from here would be one out of the caches.
        """
        if not self._steady:
            return self._now(name, values)
        ns = monotonic_ns()
        at: int | Moment | None = ns
        boundary, ahead = None, ""  # the phase that heartbeats tell from here on
        if name == "backward_begins":
            self._in_backward, ahead = True, BACKWARD
        elif name == "backward_ends":
            self._in_backward, ahead = False, OPTIMIZER
        elif name == "fetch_begins":
            if not self.timeline.trains_with(*values):
                return self._now(name, values)
            self._optimizing, ahead = None, DATA
        elif name == "fetch_ends":
            ahead = FORWARD
        elif name == "optimizer_begins":
            if self._optimizing is None:
                self._optimizing = values[0]
        elif name == "optimizer_ends":
            if self._optimizing in (None, values[0]):  # else it is inside of another
                if self._in_backward or not self.timeline.leads(values[0]):
                    return self._now(name, values)
                if self.timeline.ends_step(*values[1:]):
                    boundary = self._recorder.pass_boundary(ns)
                    if boundary is None:
                        return self._now(name, values)
                self._optimizing = None
        elif name == "queue_seen" or (name == "note" and values[1] is None):  # a loss may be overwritten
            at = None
        elif name == "gradients_cleared":  # means nothing in a training whose optimizer is known
            return None
        else:
            return self._now(name, values)
        if at is not None and self._on_device:
            at = self._recorder.moment(ahead)
        elif ahead:
            self._recorder.doing = ahead, ns
        self._waiting.append((name, values, at, boundary))
        if len(self._waiting) >= _MOST_WAITING:
            self.catch_up(if_still=False)
        return None

    def catch_up(self, if_still: bool) -> None:
        """Tells what waits; by another thread only ``if_still``: where no event has come for a while."""
        if if_still and monotonic_ns() - self._recorder.doing[1] < _STILL_NS:
            return
        if self._is_telling():
            return
        if self._telling.acquire(blocking=False):  # a forked child may find it taken, and nobody to give it back
            try:
                self._tell()
            finally:
                self._telling.release()

    def _now(self, name: str, values: tuple[Any, ...]) -> Any:
        if self._is_telling():  # it is the handler, which saves, say
            self._waiting.append((name, values, self._recorder.moment(), None))
            return None
        with self._telling:
            self._tell()
            self._teller = threading.get_ident()
            try:
                found = getattr(self.timeline, name)(*values)
            finally:
                self._teller = 0
        self._steady, self._optimizing, self._in_backward = self.timeline.steady, self.timeline.optimizing, False
        return found

    def _is_telling(self) -> bool:
        """Whether this thread is in the middle of it."""
        return self._teller == threading.get_ident()

    def _tell(self) -> None:
        self._teller = threading.get_ident()
        try:
            while self._waiting:
                name, values, at, self._boundary = self._waiting.popleft()
                self._moment = Moment(at, None) if isinstance(at, int) else at
                getattr(self.timeline, name)(*values)
        finally:
            self._teller, self._moment, self._boundary = 0, None, None
