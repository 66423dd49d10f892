"""The events of a training, on their way to the timeline.

What happens in an ordinary training is kept with its time and interpreted some steps at a time. Between two kernels of
a training our code finds its instructions and data out of the caches: interpreting an event then takes 20 to 50 us, and
every function on the way to it 3; for one after the other it takes 1 to 4. The hooks that are called in every step
therefore call the methods here that are named after their events, which keep them if they may wait. Whatever begins an
evaluation, asks for a profiler window or for a record to be written is told at once, as is everything before the
timeline knows the training, and on a device each end of a step.
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

from ..records import BACKWARD, DATA, FORWARD, OPTIMIZER, LoaderQueue, StepRecord
from ..scheduling import Stamp
from ..session import BETWEEN_STEPS, Moment
from .timeline import Timeline

_MOST_WAITING = 1024
_LOOK_NS = 200_000_000  # shorter steps do not all look at the loader's queue, which changes slowly
# Shorter steps do not all ask the scheduler at each of their phases, which takes a third of recording one.
_PHASES_NS = 100_000_000
_STILL_NS = 500_000_000  # without an event: the training makes no progress
# The phases that heartbeats report from an event on.
_AHEAD = {"backward_begins": BACKWARD, "backward_ends": OPTIMIZER, "fetch_begins": DATA, "fetch_ends": FORWARD}

# How many nodes autograd has made in this thread: those of a forward say when it ran.
_nodes_made: Callable[[], int] = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", lambda: 0)

# Name, values, when it was heard (None: nobody asks), and whether that was a boundary between steps.
_Event = tuple[str, tuple[Any, ...], Moment | Stamp | None, bool]


def _time_only() -> Stamp:
    """Now, without asking the scheduler."""
    return monotonic_ns(), None, None


class Recorder(Protocol):
    """What is used of ``Collector``."""

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
    """Tells them to ``timeline``, all in their order and with the time at which they were heard.

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
        """``tell`` takes the name and values of an event that may not wait, and brings it to ``hear`` if it is to be
        heard. ``reduced`` is called when a backward has returned. ``fail`` takes what goes wrong."""
        self._tell = tell
        self._reduced = reduced
        self._fail = fail
        self.thread = get_ident()  # the one that trains
        self.looks = True  # whether the loader's queue is looked at in this step
        self._look_ns = self._phases_ns = 0
        self._waiting: deque[_Event] = deque()
        self._last: _Event | None = None  # of those that wait, from which heartbeats take the phase
        self._at: Callable[[], Moment | Stamp] = self._now_here
        self._moment: Moment | None = None  # when what is told belatedly was heard
        self._boundary: Moment | None = None  # which it was
        # The training's thread passes events on, or the heartbeat's where that makes no progress. A signal handler of
        # the training's may come between any two lines.
        self._telling = threading.RLock()
        self._teller = 0  # which of them is in the middle of it
        # As of the timeline, when it has been told of what waits:
        self._steady, self._stopped = False, False
        self._optimizing: int | None = None
        self._in_backward = False
        self._loaders: Set[int] = frozenset()  # whose batches the training trains with
        self._base: int | None = None  # the fastest optimizer,
        self._spare = 0  # and how often it may step without ending a step
        # The one whose step ends one of the training, after a backward and unless the training says itself where one
        # ends, and the one that does it afterwards. None: the timeline decides.
        self._optimizer: int | None = None
        self._next_optimizer: int | None = None
        self._infers = True
        self._fresh = self._unhooked = False

    def record(self, recorder: Recorder) -> None:
        """From here on they are told to a timeline that tells ``recorder``."""
        self._recorder = recorder
        self.passed = recorder.passed
        self._stamp: Callable[[], Moment | Stamp] = self._mark if recorder.on_device else recorder.stamp
        self._unscheduled = self._mark if recorder.on_device else _time_only
        self._at = self._stamp
        self.timeline = Timeline(self)
        self._loaders = self.timeline.loaders

    def stop(self) -> None:
        """Nothing is kept any more: ``tell`` is told everything."""
        self._steady, self._stopped = False, True

    def _mark(self) -> Moment:
        try:
            return self._recorder.moment()
        except Exception as error:  # whatever a device that fails raises
            self._fail(error)
            return Moment(monotonic_ns())

    def _now_here(self) -> Moment:
        return Moment(monotonic_ns())

    # -- what the timeline asks ------------------------------------------------------------------------------------

    def moment(self, ahead: str = "") -> Moment:
        return self._moment or self._recorder.moment(ahead)

    def step(self, step: int) -> AbstractContextManager[StepRecord]:
        return self._recorder.step(step, lambda: self._boundary)

    # -- what happens in every step --------------------------------------------------------------------------------
    # As few calls as can be. An event is kept before what it means is: a signal handler may come in between, and its
    # events are told after those that wait.

    def fetch_begins(self, loader: int, gradients: bool) -> None:
        if self._steady and gradients and loader in self._loaders and get_ident() == self.thread:
            self._last = event = ("fetch_begins", (loader, True, _nodes_made()), self._at(), False)
            self._waiting.append(event)
            self._optimizing = None
        else:
            self._tell("fetch_begins", loader, gradients, _nodes_made())

    def queue_seen(self, queue: LoaderQueue) -> None:
        if self._steady and get_ident() == self.thread:
            self._waiting.append(("queue_seen", (queue,), None, False))
        else:
            self._tell("queue_seen", queue)

    def fetch_ends(self) -> None:
        if self._steady and get_ident() == self.thread:
            self._last = event = ("fetch_ends", (), self._at(), False)
            self._waiting.append(event)
            if len(self._waiting) >= _MOST_WAITING:
                self._tell("too_many")
        else:
            self._tell("fetch_ends")

    def backward_begins(self) -> None:
        if self._steady and get_ident() == self.thread:
            self._last = event = ("backward_begins", (_nodes_made(),), self._at(), False)
            self._waiting.append(event)
            self._in_backward = self._fresh = True
            self._unhooked = False
        else:
            self._tell("backward_begins", _nodes_made())

    def backward_ends(self, _begun: object = None) -> None:
        if self._steady and get_ident() == self.thread:
            try:
                self._reduced()
            except Exception as error:
                self._fail(error)
                return
            self._last = event = ("backward_ends", (_nodes_made(),), self._at(), False)
            self._waiting.append(event)
            self._in_backward = False
            if len(self._waiting) >= _MOST_WAITING:
                self._tell("too_many")
        else:
            self._tell("backward_ends", _nodes_made())

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
        if self._optimizing is None or self._optimizing == optimizer:  # else it is inside of another
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
                    self._look_ns = boundary[0] + _LOOK_NS
                if boundary[0] >= self._phases_ns:
                    self._at, self._phases_ns = self._stamp, boundary[0] + _PHASES_NS
                else:
                    self._at = self._unscheduled
                return
            self._optimizing = None
            if stepped:
                self._optimizer, self._fresh, self._spare = self._next_optimizer, self._unhooked, 0
        self._waiting.append(("optimizer_ends", (optimizer, stepped), self._at(), False))

    def gradients_cleared(self) -> None:
        if self._base is None:  # means nothing in a training whose optimizer is known
            self._tell("gradients_cleared")

    # -- telling ---------------------------------------------------------------------------------------------------

    def hear(self, name: str, values: tuple[Any, ...]) -> Any:
        """What the timeline's method of this name returns, None of what waits. For the training's thread."""
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
        """The phase under way, and since when, whatever waits."""
        last = self._last
        if last is None:
            return self._recorder.doing
        name, _, at, _ = last
        return _AHEAD.get(name, BETWEEN_STEPS), at[0] if at is not None else 0

    def catch_up(self, if_still: bool) -> None:
        """Tells what waits; by another thread only ``if_still``: where no event has come for a while."""
        if if_still and monotonic_ns() - self.doing()[1] < _STILL_NS:
            return
        if self._is_telling():
            return
        if self._telling.acquire(blocking=False):  # a forked child may find it taken, and nobody to give it back
            try:
                self._tell_waiting()
            finally:
                self._telling.release()

    def _now(self, name: str, values: tuple[Any, ...]) -> Any:
        if self._is_telling():  # it is the handler, which saves, say
            self._waiting.append((name, values, self._recorder.moment(), False))
            return None
        if self._last is not None:
            self._recorder.doing, self._last = self.doing(), None
        with self._telling:
            self._tell_waiting()
            steps = self.timeline.steps
            self._teller = get_ident()
            try:
                answer = getattr(self.timeline, name)(*values)
            finally:
                self._teller = 0
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
        """Whether this thread is in the middle of it."""
        return self._teller == get_ident()

    def _tell_waiting(self) -> None:
        self._teller = get_ident()
        try:
            while self._waiting:
                name, values, at, is_boundary = self._waiting.popleft()
                self._moment = at if at is None or isinstance(at, Moment) else self._recorder.moment_of(at)
                self._boundary = self._moment if is_boundary else None
                getattr(self.timeline, name)(*values)
        finally:
            self._teller, self._moment, self._boundary = 0, None, None
