"""Checks a run against its budgets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct

from diag.api import Result, compare_runs
from diag.diagnoses.costs import Cost
from diag.diagnoses.culprits import Series
from diag.diagnoses.policy import COMPARISON
from diag.diagnoses.subject import resampled
from diag.errors import ExitCode
from diag.gate import budgets
from diag.model.accounts import StepAccounts
from diag.tables.tokens import tokens_of
from diag.words.formatting import counted, spaced
from diag.words.wording import incomplete

from .budgets import Budget, Quantity

# -- measure -----------------------------------------------------------------------------------------------------------
#
# Measures each quantity that can have a budget: a 95 % interval from the run's own steps, or the reason why not.
#
# Steps are resampled in blocks, as everywhere (diag.diagnoses.subject), because neighbouring steps are correlated.

_SUMMARIES = "a run with this many ranks is analysed from summaries, which do not contain it"


class Interval(Struct, frozen=True):
    """A 95 % interval. ``note``: a remark for the reader, or ""."""

    low: float
    likely: float
    high: float
    note: str = ""


class Unknown(Struct, frozen=True):
    """The quantity cannot be measured, for this reason."""

    reason: str


Measured = Interval | Unknown


def measure(quantity: Quantity, result: Result, baseline: Result | None = None) -> Measured:
    """The quantity's interval in the units of its budget, or the reason why it is not known. ``baseline``: the run for
    the regression."""
    if quantity is budgets.PEAK_MEMORY:
        return _peak_memory(result)
    steps = result.attribution.usable
    if len(steps) < COMPARISON.least_steps:
        return Unknown(_too_few(len(steps), "the run"))
    if quantity.cost:
        return _share(quantity, result)
    if quantity is budgets.STEP:
        dur = result.examination.shares.dur_ns
        return _ratio(dur, np.ones_like(dur))
    if quantity is budgets.MFU:
        return _mfu(result)
    if quantity is budgets.TOKENS:
        return _tokens(result, steps)
    return _regression(result, baseline)


def _share(quantity: Quantity, result: Result) -> Measured:
    cost = Cost[quantity.cost]
    if reason := result.examination.unseen(cost):
        return Unknown(reason)
    if quantity is budgets.EXPOSED_COMM and result.coverage.ranks_missing:
        return Unknown("ranks are missing, and waiting for one of them looks like communication")
    shares = result.examination.shares
    late = np.zeros_like(shares.dur_ns)
    if cost == Cost.STRAGGLER:  # for any cause of the slowness
        late = shares.cost(Cost.HOST_STRAGGLER) + shares.late(Cost.CONTENTION) + shares.late(Cost.STALL)
    return _ratio(shares.cost(cost) + late, shares.dur_ns)


def _mfu(result: Result) -> Measured:
    """MFU, with the relative spread of the step time: the FLOPs of a step are constant."""
    mfu = result.mfu
    if mfu.value is None:
        return Unknown(mfu.reason)
    dur = result.examination.shares.dur_ns
    step = _ratio(dur, np.ones_like(dur))
    return Interval(mfu.value * step.likely / step.high, mfu.value, mfu.value * step.likely / step.low)


def _tokens(result: Result, steps: StepAccounts) -> Measured:
    tokens = tokens_of(result.tables, result.attribution)
    if isinstance(tokens, str):
        return Unknown(tokens)
    rate = _ratio(np.array(tokens, dtype=np.float64), steps.dur_ns.astype(np.float64))
    return Interval(rate.low * 1e9, rate.likely * 1e9, rate.high * 1e9)


def _peak_memory(result: Result) -> Measured:
    """The peak over all steps, including those that the verdict leaves out: any step can run out of memory."""
    if result.from_summaries:
        return Unknown(_SUMMARIES)
    memory_peak = result.peak_memory
    if memory_peak is None:
        return Unknown("no memory was recorded")
    peak = float(memory_peak.bytes)
    if memory_peak.unknown or not memory_peak.of_steps:
        reason = "only profiler windows recorded it"
        if memory_peak.unknown:
            reason = f"{spaced(counted(memory_peak.unknown, 'rank'))} recorded none"
        return Interval(peak, peak, np.inf, f"{reason}: the true peak may be higher")
    return Interval(peak, peak, peak)


def _regression(result: Result, baseline: Result | None) -> Measured:
    if baseline is None:
        return Unknown("no baseline was given")
    comparison = compare_runs(baseline, result)
    if comparison.not_comparable:
        return Unknown("not comparable with the baseline: " + "; ".join(comparison.not_comparable))
    if comparison.steps[0] < COMPARISON.least_steps:
        return Unknown(_too_few(comparison.steps[0], "the baseline"))
    low, likely, high = (ns / comparison.before_ns for ns in comparison.ns)
    return Interval(low, likely, high)


def _too_few(steps: int, run: str) -> str:
    return f"{run} has only {spaced(counted(steps, 'counted step'))}, at least {COMPARISON.least_steps} are needed"


def _ratio(numerator: Series, denominator: Series) -> Interval:
    """The ratio of the sums of two series."""
    drawn = resampled(numerator, denominator, rounds=2000)
    low, high = np.quantile(drawn, [(1 - COMPARISON.interval_confidence) / 2, (1 + COMPARISON.interval_confidence) / 2])
    likely = float(numerator.sum() / denominator.sum()) if denominator.sum() else 0.0
    return Interval(min(float(low), likely), likely, max(float(high), likely))


class Status(StrEnum):
    """The status of one budget."""

    KEPT = "kept"
    NOISE = "within noise"
    EXCEEDED = "exceeded"
    UNKNOWN = "not known"


MEANINGS = {
    Status.EXCEEDED: "Exceeded: the whole 95% interval over the run's steps is beyond the limit.",
    Status.NOISE: "Within noise: the limit is inside the interval, which fails only with --strict.",
    Status.UNKNOWN: "Not known: the budget could not be checked, which never passes.",
}
RULE = " ".join(MEANINGS.values())


class Checked(Struct, frozen=True):
    """One budget and its result; ``interval`` None if nothing could be measured. ``reason``: why the status is not
    known, or a remark on the interval."""

    budget: Budget
    status: Status
    interval: Interval | None
    reason: str = ""


class Gate(Struct, frozen=True):
    """All requested budgets, in their order. ``strict``: within noise is a failure, too."""

    checked: tuple[Checked, ...]
    strict: bool = False

    def failed(self, checked: Checked) -> bool:
        return checked.status is Status.EXCEEDED or (self.strict and checked.status is Status.NOISE)

    @property
    def exit_code(self) -> ExitCode:
        """An exceeded budget decides, even if others are not known."""
        if any(self.failed(budget_check) for budget_check in self.checked):
            return ExitCode.GATE_EXCEEDED
        if any(budget_check.status is Status.UNKNOWN for budget_check in self.checked):
            return ExitCode.DATA_INCOMPLETE
        return ExitCode.OK


def check(result: Result, requested: Sequence[Budget], baseline: Result | None = None, strict: bool = False) -> Gate:
    """Checks the run against the budgets. ``baseline``: the run to compare with for a regression."""
    return Gate(tuple(_checked(budget, result, baseline) for budget in requested), strict)


def _checked(budget: Budget, result: Result, baseline: Result | None) -> Checked:
    measured = measure(budget.quantity, result, baseline)
    if isinstance(measured, Unknown):
        return Checked(budget, Status.UNKNOWN, None, measured.reason)
    status = _status(budget, measured)
    if status is Status.EXCEEDED:
        return Checked(budget, status, measured, measured.note)
    # Missing data can only make it worse: an unseen rank may be the slow one.
    missing = incomplete(result.coverage)
    if not missing and baseline is not None and budget.quantity is budgets.REGRESSION:
        missing = incomplete(baseline.coverage).replace("Incomplete:", "The baseline is incomplete:")
    if missing or measured.note:
        return Checked(budget, Status.UNKNOWN, measured, missing or measured.note)
    return Checked(budget, status, measured)


def _status(budget: Budget, interval: Interval) -> Status:
    low, high, limit = interval.low, interval.high, budget.limit
    if budget.quantity.is_floor:
        low, high, limit = -high, -low, -limit
    if low > limit:
        return Status.EXCEEDED
    return Status.KEPT if high <= limit else Status.NOISE
