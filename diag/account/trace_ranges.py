"""What the named ranges of a trace say about the host: phases, data waits, saving, garbage collection, compiling."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import polars as pl

from diag.collectors import records
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import intervals as iv
from .intervals import Intervals
from .trace_steps import step_ranges

Thread = int  # an index into Trace.threads


def spans(events: pl.DataFrame) -> Intervals:
    """The events' times, one row each."""
    start = events["ts_ns"].to_numpy()
    return np.stack((start, start + events["dur_ns"].to_numpy()), axis=1).astype(np.int64, copy=False)


def as_intervals(events: pl.DataFrame) -> Intervals:
    """The normal set of the events' times."""
    return iv.normal(spans(events))


def named(trace: Trace, pattern: str, *categories: str) -> pl.DataFrame:
    """Events of these categories, else ranges of the host, whose name matches the regular expression."""
    return trace.select(*(categories or (names.ANNOTATION,)), name=pattern)


@lru_cache(maxsize=1)
def autograd_nodes(trace: Trace) -> pl.DataFrame:
    """The engine's operators, one around each node of the backward. Remembers those of the last trace: an account asks
    for them several times, and they are among the operators, of which there are most."""
    return named(trace, "^" + names.AUTOGRAD_PREFIX, names.CPU_OP)


def on_threads(events: pl.DataFrame, threads: set[Thread]) -> pl.DataFrame:
    own = np.isin(events["thread"].to_numpy(), sorted(threads))
    return events if own.all() else events[np.flatnonzero(own)]


def thread_set(events: pl.DataFrame) -> set[Thread]:
    return set(np.unique(events["thread"].to_numpy()).tolist())


def main_thread(trace: Trace) -> Thread | None:
    """The thread with the step ranges, else the one with the most operators; None without any operator."""
    for events in (step_ranges, lambda t: t.select(names.CPU_OP)):
        counts = events(trace).group_by("thread").len()
        if not counts.is_empty():
            most = counts.filter(pl.col("len") == pl.col("len").max())["thread"]
            return min(map(int, most), key=lambda thread: trace.threads[thread])
    return None


def autograd_threads(trace: Trace) -> set[Thread]:
    return thread_set(autograd_nodes(trace))


def phase(trace: Trace, name: str, threads: set[Thread] | None = None) -> Intervals:
    """Our own ranges of one phase: ``diag.<name>``."""
    found = named(trace, _own(name))
    return as_intervals(on_threads(found, threads) if threads else found)


def data_wait(trace: Trace, threads: set[Thread]) -> Intervals:
    """Waiting for the loader on these threads: ``enumerate(DataLoader)#...__next__``, ``diag.data`` and the like, and
    the loader's own function where the trace has Python's stacks."""
    found = on_threads(named(trace, names.DATA_PATTERN), threads)
    called = on_threads(named(trace, names.DATA_FUNCTION_PATTERN, names.PYTHON), threads)
    return iv.union(as_intervals(found), as_intervals(called), phase(trace, records.DATA, threads))


def checkpoint(trace: Trace) -> Intervals:
    """Saving: our own ranges, those of libraries, and ``torch.save`` where the trace has Python's stacks."""
    return iv.union(
        phase(trace, records.CHECKPOINT),
        as_intervals(named(trace, names.CHECKPOINT_PATTERN)),
        as_intervals(named(trace, names.CHECKPOINT_FUNCTION_PATTERN, names.PYTHON)),
    )


def garbage_collection(trace: Trace) -> Intervals:
    """Pauses of Python's collector; all threads, since each of them holds the interpreter's lock."""
    return as_intervals(named(trace, names.GC_PATTERN, names.PYTHON, names.ANNOTATION))


def forward(trace: Trace) -> Intervals:
    """Our own ranges, else those of libraries. A forward that is run again in a backward is in both."""
    own = phase(trace, records.FORWARD)
    if len(own):
        return own
    return iv.union(as_intervals(named(trace, names.FORWARD_PATTERN)), _fsdp2_forward(trace))


def backward(trace: Trace) -> Intervals:
    """Our own ranges, the autograd engine's on every thread, and those of libraries."""
    return iv.union(
        phase(trace, records.BACKWARD),
        as_intervals(autograd_nodes(trace)),
        as_intervals(named(trace, names.BACKWARD_PATTERN)),
    )


def optimizer(trace: Trace) -> Intervals:
    """Our own ranges and those of libraries, without the forwards and backwards that begin inside one.

    ``optimizer.step(closure)``, and so Lightning's ``optimizer_step``, encloses the whole step. What begins later is
    further inside: a fused optimizer within the backward stays optimizer, a backward within a step is backward.
    """
    found = spans(named(trace, f"{_own(records.OPTIMIZER)}|{names.OPTIMIZER_PATTERN}"))
    either = (
        _own(records.FORWARD),
        _own(records.BACKWARD),
        names.FORWARD_PATTERN,
        names.BACKWARD_PATTERN,
    )
    inner = np.concatenate((spans(named(trace, "|".join(either))), spans(autograd_nodes(trace)), _fsdp2_forward(trace)))
    inner = inner[np.argsort(inner[:, 0], kind="stable")]
    first = np.searchsorted(inner[:, 0], found[:, 0], side="right")
    last = np.searchsorted(inner[:, 0], found[:, 1], side="left")
    if (first >= last).all():
        return iv.normal(found)
    pieces = zip(found, first, last, strict=True)
    return iv.union(*(iv.subtract(span[None], inner[i:j]) if j > i else span[None] for span, i, j in pieces))


def compiling(trace: Trace) -> Intervals:
    """When ``torch.compile`` compiled or tuned something, on any thread: such a step is not what the run is like."""
    return as_intervals(named(trace, names.COMPILING_PATTERN, names.CPU_OP, names.ANNOTATION))


def loading(trace: Trace, threads: set[Thread]) -> Intervals:
    """What the host does once and not in every step, on these threads: loading a kernel's code, compiling, autotuning,
    recording a graph."""
    calls = on_threads(named(trace, names.LOADING_CALLS, *names.LAUNCH_CATEGORIES), threads)
    ranges = named(trace, names.LOADING_PATTERN, names.CPU_OP, names.ANNOTATION, names.PYTHON)
    return iv.union(as_intervals(calls), as_intervals(on_threads(ranges, threads)), compiling(trace), capturing(trace))


def capturing(trace: Trace) -> Intervals:
    """When the host records a graph: its launches run nothing until the graph is launched."""
    begins = named(trace, names.CAPTURE_BEGIN_PATTERN, *names.LAUNCH_CATEGORIES)["ts_ns"].to_numpy()
    ends = spans(named(trace, names.CAPTURE_END_PATTERN, *names.LAUNCH_CATEGORIES))[:, 1]
    at = np.searchsorted(ends, begins)
    return iv.make(
        [(int(begin), int(ends[i]) if i < len(ends) else trace.end_ns) for begin, i in zip(begins, at, strict=True)]
    )


def _own(name: str) -> str:
    return f"^{re.escape(records.PHASE_RANGE + name)}$"


def _fsdp2_forward(trace: Trace) -> Intervals:
    """From the root's pre-forward hook to the last post-forward hook before the next backward or forward.

    Hooks of a forward that checkpointing runs again come after the backward has begun, and are left out by that.
    """
    begins = named(trace, f"^{names.FSDP2_FORWARD_BEGIN}$")["ts_ns"].to_numpy()
    if not len(begins):
        return iv.EMPTY
    hooks = spans(named(trace, names.FSDP2_FORWARD_END))
    stops = np.sort(np.append(named(trace, names.FSDP2_BACKWARD_BEGIN)["ts_ns"].to_numpy(), begins))
    at = np.searchsorted(stops, begins, side="right")
    limits = np.where(at < len(stops), stops[np.minimum(at, len(stops) - 1)], trace.end_ns)
    last = np.searchsorted(hooks[:, 0], limits, side="left") - 1
    found = [(begin, int(hooks[i, 1])) for begin, i in zip(begins, last, strict=True) if i >= 0 and hooks[i, 1] > begin]
    return iv.make(found)
