"""Where a trace's steps begin and end on the host, whatever marks them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import polars as pl

from diag.ingest import kineto_names as names
from diag.ingest import range_names
from diag.ingest.trace import Trace

from .layers import Window

# Old profilers write microseconds, so that one range's end can pass the next one's begin.
ROUNDING_NS = 1000


_RANGES: WeakKeyDictionary[Trace, pl.DataFrame] = WeakKeyDictionary()


def step_ranges(trace: Trace) -> pl.DataFrame:
    """Our own step ranges, else the profiler's; columns of the events and ``step``, in order of time. Maybe empty.

    No step lies inside another, no number comes twice, and one thread marks them where several did at one time.

    The profiler closes with a stub of a step when it is stopped right after ``prof.step()``: a range without any
    work inside. That one is left out; a last step with work is a step like the others (HTA drops it).
    """
    if trace not in _RANGES:
        _RANGES[trace] = _step_ranges(trace)
    return _RANGES[trace]


def marks_steps(trace: Trace) -> bool:
    """Whether the trace marks its steps."""
    return not step_ranges(trace).is_empty()


def _step_ranges(trace: Trace) -> pl.DataFrame:
    for pattern in (range_names.STEP_PATTERN, range_names.PROFILER_STEP_PATTERN):
        found = trace.select(names.ANNOTATION, name=pattern)
        if not found.is_empty():
            number = pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False)
            found = found.with_columns(number.alias("step")).drop_nulls("step")
            found = _outermost(_of_one_thread(found))
            if pattern == range_names.STEP_PATTERN:
                # Our own numbers are the run's: a second range of one number repeats it.
                return found.unique("step", keep="first", maintain_order=True)
            return _numbered_on(_without_stub(trace, found))
    return found.with_columns(pl.lit(0, pl.Int64).alias("step"))


def host_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) on the host, without overlap; the whole trace as step 0 where nothing marks steps."""
    found = step_ranges(trace)
    if found.is_empty():
        return [(0, trace.begin_ns, trace.end_ns)]
    begins = found["ts_ns"].to_list()
    ends_ns = (found["ts_ns"] + found["dur_ns"]).to_list()
    limits = [*begins[1:], ends_ns[-1]]
    return [
        (step, begin, min(end, limit))
        for step, begin, end, limit in zip(found["step"], begins, ends_ns, limits, strict=True)
    ]


def _of_one_thread(found: pl.DataFrame) -> pl.DataFrame:
    """The ranges of the thread that marked the longest time, where two threads' ranges overlap; else all."""
    reach = (pl.col("ts_ns") + pl.col("dur_ns")).cum_max().shift(1)
    overlaps = (pl.col("ts_ns") + ROUNDING_NS < reach) & (pl.col("thread") != pl.col("thread").shift(1))
    if not found.select(overlaps.any()).item():
        return found
    marked = found.group_by("thread", maintain_order=True).agg(pl.col("dur_ns").sum())
    return found.filter(pl.col("thread") == marked.sort("dur_ns", descending=True, maintain_order=True)["thread"][0])


def _outermost(found: pl.DataFrame) -> pl.DataFrame:
    """Without the ranges inside an earlier one: the steps of a trainer that a step of another trainer runs."""
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    reach = ends.cum_max().shift(1)
    inside = (pl.col("ts_ns") < reach) & (ends <= reach)
    return found.filter(~inside.fill_null(False))


def _numbered_on(found: pl.DataFrame) -> pl.DataFrame:
    """With numbers that rise: where they start again (a second profiler in the file), they go on after the last."""
    shift, last = 0, None
    numbers: list[int] = []
    for step in found["step"]:
        if last is not None and step + shift <= last:
            shift = last + 1 - step
        last = step + shift
        numbers.append(last)
    return found.with_columns(pl.Series("step", numbers, pl.Int64))


def _without_stub(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    if len(found) < 2:
        return found
    first, *_, last = zip(found["ts_ns"], found["ts_ns"] + found["dur_ns"], strict=True)
    for categories, name in ((names.LAUNCH_CATEGORIES, names.LAUNCH_PATTERN), ((names.CPU_OP,), None)):
        if len(trace.select(*categories, name=name, within=first)):  # what the trace records of work
            return found if len(trace.select(*categories, name=name, within=last)) else found[:-1]
    return found
