"""Why the device idles between two pieces of work: what the launching threads of the host did meanwhile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from diag.ingest import kineto_names as names
from diag.ingest.trace import Trace
from diag.model import Detail, Kind

from . import intervals as iv
from .intervals import Intervals
from .layers import Layer
from .trace_ranges import Thread, as_intervals, on_threads

# Between two kernels that were both queued, the device itself needs a few microseconds (HTA's "kernel wait").
HANDOVER_NS = 10_000
NEVER = -(1 << 62)  # launch of work whose launch the trace does not hold

Times = npt.NDArray[np.int64]


def gap_layers(trace: Trace, work: pl.DataFrame, explained: Intervals, threads: set[Thread]) -> list[Layer]:
    """Idle layers by science.md 2.2 item 4, for the gaps between the device's ``work`` that ``explained`` leaves.

    ``work``: device events by start, with ``end_ns`` and ``launch_known_ns``. The first gap begins with the trace.
    ``explained``: time whose cause is known otherwise (data,
    checkpoint, garbage collection). The causes, first match wins:
    time inside an allocator call; the host returned from waiting for the device within the piece (SYNC); the next
    kernel was launched after the device ran dry (LAUNCH); it was queued already and started late (DEPENDENCY), or
    within 10 µs, which is the device's own hand-over between queued kernels and has no cause (NONE).

    Departure from 2.2: allocator calls come before the synchronising ones, as their duration is measured and the
    other cause is a guess over the whole piece; and a piece that follows a data wait in the same gap is judged alone.
    A dependency is not charged to the awaited stream's work: while that works, there is no gap. What is waited for in
    a gap is a callback or a device that the trace does not show, and cudaStreamWaitEvent names no stream in it. Nor
    is waiting for a peer in a pipeline a gap: NCCL's kernel waits, so that it is communication (P2P).
    """
    start, end, launch = (work[key].to_numpy() for key in ("ts_ns", "end_ns", "launch_known_ns"))
    if not len(start):
        return []
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(end)))
    after = np.flatnonzero(start > reach[:-1])  # index of the work that ends each gap
    gap_start, gap_end, next_launch = reach[after], start[after], launch[after]

    allocator = as_intervals(_runtime(trace, threads, names.ALLOCATOR_PATTERN))
    gaps: Intervals = np.stack((gap_start, gap_end), axis=1)
    pieces = iv.subtract(gaps, iv.union(explained, allocator))
    of_gap = np.searchsorted(gap_start, pieces[:, 0], side="right") - 1
    causes = _causes(gaps[of_gap], next_launch[of_gap])
    causes[_holds(pieces, _blocking_returns(trace, work, threads, gap_start, gap_end))] = Detail.SYNC
    order = (Detail.SYNC, Detail.LAUNCH, Detail.DEPENDENCY, Detail.NONE)  # OTHER is what is left
    found = [Layer(Kind.IDLE, detail, pieces[causes == detail]) for detail in order]
    return [Layer(Kind.IDLE, Detail.ALLOCATOR, iv.intersect(gaps, allocator)), *found]


def _causes(gaps: Intervals, launch: Times) -> npt.NDArray[np.int8]:
    """LAUNCH, DEPENDENCY or NONE, by when the work after each gap was launched; OTHER without a launch."""
    queued = np.where(gaps[:, 1] - gaps[:, 0] < HANDOVER_NS, Detail.NONE, Detail.DEPENDENCY)
    known = np.where(launch > gaps[:, 0], Detail.LAUNCH, queued)
    return np.where(launch == NEVER, Detail.OTHER, known).astype(np.int8)


def _holds(pieces: Intervals, times: Times) -> npt.NDArray[np.bool_]:
    """Whether one of the sorted times lies in each piece."""
    first = np.searchsorted(times, pieces[:, 0], side="left")
    last = np.searchsorted(times, pieces[:, 1], side="right")
    found: npt.NDArray[np.bool_] = last > first
    return found


def _blocking_returns(
    trace: Trace, work: pl.DataFrame, threads: set[Thread], gap_start: Times, gap_end: Times
) -> Times:
    """When the host came back, within a gap, from a call that it made while the device was still busy. Sorted.

    Calls that synchronise by name, and copies that only return when their data has arrived (.item(), pageable memory).
    """
    calls = _runtime(trace, threads, names.SYNC_PATTERN).select("ts_ns", "dur_ns")
    copies = _runtime(trace, threads, "(?i)memcpy").select("ts_ns", "dur_ns", "correlation")
    arrivals = work.filter(pl.col("cat") == names.MEMCPY).select("correlation", "end_ns").drop_nulls()
    waited = copies.join(arrivals, on="correlation").filter(pl.col("end_ns") <= pl.col("ts_ns") + pl.col("dur_ns"))
    both = pl.concat([calls, waited.select("ts_ns", "dur_ns")])
    begin = both["ts_ns"].to_numpy()
    back = begin + both["dur_ns"].to_numpy()
    gap = np.searchsorted(gap_start, back, side="right") - 1
    valid = (
        (gap >= 0) & (back < gap_end[gap]) & (begin < gap_start[gap]) if len(gap_start) else np.zeros(len(back), bool)
    )
    return np.sort(back[valid])


def _runtime(trace: Trace, threads: set[Thread], pattern: str) -> pl.DataFrame:
    return on_threads(trace.select(*names.LAUNCH_CATEGORIES, name=pattern), threads)
