"""Device memory over time from a trace: the allocator's memory, its peak, and the allocations at the peak.

The samples are the profiler's ``[memory]`` events: one per allocation or release, mostly with the totals of the
device after it. Releases are matched with allocations by address, so everything that was allocated within the trace
and live at the peak is known; the rest was allocated before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.intervals import Intervals, Window
from diag.account.trace_ranges import host_windows
from diag.collectors import records
from diag.deferred import pl
from diag.model.memory import Category
from diag.rundir.tables import RankTables, Tables
from diag.tables.policy import MEMORY_GROWTH
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import memory_history, nesting
from .memory_history import History, Origin
from .module_ranges import PYTHON_MODULES, class_of, module_ranges

HOST = 0  # c10::DeviceType of host memory
HOST_MEMORY = -1  # as a device, in the profiler's numbering
FORWARD, BACKWARD, OPTIMIZER = records.FORWARD, records.BACKWARD, records.OPTIMIZER
OTHER = "other"  # a phase
BEFORE_BACKWARD = "before the backward"  # a phase, if nothing marks the forward
NO_OPERATOR, NO_MODULE = "outside of operators", "outside of modules"
# Operators that only allocate: their memory is for the operator around them.
_ALLOCATES = r"^aten::_?(?:empty|new_empty|resize)"
_COMMUNICATES = r"^(?:c10d::|nccl:|gloo:)"
_WRAPPER_COMMUNICATES = (
    r"^FSDP::(?:all_gather|post_backward_reduce)"  # where FSDP2 allocates what it gathers and reduces
)
_CATEGORY = {
    FORWARD: Category.ACTIVATIONS,
    BEFORE_BACKWARD: Category.ACTIVATIONS,
    BACKWARD: Category.GRADIENTS,
    OPTIMIZER: Category.OPTIMIZER,
    OTHER: Category.OTHER,
}

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


class MemoryCurve(Struct, frozen=True, eq=False, dict=True):
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
    trace: Trace | None = None
    changes: pl.DataFrame | None = None  # the samples of this device

    @cached_property
    def history(self) -> History | None:
        """What was live over the window; None if the trace does not record the addresses of allocations."""
        return _history(self.trace, self.changes) if self.trace is not None and self.changes is not None else None


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
        trace=trace,
        changes=samples.with_columns(held=pl.Series(allocated)),
    )


def _history(trace: Trace, samples: pl.DataFrame) -> History | None:
    if samples["addr"].null_count() or samples["bytes"].null_count():
        return None
    size, held = samples["bytes"].to_numpy(), samples["held"].to_numpy()
    rows = np.flatnonzero(size > 0)
    origins = [Origin(Category.BEFORE, Category.BEFORE.value), *_origins(trace, samples[rows])]
    number = np.zeros(len(size), dtype=np.int64)
    number[rows] = np.arange(1, len(rows) + 1)
    changes = zip((size > 0).tolist(), samples["addr"].to_list(), np.abs(size).tolist(), number.tolist(), strict=True)
    found = memory_history.matched(changes, 0, len(samples))
    # Held when the window began, and not released in it: also memory whose release was not recorded.
    released = sum(size for size, begin in zip(found.size, found.begin, strict=True) if begin < 0)
    if (stayed := int(held[0] - size[0]) - released) > 0:
        found.add(-1, len(samples), stayed, 0)
    at_ns = samples["ts_ns"].to_numpy() - trace.begin_ns
    return memory_history.history(found.columns(origins, len(samples)), at_ns, held)


def _origins(trace: Trace, allocated: pl.DataFrame) -> list[Origin]:
    """What made each of these allocations: the operator and the module around it."""
    at_ns = allocated["ts_ns"].to_numpy()
    thread = allocated["thread"].fill_null(2**32 - 1).to_numpy().astype(np.int64)
    operators, phases = _operators(trace, at_ns, thread), _phase_at(_phases(trace), at_ns)
    modules = _modules(trace, at_ns, thread)
    wrapper = ranges.named(trace, _WRAPPER_COMMUNICATES)
    gathers = nesting.enclosing(wrapper, at_ns, thread) >= 0 if len(wrapper) else np.zeros(len(at_ns), dtype=bool)
    communicates = pl.Series(operators, dtype=pl.String).str.contains(_COMMUNICATES).to_numpy() | gathers
    return [
        Origin(
            Category.COMMUNICATION if of_collective else _CATEGORY[phase],
            operator if module == NO_MODULE else f"{operator} in {module}",
        )
        for operator, module, phase, of_collective in zip(operators, modules, phases, communicates, strict=True)
    ]


def _modules(trace: Trace, at_ns: Times, thread: Times) -> list[str]:
    """The innermost module around each moment."""
    modules = next(iter(module_ranges(trace)), None)
    if modules is None:
        return [NO_MODULE] * len(at_ns)
    found = _names(modules.calls, nesting.enclosing(modules.calls, at_ns, thread), NO_MODULE)
    return [class_of(name) for name in found] if modules.source == PYTHON_MODULES else found


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


def _live(trace: Trace, until: pl.DataFrame, peak: int | None, phases: Mapping[str, Intervals]) -> Live:
    """``until``: the samples of one device up to its peak."""
    if until["addr"].null_count() or until["bytes"].null_count():
        return Live(reason="the trace does not record the addresses and sizes of allocations")
    last = until.group_by("addr", maintain_order=True).last()
    live = last.filter(pl.col("bytes") > 0).sort("ts_ns")
    size, at_ns = live["bytes"].to_numpy(), live["ts_ns"].to_numpy()
    thread = live["thread"].fill_null(2**32 - 1).to_numpy().astype(np.int64)
    modules = next(iter(module_ranges(trace)), None)
    return Live(
        operators=_table(_operators(trace, at_ns, thread), size, peak),
        modules=_table(_modules(trace, at_ns, thread), size, peak) if modules is not None else (),
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
