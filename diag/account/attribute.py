"""From tables to the account of every step: partition, matching, clocks, critical path, blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from diag.account.policy import CLOCKS, STEPS
from diag.collectors.records import EVALUATION, WINDOW_ACTIVE, WINDOW_AFTER, WINDOW_NONE, WINDOW_WARMUP, Manifest
from diag.model import UNKNOWN, Gap
from diag.model.accounts import Attribution, StepAccounts
from diag.model.matched import NO_COLLECTIVES, MatchedCollectives
from diag.model.parts import PartColumns
from diag.model.steps import Division, Kind, RankStep, by_details, by_kinds
from diag.rundir.columns import Bools
from diag.rundir.tables import Only, RankTables, Tables, axes_of
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from . import intervals as iv
from . import of_traces, records
from .blame import Meetings
from .calls import Listed, Matched
from .critical_path import Readiness, Timeline, held_up, readiness, walks
from .device_clock import DeviceClocked, on_device_clocks
from .idle_parts import idle_parts
from .intervals import intervals_of, within
from .match import Alignment, align, measure
from .of_traces import (
    agreed,
    compiling,
    host_windows,
    iterations_of,
    marks_steps,
    outside_of_iterations,
    steps_of,
    windows_of,
    with_most_steps,
)
from .off_core import by_cpu_time
from .rank_steps import SOURCES, RankSteps
from .records import loader_settings
from .scheduling import blocked_in_phases

IN_WINDOW = "in a profiler window"  # why a step does not count


def attribute(
    tables: Tables,
    clocked: Mapping[int, DeviceClocked] | None = None,
    left_out: Mapping[int, str] | None = None,
    detailed: Collection[int] | None = None,
) -> Attribution:
    """Accounts for every step of the run. Pure: the same tables give the same account. ``clocked``: the result of
    ``on_device_clocks(tables)``, if the caller has it already. ``left_out``: ``steps_left_out`` of the whole run, if
    the tables hold some of its steps. ``detailed``: the steps whose pieces and collectives are returned, if not all."""
    ranks = {rank: t for rank, t in tables.ranks.items() if not t.empty}
    clocked = on_device_clocks(tables) if clocked is None else clocked
    steps = _rank_steps(ranks, clocked)
    if (only := tables.only) is not None:
        steps = {rank: RankSteps.of([step for step in own if only.has(step.step)]) for rank, own in steps.items()}
    anchors = _anchors(ranks)
    matched = Matched({rank: of_rank.calls for rank, of_rank in steps.items()})
    alignment = _align(ranks, matched, anchors, bool(clocked))
    # Each rank's steps on its own clock are dropped when they are placed.
    placed = {rank: _placed(steps.pop(rank), anchors[rank], alignment, rank) for rank in tuple(steps)}
    every, views = RankSteps.with_views({rank: of_rank for rank, of_rank in sorted(placed.items()) if of_rank})
    placed |= views
    # Ranks off the common clock are accounted for separately: no waits, no blame.
    tied = frozenset(alignment.offset_ns) if _sure_enough(alignment, every) else frozenset()
    calls = {rank: of_rank.calls for rank, of_rank in placed.items()}
    if tied == set(calls):
        matched = matched.on_clocks(calls)
    else:
        matched = Matched({rank: own for rank, own in calls.items() if rank in tied})
    timelines = {rank: Timeline(of_rank) for rank, of_rank in placed.items() if of_rank}
    came = readiness(matched, timelines)
    axes = axes_of(tables)
    numbers: list[int] = np.unique(every.step).tolist()
    begun = _begun_in(came, every, numbers)
    paths, changes = walks(numbers, timelines, came, tied)
    late = Meetings(timelines, came, axes.stages()).lateness(held_up(came, begun, paths, changes))
    del timelines, came  # they take more memory than what was found with them
    waits = waiting(matched)
    left_out = steps_left_out(tables, numbers) if left_out is None else left_out
    detailed = None if detailed is None else frozenset(detailed)
    division, marker = _division(ranks)
    order = np.lexsort((every.rank, every.step))
    notes = tuple(left_out.get(number, "") for number in numbers)
    accounts = StepAccounts(
        step=np.array(numbers, dtype=np.int64),
        dur_ns=np.add.reduceat(np.append(paths.lasted_ns, 0), paths.edges[:-1]) * (np.diff(paths.edges) > 0),
        usable=np.array([not note for note in notes], dtype=np.bool_),
        window=np.array([note == IN_WINDOW for note in notes], dtype=np.bool_),
        waited_ns=late.waited_ns,
        explained_ns=late.explained_ns,
        once_ns=late.once_ns,
        note=notes,
        paths=paths,
        blames=late.blames,
        blame_edges=late.edges,
        parts=parts_of(every, {rank: waits.get(rank, iv.EMPTY) for rank in tied}).take(order),
        part_edges=np.append(np.unique(every.step[order], return_index=True)[1], len(order)),
    )
    return Attribution(
        steps=accounts,
        ranks=tuple(sorted(placed)),
        clock_uncertainty_ns=alignment.uncertainty_ns,
        clock_drift=max(rates) - min(rates) if (rates := alignment.rate.values()) else 0.0,
        aligned=bool(tied),
        untied=tuple(sorted(set(placed) - tied)) if tied else (),
        comm_known=bool(every.comm_known.any()),
        collectives=_measured(matched, begun, numbers, numbers if detailed is None else sorted(detailed)),
        rank_steps=every if detailed is None else every.of_steps(detailed),
        axes=axes,
        division=division,
        step_marker=marker,
        idle_known=all(device.idle_known for device in clocked.values()),
        detailed=detailed,
    )


def with_comparable_steps(tables: Tables) -> Tables:
    """The tables with steps numbered alike on all ranks; steps are inferred only where all ranks agree. Ranks that
    recorded hardly any of the others' steps are left out, each with a gap: with them hardly any step could be
    compared."""
    most = max(
        STEPS.least_steps_of_each_trace,
        STEPS.most_steps_of_traces // max(1, sum(len(t.traces) for t in tables.ranks.values())),
    )
    bounded = {rank: with_most_steps(t.traces, most) for rank, t in tables.ranks.items() if t.traces}
    every = {rank: replace(t, traces=bounded[rank][0]) if t.traces else t for rank, t in tables.ranks.items()}
    tables = replace(tables, ranks=every)
    unmatched = {rank: t.traces for rank, t in every.items() if t.traces and not t.steps}
    traces = agreed(unmatched) if unmatched else {}
    ranks = {r: replace(t, traces=traces[r]) if r in traces else t for r, t in tables.ranks.items()}
    recorded = {rank: t.recorded for rank, t in ranks.items() if t.steps}
    gaps = [gap for _, of_rank in bounded.values() for gap in of_rank]
    while len(recorded) > 1 and len(set.intersection(*recorded.values())) < _enough_steps(recorded.values()):
        fewest = min(recorded, key=lambda rank: (len(recorded[rank]), -rank))
        steps = recorded.pop(fewest)
        ranks[fewest] = RankTables(fewest, ranks[fewest].identity)
        reason = f"rank {fewest} recorded {len(steps):,} steps, too few in common with the other ranks; left out"
        gaps.append(Gap(str(tables.root), reason))
    return replace(tables, ranks=ranks, gaps=(*tables.gaps, *gaps))


def _enough_steps(recorded: Iterable[set[int]]) -> int:
    """How many steps all ranks must have in common: half of all steps, at most ``least_common_steps_of_ranks``."""
    return min(STEPS.least_common_steps_of_ranks, -(-len(set().union(*recorded)) // 2))


def _division(ranks: Mapping[int, RankTables]) -> tuple[Division, str]:
    """How the ranks' traces are divided into steps (the least certain way of all ranks), and the repeated range if
    steps are inferred from it."""
    if any(t.steps for t in ranks.values()):
        return Division.RECORDED, ""
    unmarked = [trace for t in ranks.values() for trace in t.traces if not marks_steps(trace)]
    if not unmarked:
        return Division.MARKED, ""
    if any(not outside_of_iterations(trace) for trace in unmarked):
        return Division.UNDIVIDED, ""
    iterations = iterations_of(unmarked[0])
    return Division.INFERRED, iterations.marker if iterations is not None else ""


def _placed(steps: RankSteps, anchor_ns: int, alignment: Alignment, rank: int) -> RankSteps:
    return steps.on_clock(lambda ns: alignment.on_common_clock(rank, ns + anchor_ns))


def _rank_steps(ranks: Mapping[int, RankTables], clocked: Mapping[int, DeviceClocked]) -> dict[int, RankSteps]:
    """Every step of each rank on its own clock."""
    recorded = [_of_device(clocked[rank]) if rank in clocked else _recorded(t) for rank, t in ranks.items()]
    return {
        rank: _on_device_clock(clocked[rank], steps) if rank in clocked else _with_traces(t, steps)
        for (rank, t), steps in zip(ranks.items(), records.partition(recorded), strict=True)
    }


def _recorded(tables: RankTables) -> records.Recorded:
    return records.Recorded(tables.rank, tables.steps, tables.rows, tables.groups, tables.on_device)


def _of_device(device: DeviceClocked) -> records.Recorded:
    return _recorded(device.tables)._replace(on_device=False, idle=device.idle)


def _with_traces(tables: RankTables, recorded: RankSteps) -> RankSteps:
    """The steps of one rank from its traces where they cover the step, else from the records."""
    traced_steps: list[RankStep] = []
    for trace in tables.traces:
        # The device may still run the last step of one file when the first step of the next begins on the host.
        traced_steps.extend(_from_trace(tables, trace, traced_steps[-1].end_ns if traced_steps else None))
    if not recorded:
        return RankSteps.of(traced_steps)
    traced = {step.step: step for step in traced_steps}
    steps = RankSteps.of([traced.get(step.step, step) for step in recorded]) if traced else recorded
    if not tables.on_device:
        blocked = blocked_in_phases(tables.steps, tables.rows, tables.scheduling)
        return by_cpu_time(steps, blocked) if blocked or traced else steps
    if tables.on_device and traced:
        # Without a trace a GPU's communication is not known: those steps would look like pure compute.
        return RankSteps.of([step for step in steps if step.comm_known]) or steps
    return steps


def _on_device_clock(device: DeviceClocked, steps: RankSteps) -> RankSteps:
    beneath_ns = iv.Covered(device.beneath).between(steps.begin_ns, steps.end_ns)
    return dataclasses.replace(steps, beneath_ns=beneath_ns, waits_known=np.full(len(steps), device.waits_known))


def _from_trace(tables: RankTables, trace: Trace, free_ns: int | None) -> Iterable[RankStep]:
    """The steps in a trace, on the monotonic clock of the records if there are any, else on the trace's own.
    ``free_ns``: when the last step of this rank's previous trace ended."""
    windows = windows_of(trace)
    begins = {record.step: record.begin_ns for record in tables.steps}
    # Host times, as in the records: the device may lag far behind the host, by a different amount on each rank.
    on_host = host_windows(trace) if begins else []
    ahead = [begin - begins[step] for step, begin, _ in on_host if step in begins]
    if tables.steps and not ahead:
        return []  # none of its steps was recorded
    delta = int(np.median(ahead)) if ahead else 0  # the trace's clock minus the records'
    if free_ns is not None:
        free_ns += delta
        windows = [(step, max(begin, free_ns), end) for step, begin, end in windows if end > free_ns]
    if trace.has_gpu:
        steps = steps_of(trace, windows, tables.rank, lambda: of_traces.on_gpu(trace, windows, tables.rank))
        of_traces.forget(trace)
    else:
        # A row that is not whole stands for several calls and lacks their starts: then only the trace has all calls.
        rows = tables.rows if all(row.whole for row in tables.rows) else ()
        steps = of_traces.on_cpu(
            trace,
            windows,
            tables.rank,
            comm=records.calls_of(rows, tables.groups).on_clock(lambda times_ns: times_ns + delta),
            waits=records.blocked(tables.rows) + np.int64(delta),
            phases=[(of_traces.GC_PHASE, a + delta, b + delta) for record in tables.steps for a, b in record.gc],
        )
    return RankSteps.of(steps).on_clock(lambda times_ns: times_ns - delta) if delta else steps


def parts_of(steps: RankSteps, waits: Mapping[int, iv.Intervals]) -> PartColumns:
    """The sums that the JSON contract names, of each step. ``waits``: when ranks waited for later ones, of those for
    which it is known."""
    spent = by_kinds(steps.segments)
    known = np.isin(steps.rank, list(waits))
    waited = _waited(steps, waits)
    return PartColumns(
        rank=steps.rank,
        source=steps.source,
        dur_ns=steps.dur_ns,
        compute_ns=spent[:, Kind.COMPUTE],
        exposed_comm_ns=spent[:, Kind.COMM],
        exposed_copy_ns=spent[:, Kind.COPY],
        data_wait_ns=spent[:, Kind.DATA],
        checkpoint_ns=spent[:, Kind.CHECKPOINT],
        idle_ns=spent[:, Kind.IDLE],
        overlapped_comm_ns=steps.overlapped_comm_ns,
        optimizer_ns=steps.optimizer_ns,
        exposed_wait_ns=np.where(known, waited, UNKNOWN),
        exposed_transfer_ns=np.where(known, spent[:, Kind.COMM] - waited, UNKNOWN),
        hidden_known=steps.hidden_known,
        idle_parts=idle_parts(by_details(steps.segments, Kind.IDLE)),
        fused_ns=steps.fused_ns,
        stalls=dict(steps.stalls),
        sources=SOURCES,
    )


def _waited(steps: RankSteps, waits: Mapping[int, iv.Intervals]) -> iv.Times:
    """The part of each step's exposed communication that lies in the ``waits`` of its rank; 0 without any."""
    rows = {rank: row for row, rank in enumerate(waits)}
    row = np.array([rows.get(rank, -1) for rank in steps.rank.tolist()], dtype=np.int64)
    pieces, of_step = steps.segments.every, steps.segments.of_step
    known = (pieces.kind == Kind.COMM) & (row[of_step] >= 0)
    of_step, start, end = of_step[known], pieces.start_ns[known], pieces.end_ns[known]
    waited_ns = np.zeros(len(steps), dtype=np.int64)
    np.add.at(waited_ns, of_step, iv.CoveredOfMany(list(waits.values())).between(row[of_step], start, end))
    return waited_ns


def _domains(ranks: Mapping[int, RankTables]) -> dict[int, str]:
    """Ranks by clock: by boot id, else by host name, else each rank has its own."""
    return {
        rank: t.identity.boot_id if t.identity is not None else (t.host or f"rank {rank}") for rank, t in ranks.items()
    }


def _anchors(ranks: Mapping[int, RankTables]) -> dict[int, int]:
    """Monotonic clock to wall clock, one value for all ranks that share a clock; 0 for traces, which use the wall
    clock."""
    first: dict[str, int] = {}
    anchors = {}
    for rank, t in sorted(ranks.items()):
        if t.identity is None:
            anchors[rank] = 0
        else:
            anchors[rank] = first.setdefault(t.identity.boot_id, t.identity.unix_ns - t.identity.monotonic_ns)
    return anchors


def _align(ranks: Mapping[int, RankTables], matched: Matched, anchors: Mapping[int, int], clocked: bool) -> Alignment:
    """``matched``: the calls on each rank's own clock; ``clocked``: the times are those of the devices, placed on each
    host's clock."""
    if clocked and len(ranks) > 1:
        return align(matched, {rank: f"rank {rank}" for rank in ranks}, anchors, on_device=True, from_waits=True)
    on_device = all(t.traces and all(trace.has_gpu for trace in t.traces) for t in ranks.values())
    return align(matched, _domains(ranks), anchors, on_device)


def waiting(matched: Matched, members: Bools | None = None) -> dict[int, iv.Intervals]:
    """For each rank, the intervals in which it had entered a collective that another rank had not. ``members``: those
    that count, if not all."""
    arrival = np.repeat(matched.most(matched.start_ns), matched.sizes)
    since = matched.start_ns
    if records.TRANSFER in matched.labels:  # it may be open while the rank waits for something else
        waited_from = matched.column("wait_start_ns")
        blocked = np.where(waited_from == UNKNOWN, matched.end_ns, np.maximum(since, waited_from))
        since = np.where(np.repeat(matched.labelled(records.TRANSFER), matched.sizes), blocked, since)
    spans = np.stack((since, np.minimum(arrival, matched.end_ns)), axis=1)
    waited = since < arrival if members is None else members & (since < arrival)
    of_ranks = ((rank, places[waited[places]]) for rank, places in matched.by_rank.items())
    return {rank: iv.make(spans[places]) for rank, places in of_ranks if len(places)}


def _begun_in(came: Readiness, every: RankSteps, numbers: Sequence[int]) -> Listed:
    """By step, in order: the collectives that some rank began in it. ``numbers``: of all steps."""
    order = np.lexsort((every.rank, every.step))
    last = np.ones(len(every), dtype=np.bool_)  # of two parts of one step in two traces, the last one counts
    last[order[:-1]] = (np.diff(every.rank[order]) != 0) | (np.diff(every.step[order]) != 0)
    of_ranks = (came.numbers[rank] for rank in np.unique(every.rank).tolist())
    number = np.concatenate([np.zeros(0, dtype=np.int64), *of_ranks])[every.places]
    listed = every.begun & last[every.of_place] & (number >= 0)
    step, number = np.searchsorted(numbers, every.step)[every.of_place][listed], number[listed]
    # The first time that each is found in each step. Most are found in one step only.
    first = np.full(len(came.matched), -1)
    first[number[::-1]] = np.arange(len(number))[::-1]
    elsewhere = np.flatnonzero(step != step[first[number]])
    _, more = np.unique(step[elsewhere] * len(first) + number[elsewhere], return_index=True)
    once = np.concatenate((first[first >= 0], elsewhere[more]))
    once = once[np.lexsort((once, step[once]))]
    return Listed(number[once], np.searchsorted(step[once], np.arange(len(numbers) + 1)))


def _measured(matched: Matched, begun: Listed, numbers: Sequence[int], steps: Sequence[int]) -> MatchedCollectives:
    """The collectives that began in these steps. ``numbers``: of all steps."""
    if not steps:
        return NO_COLLECTIVES
    chosen = begun.of(np.searchsorted(numbers, steps))
    return dataclasses.replace(measure(matched.only(chosen.numbers)), step=np.repeat(steps, np.diff(chosen.edges)))


def steps_left_out(tables: Tables, numbers: Sequence[int]) -> dict[int, str]:
    """The steps that do not represent the run, in order, each with the reason."""
    ranks = {rank: t for rank, t in tables.ranks.items() if not t.empty}
    warm_from = _first_warm_step(ranks, numbers, tables.only)
    warming = {number: "warm-up" for number in numbers if number < warm_from}
    outside = {
        step: reason
        for t in ranks.values()
        for trace in t.traces
        for step, reason in outside_of_iterations(trace).items()
    }
    reasons = (
        _incomplete(ranks)
        | _evaluating(ranks, len(numbers))
        | _compiling(ranks)
        | _disturbed(tables)
        | warming
        | outside
    )
    windows = marked(ranks, WINDOW_ACTIVE)
    return in_windows(windows, numbers, reasons) | reasons


class Profiled(NamedTuple):
    """What the profiler adds to a step: nanoseconds of a step, the mean of the counted ones, all of which a profiler
    recorded, and the median of the ``others``, which it did not."""

    traced_ns: float
    untraced_ns: float
    others: int


def profiled(attribution: Attribution, tables: Tables) -> Profiled | None:
    """None where not every counted step was profiled, where few others were recorded, and where the profiler makes a
    step hardly longer."""
    if not attribution.in_windows:
        return None
    others = list(untraced_steps(tables).values())
    traced = float(attribution.counted.dur_ns.mean())
    if len(others) < STEPS.least_unprofiled_steps or traced < STEPS.profiled_steps_ratio * float(np.median(others)):
        return None
    return Profiled(traced, float(np.median(others)), len(others))


def untraced_steps(tables: Tables) -> dict[int, float]:
    """Nanoseconds of each undisturbed step that no profiler recorded, in order: from the end of the step before to its
    own, mean over the ranks (with a device, the host's steps follow its pace)."""
    by_rank = [sorted(own.steps, key=lambda record: record.step) for own in tables.ranks.values()]
    numbers = sorted({record.step for of_rank in by_rank for record in of_rank})
    left_out = steps_left_out(tables, numbers)
    times: dict[int, list[int]] = {}
    for of_rank in by_rank:
        for before, record in pairwise(of_rank):
            if record.step == before.step + 1 and record.window == WINDOW_NONE and record.step not in left_out:
                times.setdefault(record.step, []).append(record.end_ns - before.end_ns)
    return {step: float(np.mean(times[step])) for step in sorted(times)}


def marked(ranks: Mapping[int, RankTables], window: str) -> set[int]:
    """The steps of which some rank recorded this as ``StepRecord.window``."""
    return {step for t in ranks.values() for step in t.steps.step[t.steps.in_window(window)].tolist()}


def in_windows(windows: Collection[int], numbers: Sequence[int], reasons: Mapping[int, str]) -> dict[int, str]:
    """Steps to leave out because a profiler recorded them: it makes steps longer, and what counts as idle in a trace
    counts as computation in the records. Empty if hardly any other of ``numbers`` counts; ``reasons``: steps that are
    left out in any case."""
    outside = [number for number in numbers if number not in windows and number not in reasons]
    if len(outside) < STEPS.least_steps_outside_of_windows:
        return {}
    return {number: IN_WINDOW for number in numbers if number in windows}


def _incomplete(ranks: Mapping[int, RankTables]) -> dict[int, str]:
    """Steps that some ranks recorded and others did not (killed, or no room left): a rank that waits for an unrecorded
    one seems to transfer."""
    recorded = {rank: t.recorded for rank, t in ranks.items() if t.steps}
    if not recorded:
        return {}
    every, common = set().union(*recorded.values()), set.intersection(*recorded.values())
    lacking = {step: [rank for rank, steps in recorded.items() if step not in steps] for step in every - common}
    return {step: f"{rank_ranges(absent)} did not record it" for step, absent in lacking.items()}


def _evaluating(ranks: Mapping[int, RankTables], count: int) -> dict[int, str]:
    """Steps with an evaluation in them, on any rank: work between steps belongs to no step. None if most of the steps
    have one: then it is a part of the usual step."""
    return evaluations_left_out(
        {step for tables in ranks.values() for step in tables.steps.step[tables.steps.with_phase(EVALUATION)].tolist()},
        count,
    )


def evaluations_left_out(steps: Collection[int], count: int) -> dict[int, str]:
    """These steps of so many, which have an evaluation; none if most have one."""
    return dict.fromkeys(steps, "an evaluation ran in it") if 2 * len(steps) <= count else {}


def _disturbed(tables: Tables) -> dict[int, str]:
    reasons = dict.fromkeys(marked(tables.ranks, WINDOW_WARMUP), "the profiler was starting")
    for after in marked(tables.ranks, WINDOW_AFTER):
        # The loaders went on while the ranks wrote their traces: until the queues are empty again, no rank waits for
        # data.
        for step in range(after + 1, after + 1 + queued_steps(tables.manifest)):
            reasons.setdefault(step, "the loader's queue filled up while a trace was written")
        reasons[after] = "the profiler was writing a trace before it"
    return reasons


def _compiling(ranks: Mapping[int, RankTables]) -> dict[int, str]:
    """Steps in which ``torch.compile`` compiled something, on any rank with a trace."""
    reasons: dict[int, str] = {}
    for trace in [trace for tables in ranks.values() for trace in tables.traces]:
        spans = compiling(trace)
        if len(spans):
            reasons.update(
                (step, "torch.compile was compiling")
                for step, begin, end in host_windows(trace)
                if len(within(spans, begin, end))
            )
    return reasons


def queued_steps(manifest: Manifest | None) -> int:
    """Steps that the loaders' queues can feed, rounded up; 0 if unknown."""
    loader = loader_settings(manifest)
    batches = manifest.trainer.get("micro_batches") if manifest is not None else None
    if loader.workers is None or loader.prefetch_factor is None or not isinstance(batches, int) or batches <= 0:
        return 0
    return min(-(-loader.workers * loader.prefetch_factor // batches), STEPS.most_slow_steps_after_trace)


def _first_warm_step(ranks: Mapping[int, RankTables], steps: Sequence[int], only: Only | None = None) -> int:
    """The first step that counts; steps before it are warm-up. A trace by itself has skipped the first steps already,
    so only the profiler's first active step is left out of it."""
    recorded = sorted(set().union(*(t.recorded for t in ranks.values())))
    # Time before the first inferred iteration is not a step.
    outside = {step for t in ranks.values() for trace in t.traces for step in outside_of_iterations(trace)}
    steps = [step for step in steps if step not in outside]
    begin, warmup = (recorded, STEPS.warm_up_steps) if recorded else (steps, 1)
    if only is not None:
        warmup = max(0, only.begin + warmup - only.first)
    return begin[warmup] if len(begin) > 2 * warmup else begin[0] if begin else 0


def _sure_enough(alignment: Alignment, every: RankSteps) -> bool:
    """Whether the clocks are close enough to separate waiting from transfer: within a quarter of the communication."""
    if alignment.uncertainty_ns is None:
        return False
    if alignment.uncertainty_ns == 0:
        return True
    exposed_ns = int(np.diff(intervals_of(every.segments.every, Kind.COMM)).sum())
    return alignment.uncertainty_ns <= CLOCKS.uncertainty_share * (exposed_ns / max(1, len(every)))
