"""One rank's stretch of time as a line of operations: its work between entering collectives and waiting for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diag.account import intervals as iv
from diag.account.timeline import Timeline, of_label
from diag.model.steps import Detail, Kind, RankStep
from diag.replay.program import Issue, Line, Op, StepEnd, Wait, Work
from diag.replay.waits import Stop

_Event = tuple[int, int, int, Op]  # time, order among equal times, order within that, operation


def operations(line: Timeline, waited: Sequence[Stop], steps: Sequence[RankStep]) -> Line:
    """The line that, replayed with the measured ends of the collectives, takes as long as was measured.

    Waits replace whatever the account has in their time; communication that no collective explains stays work, so the
    sum is right.
    """
    stopped = _stopped(waited)
    events = [*_issues(waited, stopped), *_waits(waited, stopped), *_ends(steps, stopped)]
    events.sort(key=lambda event: event[:3])
    pieces = _work(line, stopped)
    found: list[Op] = []
    piece = next(pieces, None)
    for time, _, _, op in events:
        while piece is not None and piece[0] < time:
            start, end, label = piece
            kind, detail = of_label(label)
            found.append(Work(min(end, time) - start, kind, detail))
            piece = (time, end, label) if end > time else next(pieces, None)
        found.append(op)
    return tuple(found)


def _stopped(waited: Sequence[Stop]) -> iv.Intervals:
    """When the line stood still, a row for each wait, disjoint. Those that touch stay apart: operations lie between."""
    found: list[tuple[int, int]] = []
    for stop in sorted(waited, key=lambda stop: (stop.start_ns, stop.done_ns)):
        start = max(stop.start_ns, found[-1][1]) if found else stop.start_ns
        if stop.done_ns > start:
            found.append((start, stop.done_ns))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _work(line: Timeline, stopped: iv.Intervals) -> Iterator[tuple[int, int, int]]:
    """(start, end, label) of what is no wait, in order; time between steps is idle."""
    idle = int(Kind.IDLE) * len(Detail) + int(Detail.OTHER)
    edges = np.unique(np.concatenate((line.start_ns, line.end_ns, stopped.ravel())))
    begins, ends = edges[:-1], edges[1:]
    at = np.searchsorted(line.start_ns, begins, side="right") - 1
    label = np.where(begins < line.end_ns[at], line.label[at], idle)
    wait = np.searchsorted(stopped[:, 0], begins, side="right") - 1
    working = np.ones(len(begins), dtype=np.bool_)
    if len(stopped):
        working = (wait < 0) | (begins >= stopped[np.maximum(wait, 0), 1])
    inside = working & (begins >= line.start_ns[0]) & (ends <= line.end_ns[-1])
    return iter(list(zip(begins[inside].tolist(), ends[inside].tolist(), label[inside].tolist(), strict=True)))


def _issues(waited: Sequence[Stop], stopped: iv.Intervals) -> Iterator[_Event]:
    for number, stop in enumerate(sorted(waited, key=lambda stop: stop.call.start_ns)):
        began = _wait_around(stopped, stop.entered_ns)
        # Entered while the main line waited for another one: by another thread, so it need not wait as well.
        yield (began, 1, number, Issue(stop.key, stop.entered_ns - began))


def _waits(waited: Sequence[Stop], stopped: iv.Intervals) -> Iterator[_Event]:
    for stop in waited:
        yield (_wait_around(stopped, stop.start_ns), 2, stop.done_ns, Wait(stop.key))


def _ends(steps: Sequence[RankStep], stopped: iv.Intervals) -> Iterator[_Event]:
    for step in steps:
        yield (_wait_around(stopped, step.end_ns), 0, 0, StepEnd(step.step))


def _wait_around(stopped: iv.Intervals, time_ns: int) -> int:
    """When the wait began that the moment lies in; the moment itself where it lies in none."""
    at = int(np.searchsorted(stopped[:, 0], time_ns, side="right")) - 1
    if at >= 0 and stopped[at, 0] < time_ns < stopped[at, 1]:
        return int(stopped[at, 0])
    return time_ns
