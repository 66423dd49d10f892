"""The collectives that one trace shows, as `CollectiveCall`s: NCCL's kernels on a GPU, gloo's annotations on a CPU."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl

from diag.ingest import kineto_names as names
from diag.ingest.kineto import parse_ranks
from diag.ingest.trace import Trace
from diag.model import CollectiveCall

from .layers import Window

_ARGS = ("coll_name", "in_elems", "out_elems", "dtype", "group_name", "group_ranks", "seq")


def from_kernels(trace: Trace, kernels: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each communication kernel that starts in it.

    ``kernels``: events with ``launch_ns`` and ``launch_thread``. What a kernel does not say (profilers
    before torch 2.2) comes from the ``record_param_comms`` or ``nccl:*`` range around its launch.
    """
    rows = _with_callers(trace, kernels).sort("ts_ns").to_dicts()
    for row in rows:
        row["op"] = _op(row)
        row["bytes"] = full_bytes(row["op"], row["in_elems"], row["out_elems"], names.dtype_bytes(row["dtype"]))
        if not row["bytes"]:
            row["bytes"] = _shape_bytes(row["caller_dims"], row["caller_type"])
    return _calls(trace, rows, windows)


def from_gloo(trace: Trace, wire: pl.DataFrame, windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    """Per window, one call for each ``gloo:*`` range that starts in it. gloo writes no group and no sequence number."""
    only = next(iter(trace.groups)) if len(trace.groups) == 1 else None
    size = len(trace.groups[only]) if only is not None else (trace.world_size or 1 if not trace.groups else 1)
    rows = wire.sort("ts_ns").to_dicts()
    for row in rows:
        row["op"] = names.collective_op(row["name"].removeprefix("gloo:"))
        row["group_name"] = only
        # The shapes are the inputs: one rank's shard of an all-gather.
        row["bytes"] = _shape_bytes(row["input_dims"], row["input_type"]) * (size if row["op"] == "all_gather" else 1)
        row["seq"] = None
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


def _with_callers(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels, their missing arguments filled in from the range around the launch."""
    host = trace.select(names.CPU_OP, names.ANNOTATION, name="^(?:record_param_comms$|nccl:)", arguments=True)
    filled = kernels
    for prefix, is_param in (("param", True), ("caller", False)):
        around = (
            host.filter((pl.col("name") == "record_param_comms") == is_param)
            .select(
                pl.col("ts_ns").alias("launch_ns"),
                pl.col("thread").alias("launch_thread"),
                (pl.col("ts_ns") + pl.col("dur_ns")).alias(f"{prefix}_end"),
                pl.col("name").cast(pl.String).alias(f"{prefix}_name"),
                pl.col("input_dims").alias(f"{prefix}_dims"),
                pl.col("input_type").alias(f"{prefix}_type"),
                *(pl.col(key).alias(f"{prefix}_{key}") for key in _ARGS),
            )
            .sort("launch_ns")
        )
        filled = filled.sort("launch_ns", nulls_last=True).join_asof(
            around, on="launch_ns", by="launch_thread", strategy="backward", check_sortedness=False
        )
        inside = pl.col("launch_ns") < pl.col(f"{prefix}_end")
        filled = filled.with_columns(
            pl.when(inside).then(pl.col(name)).otherwise(None).alias(name)
            for name in around.columns
            if name.startswith(prefix)
        )
    return filled.with_columns(pl.coalesce(pl.col(key), pl.col(f"param_{key}")).alias(key) for key in _ARGS)


def _op(row: dict[str, Any]) -> str:
    """From the arguments, else the range around the launch, else the kernel's name (generic ones say none)."""
    for text in (row["coll_name"], row["caller_name"], row["name"].split("(")[0]):
        if text and (op := names.collective_op(text)) != names.UNKNOWN_OP:
            return op
    return names.UNKNOWN_OP


def _calls(trace: Trace, rows: list[dict[str, Any]], windows: Sequence[Window]) -> list[tuple[CollectiveCall, ...]]:
    repeats = Counter((row["group_name"], row["seq"], row["op"]) for row in rows)
    doubted = {(group, op) for (group, _, op), count in repeats.items() if count > 1}
    found = []
    at = 0
    for _, begin, end in windows:
        while at < len(rows) and rows[at]["ts_ns"] < begin:
            at += 1
        counts: dict[tuple[str, str], int] = defaultdict(int)
        calls = []
        while at < len(rows) and rows[at]["ts_ns"] < end:
            row = rows[at]
            group, op = row["group_name"] or "", row["op"]
            # A number that comes twice (several kernels of one grouped call) names no call: count instead.
            known = row["seq"] is not None and row["seq"] >= 0 and (row["group_name"], op) not in doubted
            calls.append(_call(trace, row, (group, row["seq"] if known else counts[group, op], op), inferred=not known))
            counts[group, op] += 1
            at += 1
        found.append(tuple(calls))
    return found


def _call(trace: Trace, row: dict[str, Any], key: tuple[str, int, str], *, inferred: bool) -> CollectiveCall:
    ranks = parse_ranks(row["group_ranks"]) or trace.groups.get(key[0], ())
    start, end = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
    return CollectiveCall(key, key[2], key[0], ranks, row["bytes"], start, end, inferred)


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
