"""The result of a cross-check. Frozen; durations in integer nanoseconds, shares in percent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

AGREE_PERCENT = 0.1  # numbers closer than this are equal


class Quantity(StrEnum):
    """The quantities that both measure. All except the window are measured inside HTA's window."""

    WINDOW = "window"  # from the first to the last device event
    COMPUTE = "compute"
    NON_COMPUTE = "non-compute"  # exposed communication and copies
    IDLE = "idle"
    OVERLAP = "overlap"  # percent of the communication that is overlapped with compute


@dataclass(frozen=True)
class Measures:
    """A rank's device time in HTA's five terms. ``overlap_percent`` is None without communication."""

    window_ns: int
    compute_ns: int
    non_compute_ns: int
    idle_ns: int
    overlap_percent: float | None

    def value(self, quantity: Quantity) -> float | None:
        return {
            Quantity.WINDOW: self.window_ns,
            Quantity.COMPUTE: self.compute_ns,
            Quantity.NON_COMPUTE: self.non_compute_ns,
            Quantity.IDLE: self.idle_ns,
            Quantity.OVERLAP: self.overlap_percent,
        }[quantity]


@dataclass(frozen=True)
class Comparison:
    """One quantity of one rank, with the `difference` of the two values."""

    quantity: Quantity
    ours: float | None
    hta: float | None
    difference: float

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= AGREE_PERCENT


@dataclass(frozen=True)
class RankCheck:
    """One trace file. ``error``: HTA's exception and its possible cause in the trace; then nothing is compared."""

    rank: int | None  # None: we could not read the file either
    path: str
    begin_ns: int  # HTA's window, on the trace's clock
    end_ns: int
    comparisons: tuple[Comparison, ...]
    error: str = ""


@dataclass(frozen=True)
class CrossCheck:
    """Every trace of a run, read by both. ``notes``: general remarks."""

    tool: str
    version: str
    ranks: tuple[RankCheck, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PathShare:
    """The time of one kind of work on a critical path, and the number of its pieces."""

    kind: str
    ns: int
    pieces: int


@dataclass(frozen=True)
class PathEdge:
    """One piece of a critical path."""

    kind: str
    name: str
    ns: int


@dataclass(frozen=True)
class CriticalPath:
    """HTA's critical path through one step of one rank. ``shares`` add up to ``dur_ns``; longest first."""

    rank: int
    path: str
    step: int
    dur_ns: int
    shares: tuple[PathShare, ...]
    longest: tuple[PathEdge, ...]
    error: str = ""


@dataclass(frozen=True)
class KernelSequence:
    """Kernels that an operator launches in this order, ``count`` times; total times on the device and on the host."""

    operator: str
    kernels: tuple[str, ...]
    count: int
    device_ns: int
    host_ns: int


@dataclass(frozen=True)
class KernelSequences:
    """HTA's frequent kernel sequences of one rank, most frequent first; ``found`` is their total number."""

    rank: int
    path: str
    operator: str
    length: int
    found: int
    sequences: tuple[KernelSequence, ...]
    error: str = ""


def difference(ours: float | None, hta: float | None, quantity: Quantity) -> float:
    """HTA's value minus ours: in percentage points for the overlap, else in percent of the larger of the two, so
    between -100 and 100 even if one is zero. 100 if only one of the two has a value."""
    if ours is None or hta is None:
        return 0.0 if ours is hta else 100.0
    if quantity == Quantity.OVERLAP:
        return hta - ours
    larger = max(abs(ours), abs(hta))
    return 100.0 * (hta - ours) / larger if larger else 0.0
