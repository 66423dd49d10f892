"""The account of a run by its ranks' summaries alone: frontiers of the phases, and the parts of the steps."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from diag.account.policy import CRITICAL_PATH, STEPS
from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    H2D,
    OPTIMIZER,
    PHASES_AND_REST,
    REST,
    STEP,
    STILL,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_WARMUP,
)
from diag.model.accounts import Attribution, Idle, StepAccount, StepAccounts
from diag.model.axes import Axes
from diag.model.matched import NO_COLLECTIVES
from diag.model.steps import NO_BLAMES, CriticalPath, Parts
from diag.rundir.summaries import NS_PER_US, Summaries, together

from .attribute import IN_WINDOW, evaluations_left_out, in_windows, queued_steps
from .frontier import Frontier, Times, alike, behind, head_starts

_NO_TIMES: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_NO_PATH = CriticalPath(_NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, ())


def summary_frontier(
    summaries: Summaries, counted: Collection[int], stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """The frontiers of the counted steps; None with fewer than two ranks, or no such step. ``stages``: pipeline stages
    by rank: a rank's lateness is measured against the other ranks of its stage."""
    places = [at for at, number in enumerate(summaries.numbers) if number in counted]
    ranks, steps = len(summaries.ranks), len(places)
    if ranks < 2 or not steps:
        return None
    peers = alike(summaries.ranks, stages or {})
    ahead = head_starts(summaries.begin_us)
    known = summaries.waits_apart
    of_place = np.array(summaries.ranks, dtype=np.int64)
    increment = np.zeros((len(PHASES_AND_REST), steps), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), steps, ranks), dtype=np.int64)
    dur, communication = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    phases = [
        phase for phase in PHASES_AND_REST if phase == REST or summaries.has(phase) or summaries.has(phase + STILL)
    ]
    rows = [PHASES_AND_REST.index(phase) for phase in phases]
    blocked = [at for at, phase in enumerate(phases) if summaries.has(phase + STILL)]
    names = (*phases, *(phases[at] + STILL for at in blocked), STEP)
    for i, (at, values) in enumerate(zip(places, _by_step(summaries, names, places), strict=True)):
        worked, still, whole = values[: len(phases)], values[len(phases) : -1], values[-1]
        if not known:
            worked[blocked] += still
        begun = ahead[:, at]
        # Ranks are contiguous: that is what is compared.
        edges = np.cumsum(worked, axis=0) + begun
        front = np.maximum.accumulate(np.concatenate(([begun.max()], edges.max(axis=1))))
        later = behind(np.concatenate((begun[None], edges)), peers, axis=1)
        increment[rows, i] = np.diff(front)
        first = [begun.argmax(), *edges.argmax(axis=1)]  # at each edge; a phase that nobody has leaves it as it was
        leader[:, i] = of_place[[first[bisect(rows, row)] for row in range(len(PHASES_AND_REST))]]
        late[rows, i] = np.maximum(np.diff(later, axis=0), 0)
        dur[i] = (begun + whole).max() - begun.max()
        left = max(0, int(dur[i] - (front[-1] - front[0])))
        if known:
            last = int(edges[-1].argmax())
            mates = still if len(peers) == 1 else still[:, next(alike for alike in peers if last in alike)]
            # The least time that any rank is blocked in each phase.
            communication[i] = min(left, int(mates.min(axis=1).sum()))
        increment[PHASES_AND_REST.index(REST), i] += left - communication[i]
    for times in (dur, increment, communication, *(late[row] for row in rows)):
        times *= NS_PER_US
    numbers = tuple(summaries.numbers[at] for at in places)
    return Frontier(numbers, summaries.ranks, dur, increment, leader, late, communication, known)


def steps_left_out(summaries: Summaries) -> dict[int, str]:
    """The steps that do not represent the run, each with the reason."""
    left_out = dict.fromkeys(summaries.marked.get(WINDOW_WARMUP, ()), "the profiler was starting")
    for after in summaries.marked.get(WINDOW_AFTER, ()):
        for step in range(after + 1, after + 1 + queued_steps(summaries.manifest)):
            left_out.setdefault(step, "the loader's queue filled up while a trace was written")
        left_out[after] = "the profiler was writing a trace before it"
    if summaries.from_start and len(summaries.numbers) > 2 * STEPS.warm_up_steps:
        left_out.update(dict.fromkeys(summaries.numbers[: STEPS.warm_up_steps], "warm-up"))
    evaluating = summaries.marked.get(EVALUATION, frozenset()).intersection(summaries.numbers)
    left_out = evaluations_left_out(evaluating, len(summaries.numbers)) | left_out
    left_out = in_windows(summaries.marked.get(WINDOW_ACTIVE, ()), summaries.numbers, left_out) | left_out
    return {step: left_out[step] for step in summaries.numbers if step in left_out}


def summary_attribution(
    summaries: Summaries, left_out: Mapping[int, str], shown: Sequence[int], axes: Axes, idle: Idle | None = None
) -> Attribution:
    """Every step's duration, and the parts of the ranks ``shown``. No path: that needs collectives. ``idle``: of the
    devices, if known."""
    longest = summaries.column(STEP).max(axis=0)
    parts = [_parts(summaries, rank) for rank in sorted(shown)]
    return Attribution(
        steps=StepAccounts.of(
            [
                StepAccount(
                    step=number,
                    dur_ns=int(longest[at]) * NS_PER_US,
                    parts=tuple(of_rank[at] for of_rank in parts),
                    path=_NO_PATH,
                    blames=NO_BLAMES,
                    usable=number not in left_out,
                    note=left_out.get(number, ""),
                    window=left_out.get(number) == IN_WINDOW,
                )
                for at, number in enumerate(summaries.numbers)
            ]
        ),
        ranks=summaries.ranks,
        clock_uncertainty_ns=None,
        aligned=False,
        comm_known=summaries.waits_apart or not summaries.on_device,
        collectives=NO_COLLECTIVES,
        axes=axes,
        idle_known=idle is not None or not summaries.on_device,
    )


def telling_ranks(frontier: Frontier) -> tuple[int, ...]:
    """The ranks whose parts are worth showing: those with the most lateness in sum, and some that were not late."""
    late = frontier.late_ns.sum(axis=(0, 1))
    order = np.argsort(-late, kind="stable")
    few = max(1, CRITICAL_PATH.ranks_with_parts_shown - CRITICAL_PATH.ranks_with_parts_shown // 4)
    chosen = (
        order
        if len(order) <= CRITICAL_PATH.ranks_with_parts_shown
        else np.concatenate((order[:few], order[few - CRITICAL_PATH.ranks_with_parts_shown :]))
    )
    return tuple(frontier.ranks[at] for at in chosen.tolist())


_STILL = tuple(phase + STILL for phase in PHASES_AND_REST)


def _by_step(summaries: Summaries, columns: Sequence[str], places: Sequence[int]) -> Iterator[Times]:
    """For each step at ``places``: the values, shape (columns, ranks). Steps are read in batches: in the table the
    values of one rank are contiguous."""
    for first in range(0, len(places), CRITICAL_PATH.steps_at_once):
        batch = places[first : first + CRITICAL_PATH.steps_at_once]
        block = np.empty((len(batch), len(columns), len(summaries.ranks)), dtype=np.uint32)
        for at, name in enumerate(columns):
            block[:, at] = summaries.column(name)[:, together(batch)].T if summaries.has(name) else 0
        yield from (of_step.astype(np.int64) for of_step in block)


# Fields of ``Parts``, each with the columns of a summary that add up to it.
_FIELDS = {
    "data_wait_ns": (DATA,),
    "exposed_copy_ns": (H2D,),
    "compute_ns": (FORWARD, BACKWARD, OPTIMIZER),
    "exposed_comm_ns": _STILL,
}


def summary_means(
    summaries: Summaries, numbers: Sequence[int], idle: Idle | None = None
) -> dict[str, dict[int, float]]:
    """Mean milliseconds of these steps, by field of ``Parts`` and rank. ``idle``: of the devices in these steps."""
    places = np.flatnonzero(np.isin(summaries.numbers, numbers)).tolist()
    means = {}
    for name, columns in _FIELDS.items():
        total = sum(
            (summaries.sums(column, places) / len(places) for column in columns if summaries.has(column)),
            start=np.zeros(len(summaries.ranks)),
        )
        means[name] = dict(zip(summaries.ranks, np.round(total / 1000, 3).tolist(), strict=True))
    if idle is not None:
        idle_ms = (idle.late.mean(axis=1) + idle.besides.mean(axis=1)) / 1e6
        means["idle_ns"] = dict(zip(summaries.ranks, np.round(idle_ms, 3).tolist(), strict=True))
    return means


def _parts(summaries: Summaries, rank: int) -> list[Parts]:
    at = summaries.ranks.index(rank)

    def of(*columns: str) -> list[int]:
        total = sum(summaries.of_rank(name, at).astype(np.int64) for name in columns) * NS_PER_US
        return list(np.asarray(total).tolist())

    columns = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns")
    values = zip(of(STEP), *(of(*_FIELDS[name]) for name in columns), of(CHECKPOINT), of(OPTIMIZER), strict=True)
    return [
        Parts(
            rank=rank,
            source="summary",
            dur_ns=max(dur, compute + still + copy + data + checkpoint),  # each value is rounded separately
            compute_ns=compute,
            exposed_comm_ns=still,
            exposed_copy_ns=copy,
            data_wait_ns=data,
            checkpoint_ns=checkpoint,
            idle_ns=max(0, dur - compute - still - copy - data - checkpoint),
            overlapped_comm_ns=0,
            optimizer_ns=optimizer,
            exposed_wait_ns=None,
            exposed_transfer_ns=None,
        )
        for dur, compute, still, copy, data, checkpoint, optimizer in values
    ]
