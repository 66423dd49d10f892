"""Why HTA's numbers differ from ours: our events measured again the way HTA reads them, until the numbers are HTA's.

It proves both the analyser and the cross-check: a difference that no known way of reading closes is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from itertools import combinations

import numpy as np
import polars as pl

from diag.account import gpu
from diag.account import intervals as iv
from diag.account.intervals import Intervals
from diag.api import Result
from diag.crosscheck.model import AGREE_PERCENT, Comparison, CrossCheck, Measures, Quantity, difference
from diag.traces import kineto_names as names
from diag.traces.trace import Trace


@dataclass(frozen=True)
class Departure:
    """A way in which HTA reads this trace differently: what it does, and to how many events (0: to all of them)."""

    id: str
    text: str
    events: int


@dataclass(frozen=True)
class Explained(Comparison):
    """``residual``: the difference that is left once our own events are read as ``reasons`` say that HTA reads them."""

    reasons: tuple[Departure, ...]
    residual: float

    @property
    def explained(self) -> bool:
        return self.agrees or bool(self.reasons)


def explain(check: CrossCheck, result: Result) -> CrossCheck:
    """The cross-check of a run, with ``Explained`` comparisons."""
    traces = {str(trace.path): trace for tables in result.tables.ranks.values() for trace in tables.traces}
    ranks = []
    for rank in check.ranks:
        if rank.comparisons:
            time, window = device_time(traces[rank.path]), (rank.begin_ns, rank.end_ns)
            ours = _measures({item.quantity: item.ours for item in rank.comparisons})
            hta = _measures({item.quantity: item.hta for item in rank.comparisons})
            measure = partial(time.measure, window)
            rank = replace(rank, comparisons=tuple(compare(ours, hta, time.departures, measure)))
        ranks.append(rank)
    return replace(check, ranks=tuple(ranks))


def _measures(values: Mapping[Quantity, float | None]) -> Measures:
    times = [int(values[quantity] or 0) for quantity in Quantity if quantity != Quantity.OVERLAP]
    return Measures(*times, values[Quantity.OVERLAP])


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


def compare(ours: Measures, hta: Measures, departures: tuple[Departure, ...], measure: Measure) -> list[Explained]:
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
        Explained(
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
