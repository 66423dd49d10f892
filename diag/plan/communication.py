"""What data parallelism sends over the links in a step, and the least time that takes.

Volumes: science.md 4.2, for ring algorithms; a rank sends and receives each of them. Times: volume over bandwidth, no
latency and nothing overlapped: what a step must hide to lose nothing.
"""

from __future__ import annotations

from msgspec import Struct

from diag.model.states import Sharding
from diag.plan.cluster import Cluster
from diag.plan.memory import Need, Strategy
from diag.plan.recipe import Recipe


class Traffic(Struct, frozen=True):
    """Bytes that a rank sends in a step: among the ranks that share states, and among replicas."""

    shards: int
    replicas: int
    seconds: float

    @property
    def total(self) -> int:
        return self.shards + self.replicas


def traffic(
    parameters: int,
    recipe: Recipe,
    need: Need,
    cluster: Cluster,
    micro_batches: int = 1,
    *,
    ranks: int | None = None,
    apart: int = 1,
) -> Traffic:
    """Gradients are reduced in the last of the ``micro_batches``, sharded parameters gathered in each. ``ranks``: data
    parallel ones, all without other axes, which lie ``apart`` in the numbering of ranks."""
    gathered, reduced = parameters * recipe.computed, parameters * recipe.reduced
    ranks = ranks or cluster.gpus
    replicas = ranks // need.shards
    if need.strategy.sharding == Sharding.PARAMETERS:
        within = (_gathers(need.strategy) * gathered * micro_batches + reduced) * _ring(need.shards)
        across = 2 * reduced / need.shards * _ring(replicas)
    else:  # an all-reduce is a reduce-scatter and an all-gather; what ZeRO gathers are the new parameters
        second = reduced if need.strategy.sharding == Sharding.NONE else gathered
        within, across = (reduced + second) * _ring(need.shards), 0.0
    seconds = within / cluster.bandwidth(need.shards * apart) + across / cluster.bandwidth(ranks * apart)
    return Traffic(round(within), round(across), seconds)


def _gathers(strategy: Strategy) -> int:
    """In forward, and once more in backward unless they are kept."""
    return 1 if strategy.keeps else 2


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
