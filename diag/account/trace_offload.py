"""Parameters, gradients and optimizer states that a GPU rank keeps on its host: their copies, and waiting for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from diag.model.steps import Detail
from diag.traces import comm_names, range_names
from diag.traces.trace import Trace

from . import intervals as iv
from . import trace_ranges as ranges
from .gpu_idle import NEVER
from .intervals import Intervals
from .layers import covers

Flags = npt.NDArray[np.bool_]

_MORE_THAN_A_NUMBER_NS = 20_000  # half a megabyte by PCIe; a loss or a norm takes two or three microseconds


def copies(trace: Trace, work: pl.DataFrame, computes: Flags) -> Flags:
    """Which of the device's work, if it is a copy from or to the host, is of states that are kept there.

    Those launched inside FSDP's own ranges. DeepSpeed has no ranges in a Kineto trace; of what is too long for a number
    that the host asks for, those launched in the backward or the optimizer, and in a forward those behind its first
    kernel on another stream. No input is copied there: DDP's side stream, too, copies them before the first kernel.
    """
    launch = work["launch_ns"].to_numpy()
    known = work["launch_known_ns"].to_numpy() != NEVER
    named = covers(ranges.as_intervals(ranges.named(trace, range_names.OFFLOAD_PATTERN)), launch)
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
