"""A training without any computing, which tells a timeline what a real one would, on a clock that it moves itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from diag.collectors.attach.events import Events
from diag.collectors.attach.timeline import Timeline
from diag.collectors.records import LoaderQueue, StepRecord
from diag.collectors.scheduling import Stamp
from diag.collectors.session import BETWEEN_STEPS, Moment

TRAIN, VALIDATION, OTHER = 1, 2, 3  # loaders
ADAM, SGD, ENGINE = 10, 11, 12  # optimizers


class Recorder:
    """Keeps the phases of every step: (name, start, end), in milliseconds."""

    on_device = False
    last: Recorder

    def __init__(self) -> None:
        Recorder.last = self
        self.now = 0
        self.doing = "", 0
        self.open: list[tuple[str, int, int]] = []
        self.passes = 0  # boundaries
        self.unused = 0  # of them, with which no step has ended yet
        self.follower: Events | None = None
        self._steps: list[tuple[int, int, int, list[tuple[str, int, int]]]] = []
        self.queues: list[LoaderQueue | None] = []

    @property
    def steps(self) -> list[tuple[int, int, int, list[tuple[str, int, int]]]]:
        if self.follower is not None:
            self.follower.catch_up(if_still=False)
        return self._steps

    @property
    def ahead(self) -> str:
        return self.follower.doing()[0] if self.follower is not None else self.doing[0]

    def moment(self, ahead: str = "") -> Moment:
        self.doing = (ahead or self.doing[0]), self.now
        return Moment(self.now, None)

    def stamp(self) -> Stamp:
        return self.now, 0, b""

    @staticmethod
    def moment_of(stamp: Stamp) -> Moment:
        return Moment(stamp[0])

    def pass_boundary(self) -> Stamp | None:
        """All but every fourth."""
        self.passes += 1
        if not self.passes % 4:
            return None
        self.unused += 1
        return self.stamp()

    def passed(self, name: str, start: Moment, end: Moment) -> None:
        self.open.append((name, start.ns, end.ns))

    @contextmanager
    def step(self, step: int, passed: Callable[[], Moment | None] = lambda: None) -> Iterator[StepRecord]:
        record, begin, self.open = StepRecord(step, 0, 0, []), self._at(passed), []
        yield record
        if passed() is None:
            self.doing = BETWEEN_STEPS, self.now
        else:
            self.unused -= 1
        self._steps.append((begin, self._at(passed), record.micro_batches, self.open))
        self.queues.append(record.queue)

    def _at(self, passed: Callable[[], Moment | None]) -> int:
        boundary = passed()
        return boundary.ns if boundary is not None else self.now


class Heard:
    """A timeline that ``Events`` tells of what it hears."""

    def __init__(self, recorder: Recorder) -> None:
        self.events = Events(self._tell, lambda: None, _fail)
        self.events.record(recorder)
        recorder.follower = self.events

    def _tell(self, name: str, *values: Any) -> Any:
        return self.events.hear(name, values)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if hasattr(self.events, name) and not named:  # what happens in every step
                return getattr(self.events, name)(*values)
            return self._tell(name, *values, *named.values())

        return call


def _fail(error: Exception) -> None:
    raise error


class Training:
    """Calls a timeline as a training would; every call takes the time that it is given."""

    belated = False

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.made = 0  # nodes of autograd's
        self.timeline: Any = Heard(self.recorder) if self.belated else Timeline(self.recorder)

    def wait(self, ms: int) -> None:
        self.recorder.now += ms

    def fetch(self, ms: int, loader: int = TRAIN, gradients: bool = True) -> None:
        self.timeline.fetch_begins(loader, gradients, *self._made)
        self.wait(ms)
        self.timeline.fetch_ends()

    def backward(self, ms: int) -> None:
        self.timeline.backward_begins(*self._made)
        self.wait(ms)
        self.timeline.backward_ends(*self._made)

    @property
    def _made(self) -> tuple[int, ...]:
        """``Events`` asks autograd."""
        return () if self.belated else (self.made,)

    def forward(self, ms: int, nodes: int = 5) -> None:
        self.made += nodes
        self.wait(ms)

    def optimize(self, ms: int, optimizer: int = ADAM, stepped: bool = True) -> None:
        self.timeline.optimizer_begins(optimizer)
        self.wait(ms)
        self.timeline.optimizer_ends(optimizer, stepped)

    def train(self) -> None:
        """A step of 10: data 1, forward 2, backward 3, clipping 2, optimizer 1, and 1 before the next batch."""
        self.fetch(1)
        self.wait(2)
        self.backward(3)
        self.wait(2)
        self.optimize(1)
        self.wait(1)

    @property
    def phases(self) -> list[list[tuple[str, int, int]]]:
        return [phases for *_, phases in self.recorder.steps]


def evaluate(training: Training, called: bool, gradients: bool) -> None:
    if called:
        training.timeline.eval_called()
    for _ in range(3):
        training.fetch(1, VALIDATION, gradients)
        training.wait(4)
