"""The events of a training, on their way to the timeline.

Regular events of a training are queued with their time and interpreted several steps at a time. Between two kernels of
a training our code has its instructions and data out of the caches: interpreting a single event then takes 20 to 50 us,
and each function call on the way 3 us; interpreting many in a row takes 1 to 4 us each. The hooks that are called in
every step therefore call the methods here that are named after their events, which queue an event if it may wait. Other
events go to the timeline at once: those that begin an evaluation, request a profiler window or a record to be written,
all events before the timeline knows the training, and on a device each end of a step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from threading import get_ident
from time import monotonic_ns
from typing import Any, Protocol

import torch

from ..policy import RECORDING
from ..records import BACKWARD, DATA, FORWARD, OPTIMIZER, LoaderQueue, StepRecord
from ..scheduling import Stamp
from ..session import BETWEEN_STEPS, Moment
from .timeline import Timeline

# The phase that heartbeats report after an event.
_AHEAD = {"backward_begins": BACKWARD, "backward_ends": OPTIMIZER, "fetch_begins": DATA, "fetch_ends": FORWARD}

# The number of nodes that autograd has made in this thread. It shows when a forward ran.
nodes_made: Callable[[], int] = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", lambda: 0)

# Name, values, time (None: not needed), and whether it is a boundary between steps.
_Event = tuple[str, tuple[Any, ...], Moment | Stamp | None, bool]


def _time_only() -> Stamp:
    """The current time, without CPU times."""
    return monotonic_ns(), None, None


class Recorder(Protocol):
    """The part of ``Collector`` that is used here."""

    doing: tuple[str, int]  # the phase under way and since when, as far as the timeline knows

    @property
    def on_device(self) -> bool: ...
    def moment(self, ahead: str = "") -> Moment: ...
    @property
    def stamp(self) -> Callable[[], Stamp]: ...
    def moment_of(self, stamp: Stamp, /) -> Moment: ...
    def passed(self, name: str, start: Moment, end: Moment, /) -> None: ...
    def step(self, step: int, passed: Callable[[], Moment | None], /) -> AbstractContextManager[StepRecord]: ...
    def pass_boundary(self) -> Stamp | None: ...


class Events:
    """Passes events to ``timeline``, in order and with the time at which they occurred.

    The methods that are named after events never raise. Any thread of the process may call them.
    """

    __slots__ = (
        "_at",
        "_base",
        "_boundary",
        "_fail",
        "_fresh",
        "_in_backward",
        "_infers",
        "_known",
        "_last",
        "_loaders",
        "_look_ns",
        "_moment",
        "_next_optimizer",
        "_optimizer",
        "_optimizing",
        "_phases_ns",
        "_recorder",
        "_reduced",
        "_spare",
        "_stamp",
        "_steady",
        "_stopped",
        "_tell",
        "_teller",
        "_telling",
        "_unhooked",
        "_unscheduled",
        "_waiting",
        "looks",
        "passed",
        "thread",
        "timeline",
    )

    timeline: Timeline
    _recorder: Recorder
    passed: Callable[[str, Moment, Moment], None]

    def __init__(
        self, tell: Callable[..., Any], reduced: Callable[[], object], fail: Callable[[Exception], object]
    ) -> None:
        """``tell`` takes the name and values of an event that may not wait, and passes it to ``hear`` unless it is to
        be ignored. ``reduced`` is called when a backward has returned. ``fail`` takes an exception."""
        self._tell = tell
        self._reduced = reduced
        self._fail = fail
        self.thread = get_ident()  # the training's thread
        self.looks = True  # whether this step reads the loader's queue
        self._look_ns = self._phases_ns = 0
        self._waiting: deque[_Event] = deque()
        self._last: _Event | None = None  # the last queued event from which heartbeats take the phase
        self._at: Callable[[], Moment | Stamp] = self._now_here
        self._moment: Moment | None = None  # the time of the queued event that is being passed on
        self._boundary: Moment | None = None  # the same, if it is a boundary
        # The training's thread passes events on, or the heartbeat's thread if the training makes no progress. A signal
        # handler of the training may run between any two lines.
        self._telling = threading.RLock()
        self._teller = 0  # the thread that is passing events on
        # The state that the timeline will have after the queued events:
        self._steady, self._stopped = False, False
        self._optimizing: int | None = None
        self._in_backward = False
        self._loaders: Set[int] = frozenset()  # the loaders of the training's batches
        self._base: int | None = None  # the fastest optimizer,
        self._spare = 0  # and how often it may step without ending a step
        # The optimizer whose next step after a backward ends a step of the training, if steps are inferred; and the one
        # after that. None: the timeline decides.
        self._optimizer: int | None = None
        self._next_optimizer: int | None = None
        self._infers = True
        self._fresh = self._unhooked = False

    def record(self, recorder: Recorder, steps: int = 0) -> None:
        """From here on events go to a timeline that reports to ``recorder``. ``steps``: number of steps before."""
        self._recorder = recorder
        self.passed = recorder.passed
        self._stamp: Callable[[], Moment | Stamp] = self._mark if recorder.on_device else recorder.stamp
        self._unscheduled = self._mark if recorder.on_device else _time_only
        self._at = self._stamp
        self.timeline = Timeline(self, steps)
        self._loaders = self.timeline.loaders

    def stop(self) -> None:
        """Ends queueing: every event goes to ``tell``."""
        self._steady, self._stopped = False, True

    def rest(self) -> None:
        """Until ``record`` is called again every event goes to ``tell``, which has no recorder."""
        self._steady, self._last = False, None
        self._waiting.clear()

    def _mark(self) -> Moment:
        try:
            return self._recorder.moment()
        except Exception as error:  # whatever a failing device raises
            self._fail(error)
            return Moment(monotonic_ns())

    def _now_here(self) -> Moment:
        return Moment(monotonic_ns())

    # -- called by the timeline ------------------------------------------------------------------------------------

    def moment(self, ahead: str = "") -> Moment:
        return self._moment or self._recorder.moment(ahead)

    def step(self, step: int) -> AbstractContextManager[StepRecord]:
        return self._recorder.step(step, lambda: self._boundary)

    # -- events of every step --------------------------------------------------------------------------------------
    # As few calls as possible. An event is queued before the state changes: a signal handler may run in between, and
    # its events are passed on after the queued ones.

    def fetch_begins(self, loader: int, gradients: bool) -> None:
        if self._steady and gradients and loader in self._loaders and get_ident() == self.thread:
            self._last = event = ("fetch_begins", (loader, True, nodes_made()), self._at(), False)
            self._waiting.append(event)
            self._optimizing = None
        else:
            self._tell("fetch_begins", loader, gradients, nodes_made())

    def queue_seen(self, queue: LoaderQueue) -> None:
        if self._steady and get_ident() == self.thread:
            self._waiting.append(("queue_seen", (queue,), None, False))
        else:
            self._tell("queue_seen", queue)

    def fetch_ends(self) -> None:
        if self._steady and get_ident() == self.thread:
            self._last = event = ("fetch_ends", (), self._at(), False)
            self._waiting.append(event)
            if len(self._waiting) >= RECORDING.most_waiting_events:
                self._tell("too_many")
        else:
            self._tell("fetch_ends")

    def backward_begins(self) -> None:
        if self._steady and get_ident() == self.thread:
            self._last = event = ("backward_begins", (nodes_made(),), self._at(), False)
            self._waiting.append(event)
            self._in_backward = self._fresh = True
            self._unhooked = False
        else:
            self._tell("backward_begins", nodes_made())

    def backward_ends(self, _begun: object = None) -> None:
        if self._steady and get_ident() == self.thread:
            try:
                self._reduced()
            except Exception as error:
                self._fail(error)
                return
            self._last = event = ("backward_ends", (nodes_made(),), self._at(), False)
            self._waiting.append(event)
            self._in_backward = False
            if len(self._waiting) >= RECORDING.most_waiting_events:
                self._tell("too_many")
        else:
            self._tell("backward_ends", nodes_made())

    def optimizer_begins(self, optimizer: int) -> None:
        if self._steady and get_ident() == self.thread:
            self._waiting.append(("optimizer_begins", (optimizer,), self._at(), False))
            if self._optimizing is None:
                self._optimizing = optimizer
        else:
            self._tell("optimizer_begins", optimizer)

    def optimizer_ends(self, optimizer: int, stepped: bool = True) -> None:
        if not self._steady or get_ident() != self.thread:
            self._tell("optimizer_ends", optimizer, stepped)
            return
        if self._optimizing is None or self._optimizing == optimizer:  # else it is inside another optimizer's step
            if self._in_backward or optimizer != self._optimizer or not self._fresh:
                if self._spare > 0 and optimizer == self._base and self._fresh and not self._in_backward:
                    self._spare -= stepped
                    self._optimizing = None
                    self._waiting.append(("optimizer_ends", (optimizer, stepped), self._at(), False))
                else:
                    self._tell("optimizer_ends", optimizer, stepped)
                return
            if stepped and self._infers:
                try:
                    boundary = self._recorder.pass_boundary()
                except Exception as error:
                    self._fail(error)
                    return
                if boundary is None:
                    self._tell("optimizer_ends", optimizer, stepped)
                    return
                self._last = event = ("optimizer_ends", (optimizer, True), boundary, True)
                self._waiting.append(event)
                self._optimizer, self._fresh, self._spare = self._next_optimizer, self._unhooked, 0
                self._optimizing, self.looks = None, boundary[0] >= self._look_ns
                if self.looks:
                    self._look_ns = boundary[0] + RECORDING.queue_looked_at_from_ns
                if boundary[0] >= self._phases_ns:
                    self._at, self._phases_ns = self._stamp, boundary[0] + RECORDING.cpu_times_from_ns
                else:
                    self._at = self._unscheduled
                return
            self._optimizing = None
            if stepped:
                self._optimizer, self._fresh, self._spare = self._next_optimizer, self._unhooked, 0
        self._waiting.append(("optimizer_ends", (optimizer, stepped), self._at(), False))

    def gradients_cleared(self) -> None:
        if self._base is None:  # without meaning once an optimizer is known
            self._tell("gradients_cleared")

    def hear(self, name: str, values: tuple[Any, ...]) -> Any:
        """Calls the timeline's method of this name and returns its result; None for an event that is queued. For the
        training's thread."""
        if name == "too_many":
            self.catch_up(if_still=False)
            return None
        if self._steady and name == "note" and values[1] is None:  # a loss may be overwritten
            self._waiting.append((name, values, None, False))
            return None
        if name == "backward_ends":
            self._reduced()
        return self._now(name, values)

    def doing(self) -> tuple[str, int]:
        """The phase under way, and since when, including queued events."""
        last = self._last
        if last is None:
            return self._recorder.doing
        name, _, moment, _ = last
        return _AHEAD.get(name, BETWEEN_STEPS), moment[0] if moment is not None else 0

    def backwards(self) -> int:
        """The number of backwards so far; without those that are queued, which only happens after the first step."""
        return self.timeline.backwards

    def catch_up(self, if_still: bool) -> None:
        """Passes queued events on. ``if_still``: called by another thread, and only if no event has come for a
        while."""
        if if_still and monotonic_ns() - self.doing()[1] < RECORDING.still_ns:
            return
        if self._is_telling():
            return
        if self._telling.acquire(blocking=False):  # in a forked child the lock may be held by no thread
            try:
                self._tell_waiting()
            finally:
                self._telling.release()

    def _now(self, name: str, values: tuple[Any, ...]) -> Any:
        if self._is_telling():  # a signal handler that saves a checkpoint, for example
            self._waiting.append((name, values, self._recorder.moment(), False))
            return None
        if self._last is not None:
            self._recorder.doing, self._last = self.doing(), None
        limit_s = RECORDING.dead_disk_s
        if not (self._telling.acquire(timeout=limit_s) or self._telling.acquire(timeout=limit_s)):
            raise TimeoutError(f"the thread that writes has been stuck for {2 * limit_s:g} s")
        try:
            self._tell_waiting()
            steps = self.timeline.steps
            self._teller = get_ident()
            try:
                answer = getattr(self.timeline, name)(*values)
            finally:
                self._teller = 0
        finally:
            self._telling.release()
        timeline = self.timeline
        self._steady = timeline.steady and not self._stopped
        self._optimizing, self._in_backward = timeline.optimizing, False
        self.looks = self.looks or timeline.steps > steps
        iterations, self._infers = timeline.iterations, timeline.infers
        self._base, self._spare = iterations.base, iterations.spare
        self._optimizer, self._next_optimizer = iterations.last, iterations.next_last
        self._unhooked, self._fresh = timeline.unhooked, timeline.fresh or timeline.unhooked
        return answer

    def _is_telling(self) -> bool:
        """Whether this thread is passing events on already."""
        return self._teller == get_ident()

    def _tell_waiting(self) -> None:
        self._teller = get_ident()
        try:
            while self._waiting:
                name, values, moment, is_boundary = self._waiting.popleft()
                self._moment = (
                    moment if moment is None or isinstance(moment, Moment) else self._recorder.moment_of(moment)
                )
                self._boundary = self._moment if is_boundary else None
                getattr(self.timeline, name)(*values)
        finally:
            self._teller, self._moment, self._boundary = 0, None, None
