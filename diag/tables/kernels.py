"""Kernels: their kinds, their shapes and arithmetic, the device work of a trace, and the table of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from diag.account import intervals as iv
from diag.account import trace_ranges as ranges
from diag.account.gpu import COMM, COMPUTE, COPY, NEVER, device_work
from diag.account.intervals import Window, covers
from diag.model.breakdown import Bound, DevicePeak, KernelKind, KernelStat, KernelTable
from diag.model.steps import Detail
from diag.tables.policy import EFFICIENCY
from diag.traces import kineto_names as names
from diag.traces.kineto_names import FUSED_PATTERN
from diag.traces.trace import Trace

from . import nesting

# -- kernel kinds ------------------------------------------------------------------------------------------------------
#
# The kind of a kernel or an operator, from its name: the first pattern that matches.
#
# Written against the kernels of the real traces on V100, A100 and MI300 (cuDNN, cuBLAS, CUTLASS, MIOpen, Composable
# Kernel, Tensile, fbgemm) and the names of torch 2.13's operators. Names without a matching pattern are "other".

Patterns = tuple[tuple[KernelKind, str], ...]

# Order matters: Inductor's names repeat the operators around a kernel, implicit GEMMs are convolutions, fbgemm's
# lookups are not GEMMs, a fused Adam contains a functor.
KERNELS: Final[Patterns] = (
    (KernelKind.GEMM, r"(?i)^triton_tem_"),  # inductor's template of a matrix product
    (KernelKind.TRITON, r"^triton_"),
    (KernelKind.FUSED, FUSED_PATTERN),
    (KernelKind.ATTENTION, r"(?i)flash|fmha|attention|aotriton|_attn_|attn_(?:fwd|bwd)|mem_eff"),
    (
        KernelKind.EMBEDDING,
        r"(?i)embedding|fbgemm_gpu|index_?select|indexing_backward|index_elementwise|krn_partial|linearize_index",
    ),
    (KernelKind.OPTIMIZER, r"(?i)fused_?(?:adam|sgd|adagrad|lamb)|adam_|lamb_|sgd_kernel"),
    (
        KernelKind.REDUCTION,
        r"(?i)(?:\b|_)bn_|batch_?norm|layer_?norm|rms_?norm|group_?norm|GammaBeta|RowwiseMoments|ClassNLL",
    ),
    (KernelKind.COPY, r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose|^transpose_|CatArray|copy_kernel|memcpy"),
    (KernelKind.COPY, r"(?i)^Mem(?:cpy|set)|fillBuffer|copyBuffer|chunk_cat|split_with_sizes_copy|CastTensor"),
    (
        KernelKind.CONVOLUTION,
        r"(?i)conv(?!ert)|[dw]grad|fprop|igemm_(?:fwd|bwd|wrw)|bwd_(?:weight|data)|winograd|implicit_gemm|scudnn|"
        r"im2col|col2im|depthwise|compute_?B?Offsets",
    ),
    (
        KernelKind.GEMM,
        r"(?i)gemm|gemv|cutlass|cublas|xmma|^Cijk_|nvjet|splitKreduce|magma|dot_kernel|reduce_1Block",
    ),
    (
        KernelKind.REDUCTION,
        r"(?i)reduce|softmax|welford|_pool|cub::Device(?:Reduce|Scan|Segmented|Select)|nll_loss|cross_entropy|norm|"
        r"DeviceScan|cumsum|topk|sort|argmax",
    ),
    (
        KernelKind.ELEMENTWISE,
        r"(?i)elementwise|multi_tensor_apply|functor|dropout|distribution_|(?:Sub|Op|Packed)Tensor|masked|triu|tril|arange|"
        r"where|clamp",
    ),
)

OPERATORS: Final[Patterns] = (
    (KernelKind.ATTENTION, r"attention"),
    (KernelKind.CONVOLUTION, r"conv(?!ert)"),
    (
        KernelKind.GEMM,
        r"^aten::(?:mm|mv|bmm|addmm|addmv|baddbmm|dot|linear|matmul|einsum|_scaled_mm|_addmm_activation|mkldnn_linear)"
        r"(?:_|$)|^(?:mkl|mkldnn)::_?linear",
    ),
    (KernelKind.OPTIMIZER, r"_fused_(?:adam|sgd|adagrad)"),
    (KernelKind.EMBEDDING, r"embedding|index_select|^aten::(?:index|gather|scatter)|fbgemm::"),
    (KernelKind.REDUCTION, r"_?(?:batch|layer|group|rms|instance)_norm|softmax|_pool|nll_loss|cross_entropy"),
    (
        KernelKind.REDUCTION,
        r"^aten::(?:_foreach_norm|(?:linalg_)?(?:vector_)?norm|sum|mean|amax|amin|max|min|any|all|var|std|cumsum|"
        r"logsumexp|topk|sort|argmax|prod)(?:_|$)",
    ),
    (
        KernelKind.COPY,
        r"^aten::(?:copy_|_to_copy|to|clone|contiguous|cat|_chunk_cat|stack|fill_|zero_|zeros|ones|zeros_like|"
        r"ones_like|full|split_with_sizes_copy|_foreach_copy_|_foreach_zero_|repeat|flatten_dense|unflatten_dense)|"
        r"^fsdp::|^aten::_?cat$",
    ),
    (
        KernelKind.ELEMENTWISE,
        r"^aten::_?(?:foreach_)?(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|neg|exp|log|log1p|sigmoid|silu|gelu|relu|tanh|"
        r"clamp|clamp_min|clamp_max|where|masked_fill|native_dropout|dropout|bernoulli|lerp|addcmul|addcdiv|threshold|"
        r"reciprocal|abs|eq|ne|lt|gt|le|ge|bitwise_\w+|logical_\w+|sin|cos|maximum|minimum|square|sign|erf|softplus|"
        r"elu|leaky_relu|hardtanh|mse_loss|tril|triu|arange|isnan|isinf|floor|round|complex|polar|normal|uniform|"
        r"random)_?(?:_backward|_in)?(?:_|$)",
    ),
)

MATH_KINDS: Final = (KernelKind.GEMM, KernelKind.ATTENTION, KernelKind.CONVOLUTION)
_MEMORY_KINDS: Final = (
    KernelKind.ELEMENTWISE,
    KernelKind.REDUCTION,
    KernelKind.COPY,
    KernelKind.EMBEDDING,
    KernelKind.OPTIMIZER,
)
# In the optimizer these are the optimizer's work, whatever their names: torch's foreach kernels have one name
# everywhere.
OF_OPTIMIZER: Final = (KernelKind.ELEMENTWISE, KernelKind.REDUCTION, KernelKind.OTHER, KernelKind.TRITON)


def kinds_of(names: Iterable[str], patterns: Patterns) -> dict[str, str]:
    """The kind of every name, computed once per distinct name."""
    return {name: _kind(name, patterns) for name in set(names)}


def bound_of(kind: KernelKind) -> Bound:
    """The usual limit of a class of kernels: most do few operations on each byte they move."""
    return Bound.MEMORY if kind in _MEMORY_KINDS else Bound.UNKNOWN


@cache
def _kind(name: str, patterns: Patterns) -> str:
    return next((str(kind) for kind, pattern in patterns if re.search(pattern, name)), str(KernelKind.OTHER))


# -- shapes ------------------------------------------------------------------------------------------------------------
#
# The least work of an operator, from the shapes that ``record_shapes`` wrote: FLOPs, and bytes moved.
#
# FLOPs count a multiplication and an addition as two; bytes count every operand and result once, at the element size of
# the first. Attention does not discount causality (MFU's convention), and its backward is 2.5 forwards, since the fused
# kernels compute the scores again. A convolution's result is in no argument of its forward: it is taken from the
# backward of the same input and weight, so it stays unknown if the trace has no backward.

Shape = tuple[int, ...]
Outputs = dict[tuple[Shape, Shape], Shape | None]  # a convolution's input and weight: its result; None: several


class Cost(Struct, frozen=True):
    flops: float
    bytes: float
    element: int


class ShapedOperator(Struct, frozen=True):
    """An operator's name with the shapes of its tensor arguments, () for others, and the element size."""

    name: str
    shapes: tuple[Shape, ...]
    element: int


def parse(name: str, dims: str | None, types: str | None) -> ShapedOperator | None:
    """A call from "Input Dims" and "Input type"; None if they are incomplete."""
    try:
        shapes, kinds = json.loads(dims or "null"), json.loads(types or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    element = next((size for kind in kinds if isinstance(kind, str) and (size := names.dtype_bytes(kind))), 0)
    return ShapedOperator(name, tuple(map(names.shape, shapes)), element) if element else None


def cost(call: ShapedOperator, outputs: Outputs) -> Cost | None:
    """The work of the call; None if the shapes are unknown or do not fit the operator."""
    op = call.name.removeprefix("aten::")
    try:
        if "convolution" in op or op == "_conv_depthwise2d":
            return _convolution(call, outputs)
        if "attention" in op:
            return _attention(call, backward=op.endswith("_backward"))
        if op == "linear":
            return _linear(call)
        # addmm, baddbmm: the first argument is added to the product.
        return _product(call, first=1 if "add" in op else 0)
    except (IndexError, ValueError):
        return None


def convolution_outputs(calls: Sequence[ShapedOperator]) -> Outputs:
    """The outputs of convolutions, from their backwards. None for an input and weight with two strides."""
    outputs: Outputs = {}
    for call in calls:
        if call.name == "aten::convolution_backward" and len(call.shapes) > 2:
            output, key = call.shapes[0], (call.shapes[1], call.shapes[2])
            outputs[key] = output if outputs.get(key, output) == output else None
    return outputs


def _product(call: ShapedOperator, first: int) -> Cost | None:
    a, b = call.shapes[first], call.shapes[first + 1]
    if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    result = math.prod(a[:-1]) * b[-1]
    moved = math.prod(a) + math.prod(b) + result + (math.prod(call.shapes[0]) if first and call.shapes[0] else 0)
    return Cost(2.0 * result * a[-1], float(moved * call.element), call.element)


def _linear(call: ShapedOperator) -> Cost | None:
    x, weight = call.shapes[0], call.shapes[1]
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        return None
    result = math.prod(x[:-1]) * weight[0]
    moved = math.prod(x) + math.prod(weight) + result
    return Cost(2.0 * result * weight[1], float(moved * call.element), call.element)


def _convolution(call: ShapedOperator, outputs: Outputs) -> Cost | None:
    backward = call.name.endswith("convolution_backward")
    x, weight = call.shapes[1:3] if backward else call.shapes[0:2]
    output = call.shapes[0] if backward else outputs.get((x, weight))
    if not output or len(x) < 3 or len(weight) != len(x):
        return None
    # Every element of the result needs one product per element of a filter; transposed, every element of the input
    # does.
    transposed = weight[0] != output[1]
    once = 2.0 * math.prod(x if transposed else output) * math.prod(weight[1:])
    moved = float((math.prod(x) + math.prod(weight) + math.prod(output)) * call.element)
    times = 2 if backward else 1  # gradients of the input and of the weight
    return Cost(once * times, moved * times, call.element)


def _attention(call: ShapedOperator, backward: bool) -> Cost | None:
    """(batch, heads, length, head_dim) each; the backward has the result's gradient first."""
    query, key, value = call.shapes[1:4] if backward else call.shapes[0:3]
    if not (len(query) == len(key) == len(value) == 4) or query[-1] != key[-1]:
        return None
    batch, heads, length, _ = query
    flops = 2.0 * batch * heads * length * key[2] * (key[3] + value[3])
    moved = math.prod(query) + math.prod(key) + math.prod(value) + batch * heads * length * value[3]
    times = 2 if backward else 1
    return Cost(flops * (2.5 if backward else 1), float(moved * times * call.element), call.element)


# -- work --------------------------------------------------------------------------------------------------------------
#
# The work of one trace's device, piece by piece: each kernel with the operator that launched it and its cost.
#
# If nothing ran on a device the pieces are operators, each with its time outside of the operators inside it.

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


# -- kernel table ------------------------------------------------------------------------------------------------------
#
# The per-kernel table: the device's time by name, and the limit of each kernel (a roofline by shapes).

_HALF_BYTES = 2
_KEYS = ("name", "kind")


def partial(work: WorkTable) -> pl.DataFrame:
    """One row per (name, kind, operator) of one trace; these add up over traces."""
    covered = pl.col("flops").is_not_null()
    sums = work.frame.group_by(*_KEYS, "operator", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur_ns").sum().alias("total_ns"),
        pl.col("dur_ns").max().alias("max_ns"),
        pl.col("exposed_ns").sum(),
        pl.col("flops").sum(),
        pl.col("bytes").sum(),
        pl.col("dur_ns").filter(covered).sum().alias("covered_ns"),
        pl.col("element").max(),
    )
    # Converted to text only here: every trace has its own Enum.
    return sums.with_columns(pl.col("name").cast(pl.String), pl.col("operator").cast(pl.String).fill_null(""))


def kernel_table(parts: Sequence[pl.DataFrame], unit: str, rank_steps: int, peak: DevicePeak | None) -> KernelTable:
    """The table of all traces' parts; totals add up to the device's busy time before union."""
    if not parts or not sum(len(part) for part in parts):
        return KernelTable((), unit, 0, rank_steps, peak)
    rows = (
        pl.concat(parts)
        .sort("total_ns", descending=True, maintain_order=True)
        .group_by(*_KEYS, maintain_order=True)
        .agg(
            pl.col("operator").first(),  # the one with the largest total
            *(pl.col(key).sum() for key in ("count", "total_ns", "exposed_ns", "flops", "bytes", "covered_ns")),
            pl.col("max_ns").max(),
            pl.col("element").max(),
        )
        .sort(["total_ns", "name"], descending=[True, False])
    )
    busy = int(rows["total_ns"].sum())
    return KernelTable(
        rows=tuple(_stat(row, busy, peak, unit == "kernel") for row in rows.to_dicts()),
        unit=unit,
        busy_ns=busy,
        rank_steps=rank_steps,
        peak=peak,
    )


def _stat(row: dict[str, Any], busy: int, peak: DevicePeak | None, on_device: bool) -> KernelStat:
    kind, covered = KernelKind(row["kind"]), row["covered_ns"]
    intensity = row["flops"] / row["bytes"] if row["bytes"] else None
    # An operator's class shows no limit on a CPU, where most of a small one is overhead before its loop.
    bound, source = _bound(kind, intensity, row["element"], peak) if on_device else (Bound.UNKNOWN, "")
    return KernelStat(
        name=row["name"],
        kind=kind,
        operator=row["operator"],
        count=row["count"],
        total_ns=row["total_ns"],
        mean_ns=row["total_ns"] // row["count"],
        max_ns=row["max_ns"],
        share=row["total_ns"] / busy if busy else 0.0,
        exposed_ns=row["exposed_ns"],
        bound=bound,
        bound_from=source,
        flops=row["flops"],
        bytes=row["bytes"],
        shapes_share=covered / row["total_ns"] if row["total_ns"] else 0.0,
        intensity=intensity,
        tflop_s=row["flops"] / covered / 1e3 if covered else None,
        gb_s=row["bytes"] / covered if covered else None,
    )


def _bound(kind: KernelKind, intensity: float | None, element: int, peak: DevicePeak | None) -> tuple[Bound, str]:
    """From the ridge point if shapes and device are known, else by class."""
    if intensity is None:
        by_class = bound_of(kind)
        return by_class, "class" if by_class != Bound.UNKNOWN else ""
    if peak is None or peak.ridge is None:
        return Bound.UNKNOWN, ""
    if intensity >= peak.ridge:
        return Bound.MATH, "shapes"  # at any lower peak, too
    surely_memory = peak.ridge if element == _HALF_BYTES else peak.ridge / EFFICIENCY.bf16_over_fp32
    return (Bound.MEMORY, "shapes") if intensity < surely_memory else (Bound.UNKNOWN, "")
