"""Algorithm and bus bandwidth of a collective, and the best of its group.

Factors from nccl-tests' PERFORMANCE.md: the bus bandwidth is the load of one link in any optimal algorithm, so it
compares across operations and group sizes with the hardware's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diag.tables.policy import BANDWIDTH


def bus_factor(op: str, ranks: int | None, gloo: bool = False) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None for operations without one, or a group of unknown size.

    gloo runs a reduce-scatter as an all-reduce of the full input (measured).
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
    """The size above which a group's bandwidth is within a fifth of its best: eff / (1 - eff) x latency x bandwidth.

    Latency is the median transfer of the smallest size, bandwidth the best observed one. SATURATING_BYTES with fewer
    than three sizes, or sizes within a factor of eight."""
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(transfers_ns, dtype=np.float64)
    distinct = np.unique(size)
    if len(distinct) < BANDWIDTH.least_sizes_for_a_line or distinct[-1] < BANDWIDTH.least_span_of_sizes * distinct[0]:
        return BANDWIDTH.saturating_bytes
    latency = float(np.median(time[size == distinct[0]]))
    return int(BANDWIDTH.saturated_share / (1 - BANDWIDTH.saturated_share) * latency * float((size / time).max()))


def best_bandwidth(sizes: Sequence[int], transfers_ns: Sequence[int], bus_gb_s: Sequence[float]) -> float | None:
    """The 95th percentile of a group's bus bandwidths at sizes that saturate it; None if no size does."""
    if not len(sizes):
        return None
    large = np.asarray(sizes) >= saturating_bytes(sizes, transfers_ns)
    return float(np.percentile(np.asarray(bus_gb_s)[large], 95)) if large.any() else None
