"""What the axes beside data parallelism send in a step, and over which links.

Bytes that a rank sends. Tensor parallelism with sequence parallelism: Korthikanti et al. (arXiv 2205.05198, section
4.2.2): all-gathers and reduce-scatters in place of Megatron's four all-reduces a block, as many bytes; and inputs of
the two first matrices gathered once more in backward, because only a part of each is kept. Pipeline: the activation
between stages, each rank its own part (Narayanan et al., 2104.04473, section 4.1), and its gradient back. Context:
ring attention (Liu et al., 2310.01889): keys and values go round in forward and in backward, their gradients in
backward.
"""

from __future__ import annotations

from msgspec import Struct

from .cluster import AXES, Cluster, Topology
from .shape import Shape


class AxisTraffic(Struct, frozen=True):
    """Of one axis: bytes that a rank sends in a step, the bandwidth of the slowest link among its ranks, and the time
    if nothing hides it. ``across``: the axis leaves the host."""

    axis: str
    bytes: int
    bandwidth: float
    across: bool

    @property
    def seconds(self) -> float:
        return self.bytes / self.bandwidth


# In the order in which ranks are numbered, innermost first.
_INNERMOST_FIRST = [axis for axis in reversed(AXES) if axis != "ep"]


def stride(topology: Topology, axis: str) -> int:
    """How far neighbours of an axis lie apart in the numbering of ranks."""
    found = 1
    for inner in _INNERMOST_FIRST:
        if inner == axis:
            break
        found *= topology.size(inner)
    return found


def bandwidth_of(topology: Topology, axis: str, cluster: Cluster) -> float:
    """Of the slowest link among the ranks of one group of the axis."""
    return cluster.bandwidth(stride(topology, axis) * topology.size(axis))


def axis_traffic(
    shape: Shape, topology: Topology, cluster: Cluster, tokens: int, width: int, micro_batches: int, chunks: int = 1
) -> list[AxisTraffic]:
    """Of the axes that are larger than 1. ``shape``: one stage's, cut; ``tokens``: of a micro-batch before the
    sequence is cut."""
    tensor, context, stages = (topology.size(axis) for axis in ("tp", "cp", "pp"))
    local = -(-tokens // context)
    found = []
    if tensor > 1:
        activation = local * shape.hidden * width
        each = block_gathers(activation, tensor)
        found.append(_traffic("tp", each * shape.layers * micro_batches, topology, cluster))
    if context > 1:
        found.append(
            _traffic("cp", ring(shape, local, width, context) * shape.layers * micro_batches, topology, cluster)
        )
    if stages > 1:
        between = 2 * chunks * micro_batches * (local * shape.hidden * width // tensor)
        found.append(_traffic("pp", between, topology, cluster))
    return found


def block_gathers(activation: int, tensor: int) -> int:
    """Bytes of a block and micro-batch: four times an all-gather and a reduce-scatter, and two all-gathers again."""
    return 10 * activation * (tensor - 1) // tensor


def ring(shape: Shape, local: int, width: int, context: int) -> int:
    """Bytes of a block and micro-batch: this rank's keys and values once round in forward, once in backward with their
    gradients beside them."""
    own = 2 * shape.kv_heads * shape.head_size * width * local
    return 3 * own * (context - 1)


def _traffic(axis: str, count: int, topology: Topology, cluster: Cluster) -> AxisTraffic:
    bandwidth = bandwidth_of(topology, axis, cluster)
    return AxisTraffic(axis, count, bandwidth, stride(topology, axis) * topology.size(axis) > cluster.per_host)
