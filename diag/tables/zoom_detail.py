"""Reads lanes in a window: as real events where these are few, as pixels where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.account.intervals import Times

from .zoom_lane import Lane

# design.md: above about 3,000 bars the browser stalls.
MOST_BARS = 3000
MOST_PIXELS = 1200
MOST_ROWS = 16  # events that are open at once; a lane with more is drawn in pixels


@dataclass(frozen=True, eq=False)
class Pixels:
    """A lane as the time that it is busy between each two edges. ``events``: how many the window holds."""

    lane: Lane
    edges: Times
    busy_ns: Times
    events: int

    @property
    def share(self) -> npt.NDArray[np.float64]:
        """Busy part of each pixel, 0 to 1."""
        found: npt.NDArray[np.float64] = self.busy_ns / np.diff(self.edges)
        return found


@dataclass(frozen=True, eq=False)
class Bars:
    """A lane as its events, by start. ``row``: 0 is the outermost of those that are open at once."""

    lane: Lane
    start_ns: Times
    end_ns: Times
    names: tuple[str, ...]
    row: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return int(self.row.max()) + 1 if len(self.row) else 1


def pixel_edges(begin_ns: int, end_ns: int, most: int = MOST_PIXELS) -> Times:
    """The edges of at most ``most`` pixels of (almost) equal length, none shorter than a nanosecond."""
    count = max(1, min(most, end_ns - begin_ns))
    found: Times = begin_ns + np.arange(count + 1, dtype=np.int64) * (end_ns - begin_ns) // count
    return found


def read_lanes(
    lanes: Sequence[Lane], begin_ns: int, end_ns: int, most_bars: int = MOST_BARS, most_pixels: int = MOST_PIXELS
) -> tuple[Pixels | Bars, ...]:
    """Each lane in the window. Those with the fewest events are bars, as long as these are few together."""
    edges = pixel_edges(begin_ns, end_ns, most_pixels)
    visible = [lane.visible(begin_ns, end_ns) for lane in lanes]
    left = most_bars
    found: dict[int, Pixels | Bars] = {}
    for i in sorted(range(len(lanes)), key=lambda i: len(visible[i])):
        left -= len(visible[i])
        bars = _bars(lanes[i], visible[i]) if left >= 0 else None
        found[i] = bars or Pixels(lanes[i], edges, lanes[i].busy_ns(edges), len(visible[i]))
    return tuple(found[i] for i in range(len(lanes)))


def read_bars(lanes: Sequence[Lane], begin_ns: int, end_ns: int, most_bars: int = MOST_BARS) -> tuple[Bars, ...] | None:
    """All lanes in the window as bars; None where these would be too many."""
    found: list[Bars] = []
    for lane in lanes:
        visible = lane.visible(begin_ns, end_ns)
        most_bars -= len(visible)
        bars = _bars(lane, visible) if most_bars >= 0 else None
        if bars is None:
            return None
        found.append(bars)
    return tuple(found)


@dataclass(frozen=True)
class NameTotal:
    """Events of one name in a window: how long they last in it, those inside others of the name included."""

    lane: Lane
    name: str
    total_ns: int
    events: int


def by_name(lanes: Sequence[Lane], begin_ns: int, end_ns: int, most: int = 10) -> list[NameTotal]:
    """The names that take most of the window, the most first."""
    found = []
    for lane in lanes:
        visible = lane.visible(begin_ns, end_ns)
        inside = np.minimum(lane.end_ns[visible], end_ns) - np.maximum(lane.start_ns[visible], begin_ns)
        # Exact while the sum of a name stays below 2**53 ns, a hundred days.
        total = np.bincount(lane.name[visible], weights=inside).astype(np.int64)
        count = np.bincount(lane.name[visible])
        for code in np.argsort(-total, kind="stable")[:most].tolist():
            if total[code] > 0:
                found.append(NameTotal(lane, lane.names[code], int(total[code]), int(count[code])))
    return sorted(found, key=lambda one: -one.total_ns)[:most]


def _bars(lane: Lane, visible: npt.NDArray[np.int64]) -> Bars | None:
    """The events as bars; None where too many are open at once."""
    start, end = lane.start_ns[visible], lane.end_ns[visible]
    row = _rows(start.tolist(), end.tolist())
    if row is None:
        return None
    names = tuple(lane.names[code] for code in lane.name[visible].tolist())
    return Bars(lane, start, end, names, np.array(row, dtype=np.int64))


def _rows(start: Sequence[int], end: Sequence[int]) -> list[int] | None:
    """A row for each event, sorted by start: the first one in which no earlier event is still open."""
    open_until: list[int] = []
    found = []
    for begin, until in zip(start, end, strict=True):
        row = next((i for i, time in enumerate(open_until) if time <= begin), len(open_until))
        if row == MOST_ROWS:
            return None
        if row == len(open_until):
            open_until.append(until)
        open_until[row] = until
        found.append(row)
    return found
