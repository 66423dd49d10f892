"""The module of each moment of a trace: on the host from its ranges, on the device from the launches.

A module is named by the innermost range around a moment: nn.Module of traces with stacks, FSDP's hooks and units, and
the user's record_function ranges. A piece of device work belongs to the module around its launch; a gap in which the
device waits for work that is queued already, to the module of that work; everything else, to the module that the host
is in at that moment. Kineto links a backward to its forward by numbers that our tables do not contain: work of a
backward outside of such ranges is in no module.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import trace_ranges as ranges
from diag.account.critical_path import label_of
from diag.account.gpu import COMM, COMPUTE, COPY, NEVER, device_work
from diag.account.trace_ranges import Thread
from diag.deferred import pl
from diag.model.steps import FROM_HOST_DETAILS, TO_HOST_DETAILS, Detail, Kind
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import nesting
from .module_ranges import UNATTRIBUTED, module_ranges, own_paths

Times = npt.NDArray[np.int64]

OUTSIDE = -1  # outside of any module
_COLUMNS = ("ts_ns", "dur_ns", "thread", "name")
_UNKNOWN_THREAD = -1

# Each hook and part of a hook names the unit that it works for, which with prefetching is not the one around it; the
# root's have no name (torch/distributed/fsdp/_fully_shard: _with_fqn). Ranges without a name in any unit (casts,
# inputs_to_device) are not here.
_FSDP_HOOK = (
    r"^FSDP::(?:(?:all_gather|all_gather_copy_out|(?:pre|post)_(?:forward|backward)\w*|root_\w+)"
    r"(?: \((.*?)\))?(?: \[pg=.*\])?|\w+_prefetch for (.*))$"
)
# Ranges that libraries put around a phase of the step: they name no module.
_OF_A_PHASE = "|".join(
    (
        r"^(?:## |\[pl\])",
        names.FORWARD_PATTERN,
        names.BACKWARD_PATTERN,
        names.COMPILING_PATTERN,
    )
)


class Track(Struct, frozen=True, eq=False):
    """Disjoint stretches of time in order, each with the number of its module."""

    start_ns: Times
    end_ns: Times
    module: Times


class ModuleTracks(Struct, frozen=True, eq=False):
    """``names`` by number. ``device``: module of device time by label (diag.account.critical_path), from the launches;
    ``host``: module of time with any other label."""

    names: pl.Series
    host: Track
    device: Mapping[int, Track]

    def of(self, label: int) -> Track:
        return self.device.get(label, self.host)


def tracks_of(trace: Trace) -> ModuleTracks | None:
    """On the trace's own clock; None if no range of the trace names a module."""
    calls = _calls(trace)
    if calls.is_empty():
        return None
    modules = calls["name"].unique(maintain_order=True)
    code = calls["name"].replace_strict(modules, np.arange(len(modules)), return_dtype=pl.Int64).to_numpy()
    device = _device_tracks(trace, calls, code) if trace.has_gpu else {}
    return ModuleTracks(modules, _host_track(trace, calls, code), device)


def module_at(trace: Trace, thread: Thread, at_ns: int) -> str:
    """The innermost module whose range is open on the thread; "" outside of all."""
    calls = _calls(trace)
    row = int(nesting.enclosing(calls, np.array([at_ns], dtype=np.int64), np.array([thread], dtype=np.int64))[0])
    return str(calls["name"][row]) if row >= 0 else UNATTRIBUTED


def _calls(trace: Trace) -> pl.DataFrame:
    sources = [source.calls.with_columns(pl.col("name").cast(pl.String)) for source in module_ranges(trace)]
    calls = pl.concat([_hooks(trace), *sources])
    return calls.filter(~pl.col("name").str.contains(_OF_A_PHASE)).sort(
        ["ts_ns", "dur_ns"], descending=[False, True], maintain_order=True
    )


def _hooks(trace: Trace) -> pl.DataFrame:
    parts = pl.col("name").cast(pl.String).str.extract_groups(_FSDP_HOOK)
    unit = pl.coalesce(parts.struct.field("1"), parts.struct.field("2")).fill_null("")
    hooks = ranges.named(trace, _FSDP_HOOK).with_columns(unit.alias("name")).select(_COLUMNS)
    return hooks.with_columns(own_paths(hooks["name"]))


def _host_track(trace: Trace, calls: pl.DataFrame, code: Times) -> Track:
    """The latest range to begin that is still open on any thread of the training: the main thread and autograd's wait
    for each other, so only one of them works."""
    main = ranges.main_thread(trace)
    threads = {main} if main is not None else set()
    if trace.has_gpu:
        threads |= ranges.thread_set(trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("thread",)))
    else:
        threads |= ranges.autograd_threads(trace)
    training = calls["thread"].is_in(sorted(threads)).to_numpy()
    training_calls = calls.filter(pl.Series(training)).with_columns(pl.lit(0).alias("thread"))
    start = training_calls["ts_ns"].to_numpy()
    edges = np.unique(np.concatenate((start, start + training_calls["dur_ns"].to_numpy())))
    row = nesting.enclosing(training_calls, edges[:-1], np.zeros(max(0, len(edges) - 1), dtype=np.int64))
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
        **{
            label_of(Kind.COPY, detail): copying
            for detail in (*FROM_HOST_DETAILS, *TO_HOST_DETAILS, Detail.OFFLOAD, Detail.OTHER)
        },
        label_of(Kind.IDLE, Detail.DEPENDENCY): queued,
        label_of(Kind.IDLE, Detail.NONE): queued,
    }


def _first_come(start: Times, end: Times, module: Times) -> Track:
    """Pieces of work in order of start; if they overlap, the time belongs to the first one."""
    if not len(start):
        return Track(start, end, module)
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    remains = (end > begin) & (module != OUTSIDE)
    return Track(begin[remains], end[remains], module[remains])


def _queued(trace: Trace, start: Times, end: Times, module: Times) -> Track:
    """The gaps between pieces of work, each with the module of the work after it."""
    if not len(start):
        return Track(start, end, module)
    reach = np.concatenate(([trace.begin_ns], np.maximum.accumulate(end)[:-1]))
    is_gap = (start > reach) & (module != OUTSIDE)
    return Track(reach[is_gap], start[is_gap], module[is_gap])
