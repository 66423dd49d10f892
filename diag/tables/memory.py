"""Memory of each rank over the run: peaks, growth, fragmentation, retries, and the share of the model's states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.intervals import Intervals, Window
from diag.account.trace_ranges import host_windows
from diag.collectors import records
from diag.collectors.records import Manifest
from diag.model import UNKNOWN
from diag.model.states import ADAM_FP32, ModelStates, Sharding, model_states, sharding_of, shards_of
from diag.model.steps import Attribution
from diag.rundir.columns import Ints, Steps
from diag.rundir.tables import RankTables, Tables
from diag.tables.policy import MEMORY_GROWTH
from diag.traces import kineto_names as names
from diag.traces.trace import Trace
from diag.words.formatting import counted

from . import nesting
from .module_ranges import PYTHON_MODULES, class_of, module_ranges


class RankMemory(Struct, frozen=True):
    """One rank's memory in bytes: on a device the allocator's, on a CPU the process's resident set (``allocated``).

    ``growth_per_step``: the median slope between the counted steps (Theil-Sen), None if they are too few; 0 if it grows
    in a few steps only. ``jump``: the largest of these few, as (step, bytes); None if there is none. ``fragmentation``:
    the fraction of the reserved memory in the fullest step that was never allocated at once; None without a device.
    ``retries`` and ``ooms``: since the first recorded step; None if not recorded.
    """

    rank: int
    allocated: int
    reserved: int | None
    capacity: int | None
    growth_per_step: int | None
    fragmentation: float | None
    retries: int | None
    ooms: int | None
    jump: tuple[int, int] | None = None

    @property
    def peak(self) -> int:
        """The peak that counts against the capacity."""
        return self.reserved if self.reserved is not None else self.allocated


class StatesEstimate(Struct, frozen=True):
    """Bytes of the model's states on each rank by formula, or the ``reason`` why they are unknown. ``basis``:
    parameters, strategy, types."""

    states: ModelStates | None
    reason: str = ""
    basis: str = ""


class RankPeaks(Struct, frozen=True):
    """The single source of peaks for every page, report, budget and finding. A row without growth for each rank that
    recorded memory. ``on_device``: the rows are an allocator's. ``of_steps``: recorded in each step; else the peaks are
    those of the allocator's samples in traces, whose two peaks may be at different times."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool

    @property
    def highest(self) -> RankMemory | None:
        """The rank with the largest peak, the first of equal ones; None if none recorded memory."""
        return max(self.rows, key=lambda row: row.peak, default=None)

    @property
    def definition(self) -> str:
        """The definition of a peak, for users: tools differ in it."""
        if not self.on_device:
            return "The largest resident set of the process in any step; the run is on a CPU."
        recorded = "in any step" if self.of_steps else "in the profiled windows: a step outside of them may need more"
        return (
            f"The most that PyTorch's allocator reserved on the device {recorded}. Reserved is what the allocator took "
            "from the device (torch.cuda.max_memory_reserved); allocated, the part in use by tensors, is less "
            "(max_memory_allocated). nvidia-smi shows more: also the CUDA context, NCCL's buffers and other processes."
        )


class MemoryTable(Struct, frozen=True):
    """``RankPeaks`` with the growth of each rank and, by formula, the memory of the model's states."""

    rows: tuple[RankMemory, ...]
    on_device: bool
    of_steps: bool
    estimate: StatesEstimate


def rank_peaks(tables: Tables) -> RankPeaks:
    """From the records of all steps, also those that the verdict leaves out; else from traces."""
    recorded = {rank: _recorded(of_rank) for rank, of_rank in sorted(tables.ranks.items())}
    on_device = any((steps.memory_of("allocated") != UNKNOWN).any() for steps in recorded.values())
    rows = [_row(rank, steps, on_device) for rank, steps in recorded.items()]
    known = tuple(row for row in rows if row is not None)
    if known:
        return RankPeaks(known, on_device, True)
    peaks = [_traced_peak(of_rank) for _, of_rank in sorted(tables.ranks.items())]
    traced = tuple(peak for peak in peaks if peak is not None)
    return RankPeaks(traced, bool(traced), False)


def memory_table(tables: Tables, attribution: Attribution) -> MemoryTable:
    """From the records of all steps; growth from those that the verdict counts."""
    counted = frozenset(step.step for step in attribution.counted)
    peaks = rank_peaks(tables)
    rows = tuple(_with_growth(row, _held(tables.ranks[row.rank], peaks.on_device), counted) for row in peaks.rows)
    return MemoryTable(rows, peaks.on_device, peaks.of_steps, estimate_of(tables.manifest))


class Peak(Struct, frozen=True):
    """The largest peak of all ranks in bytes. ``unknown``: how many ranks recorded none. ``of_steps`` False: from
    traces' samples only."""

    rank: int
    bytes: int
    capacity: int | None
    on_device: bool
    of_steps: bool
    unknown: int
    definition: str


def peak_memory(tables: Tables, attribution: Attribution) -> Peak | None:
    """The peak that every page, report and budget shows; None if no rank recorded memory."""
    peaks = rank_peaks(tables)
    highest = peaks.highest
    if highest is None:
        return None
    capacity = min((row.capacity for row in peaks.rows if row.capacity), default=None) if peaks.on_device else None
    return Peak(
        highest.rank,
        highest.peak,
        capacity,
        peaks.on_device,
        peaks.of_steps,
        len(attribution.ranks) - len(peaks.rows),
        peaks.definition,
    )


def _traced_peak(rank: RankTables) -> RankMemory | None:
    """From the allocator's samples in traces recorded with ``profile_memory``; host memory is type 0. None for samples
    without totals (torch before 1.10)."""
    held = [peak for trace in rank.traces for peak in _sampled_peaks(trace)]
    if not held:
        return None
    allocated, reserved = (max(column) for column in zip(*held, strict=True))
    loose = 1 - allocated / reserved if reserved else None
    return RankMemory(rank.rank, allocated, reserved, None, None, loose, None, None)


_SAMPLED: WeakKeyDictionary[Trace, list[tuple[int, int]]] = WeakKeyDictionary()


def _sampled_peaks(trace: Trace) -> list[tuple[int, int]]:
    """The most that was allocated and reserved on each device. Kept: several diagnoses ask for it."""
    if trace not in _SAMPLED:
        samples = trace.counters.filter(pl.col("device_type") != 0).drop_nulls("allocated")
        peaks = samples.group_by("device").agg(pl.col("allocated", "reserved").max())
        _SAMPLED[trace] = [(int(a), int(r or a)) for _, a, r in peaks.iter_rows()]
    return _SAMPLED[trace]


def estimate_of(manifest: Manifest | None) -> StatesEstimate:
    if manifest is None:
        return StatesEstimate(None, "no manifest describes the training")
    parameters = manifest.model.get("parameters")
    if not isinstance(parameters, int) or parameters <= 0:
        return StatesEstimate(None, "the manifest has no parameter count")
    sharding = sharding_of(manifest.strategy or "")
    if sharding is None:
        return StatesEstimate(None, f"unknown sharding of strategy {manifest.strategy or '?'}")
    shards = shards_of(manifest.mesh, manifest.world_size)
    if shards is None and sharding != Sharding.NONE:
        return StatesEstimate(None, "unknown number of ranks that the model is sharded over")
    if not manifest.trainer:
        return StatesEstimate(None, "the optimizer and dtypes of the training are not recorded")
    # The bundled trainer: AdamW, and parameters in fp32 with any --precision.
    states = model_states(parameters, sharding, shards or 1, ADAM_FP32)
    cut = "" if sharding == Sharding.NONE else f"; {sharding.value} sharded over {counted(shards or 1, 'rank')}"
    each = ADAM_FP32
    basis = (
        f"{parameters:,} parameters at {each.parameters} + {each.gradients} + {each.optimizer} bytes for parameters, "
        f"gradients and Adam's two moments in fp32{cut}"
    )
    return StatesEstimate(states, "", basis)


def _recorded(tables: RankTables) -> Steps:
    """The steps that recorded memory."""
    return tables.steps.take(tables.steps.memory_of("rss") != UNKNOWN)


def _row(rank: int, steps: Steps, on_device: bool) -> RankMemory | None:
    steps = steps.take(steps.memory_of("allocated") != UNKNOWN) if on_device else steps
    if not steps:
        return None
    allocated = steps.memory_of("allocated" if on_device else "rss")
    reserved = np.where(steps.memory_of("reserved") == UNKNOWN, allocated, steps.memory_of("reserved"))
    fullest = int(reserved.argmax())
    capacity = steps.memory_of("capacity")
    capacity = capacity[(capacity != UNKNOWN) & (capacity != 0)]
    return RankMemory(
        rank=rank,
        allocated=int(allocated.max()),
        reserved=int(reserved[fullest]) if on_device else None,
        capacity=int(capacity.min()) if len(capacity) else None,
        growth_per_step=None,
        fragmentation=_fragmentation(steps, fullest) if on_device else None,
        retries=_since_first(steps.memory_of("alloc_retries")),
        ooms=_since_first(steps.memory_of("ooms")),
    )


def _with_growth(row: RankMemory, every: Sequence[tuple[int, int]], counted: frozenset[int]) -> RankMemory:
    growth = growth_of([held for held in every if held[0] in counted], every)
    return replace(row, growth_per_step=growth.per_step, jump=growth.jump)


def _held(rank: RankTables, on_device: bool) -> list[tuple[int, int]]:
    """(step, bytes) of every step."""
    held = rank.steps.memory_of("allocated" if on_device else "rss")
    known = held != UNKNOWN
    return list(zip(rank.steps.step[known].tolist(), held[known].tolist(), strict=True))


def _fragmentation(steps: Steps, at: int) -> float | None:
    allocated, reserved = (int(steps.memory_of(field)[at]) for field in ("allocated", "reserved"))
    return max(0.0, 1 - allocated / reserved) if reserved not in (0, UNKNOWN) else None


def _since_first(counts: Ints) -> int | None:
    known = counts[counts != UNKNOWN]
    return int(known[-1] - known[0]) if len(known) else None


class Growth(Struct, frozen=True):
    """``per_step``: bytes, None if the steps are too few. ``jump``: see ``RankMemory``."""

    per_step: int | None
    jump: tuple[int, int] | None = None


def growth_of(held: Sequence[tuple[int, int]], every: Sequence[tuple[int, int]]) -> Growth:
    """From (step, bytes), in order: ``held`` for the counted steps, ``every`` for all. The median of the slopes between
    all pairs of steps (Theil-Sen): one large batch makes no slope. A process that loads a library, or writes a trace,
    takes its memory in a few steps and keeps it. So it counts as growing only if most parts of the run grow, also
    without the largest rise from one counted step to the next. Else that rise is the jump."""
    if len(held) < MEMORY_GROWTH.least_steps:
        return Growth(None)
    slope = _slope(held)
    rises = [size - before for (_, before), (_, size) in pairwise(held)]
    at = int(np.argmax(rises))
    without = [(step, size - (rises[at] if place > at else 0)) for place, (step, size) in enumerate(held)]
    if slope > 0 and _lasting(held, slope) and _slope(without) >= MEMORY_GROWTH.growth_of_a_part * slope:
        return Growth(round(slope))
    whole = held[-1][1] - held[0][1]
    if (
        rises[at] < max(MEMORY_GROWTH.least_jump_bytes, MEMORY_GROWTH.jump_share * whole)
        or whole < MEMORY_GROWTH.jump_share * rises[at]
    ):
        return Growth(min(0, round(slope)))
    (since, _), (until, _) = held[at], held[at + 1]
    between = [(size - before, step) for (_, before), (step, size) in pairwise(every) if since < step <= until]
    return Growth(min(0, round(slope)), (max(between)[1], rises[at]))


def _slope(held: Sequence[tuple[int, int]]) -> float:
    # Every n-th step of a long run: half a million pairs are enough.
    thinned = held[:: max(1, len(held) // 1000)]
    step, size = (np.array(column, dtype=np.float64) for column in zip(*thinned, strict=True))
    later, earlier = np.triu_indices(len(step), 1)[::-1]
    return float(np.median((size[later] - size[earlier]) / (step[later] - step[earlier])))


def _lasting(held: Sequence[tuple[int, int]], slope: float) -> bool:
    """Whether most parts of the run grow as well, each by a fraction of the growth that the slope predicts: medians of
    neighbouring parts are compared, so that no single step decides."""
    parts = np.array_split(np.array(held, dtype=np.float64), MEMORY_GROWTH.parts)
    grown = [np.median(later, axis=0) - np.median(part, axis=0) for part, later in pairwise(parts)]
    return sum(
        bool(rise >= MEMORY_GROWTH.growth_of_a_part * slope * steps) for steps, rise in grown
    ) >= MEMORY_GROWTH.growing_parts_share * len(grown)


# -- over time ---------------------------------------------------------------------------------------------------------
#
# Device memory over time from a trace: the allocator's memory, its peak, and the allocations at the peak.
#
# The samples are the profiler's ``[memory]`` events: one per allocation or release, mostly with the totals of the
# device after it. Releases are matched with allocations by address, so everything that was allocated within the trace
# and live at the peak is known; the rest was allocated before.

HOST = 0  # c10::DeviceType of host memory
HOST_MEMORY = -1  # as a device, in the profiler's numbering
FORWARD, BACKWARD, OPTIMIZER = records.FORWARD, records.BACKWARD, records.OPTIMIZER
OTHER = "other"  # a phase
BEFORE_BACKWARD = "before the backward"  # a phase, if nothing marks the forward
NO_OPERATOR, NO_MODULE = "outside of operators", "outside of modules"
# Operators that only allocate: their memory is for the operator around them.
_ALLOCATES = r"^aten::_?(?:empty|new_empty|resize)"

Times = npt.NDArray[np.int64]


class Share(Struct, frozen=True):
    """Bytes of ``count`` allocations that were live at a peak, by what allocated them; ``share`` of the peak, 0 to 1,
    None if the peak is unknown."""

    name: str
    bytes: int
    count: int
    share: float | None


class Live(Struct, frozen=True):
    """The allocations at the peak. ``before``: bytes that were allocated before the trace began; None if the totals of
    the device are not recorded. Tables: the largest first, at most MOST_ROWS and the rest as one row.
    ``module_source``: the source of the module names; "" if there is none. ``reason``: why nothing is known."""

    operators: tuple[Share, ...] = ()
    modules: tuple[Share, ...] = ()
    phases: tuple[Share, ...] = ()
    before: int | None = None
    module_source: str = ""
    reason: str = ""


class Band(Struct, frozen=True):
    """A phase of a step on the host. Times relative to the curve's begin."""

    phase: str
    begin_ns: int
    end_ns: int


class MemoryCurve(Struct, frozen=True, eq=False):
    """One device of one rank in one trace; for a rank that computes on a CPU the host, device HOST_MEMORY. The arrays
    have one length, at most MOST_POINTS: ``at_ns`` (since the trace began) and the largest ``allocated`` and
    ``reserved`` bytes in the bin that begins there; ``reserved`` is None if it was not recorded. ``totals`` False:
    allocated bytes relative to the begin of the trace, as profilers before torch 1.10 recorded only these, and so for
    the host. ``step`` is None outside of all steps."""

    rank: int
    device: int
    at_ns: Times
    allocated: Times
    reserved: Times | None
    totals: bool
    samples: int
    peak_ns: int
    peak_allocated: int
    peak_reserved: int | None
    step: int | None
    phase: str
    bands: tuple[Band, ...]
    live: Live


def memory_curves(tables: Tables) -> tuple[MemoryCurve, ...]:
    """A curve for each device of each trace with samples, by rank. Empty without ``profile_memory``."""
    return tuple(
        curve for _, rank in sorted(tables.ranks.items()) for trace in rank.traces for curve in curves_of(rank, trace)
    )


def curves_of(rank: RankTables, trace: Trace) -> list[MemoryCurve]:
    samples = trace.counters.filter(pl.col("device_type") != HOST)
    if samples.is_empty() and not rank.on_device:
        samples = trace.counters
    if samples.is_empty():
        return []
    phases = _phases(trace)
    devices = samples.sort("device", maintain_order=True).partition_by("device_type", "device", maintain_order=True)
    return [_curve(rank.rank, trace, device_samples, phases) for device_samples in devices]


def fullest(curves: Sequence[MemoryCurve], rank: int) -> MemoryCurve | None:
    """The curve of a rank with the highest peak; None if it has none."""
    return max((curve for curve in curves if curve.rank == rank), key=lambda curve: curve.peak_allocated, default=None)


def _curve(rank: int, trace: Trace, samples: pl.DataFrame, phases: Mapping[str, Intervals]) -> MemoryCurve:
    on_host = samples["device_type"][0] == HOST
    # The profiler counts the host's memory from its own start; a few samples may lack the totals of the others.
    totals = not on_host and samples["allocated"].null_count() < len(samples)
    samples = samples.drop_nulls("allocated") if totals else samples
    at_ns = samples["ts_ns"].to_numpy()
    held = samples["allocated"] if totals else samples["bytes"].fill_null(0).cum_sum()
    allocated = held.to_numpy()
    reserved = samples["reserved"].to_numpy() if totals and not samples["reserved"].null_count() else None
    peak = int(allocated.argmax())
    moment = int(at_ns[peak])
    first = _bins(at_ns)
    return MemoryCurve(
        rank=rank,
        device=HOST_MEMORY if on_host else int(samples["device"][0] or 0),
        at_ns=at_ns[first] - trace.begin_ns,
        allocated=np.maximum.reduceat(allocated, first),
        reserved=np.maximum.reduceat(reserved, first) if reserved is not None else None,
        totals=totals,
        samples=len(samples),
        peak_ns=moment - trace.begin_ns,
        peak_allocated=int(allocated[peak]),
        peak_reserved=int(reserved.max()) if reserved is not None else None,
        step=next((step for step, begin, end in host_windows(trace) if begin <= moment < end), None),
        phase=_phase_at(phases, np.array([moment]))[0],
        bands=_bands(phases, int(at_ns[0]), int(at_ns[-1]), trace.begin_ns),
        live=_live(trace, samples[: peak + 1], int(allocated[peak]) if totals else None, phases),
    )


def _bins(at_ns: Times) -> Times:
    """The first sample of each bin; all samples if there are few."""
    if len(at_ns) <= MEMORY_GROWTH.most_points_of_curve:
        return np.arange(len(at_ns))
    width = (int(at_ns[-1]) - int(at_ns[0])) // MEMORY_GROWTH.most_points_of_curve + 1
    return np.unique((at_ns - at_ns[0]) // width, return_index=True)[1].astype(np.int64)


def _phases(trace: Trace) -> dict[str, Intervals]:
    """Phases by priority; the first one that covers a moment counts: a forward recomputed in a backward is backward."""
    phases = {
        OPTIMIZER: ranges.optimizer(trace),
        BACKWARD: ranges.backward(trace),
        FORWARD: ranges.forward(trace),
    }
    if not len(phases[FORWARD]) and len(phases[BACKWARD]):
        phases[BEFORE_BACKWARD] = _before(phases[BACKWARD], host_windows(trace))
    return phases


def _before(backward: Intervals, windows: Sequence[Window]) -> Intervals:
    """From the begin of each step to its first backward."""
    first = np.searchsorted(backward[:, 0], [begin for _, begin, _ in windows])
    return iv.make(
        (begin, int(backward[at, 0]))
        for at, (_, begin, end) in zip(first.tolist(), windows, strict=True)
        if at < len(backward) and backward[at, 0] < end
    )


def _phase_at(phases: Mapping[str, Intervals], at_ns: Times) -> list[str]:
    phase_of = [OTHER] * len(at_ns)
    for phase, pieces in reversed(list(phases.items())):
        for at in np.flatnonzero(iv.covers(pieces, at_ns)):
            phase_of[at] = phase
    return phase_of


def _bands(phases: Mapping[str, Intervals], begin: int, end: int, zero_ns: int) -> tuple[Band, ...]:
    """The phases between two moments, in order of time. Gaps of a thousandth are closed: they are not drawn."""
    gap = (end - begin) // 1000
    bands = []
    for phase, pieces in phases.items():
        wide = iv.normal(iv.clip(pieces, begin, end) + np.array([0, gap])) - np.array([0, gap])
        bands += [Band(phase, int(a) - zero_ns, int(b) - zero_ns) for a, b in wide]
    longest = sorted(bands, key=lambda band: band.begin_ns - band.end_ns)[: MEMORY_GROWTH.most_bands_of_curve]
    return tuple(sorted(longest, key=lambda band: band.begin_ns))


# -- live allocations --------------------------------------------------------------------------------------------------


def _live(trace: Trace, until: pl.DataFrame, peak: int | None, phases: Mapping[str, Intervals]) -> Live:
    """``until``: the samples of one device up to its peak."""
    if until["addr"].null_count() or until["bytes"].null_count():
        return Live(reason="the trace does not record the addresses and sizes of allocations")
    last = until.group_by("addr", maintain_order=True).last()
    live = last.filter(pl.col("bytes") > 0).sort("ts_ns")
    size, at_ns = live["bytes"].to_numpy(), live["ts_ns"].to_numpy()
    thread = live["thread"].fill_null(2**32 - 1).to_numpy().astype(np.int64)
    modules = next(iter(module_ranges(trace)), None)
    in_module = [NO_MODULE] * len(live)
    if modules is not None:
        in_module = _names(modules.calls, nesting.enclosing(modules.calls, at_ns, thread), NO_MODULE)
        if modules.source == PYTHON_MODULES:
            in_module = [class_of(name) for name in in_module]
    return Live(
        operators=_table(_operators(trace, at_ns, thread), size, peak),
        modules=_table(in_module, size, peak) if modules is not None else (),
        phases=_table(_phase_at(phases, at_ns), size, peak),
        before=max(0, peak - int(size.sum())) if peak is not None else None,
        module_source=modules.source if modules is not None else "",
    )


def _operators(trace: Trace, at_ns: Times, thread: Times) -> list[str]:
    """The innermost operator around each moment that does more than allocate."""
    events = trace.select(names.CPU_OP)
    at = nesting.enclosing(events, at_ns, thread)
    only_allocates = trace.says(events, _ALLOCATES).to_numpy()
    parent = nesting.parents(events)
    climbing = np.flatnonzero(at >= 0)
    while len(climbing := climbing[only_allocates[at[climbing]] & (parent[at[climbing]] >= 0)]):
        at[climbing] = parent[at[climbing]]
    return _names(events, at, NO_OPERATOR)


def _names(calls: pl.DataFrame, at: npt.NDArray[np.int64], otherwise: str) -> list[str]:
    """The name of each of these rows; ``otherwise`` for -1."""
    chosen = calls["name"].cast(pl.String)[np.maximum(at, 0)].to_list() if len(calls) else []
    return [chosen[i] if row >= 0 else otherwise for i, row in enumerate(at.tolist())]


def _table(keys: Sequence[str], size: Times, peak: int | None) -> tuple[Share, ...]:
    return shares_of(zip(keys, size.tolist(), strict=True), peak)


def shares_of(live: Iterable[tuple[str, int]], peak: int | None, most: int | None = None) -> tuple[Share, ...]:
    """Sums of bytes by name, the largest first: ``most`` rows, and the rest as one."""
    most = MEMORY_GROWTH.most_live_allocations_listed if most is None else most
    total: dict[str, list[int]] = {}
    for name, size in live:
        sums = total.setdefault(name, [0, 0])
        sums[0] += size
        sums[1] += 1
    rows = sorted(((name, held, count) for name, (held, count) in total.items()), key=lambda row: (-row[1], row[0]))
    rest = rows[most:]
    if len(rest) > 1:
        rows = [*rows[:most], (f"{len(rest):,} others", sum(row[1] for row in rest), sum(row[2] for row in rest))]
    return tuple(Share(name, held, count, held / peak if peak else None) for name, held, count in rows)
