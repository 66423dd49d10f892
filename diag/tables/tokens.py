"""Tokens of the steps, and their rate."""

from __future__ import annotations

import numpy as np

from diag.model.accounts import Attribution
from diag.rundir.tables import StepSums, Tables

_SOME_WITHOUT = "some steps have no token count"


def token_rate(tokens: float, dur_ns: float) -> float:
    """Tokens per second: those of some steps over the time of these steps."""
    return tokens * 1e9 / dur_ns if dur_ns else 0.0


def tokens_of(tables: Tables, attribution: Attribution) -> tuple[int, ...] | str:
    """Tokens of all ranks in each counted step, or the reason why they are unknown. A run's rate is their sum over the
    sum of the steps' durations, each from the begin of its critical path to the last rank's end."""
    axes = tables.manifest.mesh if tables.manifest is not None else {}
    shared = [axis for axis in axes if not axis.startswith("dp")]
    if shared:
        return f"ranks along {', '.join(shared)} process the same tokens"
    if tables.sums is not None:
        return _of_sums(tables.sums, attribution)
    by_step = dict.fromkeys(attribution.counted.step.tolist(), 0)
    numbers = np.fromiter(by_step, np.int64, len(by_step))
    for rank in attribution.ranks:
        steps = tables.ranks[rank].steps
        counted = np.isin(steps.step, numbers)
        tokens = steps.tokens[counted]
        if not tokens.any():
            return f"rank {rank} recorded no token count"
        for step, of_step in zip(steps.step[counted].tolist(), tokens.tolist(), strict=True):
            by_step[step] += of_step
    return tuple(by_step.values()) if all(by_step.values()) else _SOME_WITHOUT


def _of_sums(sums: StepSums, attribution: Attribution) -> tuple[int, ...] | str:
    if sums.without_tokens is not None:
        return f"rank {sums.without_tokens} recorded no token count"
    by_step = dict(zip(sums.numbers, sums.tokens.tolist(), strict=True))
    tokens = tuple(by_step[step] for step in attribution.counted.step.tolist())
    return tokens if all(tokens) else _SOME_WITHOUT
