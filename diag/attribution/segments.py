"""Reads and moves the consecutive pieces that a step of one rank is cut into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diag.attribution.intervals import Intervals
from diag.model import CollectiveCall, Kind, RankStep, Segments


def intervals_of(segments: Segments, kind: Kind) -> Intervals:
    """Where the step is of one kind; neighbours stay apart."""
    chosen = segments.kind == kind
    return np.stack((segments.start_ns[chosen], segments.end_ns[chosen]), axis=1)


def shift_call(call: CollectiveCall, delta_ns: int) -> CollectiveCall:
    if delta_ns == 0:
        return call
    return replace(call, start_ns=call.start_ns + delta_ns, end_ns=call.end_ns + delta_ns)


def shift(step: RankStep, delta_ns: int) -> RankStep:
    """The same step on a clock that shows ``delta_ns`` more."""
    if delta_ns == 0:
        return step
    return replace(
        step,
        begin_ns=step.begin_ns + delta_ns,
        end_ns=step.end_ns + delta_ns,
        segments=replace(
            step.segments, start_ns=step.segments.start_ns + delta_ns, end_ns=step.segments.end_ns + delta_ns
        ),
        collectives=tuple(shift_call(call, delta_ns) for call in step.collectives),
    )
