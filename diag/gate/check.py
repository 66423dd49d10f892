"""Whether a run keeps to its budgets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from diag.api import Result
from diag.errors import ExitCode
from diag.gate import budgets
from diag.gate.budgets import Budget
from diag.gate.measure import Interval, Unknown, measure
from diag.words.wording import incomplete

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
        """A budget that is surely exceeded decides, whatever else is not known."""
        if any(self.failed(one) for one in self.checked):
            return ExitCode.GATE_EXCEEDED
        if any(one.status is Status.UNKNOWN for one in self.checked):
            return ExitCode.DATA_INCOMPLETE
        return ExitCode.OK


def check(result: Result, asked: Sequence[Budget], baseline: Result | None = None, strict: bool = False) -> Gate:
    """The run held against the budgets. ``baseline``: the run that a regression is measured from."""
    return Gate(tuple(_checked(budget, result, baseline) for budget in asked), strict)


def _checked(budget: Budget, result: Result, baseline: Result | None) -> Checked:
    found = measure(budget.quantity, result, baseline)
    if isinstance(found, Unknown):
        return Checked(budget, Status.UNKNOWN, None, found.reason)
    status = _status(budget, found)
    if status is Status.EXCEEDED:
        return Checked(budget, status, found, found.note)
    # What is missing can only make it worse: a rank that nobody saw may be the slow one.
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
