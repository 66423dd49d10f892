"""On a CPU, the parts of forward, backward and optimizer in which the training's thread did not run: idle, not compute.

A step is accounted from its phases or, in a profiler window, from its operators. Both accounts have to say the same of
the same time. In a phase, a thread that is on a core computes, whether an operator runs or Python between operators; a
thread that is blocked (a sleep, I/O, a lock) does not. How long it was blocked is recorded for each phase, not when.
Where CPU time was not recorded, a phase is compute in both accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diag.collectors.records import BACKWARD, FORWARD, OPTIMIZER
from diag.model.steps import Detail, Kind, Pieces, Segments

from .rank_steps import RankSteps

_PHASES = {Detail.FORWARD: FORWARD, Detail.BACKWARD: BACKWARD, Detail.OPTIMIZER: OPTIMIZER}
_PLACES = np.full(max(Detail) + 1, -1, dtype=np.int64)  # of a phase among these, by its Detail
_PLACES[list(_PHASES)] = range(len(_PHASES))


def by_cpu_time(steps: RankSteps, blocked: Mapping[int, Mapping[str, int]]) -> RankSteps:
    """The steps with compute and idle time by what its thread did. ``blocked``: how long it was blocked,
    nanoseconds by step and phase (``scheduling.blocked_in_phases``).

    All pieces of a phase are compute but for the time in which the thread was blocked, which is idle: first of the
    pieces in which no operator runs, the longest first, since a thread that waits for something waits in one piece."""
    pieces = steps.segments
    every, of_step = pieces.every, pieces.of_step
    lasted_ns = every.end_ns - every.start_ns
    own = np.flatnonzero((_PLACES[every.detail] >= 0) & np.isin(every.kind, (Kind.COMPUTE, Kind.IDLE)))
    part = of_step[own] * len(_PHASES) + _PLACES[every.detail[own]]  # a phase of a step
    idles = every.kind[own] == Kind.IDLE  # in a traced step: no operator runs
    parts = len(steps) * len(_PHASES)
    outside_ns = np.bincount(part[idles], weights=lasted_ns[own[idles]], minlength=parts).astype(np.int64)
    of_steps = (blocked.get(step, {}) for step in steps.step.tolist())
    blocked_ns = np.array([of.get(phase, 0) for of in of_steps for phase in _PHASES.values()], dtype=np.int64)
    known = (outside_ns > 0) | (blocked_ns > 0)
    if not known.any():
        return steps
    own, part, idles = (column[known[part]] for column in (own, part, idles))
    order = np.lexsort((-lasted_ns[own], ~idles, part))
    own, part = own[order], part[order]
    idle_ns = np.clip(blocked_ns[part] - _before(lasted_ns[own], part), 0, lasted_ns[own])
    kind = every.kind.copy()
    kind[own] = np.where((idle_ns == lasted_ns[own]) & (idle_ns > 0), Kind.IDLE, Kind.COMPUTE)
    # The rest of a piece that is only partly idle: it computes, then waits.
    parted = (idle_ns > 0) & (idle_ns < lasted_ns[own])
    cut_ns = (every.end_ns[own] - idle_ns)[parted][np.argsort(own[parted])]
    at = np.sort(own[parted])
    added = np.bincount(of_step[at], minlength=len(steps))
    cut = Segments(
        np.insert(every.start_ns, at + 1, cut_ns),
        np.insert(every.end_ns, at, cut_ns),
        np.insert(kind, at + 1, Kind.IDLE),
        np.insert(every.detail, at + 1, every.detail[at]),
    )
    relabelled = Pieces(cut, pieces.edges + np.concatenate(([0], np.cumsum(added))))
    outside = {at: of_step for at, of_step in enumerate(_by_detail(outside_ns)) if of_step}
    return replace(steps, segments=relabelled, outside_operators_ns=outside)


def _before(lasted_ns: npt.NDArray[np.int64], part: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How long the pieces before each one last, of its own part. Pieces of a part stand together."""
    before_ns = np.cumsum(lasted_ns) - lasted_ns
    first = np.flatnonzero(np.diff(part, prepend=-1))
    return before_ns - np.repeat(before_ns[first], np.diff(first, append=len(part)))


def _by_detail(outside_ns: npt.NDArray[np.int64]) -> list[dict[Detail, int]]:
    """Of each step, by phase; without those that have none."""
    of_steps = outside_ns.reshape(-1, len(_PHASES)).tolist()
    return [{detail: ns for detail, ns in zip(_PHASES, row, strict=True) if ns} for row in of_steps]
