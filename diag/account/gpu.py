"""The steps of a GPU rank from its trace: an exact partition of every step (docs/concepts/partition.md).

Priority: compute kernels, communication that they do not overlap, host-device copies that neither overlaps, then the
idle rest by the activity of the launching threads. HTA, nsys-ai and TraceLens give compute the same priority.

Copies within a device and memsets count as compute: they run in stream order in the
device's own memory like any elementwise kernel (FSDP's copy-in is one), and no change to the input pipeline removes
them. Copies between devices are communication, and so are those that a collective makes (copy-engine collectives).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from diag.account.policy import DEVICE_IDLE
from diag.deferred import pl
from diag.model.steps import FROM_HOST_DETAILS, TO_HOST_DETAILS, Detail, Kind, RankStep, Stall
from diag.traces import kineto_names as names
from diag.traces.trace import ARGS_ROW, Trace

from . import intervals as iv
from . import trace_ranges as ranges
from .idle_parts import part_of
from .intervals import Intervals, Layer, Window, covers, disjoint, traced_steps
from .trace_collectives import engine_copies, from_kernels, point_to_point
from .trace_ranges import Thread, as_intervals, host_windows, loading, marks_steps, on_threads, spans

NEVER = -(1 << 62)  # launch time of work without a launch in the trace

Times = npt.NDArray[np.int64]


def gap_layers(
    trace: Trace, work: pl.DataFrame, explained: Intervals, threads: set[Thread], marked: bool, divided: bool
) -> list[Layer]:
    """Idle layers (docs/concepts/idle.md) for the gaps between the device's ``work``, disjoint and covering every gap.

    ``work``: device events by start, with ``end_ns``, ``launch_known_ns`` and ``launch_until_ns``. The first gap begins
    with the trace and the last one ends with it. ``explained``: time with another known cause (data, checkpoint,
    garbage collection), which splits a gap. ``marked``: whether the trace marks its steps; if it does not, the first
    and the last gap are OUTSIDE. ``divided``: whether an unmarked trace was divided into iterations.

    Each gap is cut at the begin and the end of the call that launches the work after it.
    - Until the call begins, nothing was launched: ALLOCATOR or SYNC inside such a call of the host, LOADING while it
      loads or compiles code, AFTER_SYNC from the return of a call that waited for the device, ONCE for a stall that
      occurs once in an undivided window, else LAUNCH.
    - During the call: IN_LAUNCH, or LOADING if the first launch of a kernel takes too long for a launch.
    - After its end: DEPENDENCY; within the 10 us that the device takes to start launched work, LATENCY after a late
      launch and NONE after another.
    - OTHER if the trace lacks the launch.

    A dependency is not charged to the awaited stream's work: while that works, there is no gap. In a gap the device
    waits for a callback or for another device, which the trace does not show, and cudaStreamWaitEvent names no stream
    in it. Waiting for a peer in a pipeline is no gap either: NCCL's kernel waits, so it is communication (P2P)."""
    start, end = work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    if not len(start):
        return []
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(end)))
    after = np.flatnonzero(start > reach[:-1])  # index of the work that ends each gap
    gap_begin, gap_end = reach[after], start[after]
    launch, until = work["launch_known_ns"].to_numpy()[after], work["launch_until_ns"].to_numpy()[after]
    new = _first_of_their_name(work)[after]
    outside: Intervals = iv.EMPTY
    if not marked:
        outside = iv.make([(trace.begin_ns, int(start[0])), (int(reach[-1]), trace.end_ns)])
        inner = gap_begin > trace.begin_ns
        gap_begin, gap_end, launch, until, new = (values[inner] for values in (gap_begin, gap_end, launch, until, new))
    elif reach[-1] < trace.end_ns:  # no launched work ends the last gap
        gap_begin, gap_end = np.append(gap_begin, reach[-1]), np.append(gap_end, trace.end_ns)
        launch, until, new = np.append(launch, trace.end_ns), np.append(until, trace.end_ns), np.append(new, False)

    known = launch != NEVER
    launched = np.where(known, np.clip(launch, gap_begin, gap_end), gap_end)
    returned = np.where(known, np.clip(until, launched, gap_end), gap_end)
    slow = new & (
        until - launch
        >= np.where(_of_graphs(work, launch), DEVICE_IDLE.loading_graph_ns, DEVICE_IDLE.loading_launch_ns)
    )
    handed_over, late = gap_end - returned < DEVICE_IDLE.hand_over_ns, launched > gap_begin

    calls = _Calls(trace, work, threads, gap_begin, gap_end)
    waiting = iv.subtract(_pairs(gap_begin, launched, known), iv.union(explained, calls.loading, calls.allocating))
    rest = iv.subtract(waiting, calls.synchronising)
    after_sync = _holds(rest, calls.returns)
    dur = rest[:, 1] - rest[:, 0]
    once = np.zeros(len(rest), dtype=np.bool_)
    if not (marked or divided):
        once = (dur >= DEVICE_IDLE.single_stall_ns) & (dur >= DEVICE_IDLE.single_stall_share * dur.sum())
    not_launched = _pairs(gap_begin, launched, known)
    return [
        Layer(Kind.IDLE, Detail.OUTSIDE, outside),
        Layer(Kind.IDLE, Detail.LOADING, iv.intersect(not_launched, calls.loading)),
        Layer(Kind.IDLE, Detail.ALLOCATOR, iv.intersect(not_launched, calls.allocating)),
        Layer(Kind.IDLE, Detail.SYNC, iv.intersect(waiting, calls.synchronising)),
        Layer(Kind.IDLE, Detail.ONCE, rest[once]),
        Layer(Kind.IDLE, Detail.AFTER_SYNC, rest[after_sync & ~once]),
        Layer(Kind.IDLE, Detail.LAUNCH, rest[~after_sync & ~once]),
        Layer(Kind.IDLE, Detail.LOADING, _pairs(launched, returned, known & slow)),
        Layer(Kind.IDLE, Detail.IN_LAUNCH, _pairs(launched, returned, known & ~slow)),
        Layer(Kind.IDLE, Detail.LATENCY, _pairs(returned, gap_end, known & handed_over & late)),
        Layer(Kind.IDLE, Detail.NONE, _pairs(returned, gap_end, known & handed_over & ~late)),
        Layer(Kind.IDLE, Detail.DEPENDENCY, _pairs(returned, gap_end, known & ~handed_over)),
    ]  # OTHER is the remainder


class _Calls:
    """Activity of the launching host threads while the device was idle."""

    def __init__(self, trace: Trace, work: pl.DataFrame, threads: set[Thread], begin: Times, end: Times) -> None:
        allocating = _runtime(trace, threads, names.ALLOCATOR_PATTERN)
        long = allocating.filter(pl.col("dur_ns") >= DEVICE_IDLE.loading_call_ns)["dur_ns"]
        # A context is created once; allocations under memory pressure recur.
        least = (
            DEVICE_IDLE.loading_call_ns
            if len(long) <= DEVICE_IDLE.most_loading_allocations
            else 10 * int(np.median(long))
        )
        self.allocating = as_intervals(allocating.filter(pl.col("dur_ns") < least))
        columns = ("ts_ns", "dur_ns", "name", "thread")
        every = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=columns, least_ns=DEVICE_IDLE.loading_call_ns)
        working = trace.stored.matching(f"{names.SYNC_PATTERN}|{names.LAUNCH_PATTERN}")
        others = on_threads(every.filter(~pl.Series(working[every["name"].to_numpy()], dtype=pl.Boolean)), threads)
        loaded = iv.union(as_intervals(others), loading(trace, threads))
        self.loading = iv.subtract(loaded, self.allocating)
        waits = _blocking(trace, work, threads)
        self.synchronising = as_intervals(waits)
        self.returns = _returns(spans(waits), begin, end)


def _pairs(begin: Times, end: Times, chosen: npt.NDArray[np.bool_]) -> Intervals:
    chosen = chosen & (end > begin)
    return np.stack((begin[chosen], end[chosen]), axis=1)


def _of_graphs(work: pl.DataFrame, launch: Times) -> npt.NDArray[np.bool_]:
    every = np.sort(work["launch_known_ns"].to_numpy())
    several: npt.NDArray[np.bool_] = np.searchsorted(every, launch, "right") - np.searchsorted(every, launch) > 1
    return several


def _first_of_their_name(work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    _, first = np.unique(work["name"].to_physical().to_numpy(), return_index=True)
    is_first = np.zeros(len(work), dtype=np.bool_)
    is_first[first] = True
    return is_first


def _holds(pieces: Intervals, times: Times) -> npt.NDArray[np.bool_]:
    first = np.searchsorted(times, pieces[:, 0], side="left")
    last = np.searchsorted(times, pieces[:, 1], side="right")
    holds: npt.NDArray[np.bool_] = last > first
    return holds


def _blocking(trace: Trace, work: pl.DataFrame, threads: set[Thread]) -> pl.DataFrame:
    """Calls in which the host waits for the device: those that synchronise by name, and copies that return only when
    their data has arrived (.item(), pageable memory)."""
    calls = _runtime(trace, threads, names.SYNC_PATTERN).select("ts_ns", "dur_ns")
    copies = _runtime(trace, threads, "(?i)memcpy").select("ts_ns", "dur_ns", "correlation")
    arrivals = work.filter(pl.col("cat") == names.MEMCPY).select("correlation", "end_ns").drop_nulls()
    waited = copies.join(arrivals, on="correlation").filter(pl.col("end_ns") <= pl.col("ts_ns") + pl.col("dur_ns"))
    return pl.concat([calls, waited.select("ts_ns", "dur_ns")])


def _returns(waits: Intervals, gap_begin: Times, gap_end: Times) -> Times:
    """When the host returned, within a gap, from a call that it made while the device was still busy. Sorted."""
    begin, back = waits[:, 0], waits[:, 1]
    if not len(gap_begin):
        return back[:0]
    gap = np.searchsorted(gap_begin, back, side="right") - 1
    return np.sort(back[(gap >= 0) & (back < gap_end[gap]) & (begin < gap_begin[gap])])


def _runtime(trace: Trace, threads: set[Thread], pattern: str) -> pl.DataFrame:
    return on_threads(trace.select(*names.LAUNCH_CATEGORIES, name=pattern), threads)


# -- host activity -----------------------------------------------------------------------------------------------------
#
# The host's activity while the device was idle: it names each long stall.

_HOST = (names.CPU_OP, names.ANNOTATION, names.PYTHON, *names.LAUNCH_CATEGORIES)
_PYTHON_FUNCTION = re.compile(r"^(.*?)\.py\(\d+\): (.+)$")
_NOT_A_CAUSE = f"{names.STEP_PATTERN}|{names.PROFILER_STEP_PATTERN}|^PyTorch Profiler|^Profiler"


def with_stalls(trace: Trace, steps: Sequence[RankStep], threads: set[Thread]) -> list[RankStep]:
    """The steps with their longest idle pieces named. Times of the steps are those of the trace."""
    idle_pieces: list[tuple[int, int, int, int]] = []  # duration, step by index, piece by index, its begin
    for index, step in enumerate(steps):
        cut = step.segments
        dur = cut.end_ns - cut.start_ns
        idle = np.flatnonzero(
            (cut.kind == Kind.IDLE) & (cut.detail != Detail.OUTSIDE) & (dur >= DEVICE_IDLE.named_stall_ns)
        )
        longest = idle[np.argsort(-dur[idle], kind="stable")][: DEVICE_IDLE.most_stalls_of_a_step]
        idle_pieces += [(int(dur[at]), index, int(at), int(cut.start_ns[at])) for at in longest]
    idle_pieces = sorted(idle_pieces, key=lambda piece: (-piece[0], piece[3]))[: DEVICE_IDLE.most_stalls_of_a_trace]
    if not idle_pieces:
        return list(steps)
    named = _innermost(trace, [(begin, begin + dur) for dur, _, _, begin in idle_pieces], threads)
    stalls: dict[int, list[Stall]] = {}
    for (length, index, at, begin), (name, share) in zip(idle_pieces, named, strict=True):
        part = part_of(Detail(int(steps[index].segments.detail[at]))).removesuffix("_ns")
        stalls.setdefault(index, []).append(Stall(begin - steps[index].begin_ns, length, part, name, round(share, 4)))
    return [replace(step, stalls=tuple(stalls[index])) if index in stalls else step for index, step in enumerate(steps)]


def _innermost(trace: Trace, pieces: Sequence[tuple[int, int]], threads: set[Thread]) -> list[tuple[str, float]]:
    """For each piece of time: the shortest event of these threads that covers at least half of it, and the fraction
    that it covers; ("", 0) if there is none."""
    least = int(DEVICE_IDLE.naming_event_share * min(end - begin for begin, end in pieces))
    events = on_threads(trace.unsorted(*_HOST, columns=("ts_ns", "dur_ns", "name", "thread"), least_ns=least), threads)
    start, dur = events["ts_ns"].to_numpy(), events["dur_ns"].to_numpy()
    code, end = events["name"].to_numpy(), start + dur
    skip = trace.stored.matching(_NOT_A_CAUSE)
    covering = []
    for piece_begin, piece_end in pieces:
        covered = np.minimum(end, piece_end) - np.maximum(start, piece_begin)
        rows = np.flatnonzero((covered >= DEVICE_IDLE.naming_event_share * (piece_end - piece_begin)) & ~skip[code])
        if not len(rows):
            covering.append(("", 0.0))
            continue
        at = rows[np.argmin(dur[rows])]
        covering.append((short_name(trace.stored.names[int(code[at])]), float(covered[at] / (piece_end - piece_begin))))
    return covering


def short_name(name: str) -> str:
    """A Python function as ``module.function`` instead of its path; other names unchanged."""
    called = _PYTHON_FUNCTION.match(name)
    if called is None:
        return name
    return f"{called.group(1).rsplit('/', 1)[-1]}.{called.group(2)}"


# -- trace offload -----------------------------------------------------------------------------------------------------
#
# Parameters, gradients and optimizer states that a GPU rank keeps on its host: the copies, and waiting for them.

Flags = npt.NDArray[np.bool_]


def offload_copies(trace: Trace, work: pl.DataFrame, computes: Flags) -> Flags:
    """Which rows of the device's work copy offloaded states from or to the host.

    Copies launched inside FSDP's own ranges, to the device where it gathers parameters, to the host where it reduces
    gradients. DeepSpeed has no ranges in a Kineto trace. Elsewhere, among the copies that are too long for a single
    number that the host reads: those launched in the backward or the optimizer, and those launched in a forward after
    its first kernel on another stream. Input copies are not among them: they come before the first kernel, also on
    DDP's side stream."""
    launch = work["launch_ns"].to_numpy()
    known = work["launch_known_ns"].to_numpy() != NEVER
    named, by_fsdp = np.zeros(len(work), dtype=np.bool_), np.zeros(len(work), dtype=np.bool_)
    for where, way in (
        (names.FETCH_PATTERN, names.TO_DEVICE_PATTERN),
        (names.GRADIENTS_OUT_PATTERN, names.TO_HOST_PATTERN),
    ):
        inside = covers(ranges.as_intervals(ranges.named(trace, where)), launch)
        named |= inside & trace.says(work, way).to_numpy()
        by_fsdp |= inside
    late = np.isin(work["phase"].to_numpy(), (Detail.BACKWARD, Detail.OPTIMIZER)) | _beside_forward(
        trace, work, computes
    )
    late &= ~by_fsdp
    offloads: Flags = known & (named | (late & (work["dur_ns"].to_numpy() >= DEVICE_IDLE.copy_of_data_ns)))
    return offloads


def waits(trace: Trace, work: pl.DataFrame, offloading: Flags) -> Intervals:
    """When an idle device waits for its host to read, write or update offloaded states.

    The host fetches a state, from a disk or slow memory, until it launches the host-to-device copy that ends a gap. If
    gradients were copied to the host, the update runs there: then all idle time of the optimizer counts. The host's
    calls in that time are in no trace: neither asynchronous I/O nor DeepSpeed's own optimizer."""
    if not offloading.any():
        return iv.EMPTY
    inward = trace.says(work, names.TO_DEVICE_PATTERN).to_numpy()
    start, launch = work["ts_ns"].to_numpy(), work["launch_known_ns"].to_numpy()
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(work["end_ns"].to_numpy())[:-1]))
    fetched = offloading & inward & (launch > reach)
    fetching = iv.normal(np.stack((reach[fetched], start[fetched]), axis=1))
    brought = offloading & ~inward & (work["phase"].to_numpy() == Detail.BACKWARD)
    return iv.union(fetching, ranges.optimizer(trace)) if brought.any() else fetching


def _beside_forward(trace: Trace, work: pl.DataFrame, computes: Flags) -> Flags:
    """Work launched in a forward after its first kernel, on another stream than forwards compute on."""
    is_beside = np.zeros(len(work), dtype=np.bool_)
    launch, stream = work["launch_ns"].to_numpy(), work["stream"].to_numpy()
    in_forward = work["phase"].to_numpy() == Detail.FORWARD
    by_stream = work.filter(pl.Series(in_forward & computes)).group_by("stream").agg(pl.col("dur_ns").sum())
    if by_stream.is_empty():
        return is_beside
    main = min(by_stream.filter(pl.col("dur_ns") == by_stream["dur_ns"].max())["stream"])
    kernels = np.sort(launch[in_forward & computes & (stream == main)])
    beside = np.flatnonzero(in_forward & (stream != main))
    begins = ranges.forward(trace)[:, 0]
    begin = begins[np.searchsorted(begins, launch[beside], side="right") - 1]
    first = np.append(kernels, trace.end_ns)[np.searchsorted(kernels, begin)]
    is_beside[beside] = first < launch[beside]
    return is_beside


COMPUTE, COMM, COPY = "compute", "comm", "copy"  # the classes of device_work


@cache
def _class_type() -> pl.Enum:
    return pl.Enum([COMPUTE, COMM, COPY])


def step_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) of every step: our ``diag.step#N``, else ``ProfilerStep#N``, else iterations that
    repeat, else the whole trace.

    On a GPU each edge moves to the time when the device had finished all work launched before the edge. The host runs
    ahead of the device by up to several steps (on the MI300 trace the last host step ends before the first kernel of
    the first one). So the host's window of a step holds other steps' kernels, and the last steps' are in none.
    """
    host = host_windows(trace)
    if not trace.has_gpu or (len(host) == 1 and not marks_steps(trace)):
        return host
    work = device_work(trace).sort("launch_ns")
    launched = work["launch_ns"].to_numpy()
    reach = np.maximum.accumulate(work["end_ns"].to_numpy())

    def done(edge: int) -> int:
        before = int(np.searchsorted(launched, edge, side="left"))
        return max(edge, int(reach[before - 1])) if before else edge

    return [(step, done(begin), done(end)) for step, begin, end in host]


def partition(trace: Trace, windows: Sequence[Window], rank: int) -> list[RankStep]:
    """One exact account per window."""
    work = device_work(trace)
    main = ranges.main_thread(trace)
    launchers = ranges.thread_set(trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("thread",)))
    threads = launchers | ({main} if main is not None else set())
    talking = trace.with_arguments(work.filter(pl.col("class") == COMM))
    layers = _layers(trace, work, talking, threads, divided=len(windows) > 1)
    hidden = iv.intersect(ranges.as_intervals(talking), ranges.as_intervals(work.filter(pl.col("class") == COMPUTE)))
    optimizing = _optimizer_time(work, layers)
    # Each rank had a different number of collectives queued before the trace began: counting them from the first one
    # would match unrelated calls.
    launched = talking.filter(pl.col("launch_known_ns") != NEVER) if "launch_known_ns" in talking.columns else talking
    calls = from_kernels(trace, launched if len(launched) else talking, windows)
    steps = traced_steps(rank, windows, layers, hidden, optimizing, calls, ranges.as_intervals(fused_work(trace)))
    edges = np.array([(begin, end) for _, begin, end in windows], dtype=np.int64).reshape(-1, 2)
    pieces = np.diff(np.searchsorted(work["ts_ns"].to_numpy(), edges), axis=1)[:, 0].tolist()
    counted = [replace(step, pieces=count) for step, count in zip(steps, pieces, strict=True)]
    return with_stalls(trace, counted, threads)


_WORK: WeakKeyDictionary[Trace, pl.DataFrame] = WeakKeyDictionary()


def device_work(trace: Trace) -> pl.DataFrame:
    """Device events by start, with end_ns, class, phase (a Detail) and the launch: launch_known_ns (NEVER if the trace
    has none) and launch_until_ns, begin and end of the call; launch_ns, launch_thread.

    Without a launch in the trace, ``launch_ns`` is the work's own start. For work ahead of all work launched in the
    trace, it is just before the trace: that work was queued by then, and belongs to no step of the trace.
    """
    if trace not in _WORK:
        _WORK[trace] = _device_work(trace)
    return _WORK[trace]


def fused_work(trace: Trace) -> pl.DataFrame:
    """Kernels that compute and communicate at once; their class is compute."""
    work = device_work(trace)
    named = trace.says(work, names.FUSED_PATTERN) & ~trace.says(work, names.FUSED_NOT_PATTERN)
    return work.filter(named & (work["cat"] == names.KERNEL) & (work["class"] == COMPUTE))


def forget(trace: Trace) -> None:
    """Drops the cached device work of the trace: that of a folder of ranks would add up."""
    _WORK.pop(trace, None)


def _device_work(trace: Trace) -> pl.DataFrame:
    work = trace.select(*names.DEVICE_CATEGORIES).filter(pl.col("dur_ns") > 0)
    work = work.with_columns((pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"), _classes(trace, work).alias("class"))
    joined = work.with_columns(*_launches(trace, work["correlation"]))
    first_known = pl.col("ts_ns").filter(pl.col("launch_known_ns").is_not_null()).min()
    unlaunched = pl.when(pl.col("ts_ns") < first_known).then(trace.begin_ns - 1).otherwise(pl.col("ts_ns"))
    joined = joined.with_columns(
        pl.coalesce("launch_known_ns", unlaunched).alias("launch_ns"),
        pl.col("launch_known_ns", "launch_until_ns").fill_null(NEVER),
    )
    made_by_collective = pl.lit(engine_copies(trace, joined))
    return joined.with_columns(
        _phases(trace, joined),
        pl.when(made_by_collective).then(pl.lit(COMM, _class_type())).otherwise("class").alias("class"),
    )


def _launches(trace: Trace, correlation: pl.Series) -> list[pl.Series]:
    """launch_known_ns, launch_until_ns and launch_thread of work with these correlations, from the first call with
    each; null if the trace has none. A join that keeps the order is too slow for a million calls."""
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("correlation", "ts_ns", "dur_ns", "thread"))
    calls = calls.filter(pl.col("correlation") > 0)
    keys, starts, durs, threads = (calls[key].to_numpy() for key in ("correlation", "ts_ns", "dur_ns", "thread"))
    order = np.lexsort((starts, keys))
    keys = keys[order]
    wanted = correlation.fill_null(0).to_numpy()
    at = np.searchsorted(keys, wanted)
    known = at < len(keys)
    known[known] = keys[at[known]] == wanted[known]
    call = order[at[known]]
    columns = []
    for name, values, kind in (
        ("launch_known_ns", starts, pl.Int64),
        ("launch_until_ns", starts + durs, pl.Int64),
        ("launch_thread", threads, pl.UInt32),
    ):
        column = np.zeros(len(wanted), dtype=values.dtype)
        column[known] = values[call]
        columns.append(pl.Series(name, column, dtype=kind).set(pl.Series(~known), None))
    return columns


def _classes(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """COMPUTE, COMM or COPY, by the events' categories, names and arguments."""
    is_copy = work["cat"] == names.MEMCPY
    called = trace.says(work, names.KERNEL_PATTERN) & ~trace.says(work, names.NOT_KERNEL_PATTERN)
    comm = (is_copy & trace.says(work, names.PEER_COPY_PATTERN)) | (
        (work["cat"] == names.KERNEL) & (called | work[ARGS_ROW].is_not_null() | trace.named_by_user(work))
    )
    copy = is_copy & ~comm & ~trace.says(work, names.LOCAL_COPY_PATTERN)
    codes = np.select([comm.to_numpy(), copy.to_numpy()], [1, 2], 0).astype(np.uint8)
    return pl.Series(codes).cat.to(_class_type())


def _copy_kinds(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.int8]:
    """The Detail of each copy between host and device, by its name; OTHER if that says no direction."""
    inward, outward, pinned, pageable = (
        trace.says(work, pattern).to_numpy()
        for pattern in (
            names.TO_DEVICE_PATTERN, names.TO_HOST_PATTERN, names.PINNED_PATTERN, names.PAGEABLE_PATTERN
        )
    )  # fmt: skip
    kinds = np.full(len(work), Detail.OTHER, dtype=np.int8)
    for direction, (unknown, in_pinned, in_pageable) in ((outward, TO_HOST_DETAILS), (inward, FROM_HOST_DETAILS)):
        kinds[direction] = unknown
        kinds[direction & pageable] = in_pageable
        kinds[direction & pinned] = in_pinned
    return kinds


def _phases(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """The Detail of each device event: the phase in which the host launched it; NONE if unknown."""
    launch = work["launch_ns"].to_numpy()
    known = work["launch_known_ns"].to_numpy() != NEVER
    details = np.full(len(work), Detail.NONE, dtype=np.int8)
    details[covers(ranges.forward(trace), launch) & known] = Detail.FORWARD
    details[covers(ranges.backward(trace), launch) & known] = Detail.BACKWARD
    details[covers(ranges.optimizer(trace), launch) & known] = Detail.OPTIMIZER
    return pl.Series("phase", details, dtype=pl.Int8)


def _layers(
    trace: Trace, work: pl.DataFrame, comm: pl.DataFrame, threads: set[ranges.Thread], divided: bool
) -> list[Layer]:
    """By priority, without overlap."""
    spans, phase = ranges.spans(work), work["phase"].to_numpy()
    computes, copies = (work["class"] == COMPUTE).to_numpy(), (work["class"] == COPY).to_numpy()
    offloading = copies & offload_copies(trace, work, computes)
    kinds = _copy_kinds(trace, work)
    talking, p2p = ranges.spans(comm), point_to_point(trace, comm)
    data = ranges.data_wait(trace, threads)
    checkpoint = ranges.checkpoint(trace)
    collecting = ranges.garbage_collection(trace)
    fetching = waits(trace, work, offloading)
    explained = iv.union(data, checkpoint, collecting, fetching)
    busy = [
        *(
            Layer(Kind.COMPUTE, detail, iv.normal(spans[computes & (phase == detail)]))
            for detail in (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.NONE)
        ),
        Layer(Kind.COMM, Detail.NONE, iv.normal(talking[~p2p])),
        Layer(Kind.COMM, Detail.P2P, iv.normal(talking[p2p])),
        *(
            Layer(Kind.COPY, detail, iv.normal(spans[copies & ~offloading & (kinds == detail)]))
            for detail in (*FROM_HOST_DETAILS, *TO_HOST_DETAILS, Detail.OTHER)
        ),
        Layer(Kind.COPY, Detail.OFFLOAD, iv.normal(spans[offloading])),
        Layer(Kind.DATA, Detail.NONE, data),
        Layer(Kind.CHECKPOINT, Detail.NONE, checkpoint),
        Layer(Kind.IDLE, Detail.GC, collecting),
        Layer(Kind.IDLE, Detail.OFFLOAD, fetching),
    ]
    gaps = gap_layers(trace, work, explained, threads, marks_steps(trace), divided)
    # The gaps lie beside the work and beside each other: nothing else can cover them.
    return [*disjoint(busy), *(Layer(gap.kind, gap.detail, iv.subtract(gap.intervals, explained)) for gap in gaps)]


def _optimizer_time(work: pl.DataFrame, layers: Sequence[Layer]) -> Intervals:
    """Compute launched in the optimizer, and idle time between two such pieces of work."""
    compute = [layer.intervals for layer in layers if layer.kind == Kind.COMPUTE and layer.detail == Detail.OPTIMIZER]
    start, reach = work["ts_ns"].to_numpy(), np.maximum.accumulate(work["end_ns"].to_numpy())
    is_optimizer = work["phase"].to_numpy() == Detail.OPTIMIZER
    # The gap before work i belongs to the optimizer if both neighbours do.
    inside = is_optimizer[1:] & is_optimizer[:-1]
    gaps = iv.normal(np.stack((reach[:-1][inside], start[1:][inside]), axis=1)) if len(start) > 1 else iv.EMPTY
    other = [layer.intervals for layer in layers if layer.kind not in (Kind.COMPUTE, Kind.IDLE)]
    return iv.union(*compute, iv.subtract(gaps, iv.union(*other)))
