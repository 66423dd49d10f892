"""On a CPU, the parts of forward, backward and optimizer in which the training's thread did not run: idle, not compute.

A step is accounted from its phases or, in a profiler window, from its operators. Both accounts have to say the same of
the same time. In a phase, a thread that is on a core computes, whether an operator runs or Python between operators; a
thread that is blocked (a sleep, I/O, a lock) does not. How long it was blocked is recorded for each phase, not when.
Where CPU time was not recorded, a phase is compute in both accounts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from diag.collectors.records import BACKWARD, FORWARD, OPTIMIZER
from diag.model.steps import Detail, Kind, Pieces, RankStep, Segments

_PHASES = {Detail.FORWARD: FORWARD, Detail.BACKWARD: BACKWARD, Detail.OPTIMIZER: OPTIMIZER}


def by_cpu_time(steps: Sequence[RankStep], blocked: Mapping[int, Mapping[str, int]]) -> list[RankStep]:
    """The steps of one rank with compute and idle time by what its thread did. ``blocked``: how long it was blocked,
    nanoseconds by step and phase (``scheduling.blocked_in_phases``)."""
    pieces = Pieces.of([step.segments for step in steps])
    idle = np.bincount(pieces.of_step[pieces.every.kind == Kind.IDLE], minlength=len(steps)) > 0
    return [
        _by_cpu_time(step, of_step) if (of_step := blocked.get(step.step, {})) or idles else step
        for step, idles in zip(steps, idle.tolist(), strict=True)
    ]


def _by_cpu_time(step: RankStep, blocked: Mapping[str, int]) -> RankStep:
    segments, outside = step.segments, {}
    for detail, phase in _PHASES.items():
        before = segments.total(Kind.IDLE, detail)  # in a traced step: no operator runs
        if before:
            outside[detail] = before
        left = blocked.get(phase, 0)
        if before or left:
            segments = _relabelled(segments, detail, left)
    if segments is step.segments:
        return step
    return replace(step, segments=segments, outside_operators_ns=outside)


def _relabelled(segments: Segments, detail: Detail, blocked_ns: int) -> Segments:
    """All pieces of the phase as compute but for ``blocked_ns``, which are idle: first of those in which no operator
    runs, the longest first, since a thread that waits for something waits in one piece."""
    own = np.flatnonzero((segments.detail == detail) & np.isin(segments.kind, (Kind.COMPUTE, Kind.IDLE)))
    lengths = segments.end_ns[own] - segments.start_ns[own]
    order = own[np.lexsort((-lengths, segments.kind[own] != Kind.IDLE))]
    idle_ns = np.zeros(len(segments.kind), dtype=np.int64)
    for at in order.tolist():
        idle_ns[at] = min(blocked_ns, int(segments.end_ns[at] - segments.start_ns[at]))
        blocked_ns -= int(idle_ns[at])
        if not blocked_ns:
            break
    kind = segments.kind.copy()
    kind[own] = Kind.COMPUTE
    whole = idle_ns == segments.end_ns - segments.start_ns
    kind[own[whole[own] & (lengths > 0)]] = Kind.IDLE
    parted = np.flatnonzero((idle_ns > 0) & ~whole)
    # The rest of a piece that is only partly idle: it computes, then waits.
    starts = np.insert(segments.start_ns, parted + 1, segments.end_ns[parted] - idle_ns[parted])
    ends = np.insert(segments.end_ns, parted, segments.end_ns[parted] - idle_ns[parted])
    kinds = np.insert(kind, parted + 1, Kind.IDLE)
    details = np.insert(segments.detail, parted + 1, detail)
    return Segments(starts, ends, kinds, details)
