"""Steps that are over, written a few at a time.

In a training the code that writes finds its instructions and data out of the caches, and what one step costs four then
cost hardly more. A step waits for others of a quarter of a second, and for a heartbeat where none ends; the first ones
do not wait, for many a training dies early.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from .calls import Call
from .files import LineFile
from .records import CollectiveLine, CollectiveRow, StepRecord
from .summary import StepSummary

_LONGEST_NS = 250_000_000
_AT_ONCE = 20  # steps at the begin


class Taken(NamedTuple):
    """What the timer hands out when a step is over; see ``CollectiveTimer``."""

    calls: list[tuple[int, list[Call]]]
    groups: dict[str, list[int]]
    dropped: int


class StepLines:
    """The lines of one rank's steps and collectives, and their summary. The training's thread adds; it and the
    heartbeat's write."""

    def __init__(self, steps: LineFile, collectives: LineFile, summary: StepSummary) -> None:
        self._steps, self._collectives, self._summary = steps, collectives, summary
        self._waiting: deque[tuple[StepRecord | None, Taken]] = deque()
        self._since_ns = 0  # when the first of them ended
        self._seen = 0  # steps
        self._writing = threading.Lock()

    def add(self, record: StepRecord, taken: Taken) -> None:
        """A step that has ended, and the calls that became known with it."""
        if not self._waiting:
            self._since_ns = record.end_ns
        self._waiting.append((record, taken))
        self._seen += 1
        took_ns, waited_ns = record.end_ns - record.begin_ns, record.end_ns - self._since_ns
        if max(took_ns, waited_ns) >= _LONGEST_NS or self._seen <= _AT_ONCE:
            self.write()

    def write(self) -> None:
        """Whatever waits, unless another thread is about it."""
        if self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def close(self, taken: Taken) -> None:
        """The training has ended, or fails. ``taken``: what it called since its last step."""
        with self._writing:
            self._waiting.append((None, taken))
            self._write()
            self._summary.close()

    def _write(self) -> None:
        waiting = []
        while self._waiting:  # while the training adds
            waiting.append(self._waiting.popleft())
        records = [record for record, _ in waiting if record is not None]
        lines, rows = _lines([taken for _, taken in waiting])
        self._steps.write(*records)
        self._collectives.write(*lines)
        for (record, _), own in zip(waiting, rows, strict=True):
            self._summary.add(record, own)


def _lines(taken: list[Taken]) -> tuple[list[CollectiveLine], list[list[CollectiveRow]]]:
    """The lines of the calls, and of each ``taken`` its rows."""
    lines, rows = [], []
    for calls, groups, dropped in taken:
        own: list[CollectiveRow] = []
        for step, called in calls:
            line = CollectiveLine(step, [call.row() for call in called], groups, dropped)
            groups, dropped = {}, 0
            lines.append(line)
            own += line.rows
        rows.append(own)
    return lines, rows
