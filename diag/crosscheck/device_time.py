"""One rank's device time as we measure it, and as we would if we read the trace as HTA does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl

from diag.account import gpu
from diag.account import intervals as iv
from diag.account.intervals import Intervals
from diag.traces.trace import Trace

from . import departures as hta
from .departures import Cause
from .model import Departure, Measures


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
    events = hta.filed(trace, everything)
    events = events.with_columns(hta.dropped(trace, everything, events), *hta.whole_microseconds(trace, events))
    found = []
    for cause in Cause:
        concerned = events.filter((pl.col("dropped") == cause) | (pl.col("moved") == cause))
        if len(concerned) or (cause == Cause.ROUNDING and hta.rounds(trace, everything)):
            found.append(Departure(str(cause), hta.told(cause, trace, concerned), len(concerned)))
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
