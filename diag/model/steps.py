"""The types that flow from one part of the analysis to the next. All frozen; every time in integer nanoseconds.

Run ──rundir, traces──▶ Tables ──account──▶ Attribution ──diagnoses──▶ [Finding] ──verdict──▶ Verdict
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, ClassVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from . import Doubt, Gap
from .query import Query
from .ragged import edges_of, entries_of, owners


class Kind(IntEnum):
    """A rank's activity at one moment of a step. The kinds partition the step: their durations sum to it exactly."""

    COMPUTE = 0
    COMM = 1  # exposed communication
    COPY = 2  # exposed host-device copies
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
    SYNC = 5  # the host is inside a synchronising call while the device has no work
    ALLOCATOR = 6  # the host is inside cudaMalloc, cudaFree or a similar call
    LAUNCH = 7  # not launched: the host had not issued the next work yet
    DEPENDENCY = 8  # launched and not running: waits for an event, another stream, or something that the trace lacks
    P2P = 9  # pipeline bubble
    OTHER = 10
    UNKNOWN = 11  # only in blame: a rank was late for no recorded reason
    OFFLOAD = 12  # parameters, gradients or optimizer states that are kept on the host: copying them, or waiting for it
    IN_LAUNCH = 13  # the host is inside the call that launches the next work
    AFTER_SYNC = 14  # not launched: the host has just returned from waiting for the device
    LOADING = 15  # the host loads code, creates a context, compiles, autotunes or captures a graph
    ONCE = 16  # not launched: one long stall in a window without step marks, which may never come again
    LATENCY = 18  # the few microseconds from a late launch to its work, which an earlier launch would have overlapped
    OUTSIDE = 17  # before the first or after the last work of a window without step marks
    # Copies between host and device, by their direction and the memory on the host, as far as the trace names them.
    FROM_HOST = 19
    FROM_PINNED = 20
    FROM_PAGEABLE = 21
    TO_HOST = 22
    TO_PINNED = 23
    TO_PAGEABLE = 24


FROM_HOST_DETAILS = (Detail.FROM_HOST, Detail.FROM_PINNED, Detail.FROM_PAGEABLE)
TO_HOST_DETAILS = (Detail.TO_HOST, Detail.TO_PINNED, Detail.TO_PAGEABLE)
# Idle time of a device that its host could remove: it had launched nothing, or was busy launching.
HOST_DETAILS = (Detail.LAUNCH, Detail.AFTER_SYNC, Detail.SYNC, Detail.ALLOCATOR, Detail.IN_LAUNCH, Detail.LATENCY)
# Idle time of a device whose cause the trace lacks: launched and not running, or without a recorded launch.
QUEUED_DETAILS = (Detail.DEPENDENCY, Detail.OTHER)
# Activity that happens once in a process, and is not part of a step.
STARTUP_DETAILS = (Detail.LOADING, Detail.OUTSIDE)


class Segments(Struct, frozen=True):
    """A step of one rank cut into consecutive pieces. Arrays of equal length n; piece i covers
    ``[start_ns[i], end_ns[i])``, ``start_ns[i + 1] == end_ns[i]``, and the first and last edges are the step's own."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int8]
    detail: npt.NDArray[np.int8]

    def total(self, kind: Kind, detail: Detail | None = None) -> int:
        chosen = self.kind == kind
        if detail is not None:
            chosen &= self.detail == detail
        return int((self.end_ns - self.start_ns)[chosen].sum())


class Pieces(Sequence[Segments]):
    """The pieces of several steps as columns, one step after the other; as a sequence, the ``Segments`` of each step,
    which are views. The pieces of step i are ``edges[i]`` to ``edges[i + 1]`` of ``every``."""

    __slots__ = ("_edges", "edges", "every")

    def __init__(self, every: Segments, edges: npt.NDArray[np.int64]) -> None:
        self.every, self.edges = every, edges
        self._edges: list[int] = edges.tolist()

    @classmethod
    def of(cls, steps: Sequence[Segments | CriticalPath]) -> Pieces:
        return cls(_put_together(steps), edges_of([len(pieces.kind) for pieces in steps]))

    @classmethod
    def joined(cls, several: Sequence[Pieces]) -> Pieces:
        """One after the other."""
        counts = [np.zeros(0, dtype=np.int64), *(np.diff(pieces.edges) for pieces in several)]
        return cls(_put_together([pieces.every for pieces in several]), edges_of(np.concatenate(counts)))

    def take(self, steps: npt.NDArray[np.int64] | slice) -> Pieces:
        """The pieces of the steps at these places. Those of a slice are views."""
        if isinstance(steps, slice) and steps.indices(len(self)) == (0, len(self), 1):
            return self
        at, edges = entries_of(self.edges, steps)
        columns: dict[str, Any] = {name: getattr(self.every, name)[at] for name in _COLUMNS}
        return Pieces(Segments(**columns), edges)

    @property
    def of_step(self) -> npt.NDArray[np.int64]:
        """The place of each piece's step."""
        return owners(self.edges)

    def summed(
        self, columns: npt.NDArray[np.int64], count: int, chosen: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.int64]:
        """Nanoseconds of the pieces by step and column, [steps, count]. ``columns``: of each piece; ``chosen``: those
        that count."""
        used = np.flatnonzero(np.bincount(columns, minlength=count))  # hardly any of the kinds and details
        place = np.zeros(count, dtype=np.int64)
        place[used] = np.arange(len(used))
        at, lasted_ns = place[columns] * len(self) + self.of_step, self.every.end_ns - self.every.start_ns
        if chosen is not None:
            at, lasted_ns = at[chosen], lasted_ns[chosen]
        sums = np.zeros((count, len(self)), dtype=np.int64)
        sums[used] = np.bincount(at, lasted_ns, len(used) * len(self)).reshape(len(used), len(self))
        return sums.T

    def moved(self, start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> Pieces:
        """The same pieces with these edges."""
        return Pieces(Segments(start_ns, end_ns, self.every.kind, self.every.detail), self.edges)

    def copied(self) -> Pieces:
        """The same pieces, without those of which they are a view."""
        columns: dict[str, Any] = {name: getattr(self.every, name).copy() for name in _COLUMNS}
        return Pieces(Segments(**columns), self.edges)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[Segments]:
        every = self.every
        start, end, kind, detail = every.start_ns, every.end_ns, every.kind, every.detail
        for i, j in pairwise(self._edges):
            yield Segments(start[i:j], end[i:j], kind[i:j], detail[i:j])

    @overload
    def __getitem__(self, place: int) -> Segments: ...
    @overload
    def __getitem__(self, place: slice) -> list[Segments]: ...
    def __getitem__(self, place: int | slice) -> Segments | list[Segments]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        at, every = range(len(self))[place], self.every
        i, j = self._edges[at], self._edges[at + 1]
        return Segments(every.start_ns[i:j], every.end_ns[i:j], every.kind[i:j], every.detail[i:j])


_COLUMNS = {"start_ns": np.int64, "end_ns": np.int64, "kind": np.int8, "detail": np.int8}


def _put_together(several: Sequence[Segments | CriticalPath]) -> Segments:
    columns: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype=of), *(getattr(pieces, name) for pieces in several)])
        for name, of in _COLUMNS.items()
    }
    return Segments(**columns)


def by_cause(pieces: Segments | CriticalPath) -> npt.NDArray[np.int64]:
    """Nanoseconds by kind and detail, [kinds, details]."""
    spent: npt.NDArray[np.int64] = by_causes([pieces])[0]
    return spent


def by_causes(steps: Sequence[Segments | CriticalPath]) -> npt.NDArray[np.int64]:
    """``by_cause`` of each, [steps, kinds, details]. Exact for sums below 2**53 ns (104 days)."""
    pieces = _together(steps)
    cause = pieces.every.kind.astype(np.int64) * len(Detail) + pieces.every.detail
    return (
        pieces.summed(cause, len(Kind) * len(Detail)).T.reshape(len(Kind), len(Detail), len(steps)).transpose(2, 0, 1)
    )


def by_kinds(steps: Sequence[Segments | CriticalPath]) -> npt.NDArray[np.int64]:
    """Nanoseconds by kind, [steps, kinds]."""
    pieces = _together(steps)
    return pieces.summed(pieces.every.kind.astype(np.int64), len(Kind))


def by_details(steps: Sequence[Segments | CriticalPath], kind: Kind) -> npt.NDArray[np.int64]:
    """Nanoseconds of one kind by detail, [steps, details]."""
    pieces = _together(steps)
    return pieces.summed(pieces.every.detail.astype(np.int64), len(Detail), pieces.every.kind == kind)


def _together(steps: Sequence[Segments | CriticalPath]) -> Pieces:
    if isinstance(steps, Pieces):
        return steps
    return Pieces.of(steps) if steps else Pieces(_put_together(()), np.zeros(1, dtype=np.int64))


class CollectiveCall(msgspec.Struct, frozen=True, gc=False):
    """One rank's part in one collective, on the clock of that rank. A Struct, because there are thousands of them: it
    is created in 0.1 us, a frozen dataclass in 1.3. And it is untracked by the garbage collector, which would otherwise
    scan all of them again and again (half of the time of a run of 256 ranks). It is in no reference cycle.

    ``key`` is equal on all ranks that take part in the same collective: (group, sequence number or k-th call, op).
    ``start_ns``: the rank entered it; ``end_ns``: it was done on this rank. ``bytes`` is the full tensor, 0 if unknown.
    ``sent_bytes``, ``received_bytes``: of an all-to-all, this rank's parts, including what it keeps; None if unknown.
    """

    key: tuple[str, int, str]
    op: str
    group: str
    group_ranks: tuple[int, ...]  # () if unknown
    bytes: int
    start_ns: int
    end_ns: int
    inferred: bool = False  # matched by order of calls, not by a sequence number from the library
    dtype: str = ""  # as the source spells it
    group_size: int = 0  # 0 if unknown; known, too, if the list of ranks was shortened
    waited_ns: tuple[int, int] | None = None  # when a thread of the training was blocked in it; None: not recorded
    sent_bytes: int | None = None
    received_bytes: int | None = None


class Stall(Struct, frozen=True):
    """A long piece of a device's idle time. ``at_ns``: its begin, relative to the step's; ``part``: its field of
    ``IdleParts``, without "_ns"; ``host``: the innermost range, module, operator or call of the host that covers
    ``host_share`` of it, "" if the trace has none."""

    at_ns: int
    dur_ns: int
    part: str
    host: str
    host_share: float


class RankStep(Struct, frozen=True):
    rank: int
    step: int
    begin_ns: int
    end_ns: int
    source: str  # "trace", "records", or "events": records on the device's clock
    segments: Segments
    overlapped_comm_ns: int
    optimizer_ns: int  # part of compute or idle
    collectives: Sequence[CollectiveCall] = ()
    comm_known: bool = True  # False: communication ran on a device without a trace and counts as compute
    # False: some collectives were recorded at their end only; overlapped_comm_ns is a lower bound
    hidden_known: bool = True
    stalls: tuple[Stall, ...] = ()  # the longest pieces of idle time of a device
    pieces: int = 0  # number of pieces of device work that began in it: kernels, copies, collectives
    fused_ns: int = 0  # part of compute: kernels that compute and communicate at once
    beneath_ns: int = 0  # part of compute: the device may have been idle beneath a collective
    waits_known: bool = True  # False: some waits for collectives were not recorded and count as compute
    # Of a traced step on a CPU, by phase: time in which no operator runs, which is compute as far as the thread runs.
    outside_operators_ns: Mapping[Detail, int] = field(default_factory=dict)

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.begin_ns


class NotLooked(Struct, frozen=True):
    """A diagnosis that could not be looked for, and why. ``diagnosis``: its id, or ""."""

    question: str
    reason: str
    diagnosis: str = ""

    def __str__(self) -> str:
        return f"{self.question}: {self.reason}"


class Coverage(Struct, frozen=True):
    """The data behind the verdict. ``clock_uncertainty_ns``: half width of the clock offsets; None: not aligned.
    ``clock_drift_ppm``: the drift between clocks before it was corrected; 0: offsets suffice."""

    ranks_used: tuple[int, ...]
    ranks_missing: tuple[int, ...]
    skipped: tuple[Gap, ...]
    clock_uncertainty_ns: int | None
    not_looked: tuple[NotLooked, ...] = ()
    clock_drift_ppm: float = 0.0
    explained_wait: float | None = None  # fraction of the waiting for late ranks with a known reason; None: no waiting
    notes: tuple[str, ...] = ()  # other reasons that lower the confidence

    @property
    def incomplete(self) -> bool:
        return bool(self.ranks_missing or self.skipped)


class Bottleneck(StrEnum):
    """The classes that users see. ``mixed``: two causes of equal weight. ``undetermined``: the data does not decide."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    DATA = "data"
    HOST = "host"  # the device waits because its host launched nothing
    MIXED = "mixed"
    UNDETERMINED = "undetermined"


class Severity(StrEnum):
    HEALTHY = "healthy"
    WARN = "warn"
    CRITICAL = "critical"

    @property
    def words(self) -> str:
        """As people read it."""
        return "warning" if self is Severity.WARN else self.value


class IdleParts(Struct, frozen=True):
    """Why a device was idle, in nanoseconds; the fields add up to ``idle_ns`` exactly (docs/concepts/idle.md).

    Each gap between two pieces of device work is divided: until the host began to launch the second one
    (``not_launched_ns``, or ``host_call_ns`` while the host was inside a synchronising or allocating call), during that
    launch or while the host loaded or compiled code (``in_launch_ns``), and after the end of the launch
    (``queued_ns``). ``outside_ns``: before the first and after the last work of a window without step marks.
    ``unknown_ns``: the trace lacks the launch, or has no events of a device."""

    not_launched_ns: int = 0
    in_launch_ns: int = 0
    queued_ns: int = 0
    host_call_ns: int = 0
    outside_ns: int = 0
    unknown_ns: int = 0

    @property
    def by_host_ns(self) -> int:
        """The part that the host causes."""
        return self.not_launched_ns + self.in_launch_ns + self.host_call_ns


NO_IDLE = IdleParts()


class Parts(Struct, frozen=True):
    """The composition of one rank's step, in nanoseconds. The first six add up to ``dur_ns`` exactly.

    ``optimizer_ns`` is a part of compute or idle. ``exposed_wait_ns + exposed_transfer_ns == exposed_comm_ns``: waiting
    for a later rank, and moving bytes; None if the ranks' clocks could not be aligned.
    """

    rank: int
    source: str
    dur_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    data_wait_ns: int
    checkpoint_ns: int
    idle_ns: int
    overlapped_comm_ns: int
    optimizer_ns: int
    exposed_wait_ns: int | None
    exposed_transfer_ns: int | None
    hidden_known: bool = True  # False: some collectives were recorded at their end only; a lower bound
    idle_parts: IdleParts = NO_IDLE
    stalls: tuple[Stall, ...] = ()  # the longest pieces of the idle time, the longest first
    fused_ns: int = 0  # part of compute: kernels that compute and communicate at once, which a trace cannot separate


class PathPiece(Struct, frozen=True):
    """A stretch of the critical path: the activity of the rank on it."""

    rank: int
    start_ns: int
    end_ns: int
    kind: Kind
    detail: Detail
    collective: tuple[str, int, str] | None = None  # the key, if the stretch is a transfer

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


class CriticalPath(Struct, frozen=True, eq=False, dict=True):
    """Consecutive stretches of time, first one first. Arrays of equal length; ``collective`` indexes ``keys``, -1 if
    the stretch is not a transfer."""

    rank: npt.NDArray[np.signedinteger]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.signedinteger]
    detail: npt.NDArray[np.signedinteger]
    collective: npt.NDArray[np.signedinteger]
    keys: tuple[tuple[str, int, str], ...]

    @property
    def dur_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def total(self, kind: Kind, detail: Detail | None = None) -> int:
        spent = by_cause(self)[kind]
        return int(spent.sum() if detail is None else spent[detail])

    def pieces(self) -> list[PathPiece]:
        """The stretches as objects: for a short path."""
        columns = (self.rank, self.start_ns, self.end_ns, self.kind, self.detail, self.collective)
        return [
            PathPiece(rank, start, end, Kind(kind), Detail(detail), self.keys[key] if key >= 0 else None)
            for rank, start, end, kind, detail, key in zip(*(c.tolist() for c in columns), strict=True)
        ]


class Blame(Struct, frozen=True):
    """How long others waited for a rank because it spent more time on one activity than they did."""

    rank: int
    kind: Kind
    detail: Detail
    ns: int


class Blames(Sequence[Blame]):
    """The blames of a step as columns of equal length. A ``Blame`` is made when it is asked for: 64 ranks have two
    million of them after 10,000 steps."""

    __slots__ = ("detail", "kind", "ns", "rank")

    def __init__(
        self,
        rank: npt.NDArray[np.integer],
        kind: npt.NDArray[np.integer],
        detail: npt.NDArray[np.integer],
        ns: npt.NDArray[np.int64],
    ) -> None:
        self.rank, self.kind, self.detail, self.ns = rank, kind, detail, ns

    @classmethod
    def of(cls, blames: Sequence[Blame]) -> Blames:
        if isinstance(blames, Blames):
            return blames
        columns = zip(*((blame.rank, blame.kind, blame.detail, blame.ns) for blame in blames), strict=True)
        return cls(*(np.array(column, dtype=np.int64) for column in columns)) if blames else NO_BLAMES

    @classmethod
    def joined(cls, several: Sequence[Blames]) -> Blames:
        """One after the other."""
        several = several or [NO_BLAMES]
        columns = ("rank", "kind", "detail", "ns")
        return cls(*(np.concatenate([getattr(each, name) for each in several]) for name in columns))

    def take(self, places: npt.NDArray[np.int64] | slice) -> Blames:
        return Blames(self.rank[places], self.kind[places], self.detail[places], self.ns[places])

    def __len__(self) -> int:
        return len(self.ns)

    def __iter__(self) -> Iterator[Blame]:
        columns = zip(*(column.tolist() for column in (self.rank, self.kind, self.detail, self.ns)), strict=True)
        return (Blame(rank, Kind(kind), Detail(detail), ns) for rank, kind, detail, ns in columns)

    @overload
    def __getitem__(self, at: int) -> Blame: ...
    @overload
    def __getitem__(self, at: slice) -> Blames: ...
    def __getitem__(self, at: int | slice) -> Blame | Blames:
        if isinstance(at, slice):
            return self.take(at)
        return Blame(int(self.rank[at]), Kind(self.kind[at]), Detail(self.detail[at]), int(self.ns[at]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


_NONE = np.zeros(0, dtype=np.int64)
NO_BLAMES = Blames(_NONE, _NONE, _NONE, _NONE)


class Division(StrEnum):
    RECORDED = "recorded"  # the collectors' own records
    MARKED = "marked"  # step ranges in the trace
    INFERRED = "inferred"  # by something that repeats once in each iteration
    UNDIVIDED = "undivided"  # not divided: the whole window is one step


class Fit(Struct, frozen=True):
    """A change with which a failed allocation might have fitted. ``frees``: bytes; ``at_most``: it may be less.
    ``enough``: whether so many bytes would have been enough by themselves. ``risk``: what else it changes; "" for
    nothing."""

    change: str
    frees: int
    at_most: bool
    enough: bool
    risk: str = ""


class FailedAllocation(Struct, frozen=True):
    """Device memory that a rank did not get. ``rank``: None if unknown; ``size``: what was requested, in bytes,
    None if it was not recorded; ``place``: the line of code, "" if unknown; ``times``: how often
    allocations failed, 0 if that was not counted; ``source``: the file that reports it. In bytes, None if unknown:
    ``device_free``, ``unallocated`` (reserved by PyTorch and not allocated) and ``largest_free``, its largest block.
    ``fits``: what would have made room, the changes that are enough first."""

    rank: int | None
    source: str
    size: int | None = None
    place: str = ""
    step: int | None = None
    times: int = 0
    device_free: int | None = None
    unallocated: int | None = None
    largest_free: int | None = None
    fits: tuple[Fit, ...] = ()


class Outcome(Struct, frozen=True):
    """The end of a run that failed, left no end or makes no progress. ``ended``: a sentence without its full stop, ""
    where ``why`` says it; ``why``: the headline of ``diag triage``, or what the records show; ``cause``: a class of
    hangs and failures, "" if none is known; ``ranks``: at fault; ``action``: what to do. ``exit_code``: None for a run
    that left no end."""

    ended: str
    exit_code: int | None
    why: str = ""
    cause: str = ""
    confidence: float = 0.0
    ranks: tuple[int, ...] = ()
    action: str = ""

    @property
    def headline(self) -> str:
        if not self.cause:
            return f"{self.ended}. The cause is not known.{f' {self.why}' if self.why else ''}"
        return " ".join(text for text in (f"{self.ended}." if self.ended else "", self.why) if text)


class MatchedCollective(Struct, frozen=True):
    """One collective across the ranks, on the common clock. Nanoseconds and bytes; docs/concepts/clocks.md.

    ``wait_ns[i]`` is how long rank ``ranks[i]`` waited for the last to arrive; ``transfer_ns`` runs from that arrival
    to the first rank's end; ``tail_ns[i]`` is how much later than the first each rank was done.
    """

    step: int
    key: tuple[str, int, str]
    op: str
    bytes: int
    ranks: tuple[int, ...]
    last_arriver: int
    arrival_ns: int
    transfer_ns: int
    wait_ns: tuple[int, ...]
    tail_ns: tuple[int, ...]
    complete: bool  # the collective was recorded on every rank of the group
    inferred: bool
    sizes: tuple[int, ...] = ()  # bytes of the full tensor on each of ``ranks``, 0 if unknown


class Evidence(Struct, frozen=True):
    """A number that can be looked up: what it is, value, unit. ``query``: the rows of the run's data frames that it
    comes from; None for the replay, which has no frame."""

    filter: str
    value: float
    unit: str
    query: Query | None = None

    @property
    def table(self) -> str:
        """The frame that has the rows, for front ends."""
        return self.query.frame if self.query is not None else "replay"


class Finding(Struct, frozen=True):
    """One diagnosis that was made. ``share`` is the fraction of the step that it costs, 0 to 1; ``ranks`` are the
    culprits, not the victims; ``bottleneck`` is its class, None if it costs no time by itself (memory). ``title_ns`` is
    the cost in the title, as rounded there; None if the title has none. ``charged_ns``: how long the others wait for
    each rank because of this, nanoseconds per step; for a single culprit it is the cost. ``outside_of_work``: the ranks
    are late, and neither operators nor kernels of theirs take the time. ``rows``: what it rests on; None for
    the rows of its evidence."""

    id: str
    title: str
    severity: Severity
    confidence: float
    evidence: tuple[Evidence, ...]
    action: str
    ranks: tuple[int, ...] = ()
    share: float = 0.0
    cost_ns_per_step: int = 0
    bottleneck: Bottleneck | None = None
    title_ns: int | None = None
    charged_ns: dict[int, int] = field(default_factory=dict)
    outside_of_work: bool = False
    rows: Query | None = None


class Risk(StrEnum):
    """What a change may break: nothing, the fit into memory, numerics, or the training itself."""

    SAFE = "safe"
    MEMORY = "memory"
    NUMERICS = "numerics"
    CORRECTNESS = "correctness"


class Knob(StrEnum):
    """What a change sets; only one of two settings of one knob can be made."""

    WRAP = "wrap granularity"
    PREFETCH = "prefetch"
    RESHARD = "reshard after forward"
    GROUP = "sharding group"
    SYNC = "gradient synchronisation"
    DTYPE = "type of the gradients"
    LOADER = "data loader"
    STRAGGLER = "straggler"


class Advice(Struct, frozen=True):
    """A change with its predicted gain (low, likely, high; nanoseconds per step) and its cost in bytes of device
    memory.

    ``finding``: the id of the finding that it answers. ``memory_delta_bytes``: None if unknown. ``command``: tries the
    change; "" if the bundled trainer has no such option, and then there is only ``code`` (by API). ``before``: the code
    that it replaces, by API; none if code is only added. ``settings``: the options of the bundled trainer that it
    changes."""

    id: str
    finding: str
    knob: Knob
    change: str
    predicted_gain_ns: tuple[int, int, int]
    memory_delta_bytes: int | None
    risk: Risk
    command: str
    gain_share: float = 0.0  # the likely gain, of the step
    code: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str | int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    in_words: ClassVar[Callable[[Advice], str] | None] = None  # for notebooks; ``diag.open_run`` says what writes it

    def __repr__(self) -> str:
        write = type(self).in_words
        return write(self) if write is not None else Struct.__repr__(self)


class Recommendation(Struct, frozen=True):
    """``advice``: at most three changes, the largest gain first. ``not_advised``: other changes that were tried, and
    why not. ``replay_error``: relative error of the replay of the unchanged steps, 0.02 is 2 %; None if nothing was
    replayed. ``refused``: nothing was predicted, and ``not_advised`` has the reason."""

    advice: tuple[Advice, ...] = ()
    not_advised: tuple[str, ...] = ()
    replay_error: float | None = None
    refused: bool = False


class Verdict(Struct, frozen=True):
    """The answer. ``culprit_ranks`` is empty if there is no culprit. ``doubts``: what lowered the confidence."""

    bottleneck: Bottleneck
    severity: Severity
    cause: str  # a finding's id, or "" if nothing was found
    share: float
    confidence: float
    culprit_ranks: tuple[int, ...]
    culprit_hosts: tuple[str, ...]
    headline: str
    doubts: tuple[Doubt, ...] = ()

    in_words: ClassVar[Callable[[Verdict], str] | None] = None  # as that of ``Advice``

    def __repr__(self) -> str:
        write = type(self).in_words
        return write(self) if write is not None else Struct.__repr__(self)
