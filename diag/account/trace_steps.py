"""Where a trace's steps begin and end on the host, whatever marks them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .layers import Window

# -- iterations --------------------------------------------------------------------------------------------------------
#
# Iterations of a trace that marks no steps: found by what repeats once in each (science.md 6.4).

Times = npt.NDArray[np.int64]

# Two iterations can be equal by chance; of operators, which repeat within an iteration as well (the layers of a model),
# more are asked for.
_LEAST, _LEAST_OF_OPERATORS = 3, 4
_COVERED = 0.5  # of the time from the first to the last range of one name: less, and they are a part of an iteration
_ALL_WORK = 0.8  # of the work on the device lies between the first and the last iteration
_STEADY = 3.0  # times as long as another: iterations differ, but not like the parts of one
_ALIKE = 0.8  # of the periods have as many operators as the middle one
_NUMBERS = re.compile(r"\d+")
_PHASES = (
    f"{names.DATA_PATTERN}|{names.FORWARD_PATTERN}|{names.BACKWARD_PATTERN}"
    f"|{names.OPTIMIZER_PATTERN}|{names.ZERO_GRAD_PATTERN}|{names.CHECKPOINT_PATTERN}"
    f"|^FSDP::|^FullyShardedDataParallel|{comm_names.CALL_OP_PATTERN}|^## Call CompiledFxGraph|^diag\\."
)


class Iterations(Struct, frozen=True):
    """``edges``: n + 1 moments between which n iterations lie, on the host. ``marker``: what repeats."""

    edges: tuple[int, ...]
    marker: str


_FOUND: WeakKeyDictionary[Trace, Iterations | None] = WeakKeyDictionary()


def iterations_of(trace: Trace) -> Iterations | None:
    """The iterations in the trace; None where nothing repeats.

    Best first: ranges that span whole iterations (of Lightning, vLLM, SGLang, or a user's own), steps of the optimizer
    (of several the one that steps least often), calls of the data loader, ``zero_grad``, and a sequence of operators
    that comes back, each time with a copy from or to the host or with the launch of a graph: what a layer lacks.
    """
    if trace not in _FOUND:
        _FOUND[trace] = _iterations_of(trace)
    return _FOUND[trace]


def _iterations_of(trace: Trace) -> Iterations | None:
    ranges = trace.select(names.ANNOTATION)
    optimizer = _repeated(ranges, names.OPTIMIZER_STEP_PATTERN, last=True)
    spanning = _spanning(trace, ranges)
    if spanning is not None and (optimizer is None or len(spanning.edges) <= len(optimizer.edges) + 2):
        return spanning
    return (
        optimizer
        or _repeated(ranges, names.DATA_PATTERN)
        or _repeated(ranges, names.ZERO_GRAD_PATTERN)
        or _of_operators(trace)
    )


def _spanning(trace: Trace, ranges: pl.DataFrame) -> Iterations | None:
    """Ranges of one name, but for its numbers, that follow each other through most of the time."""
    own = ranges.filter(~trace.says(ranges, _PHASES))
    texts = {name: _NUMBERS.sub("#", name) for name in own["name"].unique().cast(pl.String)}
    families = own.with_columns(pl.col("name").cast(pl.String).replace_strict(texts, default="").alias("family"))
    best: tuple[float, Iterations] | None = None
    for (family, _), rows in families.group_by("family", "thread", maintain_order=True):
        begin, end = _outermost_only(rows)
        if len(begin) < _LEAST:
            continue
        covered = float((end - begin).sum()) / max(1, int(end[-1] - begin[0]))
        if covered >= _COVERED and (best is None or covered / len(begin) > best[0]):
            edges = (*begin.tolist(), int(end[-1]))
            best = covered / len(begin), Iterations(edges, str(family))
    return best[1] if best is not None and _has_work(trace, best[1].edges) else None


def _steady(each: Times) -> bool:
    """Whether most of them are about as much as the middle one; the first may hold start-up."""
    middle = float(np.median(each))
    return middle > 0 and float(((each >= middle / _STEADY) & (each <= middle * _STEADY)).mean()) >= _ALIKE


def _outermost_only(rows: pl.DataFrame) -> tuple[Times, Times]:
    """Begins and ends of the ranges that lie in no other one of them."""
    begin = rows["ts_ns"].to_numpy()
    end = begin + rows["dur_ns"].to_numpy()
    outer = _in_no_other(begin, end)
    return begin[outer], end[outer]


def _in_no_other(begin: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Which of the ranges, in order of time, begin when all before them have ended."""
    found: npt.NDArray[np.bool_] = begin >= np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
    return found


def _repeated(ranges: pl.DataFrame, pattern: str, last: bool = False) -> Iterations | None:
    """Iterations that begin with a range of this name, or end with one (``last``): of the name that comes least often,
    since a part of an iteration (a micro-batch, one of two optimizers) may come more than once in it."""
    found = ranges.filter(pl.col("name").cast(pl.String).str.contains(pattern))
    best: Iterations | None = None
    for (name, _), rows in found.group_by("name", "thread", maintain_order=True):
        begin, end = _outermost_only(rows)
        if len(begin) >= _LEAST and (best is None or len(begin) < len(best.edges)):
            best = Iterations(tuple((end if last else begin).tolist()), str(name))
    return best


def _of_operators(trace: Trace) -> Iterations | None:
    """A sequence of outermost operators and graph launches of one thread that comes back at a steady pace."""
    if not trace.has_gpu:
        return None
    calls = trace.select(*names.LAUNCH_CATEGORIES, name=f"{names.GRAPH_LAUNCH_PATTERN}|(?i)memcpy")
    graph = trace.says(calls, names.GRAPH_LAUNCH_PATTERN)
    operators = trace.select(names.CPU_OP)
    events = pl.concat(
        [frame.select("ts_ns", "dur_ns", "name", "thread") for frame in (operators, calls.filter(graph))]
    )
    exchanges = np.sort(calls["ts_ns"].to_numpy())
    for (_,), rows in sorted(events.group_by("thread"), key=lambda group: -len(group[1])):
        found = _period(trace, rows.sort("ts_ns", "dur_ns", descending=[False, True]), exchanges)
        if found is not None:
            return found
    return None


def _period(trace: Trace, rows: pl.DataFrame, exchanges: Times) -> Iterations | None:
    begin = rows["ts_ns"].to_numpy()
    outer = _in_no_other(begin, begin + rows["dur_ns"].to_numpy())
    begin, name = begin[outer], rows["name"].to_physical().to_numpy()[outer]
    codes, counts = np.unique(name, return_counts=True)
    enough = counts >= _LEAST_OF_OPERATORS
    codes, counts = codes[enough], counts[enough]
    for place in np.argsort(counts, kind="stable"):
        code = codes[place]
        at = np.flatnonzero(name == code)
        edges = begin[at]
        operators, dur = np.diff(at), np.diff(edges)
        steady = np.percentile(dur, 90) <= _STEADY * np.percentile(dur, 10)
        alike = float((operators == np.median(operators)).mean()) >= _ALIKE
        exchanged = np.diff(np.searchsorted(exchanges, edges)) > 0
        if steady and alike and exchanged.mean() >= _ALIKE and _has_work(trace, edges.tolist()):
            return Iterations(tuple(edges.tolist()), str(trace.stored.names[int(code)]))
        if counts[place] > 64:  # no iteration has so few operators that more names need a look
            break
    return None


@lru_cache(maxsize=1)
def _launches(trace: Trace) -> Times:
    """When the host launched work, in order: asked for by each name that may mark iterations."""
    found: Times = trace.select(*names.LAUNCH_CATEGORIES, name=names.LAUNCH_PATTERN)["ts_ns"].to_numpy()
    return found


def _has_work(trace: Trace, edges: Sequence[int]) -> bool:
    """Whether most of what the host launched lies between the first edge and one iteration after the last, about as
    much in each iteration, and not mostly in the first."""
    calls = _launches(trace)
    if not len(calls):
        return True
    until = edges[-1] + (edges[-1] - edges[0]) // (len(edges) - 1)
    launched = np.diff(np.searchsorted(calls, edges))
    inside = np.searchsorted(calls, until) - np.searchsorted(calls, edges[0])
    return bool(inside >= _ALL_WORK * len(calls) and _steady(launched) and launched[1:].sum() >= launched.sum() / 2)


# Old profilers write microseconds, so that one range's end can pass the next one's begin.
ROUNDING_NS = 1000

_STEP_PATTERNS = (names.STEP_PATTERN, names.PROFILER_STEP_PATTERN)
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
            if pattern == names.STEP_PATTERN:
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
