"""What the named ranges of a trace say about the host: steps, phases, data waits, garbage collection."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from diag.collectors import records
from diag.ingest import kineto_names as names
from diag.ingest.trace import Trace

from . import intervals as iv
from .intervals import Intervals
from .layers import Window

Thread = int  # an index into Trace.threads


def as_intervals(events: pl.DataFrame) -> Intervals:
    """The normal set of the events' times."""
    start = events["ts_ns"].to_numpy()
    return iv.normal(np.stack((start, start + events["dur_ns"].to_numpy()), axis=1).astype(np.int64, copy=False))


def named(trace: Trace, pattern: str) -> pl.DataFrame:
    """Ranges of the host whose name matches the regular expression."""
    return trace.select(names.ANNOTATION, name=pattern)


def autograd_nodes(trace: Trace) -> pl.DataFrame:
    """The engine's operators, one around each node of the backward."""
    return trace.select(names.CPU_OP, name="^" + names.AUTOGRAD_PREFIX)


def on_threads(events: pl.DataFrame, threads: set[Thread]) -> pl.DataFrame:
    return events.filter(pl.col("thread").is_in(sorted(threads)))


def thread_set(events: pl.DataFrame) -> set[Thread]:
    return set(events["thread"].unique())


def step_ranges(trace: Trace) -> pl.DataFrame:
    """Our own step ranges, else the profiler's; columns of the events and ``step``, in order of time. Maybe empty.

    The profiler closes with a stub of a step when it is stopped right after ``prof.step()``: a range without any
    operator inside. That one is left out; a last step with work is a step like the others (HTA drops it).
    """
    for pattern in (names.STEP_PATTERN, names.PROFILER_STEP_PATTERN):
        found = named(trace, pattern)
        if not found.is_empty():
            found = found.with_columns(
                pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False).alias("step")
            )
            return _without_stub(trace, found.unique("step", keep="first", maintain_order=True))
    return found.with_columns(pl.lit(0, pl.Int64).alias("step"))


def host_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) on the host, without overlap; the whole trace as step 0 where nothing marks steps."""
    found = step_ranges(trace)
    if found.is_empty():
        return [(0, trace.begin_ns, trace.end_ns)]
    begins = found["ts_ns"].to_list()
    ends_ns = (found["ts_ns"] + found["dur_ns"]).to_list()
    # Written in µs by old profilers, one range's end can pass the next one's begin by rounding.
    limits = [*begins[1:], ends_ns[-1]]
    return [
        (step, begin, min(end, limit))
        for step, begin, end, limit in zip(found["step"], begins, ends_ns, limits, strict=True)
    ]


def main_thread(trace: Trace) -> Thread | None:
    """The thread with the step ranges, else the one with the most operators; None without any operator."""
    for events in (step_ranges(trace), trace.select(names.CPU_OP)):
        counts = events.group_by("thread").len()
        if not counts.is_empty():
            most = counts.filter(pl.col("len") == pl.col("len").max())["thread"]
            return min(map(int, most), key=lambda thread: trace.threads[thread])
    return None


def autograd_threads(trace: Trace) -> set[Thread]:
    return thread_set(autograd_nodes(trace))


def phase(trace: Trace, name: str, threads: set[Thread] | None = None) -> Intervals:
    """Our own ranges of one phase: ``diag.<name>``."""
    found = named(trace, f"^{re.escape(records.PHASE_RANGE + name)}$")
    return as_intervals(on_threads(found, threads) if threads else found)


def data_wait(trace: Trace, threads: set[Thread]) -> Intervals:
    """Waiting for the loader on these threads: ``enumerate(DataLoader)#...__next__`` and ``diag.data``."""
    found = named(trace, names.DATALOADER_PATTERN)
    return iv.union(as_intervals(on_threads(found, threads)), phase(trace, records.DATA, threads))


def garbage_collection(trace: Trace) -> Intervals:
    """Pauses of Python's collector; all threads, since each of them holds the interpreter's lock."""
    return as_intervals(trace.select(name=names.GC_PATTERN))


def forward(trace: Trace) -> Intervals:
    """Our own ranges, else those of the data-parallel wrappers."""
    own = phase(trace, records.FORWARD)
    return own if len(own) else as_intervals(named(trace, names.FORWARD_PATTERN))


def backward(trace: Trace) -> Intervals:
    """Our own ranges and the autograd engine's on every thread."""
    return iv.union(phase(trace, records.BACKWARD), as_intervals(autograd_nodes(trace)))


def optimizer(trace: Trace) -> Intervals:
    return iv.union(phase(trace, records.OPTIMIZER), as_intervals(named(trace, names.OPTIMIZER_PATTERN)))


def _without_stub(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    last = found.row(-1, named=True)
    if len(found) < 2 or last["name"].startswith(records.STEP_RANGE):
        return found
    begin, end = last["ts_ns"], last["ts_ns"] + last["dur_ns"]
    return found if len(trace.select(names.CPU_OP, within=(begin, end))) else found[:-1]
