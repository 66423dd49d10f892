"""Rows of costs, which every account of a run produces at its own resolution (docs/concepts/tables.md).

A row says what some time of the counted steps counts as. Rows of the path add up to the steps. Evidence that the
account lacks gives some of this time another cost (``diag.diagnoses.relabel``): the time keeps its activity and its
rank, so that sums stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

import numpy as np
from msgspec import Struct

from diag.model.steps import Detail, Kind

from .costs import Cost
from .culprits import Series

NOBODY = -1  # no rank in particular


class Source(StrEnum):
    """The account that the rows are of, by its resolution, the finest first."""

    TIMELINES = "the ranks' timelines"  # pieces of steps: traces, records, or events on devices
    PHASES = "the phase durations"  # of each step, also from summaries
    COLLECTIVES = "the durations of collectives"  # without steps


class Side(StrEnum):
    """What the time is of. The path's rows add up to the judged time of the steps."""

    PATH = "path"
    WAITING = "waiting"  # of the others, for a rank that is late
    STAGES = "stages"  # mean over the stages of a pipeline, on one of which the path always works


class CostRow(Struct, frozen=True, eq=False):
    """``ns``: by counted step. ``cost``: None for time that no change removes, such as computation."""

    side: Side
    rank: int
    kind: Kind
    detail: Detail
    cost: Cost | None
    ns: Series


class CostTable:
    """The rows while they are labelled: one for each side, cost, rank and activity. ``steps``: how many count."""

    def __init__(self, steps: int) -> None:
        self._rows: dict[tuple[Side, Cost | None], dict[int, dict[tuple[Kind, Detail], Series]]] = {}
        self._steps = steps

    def add(self, side: Side, cost: Cost | None, ns: Series, kind: Kind, detail: Detail, rank: int = NOBODY) -> None:
        self.add_each(side, cost, {rank: ns}, kind, detail)

    def add_each(self, side: Side, cost: Cost | None, ns: Mapping[int, Series], kind: Kind, detail: Detail) -> None:
        """As ``add``, by rank: of thousands of ranks, finding the place of each takes most of the time."""
        by_rank, activity = self._rows.setdefault((side, cost), {}) if ns else {}, (kind, detail)
        for rank, of_rank in ns.items():
            activities = by_rank.setdefault(rank, {})
            before = activities.get(activity)
            activities[activity] = of_rank if before is None else before + of_rank

    def total(self, side: Side, cost: Cost | None, rank: int | None = None) -> Series:
        """Of all ranks, or of one; by step."""
        by_rank = self._rows.get((side, cost), {})
        chosen = by_rank.values() if rank is None else (by_rank.get(rank, {}),)
        return sum((ns for activities in chosen for ns in activities.values()), start=np.zeros(self._steps))

    def ranks(self, side: Side, cost: Cost | None) -> tuple[int, ...]:
        return tuple(self._rows.get((side, cost), ()))

    def relabel(
        self,
        side: Side,
        cost: Cost | None,
        into: Cost | None,
        ns: Series,
        rank: int | None = None,
        activity: tuple[Kind, Detail] | None = None,
    ) -> Series:
        """Gives at most this much of the time with one cost another one, by step; returns how much that is. Time of no
        rank in particular goes first. ``activity``: what it is instead, where that is known better now."""
        left: Series = np.maximum(0.0, ns)
        wanted = left
        by_rank = self._rows.get((side, cost), {})
        for of in sorted(by_rank) if rank is None else (rank,):
            for (kind, detail), has in list(by_rank.get(of, {}).items()):
                moved = np.minimum(left, has)
                if moved.any():
                    by_rank[of][kind, detail] = has - moved
                    self.add(side, into, moved, *(activity or (kind, detail)), of)
                    left = left - moved
        return wanted - left

    def drop(self, side: Side, cost: Cost) -> None:
        self._rows.pop((side, cost), None)

    def rows(self) -> Iterator[CostRow]:
        for (side, cost), by_rank in self._rows.items():
            for rank, activities in by_rank.items():
                for (kind, detail), ns in activities.items():
                    yield CostRow(side, rank, kind, detail, cost, ns)

    @classmethod
    def of(cls, rows: tuple[CostRow, ...], steps: int) -> CostTable:
        table = cls(steps)
        for row in rows:
            table.add(row.side, row.cost, row.ns, row.kind, row.detail, row.rank)
        return table
