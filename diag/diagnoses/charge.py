"""Contention for CPU cores and stalls as costs of their own: they are taken from what they looked like (computation, a
slow loader, communication), on all ranks alike and of ranks that are late."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from diag.account.scheduling import Scheduling
from diag.model.axes import PIPELINE, TENSOR
from diag.model.steps import Attribution

from .culprits import Series
from .noise import Noise
from .shares import Cost, Shares

_CROWDED = 0.1  # of the step: from here on queueing of all ranks is also what makes them unequal
_MODEL_PARALLEL = (PIPELINE, TENSOR)
_NOT_ON_PATH = frozenset({Cost.BUBBLE, Cost.IMBALANCE})


def charge(shares: Shares, scheduling: Scheduling, attribution: Attribution) -> Shares:
    """The account with contention and stalls as costs of their own, and without them in the others."""
    if not scheduling.ranks or scheduling.numbers != shares.numbers:
        return shares
    costs = {cost: np.array(series) for cost, series in shares.cost_ns.items()}
    blames = {cost: dict(by_rank) for cost, by_rank in shares.blame_ns.items()}
    zeros = np.zeros_like(shares.dur_ns)
    contention, stall = zeros.copy(), zeros.copy()
    # By more than data, some waiting for other ranks is recorded nowhere and looks like being blocked.
    parallel = any(size > 1 for axis, size in attribution.axes.mesh.items() if axis in _MODEL_PARALLEL)
    parallel = parallel or attribution.axes.several or bool(attribution.axes.stages())
    late_as = Cost.HOST_STRAGGLER if shares.on_device else Cost.STRAGGLER
    for cost, of_queue, of_block in (
        (late_as, "queued_ns", "blocked_ns"),
        *(() if shares.on_device else ((Cost.DATA, "loading_ns", "paused_ns"),)),
    ):
        late = blames.get(cost, {})
        whole, paid = sum((np.array(own) for own in late.values()), start=zeros.copy()), costs.get(cost, zeros)
        for rank, series in late.items():
            if rank not in scheduling.ranks or len(scheduling.ranks) < 2:
                continue
            queued = np.minimum(series, scheduling.excess(of_queue, rank))
            blocked = zeros if parallel else np.minimum(series - queued, scheduling.excess(of_block, rank))
            for into, moved in ((Cost.CONTENTION, queued), (Cost.STALL, blocked)):
                if moved.any():
                    before = blames.setdefault(into, {}).get(rank, zeros)
                    blames[into][rank] = before + moved
            late[rank] = series - queued - blocked
            # Ranks that are late together cost it once; a wait for data costs also what all ranks have of it.
            part = np.minimum(1, np.divide(paid, whole, out=zeros.copy(), where=whole > 0))
            contention += part * queued
            stall += part * blocked
            costs[cost] = costs.get(cost, zeros) - part * (queued + blocked)
    if not shares.on_device:
        stall += _frozen(shares, scheduling, costs, blames)
        common = _common(shares, scheduling, costs, parallel)
        contention, stall = contention + common[Cost.CONTENTION], stall + common[Cost.STALL]
    taken = sum((series for cost, series in costs.items() if cost not in _NOT_ON_PATH), start=zeros.copy())
    room = np.maximum(0.0, shares.dur_ns - taken)
    contention = np.minimum(contention, room)
    stall = np.minimum(stall, room - contention)
    costs |= {cost: series for cost, series in ((Cost.CONTENTION, contention), (Cost.STALL, stall)) if series.any()}
    return replace(shares, cost_ns=costs, blame_ns=blames, noise=_noise(shares, scheduling))


# What all ranks have in common of a field becomes a cost; where the field is a part of another cost, it is taken from
# that.
_COMMON = (
    (Cost.CONTENTION, "queued_ns", None),
    (Cost.CONTENTION, "loading_ns", Cost.DATA),
    (Cost.CONTENTION, "communicating_ns", Cost.COMM),
    (Cost.STALL, "paused_ns", Cost.DATA),
    (Cost.STALL, "frozen_ns", Cost.COMM),
    (Cost.STALL, "blocked_ns", None),
)


def _frozen(
    shares: Shares, scheduling: Scheduling, costs: dict[Cost, Series], blames: dict[Cost, dict[int, Series]]
) -> Series:
    """Ranks that were stopped inside of collectives, beyond what the others were: it looks like a slow transfer on all
    ranks, and is taken from communication."""
    found = np.zeros_like(shares.dur_ns)
    for rank in scheduling.ranks if len(scheduling.ranks) > 1 else ():
        left = costs.get(Cost.COMM, np.zeros_like(found))
        frozen = np.minimum(left, scheduling.excess("frozen_ns", rank))
        if frozen.any():
            by_rank = blames.setdefault(Cost.STALL, {})
            by_rank[rank] = by_rank.get(rank, np.zeros_like(found)) + frozen
            costs[Cost.COMM] = left - frozen
            found = found + frozen
    return found


def _common(shares: Shares, scheduling: Scheduling, costs: dict[Cost, Series], parallel: bool) -> dict[Cost, Series]:
    """Contention and stalls of all ranks alike, taken from ``costs``. ``parallel``: by more than data, where being
    blocked proves nothing."""
    found = {cost: np.zeros_like(shares.dur_ns) for cost in (Cost.CONTENTION, Cost.STALL)}
    starved = any(own.starved for own in scheduling.ranks.values())
    for into, name, cost in _COMMON:
        common = scheduling.common(name, shares.ranks)
        if common is None or (into == Cost.STALL and parallel):
            continue
        if into == Cost.CONTENTION and cost != Cost.DATA and starved:
            continue  # a step takes as long as its loader
        if cost is not None:
            cost_ns = costs.get(cost, np.zeros_like(common))
            common = np.minimum(common, cost_ns)
            costs[cost] = cost_ns - common
        found[into] = found[into] + common
    return found


def _noise(shares: Shares, scheduling: Scheduling) -> Noise:
    """On a host whose ranks all wait for cores, they are unequal by as much without anybody's fault."""
    common = scheduling.common("queued_ns", shares.ranks)
    if common is None or shares.on_device or common.sum() < _CROWDED * shares.dur_ns.sum():
        return shares.noise
    return replace(shares.noise, late_ns=max(shares.noise.late_ns, int(common.mean())))
