"""The run in a few arrays, whichever account they are of: what the steps cost, and how long ranks waited for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.account.records import loader_settings
from diag.model.steps import Bottleneck, Detail, Kind
from diag.rundir.tables import Tables

from .cost_rows import NOBODY, CostRow, Side, Source
from .costs import Cost, class_of
from .culprits import Culprits, Series, find_culprits, table_of, typical

_K = TypeVar("_K", bound=Hashable)
_SIDE_AND_COST = attrgetter("side", "cost")

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


NO_NOISE = Noise(0, 0)


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


# Lateness of a rank, by reason. A rank may also be blocked or queued in its loader: see ``diag.diagnoses.relabel``.
_LATE = tuple(cost for cost in Cost if cost.value.lateness)


def _total(series: Iterable[Series]) -> float:
    """Of all of them, which may be those of thousands of ranks."""
    listed = list(series)
    return float(table_of(listed).sum(axis=1).sum()) if listed else 0.0


class Shares(Struct, frozen=True, dict=True):
    """The rows of one account, and sums of them as arrays over the steps that count, nanoseconds. ``dur_ns``: the time
    that is judged. ``source``: the account; ``sees``: the costs that it would show, None for all."""

    numbers: tuple[int, ...]
    dur_ns: Series
    rows: tuple[CostRow, ...]
    ranks: tuple[int, ...]
    on_device: bool
    noise: Noise
    source: Source = Source.TIMELINES
    sees: frozenset[Cost] | None = None

    @cached_property
    def cost_ns(self) -> Mapping[Cost, Series]:
        """What each cost takes of the path, or of the stages of a pipeline."""
        return self._sums((row.cost, row) for row in self.rows if row.side != Side.WAITING and row.cost is not None)

    @cached_property
    def blame_ns(self) -> Mapping[Cost, Mapping[int, Series]]:
        """By cost and rank: how long the others waited for the rank because it spent more on this than they did."""
        by_cost: dict[Cost, list[CostRow]] = {}
        for cost, rows in groupby(self.rows, key=_SIDE_AND_COST):
            if cost[0] == Side.WAITING and cost[1] is not None:
                by_cost.setdefault(cost[1], []).extend(rows)
        return {cost: self._sums((row.rank, row) for row in rows) for cost, rows in by_cost.items()}

    def blame_detail_ns(self, ranks: Collection[int]) -> Mapping[tuple[int, Kind, Detail], Series]:
        """The same for some ranks, by rank and what it spent more on."""
        waiting = (row for row in self.rows if row.rank in ranks and row.side == Side.WAITING)
        return self._sums(((row.rank, row.kind, row.detail), row) for row in waiting)

    @cached_property
    def tail_ns(self) -> Mapping[int, Series]:
        """By rank: communication on the path that only this rank had, beyond noise."""
        of_path = (row for row in self.rows if row.side == Side.PATH and row.cost == Cost.COMM)
        return self._sums((row.rank, row) for row in of_path if row.rank != NOBODY)

    @cached_property
    def idle_ns(self) -> Series:
        """Idle time on the path, without offload; of phases, only that of devices is known."""
        of_path = (row for row in self.rows if row.side == Side.PATH and row.cost != Cost.SHARING)
        idle = (row for row in of_path if row.kind == Kind.IDLE)
        not_idle = (Detail.OFFLOAD, Detail.UNKNOWN)
        sums = self._sums((None, row) for row in idle if row.detail not in not_idle)
        return sums.get(None, np.zeros_like(self.dur_ns))

    def _sums(self, rows: Iterable[tuple[_K, CostRow]]) -> dict[_K, Series]:
        sums: dict[_K, Series] = {}
        for key, row in rows:
            sums[key] = sums[key] + row.ns if key in sums else row.ns
        return sums

    def share(self, cost: Cost) -> float:
        total = float(self.dur_ns.sum())
        return float(self.cost(cost).sum()) / total if total else 0.0

    @property
    def unexplained(self) -> float:
        """The fraction of the waiting for slower ranks without a recorded cause."""
        late = (self.blame_ns.get(cost, {}) for cost in (Cost.STRAGGLER, Cost.HOST_STRAGGLER))
        total = sum(_total(by_rank.values()) for by_rank in late)
        waiting = (row for row in self.rows if row.detail == Detail.UNKNOWN and row.side == Side.WAITING)
        unknown = _total(self._sums(((row.rank, row.kind), row) for row in waiting).values())
        return unknown / total if total else 0.0

    def culprits(self, cost: Cost) -> Culprits:
        """The ranks that are late because of this cost, if they are always the same."""
        if cost not in self._culprits:
            late = self.blame_ns.get(cost, {})
            self._culprits[cost] = find_culprits(late, self.dur_ns, len(self.ranks), self.noise.of(cost))
        return self._culprits[cost]

    @cached_property
    def _culprits(self) -> dict[Cost, Culprits]:
        """Those that were asked for: of thousands of ranks, finding them takes most of a second."""
        return {}

    def charged(self, cost: Cost, ranks: Collection[int]) -> Series:
        """The part of a cost that is charged to these ranks, per step: how long the others waited for them because of
        it, and over all steps no more than all late ranks cost together (a rank that saves at the end of a step is
        waited for in the next one). The whole cost where no rank in particular has it, or where it causes no waiting (a
        rank's slow link)."""
        by_rank = self.blame_ns.get(cost, {})
        waits = [by_rank[rank] for rank in ranks if rank in by_rank]
        if not waits:
            return self.cost(cost)
        waited = sum(waits, np.zeros_like(self.dur_ns))
        charged: Series = waited * min(1.0, self._most(cost) / max(1.0, float(waited.sum())))
        return charged

    def at_fault(self, cost: Cost) -> tuple[int, ...]:
        """The culprits of a cost that all ranks may have some of; () unless at least half of it is charged to them."""
        ranks = self.culprits(cost).ranks
        return ranks if 2 * self.charged(cost, ranks).sum() >= self.cost(cost).sum() else ()

    def beyond_typical(self, cost: Cost, ranks: Collection[int] = ()) -> float:
        """How long the others waited for these ranks because of a cost, beyond what they wait for a typical rank, in
        nanoseconds a step: about what the step would be shorter by if these ranks were like the others. Without ranks:
        for the one that they waited for most."""
        by_rank = self.blame_ns.get(cost, {})
        if not by_rank:
            return 0.0
        means: dict[int, float] = dict(zip(by_rank, table_of(by_rank.values()).mean(axis=1).tolist(), strict=True))
        usual = typical(np.array(list(means.values())), len(self.ranks))
        return sum(means.get(rank, 0.0) - usual for rank in ranks or (max(means, key=means.__getitem__),))

    def charged_means(self, cost: Cost) -> dict[int, float]:
        """By rank, how long the others wait for it because of this cost, nanoseconds a step."""
        by_rank = self.blame_ns.get(cost, {})
        if not by_rank:
            return {}
        waited = table_of(by_rank.values())
        charged = waited * np.minimum(1.0, self._most(cost) / np.maximum(1.0, waited.sum(axis=1)))[:, None]
        return dict(sorted(zip(by_rank, charged.mean(axis=1).tolist(), strict=True)))

    def _most(self, cost: Cost) -> float:
        """What all ranks that are late because of a cost are charged together: ranks that are late together share the
        cost of it; each is charged as long as the others waited for it."""
        return sum(float(self.cost(each).sum()) for each in (_LATE if cost in _LATE else (cost,)))

    def waiting(self, cost: Cost, rank: int) -> float:
        """How long the others waited for the rank because of this cost, nanoseconds in all steps."""
        series = self.blame_ns.get(cost, {}).get(rank)
        return float(series.sum()) if series is not None else 0.0

    def late(self, cost: Cost) -> Series:
        """The part of a cost that only the latest rank had, per step."""
        by_rank = self.blame_ns.get(cost, {})
        worst = table_of(by_rank.values()).max(axis=0) if by_rank else np.zeros_like(self.dur_ns)
        late_ns: Series = np.minimum(self.cost(cost), worst)
        return late_ns

    def mostly_late(self, cost: Cost) -> bool:
        """Whether at least half of a cost is due to the latest rank; else it is common to all ranks."""
        return float(self.late(cost).sum()) >= float(self.cost(cost).sum()) / 2

    def of_class(self, name: Bottleneck) -> float:
        return sum(self.share(cost) for cost in Cost if class_of(cost, self.on_device) == name)

    def cost(self, cost: Cost) -> Series:
        return self.cost_ns.get(cost, np.zeros_like(self.dur_ns))


def of_places(shares: Shares, places: npt.NDArray[np.bool_]) -> Shares:
    """Those of some of the steps."""
    return replace(
        shares,
        numbers=tuple(np.array(shares.numbers, dtype=np.int64)[places].tolist()),
        dur_ns=shares.dur_ns[places],
        rows=tuple(replace(row, ns=row.ns[places]) for row in shares.rows),
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
    # No operator runs while a rank is blocked, and mostly none between the phases; no kernel while its host is queued
    # or launches late.
    elsewhere = shares.cost(Cost.STALL) + shares.cost(Cost.BETWEEN) + shares.cost(Cost.HOST)
    if shares.on_device:
        elsewhere = elsewhere + shares.cost(Cost.CONTENTION)
    parts[Kind.IDLE] = np.clip(shares.idle_ns - elsewhere, 0.0, rest)
    parts[Kind.COMPUTE] = rest - parts[Kind.IDLE]
    return {part: parts[part] for part in PART_NAMES}
