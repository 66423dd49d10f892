"""The collectives that one trace shows, as `CollectiveCall`s: kernels and copies on a GPU, gloo's ranges on a CPU."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.collectors.records import ALL_TO_ALL
from diag.deferred import pl
from diag.model import UNKNOWN
from diag.model.ragged import places_from
from diag.traces import kineto_names as names
from diag.traces.kineto_names import parse_ranks
from diag.traces.trace import Trace

from . import intervals as iv
from .calls import Calls, Group, Some
from .intervals import Window, covers
from .trace_ranges import as_intervals, named, on_threads, spans, thread_set

# -- trace callers -----------------------------------------------------------------------------------------------------
#
# The host's call that a piece of communication belongs to: the range around its launch, and its arguments.

ARGS: Final = ("coll_name", "in_elems", "out_elems", "dtype", "group_name", "group_ranks", "group_size", "seq")
_NO_TRANSFER: Final = frozenset({"wait", "barrier"})  # coll_name of calls that no coalesced kernel carries out

# Operators of torch's own that copy; the others launch no copy, and there are millions of them.
_COPYING: Final = r"^(?:aten|fsdp)::\w*(?:copy|clone|cat|contiguous|chunk|stack|resize|slice_scatter)"

Row = dict[str, Any]


def with_callers(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The communication in order of time, with the columns ``param_start``, the begin of the ``record_param_comms``
    around its launch, and ``caller_*``: start, name and shapes of the ``nccl:*`` or similar range around it; null
    without one. Arguments that the work itself lacks (profilers before torch 2.2) are filled in from
    ``record_param_comms``."""
    host = trace.with_arguments(_library_calls(trace))
    is_param = pl.col("name") == names.PARAM_COMMS
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
    calls = filled.drop("caller_end").sort("ts_ns")
    # Most traces have neither, and iterating over ten thousand calls takes as long as everything else here.
    coalesced = pl.col("group_name").is_null() & pl.col("caller_name").str.contains(names.COALESCED_CALL_PATTERN)
    if not calls.select((coalesced | _are_parts()).any()).item():
        return calls
    rows = calls.to_dicts()
    _describe_coalesced(rows, host)
    return pl.DataFrame(_one_a_call(rows), schema=calls.schema)


def _with_range(work: pl.DataFrame, ranges: pl.DataFrame, prefix: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """``work``, in order of launches, with start, end and the columns of the range around each launch."""
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
    """Ranges that enclose the launches of collectives. Cached for the last trace, for its copies and its kernels."""
    return named(trace, names.CALL_PATTERN, names.CPU_OP, names.ANNOTATION)


def point_to_point(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each piece of communication is a send or a receive: by its arguments, else by the range around it."""
    launch = work["launch_ns"].to_numpy()
    sent = covers(as_intervals(named(trace, names.P2P_RANGE_PATTERN)), launch)
    grouped = covers(as_intervals(named(trace, names.COALESCED_PATTERN)), launch)
    kernel = trace.says(work, names.SEND_RECV_KERNEL_PATTERN).to_numpy()
    called = work["coll_name"]
    by_argument = called.str.contains(names.P2P_PATTERN).fill_null(False).to_numpy()
    is_p2p: npt.NDArray[np.bool_] = np.where(called.is_null().to_numpy(), sent | (grouped & kernel), by_argument)
    return is_p2p


def engine_copies(trace: Trace, work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each device event is a copy "within" a device by which a collective moves data between devices.

    NCCL's copy-engine collectives (src/ce_coll.cc) and torch's low-contention ones copy to mapped memory of the peers,
    which a profiler may call DtoD. These are the copies launched in a call of the library, but not by one of torch's
    own operators in it: ``aten::copy_`` there copies results into a list of tensors. Calls of a single rank copy
    locally."""
    local = (work["cat"] == names.MEMCPY) & trace.says(work, names.LOCAL_COPY_PATTERN)
    candidates: npt.NDArray[np.bool_] = (local & work["launch_thread"].is_not_null()).to_numpy()
    if trace.world_size == 1 or not candidates.any():
        return np.zeros(len(work), dtype=np.bool_)
    calls = _library_calls(trace)
    made = np.zeros(len(work), dtype=np.bool_)
    copies = np.flatnonzero(candidates)
    launch, threads = (work[key][copies].to_numpy() for key in ("launch_ns", "launch_thread"))
    for thread in thread_set(calls) & set(threads.tolist()):
        of_thread = on_threads(calls, {thread})
        inside = (threads == thread) & covers(as_intervals(of_thread), launch)
        if inside.any():
            made[copies[inside & ~covers(_local_within(trace, of_thread), launch)]] = True
    return made


def _local_within(trace: Trace, calls: pl.DataFrame) -> iv.Intervals:
    """Time in one thread's calls that moves no data between ranks: torch's own operators, and groups of one rank."""
    symmetric = pl.col("name").cast(pl.String).str.starts_with(names.SYMM_MEM_COPIES)
    of_library = as_intervals(calls.filter(~symmetric))
    threads = thread_set(calls)
    operators = spans(on_threads(trace.select(names.CPU_OP, name=_COPYING), threads))
    params = on_threads(trace.select(names.CPU_OP, name=f"^{names.PARAM_COMMS}$", arguments=True), threads)
    alone = spans(params.filter(pl.col("group_size") == 1))
    return iv.union(operators[covers(of_library, operators[:, 0])], alone)


def _one_a_call(rows: Iterable[Row]) -> list[Row]:
    """A row for each collective: its copies are merged into one row, or into the row of the same call's kernel.

    Copies without a call around them (``tensor.to("cuda:1")``) belong to no collective.
    """
    rows = list(rows)
    with_kernel = {_call_of(row) for row in rows if not _is_part(row)}
    calls: list[Row] = []
    first: dict[tuple[Any, Any], Row] = {}
    for row in rows:
        call = _call_of(row)
        if not _is_part(row):
            calls.append(row)
        elif call[1] is None or call in with_kernel:
            continue
        elif call in first:
            before = first[call]
            before["dur_ns"] = max(before["dur_ns"], row["ts_ns"] + row["dur_ns"] - before["ts_ns"])
        else:
            first[call] = row
            calls.append(row)
    return calls


def _is_part(row: Row) -> bool:
    """Whether the call may consist of several such pieces: copies, and the barriers between them."""
    return row["cat"] == names.MEMCPY or (row["caller_name"] or "").startswith(names.SYMM_MEM_COPIES)


def _are_parts() -> pl.Expr:
    """``_is_part`` as an expression."""
    return (pl.col("cat") == names.MEMCPY) | pl.col("caller_name").str.starts_with(names.SYMM_MEM_COPIES)


def _call_of(row: Row) -> tuple[Any, Any]:
    start = row["param_start"] if row["param_start"] is not None else row["caller_start"]
    return row["launch_thread"], start


def _describe_coalesced(rows: Iterable[Row], host: pl.DataFrame) -> None:
    """Fills in the contents of a coalesced launch: the calls that its thread described since its previous launch.

    ``record_param_comms`` of each call comes before the range that launches them all. Only if they agree.
    """
    params = None
    launched: dict[Any, int] = {}  # thread: its last launch
    for row in sorted((row for row in rows if row["launch_thread"] is not None), key=lambda row: row["launch_ns"]):
        thread, since = row["launch_thread"], launched.get(row["launch_thread"], 0)
        launched[thread] = row["launch_ns"]
        if row["group_name"] is not None or not re.match(names.COALESCED_CALL_PATTERN, row["caller_name"] or ""):
            continue
        if params is None:
            params = host.filter(pl.col("name") == names.PARAM_COMMS, ~pl.col("coll_name").is_in(_NO_TRANSFER))
        described = params.filter(
            pl.col("thread") == thread, pl.col("ts_ns") > since, pl.col("ts_ns") < row["caller_start"]
        ).to_dicts()
        groups = {(call["group_name"], call["group_ranks"]) for call in described}
        if len(groups) != 1:
            continue
        row["group_name"], row["group_ranks"] = groups.pop()
        ops = {names.collective_op(call["coll_name"]) for call in described}
        if ops <= names.P2P_OPS:
            row["coll_name"] = "batch_isend_irecv"
        elif len(ops) == 1 and len({call["dtype"] for call in described}) == 1:
            row["coll_name"], row["dtype"] = described[0]["coll_name"], described[0]["dtype"]
            for key in ("in_elems", "out_elems"):
                row[key] = sum(call[key] or 0 for call in described)


# Collectives without a sequence number are numbered by step and call: more than the calls of any step.
CALLS_A_STEP = 1_000_000


class _CallDescription(Struct, frozen=True):
    """A call's description without its time and number: the same for many calls."""

    op: str
    key_op: str  # the part of the key that has to be equal on all ranks
    group: str | None
    group_ranks: tuple[int, ...]
    bytes: int
    dtype: str
    group_size: int
    sent_bytes: int | None  # for an all-to-all, as received_bytes
    received_bytes: int | None


def from_kernels(trace: Trace, kernels: pl.DataFrame, windows: Sequence[Window]) -> list[Some]:
    """Per window, one call for each communication kernel, or for the copies of one collective, that starts in it.

    ``kernels``: events with ``launch_ns`` and ``launch_thread``. Arguments that they lack (profilers before torch 2.2)
    come from the ``record_param_comms`` or ``nccl:*`` range around the launch.
    """

    def describe(row: Row) -> _CallDescription:
        op = trace.operation_named(row["name"]) or _op(row["coll_name"], row["caller_name"], row["name"])
        size = full_bytes(op, row["in_elems"], row["out_elems"], names.dtype_bytes(row["dtype"]))
        return _describe_call(trace, row, op, size or _shape_bytes(row["caller_dims"], row["caller_type"]))

    calls = with_callers(trace, kernels)
    described = _of_equal_rows(calls, ("name", "caller_name", "caller_dims", "caller_type"), describe)
    return _calls(calls, *described, windows)


def from_gloo(trace: Trace, wire: pl.DataFrame, windows: Sequence[Window]) -> list[Some]:
    """Per window, one call for each ``gloo:*``, ``mpi:*`` or ``ucc:*`` range that starts in it.

    They name no group and have no sequence number."""
    only = next(iter(trace.groups)) if len(trace.groups) == 1 else None
    size = len(trace.groups[only]) if only is not None else (trace.world_size or 1 if not trace.groups else 1)

    def describe(row: Row) -> _CallDescription:
        op = names.collective_op(row["name"].partition(":")[2])
        # The shapes are the inputs: one rank's shard of an all-gather.
        full = _shape_bytes(row["input_dims"], row["input_type"]) * (size if op == "all_gather" else 1)
        known = {"caller_name": None, "group_name": only, "group_size": size if size > 1 else None}
        return _describe_call(trace, {**row, **known}, op, full)

    calls = wire.sort("ts_ns").with_columns(seq=pl.lit(None, pl.Int64))
    return _calls(calls, *_of_equal_rows(calls, ("name", "input_dims", "input_type"), describe), windows)


def _of_equal_rows(
    calls: pl.DataFrame, columns: Sequence[str], describe: Callable[[Row], _CallDescription]
) -> tuple[list[_CallDescription], npt.NDArray[np.int64]]:
    """The descriptions, one for all calls with the same arguments and the same values in these columns; and for each
    call, its place among them."""
    alike = calls.select(*columns, *(key for key in ARGS if key != "seq")).with_row_index("row")
    of_call = np.empty(len(calls), dtype=np.int64)
    described: list[_CallDescription] = []
    for row in alike.group_by(pl.exclude("row"), maintain_order=True).agg("row").to_dicts():
        of_call[row["row"]] = len(described)
        described.append(describe(row))
    return described, of_call


def in_windows(calls: Calls, windows: Sequence[Window]) -> list[Some]:
    """Per window, the calls, which are in order of start, that start in it."""
    _, begins, ends = np.array(windows, dtype=np.int64).reshape(-1, 3).T
    edges = (np.searchsorted(calls.start_ns, edge).tolist() for edge in (begins, ends))
    return [Some(calls, np.arange(first, max(first, last))) for first, last in zip(*edges, strict=True)]


def full_bytes(op: str, in_elems: int | None, out_elems: int | None, element: int) -> int:
    """The full tensor: output of an all-gather, input of a reduce-scatter, else the larger."""
    sent, received = in_elems or 0, out_elems or 0
    if op == "all_gather":
        return (received or sent) * element
    if op == "reduce_scatter":
        return (sent or received) * element
    return max(sent, received) * element


def _parts(op: str, row: Row) -> tuple[int | None, int | None]:
    """Bytes that the rank sends and receives in an all-to-all, if its arguments contain them: "In msg nelems" and
    "Out msg nelems" are the sums of uneven splits as well."""
    element = names.dtype_bytes(row["dtype"])
    if op != ALL_TO_ALL or not element:
        return None, None
    sent, received = (None if row[key] is None else row[key] * element for key in ("in_elems", "out_elems"))
    return sent, received


def _op(collective: str | None, caller: str | None, kernel: str) -> str:
    """From the arguments, else the range around the launch, else the kernel's name (generic ones have none)."""
    for text in (collective, caller, names.without_parameters(kernel)):
        if text and (op := names.collective_op(text)) != names.UNKNOWN_OP:
            return op
    return names.UNKNOWN_OP


def _calls(
    calls: pl.DataFrame,
    described: Sequence[_CallDescription],
    of_call: npt.NDArray[np.int64],
    windows: Sequence[Window],
) -> list[Some]:
    """Per window, the calls, in order of start, that start in it. ``of_call``: the description of each call, by its
    place in ``described``."""
    described_as, groups, names_of = _columns(described)
    start = calls["ts_ns"].to_numpy()
    numbered = calls["seq"].is_not_null().to_numpy()
    number = calls["seq"].fill_null(0).to_numpy()
    # A number that occurs twice (several kernels of one grouped call) does not identify a call: count instead.
    kind = described_as["kind"][of_call]
    doubted = np.zeros(len(described), dtype=np.bool_)
    first = _first_equal(kind[numbered], number[numbered])
    doubted[kind[numbered][first != np.arange(len(first))]] = True
    # Numbers of sends and receives count this rank's calls, which may be more than its peer's.
    known = numbered & (number >= 0) & ~described_as["p2p"][of_call] & ~doubted[kind]
    steps, begins, ends = np.array(windows, dtype=np.int64).reshape(-1, 3).T
    edges = np.searchsorted(start, np.stack((begins, ends), axis=1).ravel())
    edges = np.maximum.accumulate(edges).reshape(-1, 2)
    counts = edges[:, 1] - edges[:, 0]
    chosen = places_from(edges[:, 0], counts)
    window = np.repeat(np.arange(len(windows)), counts)
    # Counted anew in each step: a call that a trace lacks then shifts no other step's numbers.
    which, known = of_call[chosen], known[chosen]
    counted = described_as["counted"][which]
    seq = np.where(known, number[chosen], steps[window] * CALLS_A_STEP + _nth(window * len(described) + counted))
    none = np.full(len(chosen), UNKNOWN)
    made = Calls(
        group=described_as["group"][which].astype(np.int32),
        seq=seq,
        label=described_as["label"][which].astype(np.int32),
        op=described_as["op"][which].astype(np.int32),
        bytes=described_as["bytes"][which],
        dtype=described_as["dtype"][which].astype(np.int32),
        start_ns=start[chosen],
        end_ns=(start + calls["dur_ns"].to_numpy())[chosen],
        inferred=np.logical_not(known),
        wait_start_ns=none,
        wait_end_ns=none,
        sent_bytes=described_as["sent_bytes"][which],
        received_bytes=described_as["received_bytes"][which],
        groups=groups,
        names=names_of,
    )
    places = _first_equal(counted, seq)  # a key that occurs twice stands for its first call
    return [Some(made, places[i:j]) for i, j in pairwise(np.cumsum([0, *counts]).tolist())]


def _first_equal(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row, the place of the first row with the same values."""
    order = np.lexsort(columns)
    opens = np.ones(len(order), dtype=np.bool_)
    opens[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[np.flatnonzero(opens)[np.cumsum(opens) - 1]] if len(order) else order
    return first


def _nth(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    opens = np.ones(len(order), dtype=np.bool_)
    opens[1:] = np.diff(values[order]) != 0
    place = np.arange(len(order))
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = place - np.maximum.accumulate(np.where(opens, place, 0))
    return nth


def _columns(
    described: Sequence[_CallDescription],
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[Group, ...], tuple[str, ...]]:
    """The columns of ``Calls`` that the descriptions determine, the groups and the names. ``kind``: group and label;
    ``counted``: the same, if calls without a group's name count as one group; ``p2p``: sends and receives."""
    groups: dict[Group, int] = {}
    names_of: dict[str, int] = {}
    kinds: dict[tuple[str | None, str], int] = {}
    counted: dict[tuple[str, str], int] = {}
    rows = [
        (
            groups.setdefault(Group(each.group or "", each.group_ranks, each.group_size), len(groups)),
            names_of.setdefault(each.key_op, len(names_of)),
            names_of.setdefault(each.op, len(names_of)),
            each.bytes,
            names_of.setdefault(each.dtype, len(names_of)),
            UNKNOWN if each.sent_bytes is None else each.sent_bytes,
            UNKNOWN if each.received_bytes is None else each.received_bytes,
            kinds.setdefault((each.group, each.key_op), len(kinds)),
            counted.setdefault((each.group or "", each.key_op), len(counted)),
            each.op in names.P2P_OPS,
        )
        for each in described
    ]
    keys = ("group", "label", "op", "bytes", "dtype", "sent_bytes", "received_bytes", "kind", "counted", "p2p")
    table = np.array(rows, dtype=np.int64).reshape(-1, len(keys)).T
    columns = dict(zip(keys, table, strict=True))
    return {**columns, "p2p": columns["p2p"].astype(np.bool_)}, tuple(groups), tuple(names_of)


def _describe_call(trace: Trace, row: Row, op: str, size: int) -> _CallDescription:
    group = row["group_name"]
    ranks = parse_ranks(row["group_ranks"]) or trace.groups.get(group or "", ())
    if op in names.P2P_OPS:
        pair = names.peers(row["caller_name"])
        ranks = (ranks[pair[0]], ranks[pair[1]]) if pair and max(pair) < len(ranks) else ()
    dtype, members = row["dtype"] or "", len(ranks) or row["group_size"] or 0
    key_op = _key_op(trace, op, group, row["caller_name"])
    return _CallDescription(op, key_op, group, ranks, size, dtype, members, *_parts(op, row))


def _key_op(trace: Trace, op: str, group: str | None, caller: str | None) -> str:
    """The part of the key that must be equal on all ranks, in addition to group and number: mostly the operation.

    A send and its receive are one transfer, named after the two peers. If the peers are unknown, or the group is
    unknown and there are several, counting calls would match unrelated calls: such a call stays unmatched."""
    if op in names.P2P_OPS:
        pair = names.peers(caller)
        if pair and group:
            return f"send {pair[0]}->{pair[1]}"
    elif group or len({ranks for ranks in trace.groups.values() if len(ranks) > 1}) < 2:
        return op
    return f"{op} of rank {trace.rank if trace.rank is not None else Path(trace.path).name}"


def _shape_bytes(dims: str | None, types: str | None) -> int:
    """Bytes of the tensors in a range's "Input Dims" and "Input type"; 0 if either is unknown."""
    try:
        shapes, kinds = json.loads(dims or "null"), json.loads(types or "null")
    except (ValueError, RecursionError):
        return 0
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return 0
    total = 0
    for shape, kind in zip(shapes, kinds, strict=False):
        element = names.dtype_bytes(kind) if isinstance(kind, str) else 0
        if element and (lengths := names.shape(shape)):
            total += math.prod(lengths) * element
    return total
