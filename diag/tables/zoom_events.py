"""A rank's own trace events as lanes: kernels, communication, copies, operators, calls and ranges of the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from diag.account import gpu
from diag.account import trace_ranges as ranges
from diag.account.intervals import Intervals, Times
from diag.account.kept_steps import windows_of
from diag.model.steps import RankStep
from diag.rundir.run import RankTables
from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .zoom_lane import Category, Codes, Lane, make_lane
from .zoom_ranks import RankLanes

_STORED = ("ts_ns", "dur_ns", "name", "thread")
_OF_CLASS = {
    gpu.COMPUTE: ("kernels", Category.COMPUTE),
    gpu.COMM: ("communication", Category.COMMUNICATION),
    gpu.COPY: ("copies", Category.COPY),
}


class _Part(NamedTuple):
    title: str
    category: Category
    events: Intervals
    name: Codes


def event_lanes(tables: RankTables, account: RankLanes) -> tuple[Lane, ...]:
    """The lanes of the traces that the rank's account rests on, on the clock of the account. Empty without a trace.

    Kernels and copies have the classes of the partition; communication is kernels on a device and gloo's, MPI's or
    UCC's ranges on a CPU. Functions of Python (traces with stacks) are left out.
    """
    texts: list[str] = []
    found: dict[tuple[str, Category], list[_Part]] = defaultdict(list)
    for trace in tables.traces:
        clock = _clock(trace, account.steps, account.moved_ns)
        if clock is None:
            continue
        for part in _parts(trace):
            placed = part._replace(events=clock(part.events), name=part.name + np.uint32(len(texts)))
            found[part.title, part.category].append(placed)
        texts.extend(trace.stored.names.to_list())
    lanes = [
        make_lane(
            title, category, np.concatenate([p.events for p in parts]), np.concatenate([p.name for p in parts]), texts
        )
        for (title, category), parts in found.items()
    ]
    return tuple(lane for lane in lanes if len(lane))


def _clock(trace: Trace, steps: Sequence[RankStep], moved_ns: int) -> Callable[[Times], Times] | None:
    """From the trace's clock to that of the account, by the ends of the steps that both have; None without any. The
    ends: a step that begins before an earlier trace was done begins later in the account."""
    placed: dict[int, list[RankStep]] = defaultdict(list)
    for step in steps:
        if step.source == "trace":
            placed[step.step].append(step)
    pairs: list[tuple[int, int]] = []
    for number, begin, end in windows_of(trace):
        # Traces without marks have a step 0 each: it is the one that is as long.
        as_long = sorted((abs(own.dur_ns - (end - begin)), own.end_ns) for own in placed[number])
        pairs.extend((end, own_end + moved_ns - end) for _, own_end in as_long[:1])
    if not pairs:
        return None
    at, ahead = np.array(sorted(pairs), dtype=np.int64).T
    first = int(ahead[0])
    if (ahead == first).all():
        return lambda times: times + first
    # Clocks that drift. Differences, because a float64 of nanoseconds since 1970 is wrong by a hundred of them.
    return lambda times: times + first + np.rint(np.interp(times - at[0], at - at[0], ahead - first)).astype(np.int64)


def _parts(trace: Trace) -> Iterator[_Part]:
    if trace.has_gpu:
        yield from _device_parts(trace)
    else:
        yield _part(
            "communication", Category.COMMUNICATION, trace.select(names.ANNOTATION, name=comm_names.WIRE_PATTERN)
        )
    main, autograd = ranges.main_thread(trace), ranges.autograd_threads(trace)
    operators = trace.unsorted(names.CPU_OP, columns=_STORED)
    of_main = operators["thread"] == (main if main is not None else -1)
    of_autograd = operators["thread"].is_in(sorted(autograd)) & ~of_main
    yield _part("operators, main thread", Category.HOST, operators.filter(of_main))
    yield _part("operators, autograd", Category.HOST, operators.filter(of_autograd))
    yield _part("operators, other threads", Category.HOST, operators.filter(~of_main & ~of_autograd))
    yield _part("calls of the runtime", Category.HOST, trace.unsorted(*names.LAUNCH_CATEGORIES, columns=_STORED))
    told = trace.unsorted(names.ANNOTATION, columns=_STORED)
    if not trace.has_gpu:  # the others are in the lane of communication
        told = told.filter(~pl.Series(trace.stored.matching(comm_names.WIRE_PATTERN))[told["name"]])
    yield _part("ranges", Category.HOST, told)


def _device_parts(trace: Trace) -> Iterator[_Part]:
    work = gpu.device_work(trace)
    gpu.forget(trace)
    for kind, (title, category) in _OF_CLASS.items():
        yield _part(title, category, work.filter(pl.col("class") == kind))


def _part(title: str, category: Category, events: pl.DataFrame) -> _Part:
    return _Part(title, category, ranges.spans(events), events["name"].to_physical().to_numpy().astype(np.uint32))
