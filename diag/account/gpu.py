"""Where a GPU rank's step went, from its trace (science.md 2.2): an exact partition of every step.

Priority: compute kernels, communication that they do not hide, host-device copies that neither hides, then the idle
rest by what the launching threads did. HTA, nsys-ai and TraceLens give compute the same priority over communication.

Copies within a device and memsets count as compute, where science.md leaves them open: they run in stream order on the
device's own memory like any elementwise kernel (FSDP's copy-in is one), and no change to the input pipeline removes
them. Copies between devices are communication, and so are those that a collective makes (copy-engine collectives).
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from diag.model.steps import Detail, Kind, RankStep
from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.stored_events import ARGS_ROW
from diag.traces.trace import Trace

from . import intervals as iv
from . import trace_ranges as ranges
from .gpu_idle import NEVER, gap_layers, with_stalls
from .intervals import Intervals
from .layers import Layer, Window, covers, disjoint, traced_steps
from .trace_collectives import engine_copies, from_kernels, point_to_point
from .trace_steps import host_windows, marks_steps

# -- trace offload -----------------------------------------------------------------------------------------------------
#
# Parameters, gradients and optimizer states that a GPU rank keeps on its host: their copies, and waiting for them.

Flags = npt.NDArray[np.bool_]

_MORE_THAN_A_NUMBER_NS = 20_000  # half a megabyte by PCIe; a loss or a norm takes two or three microseconds


def offload_copies(trace: Trace, work: pl.DataFrame, computes: Flags) -> Flags:
    """Which of the device's work, if it is a copy from or to the host, is of states that are kept there.

    Those launched inside FSDP's own ranges. DeepSpeed has no ranges in a Kineto trace; of what is too long for a number
    that the host asks for, those launched in the backward or the optimizer, and in a forward those behind its first
    kernel on another stream. No input is copied there: DDP's side stream, too, copies them before the first kernel.
    """
    launch = work["launch_ns"].to_numpy()
    known = work["launch_known_ns"].to_numpy() != NEVER
    named = covers(ranges.as_intervals(ranges.named(trace, names.OFFLOAD_PATTERN)), launch)
    late = np.isin(work["phase"].to_numpy(), (Detail.BACKWARD, Detail.OPTIMIZER)) | _beside_forward(
        trace, work, computes
    )
    found: Flags = known & (named | (late & (work["dur_ns"].to_numpy() >= _MORE_THAN_A_NUMBER_NS)))
    return found


def waits(trace: Trace, work: pl.DataFrame, offloading: Flags) -> Intervals:
    """When a device that has nothing to do waits for its host to read, write or update states that are kept there.

    The host fetches a state, from a disk or out of slow memory, until it launches the copy to the device that ends a
    gap. And where gradients were brought to the host it updates there: whatever of the optimizer the device idles. What
    the host calls meanwhile is in no trace: neither asynchronous I/O nor DeepSpeed's own optimizer.
    """
    if not offloading.any():
        return iv.EMPTY
    inward = trace.says(work, comm_names.TO_DEVICE_PATTERN).to_numpy()
    start, launch = work["ts_ns"].to_numpy(), work["launch_known_ns"].to_numpy()
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(work["end_ns"].to_numpy())[:-1]))
    fetched = offloading & inward & (launch > reach)
    fetching = iv.normal(np.stack((reach[fetched], start[fetched]), axis=1))
    brought = offloading & ~inward & (work["phase"].to_numpy() == Detail.BACKWARD)
    return iv.union(fetching, ranges.optimizer(trace)) if brought.any() else fetching


def _beside_forward(trace: Trace, work: pl.DataFrame, computes: Flags) -> Flags:
    """Work launched in a forward behind its first kernel, on another stream than forwards compute on."""
    found = np.zeros(len(work), dtype=np.bool_)
    launch, stream = work["launch_ns"].to_numpy(), work["stream"].to_numpy()
    in_forward = work["phase"].to_numpy() == Detail.FORWARD
    own = work.filter(pl.Series(in_forward & computes)).group_by("stream").agg(pl.col("dur_ns").sum())
    if own.is_empty():
        return found
    main = min(own.filter(pl.col("dur_ns") == own["dur_ns"].max())["stream"])
    kernels = np.sort(launch[in_forward & computes & (stream == main)])
    beside = np.flatnonzero(in_forward & (stream != main))
    begins = ranges.forward(trace)[:, 0]
    begin = begins[np.searchsorted(begins, launch[beside], side="right") - 1]
    first = np.append(kernels, trace.end_ns)[np.searchsorted(kernels, begin)]
    found[beside] = first < launch[beside]
    return found


COMPUTE, COMM, COPY = "compute", "comm", "copy"  # the classes of device_work
_CLASSES = pl.Enum([COMPUTE, COMM, COPY])


def step_windows(trace: Trace) -> list[Window]:
    """(step, begin_ns, end_ns) of every step: our ``diag.step#N``, else ``ProfilerStep#N``, else iterations that
    repeat, else the whole trace.

    On a GPU each edge moves to when the device had finished what the host launched before it. A departure from
    science.md 2.1, whose edges are the host's: the host runs ahead of the device by up to several steps (on the MI300
    trace the last host step ends before the first kernel of the first one), so the host's window of a step holds
    other steps' kernels and the last steps' are in none.
    """
    host = host_windows(trace)
    if not trace.has_gpu or (len(host) == 1 and not marks_steps(trace)):
        return host
    work = device_work(trace).sort("launch_ns")
    launched = work["launch_ns"].to_numpy()
    reach = np.maximum.accumulate(work["end_ns"].to_numpy())

    def done(edge: int) -> int:
        before = int(np.searchsorted(launched, edge, side="left"))
        return max(edge, int(reach[before - 1])) if before else edge

    return [(step, done(begin), done(end)) for step, begin, end in host]


def partition(trace: Trace, windows: Sequence[Window], rank: int) -> list[RankStep]:
    """One exact account per window."""
    work = device_work(trace)
    main = ranges.main_thread(trace)
    launchers = ranges.thread_set(trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("thread",)))
    threads = launchers | ({main} if main is not None else set())
    talking = trace.with_arguments(work.filter(pl.col("class") == COMM))
    layers = disjoint(_layers(trace, work, talking, threads, divided=len(windows) > 1))
    hidden = iv.intersect(ranges.as_intervals(talking), ranges.as_intervals(work.filter(pl.col("class") == COMPUTE)))
    optimizing = _optimizer_time(work, layers)
    # What was queued before the trace began is another number of collectives on each rank: counting them from the
    # first on would match what does not belong together.
    launched = talking.filter(pl.col("launch_known_ns") != NEVER) if "launch_known_ns" in talking.columns else talking
    calls = from_kernels(trace, launched if len(launched) else talking, windows)
    steps = traced_steps(rank, windows, layers, hidden, optimizing, calls, ranges.as_intervals(fused_work(trace)))
    edges = np.array([(begin, end) for _, begin, end in windows], dtype=np.int64).reshape(-1, 2)
    pieces = np.diff(np.searchsorted(work["ts_ns"].to_numpy(), edges), axis=1)[:, 0].tolist()
    counted = [replace(step, pieces=count) for step, count in zip(steps, pieces, strict=True)]
    return with_stalls(trace, counted, threads)


_WORK: WeakKeyDictionary[Trace, pl.DataFrame] = WeakKeyDictionary()


def device_work(trace: Trace) -> pl.DataFrame:
    """Device events by start, with end_ns, class, phase (a Detail) and the launch: launch_known_ns (NEVER where the
    trace has none) and launch_until_ns, begin and end of the call; launch_ns, launch_thread.

    Without a launch in the trace, ``launch_ns`` is the work's own start; but for work ahead of all that was launched
    in the trace, it is just before the trace: it was queued by then, so no step of it did it.
    """
    if trace not in _WORK:
        _WORK[trace] = _device_work(trace)
    return _WORK[trace]


def fused_work(trace: Trace) -> pl.DataFrame:
    """The kernels that compute and communicate at once; by class they are compute."""
    work = device_work(trace)
    named = trace.says(work, comm_names.FUSED_PATTERN) & ~trace.says(work, comm_names.FUSED_NOT_PATTERN)
    return work.filter(named & (work["cat"] == names.KERNEL) & (work["class"] == COMPUTE))


def forget(trace: Trace) -> None:
    """Lets go of the trace's device work: a folder of ranks would add up."""
    _WORK.pop(trace, None)


def _device_work(trace: Trace) -> pl.DataFrame:
    work = trace.select(*names.DEVICE_CATEGORIES).filter(pl.col("dur_ns") > 0)
    work = work.with_columns((pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"), _classes(trace, work).alias("class"))
    joined = work.with_columns(*_launches(trace, work["correlation"]))
    first_known = pl.col("ts_ns").filter(pl.col("launch_known_ns").is_not_null()).min()
    own = pl.when(pl.col("ts_ns") < first_known).then(trace.begin_ns - 1).otherwise(pl.col("ts_ns"))
    joined = joined.with_columns(
        pl.coalesce("launch_known_ns", own).alias("launch_ns"),
        pl.col("launch_known_ns", "launch_until_ns").fill_null(NEVER),
    )
    made_by_collective = pl.lit(engine_copies(trace, joined))
    return joined.with_columns(
        _phases(trace, joined),
        pl.when(made_by_collective).then(pl.lit(COMM, _CLASSES)).otherwise("class").alias("class"),
    )


def _launches(trace: Trace, correlation: pl.Series) -> list[pl.Series]:
    """launch_known_ns, launch_until_ns and launch_thread of work with these correlations: of the first call that has
    each; null where the trace has none. A million calls are too many for a join that keeps an order."""
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("correlation", "ts_ns", "dur_ns", "thread"))
    calls = calls.filter(pl.col("correlation") > 0)
    keys, starts, durs, threads = (calls[key].to_numpy() for key in ("correlation", "ts_ns", "dur_ns", "thread"))
    order = np.lexsort((starts, keys))
    keys = keys[order]
    wanted = correlation.fill_null(0).to_numpy()
    at = np.searchsorted(keys, wanted)
    known = at < len(keys)
    known[known] = keys[at[known]] == wanted[known]
    call = order[at[known]]
    found = []
    for name, values, kind in (
        ("launch_known_ns", starts, pl.Int64),
        ("launch_until_ns", starts + durs, pl.Int64),
        ("launch_thread", threads, pl.UInt32),
    ):
        column = np.zeros(len(wanted), dtype=values.dtype)
        column[known] = values[call]
        found.append(pl.Series(name, column, dtype=kind).set(pl.Series(~known), None))
    return found


def _classes(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """COMPUTE, COMM or COPY, by the events' categories, names and arguments."""
    is_copy = work["cat"] == names.MEMCPY
    called = trace.says(work, comm_names.KERNEL_PATTERN) & ~trace.says(work, comm_names.NOT_KERNEL_PATTERN)
    comm = (is_copy & trace.says(work, comm_names.PEER_COPY_PATTERN)) | (
        (work["cat"] == names.KERNEL) & (called | work[ARGS_ROW].is_not_null() | trace.named_by_user(work))
    )
    copy = is_copy & ~comm & ~trace.says(work, comm_names.LOCAL_COPY_PATTERN)
    found = np.select([comm.to_numpy(), copy.to_numpy()], [1, 2], 0).astype(np.uint8)
    return pl.Series(found).cat.to(_CLASSES)


def _phases(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """The Detail of each device event: in which phase of the step the host launched it; NONE where nothing says."""
    launch = work["launch_ns"].to_numpy()
    known = work["launch_known_ns"].to_numpy() != NEVER
    found = np.full(len(work), Detail.NONE, dtype=np.int8)
    found[covers(ranges.forward(trace), launch) & known] = Detail.FORWARD
    found[covers(ranges.backward(trace), launch) & known] = Detail.BACKWARD
    found[covers(ranges.optimizer(trace), launch) & known] = Detail.OPTIMIZER
    return pl.Series("phase", found, dtype=pl.Int8)


def _layers(
    trace: Trace, work: pl.DataFrame, comm: pl.DataFrame, threads: set[ranges.Thread], divided: bool
) -> list[Layer]:
    spans, phase = ranges.spans(work), work["phase"].to_numpy()
    computes, copies = (work["class"] == COMPUTE).to_numpy(), (work["class"] == COPY).to_numpy()
    offloading = copies & offload_copies(trace, work, computes)
    talking, p2p = ranges.spans(comm), point_to_point(trace, comm)
    data = ranges.data_wait(trace, threads)
    checkpoint = ranges.checkpoint(trace)
    collecting = ranges.garbage_collection(trace)
    fetching = waits(trace, work, offloading)
    return [
        *(
            Layer(Kind.COMPUTE, detail, iv.normal(spans[computes & (phase == detail)]))
            for detail in (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.NONE)
        ),
        Layer(Kind.COMM, Detail.NONE, iv.normal(talking[~p2p])),
        Layer(Kind.COMM, Detail.P2P, iv.normal(talking[p2p])),
        Layer(Kind.COPY, Detail.NONE, iv.normal(spans[copies & ~offloading])),
        Layer(Kind.COPY, Detail.OFFLOAD, iv.normal(spans[offloading])),
        Layer(Kind.DATA, Detail.NONE, data),
        Layer(Kind.CHECKPOINT, Detail.NONE, checkpoint),
        Layer(Kind.IDLE, Detail.GC, collecting),
        Layer(Kind.IDLE, Detail.OFFLOAD, fetching),
        *gap_layers(
            trace, work, iv.union(data, checkpoint, collecting, fetching), threads, marks_steps(trace), divided
        ),
    ]


def _optimizer_time(work: pl.DataFrame, layers: Sequence[Layer]) -> Intervals:
    """Compute launched in the optimizer, and idle time between two such pieces of work."""
    compute = [layer.intervals for layer in layers if layer.kind == Kind.COMPUTE and layer.detail == Detail.OPTIMIZER]
    start, reach = work["ts_ns"].to_numpy(), np.maximum.accumulate(work["end_ns"].to_numpy())
    is_optimizer = work["phase"].to_numpy() == Detail.OPTIMIZER
    # The gap before work i belongs to the optimizer if both neighbours do.
    inside = is_optimizer[1:] & is_optimizer[:-1]
    gaps = iv.normal(np.stack((reach[:-1][inside], start[1:][inside]), axis=1)) if len(start) > 1 else iv.EMPTY
    other = [layer.intervals for layer in layers if layer.kind not in (Kind.COMPUTE, Kind.IDLE)]
    return iv.union(*compute, iv.subtract(gaps, iv.union(*other)))
