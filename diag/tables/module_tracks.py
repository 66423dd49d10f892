"""Which module of the model each moment of a trace belongs to: on the host by its ranges, on the device by launches.

A module is named by the innermost range around a moment: nn.Module of traces with stacks, FSDP's hooks and units, and
what a person put there with record_function. A piece of device work belongs to the module around its launch; a gap in
which the device waits for work that is queued already, to the module of that work; everything else, to the module that
the host is in at that moment. Kineto links a backward to its forward by numbers that our tables do not keep: what of a
backward lies in no such range is in no module.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.account import trace_ranges as ranges
from diag.account.gpu import COMM, COMPUTE, COPY, device_work
from diag.account.gpu_idle import NEVER
from diag.account.timeline import label_of
from diag.model.steps import Detail, Kind
from diag.traces import kineto_names as names
from diag.traces import range_names
from diag.traces.trace import Trace

from . import nesting
from .module_names import own_paths
from .module_ranges import module_ranges

Times = npt.NDArray[np.int64]

OUTSIDE = -1  # of any module
_COLUMNS = ("ts_ns", "dur_ns", "thread", "name")
_UNKNOWN_THREAD = -1

# Each hook and part of a hook names the unit that it works for, which with prefetching is another than the one around
# it; the root's have no name (torch/distributed/fsdp/_fully_shard: _with_fqn). What has no name in any unit (casts,
# inputs_to_device) is not here.
_FSDP_HOOK = (
    r"^FSDP::(?:(?:all_gather|all_gather_copy_out|(?:pre|post)_(?:forward|backward)\w*|root_\w+)"
    r"(?: \((.*?)\))?(?: \[pg=.*\])?|\w+_prefetch for (.*))$"
)
# Ranges that libraries put around a phase of the step: they name no module.
_OF_A_PHASE = "|".join(
    (
        r"^(?:## |\[pl\])",
        range_names.FORWARD_PATTERN,
        range_names.BACKWARD_PATTERN,
        range_names.COMPILING_PATTERN,
    )
)


class Track(Struct, frozen=True, eq=False):
    """Disjoint stretches of time in order, each with the number of its module."""

    start_ns: Times
    end_ns: Times
    module: Times


class ModuleTracks(Struct, frozen=True, eq=False):
    """``names`` by number. ``device``: by label (diag.account.timeline), what the launches say of such time;
    ``host`` says where time with any other label belongs."""

    names: pl.Series
    host: Track
    device: Mapping[int, Track]

    def of(self, label: int) -> Track:
        return self.device.get(label, self.host)


def tracks_of(trace: Trace) -> ModuleTracks | None:
    """On the trace's own clock; None where no range of the trace names a module."""
    calls = _calls(trace)
    if calls.is_empty():
        return None
    found = calls["name"].unique(maintain_order=True)
    code = calls["name"].replace_strict(found, np.arange(len(found)), return_dtype=pl.Int64).to_numpy()
    device = _device_tracks(trace, calls, code) if trace.has_gpu else {}
    return ModuleTracks(found, _host_track(trace, calls, code), device)


def _calls(trace: Trace) -> pl.DataFrame:
    """Every range that names a module, sorted like Trace.select does."""
    sources = [found.calls.with_columns(pl.col("name").cast(pl.String)) for found in module_ranges(trace)]
    calls = pl.concat([_hooks(trace), *sources])
    return calls.filter(~pl.col("name").str.contains(_OF_A_PHASE)).sort(
        ["ts_ns", "dur_ns"], descending=[False, True], maintain_order=True
    )


def _hooks(trace: Trace) -> pl.DataFrame:
    parts = pl.col("name").cast(pl.String).str.extract_groups(_FSDP_HOOK)
    unit = pl.coalesce(parts.struct.field("1"), parts.struct.field("2")).fill_null("")
    found = ranges.named(trace, _FSDP_HOOK).with_columns(unit.alias("name")).select(_COLUMNS)
    return found.with_columns(own_paths(found["name"]))


def _host_track(trace: Trace, calls: pl.DataFrame, code: Times) -> Track:
    """By the latest range to begin that is still open on a thread of the training, whichever it is: of the main and
    autograd's thread one waits for the other."""
    main = ranges.main_thread(trace)
    threads = {main} if main is not None else set()
    if trace.has_gpu:
        threads |= ranges.thread_set(trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("thread",)))
    else:
        threads |= ranges.autograd_threads(trace)
    training = calls["thread"].is_in(sorted(threads)).to_numpy()
    own = calls.filter(pl.Series(training)).with_columns(pl.lit(0).alias("thread"))
    start = own["ts_ns"].to_numpy()
    edges = np.unique(np.concatenate((start, start + own["dur_ns"].to_numpy())))
    row = nesting.enclosing(own, edges[:-1], np.zeros(max(0, len(edges) - 1), dtype=np.int64))
    inside = np.flatnonzero(row >= 0)
    return Track(edges[inside], edges[inside + 1], code[training][row[inside]])


def _device_tracks(trace: Trace, calls: pl.DataFrame, code: Times) -> dict[int, Track]:
    work = device_work(trace)
    start, end = work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    known = (work["launch_known_ns"] != NEVER).to_numpy()
    thread = np.where(known, work["launch_thread"].fill_null(0).to_numpy().astype(np.int64), _UNKNOWN_THREAD)
    row = nesting.enclosing(calls, work["launch_known_ns"].to_numpy(), thread)
    module = np.where(row >= 0, code[np.maximum(row, 0)], OUTSIDE)

    def track(chosen: pl.Series) -> Track:
        at = np.flatnonzero(chosen.to_numpy())
        return _first_come(start[at], end[at], module[at])

    computes = work["class"] == COMPUTE
    tracks = {
        label_of(Kind.COMPUTE, detail): track(computes & (work["phase"] == int(detail)))
        for detail in (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER, Detail.NONE)
    }
    copying = track(work["class"] == COPY)
    talking, queued = track(work["class"] == COMM), _queued(trace, start, end, module)
    return tracks | {
        label_of(Kind.COMM, Detail.NONE): talking,
        label_of(Kind.COMM, Detail.P2P): talking,
        label_of(Kind.COPY, Detail.NONE): copying,
        label_of(Kind.COPY, Detail.OFFLOAD): copying,
        label_of(Kind.IDLE, Detail.DEPENDENCY): queued,
        label_of(Kind.IDLE, Detail.NONE): queued,
    }


def _first_come(start: Times, end: Times, module: Times) -> Track:
    """Pieces of work in order of start; where they overlap, the first one has the time."""
    if not len(start):
        return Track(start, end, module)
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    kept = (end > begin) & (module != OUTSIDE)
    return Track(begin[kept], end[kept], module[kept])


def _queued(trace: Trace, start: Times, end: Times, module: Times) -> Track:
    """The gaps between pieces of work, each with the module of the work that ends it."""
    if not len(start):
        return Track(start, end, module)
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(end)[:-1]))
    kept = (start > reach) & (module != OUTSIDE)
    return Track(reach[kept], start[kept], module[kept])
