"""How HTA reads a trace differently from us, event by event.

Source: hta/common/trace.py, trace_parser.py, trace_filter.py and utils/utils.py of HolisticTraceAnalysis 0.5.0.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import polars as pl

from diag.account import gpu
from diag.traces import kineto_names as names
from diag.traces.trace import Trace


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
