"""A lane: what one rank did of one kind, laid out so that any part of it is read at once.

Events are sorted by their starts, and the time that they cover is summed up once; how much of it lies in each pixel is
then a search for the pixel's edges, whatever the zoom (design.md, "Figures for the dashboard").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from diag.account import intervals as iv
from diag.account.intervals import Covered, Intervals, Times

Codes = npt.NDArray[np.uint32]


class Category(StrEnum):
    """What a lane shows. The first ten partition a step."""

    COMPUTE = "compute"
    TRANSFER = "transfer"  # exposed communication that is not waiting
    WAITING = "waiting"  # exposed communication that waits for a later rank
    COMMUNICATION = "communication"  # where the two cannot be told apart
    COPY = "copy"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    NOT_LAUNCHED = "idle: host"  # nothing launched, or inside a launch or another call of the host
    QUEUED = "idle: queued"
    IDLE = "idle"  # of a CPU, or for a reason that is not known
    HOST = "host"  # operators, ranges and calls on the host, which may wait themselves


@dataclass(frozen=True, eq=False)
class Lane:
    """Events by start, in ns since the run's begin; ``name`` indexes ``names``. ``covered``: the time in which there is
    at least one of them. ``title`` and ``names`` may come from a trace: untrusted text."""

    title: str
    category: Category
    start_ns: Times
    end_ns: Times
    name: Codes
    names: Sequence[str]
    covered: Covered

    def __len__(self) -> int:
        return len(self.start_ns)

    def visible(self, begin_ns: int, end_ns: int) -> npt.NDArray[np.int64]:
        """Which events overlap the window, by start."""
        # Whatever reaches into the window began in the stretch of covered time that reaches into it.
        first = int(np.searchsorted(self.start_ns, self.covered.stretch_begin(begin_ns), side="left"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        found: npt.NDArray[np.int64] = first + np.flatnonzero(self.end_ns[first:last] > begin_ns)
        return found

    def busy_ns(self, edges: Times) -> Times:
        """How much of the time between each two edges the events cover."""
        return np.diff(self.covered.until(edges))

    def busy_in(self, begin_ns: int, end_ns: int) -> int:
        return int(self.busy_ns(np.array([begin_ns, end_ns], dtype=np.int64))[0])


def make_lane(
    title: str, category: Category, events: Intervals, name: Codes | None = None, names: Sequence[str] = ("",)
) -> Lane:
    """The lane of any (start, end) pairs. Without names all events have the same."""
    codes = name if name is not None else np.zeros(len(events), dtype=np.uint32)
    # The longer one of two that start together first: it is the outer one.
    order = np.lexsort((-events[:, 1], events[:, 0]))
    events = events[order]
    start, end = np.ascontiguousarray(events[:, 0]), np.ascontiguousarray(events[:, 1])
    return Lane(title, category, start, end, codes[order], names, Covered(iv.normal(events)))
