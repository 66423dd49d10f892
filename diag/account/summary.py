"""The account of a run recorded as summaries: phase frontiers, and the parts of the step of a few ranks.

The same frontiers as ``frontier`` computes from the records, with three differences. Times are whole microseconds.
The phases of a step come in the order of PHASES_AND_REST, each once; micro-batches and the pieces of REST are summed.
Single collectives are unknown: the least time that any rank is blocked in a phase counts as communication, which is too
much where one rank is late for one collective of a phase and another rank for the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from diag.collectors.records import (
    BACKWARD,
    CHECKPOINT,
    DATA,
    FORWARD,
    H2D,
    OPTIMIZER,
    PHASES_AND_REST,
    REST,
    STEP,
    STILL,
    WINDOW_AFTER,
    WINDOW_WARMUP,
)
from diag.model.axes import Axes
from diag.model.steps import Attribution, CriticalPath, Parts, StepAccount
from diag.rundir.summaries import Summaries

from .attribute import WARMUP_STEPS, queued_steps
from .frontier import Frontier, Times, alike, behind, head_starts

SHOWN = 16  # ranks whose parts of each step are told
_STEPS = 16  # at a time: 64 bytes of a rank and column
_US = 1000  # nanoseconds

_NO_TIMES: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_NO_PATH = CriticalPath(_NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, ())


def summary_frontier(
    found: Summaries, counted: Collection[int], stages: Mapping[int, int] | None = None
) -> Frontier | None:
    """Of the steps that count; None with fewer than two ranks, or no such step. ``stages``: of a pipeline, by rank: a
    rank is late against the others of its stage."""
    places = [at for at, number in enumerate(found.numbers) if number in counted]
    ranks, steps = len(found.ranks), len(places)
    if ranks < 2 or not steps:
        return None
    peers = alike(found.ranks, stages or {})
    ahead = head_starts(found.begin_us)
    # On a device the host only launches collectives: where it stands still for others, its phases do not tell.
    known = found.waits_known and not found.on_device
    names = np.array(found.ranks, dtype=np.int64)
    increment = np.zeros((len(PHASES_AND_REST), steps), dtype=np.int64)
    leader = np.zeros_like(increment)
    late = np.zeros((len(PHASES_AND_REST), steps, ranks), dtype=np.int64)
    dur, communication = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.int64)
    for i, (at, values) in enumerate(
        zip(places, _by_step(found, (*PHASES_AND_REST, *_STILL, STEP), places), strict=True)
    ):
        worked, still, whole = values[:, : len(PHASES_AND_REST)], values[:, len(PHASES_AND_REST) : -1], values[:, -1]
        begun = ahead[:, at]
        edges = np.cumsum(worked if known else worked + still, axis=1) + begun[:, None]
        front = np.maximum.accumulate(np.concatenate(([begun.max()], edges.max(axis=0))))
        later = behind(np.concatenate((begun[:, None], edges), axis=1), peers)
        increment[:, i] = np.diff(front)
        leader[:, i] = names[edges.argmax(axis=0)]
        late[:, i] = np.maximum(np.diff(later, axis=1), 0).T
        dur[i] = (begun + whole).max() - begun.max()
        left = max(0, int(dur[i] - (front[-1] - front[0])))
        if known:
            last = int(edges[:, -1].argmax())
            own = next(alike for alike in peers if last in alike)
            # What even the rank stood still that did so least, of each phase.
            communication[i] = min(left, int(still[own].min(axis=0).sum()))
        increment[PHASES_AND_REST.index(REST), i] += left - communication[i]
    for times in (dur, increment, late, communication):
        times *= _US
    numbers = tuple(found.numbers[at] for at in places)
    return Frontier(numbers, found.ranks, dur, increment, leader, late, communication, known)


def steps_left_out(found: Summaries) -> dict[int, str]:
    """Of the steps that were read those that do not show what the run is like, each with the reason."""
    left_out = dict.fromkeys(found.marked.get(WINDOW_WARMUP, ()), "the profiler was starting")
    for after in found.marked.get(WINDOW_AFTER, ()):
        for step in range(after + 1, after + 1 + queued_steps(found.manifest)):
            left_out.setdefault(step, "the loader's queue filled up while a trace was written")
        left_out[after] = "the profiler was writing a trace before it"
    if found.from_start and len(found.numbers) > 2 * WARMUP_STEPS:
        left_out.update(dict.fromkeys(found.numbers[:WARMUP_STEPS], "warm-up"))
    return {step: left_out[step] for step in found.numbers if step in left_out}


def summary_attribution(found: Summaries, left_out: Mapping[int, str], shown: Sequence[int], axes: Axes) -> Attribution:
    """Every step with how long it took and the parts of the ranks ``shown``. No path: that takes collectives."""
    longest = found.column(STEP).max(axis=0)
    parts = [_parts(found, rank) for rank in sorted(shown)]
    return Attribution(
        steps=tuple(
            StepAccount(
                step=number,
                dur_ns=int(longest[at]) * _US,
                parts=tuple(own[at] for own in parts),
                path=_NO_PATH,
                blames=(),
                usable=number not in left_out,
                note=left_out.get(number, ""),
            )
            for at, number in enumerate(found.numbers)
        ),
        ranks=found.ranks,
        clock_uncertainty_ns=None,
        aligned=False,
        comm_known=not found.on_device,
        collectives=(),
        axes=axes,
    )


def telling_ranks(found: Frontier) -> tuple[int, ...]:
    """The ranks whose parts are worth showing: those that were latest in sum, and some that were not late."""
    late = found.late_ns.sum(axis=(0, 1))
    order = np.argsort(-late, kind="stable")
    few = max(1, SHOWN - SHOWN // 4)
    chosen = order if len(order) <= SHOWN else np.concatenate((order[:few], order[few - SHOWN :]))
    return tuple(found.ranks[at] for at in chosen.tolist())


_STILL = tuple(phase + STILL for phase in PHASES_AND_REST)


def _by_step(found: Summaries, columns: Sequence[str], places: Sequence[int]) -> Iterator[Times]:
    """For each of the steps at ``places`` the values of each rank (a row) and column. Some steps at a time: in the
    table those of one rank lie side by side."""
    for first in range(0, len(places), _STEPS):
        some = places[first : first + _STEPS]
        block = np.stack([found.column(name)[:, some].T for name in columns], axis=2)
        yield from block.astype(np.int64)


def _parts(found: Summaries, rank: int) -> list[Parts]:
    """Of each step of one rank."""
    at = found.ranks.index(rank)

    def of(*columns: str) -> list[int]:
        total = sum(found.column(name)[at].astype(np.int64) for name in columns) * _US
        return list(np.asarray(total).tolist())

    told = zip(
        of(STEP), of(FORWARD, BACKWARD, OPTIMIZER), of(*_STILL), of(H2D), of(DATA), of(CHECKPOINT), of(OPTIMIZER),
        strict=True,
    )  # fmt: skip
    return [
        Parts(
            rank=rank,
            source="summary",
            dur_ns=max(dur, compute + still + copy + data + checkpoint),  # each is rounded
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
        for dur, compute, still, copy, data, checkpoint, optimizer in told
    ]
