"""Cost rows of the ranks' timelines: the pieces of each step's critical path, and the blames of late ranks."""

from __future__ import annotations

import numpy as np

from diag.model.accounts import Attribution, StepAccounts
from diag.model.matched import NO_COLLECTIVES, MatchedCollectives
from diag.model.steps import STARTUP_DETAILS, Detail, Kind

from .cost_rows import CostTable, Side
from .costs import Cost, cost_of, cost_on_path
from .culprits import Series
from .shares import NO_NOISE, Noise, Shares

# Costs of their own, and what is added as unexplained: none of it is computing longer.
_NO_STRAGGLING = (Detail.GC, Detail.OFFLOAD, Detail.UNKNOWN)
_LATE = (Cost.STRAGGLER, Cost.HOST_STRAGGLER)


def shares_of(attribution: Attribution, on_device: bool, noise: Noise) -> Shares:
    """Over the usable steps, or all steps where none is usable."""
    steps = attribution.counted
    return shares_of_steps(steps, attribution.ranks, on_device, noise, attribution.collectives)


def shares_of_steps(
    steps: StepAccounts,
    ranks: tuple[int, ...],
    on_device: bool,
    noise: Noise = NO_NOISE,
    collectives: MatchedCollectives = NO_COLLECTIVES,
) -> Shares:
    """``dur_ns``: the steps without start-up, and waiting whose cause lies outside of them."""
    table = CostTable(len(steps))
    spent = steps.spent_by_step().astype(np.float64)
    # A step without a path, as in summaries, has no activity that is known.
    spent[:, Kind.COMPUTE, Detail.NONE] += steps.dur_ns - spent.sum(axis=(1, 2))
    spent[:, Kind.IDLE, STARTUP_DETAILS] = 0.0
    unexplained = _unexplained(steps)
    tails = _tails(steps, collectives, noise)
    for (rank, of), tail_ns in tails.items():
        spent[:, Kind.COMM, of] -= tail_ns
        table.add(Side.PATH, Cost.COMM, tail_ns, Kind.COMM, of, rank)
    for kind, detail in np.argwhere(spent.any(axis=0)).tolist():
        cost = cost_on_path(Kind(kind), Detail(detail), on_device)
        table.add(Side.PATH, cost, spent[:, kind, detail], Kind(kind), Detail(detail))
    dur_ns = spent.sum(axis=(1, 2)) + sum(tails.values(), start=unexplained)
    if unexplained.any():
        table.add(Side.PATH, Cost.STRAGGLER, unexplained, Kind.IDLE, Detail.UNKNOWN)
    for (rank, kind, detail), ns in _waiting(steps).items():
        table.add(Side.WAITING, cost_of(kind, detail, on_device), ns, kind, detail, rank)
    if on_device:  # from records alone it is not known whether something was launched
        parts, owner = steps.parts, steps.of_part
        recorded = np.zeros(len(steps), dtype=np.bool_)
        recorded[owner[parts.from_source("records")]] = True
        table.relabel(Side.PATH, Cost.QUEUED, None, table.total(Side.PATH, Cost.QUEUED) * recorded)
    whole = steps.dur_ns.astype(np.float64)
    for cost in Cost:
        if (usual_share := cost.value.usual_share) is not None:
            has = table.total(Side.PATH, cost)
            table.relabel(Side.PATH, cost, None, np.where(has < usual_share() * whole, has, 0.0))
    _late_ranks(table, steps)
    return Shares(tuple(steps.step.tolist()), dur_ns, tuple(table.rows()), ranks, on_device, noise)


def _unexplained(steps: StepAccounts) -> Series:
    """Waiting without a recorded reason: the reason lies outside of the steps, and so of the path."""
    blames, owner = steps.blames, steps.of_blame
    unknown = blames.detail == Detail.UNKNOWN
    return np.bincount(owner[unknown], weights=blames.ns[unknown], minlength=len(steps)).astype(np.float64)


def _waiting(steps: StepAccounts) -> dict[tuple[int, Kind, Detail], Series]:
    """By rank, kind and detail, in the order in which they come up: how long others waited, by step."""
    blames, owner = steps.blames, steps.of_blame
    details = len(Detail)
    code = (blames.rank.astype(np.int64) * len(Kind) + blames.kind) * details + blames.detail
    codes, first, at = np.unique(code, return_index=True, return_inverse=True)
    waiting = np.bincount(at * len(steps) + owner, weights=blames.ns, minlength=len(codes) * len(steps))
    by_code = waiting.reshape(len(codes), len(steps))
    found = {}
    for place in np.argsort(first).tolist():
        rank, label = divmod(int(codes[place]), len(Kind) * details)
        kind, detail = divmod(label, details)
        found[rank, Kind(kind), Detail(detail)] = by_code[place]
    return found


def _late_ranks(table: CostTable, steps: StepAccounts) -> None:
    """Ranks can be late to several overlapping collectives, and late because their hosts are: together they cost at
    most the part of the path that has no other cost, or one that takes what they leave. A host that is slower than the
    others makes its rank late: its launches on the path are the same nanoseconds."""
    late = {cost: np.zeros(len(steps)) for cost in _LATE}
    for row in table.rows():
        if row.side == Side.WAITING and row.cost in late and row.detail not in _NO_STRAGGLING:
            late[row.cost] += row.ns
    once = steps.together
    by_host, both = late[Cost.HOST_STRAGGLER], late[Cost.HOST_STRAGGLER] + late[Cost.STRAGGLER]
    after = [cost for cost in Cost if cost.value.stragglers_first]
    has = {cost: table.total(Side.PATH, cost) for cost in after}
    free = sum(has.values(), start=table.total(Side.PATH, None))
    together = np.minimum(np.rint(both * once), free)
    hosts = np.rint(together * by_host / np.maximum(1, both))
    left, taken = free - together, {}
    for cost in after:
        same = np.rint(by_host * once) if cost == Cost.HOST else np.zeros(len(steps))
        keeps = np.minimum(np.maximum(0, has[cost] - same), left)
        left, taken[cost] = left - keeps, has[cost] - keeps
    for into, ns in ((Cost.HOST_STRAGGLER, hosts), (Cost.STRAGGLER, together - hosts)):
        for cost in after:
            moved = table.relabel(Side.PATH, cost, into, np.minimum(taken[cost], ns))
            taken[cost], ns = taken[cost] - moved, ns - moved
        table.relabel(Side.PATH, None, into, ns)


def _tails(steps: StepAccounts, collectives: MatchedCollectives, noise: Noise) -> dict[tuple[int, Detail], Series]:
    """By rank and detail: communication on the path that only this rank had. Noise is not a part of every tail: a
    longer one is due to the link as a whole."""
    tailed = np.flatnonzero(collectives.by(collectives.tail_ns, np.maximum) > noise.tail_ns)
    some = collectives.take(tailed)
    # Of several with one key, the last.
    last = {key: place for place, key in enumerate(collectives.key_columns.keys())} if len(some) else {}
    met = {each.key: each for each, place in zip(some, tailed.tolist(), strict=True) if last[each.key] == place}
    tails: dict[tuple[int, Detail], Series] = {}
    paths = steps.paths
    keys = paths.keys.keys() if met else []
    known = np.array([key in met for key in keys], dtype=np.bool_)
    places, owner, lasted_ns = paths.key_places, paths.of_step, paths.lasted_ns
    if not known.any():
        return tails
    pieces = np.flatnonzero((paths.kind == Kind.COMM) & (places >= 0))
    for piece in pieces[known[places[pieces]]].tolist():
        rank, collective = int(paths.rank[piece]), met[keys[places[piece]]]
        tail = collective.tail_ns[collective.ranks.index(rank)] if rank in collective.ranks else 0
        if tail > noise.tail_ns:
            key = rank, Detail(paths.detail[piece])
            tails.setdefault(key, np.zeros(len(steps)))
            tails[key][owner[piece]] += min(tail, int(lasted_ns[piece]))
    return tails
