"""Which work repeats a forward in the backward (activation checkpointing), inferred from a trace.

Non-reentrant checkpointing leaves torch/utils/checkpoint.py's frames if stacks were recorded; the reentrant one is an
autograd node, CheckpointFunctionBackward; an FSDP unit inside a checkpoint runs its forward hooks in the backward.
Without any of them, operators that no backward formula calls (aten::conv2d, aten::linear) inside one autograd node
are evidence: from the first to the last of them the node recomputes. That is inferred, and requires two different
ones, since a hand-written backward may well use one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account import trace_ranges as ranges
from diag.deferred import pl
from diag.model.steps import Detail
from diag.tables.policy import EFFICIENCY
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from . import nesting
from .module_ranges import PYTHON_FUNCTION, fsdp_forwards
from .work import WorkTable

_FRAME = r"torch/utils/checkpoint\.py\(\d+\): recompute_fn$"
_REENTRANT = r"CheckpointFunctionBackward$"
_FORWARD_ONLY = (
    r"^aten::(?:conv[123]d|linear|batch_norm|layer_norm|rms_norm|group_norm|embedding|scaled_dot_product_attention|"
    r"relu_?|gelu|silu_?|dropout|softmax|log_softmax|max_pool2d|leaky_relu_?|multi_head_attention)$"
)

Mask = npt.NDArray[np.bool_]


class Recomputed(Struct, frozen=True, eq=False):
    """For each piece of work, whether it repeats a forward. ``basis``: the evidence for it, "" if there is none."""

    mask: Mask
    basis: str


def recomputed(work: WorkTable) -> Recomputed:
    """From stack frames if the trace has them, else from all other marks."""
    trace = work.trace
    in_backward = (work.frame["phase"] == int(Detail.BACKWARD)).to_numpy()
    frames = trace.select(PYTHON_FUNCTION, name=_FRAME)
    if len(frames):
        return Recomputed(_inside(frames, work), "torch.utils.checkpoint in the recorded stacks")
    mask, bases = np.zeros(len(work.frame), dtype=np.bool_), []
    for repeats, basis in (
        (_reentrant(trace, work), "CheckpointFunctionBackward"),
        (_inside(fsdp_forwards(trace), work) & in_backward, "FSDP forward hooks inside the backward"),
        (_inside(_forward_in_nodes(trace), work), "forward operators inside the backward (inferred)"),
    ):
        if (repeats & ~mask).any():
            mask |= repeats
            bases.append(basis)
    return Recomputed(mask, ", ".join(bases))


def _inside(spans: pl.DataFrame, work: WorkTable) -> Mask:
    return nesting.enclosing(spans, *work.launches) >= 0


def _reentrant(trace: Trace, work: WorkTable) -> Mask:
    """Inside CheckpointFunctionBackward, but not in the backward that it starts itself, whose nodes lie inside."""
    nodes = trace.select(names.CPU_OP, name=f"^{names.AUTOGRAD_PREFIX}|{_REENTRANT}")
    reentrant = nodes["name"].cast(pl.String).str.contains(_REENTRANT).to_numpy()
    if not reentrant.any():
        return np.zeros(len(work.frame), dtype=np.bool_)
    at = nesting.enclosing(nodes, *work.launches)
    inside: Mask = (at >= 0) & reentrant[np.maximum(at, 0)]
    return inside


def _forward_in_nodes(trace: Trace) -> pl.DataFrame:
    """For each autograd node with forward operators inside, the stretch from the first to the last of them."""
    nodes = ranges.autograd_nodes(trace)
    forward = trace.select(names.CPU_OP, name=_FORWARD_ONLY)
    node = nesting.enclosing(nodes, forward["ts_ns"].to_numpy(), forward["thread"].to_numpy().astype(np.int64))
    return (
        forward.with_columns(pl.Series("node", node, dtype=pl.Int64))
        .filter(pl.col("node") >= 0)
        .group_by("node", "thread")
        .agg(
            pl.col("ts_ns").min(),
            (pl.col("ts_ns") + pl.col("dur_ns")).max().alias("end_ns"),
            pl.col("name").n_unique().alias("different"),
        )
        .filter(pl.col("different") >= EFFICIENCY.least_different_shapes)
        .select("ts_ns", (pl.col("end_ns") - pl.col("ts_ns")).alias("dur_ns"), "thread")
        .sort("ts_ns")
    )
