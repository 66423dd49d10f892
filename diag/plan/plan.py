"""What fits, what it costs in communication, and what to use: a plan for one model, recipe and cluster."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.plan.activations import Activations, Checkpointing, activations
from diag.plan.cluster import Cluster
from diag.plan.communication import Traffic, traffic
from diag.plan.memory import HYBRID, STRATEGIES, ZERO_3, Need, Strategy, fewest, need
from diag.plan.recipe import Recipe
from diag.plan.shape import Size

# Of a GPU's memory: the rest is for the allocator's gaps, NCCL's buffers and the context.
USABLE = 0.9
_MOST_GPUS = 1 << 16


class Batch(Struct, frozen=True):
    """What a rank computes at once. ``width``: bytes of an activation."""

    sequences: int = 1
    length: int = 4096
    checkpointing: Checkpointing = Checkpointing.NONE
    micro_batches: int = 1
    width: int = 2

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


class Row(Struct, frozen=True):
    """A strategy on this cluster. ``peak``: bytes of states, of what is alive for a while, and of ``outside``: the
    activations, or what was given for all that lies outside the states."""

    need: Need
    outside: int
    traffic: Traffic
    fits: bool

    @property
    def peak(self) -> int:
        return self.need.total + self.outside


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


def plan(
    size: Size, recipe: Recipe, cluster: Cluster, batch: Batch, *, wrap: str = "block", outside: int | None = None
) -> Plan:
    """``outside``: bytes of the peak outside the model's states, where it is known; else the activations by formula,
    where the model's shape is known; else nothing is counted for them."""
    kept = activations(size.shape, batch.tokens, batch.width, batch.checkpointing) if size.shape else None
    beside = outside if outside is not None else kept.total if kept else 0
    room = round(cluster.memory * USABLE)
    rows = []
    for strategy in STRATEGIES:
        wanted = need(size, recipe, strategy, cluster.gpus, cluster.per_host, wrap)
        sent = traffic(size.parameters, recipe, wanted, cluster, batch.micro_batches)
        rows.append(Row(wanted, beside, sent, wanted.total + beside <= room))
    estimate = _estimate(size, recipe, cluster, wrap, beside)
    chosen, reasons = _choice(rows, cluster, size.parameters * recipe.total + beside <= room, estimate)
    bound = fewest(size, recipe, cluster.memory, beside)
    return Plan(size, recipe, cluster, batch, kept, beside, tuple(rows), bound, estimate, chosen, reasons)


def _estimate(size: Size, recipe: Recipe, cluster: Cluster, wrap: str, beside: int) -> int | None:
    """The fewest GPUs with which ZeRO-3 fits: any number on one host, whole hosts beyond."""
    room = cluster.memory * USABLE
    least = need(size, recipe, ZERO_3, _MOST_GPUS, cluster.per_host, wrap).total + beside
    if least > room:
        return None
    gpus = 1
    while need(size, recipe, ZERO_3, gpus, cluster.per_host, wrap).total + beside > room:
        gpus += 1 if gpus < cluster.per_host else cluster.per_host
    return gpus


def _choice(
    rows: Sequence[Row], cluster: Cluster, one_is_enough: bool, estimate: int | None
) -> tuple[Strategy | None, tuple[str, ...]]:
    fitting = [row for row in rows if row.fits]
    if not fitting:
        more = (
            f"{estimate} GPUs hold it with ZeRO-3"
            if estimate is not None
            else "no number of GPUs holds it: the gathered units and what lies outside the states do not fit on one"
        )
        return None, (more, "activation checkpointing, a smaller micro-batch or offload need less memory on each")
    if one_is_enough:
        simplest = fitting[0].need.strategy
        if cluster.gpus == 1:
            return simplest, ("everything fits on one GPU: do not distribute",)
        return simplest, (
            "everything fits on one GPU",
            "several only make it faster, and DDP is the simplest way to use them",
        )
    # The first of those that send as little: they are ordered from simple to involved.
    best = min(fitting, key=lambda row: round(row.traffic.seconds, 6))
    reasons = ["it sends least of those that fit" if len(fitting) > 1 else "nothing else fits"]
    if cluster.hosts > 1 and HYBRID not in [row.need.strategy for row in fitting]:
        reasons.append("the states do not fit on the GPUs of one host, so hybrid sharding is out")
    return best.need.strategy, tuple(reasons)
