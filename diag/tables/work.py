"""The work of one trace's device, piece by piece: each kernel with the operator that launched it and its cost.

If nothing ran on a device the pieces are operators, each with its time outside of the operators inside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.gpu import COMM, COMPUTE, COPY, NEVER, device_work
from diag.account.intervals import Window, covers
from diag.deferred import pl
from diag.model.breakdown import KernelKind
from diag.model.steps import Detail
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import nesting
from .kernel_kinds import KERNELS, MATH_KINDS, OF_OPTIMIZER, OPERATORS, Patterns, kinds_of
from .shapes import convolution_outputs, cost, parse

_ON_HOST = ("name", "ts_ns", "dur_ns", "thread")
UNKNOWN_THREAD = -1


class WorkTable(Struct, frozen=True, eq=False):
    """Pieces of work that started in the counted steps of one trace.

    ``frame``: name, kind (a KernelKind), class (compute, comm or copy), phase (a Detail), dur_ns (an operator's own
    time), exposed_ns, beside_ns (overlapping communication); at_ns and thread: when and where the host launched it
    (thread -1: unknown); operator, the innermost one around the launch (null if unknown); flops, bytes and element of
    its part of a shaped operator's work (null if unknown); step.
    """

    trace: Trace
    frame: pl.DataFrame

    @property
    def unit(self) -> str:
        return "kernel" if self.trace.has_gpu else "operator"

    @property
    def launches(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return self.frame["at_ns"].to_numpy(), self.frame["thread"].to_numpy()


def work_of(trace: Trace, windows: Sequence[Window]) -> WorkTable:
    """All work that starts in one of the windows (of the trace's own clock)."""
    work = _kernels(trace) if trace.has_gpu else _operators(trace)
    work = _in_windows(work, windows)
    work = _with_kinds(work, by_kernel=trace.has_gpu)
    return WorkTable(trace, work.with_columns(_costs(trace, work)))


def _kernels(trace: Trace) -> pl.DataFrame:
    work = device_work(trace)
    known = pl.col("launch_known_ns") != NEVER
    work = work.select(
        "name",
        "ts_ns",
        "end_ns",
        "dur_ns",
        "class",
        "phase",
        pl.when(known).then("launch_known_ns").otherwise(0).alias("at_ns"),
        pl.when(known).then(pl.col("launch_thread").cast(pl.Int64)).otherwise(UNKNOWN_THREAD).alias("thread"),
    )
    operators = trace.select(names.CPU_OP).select(_ON_HOST)
    return work.with_columns(_launching(operators, work), _exposed(work), _beside(work)).drop("end_ns")


def _launching(operators: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    at = nesting.enclosing(operators, work["at_ns"].to_numpy(), work["thread"].to_numpy())
    rows = pl.Series("row", at, dtype=pl.Int64).replace(nesting.NONE, None)
    return operators["name"].gather(rows).alias("operator")


def _exposed(work: pl.DataFrame) -> pl.Series:
    """Nanoseconds of each piece that are not overlapped with work of higher priority: compute before communication
    before copies."""
    start, end = work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    exposed = work["dur_ns"].to_numpy().copy()
    covered = iv.EMPTY
    for higher, hidden in ((COMPUTE, COMM), (COMM, COPY)):
        covered = iv.union(covered, ranges.as_intervals(work.filter(pl.col("class") == higher)))
        rows = np.flatnonzero((work["class"] == hidden).to_numpy())
        exposed[rows] -= iv.Covered(covered).between(start[rows], end[rows])
    return pl.Series("exposed_ns", exposed, dtype=pl.Int64)


def _beside(work: pl.DataFrame) -> pl.Series:
    """Nanoseconds of each piece during which the device communicates, too."""
    talking = ranges.as_intervals(work.filter(pl.col("class") == COMM))
    beside = iv.Covered(talking).between(work["ts_ns"].to_numpy(), work["end_ns"].to_numpy())
    return pl.Series("beside_ns", beside, dtype=pl.Int64)


def _operators(trace: Trace) -> pl.DataFrame:
    """Operators that compute, on the main and the autograd threads, by the rules of diag.account.cpu."""
    main = ranges.main_thread(trace)
    threads = ranges.autograd_threads(trace) | ({main} if main is not None else set())
    operators = ranges.on_threads(trace.select(names.CPU_OP), threads).select(_ON_HOST)
    parent = nesting.parents(operators)
    inner = np.zeros(len(operators), dtype=np.bool_)
    inner[parent[parent >= 0]] = True
    at = operators["ts_ns"].to_numpy()
    name = pl.col("operator").cast(pl.String)
    phase = np.full(len(operators), Detail.NONE, dtype=np.int8)
    for detail, spans in (
        (Detail.FORWARD, ranges.forward(trace)),
        (Detail.BACKWARD, ranges.backward(trace)),
        (Detail.OPTIMIZER, ranges.optimizer(trace)),
    ):
        phase[covers(spans, at)] = detail
    own_ns = nesting.own_time(operators, parent)
    return (
        operators.select(
            "name",
            "ts_ns",
            pl.Series("dur_ns", own_ns, dtype=pl.Int64),
            pl.lit(COMPUTE).alias("class"),
            pl.Series("phase", phase, dtype=pl.Int8),
            pl.col("ts_ns").alias("at_ns"),
            pl.col("thread").cast(pl.Int64),
            pl.col("name").alias("operator"),
            pl.Series("exposed_ns", own_ns, dtype=pl.Int64),
            pl.lit(0, pl.Int64).alias("beside_ns"),
            pl.Series("leaf", ~inner),
        )
        .filter(
            pl.col("leaf") | name.str.starts_with("aten::"),
            ~name.str.starts_with("autograd::engine::"),
            ~name.str.contains(names.CALL_OP_PATTERN),
        )
        .drop("leaf")
    )


def _in_windows(work: pl.DataFrame, windows: Sequence[Window]) -> pl.DataFrame:
    if not windows:
        return work.clear().with_columns(pl.lit(0, pl.Int64).alias("step"))
    steps, begins, ends = (
        np.array(column, dtype=np.int64) for column in zip(*sorted(windows, key=_begin), strict=True)
    )
    start = work["ts_ns"].to_numpy()
    at = np.searchsorted(begins, start, side="right") - 1
    inside = (at >= 0) & (start < ends[np.maximum(at, 0)])
    return work.with_columns(pl.Series("step", steps[np.maximum(at, 0)])).filter(pl.Series(inside)).drop("ts_ns")


def _begin(window: Window) -> int:
    return window[1]


def _with_kinds(work: pl.DataFrame, by_kernel: bool) -> pl.DataFrame:
    """The kind by the kernel's name, else by its operator's; in the optimizer, small kernels of any name are the
    optimizer's."""
    other = str(KernelKind.OTHER)
    by_name = _kinds(work["name"], KERNELS if by_kernel else OPERATORS)
    launcher = _kinds(work["operator"], OPERATORS)
    kind = pl.when(by_name == other).then(launcher).otherwise(by_name)
    optimizing = (pl.col("phase") == int(Detail.OPTIMIZER)) & kind.is_in([str(small) for small in OF_OPTIMIZER])
    return work.with_columns(
        pl.when(pl.col("class") == COMM)
        .then(pl.lit(str(KernelKind.COMMUNICATION)))
        .when(optimizing)
        .then(pl.lit(str(KernelKind.OPTIMIZER)))
        .otherwise(kind)
        .alias("kind"),
    )


def _kinds(column: pl.Series, patterns: Patterns) -> pl.Series:
    """The kind for each name of an Enum column, matched once per distinct name; "other" for null."""
    distinct = column.drop_nulls().unique()
    texts = distinct.cast(pl.String).to_list()
    kind_of = kinds_of(texts, patterns)
    kinds = pl.Series([kind_of[text] for text in texts], dtype=pl.String)
    return column.replace_strict(distinct, kinds, default=str(KernelKind.OTHER), return_dtype=pl.String)


def _costs(trace: Trace, work: pl.DataFrame) -> list[pl.Series]:
    """flops, bytes and element of each piece: an operator's cost is divided among the kernels that do its arithmetic,
    by their time. A product's transposing kernels get none."""
    shaped = _shaped(trace)
    at = nesting.enclosing(shaped, work["at_ns"].to_numpy(), work["thread"].to_numpy())
    is_math = work["kind"].is_in([str(kind) for kind in MATH_KINDS]).to_numpy() & (at >= 0)
    rows = np.flatnonzero(is_math)
    time = work["dur_ns"].to_numpy()[rows].astype(np.float64)
    of = at[rows]
    whole = np.bincount(of, weights=time, minlength=len(shaped)) if len(rows) else np.zeros(len(shaped))
    part = np.divide(time, whole[of], out=np.zeros_like(time), where=whole[of] > 0)
    costs = []
    for key in ("flops", "bytes"):
        values = np.full(len(work), np.nan)
        values[rows] = shaped[key].to_numpy()[of] * part
        costs.append(pl.Series(key, values).fill_nan(None))
    element = np.zeros(len(work), dtype=np.int64)
    element[rows] = shaped["element"].to_numpy()[of]
    return [*costs, pl.Series("element", element)]


def _shaped(trace: Trace) -> pl.DataFrame:
    """Operators of known cost without such an operator inside: ts_ns, dur_ns, thread, flops, bytes, element."""
    columns = ["name", "input_dims", "input_type"]
    calls = trace.select(names.CPU_OP, name=names.SHAPED_OP_PATTERN, arguments=True).with_columns(
        pl.col("name").cast(pl.String)
    )
    distinct = calls.select(columns).unique(maintain_order=True)
    parsed = [parse(*row) for row in distinct.iter_rows()]
    outputs = convolution_outputs([call for call in parsed if call is not None])
    costs = [cost(call, outputs) if call is not None else None for call in parsed]
    known = distinct.with_columns(
        pl.Series("flops", [c.flops if c else None for c in costs], dtype=pl.Float64),
        pl.Series("bytes", [c.bytes if c else None for c in costs], dtype=pl.Float64),
        pl.Series("element", [c.element if c else None for c in costs], dtype=pl.Int64),
    )
    calls = calls.join(known, on=columns, how="left", nulls_equal=True, maintain_order="left").filter(
        pl.col("flops").is_not_null()
    )
    parent = nesting.parents(calls)
    leaf = np.ones(len(calls), dtype=np.bool_)
    leaf[parent[parent >= 0]] = False
    return calls.filter(pl.Series(leaf)).select("ts_ns", "dur_ns", "thread", "flops", "bytes", "element")
