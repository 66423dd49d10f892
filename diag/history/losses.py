"""What the life of an attempt went into, and what cost it time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

from diag.account.policy import STEPS
from diag.collectors.records import CHECKPOINT
from diag.diagnoses.shares import Shares
from diag.model.history import Change, Goodput, Incident
from diag.rundir.columns import Bools, Floats, Ints
from diag.rundir.policy import SILENCE
from diag.rundir.series import Longest, Series
from diag.rundir.state_words import behind_ranks
from diag.rundir.states import Judged, State

from .policy import HISTORY

SLOW, STALLED, STUCK, RESTART = "slow", "stalled", "stuck", "restart"


class Spent(Struct, frozen=True, eq=False):
    """Nanoseconds of each row of a series; together with ``gaps_ns``, which are before the rows, they are the time from
    the begin of the first to the end of the last one. ``stalled_gaps``: which of the gaps are stalls."""

    training_ns: Floats
    checkpoint_ns: Floats
    evaluation_ns: Floats
    stall_ns: Floats
    other_ns: Floats
    gaps_ns: Floats
    stalled_gaps: Bools
    warm: Bools


def spent(series: Series, longest: Mapping[int, Longest] = MappingProxyType({})) -> Spent:
    """A step of more than five seconds and five usual steps is a stall, as it is for the state of a live run; of a sum
    the longest step is known, and where it was recorded, with the time before it and without evaluations (``longest``,
    by the row). In the first steps, it is the start of the training."""
    count = len(series)
    whole = series.step_ns * series.steps
    saving = np.nan_to_num(series.parts.get(CHECKPOINT, np.zeros(count)))
    usual = _usual(series.step_ns - saving, series.steps)
    checkpoint = np.minimum(saving * series.steps, whole)
    one = np.where(series.steps == 1, whole - checkpoint, np.maximum(0.0, series.longest_ns - checkpoint))
    inside = np.maximum(0.0, (series.end_ns - series.begin_ns) - whole)  # between the steps of a sum
    gap = np.zeros(count)  # of it, before the longest step
    warm = series.first < int(series.first[0]) + STEPS.warm_up_steps
    for row, its in longest.items():
        one[row], gap[row] = its.own_ns, min(its.gap_ns, inside[row])
        warm[row] = False  # it is none of the first steps
    long = one >= SILENCE.stall_ns(usual)
    gap = np.where(long, gap, 0.0)
    excess = np.clip(one - gap - usual, 0.0, whole - checkpoint)
    evaluation = np.where(series.evaluating, excess, 0.0)
    stall = np.where(long & ~series.evaluating & ~series.profiled, excess, 0.0)
    profiler = np.where(series.profiled & ~series.evaluating & long, excess, 0.0)
    over = np.minimum(0.0, (series.end_ns - series.begin_ns) - whole)  # of steps that overlap, by rounding
    gaps = np.concatenate(([0], np.maximum(0, series.begin_ns[1:] - series.end_ns[:-1]))).astype(np.float64)
    training = whole - checkpoint - evaluation - stall - profiler + over
    return Spent(
        training, checkpoint, evaluation, stall + gap, inside - gap + profiler, gaps, gaps >= SILENCE.stall_ns(usual),
        warm,
    )  # fmt: skip


def _usual(step_ns: Floats, steps: Ints) -> float:
    """The median step."""
    order = np.argsort(step_ns)
    at = np.searchsorted(np.cumsum(steps[order]), int(steps.sum()) / 2)
    return float(step_ns[order][min(int(at), len(order) - 1)])


def goodput_of(series: Series, of: Spent, begin_ns: int, end_ns: int, stuck: bool) -> Goodput:
    """From the start of the attempt to its last sign, on the rank's clock. ``stuck``: it made no progress at the
    end."""
    first, last = int(series.begin_ns[0]), int(series.end_ns[-1])
    begin_ns, end_ns = min(begin_ns, first), max(end_ns, last)
    after = end_ns - last
    stalled = round(float(of.stall_ns[~of.warm].sum() + of.gaps_ns[of.stalled_gaps].sum()))
    starting = (first - begin_ns) + round(float(of.stall_ns[of.warm].sum()))
    parts = {
        "checkpoints": round(float(of.checkpoint_ns.sum())),
        "evaluation": round(float(of.evaluation_ns.sum())),
        "stalls": stalled + (after if stuck else 0),
        "other": round(float(of.other_ns.sum() + of.gaps_ns[~of.stalled_gaps].sum())) + (0 if stuck else after),
    }
    wall_ns = end_ns - begin_ns
    new_ns = wall_ns - starting - sum(parts.values())
    made: dict[str, Any] = {**parts, "initialisation": starting, "new_steps": new_ns}
    return Goodput(wall_ns, **made)


class Job(Struct, frozen=True):
    """What incidents need to know of the run."""

    ranks: int
    hosts: Mapping[int, str]
    to_unix_ns: int

    def hosts_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.hosts[rank] for rank in ranks if self.hosts.get(rank)))

    def hours(self, ns: float) -> float:
        return self.ranks * ns / 3.6e12


def slow_stretches(changes: Sequence[Change], series: Series, job: Job) -> Iterator[Incident]:
    """From each change for the worse until the step time is back where it was, or the end."""
    at = 0
    while at < len(changes):
        begin = changes[at]
        if not begin.slower:
            at += 1
            continue
        usual = begin.before_ns
        inside = [begin]
        at += 1
        while at < len(changes) and changes[at].after_ns > usual * (1 + HISTORY.least_change):
            inside.append(changes[at])
            at += 1
        lost = sum((change.after_ns - usual) * change.steps for change in inside)
        worst = max(inside, key=lambda change: change.after_ns - change.before_ns)
        last = inside[-1].last
        end_ns = series.end_ns[min(int(np.searchsorted(series.last, last)), len(series) - 1)]
        yield Incident(
            SLOW, begin.step, last, begin.unix_ns, int(end_ns) + job.to_unix_ns, round(lost), job.hours(lost),
            worst.cause, worst.ranks, worst.hosts, goes_on=at >= len(changes),
        )  # fmt: skip


def stalls(
    series: Series,
    of: Spent,
    shares: Shares,
    job: Job,
    longest: Mapping[int, Longest] = MappingProxyType({}),
    behind: Callable[[int, float], tuple[int, ...]] = lambda *_: (),
) -> Iterator[Incident]:
    """Single steps, and pauses before a step, that took far longer than others. ``longest``: as of ``spent``;
    ``behind``: the ranks that the others waited for in a step that cost so much."""
    places = {number: place for place, number in enumerate(shares.numbers)}
    for at in np.flatnonzero((of.stall_ns > 0) & ~of.warm).tolist():
        lost = float(of.stall_ns[at])
        its = longest.get(at)
        place = places.get(int(series.first[at])) if series.steps[at] == 1 else None
        waited: dict[int, float] = defaultdict(float)
        for by_rank in shares.blame_ns.values() if place is not None else ():
            for rank, ns in by_rank.items():
                waited[rank] += float(ns[place])
        worst = max(waited, key=lambda rank: waited[rank], default=-1)
        first, last = int(series.first[at]), int(series.last[at])
        begin, end = int(series.begin_ns[at]), int(series.end_ns[at])
        if its is not None:
            first, last, begin, end = its.step, its.step, its.begin_ns, its.end_ns
        ranks: tuple[int, ...] = (worst,) if waited[worst] >= HISTORY.cause_share * lost else ()
        if not ranks and first == last:
            ranks = behind(first, lost)
        where = "between steps" if its is not None and not ranks and its.gap_ns >= HISTORY.cause_share * lost else ""
        yield Incident(
            STALLED, first, last, begin + job.to_unix_ns, end + job.to_unix_ns, round(lost), job.hours(lost), where,
            ranks, job.hosts_of(ranks),
        )  # fmt: skip
    for at in np.flatnonzero(of.stalled_gaps).tolist():
        lost, end = float(of.gaps_ns[at]), int(series.begin_ns[at]) + job.to_unix_ns
        number = int(series.first[at])
        yield Incident(STALLED, number, number, end - round(lost), end, round(lost), job.hours(lost), "between steps")


def behind_in(step: int, lost_ns: float, of_ranks: Mapping[int, Mapping[int, Longest]]) -> tuple[int, ...]:
    """The ranks that the others waited for in a step that stands still, by what each rank kept of it (``of_ranks``: by
    rank, then by number of the step): those that waited less than half of the loss while another one waited more."""
    known = {rank: steps[step].waited_ns for rank, steps in of_ranks.items() if step in steps}
    if len(known) < len(of_ranks) or max(known.values(), default=0) < HISTORY.cause_share * lost_ns:
        return ()
    return tuple(rank for rank, waited in known.items() if waited < HISTORY.cause_share * lost_ns)


def is_stuck(judged: Judged | None) -> bool:
    """Whether the training makes no progress, or made none when its records end."""
    return judged is not None and (judged.state in (State.STUCK, State.HUNG) or judged.was is State.STUCK)


def standstill(judged: Judged | None, last: int, last_end_ns: int, end_ns: int, job: Job) -> Incident | None:
    """The end of a run that is stuck, or was when its records end."""
    if not is_stuck(judged) or judged is None:
        return None
    ranks = tuple(rank.rank for rank in behind_ranks(judged))
    lost = max(0, end_ns - last_end_ns)
    return Incident(
        STUCK, last + 1, last + 1, last_end_ns + job.to_unix_ns, end_ns + job.to_unix_ns, lost, job.hours(lost), "",
        ranks, job.hosts_of(ranks), goes_on=judged.state is State.STUCK,
    )  # fmt: skip
