"""Every trace of a run, read by HTA and by us."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from diag.account import gpu
from diag.account import intervals as iv
from diag.account.intervals import Intervals
from diag.api import Result
from diag.collectors.layout import RunLayout
from diag.model.steps import Kind
from diag.traces import kineto_names as names
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from .model import AGREE_PERCENT, Comparison, CrossCheck, Departure, Measures, Quantity, RankCheck, difference
from .process import Answer, hta_version, job, run_jobs

# -- departures --------------------------------------------------------------------------------------------------------
#
# How HTA reads a trace differently from us, event by event.
#
# Source: hta/common/trace.py, trace_parser.py, trace_filter.py and utils/utils.py of HolisticTraceAnalysis 0.5.0.


class Cause(StrEnum):
    """The departures; `told` says what each one does."""

    LAST_STEP = "last-step"
    UNLAUNCHED = "launch-not-in-trace"
    NO_STREAM = "no-stream"
    HOST_EVENT = "host-event-on-a-stream"
    UNKNOWN_COMM = "unknown-communication"
    PEER_COPY = "peer-copy"
    LOCAL_COPY = "copy-within-device"
    UNKNOWN_COPY = "unknown-copy"
    NAMED_OTHERWISE = "compute-by-another-name"
    ROUNDING = "whole-microseconds"


_TOLD = {
    Cause.LAST_STEP: "leaves out what was launched in the last step, {steps}",
    Cause.UNLAUNCHED: "leaves out device work whose launch is not in the trace",
    Cause.NO_STREAM: "does not see device work without a stream",
    Cause.HOST_EVENT: "takes host events that carry a stream for device work: {names}",
    Cause.UNKNOWN_COMM: "does not know as communication: {names}",
    Cause.PEER_COPY: "does not count copies between devices as communication: {names}",
    Cause.LOCAL_COPY: "counts copies within the device and memsets as non-compute, we count them as compute",
    Cause.UNKNOWN_COPY: "takes copies for compute: {names}",
    Cause.NAMED_OTHERWISE: "takes compute for something else by its name: {names}",
    Cause.ROUNDING: "rounds every event inwards to whole microseconds; one that holds none counts as minus one",
}
# How HTA tells the kinds of device work apart. It matches from the start of the name.
_HTA_COMM = r"^nccl.*Kernel"
_HTA_NOT_COMPUTE = r"^nccl.*Kernel|^.*Memcpy|^Memset|^.*Sync|^dma"
_HTA_STEP = "ProfilerStep"
_NS_PER_US = 1000
_NAMES_TOLD = 3
_NAME_WIDTH = 60


def told(cause: Cause, trace: Trace, events: pl.DataFrame) -> str:
    """What HTA does, with "HTA" as the subject; ``events`` are those that it concerns."""
    distinct = events["name"].unique(maintain_order=True).to_list()
    shown = [name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…" for name in distinct[:_NAMES_TOLD]]
    more = f" and {len(distinct) - _NAMES_TOLD} more" if len(distinct) > _NAMES_TOLD else ""
    steps = hta_steps(trace)
    last = str(steps["name"][-1]) if len(steps) else ""
    return _TOLD[cause].format(names=", ".join(shown) + more, steps=last)


def hta_steps(trace: Trace) -> pl.DataFrame:
    """What HTA takes for steps, by start: the profiler's ranges on the host and their copies on the device."""
    return trace.select(name=_HTA_STEP)


def filed(trace: Trace, everything: pl.DataFrame) -> pl.DataFrame:
    """All that either of us takes for device work: start_ns, end_ns, name, cat, stream, correlation; the class that we
    and that HTA file it under, ``ours`` (null where we do not count it) and ``hta``; ``moved``: the Cause where these
    differ."""
    common = ("name", "cat", "stream", "correlation")
    ours = gpu.device_work(trace).select(
        pl.col("ts_ns").alias("start_ns"), "end_ns", *common, pl.col("class").cast(pl.String).alias("ours")
    )
    others = everything.filter(
        pl.col("stream") != -1, ~pl.col("cat").cast(pl.String).is_in(names.DEVICE_CATEGORIES)
    ).select(
        pl.col("ts_ns").alias("start_ns"),
        (pl.col("ts_ns") + pl.col("dur_ns")).alias("end_ns"),
        *common,
        pl.lit(None, pl.String).alias("ours"),
    )
    both = pl.concat([part.with_columns(pl.col("name", "cat").cast(pl.String)) for part in (ours, others)])
    name = pl.col("name")
    hta = (
        pl.when(name.str.contains(_HTA_COMM))
        .then(pl.lit(gpu.COMM))
        .when(name.str.contains(_HTA_NOT_COMPUTE))
        .then(pl.lit(gpu.COPY))
        .otherwise(pl.lit(gpu.COMPUTE))
    )
    return both.with_columns(hta.alias("hta")).with_columns(_moved().alias("moved"))


def _moved() -> pl.Expr:
    ours, is_kernel = pl.col("ours"), pl.col("cat") == names.KERNEL
    return (
        pl.when(ours.is_null())
        .then(pl.lit(str(Cause.HOST_EVENT)))
        .when(ours == pl.col("hta"))
        .then(pl.lit(None, pl.String))
        .when((ours == gpu.COMM) & is_kernel)
        .then(pl.lit(str(Cause.UNKNOWN_COMM)))
        .when(ours == gpu.COMM)
        .then(pl.lit(str(Cause.PEER_COPY)))
        .when(ours == gpu.COPY)
        .then(pl.lit(str(Cause.UNKNOWN_COPY)))
        .when(is_kernel)
        .then(pl.lit(str(Cause.NAMED_OTHERWISE)))
        .otherwise(pl.lit(str(Cause.LOCAL_COPY)))
    )


def dropped(trace: Trace, everything: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """The Cause why HTA leaves an event out, null where it does not.

    With more than one ProfilerStep, HTA keeps what a host event of the same correlation launched before the last of
    them began; that one may be the device's copy of the range, which begins later than the host's.
    """
    on_host = pl.col("stream").is_null() | (pl.col("stream") == -1)
    steps = hta_steps(trace)
    without = pl.when(on_host).then(pl.lit(str(Cause.NO_STREAM)))
    if steps["name"].n_unique() < 2:
        return events.select(without.alias("dropped"))["dropped"]
    last = steps.filter(on_host)["ts_ns"].max()
    launches = (
        everything.filter(on_host, pl.col("correlation").is_not_null())
        .group_by("correlation")
        .agg(pl.col("ts_ns").min().alias("launch_ns"))
    )
    joined = events.join(launches, on="correlation", how="left", maintain_order="left")
    launch = pl.when(pl.col("correlation").is_null()).then(pl.col("start_ns")).otherwise(pl.col("launch_ns"))
    cause = (
        without.when(launch.is_null())
        .then(pl.lit(str(Cause.UNLAUNCHED)))
        .when(launch >= last)
        .then(pl.lit(str(Cause.LAST_STEP)))
    )
    return joined.select(cause.alias("dropped"))["dropped"]


def rounds(trace: Trace, everything: pl.DataFrame) -> bool:
    """Whether HTA rounds this trace: it does so where any time is written with decimals."""
    return bool(((everything["ts_ns"] - trace.base_ns) % _NS_PER_US != 0).any())


def whole_microseconds(trace: Trace, events: pl.DataFrame) -> list[pl.Series]:
    """``whole_start_ns`` and ``whole_end_ns``: starts rounded up and ends down, as HTA does in float64. That holds a
    microsecond since 1970 to 0.25 us only, so the detour matters where a trace has no base time."""
    raw = (events["start_ns"] - trace.base_ns).to_numpy()
    start = raw // _NS_PER_US + (raw % _NS_PER_US) / _NS_PER_US
    end = start + (events["end_ns"] - events["start_ns"]).to_numpy() / _NS_PER_US
    rounded = {"whole_start_ns": np.ceil(start), "whole_end_ns": np.floor(end)}
    return [pl.Series(key, times.astype(np.int64) * _NS_PER_US + trace.base_ns) for key, times in rounded.items()]


# -- device time -------------------------------------------------------------------------------------------------------
#
# One rank's device time as we measure it, and as we would if we read the trace as HTA does.


@dataclass(frozen=True, eq=False)
class DeviceTime:
    """Device events with the columns of departures.filed, ``dropped``, ``whole_start_ns`` and ``whole_end_ns``;
    ``departures``: those that concern any event of this trace."""

    events: pl.DataFrame
    departures: tuple[Departure, ...]

    def measure(self, window: tuple[int, int], departing: Collection[str] = ()) -> Measures:
        """The device time in ``[begin, end)`` ns, read as HTA does in these departures (ids), else as we do."""
        is_moved = pl.col("moved").is_in(departing).fill_null(False)
        events = self.events.filter(~pl.col("dropped").is_in(departing).fill_null(False)).with_columns(
            pl.when(is_moved).then(pl.col("hta")).otherwise(pl.col("ours")).alias("class")
        )
        events = events.filter(pl.col("class").is_not_null())
        prefix = "whole_" if Cause.ROUNDING in departing else ""
        times = events.select(prefix + "start_ns", prefix + "end_ns").to_numpy()
        compute, comm = (times[(events["class"] == kind).to_numpy()] for kind in (gpu.COMPUTE, gpu.COMM))
        busy_ns, compute_ns, comm_ns = (_merged_ns(part, window) for part in (times, compute, comm))
        hidden_ns = iv.total(iv.clip(iv.intersect(compute, comm), *window))
        return Measures(
            window_ns=int(times[:, 1].max() - times[:, 0].min()) if len(times) else 0,
            compute_ns=compute_ns,
            non_compute_ns=busy_ns - compute_ns,
            idle_ns=window[1] - window[0] - busy_ns,
            overlap_percent=100 * hidden_ns / comm_ns if comm_ns else None,
        )


def device_time(trace: Trace) -> DeviceTime:
    """A trace's device work, and what HTA makes of it."""
    everything = trace.select(arguments=True).with_columns(
        pl.coalesce("stream", pl.col("told_stream").cast(pl.Int32, strict=False)).alias("stream")
    )
    events = filed(trace, everything)
    events = events.with_columns(dropped(trace, everything, events), *whole_microseconds(trace, events))
    found = []
    for cause in Cause:
        concerned = events.filter((pl.col("dropped") == cause) | (pl.col("moved") == cause))
        if len(concerned) or (cause == Cause.ROUNDING and rounds(trace, everything)):
            found.append(Departure(str(cause), told(cause, trace, concerned), len(concerned)))
    return DeviceTime(events, tuple(found))


def _merged_ns(times: Intervals, window: tuple[int, int]) -> int:
    """The time that events cover in a window, merged as HTA merges: one that rounding turned inside out and that
    nothing else covers counts as minus a microsecond. Without such events, the same as intervals.total."""
    begin, end = window
    inside = times[(times[:, 1] > begin) & (times[:, 0] < end)]
    if not len(inside):
        return 0
    start, stop = np.maximum(inside[:, 0], begin), np.minimum(inside[:, 1], end)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(stop[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return int((reach[last] - start[first]).sum())


# -- explain -----------------------------------------------------------------------------------------------------------
#
# The reasons for a difference: found by measuring again, not by guessing.
#
# Our events are read again with every set of departures, small sets first, until the numbers are HTA's. A set that
# closes all gaps of a rank at once is trusted before one that closes a single gap: that can be chance.

Measure = Callable[[frozenset[str]], Measures]


def compare(ours: Measures, hta: Measures, departures: tuple[Departure, ...], measure: Measure) -> list[Comparison]:
    """Every quantity with the smallest set of departures that closes its gap; without reasons where none does."""
    measure = cache(measure)
    first = {quantity: difference(ours.value(quantity), hta.value(quantity), quantity) for quantity in Quantity}

    def left(chosen: frozenset[str], quantity: Quantity) -> float:
        return difference(measure(chosen).value(quantity), hta.value(quantity), quantity)

    def closes_all(chosen: frozenset[str]) -> float | None:
        gaps = [abs(left(chosen, quantity)) for quantity in Quantity]
        return sum(gaps) if max(gaps) <= AGREE_PERCENT else None

    def closes(quantity: Quantity) -> Callable[[frozenset[str]], float | None]:
        def gap(chosen: frozenset[str]) -> float | None:
            return size if (size := abs(left(chosen, quantity))) <= AGREE_PERCENT else None

        return gap

    everything = frozenset(departure.id for departure in departures)
    open_gaps = [quantity for quantity in Quantity if abs(first[quantity]) > AGREE_PERCENT]
    among = (_smallest(everything, closes_all) if open_gaps else None) or everything
    found = {quantity: _smallest(among, closes(quantity)) or frozenset() for quantity in open_gaps}
    return [
        Comparison(
            quantity=quantity,
            ours=ours.value(quantity),
            hta=hta.value(quantity),
            difference=first[quantity],
            reasons=tuple(d for d in departures if d.id in found.get(quantity, ())),
            residual=left(found[quantity], quantity) if found.get(quantity) else first[quantity],
        )
        for quantity in Quantity
    ]


def _smallest(among: frozenset[str], gap: Callable[[frozenset[str]], float | None]) -> frozenset[str] | None:
    """The smallest subset with a gap (not None), of equals the one with the least; None where there is none."""
    for size in range(1, len(among) + 1):
        closing = [(found, sorted(chosen)) for chosen in _subsets(among, size) if (found := gap(chosen)) is not None]
        if closing:
            return frozenset(min(closing)[1])
    return None


def _subsets(among: frozenset[str], size: int) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(among), size))


def cross_check(result: Result) -> CrossCheck:
    """Our numbers and HTA's for every trace of the run, with the reason for every difference.

    Both measure from the first to the last device event that HTA keeps; only the window itself is compared with all
    device events that we read. A trace that HTA fails on is a line, not an error. DiagError where HTA is not installed.
    """
    tool = hta_version()
    traces = [(rank, trace) for rank, tables in sorted(result.tables.ranks.items()) for trace in tables.traces]
    unread = _unread(result, [Path(trace.path) for _, trace in traces])
    files = [*((rank, Path(trace.path)) for rank, trace in traces), *((0, path) for path in unread)]
    jobs = [job("breakdown", rank, path) for rank, path in files]
    jobs += (
        [{"job": "ranks", "paths": [str(Path(trace.path).absolute()) for _, trace in traces]}]
        if len(traces) > 1
        else []
    )
    answers = run_jobs(jobs)
    checks = [_check(rank, trace, answer) for (rank, trace), answer in zip(traces, answers, strict=False)]
    failed = zip(unread, answers[len(traces) :], strict=False)
    checks += [_uncompared(None, path, f"we cannot read it either; HTA: {a.error or 'reads it'}") for path, a in failed]
    notes = () if traces else ("the run has no trace that both could read: nothing to compare",)
    return CrossCheck("hta", tool, tuple(checks), notes or _mixed_up(traces, answers[len(files) :]))


def ours_in(trace: Trace, begin_ns: int, end_ns: int, window_ns: int) -> Measures:
    """The account that `diag analyze` rests on, of a window, in HTA's terms."""
    step = gpu.partition(trace, [(0, begin_ns, end_ns)], 0)[0]
    exposed, hidden = step.segments.total(Kind.COMM), step.overlapped_comm_ns
    return Measures(
        window_ns=window_ns,
        compute_ns=step.segments.total(Kind.COMPUTE),
        non_compute_ns=exposed + step.segments.total(Kind.COPY),
        idle_ns=sum(step.segments.total(kind) for kind in (Kind.DATA, Kind.CHECKPOINT, Kind.IDLE)),
        overlap_percent=100 * hidden / (hidden + exposed) if hidden + exposed else None,
    )


def _check(rank: int, trace: Trace, answer: Answer) -> RankCheck:
    if answer.error:
        why = "" if trace.has_gpu else " (the trace holds no device event)"
        return _uncompared(rank, Path(trace.path), answer.error + why)
    found = answer.found
    begin, end = (_ns(found[key]) + trace.base_ns for key in ("begin_us", "end_us"))
    window, compute, idle = (_ns(found[key]) for key in ("window_us", "compute_us", "idle_us"))
    hta = Measures(window, compute, _ns(found["non_compute_us"]), idle, found["overlap_percent"])
    time = device_time(trace)
    ours = ours_in(trace, begin, end, time.measure((begin, end)).window_ns)
    comparisons = compare(ours, hta, time.departures, lambda departing: time.measure((begin, end), departing))
    return RankCheck(rank, str(trace.path), begin, end, tuple(comparisons))


def _ns(us: float) -> int:
    """Exactly, also for microseconds since 1970: as nanoseconds they do not fit a float64."""
    whole = int(us)
    return whole * _NS_PER_US + round((us - whole) * _NS_PER_US)


def _uncompared(rank: int | None, path: Path, error: str) -> RankCheck:
    return RankCheck(rank, str(path), 0, 0, (), error)


def _unread(result: Result, read: Sequence[Path]) -> list[Path]:
    """Trace files that we could not read: a run's own records are not among them."""
    layout = RunLayout(result.tables.root)
    if layout.is_run():
        files = {path for rank in layout.ranks().values() for path in rank.traces()}
    else:
        files = {Path(gap.path) for gap in result.tables.gaps if gap.path.endswith((".json", ".json.gz"))}
    return sorted(path for path in files - set(read) if path.is_file())


def _mixed_up(traces: Sequence[tuple[int, Trace]], answers: Sequence[Answer]) -> tuple[str, ...]:
    """What HTA would have made of the folder, where that is not what it was told here."""
    if not answers or answers[0].error:
        return ()
    taken = {Path(path): int(rank) for rank, path in answers[0].found.items()}
    lost = sorted({rank for rank, trace in traces if taken.get(Path(trace.path).absolute()) != rank})
    if not lost:
        return ()
    return (
        f"given the folder, HTA reads {len(taken)} of {len(traces)} traces, and {rank_ranges(lost)} not as such: it "
        "keeps one file a rank, and takes for rank 0 what says no rank or says it without a blank "
        '("rank":3, compact JSON). Here it was told the ranks.',
    )
