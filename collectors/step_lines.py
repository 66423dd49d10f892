"""Steps that are over, written a few at a time.

In a training the code that writes finds its instructions and data out of the caches: ten steps then cost hardly twice
what one does. A step waits for others of two seconds, and for a heartbeat where none ends; the first ones do not wait,
for many a training dies early.

All ranks write after the same steps, those whose number is a multiple of a power of two: a rank that writes is late by
a millisecond or two, and the others wait for it. If each wrote when it pleased, every step of many ranks would be late.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from .calls import Call
from .files import LineFile
from .records import CollectiveLine, CollectiveRow, StepRecord
from .summary import StepSummary

_LONGEST_NS = 2_000_000_000
_AT_ONCE = 20  # steps at the begin
_PATIENCE_S = 5.0


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
        self._waiting: deque[tuple[StepRecord, Taken]] = deque()
        self._due = 0  # as many steps, or more, are to be written at once,
        self._due_ns = 0  # and so is one that ends then, or later
        self._seen = 0  # steps
        self._groups: dict[str, list[int]] = {}  # for the next line of collectives
        self._dropped = 0  # as well
        self._writing = threading.Lock()

    def add(self, record: StepRecord, taken: Taken) -> None:
        """A step that has ended, and the calls that became known with it."""
        self._waiting.append((record, taken))
        self._seen += 1
        if self.due(self._seen, record.end_ns):
            self.write()

    def due(self, steps: int, end_ns: int) -> bool:
        """Whether so many, of which the last ends then, are not to wait any longer."""
        return steps >= self._due or end_ns >= self._due_ns

    def write(self) -> None:
        """Whatever waits, unless another thread is about it."""
        if self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def close(self, taken: Taken) -> None:
        """The training has ended, or fails. ``taken``: what it called since its last step."""
        if self._writing.acquire(timeout=_PATIENCE_S):  # a forked child may find it taken, and nobody to give it back
            try:
                self._write()
                lines: list[CollectiveLine] = []
                rows = self._rows(taken, lines)
                self._collectives.write(*lines)
                self._summary.close(rows)
            finally:
                self._writing.release()

    def _write(self) -> None:
        waiting = []
        while self._waiting:  # while the training adds
            waiting.append(self._waiting.popleft())
        lines: list[CollectiveLine] = []
        rows, ends = [], []
        for _, taken in waiting:
            rows.append(self._rows(taken, lines))
            ends.append(len(lines))
        if waiting and self._seen >= _AT_ONCE:
            begin_ns, end_ns = waiting[0][0].begin_ns, waiting[-1][0].end_ns
            together = _power_of_two(_LONGEST_NS * len(waiting) // max(1, end_ns - begin_ns))
            self._due = (self._seen // together + 1) * together
            self._due_ns = end_ns + 3 * _LONGEST_NS // 2  # ranks agree on the number, and not on the time
        # First the collectives: whoever reads a step that has none takes all of it for computation.
        kept = self._collectives.write(*lines)
        for line in lines[kept:]:  # of groups later calls tell only the name
            self._groups = line.groups | self._groups
            self._dropped += line.dropped
        whole = [end <= kept or begin == end for begin, end in pairwise([0, *ends])]
        self._steps.write(*(record for (record, _), known in zip(waiting, whole, strict=True) if known))
        for (record, _), own in zip(waiting, rows, strict=True):
            self._summary.add(record, own)

    def _rows(self, taken: Taken, lines: list[CollectiveLine]) -> list[CollectiveRow]:
        """The rows of these calls, added to the lines. A group may be known before a call on it is."""
        self._groups |= taken.groups
        self._dropped += taken.dropped
        rows: list[CollectiveRow] = []
        for step, calls in taken.calls:
            lines.append(CollectiveLine(step, [call.row() for call in calls], self._groups, self._dropped))
            self._groups, self._dropped = {}, 0
            rows += lines[-1].rows
        return rows


def _power_of_two(most: int) -> int:
    """The largest up to it, 1 at least."""
    return 1 << max(0, most.bit_length() - 1)
