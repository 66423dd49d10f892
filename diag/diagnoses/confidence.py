"""How sure an answer is: one number, calibrated so that of the answers with confidence p about p are right.

Chosen on public traces that nobody here made (tests/bench/REAL_TRACES.md has the table). Each factor is a reason for
which answers were wrong there: few steps, hardly any work, a share near a threshold, a second class nearly as large,
idle time that the trace does not explain, start-up in the window, ranks that are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt

from diag.model.steps import STARTUP_DETAILS, Attribution, Bottleneck, StepAccount

from .shares import REMOVABLE
from .subject import WARN

_ONE_STEP = 0.1  # what a single step leaves open; falls with the root of their number
_FEW_PIECES = 4  # of device work: so many leave half of it open
_UNDIVIDED = 0.95  # nothing says that the window is what the run is like
_NEAR, _NEAR_WIDTH = 0.3, 0.03  # what a share at the threshold leaves open, and how far from it that reaches
_CLOSE, _CLOSE_WIDTH = 0.3, 0.05  # the same of a second class nearly as large


def evidence(attribution: Attribution, shares: Mapping[Bottleneck, float], bottleneck: Bottleneck) -> float:
    """How sure an answer is by what the traces hold, 0 to 1. ``shares``: of each class, of the judged time."""
    steps = attribution.usable or attribution.steps
    if not any(parts.source == "trace" for step in steps for parts in step.parts):
        return _of_records(len(steps))
    return (
        (1 - _ONE_STEP / sqrt(max(1, len(steps))))
        * _of_work(attribution, steps)
        * (_UNDIVIDED if attribution.undivided else 1.0)
        * _of_startup(steps)
        * _of_shares(shares, bottleneck)
    )


def _of_records(steps: int) -> float:
    """Few steps prove little, however alike they are: the rule of succession."""
    return (steps + 1) / (steps + 2)


def _of_work(attribution: Attribution, steps: Sequence[StepAccount]) -> float:
    """Four kernels are a toy; the pauses between four hundred are as many observations. 1 where no device was used."""
    counted = {step.step for step in steps}
    pieces = [step.pieces for step in attribution.rank_steps if step.step in counted and step.pieces]
    most = sum(sorted(pieces, reverse=True)[: len(counted)])
    return most / (most + _FEW_PIECES) if most else 1.0


def _of_startup(steps: Sequence[StepAccount]) -> float:
    whole = sum(step.dur_ns for step in steps)
    return 1 - 0.5 * sum(step.path.idle(STARTUP_DETAILS) for step in steps) / whole if whole else 1.0


def _of_shares(shares: Mapping[Bottleneck, float], bottleneck: Bottleneck) -> float:
    first, second, *_ = sorted((shares.get(name, 0.0) for name in REMOVABLE), reverse=True)
    unexplained = shares.get(Bottleneck.UNDETERMINED, 0.0)
    known = 1 - unexplained if first < WARN else first / (first + unexplained)
    near = 1 - _NEAR * exp(-abs(first - WARN) / _NEAR_WIDTH)
    apart = 1 - _CLOSE * exp(-(first - second) / _CLOSE_WIDTH) if second >= WARN / 2 else 1.0
    return known * near * (apart if bottleneck != Bottleneck.MIXED else 1.0)
