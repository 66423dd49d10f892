"""What a collective's time says about the wire: algorithm and bus bandwidth, and the best that a group has shown.

Factors from nccl-tests' PERFORMANCE.md: the bus bandwidth is what one link must have carried in any optimal algorithm,
so it compares across operations and group sizes with the hardware's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

# Without sizes enough to see where bandwidth saturates: NVLink's latency times bandwidth is about 2 MB, InfiniBand's
# about 20, and torch.distributed's own estimate for it never goes below 100 MB.
SATURATING_BYTES: Final = 32 << 20
_SATURATED = 0.8  # of the asymptotic bandwidth
_LEAST_SIZES, _LEAST_SPAN = 3, 8  # below these a line through the sizes says nothing (science.md 4.3)


def bus_factor(op: str, ranks: int | None, gloo: bool = False) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for operations without one, or a group of unknown size.

    gloo runs a reduce-scatter as an all-reduce of the full input (measured, science.md finding 6).
    """
    if ranks is None or ranks < 2:
        return None
    ring = (ranks - 1) / ranks
    if op == "all_reduce" or (gloo and op == "reduce_scatter"):
        return 2 * ring
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return ring
    return 1.0 if op in ("broadcast", "reduce", "send", "recv", "send_recv") else None


def saturating_bytes(sizes: Sequence[int], transfers_ns: Sequence[int]) -> int:
    """The size from which on a group's bandwidth is within a fifth of its best: eff / (1 - eff) x latency x bandwidth.

    Latency is the median transfer of the smallest size, bandwidth the best seen; with fewer than three sizes, or sizes
    within a factor of eight, the constant above.
    """
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(transfers_ns, dtype=np.float64)
    distinct = np.unique(size)
    if len(distinct) < _LEAST_SIZES or distinct[-1] < _LEAST_SPAN * distinct[0]:
        return SATURATING_BYTES
    latency = float(np.median(time[size == distinct[0]]))
    return int(_SATURATED / (1 - _SATURATED) * latency * float((size / time).max()))


def best_bandwidth(sizes: Sequence[int], transfers_ns: Sequence[int], bus_gb_s: Sequence[float]) -> float | None:
    """The 95th percentile of a group's bus bandwidths at sizes that saturate it; None where no size does."""
    if not len(sizes):
        return None
    large = np.asarray(sizes) >= saturating_bytes(sizes, transfers_ns)
    return float(np.percentile(np.asarray(bus_gb_s)[large], 95)) if large.any() else None
