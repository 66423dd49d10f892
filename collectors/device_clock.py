"""Times on the device, from CUDA events, without ever synchronising with it.

A mark is an event recorded on the stream that is current. The host never waits for one: after each step it asks whether
the step's last event has passed (``query``, which does not block) and reads the elapsed times of the steps that have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from .records import DeviceStepRecord, PhaseRow


class Event(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Mark:
    """A point on a stream; recorded when ``record`` is called."""

    __slots__ = ("event", "recorded")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.recorded = False

    def record(self) -> None:
        self.event.record()
        self.recorded = True


@dataclass
class _Step:
    step: int
    begin: Mark
    end: Mark | None = None
    phases: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    collectives: list[tuple[str, int, Mark, Mark]] = field(default_factory=list)

    def marks(self) -> Iterator[Mark]:
        yield self.begin
        if self.end is not None:
            yield self.end
        for _, start, end in self.phases:
            yield from (start, end)
        for _, _, start, end in self.collectives:
            yield from (start, end)


class DeviceClock:
    """Collects marks step by step. ``make_event`` gives an event with timing on; passed events are used again."""

    MAX_PENDING = 64  # steps that the device may lag behind before the oldest is given up

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self._make_event = make_event
        self._free: list[Event] = []
        self._current: _Step | None = None
        self._pending: deque[_Step] = deque()

    def mark(self, later: bool = False) -> Mark:
        mark = Mark(self._free.pop() if self._free else self._make_event())
        if not later:
            mark.record()
        return mark

    def begin_step(self, step: int) -> None:
        self._current = _Step(step, self.mark())

    def phase(self, name: str, start: Mark, end: Mark) -> None:
        if self._current is not None:
            self._current.phases.append((name, start, end))

    def end_step(self, collectives: list[tuple[str, int, Mark, Mark]]) -> None:
        if self._current is None:
            return
        self._current.end = self.mark()
        self._current.collectives = collectives
        self._pending.append(self._current)
        self._current = None
        if len(self._pending) > self.MAX_PENDING:
            self._pending.popleft()  # its events may still be in flight: not used again

    def passed(self) -> Iterator[DeviceStepRecord]:
        """The steps that the device has finished, oldest first. Never blocks."""
        while self._pending and all(mark.event.query() for mark in self._pending[0].marks() if mark.recorded):
            done = self._pending.popleft()
            yield _read(done)
            self._free.extend({id(mark): mark.event for mark in done.marks()}.values())  # phases share their edges


def _read(step: _Step) -> DeviceStepRecord:
    def since_begin(mark: Mark) -> int:
        return round(
            step.begin.event.elapsed_time(mark.event) * 1e6
        )  # milliseconds, resolution about half a microsecond

    assert step.end is not None
    return DeviceStepRecord(
        step=step.step,
        dur_ns=since_begin(step.end),
        phases=[PhaseRow(name, since_begin(a), since_begin(b)) for name, a, b in step.phases],
        collectives=[
            (group, seq, since_begin(a), since_begin(b))
            for group, seq, a, b in step.collectives
            if a.recorded and b.recorded
        ],
    )
