"""Ranks one behind the other on one line of time, so that one search answers for all of them."""

from __future__ import annotations

import numpy as np

from diag.model.steps import Pieces
from diag.rundir.columns import Ints

from .rank_steps import RankSteps


def on_line(steps: RankSteps) -> tuple[Ints, Pieces]:
    """By step, what to add to its times, and those of its calls; and the pieces there. Ranks do not touch."""
    ranks, own = np.unique(steps.rank, return_inverse=True)
    first, last = (np.full(len(ranks), edge) for edge in (np.iinfo(np.int64).max, np.iinfo(np.int64).min))
    calls, waited = steps.calls, steps.calls.waited
    begin = np.minimum(calls.start_ns, np.where(waited, calls.wait_start_ns, calls.start_ns))[steps.places]
    end = np.maximum(calls.end_ns, np.where(waited, calls.wait_end_ns, calls.end_ns))[steps.places]
    for of, since, until in ((own, steps.begin_ns, steps.end_ns), (own[steps.of_place], begin, end)):
        np.minimum.at(first, of, since)
        np.maximum.at(last, of, until)
    lengths = last - first + 1
    shift_ns: Ints = (np.cumsum(lengths) - lengths - first)[own]
    pieces = steps.segments.every
    moved = shift_ns[steps.segments.of_step]
    return shift_ns, steps.segments.moved(pieces.start_ns + moved, pieces.end_ns + moved)
