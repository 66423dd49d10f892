"""How long pipeline stages wait for each other, and how unequal their work is.

The stage with the most work waits only because of the schedule: it has nothing to do until the first micro-batch
reaches it, and after its last one. The other stages wait longer because they have less to do. So the least waiting of
any stage is the bubble of the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.model.steps import HOST_DETAILS, Attribution, CollectiveCall, Detail, Kind, RankStep

from . import intervals as iv
from .attribute import waiting
from .intervals import intervals_of
from .match import Key, by_key, is_pair

# On a CPU what is not inside operators is the rank's own work, too; on a device what its host holds up.
_OWN_IDLE = (
    Detail.FORWARD,
    Detail.BACKWARD,
    Detail.OPTIMIZER,
    *HOST_DETAILS,
    Detail.OFFLOAD,
)

Times = npt.NDArray[np.float64]


class Pipeline(Struct, frozen=True, eq=False):
    """``stages``: the ranks of each stage, in order. Arrays have one value for each step that was asked for.

    ``waited_ns``: what a stage waited for the others, the mean over its ranks; ``work_ns``: what the fastest of its
    ranks computed, so that a slow rank makes no slow stage where the stage has another.
    """

    stages: tuple[tuple[int, ...], ...]
    dur_ns: Times
    waited_ns: tuple[Times, ...]
    work_ns: tuple[Times, ...]

    @property
    def waited_share(self) -> float:
        """Fraction of the time of all ranks."""
        ranks = sum(len(stage) for stage in self.stages)
        waited = sum(len(stage) * float(own.sum()) for stage, own in zip(self.stages, self.waited_ns, strict=True))
        return waited / (ranks * float(self.dur_ns.sum())) if self.dur_ns.sum() else 0.0

    @property
    def bubble_ns(self) -> Times:
        """The waiting of the stage that waited least."""
        return min(self.waited_ns, key=lambda own: float(own.sum()))

    @property
    def slowest(self) -> int:
        return int(np.argmax([np.median(own) for own in self.work_ns]))

    @property
    def imbalance_ns(self) -> float:
        """How much more work the slowest stage has in a step than the mean stage."""
        typical = [float(np.median(own)) for own in self.work_ns]
        return max(typical) - float(np.mean(typical))


def pipeline_of(attribution: Attribution, steps: Sequence[int]) -> Pipeline | None:
    """None without a pipeline, or where a stage was not recorded."""
    stage_of = attribution.axes.stages()
    by_stage: dict[int, list[int]] = defaultdict(list)
    for rank in attribution.ranks:
        if rank in stage_of:
            by_stage[stage_of[rank]].append(rank)
    if len(by_stage) < 2 or len(by_stage) < len(set(stage_of.values())):
        return None
    waits = _waits(attribution, stage_of)
    place = {number: i for i, number in enumerate(steps)}
    dur, waited, work = (np.zeros((len(stage_of), len(steps))) for _ in range(3))
    row = {rank: i for i, rank in enumerate(sorted(stage_of))}
    for step in attribution.rank_steps:
        if step.step in place and step.rank in row:
            at = row[step.rank], place[step.step]
            dur[at], waited[at], work[at] = step.dur_ns, _waited(step, waits), _work(step)
    members = [[row[rank] for rank in by_stage[stage]] for stage in sorted(by_stage)]
    return Pipeline(
        stages=tuple(tuple(by_stage[stage]) for stage in sorted(by_stage)),
        dur_ns=dur[[i for own in members for i in own]].mean(axis=0),
        waited_ns=tuple(waited[own].mean(axis=0) for own in members),
        work_ns=tuple(work[own].min(axis=0) for own in members),
    )


def _waits(attribution: Attribution, stage_of: dict[int, int]) -> dict[int, iv.Intervals] | None:
    """When each rank waited for ranks of other stages; None without common clocks."""
    if not attribution.aligned:
        return None
    calls: dict[int, list[CollectiveCall]] = defaultdict(list)
    for step in attribution.rank_steps:
        calls[step.rank] += step.collectives
    across: dict[Key, dict[int, CollectiveCall]] = {}
    for key, members in by_key(calls).items():
        last = max(members, key=lambda rank: members[rank].start_ns)
        if is_pair(members.values()):
            across[key] = members
        elif len({stage_of.get(rank) for rank in members}) > 1:
            # Ranks of the same stage as the last one waited for a mate, the others for another stage.
            others = {r: call for r, call in members.items() if r == last or stage_of.get(r) != stage_of.get(last)}
            across[key] = others
    return waiting(across)


def _waited(step: RankStep, waits: dict[int, iv.Intervals] | None) -> int:
    if waits is None:
        return step.segments.total(Kind.COMM, Detail.P2P)
    found = waits.get(step.rank, iv.EMPTY)
    return iv.total(iv.intersect(intervals_of(step.segments, Kind.COMM), found))


def _work(step: RankStep) -> int:
    return step.segments.total(Kind.COMPUTE) + sum(step.segments.total(Kind.IDLE, detail) for detail in _OWN_IDLE)
