"""The cluster of a planned training: the GPUs' memory, peak FLOP/s and links."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from diag.collectors.layout import MOST_RANKS
from diag.errors import DiagError
from diag.model.breakdown import peak_of
from diag.planning.policy import PLANNING

from .shape import Shape


class Gpu(Struct, frozen=True):
    """A GPU by its product name. ``within_gb_s``: bus bandwidth of collectives between the GPUs of a host, in each
    direction and for each GPU. ``per_host``: how many GPUs these links connect, where a host is not the limit."""

    name: str
    memory_gb: float
    driver_name: str
    within_gb_s: float
    per_host: int = PLANNING.per_host


# Capacities are the vendors', in 10^9 bytes; nvidia-smi prints up to 7 % more. Bandwidths are three quarters of one
# direction of the links (NVLink 2 to 5, Infinity Fabric, PCIe 3 to 5), which is what nccl-tests and rccl-tests print
# for large all-reduces: defaults, to be replaced by the values that diag analyze measures (--within).
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("V100-32", 32, "Tesla V100-SXM2-32GB", 112),
        Gpu("A100-40", 40, "NVIDIA A100-SXM4-40GB", 225),
        Gpu("A100-80", 80, "NVIDIA A100-SXM4-80GB", 225),
        Gpu("H100", 80, "NVIDIA H100 80GB HBM3", 337),
        Gpu("H100-PCIe", 80, "NVIDIA H100 PCIe", 48),
        Gpu("H200", 141, "NVIDIA H200", 337),
        Gpu("B200", 192, "NVIDIA B200", 675),
        Gpu("B300", 288, "NVIDIA B300 SXM6 AC", 675),  # docs.nvidia.com, NIM for Boltz-2, release notes of 1.7.0
        # nvidia-smi: 189,471 MiB, sold as 186 GB (B200: 183,359). NVLink connects 18 hosts, a rack (nvidia.com)
        Gpu("GB200", 198, "NVIDIA GB200", 675, 72),
        Gpu("L4", 24, "NVIDIA L4", 24),
        Gpu("L40S", 48, "NVIDIA L40S", 24),
        Gpu("A10G", 24, "NVIDIA A10G", 12),
        Gpu("RTX4090", 24, "NVIDIA GeForce RTX 4090", 12),
        Gpu("MI250X", 64, "AMD Instinct MI250X", 75),
        Gpu("MI300X", 192, "AMD Instinct MI300X", 336),
        # Memory: rocm.docs.amd.com, "AMD GPU specifications" of ROCm 7.13; seven links of 76.8 GB/s
        Gpu("MI355X", 288, "AMD Instinct MI355X", 403),
    )
}


class Cluster(Struct, frozen=True):
    """A cluster. ``memory``: bytes per GPU. Bandwidths: bytes per second for each GPU. ``tflop_s``: dense bf16.
    ``memory_gb_s``: bandwidth of a GPU's memory."""

    gpus: int
    per_host: int
    memory: int
    tflop_s: float | None
    within: float
    across: float
    gpu: str = ""
    memory_gb_s: float | None = None

    @property
    def hosts(self) -> int:
        return -(-self.gpus // self.per_host)

    def bandwidth(self, ranks: int) -> float:
        """The bandwidth of a collective among this many neighbouring ranks: that of the slowest link."""
        return self.within if ranks <= self.per_host else min(self.within, self.across)


def cluster_of(
    gpus: int,
    gpu: str | None,
    *,
    per_host: int | None = None,
    memory_gb: float | None = None,
    within_gb_s: float | None = None,
    across_gb_s: float | None = None,
    peak_tflop_s: float | None = None,
) -> Cluster:
    """A cluster from a GPU's name and numbers; numbers override the known values of the GPU. DiagError for an unknown
    name, or a number that is not positive and finite."""
    known_gpu = _gpu(gpu) if gpu else None
    memory = memory_gb if memory_gb is not None else known_gpu.memory_gb if known_gpu else 80.0
    within = (
        within_gb_s if within_gb_s is not None else known_gpu.within_gb_s if known_gpu else GPUS["A100-80"].within_gb_s
    )
    if per_host is None:
        per_host = known_gpu.per_host if known_gpu else PLANNING.per_host
    across = across_gb_s if across_gb_s is not None else PLANNING.across_gb_s
    peak = peak_of(known_gpu.driver_name) if known_gpu else None
    tflop_s = peak_tflop_s if peak_tflop_s is not None else peak.tflop_s if peak else None
    numbers = {"--gpus": gpus, "--per-host": per_host, "--memory": memory, "--within": within, "--across": across}
    for name, value in (numbers | {"--peak": tflop_s}).items():
        if value is not None and not 0 < value < float("inf"):
            raise DiagError(f"{name} {value:g}: give a number above 0")
    return Cluster(
        gpus, min(per_host, gpus), round(memory * 1e9), tflop_s, within * 1e9, across * 1e9,
        known_gpu.name if known_gpu else "", peak.gb_s if peak else None,
    )  # fmt: skip


def _gpu(name: str) -> Gpu:
    match = next((gpu for gpu in GPUS.values() if _plain(gpu.name) == _plain(name)), None)
    if match is None:
        raise DiagError(f"--gpu: no device called {name!r}", hint=f"one of {', '.join(GPUS)}; or give --memory alone")
    return match


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "")


# -- topology ----------------------------------------------------------------------------------------------------------
#
# The axes of the ranks: dp=8,tp=4,pp=2,cp=2.

# In the order of torchtitan and Megatron, outermost first: neighbours in the last axis are neighbours on a host.
AXES = {
    "pp": "pipeline stages",
    "dp": "data parallel, sharding or not",
    "dp_replicate": "replicas of hybrid sharding",
    "dp_shard": "ranks that share one replica's states",
    "cp": "parts of the sequence",
    "tp": "parts of each matrix",
    "ep": "parts of the experts, cut out of the data-parallel ranks",
}
_WITHIN_DATA = ("ep",)  # uses the ranks of other axes, so it does not multiply the world size


class Topology(Struct, frozen=True):
    """Sizes of the given axes."""

    axes: dict[str, int]

    @property
    def world_size(self) -> int:
        return prod(size for axis, size in self.axes.items() if axis not in _WITHIN_DATA)

    def size(self, axis: str) -> int:
        return self.axes.get(axis, 1)

    @property
    def data_parallel(self) -> int:
        """Ranks that read different batches."""
        return self.size("dp") * self.size("dp_replicate") * self.size("dp_shard")

    @property
    def plain(self) -> bool:
        """Whether there is only data parallelism: each rank works on the whole model and whole sequences."""
        return all(self.size(axis) == 1 for axis in ("tp", "pp", "cp", "ep"))

    def __str__(self) -> str:
        sizes = " x ".join(f"{axis}={size}" for axis, size in self.axes.items())
        return f"{sizes} = {self.world_size} ranks"


def topology_of(text: str) -> Topology:
    """The topology in a text like "dp=8,tp=4,pp=2". DiagError for an unknown axis, one given twice, or an invalid
    size."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES:
            known_axes = ", ".join(f"{name} ({about})" for name, about in AXES.items())
            raise DiagError(f"--topology: no axis called {axis or part!r}", hint=f"axes: {known_axes}")
        if axis in axes:
            raise DiagError(f"--topology: {axis} is given twice")
        if not size.isdecimal() or not size.strip("0"):
            raise DiagError(
                f"--topology: {axis}={size} is not a number of ranks", hint="give one from 1 on, as in dp=8"
            )
        if len(size) > 18 or int(size) > MOST_RANKS:
            raise DiagError(f"--topology: {axis}={size[:80]} is more than {MOST_RANKS:,} ranks")
        axes[axis] = int(size)
    if "dp" in axes and ("dp_shard" in axes or "dp_replicate" in axes):
        raise DiagError("--topology: dp is dp_replicate x dp_shard: give it, or the two of them")
    if axes.get("pp", 1) > PLANNING.most_stages:
        raise DiagError(f"--topology: pp={axes['pp']} is more than {PLANNING.most_stages:,} stages")
    topology = Topology(axes)
    if topology.world_size > MOST_RANKS:
        raise DiagError(f"--topology: {topology} is {topology.world_size:,} ranks, more than {MOST_RANKS:,}")
    expert, data = topology.size("ep"), topology.data_parallel * topology.size("cp")
    if data % expert:
        raise DiagError(f"--topology: ep={expert} does not divide the {data} ranks of dp and cp")
    return topology


def check_world(topology: Topology, world_size: int) -> None:
    """DiagError, with sizes that would fit, if the product of the axes is not the world size."""
    needed = topology.world_size
    if needed == world_size:
        return
    without = needed // topology.data_parallel
    data = f", or {world_size // without} data-parallel ranks" if world_size % without == 0 else ""
    hint = f"give {needed} GPUs{data}"
    raise DiagError(f"--topology: {topology}, but there are {world_size} GPUs", hint=hint)


# -- traffic of the axes -----------------------------------------------------------------------------------------------
#
# Communication in a step of the axes other than data parallelism, and the links that it uses.
#
# Bytes that a rank sends. Tensor parallelism with sequence parallelism: Korthikanti et al. (arXiv 2205.05198, section
# 4.2.2): all-gathers and reduce-scatters in place of Megatron's four all-reduces per block, with the same bytes; and
# the inputs of the two first matrices are gathered once more in backward, because only a shard of each is kept.
# Pipeline: the activation between stages, each rank its own part (Narayanan et al., 2104.04473, section 4.1), and its
# gradient back. Context: ring attention (Liu et al., 2310.01889): keys and values go around the ring in forward and in
# backward, their gradients in backward.


class AxisTraffic(Struct, frozen=True):
    """Communication of one axis: bytes that a rank sends in a step, the bandwidth of the slowest link among its ranks,
    and the time without overlap. ``across``: the axis spans hosts."""

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
    """The difference in rank between neighbours of an axis."""
    distance = 1
    for inner in _INNERMOST_FIRST:
        if inner == axis:
            break
        distance *= topology.size(inner)
    return distance


def bandwidth_of(topology: Topology, axis: str, cluster: Cluster) -> float:
    """The bandwidth of the slowest link among the ranks of one group of the axis."""
    return cluster.bandwidth(stride(topology, axis) * topology.size(axis))


def axis_traffic(
    shape: Shape, topology: Topology, cluster: Cluster, tokens: int, width: int, micro_batches: int, chunks: int = 1
) -> list[AxisTraffic]:
    """The traffic of the axes larger than 1. ``shape``: one stage's, after tensor parallelism; ``tokens``: of a
    micro-batch, before context parallelism."""
    tensor, context, stages = (topology.size(axis) for axis in ("tp", "cp", "pp"))
    local = -(-tokens // context)
    traffics = []
    if tensor > 1:
        activation = local * shape.hidden * width
        block_bytes = block_gathers(activation, tensor)
        traffics.append(_traffic("tp", block_bytes * shape.layers * micro_batches, topology, cluster))
    if context > 1:
        traffics.append(
            _traffic("cp", ring(shape, local, width, context) * shape.layers * micro_batches, topology, cluster)
        )
    if stages > 1:
        stage_bytes = 2 * chunks * micro_batches * (local * shape.hidden * width // tensor)
        traffics.append(_traffic("pp", stage_bytes, topology, cluster))
    if topology.size("ep") > 1:
        sent = routed(shape, local, width, topology.size("ep")) // tensor
        blocks = shape.layers - len(shape.dense)
        # The ranks of a group are neighbours among those of dp and cp.
        apart, among = tensor, topology.size("ep")
        across = apart * among > cluster.per_host
        bandwidth = cluster.bandwidth(apart * among)
        traffics.append(AxisTraffic("ep", sent * blocks * micro_batches, bandwidth, across))
    return traffics


def routed(shape: Shape, local: int, width: int, expert: int) -> int:
    """Bytes per block with experts and micro-batch: each token goes to the ranks of its experts and comes back, in
    forward and in backward; of evenly chosen experts, one part in ``expert`` is on the rank itself. As Megatron-LM's
    all-to-all dispatcher (megatron/core/transformer/moe/token_dispatcher.py)."""
    return 4 * local * shape.experts_used * shape.hidden * width * (expert - 1) // expert


def block_gathers(activation: int, tensor: int) -> int:
    """Bytes per block and micro-batch: four pairs of an all-gather and a reduce-scatter, and two more all-gathers."""
    return 10 * activation * (tensor - 1) // tensor


def ring(shape: Shape, local: int, width: int, context: int) -> int:
    """Bytes per block and micro-batch: this rank's keys and values go around the ring once in forward, and once in
    backward together with their gradients."""
    keys_and_values = 2 * shape.kv_heads * shape.head_size * width * local
    return 3 * keys_and_values * (context - 1)


def _traffic(axis: str, count: int, topology: Topology, cluster: Cluster) -> AxisTraffic:
    bandwidth = bandwidth_of(topology, axis, cluster)
    return AxisTraffic(axis, count, bandwidth, stride(topology, axis) * topology.size(axis) > cluster.per_host)
