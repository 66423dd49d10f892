"""Data types of the tables (collectives, kernels, modules, efficiency) and of what-if; the peaks of devices. Frozen.

Times are integers in nanoseconds, sums over all ranks and counted steps unless a name says mean or max. Unknown values
are None, with a reason. Divide a sum by ``rank_steps`` for the mean of a rank and step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field

from .steps import Knob, Risk


class KernelKind(StrEnum):
    GEMM = "gemm"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # and normalisation, softmax, pooling
    COPY = "copy"  # and memset
    EMBEDDING = "embedding"  # and other gathers by index
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    FUSED = "fused"  # computes and communicates at once; compute in the partition
    TRITON = "triton"
    OTHER = "other"


class Bound(StrEnum):
    MATH = "math"
    MEMORY = "memory"
    UNKNOWN = "unknown"


class CollectiveStat(Struct, frozen=True):
    """Collectives of one group, operation, element type and size.

    ``bytes_low`` to ``bytes_high`` is the size class, ``bytes_mean`` the mean of the full tensor, 0 if unknown. Of
    ``count`` collectives, ``matched`` were recorded on more than one rank of a common clock; waits, transfers and tails
    are theirs (docs/concepts/clocks.md). ``transfer_bound_ns``, the mean of the shortest duration over the ranks, needs
    no clock and is never less than the transfer. Bandwidths in GB/s (1e9); with ``bandwidth_is_bound`` they are
    computed from that bound, so the true ones are at least as high. ``efficiency``: bus bandwidth over the best that
    this group reached at sizes that saturate it. ``exposed_ns`` and ``hidden_ns`` add up over the rows to the
    partition's."""

    group: str
    op: str
    dtype: str
    bytes_low: int
    bytes_high: int
    bytes_mean: int
    count: int
    matched: int
    ranks: int
    group_size: int | None
    duration_mean_ns: int
    wait_mean_ns: int | None
    wait_max_ns: int | None
    last_rank: int | None  # the rank that the others waited for longest, when it arrived last
    last_share: float | None  # the fraction of all waiting in the matched collectives that was for it
    transfer_mean_ns: int | None
    transfer_bound_ns: int
    tail_mean_ns: int | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    bandwidth_is_bound: bool
    efficiency: float | None
    exposed_ns: int
    hidden_ns: int
    inferred: bool  # matched by the order of calls, not by the library's sequence number
    # Ranks that arrived last, and nanoseconds that the others waited for each, over ranks and matched collectives.
    waited_for: tuple[tuple[int, int], ...] = ()
    axis: str = ""  # the axis of the device mesh along which the group lies (diag.model.axes), "" if unknown
    members: tuple[int, ...] = ()  # global ranks of the group, if the list is known


class AllToAllStat(Struct, frozen=True):
    """One rank's part in the all-to-alls of a group, means per step; bytes include the part that it keeps.

    ``received_over_mean``: what it received over the mean of the ranks, in the all-to-alls whose ranks receive unequal
    parts (the dispatch of tokens to experts), else in all. ``imbalance``: for these, the most that any rank received
    over the mean, averaged over the calls. ``caused_wait_ns``: how long the others waited, on average, for this rank
    when it arrived last at an all-to-all; None without common clocks."""

    group: str
    axis: str
    rank: int
    count: int
    sent_bytes: int | None
    received_bytes: int
    received_over_mean: float
    imbalance: float
    caused_wait_ns: int | None


class ExposedCall(Struct, frozen=True):
    """One rank's part in one collective. ``start_ns``: on the common clock of the ranks; ``exposed_ns``: not overlapped
    with compute, including the wait for the last rank; ``wait_ns``: that wait, None if unknown. ``bytes``: of the full
    tensor, 0 if unknown. ``phase``: "forward", "backward" or "optimizer", "" if unknown. ``module``: the module of the
    model that called it; "" if no trace names it."""

    rank: int
    step: int
    op: str
    group: str
    bytes: int
    start_ns: int
    end_ns: int
    exposed_ns: int
    wait_ns: int | None
    axis: str = ""
    members: tuple[int, ...] = ()
    phase: str = ""
    module: str = ""

    @property
    def place(self) -> tuple[int, int, int]:
        """Its rank, step and begin, unique to the call."""
        return self.rank, self.step, self.start_ns


class CollectiveTable(Struct, frozen=True):
    """``rest_exposed_ns`` and ``rest_hidden_ns``: communication in the partition outside of all rows' calls.
    ``all_to_alls``: by group and rank, if the sizes that each rank receives are known. ``longest``: the calls with the
    longest exposed time, the longest first."""

    rows: tuple[CollectiveStat, ...]
    rank_steps: int
    rest_exposed_ns: int
    rest_hidden_ns: int
    all_to_alls: tuple[AllToAllStat, ...] = ()
    longest: tuple[ExposedCall, ...] = ()


class DevicePeak(Struct, frozen=True):
    """Dense BF16/FP16 peak in TFLOP/s and memory bandwidth in GB/s (None: not in our table)."""

    name: str
    tflop_s: float
    gb_s: float | None

    @property
    def ridge(self) -> float | None:
        """FLOPs per byte above which arithmetic is the limit."""
        return self.tflop_s * 1000 / self.gb_s if self.gb_s else None


class KernelStat(Struct, frozen=True):
    """All kernels of one name and kind; on a CPU, all calls of one operator without the operators inside them.

    ``share`` is the fraction of the device's busy time before union. ``exposed_ns``: not overlapped with work of higher
    priority (compute before communication before copies). ``flops`` and ``bytes`` follow from the launching operators'
    recorded shapes, ``shapes_share`` is the fraction of the time that these cover; the rates are over that part.
    ``bound`` comes from "shapes" compared with the device's ridge, or is inferred from the "class" of kernel, not
    measured."""

    name: str
    kind: KernelKind
    operator: str  # that launched most of it, "" if unknown
    count: int
    total_ns: int
    mean_ns: int
    max_ns: int
    share: float
    exposed_ns: int
    bound: Bound
    bound_from: str
    flops: float
    bytes: float
    shapes_share: float
    intensity: float | None
    tflop_s: float | None
    gb_s: float | None


class KernelTable(Struct, frozen=True):
    """``unit`` is "kernel" or, if nothing ran on a device, "operator"; rows by decreasing time."""

    rows: tuple[KernelStat, ...]
    unit: str
    busy_ns: int
    rank_steps: int
    peak: DevicePeak | None

    @property
    def fused_ns(self) -> int:
        return sum(row.total_ns for row in self.rows if row.kind == KernelKind.FUSED)


class ModuleStat(Struct, frozen=True):
    """One module of the model, all its calls together; an FSDP unit's forward and backward count as one call each.

    ``forward_ns`` and ``backward_ns``: device time of work launched inside it and its submodules (on a CPU: operators'
    own time); ``self_ns``: the part outside of the table's submodules; ``recompute_ns``, a part of ``backward_ns``: its
    forward repeated in the backward. ``host_ns``: how long the host was inside.
    """

    name: str
    parent: str
    calls: int
    host_ns: int
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    self_ns: int
    share: float


class ModuleTable(Struct, frozen=True):
    """Modules from one kind of range. ``self_ns`` of the rows and ``unattributed_ns`` add up to ``busy_ns``;
    ``unattributed_backward_ns`` is the part of it that the backward launched."""

    source: str
    rows: tuple[ModuleStat, ...]
    busy_ns: int
    rank_steps: int
    unattributed_ns: int
    unattributed_backward_ns: int


class Measure(Struct, frozen=True):
    """A number from 0 to 1, or None and the ``reason``; ``basis`` is its source."""

    value: float | None
    reason: str = ""
    basis: str = ""


class Efficiency(Struct, frozen=True):
    """Model and hardware FLOPs utilisation, the fraction of the compute time that recomputes, and by how much kernels
    slow down while they overlap communication."""

    mfu: Measure
    hfu: Measure
    recompute_share: Measure
    peak: DevicePeak | None
    contention_share: Measure = Measure(None, "no device trace covers a counted step")


class PathStat(Struct, frozen=True):
    """Time of the critical path that one rank spent on one activity in one module.

    ``category``: the kind of time and, after a slash, its cause ("compute/backward", "comm", "idle/launch").
    ``module``: the innermost module that a range of the trace names, "" outside of all. ``total_ns`` is the sum over
    the table's steps, ``ns_per_step`` their mean, ``share`` the fraction of all steps' time.
    """

    rank: int
    category: str
    module: str
    total_ns: int
    ns_per_step: int
    share: float


class PathTable(Struct, frozen=True):
    """The counted steps with a trace or, if there are none, all counted steps. ``total_ns`` of the rows adds up to the
    table's, which is exactly the sum of the steps' ``dur_ns``. ``in_modules_ns``: the part in a module."""

    rows: tuple[PathStat, ...]
    steps: tuple[int, ...]
    traced: bool
    total_ns: int
    in_modules_ns: int


class MemoryPeak(Struct, frozen=True):
    """The peak of one rank's allocator over all steps, in bytes; None if unknown."""

    rank: int
    allocated: int
    reserved: int
    capacity: int | None


class Breakdowns(Struct, frozen=True):
    """``collectives`` over ``steps``, which the verdict counts; kernels, modules, efficiency and path over
    ``traced_steps``: those of profiler windows if these do not count, else the same. A table without rows: nothing of
    that kind was recorded."""

    steps: tuple[int, ...]
    collectives: CollectiveTable
    kernels: KernelTable
    modules: tuple[ModuleTable, ...]
    efficiency: Efficiency
    memory_peaks: tuple[MemoryPeak, ...] = ()
    path: PathTable = PathTable((), (), False, 0, 0)
    notes: tuple[str, ...] = ()  # tables that could not be computed, and why
    traced_steps: tuple[int, ...] = ()


class KnobChange(Struct, frozen=True):
    """A setting of one knob. ``memory_delta_bytes``: additional device memory when it is the only change; None if
    unknown. ``finding``: the id of the finding that it answers."""

    id: str
    knob: Knob
    change: str
    finding: str
    risk: Risk
    memory_delta_bytes: int | None


class Code(Struct, frozen=True):
    """How to write one change, by the name of the API; the run's own API first."""

    change: str
    by_api: Mapping[str, str]


class Prospect(Struct, frozen=True):
    """The predicted gain of combined changes: nanoseconds per step (low, likely, high), as a measurement would find it.

    ``refused``: why nothing is predicted; the gain is 0 then. ``memory_veto``: why the changes do not fit into the
    device, "" if they do or if there is no device. ``headroom_bytes``: free device memory now, None if it was not
    recorded. ``command``: of the bundled trainer; "" if it lacks an option for one of them.
    """

    changes: tuple[KnobChange, ...]
    step_ns: int
    gain_ns: tuple[int, int, int]
    replay_error: float
    memory_delta_bytes: int | None
    headroom_bytes: int | None
    memory_veto: str = ""
    refused: str = ""
    assumptions: tuple[str, ...] = ()
    command: str = ""
    code: tuple[Code, ...] = field(default=())

    @property
    def new_step_ns(self) -> tuple[int, int, int]:
        """The predicted step: shortest, likely, longest."""
        low, likely, high = self.gain_ns
        return max(0, self.step_ns - high), max(0, self.step_ns - likely), max(0, self.step_ns - low)

    @property
    def gain_share(self) -> float:
        return self.gain_ns[1] / self.step_ns if self.step_ns else 0.0


class CostPoint(Struct, frozen=True):
    """The median transfer of one size; ``error``: relative error of the median. ``bus_gb_s``: None if the operation has
    no bus bandwidth."""

    bytes: float
    ns: float
    error: float
    bus_gb_s: float | None


class CostCurve(Struct, frozen=True):
    """The cost that the replay assumes for a collective of one group and operation: through the measured ``points``.

    ``line``: sizes within the measured range, each with the transfer (fast, likely, slow) in nanoseconds; ``bus_gb_s``
    of each, slowest first, if the operation has a bus bandwidth. ``borrowed``: some points come from other operations,
    by bytes on the wire.
    """

    group: str
    op: str
    ranks: int
    borrowed: bool
    points: tuple[CostPoint, ...]
    line: tuple[tuple[float, float, float, float], ...]
    bus_gb_s: tuple[tuple[float, float, float], ...]


# -- peaks of devices --------------------------------------------------------------------------------------------------


# (pattern of the name, TFLOP/s of dense bf16 or fp16, GB/s), specific before general; names as the drivers write them.
# Of the vendors' data sheets: GB200 and GB300 NVL72, HGX B200 and B300 (half of what is given with sparsity), MI350.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    (r"GB[23]00", 2500, 8000),
    (r"B[23]00", 2250, 8000),
    (r"H200", 989, 4800),
    (r"H100.*PCIe", 756, 2000),
    (r"H100.*NVL", 835, 3900),
    (r"H[18]00", 989, 3350),
    (r"H20", 148, 4000),
    (r"A[18]00.*40GB|A100-PG509-200", 312, 1555),
    (r"A[18]00", 312, 2039),
    (r"A6000", 155, 768),
    (r"L40S", 362, 864),
    (r"V100", 125, 900),
    (r"A10G", 70, 600),  # of NVIDIA and AWS, February 2022
    (r"A10", 125, 600),
    (r"L4", 121, 300),
    (r"T4", 65, 320),
    (r"4090", 165, 1008),
    (r"MI355X", 2500, 8000),
    (r"MI350X", 2309, 8000),
    (r"MI300X", 1307, 5300),
    (r"MI250X?", 191.5, 1638),  # one of its two dies, which a rank sees as its device
)


def peak_of(device: str | None) -> DevicePeak | None:
    """The peak of a device by its name, "NVIDIA H100 80GB HBM3"; None if the table lacks it."""
    for pattern, tflop_s, gb_s in _PEAKS:
        # Whole words: an "RTX A1000" is not an A100, an "L40" not an L4, an "RTX 6000 Ada" not an A6000.
        if device and re.search(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", device):
            return DevicePeak(device, tflop_s, gb_s)
    return None


class Supposition(Struct, frozen=True):
    """``of``: ranks, such as those of one host, whose time beyond the median of the others shrinks: their work by the
    part ``work``, their waiting for data by the part ``loading``, how much later they get the results of collectives by
    the part ``link`` (0: as it is, 1: like the others). ``data``: the part by which the waiting for data of all ranks
    shrinks. ``host``: the part by which the waiting of all devices for launches shrinks. ``network``: how many times as
    fast every byte moves. ``ranks``: how many there are, each with the work of one rank now; 0: as many as now."""

    of: tuple[int, ...] = ()
    work: float = 0.0
    loading: float = 0.0
    data: float = 0.0
    network: float = 1.0
    link: float = 0.0
    ranks: int = 0
    host: float = 0.0

    @property
    def nothing(self) -> bool:
        of_ranks = self.of and (self.work or self.loading or self.link)
        return not (of_ranks or self.data or self.host or self.ranks or self.network != 1.0)


class WhatIf(Protocol):
    """The changes of one run, and what they gain. ``refused``: why nothing can be predicted."""

    @property
    def changes(self) -> tuple[KnobChange, ...]: ...

    @property
    def refused(self) -> str: ...

    @property
    def replay_error(self) -> float | None:
        """The error of the replay of the unchanged steps."""

    def predict(self, chosen: Collection[str]) -> Prospect:
        """The prospect of these changes (by id) together; it refuses changes that are not offered."""
        ...

    def suppose(self, supposed: Supposition) -> Prospect:
        """The prospect of a supposition. Its command is "": it is no setting."""
        ...
