"""How long pipeline stages wait for each other, and how unequal their work is.

The stage with the most work waits only because of the schedule: it is idle until the first micro-batch reaches it,
and after its last one. The other stages wait longer because they have less to do. So the least waiting of any stage
is the bubble of the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.model.accounts import Attribution
from diag.model.steps import HOST_DETAILS, CollectiveCall, Detail, Kind, RankStep

from . import intervals as iv
from .attribute import waiting
from .intervals import intervals_of
from .match import by_key

# On a CPU, time outside of operators is the rank's own work, too; on a device, so is idle time that its host causes.
_OWN_IDLE = (
    Detail.FORWARD,
    Detail.BACKWARD,
    Detail.OPTIMIZER,
    *HOST_DETAILS,
    Detail.OFFLOAD,
)

Times = npt.NDArray[np.float64]


class Pipeline(Struct, frozen=True, eq=False):
    """``stages``: the ranks of each stage, in order. Arrays have one value for each requested step.

    ``waited_ns``: how long a stage waited for the others, the mean over its ranks; ``work_ns``: the compute time of its
    fastest rank, so that a slow rank does not make its stage slow if the stage has another.
    """

    stages: tuple[tuple[int, ...], ...]
    dur_ns: Times
    waited_ns: tuple[Times, ...]
    work_ns: tuple[Times, ...]

    @property
    def waited_share(self) -> float:
        """Waiting as a fraction of the time of all ranks."""
        ranks = sum(len(stage) for stage in self.stages)
        waited = sum(
            len(stage) * float(stage_waits.sum())
            for stage, stage_waits in zip(self.stages, self.waited_ns, strict=True)
        )
        return waited / (ranks * float(self.dur_ns.sum())) if self.dur_ns.sum() else 0.0

    @property
    def bubble_ns(self) -> Times:
        """The waiting of the stage that waited least."""
        return min(self.waited_ns, key=lambda stage_waits: float(stage_waits.sum()))

    @property
    def slowest(self) -> int:
        return int(np.argmax([np.median(stage_work) for stage_work in self.work_ns]))

    @property
    def imbalance_ns(self) -> float:
        """How much more work the slowest stage has in a step than the mean stage."""
        typical = [float(np.median(stage_work)) for stage_work in self.work_ns]
        return max(typical) - float(np.mean(typical))


def pipeline_of(attribution: Attribution, steps: Sequence[int]) -> Pipeline | None:
    """None without a pipeline, or if a stage was not recorded."""
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
    if attribution.detailed is not None:  # of a long run, the other steps count as the mean of those in detail
        known = np.isin(steps, list(attribution.detailed))
        for values in (dur, waited, work):
            values[:, ~known] = values[:, known].mean(axis=1, keepdims=True) if known.any() else 0.0
    members = [[row[rank] for rank in by_stage[stage]] for stage in sorted(by_stage)]
    return Pipeline(
        stages=tuple(tuple(by_stage[stage]) for stage in sorted(by_stage)),
        dur_ns=dur[[i for stage_rows in members for i in stage_rows]].mean(axis=0),
        waited_ns=tuple(waited[stage_rows].mean(axis=0) for stage_rows in members),
        work_ns=tuple(work[stage_rows].min(axis=0) for stage_rows in members),
    )


def _waits(attribution: Attribution, stage_of: dict[int, int]) -> dict[int, iv.Intervals] | None:
    """When each rank waited for ranks of other stages; None without common clocks."""
    if not attribution.aligned:
        return None
    calls: dict[int, list[CollectiveCall]] = defaultdict(list)
    for step in attribution.rank_steps:
        calls[step.rank] += step.collectives
    matched = by_key(calls)
    stages = {stage: code for code, stage in enumerate(dict.fromkeys(stage_of.values()))}
    stage = np.array([stages.get(stage_of.get(rank, -1), -1) for rank in matched.rank.tolist()], dtype=np.int64)
    arrival = np.repeat(matched.most(matched.start_ns), matched.sizes)
    members = np.arange(len(matched.rank))
    last = np.repeat(matched.least(np.where(matched.start_ns == arrival, members, len(members))), matched.sizes)
    # Ranks in the last rank's stage waited for a rank of their own stage, the others for another stage.
    across = np.repeat(matched.pairs, matched.sizes) | (stage != stage[last])
    return waiting(matched, across)


def _waited(step: RankStep, waits: dict[int, iv.Intervals] | None) -> int:
    if waits is None:
        return step.segments.total(Kind.COMM, Detail.P2P)
    rank_waits = waits.get(step.rank, iv.EMPTY)
    return iv.total(iv.intersect(intervals_of(step.segments, Kind.COMM), rank_waits))


def _work(step: RankStep) -> int:
    return step.segments.total(Kind.COMPUTE) + sum(step.segments.total(Kind.IDLE, detail) for detail in _OWN_IDLE)
