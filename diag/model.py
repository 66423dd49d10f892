"""The types that flow from stage to stage. All frozen; every time in integer nanoseconds.

    Run ──ingest──▶ Tables ──attribution──▶ Attribution ──findings──▶ [Finding] ──verdict──▶ Verdict
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a rank does at one moment of a step. The kinds partition the step: their durations sum to it exactly."""

    COMPUTE = 0
    COMM = 1  # communication that nothing hides
    COPY = 2  # host-device copies that nothing hides
    DATA = 3  # waiting for the data loader
    CHECKPOINT = 4
    IDLE = 5


# A finer cause within a kind (Segments.detail). Free text would invite typing mistakes across modules.
class Detail(IntEnum):
    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    GC = 4  # Python's garbage collector
    SYNC = 5  # the host waited for the device, then the device waited for the host
    ALLOCATOR = 6
    LAUNCH = 7  # the host issues kernels more slowly than the device runs them
    DEPENDENCY = 8  # waiting for another stream
    P2P = 9  # pipeline bubble
    OTHER = 10


@dataclass(frozen=True)
class Segments:
    """A step of one rank cut into consecutive pieces. Arrays of equal length n; piece i covers
    ``[start_ns[i], end_ns[i])``, ``start_ns[i + 1] == end_ns[i]``, and the first and last edges are the step's own."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int8]
    detail: npt.NDArray[np.int8]

    def total(self, kind: Kind, detail: Detail | None = None) -> int:
        """Nanoseconds of one kind (and detail)."""
        chosen = self.kind == kind
        if detail is not None:
            chosen &= self.detail == detail
        return int((self.end_ns - self.start_ns)[chosen].sum())


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's part in one collective, on the clock of that rank.

    ``key`` is equal on all ranks that take part in the same collective: (group, sequence number or k-th call, op).
    ``start_ns``: the rank entered it; ``end_ns``: it was done on this rank. ``bytes`` is the full tensor, 0 if unknown.
    """

    key: tuple[str, int, str]
    op: str
    group: str
    group_ranks: tuple[int, ...]  # () where the trace does not say
    bytes: int
    start_ns: int
    end_ns: int
    inferred: bool = False  # matched by order of calls, not by a sequence number from the library


@dataclass(frozen=True)
class RankStep:
    """One step of one rank, partitioned."""

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    source: str  # "trace" or "records"
    segments: Segments
    overlapped_comm_ns: int
    optimizer_ns: int  # part of compute or idle
    collectives: tuple[CollectiveCall, ...] = field(default=())

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.begin_ns
