"""Whether a run keeps to its budgets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct

from diag.api import Result, compare_runs
from diag.diagnoses import checkpoint_stall, exposed_communication, exposed_copy, host_bound, slow_data, straggler
from diag.diagnoses.culprits import Series
from diag.diagnoses.shares import Cost
from diag.diagnoses.subject import resampled
from diag.errors import ExitCode
from diag.gate import budgets
from diag.model.steps import StepAccount
from diag.tables.efficiency import tokens_of
from diag.tables.memory import peak_memory
from diag.words.wording import incomplete

from .budgets import Budget, Quantity

# -- measure -----------------------------------------------------------------------------------------------------------
#
# What a run shows for each quantity that a budget can be set for: a 95 % interval from its own steps, or why not.
#
# Steps are drawn in blocks, as everywhere (diag.diagnoses.subject): neighbours are alike.

LEAST_STEPS = 5  # with fewer the spread of the steps means little, as in diag.diagnoses.compare
_SURE = 0.95
_SUMMARIES = "a run of this many ranks is judged by summaries, which do not hold it"

# The cost on the critical path, and the diagnosis that looks for it.
_SHARES = {
    budgets.EXPOSED_COMM: (Cost.COMM, exposed_communication.DIAGNOSIS.id),
    budgets.DATA_WAIT: (Cost.DATA, slow_data.DIAGNOSIS.id),
    budgets.EXPOSED_COPIES: (Cost.COPY, exposed_copy.DIAGNOSIS.id),
    budgets.CHECKPOINTS: (Cost.CHECKPOINT, checkpoint_stall.DIAGNOSIS.id),
    budgets.HOST_WAIT: (Cost.HOST, host_bound.DIAGNOSIS.id),
    budgets.STRAGGLER: (Cost.STRAGGLER, straggler.DIAGNOSIS.id),
}


class Interval(Struct, frozen=True):
    """``note``: what the reader should know of it, "" where nothing."""

    low: float
    likely: float
    high: float
    note: str = ""


class Unknown(Struct, frozen=True):
    """It cannot be measured, and why."""

    reason: str


Measured = Interval | Unknown


def measure(quantity: Quantity, result: Result, baseline: Result | None = None) -> Measured:
    """The quantity's interval in the units of its budget, or the reason why it is not known. ``baseline``: for
    the regression."""
    if quantity is budgets.PEAK_MEMORY:
        return _peak_memory(result)
    steps = result.attribution.usable
    if len(steps) < LEAST_STEPS:
        return Unknown(f"only {len(steps)} of its steps count, and the spread of {LEAST_STEPS} is needed")
    if quantity in _SHARES:
        return _share(quantity, result)
    if quantity is budgets.STEP:
        dur = _durations(steps)
        return _ratio(dur, np.ones_like(dur))
    if quantity is budgets.MFU:
        return _mfu(result, steps)
    if quantity is budgets.TOKENS:
        return _tokens(result, steps)
    return _regression(result, baseline)


def _share(quantity: Quantity, result: Result) -> Measured:
    cost, diagnosis = _SHARES[quantity]
    reasons = {item.diagnosis: item.reason for item in result.examination.not_looked}
    if diagnosis in reasons:
        return Unknown(reasons[diagnosis])
    if quantity is budgets.EXPOSED_COMM and result.coverage.ranks_missing:
        return Unknown("ranks are missing, and waiting for one of them looks like communication")
    shares = result.examination.shares
    late = np.zeros_like(shares.dur_ns)
    if cost == Cost.STRAGGLER:  # whatever makes the rank slow
        late = shares.cost(Cost.HOST_STRAGGLER) + shares.late(Cost.CONTENTION) + shares.late(Cost.STALL)
    return _ratio(shares.cost(cost) + late, shares.dur_ns)


def _mfu(result: Result, steps: tuple[StepAccount, ...]) -> Measured:
    """Its spread is that of the step: the arithmetic of a step is always the same."""
    mfu = result.mfu
    if mfu.value is None:
        return Unknown(mfu.reason)
    dur = _durations(steps)
    step = _ratio(dur, np.ones_like(dur))
    return Interval(mfu.value * step.likely / step.high, mfu.value, mfu.value * step.likely / step.low)


def _tokens(result: Result, steps: tuple[StepAccount, ...]) -> Measured:
    if result.from_summaries:
        return Unknown(_SUMMARIES)
    tokens = tokens_of(result.tables, result.attribution)
    if isinstance(tokens, str):
        return Unknown(tokens)
    found = _ratio(np.array(tokens, dtype=np.float64), _durations(steps))
    return Interval(found.low * 1e9, found.likely * 1e9, found.high * 1e9)


def _peak_memory(result: Result) -> Measured:
    """Of all steps, those that the verdict leaves out as well: memory runs out in any of them."""
    if result.from_summaries:
        return Unknown(_SUMMARIES)
    found = peak_memory(result.tables, result.attribution)
    if found is None:
        return Unknown("no memory was recorded")
    peak = float(found.bytes)
    if found.unknown or not found.of_steps:
        reason = f"{found.unknown} ranks recorded none" if found.unknown else "only profiler windows recorded it"
        return Interval(peak, peak, np.inf, f"{reason}: the true peak may be higher")
    return Interval(peak, peak, peak)


def _regression(result: Result, baseline: Result | None) -> Measured:
    if baseline is None:
        return Unknown("no baseline was given")
    found = compare_runs(baseline, result)
    if found.not_comparable:
        return Unknown("not comparable with the baseline: " + "; ".join(found.not_comparable))
    if found.steps[0] < LEAST_STEPS:
        return Unknown(f"only {found.steps[0]} of the baseline's steps count")
    low, likely, high = (ns / found.before_ns for ns in found.ns)
    return Interval(low, likely, high)


def _durations(steps: tuple[StepAccount, ...]) -> Series:
    return np.array([step.dur_ns for step in steps], dtype=np.float64)


def _ratio(of: Series, to: Series) -> Interval:
    """The sum of the one over that of the other."""
    drawn = resampled(of, to, rounds=2000)
    low, high = np.quantile(drawn, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    likely = float(of.sum() / to.sum()) if to.sum() else 0.0
    return Interval(min(float(low), likely), likely, max(float(high), likely))


RULE = (
    "Exceeded: the whole 95% interval, from the run's own steps, lies beyond the limit. Within noise: the limit lies "
    "in the interval; that fails with --strict only. Not known: never passed."
)


class Status(StrEnum):
    """Of one budget."""

    KEPT = "kept"
    NOISE = "within noise"
    EXCEEDED = "exceeded"
    UNKNOWN = "not known"


class Checked(Struct, frozen=True):
    """One budget and what was found; ``interval`` None where nothing could be measured. ``reason``: why the status is
    not known, or what to know of the interval."""

    budget: Budget
    status: Status
    interval: Interval | None
    reason: str = ""


class Gate(Struct, frozen=True):
    """All budgets, in the order in which they were asked for. ``strict``: within noise is a failure, too."""

    checked: tuple[Checked, ...]
    strict: bool = False

    def failed(self, checked: Checked) -> bool:
        return checked.status is Status.EXCEEDED or (self.strict and checked.status is Status.NOISE)

    @property
    def exit_code(self) -> ExitCode:
        """A budget that is surely exceeded decides, even if others are not known."""
        if any(self.failed(one) for one in self.checked):
            return ExitCode.GATE_EXCEEDED
        if any(one.status is Status.UNKNOWN for one in self.checked):
            return ExitCode.DATA_INCOMPLETE
        return ExitCode.OK


def check(result: Result, asked: Sequence[Budget], baseline: Result | None = None, strict: bool = False) -> Gate:
    """Checks the run against the budgets. ``baseline``: the run that a regression is measured from."""
    return Gate(tuple(_checked(budget, result, baseline) for budget in asked), strict)


def _checked(budget: Budget, result: Result, baseline: Result | None) -> Checked:
    found = measure(budget.quantity, result, baseline)
    if isinstance(found, Unknown):
        return Checked(budget, Status.UNKNOWN, None, found.reason)
    status = _status(budget, found)
    if status is Status.EXCEEDED:
        return Checked(budget, status, found, found.note)
    # What is missing can only make it worse: an unseen rank may be the slow one.
    missing = incomplete(result.coverage)
    if not missing and baseline is not None and budget.quantity is budgets.REGRESSION:
        missing = incomplete(baseline.coverage).replace("Incomplete:", "The baseline is incomplete:")
    if missing or found.note:
        return Checked(budget, Status.UNKNOWN, found, missing or found.note)
    return Checked(budget, status, found)


def _status(budget: Budget, found: Interval) -> Status:
    low, high, limit = found.low, found.high, budget.limit
    if budget.quantity.is_floor:
        low, high, limit = -high, -low, -limit
    if low > limit:
        return Status.EXCEEDED
    return Status.KEPT if high <= limit else Status.NOISE
