"""A loss or a gradient's norm that is not finite, or jumps. Costs no time by itself, but what is trained after it."""

from __future__ import annotations

from diag.model.query import By, Query, Value
from diag.model.steps import Evidence, Finding, Severity
from diag.rundir.numbers import OddNumber, first_odd

from .ids import NOT_FINITE
from .policy import ODD_NUMBERS
from .subject import Diagnosis, Subject

JUMP = "loss-jump"
_AFTER_NAN = (
    "Go back to the last checkpoint before that step. Look at the batch of that step, at the learning rate, and with "
    "fp16 at the gradient scaler; torch.autograd.set_detect_anomaly(True) names the operation."
)
_AFTER_JUMP = (
    "Look at the batches of that step and at the learning rate. If the loss does not come back, go back to the last "
    "checkpoint before that step."
)


def find(subject: Subject) -> list[Finding]:
    numbers = {rank: tables.numbers for rank, tables in subject.tables.ranks.items()}
    odd, jump = first_odd(numbers, finite=False), first_odd(numbers, finite=True)
    findings = []
    if odd is not None:
        findings.append(_finding(NOT_FINITE, odd, Severity.CRITICAL, ODD_NUMBERS.not_finite, _AFTER_NAN))
    if jump is not None and (odd is None or jump.step < odd.step):
        findings.append(_finding(JUMP, jump, Severity.WARN, ODD_NUMBERS.jump, _AFTER_JUMP))
    return findings


def _finding(name: str, odd: OddNumber, severity: Severity, confidence: float, action: str) -> Finding:
    where: dict[str, Value] = {"step": odd.step, "what": odd.what}
    rows = Query("numbers", where | ({"rank": list(odd.ranks)} if odd.ranks else {}), "step", By.MAX)
    return Finding(
        id=name,
        title=odd.words,
        severity=severity,
        confidence=confidence,
        ranks=odd.ranks,
        evidence=(Evidence(f"first step with it, {odd.what}", float(odd.step), "step", rows),),
        action=action,
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="losses or gradient norms on the host: a training on CPUs, Hugging Face's Trainer, which reports them, or a "
    "training that prints them, or ends with an exception that says so.",
    means={
        NOT_FINITE: "The first loss or gradient norm of any rank that is NaN or infinite. A rank is named if its own "
        "loss is, in a step in which that of others is finite.",
        JUMP: "The first loss of more than three times, or gradient norm of more than ten times, the median of the 64 "
        "before it, and above all of them.",
    },
)
