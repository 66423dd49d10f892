"""The partition of every rank's steps as lanes on the common clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diag.account import intervals as iv
from diag.account.attribute import waiting
from diag.account.gpu_idle import of_device, part_of
from diag.account.intervals import Intervals, Times
from diag.account.match import by_key
from diag.account.timeline import labels_of, of_label
from diag.model.steps import Attribution, Detail, Kind, RankStep, by_cause

from .zoom_lane import Category, Lane, make_lane

_CATEGORY = {
    Kind.COMPUTE: Category.COMPUTE,
    Kind.COMM: Category.COMMUNICATION,
    Kind.COPY: Category.COPY,
    Kind.DATA: Category.DATA,
    Kind.CHECKPOINT: Category.CHECKPOINT,
}
_IDLE = {
    "not_launched_ns": Category.NOT_LAUNCHED,
    "in_launch_ns": Category.NOT_LAUNCHED,
    "host_call_ns": Category.NOT_LAUNCHED,
    "queued_ns": Category.QUEUED,
}
_WORDS = {
    Detail.GC: "garbage collection",
    Detail.SYNC: "synchronising call",
    Detail.ALLOCATOR: "allocator",
    Detail.LAUNCH: "not launched",
    Detail.AFTER_SYNC: "not launched, after a synchronisation",
    Detail.ONCE: "not launched, once",
    Detail.IN_LAUNCH: "in the launch",
    Detail.LATENCY: "launch latency",
    Detail.LOADING: "loading or compiling",
    Detail.OUTSIDE: "outside of the work",
    Detail.DEPENDENCY: "launched, not running",
    Detail.P2P: "pipeline",
    Detail.NONE: "",
    Detail.OTHER: "",
    Detail.UNKNOWN: "",
}
DETAILS = tuple(_WORDS.get(detail, detail.name.lower()) for detail in sorted(Detail))  # names of the partition's events


@dataclass(frozen=True)
class StepSpan:
    """From the first rank's begin of a step to the last one's end, in ns since the run's begin."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class RankLanes:
    """``lanes`` partition the rank's steps, one a category that it has. ``traced``: steps that its traces cover.
    ``moved_ns``: what was added to the times of its account on the common clock."""

    rank: int
    lanes: tuple[Lane, ...]
    traced: tuple[int, ...]
    moved_ns: int
    steps: tuple[RankStep, ...]

    def lane(self, category: Category) -> Lane | None:
        return next((lane for lane in self.lanes if lane.category == category), None)


@dataclass(frozen=True, eq=False)
class AllRanks:
    """Every rank's account as lanes; times in ns since the first step's begin. ``loose``: ranks whose clocks are not
    tied to the first one's; each of them is moved so that it begins a step together with the first rank."""

    end_ns: int
    ranks: Mapping[int, RankLanes]
    steps: tuple[StepSpan, ...]
    loose: tuple[int, ...]

    @property
    def categories(self) -> tuple[Category, ...]:
        found = {lane.category for rank in self.ranks.values() for lane in rank.lanes}
        return tuple(category for category in Category if category in found)

    def shares(self, category: Category, edges: Times) -> npt.NDArray[np.float64]:
        """The part of each pixel that each rank spends on the category: ranks by pixels."""
        found = np.zeros((len(self.ranks), len(edges) - 1))
        for row, rank in enumerate(self.ranks.values()):
            lane = rank.lane(category)
            if lane is not None:
                found[row] = lane.busy_ns(edges) / np.diff(edges)
        return found


def all_ranks(attribution: Attribution) -> AllRanks:
    """The lanes of an account; its times stay those of the common clock but for the zero. Pure."""
    by_rank: dict[int, list[RankStep]] = defaultdict(list)
    for step in attribution.rank_steps:
        by_rank[step.rank].append(step)
    tied = _tied(attribution, list(by_rank))
    calls = {rank: [call for step in by_rank[rank] for call in step.collectives] for rank in tied}
    # Of a rank alone, nobody knows whether it waits.
    waits = waiting(by_key(calls)) if len(tied) > 1 else {}
    moved = _moved(by_rank, tied)
    ranks = {
        rank: RankLanes(
            rank=rank,
            lanes=_lanes(steps, moved[rank], waits.get(rank, iv.EMPTY) if len(tied) > 1 and rank in tied else None),
            traced=tuple(step.step for step in steps if step.source == "trace"),
            moved_ns=moved[rank],
            steps=tuple(steps),
        )
        for rank, steps in by_rank.items()
    }
    steps = _steps(attribution.rank_steps, moved)
    loose = tuple(rank for rank in by_rank if rank not in tied)
    return AllRanks(max((step.end_ns for step in steps), default=0), ranks, steps, loose)


def _tied(attribution: Attribution, ranks: Sequence[int]) -> tuple[int, ...]:
    """Ranks on one clock; where there is no common one, the first rank by itself."""
    if attribution.aligned:
        return tuple(rank for rank in ranks if rank not in attribution.untied)
    return tuple(ranks[:1])


def _moved(by_rank: Mapping[int, Sequence[RankStep]], tied: Sequence[int]) -> dict[int, int]:
    """What to add to each rank's times, so that the first step begins at zero and loose ranks beside the others."""
    if not tied:
        return {}
    origin = min(step.begin_ns for rank in tied for step in by_rank[rank])
    begins = {step.step: step.begin_ns for rank in reversed(tied) for step in by_rank[rank]}
    found = dict.fromkeys(tied, -origin)
    for rank, steps in by_rank.items():
        if rank not in found:
            shared = next((step for step in steps if step.step in begins), None)
            beside = begins[shared.step] if shared is not None else origin
            found[rank] = beside - (shared or steps[0]).begin_ns - origin
    return found


def _steps(steps: Iterable[RankStep], moved: Mapping[int, int]) -> tuple[StepSpan, ...]:
    found: dict[int, tuple[int, int]] = {}
    for step in steps:
        begin, end = step.begin_ns + moved[step.rank], step.end_ns + moved[step.rank]
        first, last = found.get(step.step, (begin, end))
        found[step.step] = min(first, begin), max(last, end)
    return tuple(StepSpan(step, begin, end) for step, (begin, end) in sorted(found.items()))


def _lanes(steps: Sequence[RankStep], moved_ns: int, waits: Intervals | None) -> tuple[Lane, ...]:
    """``waits``: when the rank waited for a later one; None where that is not known."""
    parts = [step.segments for step in steps]
    pieces = np.stack(
        [np.concatenate([getattr(part, key) for part in parts]) for key in ("start_ns", "end_ns")], axis=1
    )
    labels = labels_of(np.concatenate([p.kind for p in parts]), np.concatenate([p.detail for p in parts]))
    devices = np.concatenate([np.full(len(p.kind), of_device(by_cause(p)[Kind.IDLE])) for p in parts])
    found: dict[Category, list[tuple[Intervals, Detail]]] = defaultdict(list)
    for label in np.unique(labels).tolist():
        kind, detail = of_label(label)
        chosen = labels == label
        own = pieces[chosen]
        if kind == Kind.COMM and waits is not None:
            found[Category.WAITING].append((iv.intersect(own, waits), detail))
            found[Category.TRANSFER].append((iv.subtract(own, waits), detail))
        elif kind == Kind.IDLE:
            found[_IDLE.get(part_of(detail), Category.IDLE)].append((pieces[chosen & devices], detail))
            found[Category.IDLE].append((pieces[chosen & ~devices], detail))
        else:
            found[_CATEGORY[kind]].append((own, detail))
    lanes = [_lane(category, found[category], moved_ns) for category in Category if category in found]
    return tuple(lane for lane in lanes if len(lane))


def _lane(category: Category, parts: Sequence[tuple[Intervals, Detail]], moved_ns: int) -> Lane:
    events = np.concatenate([own for own, _ in parts]) + np.int64(moved_ns)
    name = np.concatenate([np.full(len(own), int(detail), dtype=np.uint32) for own, detail in parts])
    return make_lane(category.value, category, events, name, DETAILS)
