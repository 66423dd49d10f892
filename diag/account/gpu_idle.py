"""Why the device idles between two pieces of work: by when the second one was launched, and what the host did until
then."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from diag.model.steps import Detail, IdleParts, Kind, RankStep, Stall
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import intervals as iv
from .intervals import Intervals
from .layers import Layer
from .trace_ranges import Thread, as_intervals, loading, on_threads, spans

# The device needs a few microseconds from a launch, or from the end of the kernel before (HTA's "kernel wait").
HANDOVER_NS = 10_000
NEVER = -(1 << 62)  # launch of work whose launch the trace does not hold
# A launch takes 2 to 20 us. The first one of a kernel that takes a millisecond while the device has nothing to do loads
# its code (4.2 s in one call on a first convolution); a later one that does is a host that stalls. A call of 10 ms that
# neither launches, copies nor waits creates a context or loads a library (cudaFree: 981 ms and 8.0 s;
# cudaStreamCreateWithFlags: 242 ms). A graph is one launch of up to thousands of kernels: 0.7 ms for 390 of them.
_LOADING_LAUNCH_NS, _LOADING_GRAPH_NS, _LOADING_CALL_NS = 1_000_000, 100_000_000, 10_000_000
_MOST_LOADING_ALLOCATIONS = 8  # long ones: 2 to 6 in start-ups of cuDNN, cuBLAS and the caching allocator
# In a window that nothing divides into steps: one stall of this length, and of this part of all time in which nothing
# was launched, says nothing about a step. It may be the first call of a library, and never come again.
_ONCE_NS, _ONCE_SHARE = 10_000_000, 0.2

Times = npt.NDArray[np.int64]


def gap_layers(
    trace: Trace, work: pl.DataFrame, explained: Intervals, threads: set[Thread], marked: bool, divided: bool
) -> list[Layer]:
    """Idle layers by science.md 6.1, for the gaps between the device's ``work``, disjoint and covering every gap.

    ``work``: device events by start, with ``end_ns``, ``launch_known_ns`` and ``launch_until_ns``. The first gap begins
    with the trace and the last one ends with it. ``explained``: time whose cause is known otherwise (data, checkpoint,
    garbage collection), which splits a gap. ``marked``: whether the trace marks its steps; if it does not, the first
    and the last gap are OUTSIDE. ``divided``: whether iterations were found in it all the same.

    Each gap is cut at the begin and the end of the call that launches the work after it.
    - Until the call begins, nothing was launched: ALLOCATOR or SYNC inside such a call of the host, LOADING while it
      loads or compiles code, AFTER_SYNC from the return of a call that waited for the device, ONCE for a stall that an
      undivided window shows once, else LAUNCH.
    - During the call: IN_LAUNCH, or LOADING where the first launch of a kernel takes too long for a launch.
    - From its end on: DEPENDENCY; or within the 10 us that the device takes to begin what was launched, LATENCY after a
      late launch and NONE after another.
    - OTHER where the trace lacks the launch.

    A dependency is not charged to the awaited stream's work: while that works, there is no gap. What is waited for in
    a gap is a callback or a device that the trace does not show, and cudaStreamWaitEvent names no stream in it. Nor
    is waiting for a peer in a pipeline a gap: NCCL's kernel waits, so that it is communication (P2P).
    """
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
        gap_begin, gap_end, launch, until, new = (of[inner] for of in (gap_begin, gap_end, launch, until, new))
    elif reach[-1] < trace.end_ns:  # nothing that was launched ends the last gap
        gap_begin, gap_end = np.append(gap_begin, reach[-1]), np.append(gap_end, trace.end_ns)
        launch, until, new = np.append(launch, trace.end_ns), np.append(until, trace.end_ns), np.append(new, False)

    known = launch != NEVER
    launched = np.where(known, np.clip(launch, gap_begin, gap_end), gap_end)
    returned = np.where(known, np.clip(until, launched, gap_end), gap_end)
    slow = new & (until - launch >= np.where(_of_graphs(work, launch), _LOADING_GRAPH_NS, _LOADING_LAUNCH_NS))
    handed_over, late = gap_end - returned < HANDOVER_NS, launched > gap_begin

    calls = _Calls(trace, work, threads, gap_begin, gap_end)
    waiting = iv.subtract(_pairs(gap_begin, launched, known), iv.union(explained, calls.loading, calls.allocating))
    rest = iv.subtract(waiting, calls.synchronising)
    after_sync = _holds(rest, calls.returns)
    dur = rest[:, 1] - rest[:, 0]
    once = np.zeros(len(rest), dtype=np.bool_)
    if not (marked or divided):
        once = (dur >= _ONCE_NS) & (dur >= _ONCE_SHARE * dur.sum())
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
    ]  # OTHER is what is left


_PART_OF = {
    Detail.LAUNCH: "not_launched_ns",
    Detail.AFTER_SYNC: "not_launched_ns",
    Detail.ONCE: "not_launched_ns",
    Detail.GC: "not_launched_ns",
    Detail.IN_LAUNCH: "in_launch_ns",
    Detail.LOADING: "in_launch_ns",
    Detail.NONE: "queued_ns",
    Detail.LATENCY: "queued_ns",
    Detail.DEPENDENCY: "queued_ns",
    Detail.SYNC: "host_call_ns",
    Detail.ALLOCATOR: "host_call_ns",
    Detail.OFFLOAD: "host_call_ns",
    Detail.OUTSIDE: "outside_ns",
}


def part_of(detail: Detail) -> str:
    """The field of IdleParts that idle time of this cause belongs to."""
    return _PART_OF.get(detail, "unknown_ns")


def of_device(idle_ns: npt.NDArray[np.int64]) -> bool:
    """Whether idle time, by detail, is that of a traced device. Garbage collection alone does not say so: a CPU has it,
    too."""
    return any(detail in _PART_OF and detail != Detail.GC for detail in np.flatnonzero(idle_ns).tolist())


def idle_parts(idle_ns: npt.NDArray[np.int64]) -> IdleParts:
    """The idle time of a step, given by detail; what is not one of a device's causes is unknown."""
    parts: dict[str, int] = {}
    device = of_device(idle_ns)
    for detail in np.flatnonzero(idle_ns).tolist():
        part = part_of(Detail(detail)) if device else "unknown_ns"
        parts[part] = parts.get(part, 0) + int(idle_ns[detail])
    return IdleParts(**parts)


class _Calls:
    """What the launching threads of the host were busy with while the device had nothing to do."""

    def __init__(self, trace: Trace, work: pl.DataFrame, threads: set[Thread], begin: Times, end: Times) -> None:
        allocating = _runtime(trace, threads, names.ALLOCATOR_PATTERN)
        long = allocating.filter(pl.col("dur_ns") >= _LOADING_CALL_NS)["dur_ns"]
        # A context is created once; memory that is too small is asked for again and again.
        least = _LOADING_CALL_NS if len(long) <= _MOST_LOADING_ALLOCATIONS else 10 * int(np.median(long))
        self.allocating = as_intervals(allocating.filter(pl.col("dur_ns") < least))
        columns = ("ts_ns", "dur_ns", "name", "thread")
        every = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=columns, least_ns=_LOADING_CALL_NS)
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
    """Whether each of these launches launched several pieces of work: a graph."""
    every = np.sort(work["launch_known_ns"].to_numpy())
    several: npt.NDArray[np.bool_] = np.searchsorted(every, launch, "right") - np.searchsorted(every, launch) > 1
    return several


def _first_of_their_name(work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Of each piece of work, whether it is the first one of its name."""
    _, first = np.unique(work["name"].to_physical().to_numpy(), return_index=True)
    found = np.zeros(len(work), dtype=np.bool_)
    found[first] = True
    return found


def _holds(pieces: Intervals, times: Times) -> npt.NDArray[np.bool_]:
    """Whether one of the sorted times lies in each piece."""
    first = np.searchsorted(times, pieces[:, 0], side="left")
    last = np.searchsorted(times, pieces[:, 1], side="right")
    found: npt.NDArray[np.bool_] = last > first
    return found


def _blocking(trace: Trace, work: pl.DataFrame, threads: set[Thread]) -> pl.DataFrame:
    """Calls in which the host waits for the device: those that synchronise by name, and copies that only return when
    their data has arrived (.item(), pageable memory)."""
    calls = _runtime(trace, threads, names.SYNC_PATTERN).select("ts_ns", "dur_ns")
    copies = _runtime(trace, threads, "(?i)memcpy").select("ts_ns", "dur_ns", "correlation")
    arrivals = work.filter(pl.col("cat") == names.MEMCPY).select("correlation", "end_ns").drop_nulls()
    waited = copies.join(arrivals, on="correlation").filter(pl.col("end_ns") <= pl.col("ts_ns") + pl.col("dur_ns"))
    return pl.concat([calls, waited.select("ts_ns", "dur_ns")])


def _returns(waits: Intervals, gap_begin: Times, gap_end: Times) -> Times:
    """When the host came back, within a gap, from a call that it made while the device was still busy. Sorted."""
    begin, back = waits[:, 0], waits[:, 1]
    if not len(gap_begin):
        return back[:0]
    gap = np.searchsorted(gap_begin, back, side="right") - 1
    return np.sort(back[(gap >= 0) & (back < gap_end[gap]) & (begin < gap_begin[gap])])


def _runtime(trace: Trace, threads: set[Thread], pattern: str) -> pl.DataFrame:
    return on_threads(trace.select(*names.LAUNCH_CATEGORIES, name=pattern), threads)


# -- host activity -----------------------------------------------------------------------------------------------------
#
# What the host was doing while the device was idle: the name behind each long stall.

LONG_NS = 1_000_000  # a stall worth a name: a hundred times what a late launch leaves
_MOST_A_STEP, _MOST = 4, 32  # the longest ones, of a step and of a trace
_COVERS = 0.5  # of a stall: the innermost event that spans this much of it names it
_HOST = (names.CPU_OP, names.ANNOTATION, names.PYTHON, *names.LAUNCH_CATEGORIES)
_PYTHON_FUNCTION = re.compile(r"^(.*?)\.py\(\d+\): (.+)$")
_NOT_A_CAUSE = f"{names.STEP_PATTERN}|{names.PROFILER_STEP_PATTERN}|^PyTorch Profiler|^Profiler"


def with_stalls(trace: Trace, steps: Sequence[RankStep], threads: set[Thread]) -> list[RankStep]:
    """The steps with their longest idle pieces named. Times of the steps are those of the trace."""
    found: list[tuple[int, int, int, int]] = []  # duration, step by index, piece by index, its begin
    for index, step in enumerate(steps):
        cut = step.segments
        dur = cut.end_ns - cut.start_ns
        idle = np.flatnonzero((cut.kind == Kind.IDLE) & (dur >= LONG_NS))
        longest = idle[np.argsort(-dur[idle], kind="stable")][:_MOST_A_STEP]
        found += [(int(dur[at]), index, int(at), int(cut.start_ns[at])) for at in longest]
    found = sorted(found, key=lambda piece: (-piece[0], piece[3]))[:_MOST]
    if not found:
        return list(steps)
    named = _innermost(trace, [(begin, begin + dur) for dur, _, _, begin in found], threads)
    stalls: dict[int, list[Stall]] = {}
    for (length, index, at, begin), (name, share) in zip(found, named, strict=True):
        part = part_of(Detail(int(steps[index].segments.detail[at]))).removesuffix("_ns")
        stalls.setdefault(index, []).append(Stall(begin - steps[index].begin_ns, length, part, name, round(share, 4)))
    return [replace(step, stalls=tuple(stalls[index])) if index in stalls else step for index, step in enumerate(steps)]


def _innermost(trace: Trace, pieces: Sequence[tuple[int, int]], threads: set[Thread]) -> list[tuple[str, float]]:
    """For each piece of time the shortest event of these threads that covers at least half of it, and the part of it
    that the event covers; ("", 0) where there is none."""
    least = int(_COVERS * min(end - begin for begin, end in pieces))
    events = on_threads(trace.unsorted(*_HOST, columns=("ts_ns", "dur_ns", "name", "thread"), least_ns=least), threads)
    start, dur = events["ts_ns"].to_numpy(), events["dur_ns"].to_numpy()
    code, end = events["name"].to_numpy(), start + dur
    skip = trace.stored.matching(_NOT_A_CAUSE)
    found = []
    for piece_begin, piece_end in pieces:
        covered = np.minimum(end, piece_end) - np.maximum(start, piece_begin)
        rows = np.flatnonzero((covered >= _COVERS * (piece_end - piece_begin)) & ~skip[code])
        if not len(rows):
            found.append(("", 0.0))
            continue
        at = rows[np.argmin(dur[rows])]
        found.append((short_name(trace.stored.names[int(code[at])]), float(covered[at] / (piece_end - piece_begin))))
    return found


def short_name(name: str) -> str:
    """A function of Python as ``module.function`` instead of its path; other names as they are."""
    called = _PYTHON_FUNCTION.match(name)
    if called is None:
        return name
    return f"{called.group(1).rsplit('/', 1)[-1]}.{called.group(2)}"
