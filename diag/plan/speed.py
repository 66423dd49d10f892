"""How fast things go on a cluster, where nothing was measured: arithmetic, collectives, the optimizer's memory traffic.

Collectives as NCCL's own model has them (src/graph/tuning.cc, ring and Simple protocol): a base latency, one for each
hop of the ring, those between hosts slower, and the bytes over the bandwidth of the slowest link.
"""

from __future__ import annotations

from msgspec import Struct

from diag.errors import DiagError
from diag.plan.cluster import Cluster

# Of a rank's arithmetic alone, where nothing better is known. torchtitan's published runs of Llama 3.1 8B on H100s,
# which hide nearly all communication, reach 33 % (eager) and 39 % (compiled); Llama 3 405B 38 to 43 % (2407.21783).
MFU = 0.4
_BASE_US = 8.4  # NCCL's base latency of a ring in the Simple protocol
WITHIN_US = 3.4  # a hop over NVLink
ACROSS_US = 14.0  # a hop over the network


class Speed(Struct, frozen=True):
    """``peak``: FLOP/s of a GPU, dense; ``mfu``: the part of it that computation alone reaches; ``memory_bandwidth``:
    bytes a second of its memory, None where that is not known. Latencies in microseconds a hop."""

    peak: float
    mfu: float = MFU
    memory_bandwidth: float | None = None
    within_us: float = WITHIN_US
    across_us: float = ACROSS_US

    def compute_ns(self, flops: float) -> int:
        return round(flops / (self.peak * self.mfu) * 1e9)

    def optimizer_ns(self, touched: int) -> int:
        """``touched``: bytes read and written."""
        return round(touched / self.memory_bandwidth * 1e9) if self.memory_bandwidth else 0


def speed_of(
    cluster: Cluster, mfu: float | None = None, within_us: float | None = None, across_us: float | None = None
) -> Speed | None:
    """With what is given in place of what is assumed; None where the GPU's peak is not known. DiagError for numbers
    that are none."""
    for name, value, most in (
        ("--mfu", mfu, 1.0),
        ("--latency-within", within_us, 1e6),
        ("--latency-across", across_us, 1e6),
    ):
        if value is not None and not 0 < value <= most:
            raise DiagError(f"{name} {value:g}: give a number above 0 and up to {most:g}")
    if cluster.tflop_s is None:
        return None
    memory = cluster.memory_gb_s * 1e9 if cluster.memory_gb_s is not None else None
    return Speed(
        cluster.tflop_s * 1e12,
        MFU if mfu is None else mfu,
        memory,
        WITHIN_US if within_us is None else within_us,
        ACROSS_US if across_us is None else across_us,
    )


class Link(Struct, frozen=True):
    """The ring of one group: how many ranks, on how many hosts, and the bytes a second of its slowest link."""

    ranks: int
    hosts: int
    bandwidth: float

    def ns(self, speed: Speed, size: int, passes: int = 1) -> int:
        """An all-gather or reduce-scatter whose full tensor has ``size`` bytes; an all-reduce is two ``passes``."""
        if self.ranks < 2 or not size:
            return 0
        hops, across = passes * (self.ranks - 1), passes * (self.hosts - 1)
        latency_us = _BASE_US + (hops - across) * speed.within_us + across * speed.across_us
        sent = passes * size * (self.ranks - 1) / self.ranks
        return round(latency_us * 1e3 + sent / self.bandwidth * 1e9)

    def passed_ns(self, speed: Speed, size: int) -> int:
        """From one rank to a neighbour."""
        hop = speed.across_us if self.hosts > 1 else speed.within_us
        return round((_BASE_US + hop) * 1e3 + size / self.bandwidth * 1e9)


def link(cluster: Cluster, ranks: int, apart: int = 1) -> Link:
    """Of a group whose neighbours lie ``apart`` in the numbering of ranks."""
    span = ranks * apart
    hosts = min(ranks, -(-span // cluster.per_host)) if span > cluster.per_host else 1
    return Link(ranks, hosts, cluster.bandwidth(span))
