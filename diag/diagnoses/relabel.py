"""Costs by evidence that an account lacks: CPU scheduling, the pipeline, whether ranks communicate at all, and whether
they share a GPU.

Each correction gives some time another cost, or takes its cost away. The order is that of ``BY_SCHEDULING``, then of
``BY_PARALLELISM``: what an earlier one has labelled, a later one leaves, unless it names that cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.account.pipeline import pipeline_of
from diag.account.scheduling import Scheduling
from diag.diagnoses.policy import COSTS
from diag.model.accounts import Attribution
from diag.model.axes import PIPELINE, TENSOR
from diag.model.steps import Detail, Kind
from diag.rundir.sharing import Sharing

from .cost_rows import CostTable, Side, Source
from .costs import Cost
from .culprits import Series
from .shares import Noise, Shares


class Known(Struct, frozen=True):
    """``shares``: the account before; ``alone``: whether the ranks train without each other; ``sharing``: the GPUs."""

    shares: Shares
    scheduling: Scheduling
    attribution: Attribution
    alone: bool
    sharing: Sharing

    @property
    def parallel(self) -> bool:
        """Whether there is more than data parallelism: then some waiting for other ranks is recorded nowhere and looks
        like being blocked, so that being blocked proves nothing."""
        axes = self.attribution.axes
        many = any(size > 1 for axis, size in axes.mesh.items() if axis in (PIPELINE, TENSOR))
        return many or axes.several or bool(axes.stages())


def relabelled(
    shares: Shares, scheduling: Scheduling, attribution: Attribution, alone: bool, sharing: Sharing
) -> Shares:
    known = Known(shares, scheduling, attribution, alone, sharing)
    table = CostTable.of(shares.rows, len(shares.numbers))
    scheduled = bool(scheduling.ranks) and scheduling.numbers == shares.numbers
    for correction in (*(BY_SCHEDULING if scheduled else ()), *BY_PARALLELISM):
        correction(table, known)
    noise = _noise(shares, scheduling) if scheduled else shares.noise
    return replace(shares, rows=tuple(table.rows()), noise=noise)


def _late_for_scheduling(table: CostTable, known: Known) -> None:
    """Late ranks that were queued for a core or blocked, and loaders that were."""
    scheduling = known.scheduling
    late_as = Cost.HOST_STRAGGLER if known.shares.on_device else Cost.STRAGGLER
    for cost, of_queue, of_block in (
        (late_as, "queued_ns", "blocked_ns"),
        *(() if known.shares.on_device else ((Cost.DATA, "loading_ns", "paused_ns"),)),
    ):
        whole, paid = table.total(Side.WAITING, cost), table.total(Side.PATH, cost)
        # Ranks that are late together cost the step once; a wait for data also costs what all ranks have of it.
        part = np.minimum(1, np.divide(paid, whole, out=np.zeros_like(whole), where=whole > 0))
        for rank in table.ranks(Side.WAITING, cost):
            if rank not in scheduling.ranks or len(scheduling.ranks) < 2:
                continue
            by_queue_alone = known.parallel or rank in known.sharing.ranks
            names = (of_queue,) if by_queue_alone else (of_queue, of_block)
            explained = _explained(table.total(Side.WAITING, cost, rank), scheduling, rank, names)
            for into, ns in zip((Cost.CONTENTION, Cost.STALL), explained, strict=False):
                table.relabel(Side.WAITING, cost, into, ns, rank)
                table.relabel(Side.PATH, cost, into, part * ns)


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


_LATE = (Cost.STRAGGLER, Cost.HOST_STRAGGLER)
_OUTSIDE = "outside_backward_ns"


def _blocked_on_shared_gpus(table: CostTable, known: Known) -> None:
    """Late ranks whose hosts were blocked while their GPU ran work of another rank. A host that waits for its device
    does so in the backward, in autograd's thread, or on a core."""
    scheduling = known.scheduling
    for rank in sorted(known.sharing.ranks & scheduling.ranks.keys()):
        if not scheduling.apart((rank,), _OUTSIDE):
            continue
        for cost in _LATE:
            whole, paid = table.total(Side.WAITING, cost), table.total(Side.PATH, cost)
            part = np.minimum(1, np.divide(paid, whole, out=np.zeros_like(whole), where=whole > 0))
            left = scheduling.excess(_OUTSIDE, rank) - table.total(Side.WAITING, Cost.STALL, rank)
            ns = np.minimum(table.total(Side.WAITING, cost, rank), np.maximum(0.0, left))
            table.relabel(Side.WAITING, cost, Cost.STALL, ns, rank)
            table.relabel(Side.PATH, cost, Cost.STALL, part * ns)


def _stopped_in_collectives(table: CostTable, known: Known) -> None:
    """Ranks that were stopped inside of collectives, beyond the other ranks: that looks like a slow transfer on all
    ranks."""
    if known.shares.on_device or len(known.scheduling.ranks) < 2:
        return
    for rank in known.scheduling.ranks:
        stopped = table.relabel(Side.PATH, Cost.COMM, Cost.STALL, known.scheduling.excess("frozen_ns", rank))
        if stopped.any():
            table.add(Side.WAITING, Cost.STALL, stopped, Kind.COMM, Detail.NONE, rank)


# (cost, field, other cost): what all ranks have in common of the field is the cost; it is a part of the other cost, or
# of the time that has none.
_COMMON = (
    (Cost.CONTENTION, "queued_ns", None),
    (Cost.CONTENTION, "loading_ns", Cost.DATA),
    (Cost.CONTENTION, "communicating_ns", Cost.COMM),
    (Cost.STALL, "paused_ns", Cost.DATA),
    (Cost.STALL, "frozen_ns", Cost.COMM),
    (Cost.STALL, "blocked_ns", None),
)


def _common_to_all(table: CostTable, known: Known) -> None:
    """Contention and stalls that all ranks have."""
    scheduling = known.scheduling
    starved = any(rank.starved for rank in scheduling.ranks.values())
    for into, name, cost in _COMMON if not known.shares.on_device else ():
        common = scheduling.common(name, known.shares.ranks)
        if common is None or (into == Cost.STALL and known.parallel):
            continue
        if into == Cost.CONTENTION and cost != Cost.DATA and starved:
            continue  # the step takes as long as its loader
        table.relabel(Side.PATH, cost, into, common)


def _between_phases(table: CostTable, known: Known) -> None:
    """Code between the phases that all ranks have, where that is much."""
    common = known.scheduling.common("between_ns", known.shares.ranks)
    least = COSTS.code_between_phases_share * known.shares.dur_ns.sum()
    if known.shares.on_device or common is None or common.sum() < least:
        return
    table.relabel(Side.PATH, None, Cost.BETWEEN, common)


def _noise(shares: Shares, scheduling: Scheduling) -> Noise:
    """Ranks that all wait for cores may differ by as much as they wait without a culprit."""
    common = scheduling.common("queued_ns", shares.ranks)
    if common is None or shares.on_device or common.sum() < COSTS.queueing_makes_unequal_share * shares.dur_ns.sum():
        return shares.noise
    quiet_ns = shares.noise.late_ns
    return replace(shares.noise, late_ns=max(quiet_ns, int(common.mean())), quiet_ns=quiet_ns)


def _taking_turns(table: CostTable, known: Known) -> None:
    """On a shared GPU a rank also waits for its turn: in its collectives, which last until all ranks had theirs, and
    between its kernels. How long is not recorded. Waiting for a rank that has its GPU for itself stays."""
    if not known.sharing.ranks:
        return
    for cost in _LATE:
        whole, paid = table.total(Side.WAITING, cost), table.total(Side.PATH, cost)
        theirs = np.zeros_like(whole)
        for rank in set(table.ranks(Side.WAITING, cost)) & known.sharing.ranks:
            ns = table.total(Side.WAITING, cost, rank)
            theirs += table.relabel(Side.WAITING, cost, Cost.SHARING, ns, rank)
        part = np.minimum(1, np.divide(theirs, whole, out=np.zeros_like(whole), where=whole > 0))
        table.relabel(Side.PATH, cost, Cost.SHARING, part * paid)
    for cost in (Cost.COMM, Cost.QUEUED):
        table.relabel(Side.PATH, cost, Cost.SHARING, table.total(Side.PATH, cost))


def _without_others(table: CostTable, known: Known) -> None:
    """Ranks that train alone wait for no other. What delays a rank itself stays, with the rank."""
    for cost in Cost if known.alone else ():
        if cost.value.between_ranks:
            table.relabel(Side.PATH, cost, None, table.total(Side.PATH, cost))
            for side in (Side.PATH, Side.WAITING):
                table.drop(side, cost)


def _with_pipeline(table: CostTable, known: Known) -> None:
    """The bubble and the imbalance of the pipeline's stages, if the run has one."""
    comparable = known.shares.source == Source.TIMELINES and not known.sharing.ranks
    account = pipeline_of(known.attribution, known.shares.numbers) if comparable else None
    if account is not None:
        unequal = np.minimum(np.full_like(account.dur_ns, account.imbalance_ns), account.dur_ns)
        table.add(Side.STAGES, Cost.BUBBLE, account.bubble_ns, Kind.IDLE, Detail.P2P)
        table.add(Side.STAGES, Cost.IMBALANCE, unequal, Kind.COMPUTE, Detail.NONE)


Correction = Callable[[CostTable, Known], None]

BY_SCHEDULING: tuple[Correction, ...] = (
    _late_for_scheduling,
    _blocked_on_shared_gpus,
    _stopped_in_collectives,
    _common_to_all,
    _between_phases,
)
BY_PARALLELISM: tuple[Correction, ...] = (_without_others, _with_pipeline, _taking_turns)
