"""The run in a few arrays: the composition of each step's critical path, and the waiting attributed to each rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.records import loader_settings
from diag.account.scheduling import Scheduling
from diag.diagnoses.policy import COSTS
from diag.model.axes import PIPELINE, TENSOR
from diag.model.steps import (
    STARTUP_DETAILS,
    Attribution,
    Bottleneck,
    Detail,
    Kind,
    by_causes,
)
from diag.rundir.tables import Tables

from .costs import Cost, class_of, cost_of, costs_of, judged_ns
from .culprits import Culprits, Series, find_culprits

# -- noise -------------------------------------------------------------------------------------------------------------
#
# How much ranks differ although nothing is wrong, because of schedulers and wake-ups, by the kind of machine.

MS = 1_000_000


class Noise(Struct, frozen=True):
    """Nanoseconds below which a difference is noise. ``late``: of a rank against the others, a step; ``tail``: between
    the ranks' ends of one collective. ``reads_itself``: the training's process loads its data without workers, so that
    no queueing is in its wait for them."""

    late_ns: int
    tail_ns: int
    reads_itself: bool = False
    quiet_ns: int = 0  # what ``late_ns`` would be if the ranks did not wait for cores

    def of(self, cost: Cost) -> int:
        return self.quiet_ns if cost == Cost.DATA and self.reads_itself and self.quiet_ns else self.late_ns


class Crowd(Struct, frozen=True):
    """A host with more CPU ranks than cores."""

    host: str
    ranks: int
    cores: int


def noise_of(tables: Tables) -> Noise:
    """Little on a device; a few time slices of the scheduler on a CPU. The ends of a gloo collective on one host agree
    to half a millisecond, to six where ranks share cores [measured]; they follow the order of the ranks, so the latest
    is always the same one. On shared cores a loader's worker waits for a core, too: without a planted fault, a rank of
    four on two cores was late by 10 ms a step, in three steps of five, in two runs of four [measured]."""
    if tables.on_device:
        return Noise(late_ns=MS // 5, tail_ns=MS // 20)
    reads_itself = loader_settings(tables.manifest).workers == 0
    if crowd_of(tables):
        return Noise(late_ns=25 * MS, tail_ns=6 * MS, reads_itself=reads_itself)
    return Noise(late_ns=5 * MS, tail_ns=MS, reads_itself=reads_itself)


def crowd_of(tables: Tables) -> Crowd | None:
    """The most crowded host; None where every rank has a core or computes on a device."""
    ranks: Counter[str] = Counter()
    cores: dict[str, int] = {}
    for rank in tables.ranks.values():
        if rank.identity is not None and rank.identity.cpus and not rank.on_device:
            ranks[rank.identity.host] += 1
            cores[rank.identity.host] = rank.identity.cpus
    host = max(ranks, key=lambda name: ranks[name] / cores[name], default=None)
    if host is None or ranks[host] <= cores[host]:
        return None
    return Crowd(host, ranks[host], cores[host])


# Lateness of a rank, by reason. A rank may also be blocked or queued in its loader: see ``charge``.
_LATE = tuple(cost for cost in Cost if cost.value.lateness)


class Shares(Struct, frozen=True):
    """Arrays over the steps that count, nanoseconds. ``blame[cost][rank]``: how long the others waited for the rank
    because it spent more on this than they did; ``tail[rank]``: communication on the path that only this rank had,
    beyond noise."""

    numbers: tuple[int, ...]
    dur_ns: Series
    cost_ns: Mapping[Cost, Series]
    blame_ns: Mapping[Cost, Mapping[int, Series]]
    tail_ns: Mapping[int, Series]
    blame_detail_ns: Mapping[tuple[int, Kind, Detail], Series]
    ranks: tuple[int, ...]
    on_device: bool
    noise: Noise
    idle_ns: Series | None = None  # on the critical path, in the judged time, without offload; None: not known

    def share(self, cost: Cost) -> float:
        total = float(self.dur_ns.sum())
        return float(self.cost(cost).sum()) / total if total else 0.0

    @property
    def unexplained(self) -> float:
        """The fraction of the waiting for slower ranks without a recorded cause."""
        late = (self.blame_ns.get(cost, {}) for cost in (Cost.STRAGGLER, Cost.HOST_STRAGGLER))
        total = sum(float(series.sum()) for by_rank in late for series in by_rank.values())
        blame_ns = self.blame_detail_ns.items()
        unknown = sum(float(series.sum()) for (_, _, detail), series in blame_ns if detail == Detail.UNKNOWN)
        return unknown / total if total else 0.0

    def culprits(self, cost: Cost) -> Culprits:
        """The ranks that are late because of this cost, if they are always the same."""
        return find_culprits(self.blame_ns.get(cost, {}), self.dur_ns, len(self.ranks), self.noise.of(cost))

    def charged(self, cost: Cost, ranks: Collection[int]) -> Series:
        """The part of a cost that is charged to these ranks, per step: how long the others waited for them because of
        it, and over all steps no more than all late ranks cost together (a rank that saves at the end of a step is
        waited for in the next one). The whole cost where no rank in particular has it, or where it causes no waiting (a
        rank's slow link)."""
        by_rank = self.blame_ns.get(cost, {})
        waits = [by_rank[rank] for rank in ranks if rank in by_rank]
        if not waits:
            return self.cost(cost)
        # Ranks that are late together share the cost of it; each is charged as long as the others waited for it.
        most = sum(float(self.cost(each).sum()) for each in (_LATE if cost in _LATE else (cost,)))
        waited = sum(waits, np.zeros_like(self.dur_ns))
        charged: Series = waited * min(1.0, most / max(1.0, float(waited.sum())))
        return charged

    def at_fault(self, cost: Cost) -> tuple[int, ...]:
        """The culprits of a cost that all ranks may have some of; () unless at least half of it is charged to them."""
        ranks = self.culprits(cost).ranks
        return ranks if 2 * self.charged(cost, ranks).sum() >= self.cost(cost).sum() else ()

    def charged_means(self, cost: Cost) -> dict[int, float]:
        """By rank, how long the others wait for it because of this cost, nanoseconds a step."""
        return {rank: float(self.charged(cost, (rank,)).mean()) for rank in sorted(self.blame_ns.get(cost, {}))}

    def late(self, cost: Cost) -> Series:
        """The part of a cost that only the latest rank had, per step."""
        by_rank = self.blame_ns.get(cost, {})
        worst = np.max(list(by_rank.values()), axis=0) if by_rank else np.zeros_like(self.dur_ns)
        late_ns: Series = np.minimum(self.cost(cost), worst)
        return late_ns

    def mostly_late(self, cost: Cost) -> bool:
        """Whether at least half of a cost is due to the latest rank; else it is common to all ranks."""
        return float(self.late(cost).sum()) >= float(self.cost(cost).sum()) / 2

    def of_class(self, name: Bottleneck) -> float:
        return sum(self.share(cost) for cost in Cost if class_of(cost, self.on_device) == name)

    def cost(self, cost: Cost) -> Series:
        return self.cost_ns.get(cost, np.zeros_like(self.dur_ns))


def shares_of(attribution: Attribution, on_device: bool, noise: Noise) -> Shares:
    """Over the usable steps, or all steps where none is usable."""
    steps = attribution.usable or attribution.steps
    count = len(steps)

    def zeros() -> Series:
        return np.zeros(count, dtype=np.float64)

    cost_ns = {cost: ns.astype(np.float64) for cost, ns in costs_of(steps, on_device).items()}
    blame_ns: dict[Cost, dict[int, Series]] = defaultdict(lambda: defaultdict(zeros))
    detail_ns: dict[tuple[int, Kind, Detail], Series] = defaultdict(zeros)
    tail_ns: dict[int, Series] = defaultdict(zeros)
    idle = by_causes([step.path for step in steps])[:, Kind.IDLE]
    idle_ns = idle.sum(axis=1) - idle[:, (*STARTUP_DETAILS, Detail.OFFLOAD)].sum(axis=1)
    met = {collective.key: collective for collective in attribution.collectives}
    for i, step in enumerate(steps):
        for blame in step.blames:
            cost = cost_of(blame, on_device)
            blame_ns[cost][blame.rank][i] += blame.ns
            detail_ns[blame.rank, blame.kind, blame.detail][i] += blame.ns
        path = step.path
        for at in np.flatnonzero((path.kind == Kind.COMM) & (path.collective >= 0)).tolist():
            rank = int(path.rank[at])
            collective = met.get(path.keys[path.collective[at]])
            known = collective is not None and rank in collective.ranks
            tail = collective.tail_ns[collective.ranks.index(rank)] if collective is not None and known else 0
            if tail > noise.tail_ns:  # then all of it is due to the link: noise is not a part of every tail
                tail_ns[rank][i] += min(tail, int(path.end_ns[at] - path.start_ns[at]))
    return Shares(
        numbers=tuple(step.step for step in steps),
        dur_ns=judged_ns(steps).astype(np.float64),
        cost_ns=cost_ns,
        blame_ns={cost: dict(by_rank) for cost, by_rank in blame_ns.items()},
        tail_ns=dict(tail_ns),
        blame_detail_ns=dict(detail_ns),
        ranks=attribution.ranks,
        on_device=on_device,
        noise=noise,
        idle_ns=idle_ns.astype(np.float64),
    )


# -- the step by its parts ---------------------------------------------------------------------------------------------
#
# The mean counted step as a sum of parts: what every front end shows of "the step" (docs/glossary.md). A rank's own
# step, which includes its waiting for other ranks, is ``diag.model.steps.Parts``.

StepPart = Kind | Cost

# A cost that is all of a kind has its name: communication, copies, data wait, checkpoints.
_COST_OF: Mapping[StepPart, Cost] = {
    next((label.kind for label in cost.value.path if label.kind is not None and not label.details), cost): cost
    for cost in Cost
    if cost.value.part
}
# In the order of every table.
PART_NAMES: Mapping[StepPart, str] = {
    Kind.COMPUTE: "compute",
    **{part: cost.words for part, cost in _COST_OF.items()},
    Kind.IDLE: "idle",
}


def step_parts(shares: Shares) -> dict[StepPart, Series]:
    """Nanoseconds of each counted step by part, in the order of ``PART_NAMES``; they add up to ``dur_ns``. Waiting for
    a late rank is in what makes it late, mostly compute."""
    parts: dict[StepPart, Series] = {part: shares.cost(cost) for part, cost in _COST_OF.items()}
    rest = np.maximum(0.0, shares.dur_ns - sum(parts.values(), np.zeros_like(shares.dur_ns)))
    idle = shares.idle_ns if shares.idle_ns is not None else np.zeros_like(rest)
    # No operator runs while a rank is blocked, and mostly none between the phases; no kernel while its host is queued
    # or launches late.
    elsewhere = shares.cost(Cost.STALL) + shares.cost(Cost.BETWEEN) + shares.cost(Cost.HOST)
    if shares.on_device:
        elsewhere = elsewhere + shares.cost(Cost.CONTENTION)
    parts[Kind.IDLE] = np.clip(idle - elsewhere, 0.0, rest)
    parts[Kind.COMPUTE] = rest - parts[Kind.IDLE]
    return {part: parts[part] for part in PART_NAMES}


# -- charge ------------------------------------------------------------------------------------------------------------
#
# Contention for CPU cores and stalls as costs of their own. They are subtracted from the costs that they looked like
# (computation, a slow loader, communication), both what all ranks have in common and what late ranks have.

_MODEL_PARALLEL = (PIPELINE, TENSOR)


def charge(shares: Shares, scheduling: Scheduling, attribution: Attribution) -> Shares:
    """The account with contention, stalls and code between the phases as costs of their own, subtracted from the
    others."""
    if not scheduling.ranks or scheduling.numbers != shares.numbers:
        return shares
    costs = {cost: np.array(series) for cost, series in shares.cost_ns.items()}
    blames = {cost: dict(by_rank) for cost, by_rank in shares.blame_ns.items()}
    zeros = np.zeros_like(shares.dur_ns)
    contention, stall = zeros.copy(), zeros.copy()
    # Beyond data parallelism, some waiting for other ranks is recorded nowhere and looks like being blocked.
    parallel = any(size > 1 for axis, size in attribution.axes.mesh.items() if axis in _MODEL_PARALLEL)
    parallel = parallel or attribution.axes.several or bool(attribution.axes.stages())
    late_as = Cost.HOST_STRAGGLER if shares.on_device else Cost.STRAGGLER
    for cost, of_queue, of_block in (
        (late_as, "queued_ns", "blocked_ns"),
        *(() if shares.on_device else ((Cost.DATA, "loading_ns", "paused_ns"),)),
    ):
        late = blames.get(cost, {})
        whole, paid = sum((np.array(late_ns) for late_ns in late.values()), start=zeros.copy()), costs.get(cost, zeros)
        for rank, series in late.items():
            if rank not in scheduling.ranks or len(scheduling.ranks) < 2:
                continue
            names = (of_queue,) if parallel else (of_queue, of_block)
            queued, *rest = _explained(series, scheduling, rank, names)
            blocked = rest[0] if rest else zeros
            for into, moved in ((Cost.CONTENTION, queued), (Cost.STALL, blocked)):
                if moved.any():
                    before = blames.setdefault(into, {}).get(rank, zeros)
                    blames[into][rank] = before + moved
            late[rank] = series - queued - blocked
            # Ranks that are late together cost the step once; a wait for data also costs what all ranks have of it.
            part = np.minimum(1, np.divide(paid, whole, out=zeros.copy(), where=whole > 0))
            contention += part * queued
            stall += part * blocked
            costs[cost] = costs.get(cost, zeros) - part * (queued + blocked)
    if not shares.on_device:
        stall += _frozen(shares, scheduling, costs, blames)
        common = _common(shares, scheduling, costs, parallel)
        contention, stall = contention + common[Cost.CONTENTION], stall + common[Cost.STALL]
    taken = sum((series for cost, series in costs.items() if cost.value.on_path), start=zeros.copy())
    room = np.maximum(0.0, shares.dur_ns - taken)
    contention = np.minimum(contention, room)
    stall = np.minimum(stall, room - contention)
    between = np.minimum(_between(shares, scheduling), room - contention - stall)
    charged = ((Cost.CONTENTION, contention), (Cost.STALL, stall), (Cost.BETWEEN, between))
    costs |= {cost: series for cost, series in charged if series.any()}
    return replace(shares, cost_ns=costs, blame_ns=blames, noise=_noise(shares, scheduling))


def _explained(late_ns: Series, scheduling: Scheduling, rank: int, names: Sequence[str]) -> list[Series]:
    """The part of a rank's lateness, per step, that its excess of each field explains: in the same step, else after the
    last collective of an earlier step, which makes the rank late at the first collective of this one."""
    explained, before = [], []
    for name in names:
        excess = scheduling.excess(name, rank)
        same = np.minimum(late_ns, excess)
        late_ns = late_ns - same
        explained.append(same)
        before.append(scheduling.carried(np.minimum(scheduling.excess_after(name, rank), excess - same), rank))
    for at, earlier in enumerate(before):
        part = np.minimum(late_ns, earlier)
        late_ns = late_ns - part
        explained[at] = explained[at] + part
    return explained


# (cost, field, other cost): what all ranks have in common of the field becomes the cost; where the field is a part of
# another cost, it is subtracted from that.
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
    """How long ranks were stopped inside of collectives, beyond the other ranks. That looks like a slow transfer on all
    ranks, so it is subtracted from communication."""
    stalled_ns = np.zeros_like(shares.dur_ns)
    for rank in scheduling.ranks if len(scheduling.ranks) > 1 else ():
        left = costs.get(Cost.COMM, np.zeros_like(stalled_ns))
        frozen = np.minimum(left, scheduling.excess("frozen_ns", rank))
        if frozen.any():
            by_rank = blames.setdefault(Cost.STALL, {})
            by_rank[rank] = by_rank.get(rank, np.zeros_like(stalled_ns)) + frozen
            costs[Cost.COMM] = left - frozen
            stalled_ns = stalled_ns + frozen
    return stalled_ns


def _common(shares: Shares, scheduling: Scheduling, costs: dict[Cost, Series], parallel: bool) -> dict[Cost, Series]:
    """Contention and stalls common to all ranks, subtracted from ``costs``. ``parallel``: there is more than data
    parallelism, so that being blocked proves nothing."""
    by_cost = {cost: np.zeros_like(shares.dur_ns) for cost in (Cost.CONTENTION, Cost.STALL)}
    starved = any(rank.starved for rank in scheduling.ranks.values())
    for into, name, cost in _COMMON:
        common = scheduling.common(name, shares.ranks)
        if common is None or (into == Cost.STALL and parallel):
            continue
        if into == Cost.CONTENTION and cost != Cost.DATA and starved:
            continue  # the step takes as long as its loader
        if cost is not None:
            cost_ns = costs.get(cost, np.zeros_like(common))
            common = np.minimum(common, cost_ns)
            costs[cost] = cost_ns - common
        by_cost[into] = by_cost[into] + common
    return by_cost


def _between(shares: Shares, scheduling: Scheduling) -> Series:
    """What all ranks have in common of the code between the phases; nothing where that is little, or on a device."""
    common = scheduling.common("between_ns", shares.ranks)
    if shares.on_device or common is None or common.sum() < COSTS.code_between_phases_share * shares.dur_ns.sum():
        return np.zeros_like(shares.dur_ns)
    return common


def _noise(shares: Shares, scheduling: Scheduling) -> Noise:
    """Ranks that all wait for cores may differ by as much as they wait without a culprit."""
    common = scheduling.common("queued_ns", shares.ranks)
    if common is None or shares.on_device or common.sum() < COSTS.queueing_makes_unequal_share * shares.dur_ns.sum():
        return shares.noise
    quiet_ns = shares.noise.late_ns
    return replace(shares.noise, late_ns=max(quiet_ns, int(common.mean())), quiet_ns=quiet_ns)
