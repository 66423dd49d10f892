"""Which call of the host a piece of communication belongs to: the range around its launch, and what that range says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import intervals as iv
from .layers import covers
from .trace_ranges import as_intervals, named, on_threads, spans, thread_set

ARGS: Final = ("coll_name", "in_elems", "out_elems", "dtype", "group_name", "group_ranks", "group_size", "seq")
_NO_TRANSFER: Final = frozenset({"wait", "barrier"})  # coll_name of calls that no coalesced kernel carries out

# Operators of torch's own that copy; the others launch no copy, and there are millions of them.
_COPYING: Final = r"^(?:aten|fsdp)::\w*(?:copy|clone|cat|contiguous|chunk|stack|resize|slice_scatter)"

Row = dict[str, Any]


def with_callers(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The communication in order of time, with the columns ``param_start``, where the ``record_param_comms`` around its
    launch begins, and ``caller_*``: start, name and shapes of the ``nccl:*`` or like range around it; null without one.
    Arguments that the work itself lacks (profilers before torch 2.2) are filled in from the former."""
    host = trace.with_arguments(_library_calls(trace))
    is_param = pl.col("name") == comm_names.PARAM_COMMS
    shown = ("ts_ns", "dur_ns", "name", "cat", "launch_ns", "launch_thread")
    filled = work.select(*shown, *ARGS).sort("launch_ns", nulls_last=True)
    filled = _with_range(filled, host.filter(is_param), "param", {key: key for key in ARGS})
    filled = filled.select(
        *shown, "param_start", *(pl.coalesce(pl.col(key), pl.col(f"param_{key}")).alias(key) for key in ARGS)
    )
    described = {"name": "name", "dims": "input_dims", "type": "input_type"}
    filled = _with_range(
        filled, host.filter(~is_param).with_columns(pl.col("name").cast(pl.String)), "caller", described
    )
    found = filled.drop("caller_end").sort("ts_ns")
    # Most traces have neither, and going through ten thousand calls one by one takes as long as all the rest here.
    coalesced = pl.col("group_name").is_null() & pl.col("caller_name").str.contains(comm_names.COALESCED_CALL_PATTERN)
    if not found.select((coalesced | _IS_PART).any()).item():
        return found
    rows = found.to_dicts()
    _describe_coalesced(rows, host)
    return pl.DataFrame(_one_a_call(rows), schema=found.schema)


def _with_range(work: pl.DataFrame, ranges: pl.DataFrame, prefix: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """``work``, which is in order of launches, with start, end and the columns of the range around each launch."""
    around = ranges.select(
        pl.col("ts_ns").alias("launch_ns"),
        pl.col("thread").alias("launch_thread"),
        pl.col("ts_ns").alias(f"{prefix}_start"),
        (pl.col("ts_ns") + pl.col("dur_ns")).alias(f"{prefix}_end"),
        *(pl.col(column).alias(f"{prefix}_{name}") for name, column in columns.items()),
    ).sort("launch_ns")
    joined = work.join_asof(around, on="launch_ns", by="launch_thread", strategy="backward", check_sortedness=False)
    inside = pl.col("launch_ns") < pl.col(f"{prefix}_end")
    return joined.with_columns(
        pl.when(inside).then(pl.col(name)).otherwise(None).alias(name)
        for name in around.columns
        if name.startswith(prefix)
    )


@lru_cache(maxsize=1)
def _library_calls(trace: Trace) -> pl.DataFrame:
    """What encloses the launches of collectives. Remembers those of the last trace, for its copies and its kernels."""
    return named(trace, comm_names.CALL_PATTERN, names.CPU_OP, names.ANNOTATION)


def point_to_point(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each piece of communication is a send or a receive: by its arguments, else by the range around it."""
    launch = work["launch_ns"].to_numpy()
    sent = covers(as_intervals(named(trace, comm_names.P2P_RANGE_PATTERN)), launch)
    grouped = covers(as_intervals(named(trace, comm_names.COALESCED_PATTERN)), launch)
    kernel = trace.says(work, comm_names.SEND_RECV_KERNEL_PATTERN).to_numpy()
    called = work["coll_name"]
    told = called.str.contains(comm_names.P2P_PATTERN).fill_null(False).to_numpy()
    found: npt.NDArray[np.bool_] = np.where(called.is_null().to_numpy(), sent | (grouped & kernel), told)
    return found


def engine_copies(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each device event is a copy "within" a device by which a collective moves data between devices.

    NCCL's copy-engine collectives (src/ce_coll.cc) and torch's low-contention ones copy to mapped memory of the peers,
    which a profiler may call DtoD. They are the copies launched in a call of the library, but by none of torch's own
    operators in it: ``aten::copy_`` there brings results into a list of tensors. Calls of one rank alone copy locally.
    """
    local = (work["cat"] == names.MEMCPY) & trace.says(work, comm_names.LOCAL_COPY_PATTERN)
    found: npt.NDArray[np.bool_] = (local & work["launch_thread"].is_not_null()).to_numpy()
    if trace.world_size == 1 or not found.any():
        return np.zeros(len(work), dtype=np.bool_)
    calls = _library_calls(trace)
    made = np.zeros(len(work), dtype=np.bool_)
    copies = np.flatnonzero(found)
    launch, threads = (work[key][copies].to_numpy() for key in ("launch_ns", "launch_thread"))
    for thread in thread_set(calls) & set(threads.tolist()):
        own = on_threads(calls, {thread})
        inside = (threads == thread) & covers(as_intervals(own), launch)
        if inside.any():
            made[copies[inside & ~covers(_local_within(trace, own), launch)]] = True
    return made


def _local_within(trace: Trace, calls: pl.DataFrame) -> iv.Intervals:
    """Time of one thread's calls that is this rank's alone: torch's own operators in them, and groups of one rank."""
    symmetric = pl.col("name").cast(pl.String).str.starts_with(comm_names.SYMM_MEM_COPIES)
    of_library = as_intervals(calls.filter(~symmetric))
    threads = thread_set(calls)
    operators = spans(on_threads(trace.select(names.CPU_OP, name=_COPYING), threads))
    params = on_threads(trace.select(names.CPU_OP, name=f"^{comm_names.PARAM_COMMS}$", arguments=True), threads)
    alone = spans(params.filter(pl.col("group_size") == 1))
    return iv.union(operators[covers(of_library, operators[:, 0])], alone)


def _one_a_call(rows: Iterable[Row]) -> list[Row]:
    """A row for each collective: its copies are one, and with a kernel of the same call they are in the kernel's.

    Copies without a call around them (``tensor.to("cuda:1")``) are no collective's.
    """
    rows = list(rows)
    with_kernel = {_call_of(row) for row in rows if not _is_part(row)}
    found: list[Row] = []
    first: dict[tuple[Any, Any], Row] = {}
    for row in rows:
        call = _call_of(row)
        if not _is_part(row):
            found.append(row)
        elif call[1] is None or call in with_kernel:
            continue
        elif call in first:
            before = first[call]
            before["dur_ns"] = max(before["dur_ns"], row["ts_ns"] + row["dur_ns"] - before["ts_ns"])
        else:
            first[call] = row
            found.append(row)
    return found


def _is_part(row: Row) -> bool:
    """Whether the call may consist of several such pieces: copies, and the barriers between them."""
    return row["cat"] == names.MEMCPY or (row["caller_name"] or "").startswith(comm_names.SYMM_MEM_COPIES)


# The same of a column.
_IS_PART: Final = (pl.col("cat") == names.MEMCPY) | pl.col("caller_name").str.starts_with(comm_names.SYMM_MEM_COPIES)


def _call_of(row: Row) -> tuple[Any, Any]:
    start = row["param_start"] if row["param_start"] is not None else row["caller_start"]
    return row["launch_thread"], start


def _describe_coalesced(rows: Iterable[Row], host: pl.DataFrame) -> None:
    """Fill in what a coalesced launch is made of: the calls that its thread described since its last launch.

    ``record_param_comms`` of each call comes before the range that launches them all. Only where they agree.
    """
    params = None
    launched: dict[Any, int] = {}  # thread: its last launch
    for row in sorted((row for row in rows if row["launch_thread"] is not None), key=lambda row: row["launch_ns"]):
        thread, since = row["launch_thread"], launched.get(row["launch_thread"], 0)
        launched[thread] = row["launch_ns"]
        if row["group_name"] is not None or not re.match(comm_names.COALESCED_CALL_PATTERN, row["caller_name"] or ""):
            continue
        if params is None:
            params = host.filter(pl.col("name") == comm_names.PARAM_COMMS, ~pl.col("coll_name").is_in(_NO_TRANSFER))
        described = params.filter(
            pl.col("thread") == thread, pl.col("ts_ns") > since, pl.col("ts_ns") < row["caller_start"]
        ).to_dicts()
        groups = {(call["group_name"], call["group_ranks"]) for call in described}
        if len(groups) != 1:
            continue
        row["group_name"], row["group_ranks"] = groups.pop()
        ops = {comm_names.collective_op(call["coll_name"]) for call in described}
        if ops <= comm_names.P2P_OPS:
            row["coll_name"] = "batch_isend_irecv"
        elif len(ops) == 1 and len({call["dtype"] for call in described}) == 1:
            row["coll_name"], row["dtype"] = described[0]["coll_name"], described[0]["dtype"]
            for key in ("in_elems", "out_elems"):
                row[key] = sum(call[key] or 0 for call in described)
