"""From the account of a run to the tables behind it: collectives, kernels, modules, efficiency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from diag.account import gpu
from diag.account.cached_steps import windows_of
from diag.account.intervals import Window
from diag.account.trace_ranges import host_windows
from diag.deferred import pl
from diag.model.accounts import Attribution
from diag.model.breakdown import Breakdowns, ExposedCall, MemoryPeak, peak_of
from diag.model.steps import RankStep
from diag.rundir.sharing import sharing_of
from diag.rundir.tables import Tables
from diag.traces.trace import Trace

from . import kernels, module_time, path_table
from .collectives import collective_table
from .efficiency import Totals, device_of, efficiency
from .memory import rank_peaks
from .module_charge import accounted, by_rank, charge, modules_at, on_paths
from .module_ranges import module_ranges
from .recompute import recomputed
from .totals import totals
from .work import work_of


def breakdowns(tables: Tables, attribution: Attribution) -> Breakdowns:
    """Collectives over the steps that the verdict counts; data that only traces have over the traced ones. Pure. It
    reads the traces again, so call it only when needed."""
    counted = attribution.counted
    numbers = frozenset(step.step for step in counted)
    steps = attribution.traced.numbers
    device, peak = device_of(tables), peak_of(device_of(tables))
    of_ranks: list[pl.DataFrame] = []
    modules: dict[str, list[pl.DataFrame]] = defaultdict(list)
    sums: list[Totals] = []
    shown = path_table.shown(attribution.traced)
    paths, charged = on_paths(shown), []
    accounts = by_rank(attribution.rank_steps)
    traced = 0
    on_device = tables.on_device
    collectives = collective_table(attribution, numbers, tables.world_size, gloo=not on_device)
    called: dict[tuple[int, int, int], str] = {}
    for of_rank, trace in [(rank, trace) for _, rank in sorted(tables.ranks.items()) for trace in rank.traces]:
        windows = _windows(trace, steps)
        if not windows:
            continue
        work = work_of(trace, windows)
        again = recomputed(work)
        traced += len(windows)
        sums.append(totals(work, sum(end - begin for _, begin, end in windows), again))
        of_ranks.append(kernels.partial(work))
        host = [window for window in host_windows(trace) if window[0] in steps]
        for source_ranges in module_ranges(trace):
            modules[source_ranges.source].append(module_time.partial(work, source_ranges, again, host))
        in_account = accounted(of_rank, trace, windows, accounts.get(of_rank.rank, {}))
        charged.append(charge(trace, in_account, paths.of_rank(of_rank.rank)))
        called |= _called(collectives.longest, trace, in_account)
        gpu.forget(trace)
    longest = tuple(replace(call, module=called.get(call.place, "")) for call in collectives.longest)
    collectives = replace(collectives, longest=longest)
    return Breakdowns(
        steps=tuple(sorted(numbers)),
        collectives=collectives,
        kernels=kernels.kernel_table(of_ranks, "kernel" if on_device else "operator", traced, peak),
        modules=tuple(module_time.module_table(source, parts, traced) for source, parts in modules.items()),
        efficiency=efficiency(
            sums,
            tables.manifest,
            [rank.steps for rank in tables.ranks.values()],
            float(np.mean([step.dur_ns for step in counted])) if counted else 0.0,
            tables.world_size,
            peak,
            device,
            on_device,
            sharing_of(tables).count(tables.world_size),
        ),
        path=path_table.path_table(shown, paths, charged),
        memory_peaks=_memory(tables),
        notes=_notes(attribution, traced, bool(modules), bool(collectives.rows)),
        traced_steps=tuple(sorted(steps)),
    )


def _called(
    calls: Sequence[ExposedCall], trace: Trace, in_account: Sequence[tuple[Window, RankStep]]
) -> dict[tuple[int, int, int], str]:
    """The module of each call in the windows of this trace, by the call's place."""
    covered = {(step.rank, step.step) for _, step in in_account}
    inside = [call for call in calls if (call.rank, call.step) in covered]
    spans = [(call.start_ns, call.end_ns) for call in inside]
    return {call.place: module for call, module in zip(inside, modules_at(trace, in_account, spans), strict=True)}


def _windows(trace: Trace, steps: frozenset[int]) -> list[Window]:
    return [window for window in windows_of(trace) if window[0] in steps]


def _memory(tables: Tables) -> tuple[MemoryPeak, ...]:
    """Peaks of allocators; none on a CPU."""
    return tuple(
        MemoryPeak(row.rank, row.allocated, row.reserved, row.capacity)
        for row in rank_peaks(tables).rows
        if row.reserved is not None
    )


def _notes(attribution: Attribution, traced: int, with_modules: bool, with_collectives: bool) -> tuple[str, ...]:
    notes = []
    if not traced:
        notes.append("kernels, modules and recomputation are unknown: no trace covers a counted step")
    elif not with_modules:
        notes.append(
            "no module is named in the traces: record with_stack=True, or put record_function(name) around modules"
        )
    if not with_collectives:
        return tuple(notes)
    if len(attribution.ranks) == 1:
        notes.append("waiting in collectives cannot be attributed to ranks: only one rank was recorded")
    elif not attribution.aligned:
        notes.append("waiting in collectives cannot be attributed to ranks: the ranks' clocks could not be aligned")
    return tuple(notes)
