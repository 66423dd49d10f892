"""The collectives that one trace shows, as `CollectiveCall`s: kernels and copies on a GPU, gloo's ranges on a CPU."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from diag.ingest import comm_names
from diag.ingest import kineto_names as names
from diag.ingest.kineto import parse_ranks
from diag.ingest.trace import Trace
from diag.model import CollectiveCall

from .layers import Window
from .trace_callers import with_callers

# Collectives without a number of the library's own are numbered by step and call: more calls than any step has.
CALLS_A_STEP = 1_000_000


def from_kernels(trace: Trace, kernels: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each communication kernel, or for the copies of one collective, that starts in it.

    ``kernels``: events with ``launch_ns`` and ``launch_thread``. What they do not say (profilers
    before torch 2.2) comes from the ``record_param_comms`` or ``nccl:*`` range around the launch.
    """
    rows = with_callers(trace, kernels)
    for row in rows:
        row["op"] = _op(row["coll_name"], row["caller_name"], row["name"])
        row["bytes"] = full_bytes(row["op"], row["in_elems"], row["out_elems"], names.dtype_bytes(row["dtype"]))
        if not row["bytes"]:
            row["bytes"] = _shape_bytes(row["caller_dims"], row["caller_type"])
    return _calls(trace, rows, windows)


def from_gloo(trace: Trace, wire: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each ``gloo:*``, ``mpi:*`` or ``ucc:*`` range that starts in it.

    They name no group and have no sequence number."""
    only = next(iter(trace.groups)) if len(trace.groups) == 1 else None
    size = len(trace.groups[only]) if only is not None else (trace.world_size or 1 if not trace.groups else 1)
    rows = wire.sort("ts_ns").to_dicts()
    for row in rows:
        row["op"] = comm_names.collective_op(row["name"].partition(":")[2])
        row["caller_name"] = None
        row["group_name"] = only
        # The shapes are the inputs: one rank's shard of an all-gather.
        row["bytes"] = _shape_bytes(row["input_dims"], row["input_type"]) * (size if row["op"] == "all_gather" else 1)
        row["seq"] = None
        row["group_size"] = size if size > 1 else None
    return _calls(trace, rows, windows)


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


@lru_cache(maxsize=4096)
def _op(collective: str | None, caller: str | None, kernel: str) -> str:
    """From the arguments, else the range around the launch, else the kernel's name (generic ones say none)."""
    for text in (collective, caller, comm_names.without_parameters(kernel)):
        if text and (op := comm_names.collective_op(text)) != comm_names.UNKNOWN_OP:
            return op
    return comm_names.UNKNOWN_OP


def _calls(trace: Trace, rows: list[dict[str, Any]], windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    for row in rows:
        row["key_op"] = _key_op(trace, row)
    repeats = Counter((row["group_name"], row["seq"], row["key_op"]) for row in rows)
    doubted = {(group, op) for (group, _, op), count in repeats.items() if count > 1}
    found = []
    at = 0
    for step, begin, end in windows:
        while at < len(rows) and rows[at]["ts_ns"] < begin:
            at += 1
        counts: dict[tuple[str, str], int] = defaultdict(int)
        calls = []
        while at < len(rows) and rows[at]["ts_ns"] < end:
            row = rows[at]
            group, op = row["group_name"] or "", row["key_op"]
            # A number that comes twice (several kernels of one grouped call) names no call: count instead. Those of
            # sends and receives count what this rank did, which may be more than its peer.
            numbered = row["seq"] is not None and row["seq"] >= 0 and row["op"] not in comm_names.P2P_OPS
            known = numbered and (row["group_name"], op) not in doubted
            # Counted anew in each step, so that one call that a trace lacks shifts no other step's.
            number = row["seq"] if known else step * CALLS_A_STEP + counts[group, op]
            calls.append(_call(trace, row, (group, number, op), inferred=not known))
            counts[group, op] += 1
            at += 1
        found.append(tuple(calls))
    return found


def _key_op(trace: Trace, row: dict[str, Any]) -> str:
    """What has to be equal on all ranks of the collective beside its group and its number: mostly the operation.

    A send and its receive are one transfer, named after the two peers. Where the peers are not known, or the group is
    not and there are several, counting calls would match what does not belong together: such a call stays alone.
    """
    if row["op"] in comm_names.P2P_OPS:
        pair = comm_names.peers(row["caller_name"])
        if pair and row["group_name"]:
            return f"send {pair[0]}->{pair[1]}"
    elif row["group_name"] or len({ranks for ranks in trace.groups.values() if len(ranks) > 1}) < 2:
        return str(row["op"])
    return f"{row['op']} of rank {trace.rank if trace.rank is not None else Path(trace.path).name}"


def _call(trace: Trace, row: dict[str, Any], key: tuple[str, int, str], *, inferred: bool) -> CollectiveCall:
    ranks = parse_ranks(row["group_ranks"]) or trace.groups.get(key[0], ())
    if row["op"] in comm_names.P2P_OPS:
        pair = comm_names.peers(row["caller_name"])
        ranks = (ranks[pair[0]], ranks[pair[1]]) if pair and max(pair) < len(ranks) else ()
    start, end = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
    dtype, size = row["dtype"] or "", len(ranks) or row["group_size"] or 0
    return CollectiveCall(key, row["op"], key[0], ranks, row["bytes"], start, end, inferred, dtype, size)


@lru_cache(maxsize=4096)
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
