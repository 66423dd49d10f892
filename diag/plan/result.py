"""A plan as data: what fits, what it costs, what to use."""

from __future__ import annotations

from msgspec import Struct

from diag.plan.account import Peak
from diag.plan.activations import Activations, Checkpointing
from diag.plan.axes import AxisTraffic
from diag.plan.cluster import Cluster
from diag.plan.communication import Traffic
from diag.plan.memory import Need, Strategy
from diag.plan.pipeline import Schedule
from diag.plan.recipe import Recipe
from diag.plan.shape import Size
from diag.plan.speed import Speed
from diag.plan.throughput import Throughput
from diag.plan.topology import Topology

# Of a GPU's memory: the rest is for the allocator's gaps, NCCL's buffers and the context.
USABLE = 0.9


class Batch(Struct, frozen=True):
    """What a rank computes at once. ``width``: bytes of an activation."""

    sequences: int = 1
    length: int = 4096
    checkpointing: Checkpointing = Checkpointing.NONE
    micro_batches: int = 1
    width: int = 2
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


class Row(Struct, frozen=True):
    """A strategy on this cluster. ``peak``: bytes of states, of what is alive for a while, and of ``outside``: the
    activations, or what was given for all that lies outside the states. ``stage``: the pipeline stage that needs most;
    ``axes``: what the other axes send; ``expected``: how long a step takes, None where that cannot be told."""

    need: Need
    outside: int
    traffic: Traffic
    fits: bool
    stage: int = 0
    axes: tuple[AxisTraffic, ...] = ()
    expected: Throughput | None = None

    @property
    def peak(self) -> int:
        return self.need.total + self.outside

    @property
    def sent(self) -> int:
        """Bytes of a rank in a step, on all axes."""
        return self.traffic.total + sum(axis.bytes for axis in self.axes)

    @property
    def seconds(self) -> float:
        """That the links need, if nothing hides it and the axes take turns."""
        return self.traffic.seconds + sum(axis.seconds for axis in self.axes)


class Plan(Struct, frozen=True):
    """``bound``: the fewest GPUs whose memory holds the states, shared evenly, and ``outside``. ``estimate``:
    the fewest with which ZeRO-3 leaves a tenth of each free, None where no number does. ``chosen``: what to use, and
    for which ``reasons``; None where nothing fits, with the reasons for that."""

    size: Size
    recipe: Recipe
    cluster: Cluster
    batch: Batch
    activations: Activations | None
    outside: int
    rows: tuple[Row, ...]
    bound: int | None
    estimate: int | None
    chosen: Strategy | None
    reasons: tuple[str, ...]
    topology: Topology = Topology({})
    speed: Speed | None = None
    likely: Peak | None = None
