"""Steps that stall, as incidents of their own: a mean over the steps would be that of the stall."""

from __future__ import annotations

from dataclasses import replace as with_columns

import numpy as np
from msgspec.structs import replace

from diag.account.policy import STEPS
from diag.model.accounts import Attribution
from diag.rundir.policy import SILENCE

STALLED = "it stalled"  # why a step does not count


def without_stalls(attribution: Attribution) -> Attribution | None:
    """The account that does not count the steps which stall, as ``diag.history`` counts stalls: without the time in
    checkpoints. None where no step stalls, and where so many do that this is what the run is like."""
    steps = attribution.steps
    saving = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(saving, steps.of_part, steps.parts.checkpoint_ns)
    own_ns, count = steps.dur_ns - saving, int(steps.usable.sum())
    usual_ns = float(np.median(own_ns[steps.usable])) if count else 0.0
    stalled = steps.usable & (own_ns >= SILENCE.stall_ns(usual_ns))
    if not 0 < stalled.sum() <= STEPS.stalled_share * count:
        return None
    notes = tuple(STALLED if now else note for note, now in zip(steps.note, stalled.tolist(), strict=True))
    return replace(attribution, steps=with_columns(steps, usable=steps.usable & ~stalled, note=notes))


def stalled_steps(attribution: Attribution) -> dict[int, tuple[int, int | None]]:
    """The steps that are not counted because they stalled: nanoseconds, and the rank for which the others waited in
    half of it or more, None without one. The longest first."""
    steps = attribution.steps.take(np.array([note == STALLED for note in attribution.steps.note], dtype=np.bool_))
    found: dict[int, tuple[int, int | None]] = {}
    for at in np.argsort(-steps.dur_ns, kind="stable").tolist():
        blames = steps.blames.take(slice(int(steps.blame_edges[at]), int(steps.blame_edges[at + 1])))
        late_ns = np.bincount(blames.rank, weights=blames.ns, minlength=1)
        late = int(late_ns.argmax()) if 2 * late_ns.max() >= steps.dur_ns[at] else None
        found[int(steps.step[at])] = int(steps.dur_ns[at]), late
    return found
