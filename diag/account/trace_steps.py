"""Where a trace's steps begin and end on the host, whatever marks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from weakref import WeakKeyDictionary

import polars as pl
from msgspec.structs import replace

from diag.traces import kineto_names as names
from diag.traces import range_names
from diag.traces.trace import Trace

from .iterations import iterations_of
from .layers import Window

# Old profilers write microseconds, so that one range's end can pass the next one's begin.
ROUNDING_NS = 1000

_STEP_PATTERNS = (range_names.STEP_PATTERN, range_names.PROFILER_STEP_PATTERN)
# Beside a trace's tables: whether it marks its steps, by these patterns.
_MARKS = f"marks-{sha256(''.join(_STEP_PATTERNS).encode()).hexdigest()[:16]}"

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
    """Whether the trace marks its steps. Known from its names where none of them is a step's, and from what was derived
    before, without reading an event."""
    if not any(trace.stored.matching(pattern).any() for pattern in _STEP_PATTERNS):
        return False
    kept = trace.derived.load(_MARKS) if trace.derived is not None and trace not in _RANGES else None
    if kept is not None:
        return kept == b"1"
    found = not step_ranges(trace).is_empty()
    if trace.derived is not None:
        trace.derived.save(_MARKS, b"1" if found else b"0")
    return found


def _inferred(trace: Trace) -> tuple[int, ...]:
    found = iterations_of(trace) if not trace.undivided and not marks_steps(trace) else None
    return found.edges if found is not None else ()


def outside_of_iterations(trace: Trace) -> dict[int, str]:
    """The windows of inferred iterations that are none themselves, each with the reason."""
    edges = _inferred(trace)
    if not edges:
        return {}
    last = trace.step_shift + len(edges)
    return {trace.step_shift: "before the first iteration", last: "after the last iteration"}


def agreed(ranks: Mapping[int, Sequence[Trace]]) -> dict[int, tuple[Trace, ...]]:
    """The traces of each rank, in order of time, so that their steps can be compared: undivided where the ranks show
    different iterations, and with numbers that go on from window to window."""
    inferred = {
        rank: [(found.marker, len(found.edges)) if (found := iterations_of(trace)) is not None else None
               for trace in traces if not marks_steps(trace)]
        for rank, traces in ranks.items()
    }  # fmt: skip
    same = len({tuple(own) for own in inferred.values()}) <= 1
    return {rank: _numbered(traces, undivided=not same) for rank, traces in ranks.items()}


def _numbered(traces: Sequence[Trace], undivided: bool) -> tuple[Trace, ...]:
    if len(traces) == 1 and not undivided:
        return tuple(traces)
    found: list[Trace] = []
    last = -1
    for trace in traces:
        own = replace(trace, undivided=True) if undivided and not marks_steps(trace) else trace
        numbers = [step for step, _, _ in host_windows(own)]
        if found and numbers and numbers[0] <= last:
            own = replace(own, step_shift=last + 1 - numbers[0])
            numbers = [number + own.step_shift for number in numbers]
        last = max([last, *numbers])
        found.append(own)
    return tuple(found)


def _step_ranges(trace: Trace) -> pl.DataFrame:
    for pattern in _STEP_PATTERNS:
        found = trace.select(names.ANNOTATION, name=pattern)
        if not found.is_empty():
            number = pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False)
            found = found.with_columns(number.alias("step")).drop_nulls("step")
            found = _outermost(_of_one_thread(found))
            if pattern == range_names.STEP_PATTERN:
                # Our own numbers are the run's: a second range of one number repeats it.
                return found.unique("step", keep="first", maintain_order=True)
            return _numbered_on(_without_stub(trace, found)).with_columns(pl.col("step") + trace.step_shift)
    return found.with_columns(pl.lit(0, pl.Int64).alias("step"))


def host_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) on the host, without overlap. Where nothing marks steps, the iterations that repeat,
    between what lies before the first and after the last of them; else the whole trace as one step."""
    found = step_ranges(trace)
    if found.is_empty():
        edges = [trace.begin_ns, *_inferred(trace), trace.end_ns]
        return [(trace.step_shift + at, *span) for at, span in enumerate(pairwise(edges))]
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
