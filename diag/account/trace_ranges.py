"""Ranges of a trace's host threads: where steps begin and end, whatever marks them; phases, data wait, checkpoints,
garbage collection and compilation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.policy import STEP_DETECTION
from diag.collectors import records
from diag.deferred import pl
from diag.model import Gap
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import intervals as iv
from .intervals import Intervals, Window
from .of_traces import AFTER_ITERATIONS, BEFORE_ITERATIONS

# -- iterations --------------------------------------------------------------------------------------------------------
#
# Iterations of a trace without step marks, inferred from what repeats once in each (docs/guides/traces.md).

Times = npt.NDArray[np.int64]

_NUMBERS = re.compile(r"\d+")
_PHASES = (
    f"{names.DATA_PATTERN}|{names.FORWARD_PATTERN}|{names.BACKWARD_PATTERN}"
    f"|{names.OPTIMIZER_PATTERN}|{names.ZERO_GRAD_PATTERN}|{names.CHECKPOINT_PATTERN}"
    f"|^FSDP::|^FullyShardedDataParallel|{names.CALL_OP_PATTERN}|^## Call CompiledFxGraph|^diag\\."
)


# Why the time outside of the iterations is no step.


class Iterations(Struct, frozen=True):
    """``edges``: n + 1 host times that delimit n iterations. ``marker``: what repeats."""

    edges: tuple[int, ...]
    marker: str


_FOUND: WeakKeyDictionary[Trace, Iterations | None] = WeakKeyDictionary()


def iterations_of(trace: Trace) -> Iterations | None:
    """The iterations in the trace; None if nothing repeats.

    In order of preference: ranges that span whole iterations (of Lightning, vLLM, SGLang, or a user's own), steps of
    the optimizer (of several, the one that steps least often), calls of the data loader, ``zero_grad``, and a recurring
    sequence of operators that contains a copy from or to the host, or a graph launch, each time: a layer has neither.
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
    """Ranges of one name (numbers in it aside) that follow each other through most of the time."""
    candidates = ranges.filter(~trace.says(ranges, _PHASES))
    texts = {name: _NUMBERS.sub("#", name) for name in candidates["name"].unique().cast(pl.String)}
    families = candidates.with_columns(pl.col("name").cast(pl.String).replace_strict(texts, default="").alias("family"))
    best: tuple[float, Iterations] | None = None
    for (family, _), rows in families.group_by("family", "thread", maintain_order=True):
        begin, end = _outermost_only(rows)
        if len(begin) < STEP_DETECTION.least_iterations_of_a_range:
            continue
        covered = float((end - begin).sum()) / max(1, int(end[-1] - begin[0]))
        if covered >= STEP_DETECTION.covered_share and (best is None or covered / len(begin) > best[0]):
            edges = (*begin.tolist(), int(end[-1]))
            best = covered / len(begin), Iterations(edges, str(family))
    return best[1] if best is not None and _has_work(trace, best[1].edges) else None


def _steady(each: Times) -> bool:
    """Whether most of them are close to the median; the first may include start-up."""
    middle = float(np.median(each))
    return (
        middle > 0
        and float(
            (
                (each >= middle / STEP_DETECTION.longest_to_shortest)
                & (each <= middle * STEP_DETECTION.longest_to_shortest)
            ).mean()
        )
        >= STEP_DETECTION.periods_alike_share
    )


def _outermost_only(rows: pl.DataFrame) -> tuple[Times, Times]:
    """Begins and ends of the ranges that lie in no other of the ranges."""
    begin = rows["ts_ns"].to_numpy()
    end = begin + rows["dur_ns"].to_numpy()
    outer = _in_no_other(begin, end)
    return begin[outer], end[outer]


def _in_no_other(begin: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Which of the ranges, in order of time, begin when all earlier ones have ended."""
    separate: npt.NDArray[np.bool_] = begin >= np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
    return separate


def _repeated(ranges: pl.DataFrame, pattern: str, last: bool = False) -> Iterations | None:
    """Iterations that begin with a range of this name, or end with one (``last``). The least frequent matching name,
    since a part of an iteration (a micro-batch, one of two optimizers) may repeat in it."""
    matching = ranges.filter(pl.col("name").cast(pl.String).str.contains(pattern))
    best: Iterations | None = None
    for (name, _), rows in matching.group_by("name", "thread", maintain_order=True):
        begin, end = _outermost_only(rows)
        if len(begin) >= STEP_DETECTION.least_iterations_of_a_range and (best is None or len(begin) < len(best.edges)):
            best = Iterations(tuple((end if last else begin).tolist()), str(name))
    return best


def _of_operators(trace: Trace) -> Iterations | None:
    """A sequence of outermost operators and graph launches of one thread that recurs at a steady pace."""
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
        iterations = _period(trace, rows.sort("ts_ns", "dur_ns", descending=[False, True]), exchanges)
        if iterations is not None:
            return iterations
    return None


def _period(trace: Trace, rows: pl.DataFrame, exchanges: Times) -> Iterations | None:
    begin = rows["ts_ns"].to_numpy()
    outer = _in_no_other(begin, begin + rows["dur_ns"].to_numpy())
    begin, name = begin[outer], rows["name"].to_physical().to_numpy()[outer]
    codes, first, counts = np.unique(name, return_index=True, return_counts=True)
    enough = counts >= STEP_DETECTION.least_iterations_of_an_operator
    codes, first, counts = codes[enough], first[enough], counts[enough]
    for place in np.lexsort((first, counts)):  # of equally frequent names, the one that comes first begins an iteration
        code = codes[place]
        at = np.flatnonzero(name == code)
        edges = begin[at]
        operators, dur = np.diff(at), np.diff(edges)
        steady = np.percentile(dur, 90) <= STEP_DETECTION.longest_to_shortest * np.percentile(dur, 10)
        alike = float((operators == np.median(operators)).mean()) >= STEP_DETECTION.periods_alike_share
        exchanged = np.diff(np.searchsorted(exchanges, edges)) > 0
        if steady and alike and exchanged.mean() >= STEP_DETECTION.periods_alike_share and _share_work(trace, edges):
            return Iterations(tuple(edges.tolist()), str(trace.stored.names[int(code)]))
        if counts[place] > 64:  # an iteration has more operators than that: more frequent names need no look
            break
    return None


@lru_cache(maxsize=1)
def _launches(trace: Trace) -> Times:
    """When the host launched work, in order. Cached: each candidate name needs it."""
    launches: Times = trace.select(*names.LAUNCH_CATEGORIES, name=names.LAUNCH_PATTERN)["ts_ns"].to_numpy()
    return launches


def _has_work(trace: Trace, edges: Sequence[int]) -> bool:
    """Whether most launches of the host are between the first edge and one iteration after the last, about as many in
    each iteration, and not mostly in the first."""
    calls = _launches(trace)
    if not len(calls):
        return True
    until = _end_after(edges)
    launched = np.diff(np.searchsorted(calls, edges))
    inside = np.searchsorted(calls, until) - np.searchsorted(calls, edges[0])
    return bool(
        inside >= STEP_DETECTION.share_of_launches * len(calls)
        and _steady(launched)
        and launched[1:].sum() >= launched.sum() / 2
    )


def _end_after(edges: Sequence[int]) -> int:
    """The end of one more iteration after the last edge."""
    return int(edges[-1] + (edges[-1] - edges[0]) // (len(edges) - 1))


@lru_cache(maxsize=1)
def _launched_work(trace: Trace) -> tuple[Times, Times]:
    """When the host launched each piece of the device's work, in order, and for how long the device worked on all
    pieces before it."""
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("correlation", "ts_ns")).drop_nulls()
    work = trace.unsorted(*names.DEVICE_CATEGORIES, columns=("correlation", "dur_ns")).drop_nulls()
    pieces = work.join(calls.unique("correlation"), on="correlation").sort("ts_ns")
    return pieces["ts_ns"].to_numpy(), np.concatenate((np.zeros(1, np.int64), np.cumsum(pieces["dur_ns"].to_numpy())))


def _share_work(trace: Trace, edges: Times) -> bool:
    """Whether the iterations by an operator are those of the device's work: they hold most of its launches and of its
    time, and no later one most of the others' time. Points of one image, or tokens of one answer, repeat in a part of
    the window; the device's long work may lie before them, after them, or in a single one."""
    if not _has_work(trace, edges.tolist()):
        return False
    launched, worked = _launched_work(trace)
    if not len(launched):
        return True
    each = np.diff(worked[np.searchsorted(launched, [*edges, _end_after(edges.tolist())])])
    held = int(each.sum())
    return (
        held >= STEP_DETECTION.operators_share_of_device_time * int(worked[-1])
        and int(each[1:].max()) <= STEP_DETECTION.operators_share_of_device_time * held
    )


# Old profilers write microseconds, so one range's end can be later than the next one's begin.
ROUNDING_NS = 1000

_STEP_PATTERNS = (names.STEP_PATTERN, names.PROFILER_STEP_PATTERN)
# Cached with a trace's tables: whether it marks its steps, by these patterns.
_MARKS = f"marks-{sha256(''.join(_STEP_PATTERNS).encode()).hexdigest()[:16]}"

_RANGES: WeakKeyDictionary[Trace, pl.DataFrame] = WeakKeyDictionary()


def step_ranges(trace: Trace) -> pl.DataFrame:
    """Our own step ranges, else the profiler's; columns of the events and ``step``, in order of time. May be empty.

    No step lies inside another, no number occurs twice, and if several threads marked steps at the same time, only one
    thread's are returned.

    The profiler writes a stub of a step when it is stopped right after ``prof.step()``: a range without any work
    inside. The stub is left out; a last step with work is a step like the others (HTA drops it)."""
    if trace not in _RANGES:
        _RANGES[trace] = _step_ranges(trace).head(trace.most_steps)
    return _RANGES[trace]


def marks_steps(trace: Trace) -> bool:
    """Whether the trace marks its steps. If no event name is a step's, or the result is cached, no event is read."""
    if not any(trace.stored.matching(pattern).any() for pattern in _STEP_PATTERNS):
        return False
    cached = trace.derived.load(_MARKS) if trace.derived is not None and trace not in _RANGES else None
    if cached is not None:
        return cached == b"1"
    marks = not step_ranges(trace).is_empty()
    if trace.derived is not None:
        trace.derived.save(_MARKS, b"1" if marks else b"0")
    return marks


def _inferred(trace: Trace) -> tuple[int, ...]:
    iterations = iterations_of(trace) if not trace.undivided and not marks_steps(trace) else None
    return iterations.edges if iterations is not None else ()


def outside_of_iterations(trace: Trace) -> dict[int, str]:
    """The windows before and after the inferred iterations, each with the reason why it is not a step."""
    edges = _inferred(trace)
    if not edges:
        return {}
    last = trace.step_shift + len(edges)
    return {trace.step_shift: BEFORE_ITERATIONS, last: AFTER_ITERATIONS}


def agreed(ranks: Mapping[int, Sequence[Trace]]) -> dict[int, tuple[Trace, ...]]:
    """The traces of each rank, in order of time, so that their steps can be compared: undivided if the ranks show
    different iterations, and with numbers that continue from window to window."""
    inferred = {
        rank: [(iterations.marker, len(iterations.edges)) if (iterations := iterations_of(trace)) is not None else None
               for trace in traces if not marks_steps(trace)]
        for rank, traces in ranks.items()
    }  # fmt: skip
    same = len({tuple(of_rank) for of_rank in inferred.values()}) <= 1
    return {rank: _numbered(traces, undivided=not same) for rank, traces in ranks.items()}


def with_most_steps(traces: Sequence[Trace], most: int) -> tuple[tuple[Trace, ...], list[Gap]]:
    """The traces with the first ``most`` steps of each, and gaps for the others."""
    bounded, gaps = [], []
    for trace in traces:
        if marks_steps(trace) and (count := len(step_ranges(trace))) > most:
            trace = replace(trace, most_steps=most)
            gaps.append(Gap(trace.path, f"marks {count:,} steps: those after the first {most:,} were left out"))
        bounded.append(trace)
    return tuple(bounded), gaps


def _numbered(traces: Sequence[Trace], undivided: bool) -> tuple[Trace, ...]:
    if len(traces) == 1 and not undivided:
        return tuple(traces)
    numbered: list[Trace] = []
    last = -1
    for trace in traces:
        adjusted = replace(trace, undivided=True) if undivided and not marks_steps(trace) else trace
        numbers = [step for step, _, _ in host_windows(adjusted)]
        if numbered and numbers and numbers[0] <= last:
            adjusted = replace(adjusted, step_shift=last + 1 - numbers[0])
            numbers = [number + adjusted.step_shift for number in numbers]
        last = max([last, *numbers])
        numbered.append(adjusted)
    return tuple(numbered)


def _step_ranges(trace: Trace) -> pl.DataFrame:
    for pattern in _STEP_PATTERNS:
        marked = trace.select(names.ANNOTATION, name=pattern)
        if not marked.is_empty():
            number = pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False)
            marked = marked.with_columns(number.alias("step")).drop_nulls("step")
            marked = _outermost(_of_one_thread(marked))
            if pattern == names.STEP_PATTERN:
                # Our own numbers are the run's: a second range with the same number repeats the step.
                return marked.unique("step", keep="first", maintain_order=True)
            return _numbered_on(_without_stub(trace, marked)).with_columns(pl.col("step") + trace.step_shift)
    return marked.with_columns(pl.lit(0, pl.Int64).alias("step"))


def host_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) on the host, without overlap. Without step marks: the inferred iterations, and the time
    before the first and after the last of them; without these, the whole trace as one step."""
    marked = step_ranges(trace)
    if marked.is_empty():
        edges = [trace.begin_ns, *_inferred(trace), trace.end_ns]
        return [(trace.step_shift + at, *span) for at, span in enumerate(pairwise(edges))]
    begins = marked["ts_ns"].to_list()
    ends_ns = (marked["ts_ns"] + marked["dur_ns"]).to_list()
    limits = [*begins[1:], ends_ns[-1]]
    return [
        (step, begin, min(end, limit))
        for step, begin, end, limit in zip(marked["step"], begins, ends_ns, limits, strict=True)
    ]


def _of_one_thread(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges of the thread that marked the longest time, if two threads' ranges overlap; else all."""
    reach = (pl.col("ts_ns") + pl.col("dur_ns")).cum_max().shift(1)
    overlaps = (pl.col("ts_ns") + ROUNDING_NS < reach) & (pl.col("thread") != pl.col("thread").shift(1))
    if not ranges.select(overlaps.any()).item():
        return ranges
    marked = ranges.group_by("thread", maintain_order=True).agg(pl.col("dur_ns").sum())
    return ranges.filter(pl.col("thread") == marked.sort("dur_ns", descending=True, maintain_order=True)["thread"][0])


def _outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Without the ranges inside an earlier one: the steps of a trainer that a step of another trainer runs."""
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    reach = ends.cum_max().shift(1)
    inside = (pl.col("ts_ns") < reach) & (ends <= reach)
    return ranges.filter(~inside.fill_null(False))


def _numbered_on(ranges: pl.DataFrame) -> pl.DataFrame:
    """With increasing numbers: if they restart (a second profiler in the file), they continue after the last."""
    shift, last = 0, None
    numbers: list[int] = []
    for step in ranges["step"]:
        if last is not None and step + shift <= last:
            shift = last + 1 - step
        last = step + shift
        numbers.append(last)
    return ranges.with_columns(pl.Series("step", numbers, pl.Int64))


def _without_stub(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    if len(ranges) < 2:
        return ranges
    first, *_, last = zip(ranges["ts_ns"], ranges["ts_ns"] + ranges["dur_ns"], strict=True)
    for categories, name in ((names.LAUNCH_CATEGORIES, names.LAUNCH_PATTERN), ((names.CPU_OP,), None)):
        if len(trace.select(*categories, name=name, within=first)):  # the first of these kinds that the trace records
            return ranges if len(trace.select(*categories, name=name, within=last)) else ranges[:-1]
    return ranges


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
    """The engine's operators, one around each node of the backward. Cached for the last trace: an account reads them
    several times, and they are among the operators, the most frequent events."""
    return named(trace, "^" + names.AUTOGRAD_PREFIX, names.CPU_OP)


def on_threads(events: pl.DataFrame, threads: set[Thread]) -> pl.DataFrame:
    chosen = np.isin(events["thread"].to_numpy(), sorted(threads))
    return events if chosen.all() else events[np.flatnonzero(chosen)]


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
    ranges = named(trace, _own(name))
    return as_intervals(on_threads(ranges, threads) if threads else ranges)


def data_wait(trace: Trace, threads: set[Thread]) -> Intervals:
    """Waiting for the loader on these threads: ``enumerate(DataLoader)#...__next__``, ``diag.data`` and similar ranges,
    and the loader's own function if the trace has Python stacks."""
    waits = on_threads(named(trace, names.DATA_PATTERN), threads)
    called = on_threads(named(trace, names.DATA_FUNCTION_PATTERN, names.PYTHON), threads)
    return iv.union(as_intervals(waits), as_intervals(called), phase(trace, records.DATA, threads))


def checkpoint(trace: Trace) -> Intervals:
    """Saving: our own ranges, those of libraries, and ``torch.save`` if the trace has Python stacks."""
    return iv.union(
        phase(trace, records.CHECKPOINT),
        as_intervals(named(trace, names.CHECKPOINT_PATTERN)),
        as_intervals(named(trace, names.CHECKPOINT_FUNCTION_PATTERN, names.PYTHON)),
    )


def garbage_collection(trace: Trace) -> Intervals:
    """Pauses of Python's collector; all threads, since each pause holds the interpreter's lock."""
    return as_intervals(named(trace, names.GC_PATTERN, names.PYTHON, names.ANNOTATION))


def forward(trace: Trace) -> Intervals:
    """Our own ranges, else those of libraries. A forward that is recomputed in a backward is in both."""
    ours = phase(trace, records.FORWARD)
    if len(ours):
        return ours
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

    ``optimizer.step(closure)``, and so Lightning's ``optimizer_step``, encloses the whole step. The range that begins
    later is the inner one: a fused optimizer within the backward stays optimizer, a backward within a step is backward.
    """
    outer = spans(named(trace, f"{_own(records.OPTIMIZER)}|{names.OPTIMIZER_PATTERN}"))
    either = (
        _own(records.FORWARD),
        _own(records.BACKWARD),
        names.FORWARD_PATTERN,
        names.BACKWARD_PATTERN,
    )
    inner = np.concatenate((spans(named(trace, "|".join(either))), spans(autograd_nodes(trace)), _fsdp2_forward(trace)))
    inner = inner[np.argsort(inner[:, 0], kind="stable")]
    first = np.searchsorted(inner[:, 0], outer[:, 0], side="right")
    last = np.searchsorted(inner[:, 0], outer[:, 1], side="left")
    if (first >= last).all():
        return iv.normal(outer)
    pieces = zip(outer, first, last, strict=True)
    return iv.union(*(iv.subtract(span[None], inner[i:j]) if j > i else span[None] for span, i, j in pieces))


def compiling(trace: Trace) -> Intervals:
    """When ``torch.compile`` compiled or tuned something, on any thread: such a step does not represent the run."""
    return as_intervals(named(trace, names.COMPILING_PATTERN, names.CPU_OP, names.ANNOTATION))


def loading(trace: Trace, threads: set[Thread]) -> Intervals:
    """One-time activity of the host on these threads: loading a kernel's code, compiling, autotuning, recording a
    graph."""
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

    Hooks of a forward that checkpointing recomputes come after the backward has begun, so they are left out.
    """
    begins = named(trace, f"^{names.FSDP2_FORWARD_BEGIN}$")["ts_ns"].to_numpy()
    if not len(begins):
        return iv.EMPTY
    hooks = spans(named(trace, names.FSDP2_FORWARD_END))
    stops = np.sort(np.append(named(trace, names.FSDP2_BACKWARD_BEGIN)["ts_ns"].to_numpy(), begins))
    at = np.searchsorted(stops, begins, side="right")
    limits = np.where(at < len(stops), stops[np.minimum(at, len(stops) - 1)], trace.end_ns)
    last = np.searchsorted(hooks[:, 0], limits, side="left") - 1
    forwards = [
        (begin, int(hooks[i, 1])) for begin, i in zip(begins, last, strict=True) if i >= 0 and hooks[i, 1] > begin
    ]
    return iv.make(forwards)
