"""Iterations of a trace that marks no steps: found by what repeats once in each (science.md 6.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.traces import comm_names, range_names
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

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
    f"{range_names.DATA_PATTERN}|{range_names.FORWARD_PATTERN}|{range_names.BACKWARD_PATTERN}"
    f"|{range_names.OPTIMIZER_PATTERN}|{range_names.ZERO_GRAD_PATTERN}|{range_names.CHECKPOINT_PATTERN}"
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
    optimizer = _repeated(ranges, range_names.OPTIMIZER_STEP_PATTERN, last=True)
    spanning = _spanning(trace, ranges)
    if spanning is not None and (optimizer is None or len(spanning.edges) <= len(optimizer.edges) + 2):
        return spanning
    return (
        optimizer
        or _repeated(ranges, range_names.DATA_PATTERN)
        or _repeated(ranges, range_names.ZERO_GRAD_PATTERN)
        or _of_operators(trace)
    )


def _spanning(trace: Trace, ranges: pl.DataFrame) -> Iterations | None:
    """Ranges of one name, but for its numbers, that follow each other through most of the time."""
    own = ranges.filter(~trace.says(ranges, _PHASES))
    texts = {name: _NUMBERS.sub("#", name) for name in own["name"].unique().cast(pl.String)}
    families = own.with_columns(pl.col("name").cast(pl.String).replace_strict(texts, default="").alias("family"))
    best: tuple[float, Iterations] | None = None
    for (family, _), rows in families.group_by("family", "thread", maintain_order=True):
        begin, end = _outermost(rows)
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


def _outermost(rows: pl.DataFrame) -> tuple[Times, Times]:
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
        begin, end = _outermost(rows)
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
