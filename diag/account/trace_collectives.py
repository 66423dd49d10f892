"""The collectives that one trace shows, as `CollectiveCall`s: kernels and copies on a GPU, gloo's ranges on a CPU."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import Struct

from diag.model.steps import CollectiveCall
from diag.traces import comm_names
from diag.traces import kineto_names as names
from diag.traces.kineto import parse_ranks
from diag.traces.trace import Trace

from .layers import Window
from .trace_callers import ARGS, Row, with_callers

# Collectives without a number of the library's own are numbered by step and call: more calls than any step has.
CALLS_A_STEP = 1_000_000


class _Told(Struct, frozen=True):
    """What a call says of itself, beside its time and its number: the same of many calls."""

    op: str
    key_op: str  # what has to be equal on all ranks
    group: str | None
    group_ranks: tuple[int, ...]
    bytes: int
    dtype: str
    group_size: int


def from_kernels(trace: Trace, kernels: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each communication kernel, or for the copies of one collective, that starts in it.

    ``kernels``: events with ``launch_ns`` and ``launch_thread``. What they do not say (profilers
    before torch 2.2) comes from the ``record_param_comms`` or ``nccl:*`` range around the launch.
    """

    def told(row: Row) -> _Told:
        op = trace.operation_named(row["name"]) or _op(row["coll_name"], row["caller_name"], row["name"])
        size = full_bytes(op, row["in_elems"], row["out_elems"], names.dtype_bytes(row["dtype"]))
        return _told(trace, row, op, size or _shape_bytes(row["caller_dims"], row["caller_type"]))

    calls = with_callers(trace, kernels)
    return _calls(calls, _of_equal_rows(calls, ("name", "caller_name", "caller_dims", "caller_type"), told), windows)


def from_gloo(trace: Trace, wire: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each ``gloo:*``, ``mpi:*`` or ``ucc:*`` range that starts in it.

    They name no group and have no sequence number."""
    only = next(iter(trace.groups)) if len(trace.groups) == 1 else None
    size = len(trace.groups[only]) if only is not None else (trace.world_size or 1 if not trace.groups else 1)

    def told(row: Row) -> _Told:
        op = comm_names.collective_op(row["name"].partition(":")[2])
        # The shapes are the inputs: one rank's shard of an all-gather.
        full = _shape_bytes(row["input_dims"], row["input_type"]) * (size if op == "all_gather" else 1)
        known = {"caller_name": None, "group_name": only, "group_size": size if size > 1 else None}
        return _told(trace, {**row, **known}, op, full)

    calls = wire.sort("ts_ns").with_columns(seq=pl.lit(None, pl.Int64))
    return _calls(calls, _of_equal_rows(calls, ("name", "input_dims", "input_type"), told), windows)


def _of_equal_rows(calls: pl.DataFrame, columns: Sequence[str], told: Callable[[Row], _Told]) -> list[_Told]:
    """For each call what it tells, found once for all that have the same arguments and the same in these columns."""
    alike = calls.select(*columns, *(key for key in ARGS if key != "seq")).with_row_index("row")
    groups = alike.group_by(pl.exclude("row")).agg("row")
    found = np.empty(len(calls), dtype=object)
    for row in groups.to_dicts():
        found[row["row"]] = told(row)
    return list(found)


def in_windows(calls: Sequence[CollectiveCall], windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, the calls that start in it."""
    return [tuple(call for call in calls if begin <= call.start_ns < end) for _, begin, end in windows]


def full_bytes(op: str, in_elems: int | None, out_elems: int | None, element: int) -> int:
    """The full tensor (science.md 2.5): output of an all-gather, input of a reduce-scatter, else the larger."""
    sent, received = in_elems or 0, out_elems or 0
    if op == "all_gather":
        return (received or sent) * element
    if op == "reduce_scatter":
        return (sent or received) * element
    return max(sent, received) * element


def _op(collective: str | None, caller: str | None, kernel: str) -> str:
    """From the arguments, else the range around the launch, else the kernel's name (generic ones say none)."""
    for text in (collective, caller, comm_names.without_parameters(kernel)):
        if text and (op := comm_names.collective_op(text)) != comm_names.UNKNOWN_OP:
            return op
    return comm_names.UNKNOWN_OP


def _calls(calls: pl.DataFrame, told: Sequence[_Told], windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    numbers = calls["seq"].to_list()
    repeats = Counter(
        (each.group, number, each.key_op) for each, number in zip(told, numbers, strict=True) if number is not None
    )
    doubted = {(group, op) for (group, _, op), count in repeats.items() if count > 1}
    start = calls["ts_ns"].to_numpy()
    spans = list(zip(start.tolist(), (start + calls["dur_ns"].to_numpy()).tolist(), strict=True))
    found = []
    last = 0
    for step, begin, end in windows:
        first = max(last, int(np.searchsorted(start, begin)))
        last = max(first, int(np.searchsorted(start, end)))
        counts: dict[tuple[str, str], int] = defaultdict(int)
        own = []
        for at in range(first, last):
            each, number = told[at], numbers[at]
            group, op = each.group or "", each.key_op
            # A number that comes twice (several kernels of one grouped call) names no call: count instead. Those of
            # sends and receives count what this rank did, which may be more than its peer.
            numbered = number is not None and number >= 0 and each.op not in comm_names.P2P_OPS
            known = numbered and (each.group, op) not in doubted
            # Counted anew in each step, so that one call that a trace lacks shifts no other step's.
            key = (group, number if known else step * CALLS_A_STEP + counts[group, op], op)
            counts[group, op] += 1
            size, members = each.bytes, each.group_size
            own.append(
                CollectiveCall(key, each.op, group, each.group_ranks, size, *spans[at], not known, each.dtype, members)
            )
        found.append(tuple(own))
    return found


def _told(trace: Trace, row: Row, op: str, size: int) -> _Told:
    group = row["group_name"]
    ranks = parse_ranks(row["group_ranks"]) or trace.groups.get(group or "", ())
    if op in comm_names.P2P_OPS:
        pair = comm_names.peers(row["caller_name"])
        ranks = (ranks[pair[0]], ranks[pair[1]]) if pair and max(pair) < len(ranks) else ()
    dtype, members = row["dtype"] or "", len(ranks) or row["group_size"] or 0
    return _Told(op, _key_op(trace, op, group, row["caller_name"]), group, ranks, size, dtype, members)


def _key_op(trace: Trace, op: str, group: str | None, caller: str | None) -> str:
    """What has to be equal on all ranks of the collective beside its group and its number: mostly the operation.

    A send and its receive are one transfer, named after the two peers. Where the peers are not known, or the group is
    not and there are several, counting calls would match what does not belong together: such a call stays alone.
    """
    if op in comm_names.P2P_OPS:
        pair = comm_names.peers(caller)
        if pair and group:
            return f"send {pair[0]}->{pair[1]}"
    elif group or len({ranks for ranks in trace.groups.values() if len(ranks) > 1}) < 2:
        return op
    return f"{op} of rank {trace.rank if trace.rank is not None else Path(trace.path).name}"


def _shape_bytes(dims: str | None, types: str | None) -> int:
    """Bytes of the tensors in a range's "Input Dims" and "Input type"; 0 where either is not known."""
    try:
        shapes, kinds = json.loads(dims or "null"), json.loads(types or "null")
    except (ValueError, RecursionError):
        return 0
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return 0
    total = 0
    for shape, kind in zip(shapes, kinds, strict=False):
        element = names.dtype_bytes(kind) if isinstance(kind, str) else 0
        if element and isinstance(shape, list) and shape and all(isinstance(length, int) for length in shape):
            total += math.prod(shape) * element
    return total
