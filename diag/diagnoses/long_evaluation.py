"""Evaluation that takes much of the recorded time. The steps that it lies in do not count, so it is in no cost."""

from __future__ import annotations

import numpy as np

from diag.account.policy import STEPS
from diag.collectors.records import EVALUATION, FORWARD, PHASES
from diag.diagnoses.policy import FINDINGS, HOST_TIME
from diag.model.query import Query
from diag.model.steps import Evidence, Finding
from diag.rundir.columns import Steps

from .subject import Diagnosis, Subject, severity

ID = "long-evaluation"
_UNTIMED = "the summaries of this run's version do not say how long an evaluation took"


def _evaluated(subject: Subject) -> tuple[int, int, set[int]]:
    """Nanoseconds in evaluations, nanoseconds recorded, and the steps with an evaluation, over all ranks."""
    if (sums := subject.tables.sums) is not None:
        return sums.evaluation_ns, sums.recorded_ns, set(sums.evaluated)
    spent_ns = whole_ns = 0
    steps: set[int] = set()
    for tables in subject.tables.ranks.values():
        recorded = tables.steps
        whole_ns += int((recorded.end_ns - recorded.begin_ns).sum())
        spent_ns += int(recorded.spent_ns(EVALUATION).sum())
        steps.update(recorded.step[recorded.with_phase(EVALUATION)].tolist())
    return spent_ns, whole_ns, steps


def find(subject: Subject) -> list[Finding]:
    spent_ns, whole_ns, steps = subject.once(_evaluated)
    share = spent_ns / whole_ns if whole_ns else 0.0
    if share < FINDINGS.warning_share:
        return []
    rows = Query("steps", {"step": sorted(steps)})
    seconds = spent_ns / 1e9 / len(subject.tables.ranks)
    counted = steps & set(subject.shares.numbers)
    where = f"the {len(steps)} steps that it lies in do" if len(steps) > 1 else "the step that it lies in does"
    where = f"{len(counted)} of the counted steps contain one" if counted else f"{where} not count"
    return [
        Finding(
            id=ID,
            title=f"Evaluation takes {share:.0%} of the recorded time, {seconds:.3g} s on each rank; {where}",
            severity=severity(share if share >= FINDINGS.critical_share else 0.0),
            confidence=0.95,
            evidence=(
                Evidence("evaluation, share of the recorded time", round(share, 4), "share", rows),
                Evidence("steps with an evaluation", float(len(steps)), "steps", rows),
            ),
            action="Evaluate less often, on a part of the data or with larger batches (torch.inference_mode needs less "
            "memory), or evaluate saved checkpoints in another job.",
        )
    ]


def cannot_look(subject: Subject) -> str:
    spent_ns, whole_ns, steps = subject.once(_evaluated)
    if subject.tables.sums is not None:
        return _UNTIMED if steps and not spent_ns else ""
    recorded = [tables.steps for tables in subject.tables.ranks.values() if tables.steps]
    if not recorded:
        return "a trace does not mark evaluations"
    if spent_ns >= FINDINGS.warning_share * whole_ns > 0:
        return ""
    unusual = max(_unusual(steps) for steps in recorded)
    if unusual < FINDINGS.warning_share:
        return ""
    return (
        f"a few steps spend {unusual:.0%} of the recorded time in forward or between the phases, which may be an "
        "evaluation that calls neither eval() and train() nor a DataLoader"
    )


def _unusual(steps: Steps) -> float:
    """The fraction of a rank's recorded time by which few of its steps are longer than usual, in forward and between
    the phases. The first steps initialize."""
    lasted = (steps.end_ns - steps.begin_ns)[STEPS.warm_up_steps :]
    whole = int(lasted.sum())
    if not whole:
        return 0.0
    # In forward and in no phase: where an evaluation may be.
    in_phases, in_forward = (
        steps.spent_ns(*phases)[STEPS.warm_up_steps :] for phases in ((*PHASES, EVALUATION), (FORWARD,))
    )
    spent = (np.maximum(0, lasted - in_phases) + in_forward).astype(np.float64)
    usual = float(np.median(spent))
    long = spent > HOST_TIME.unusual_step * usual
    return (
        float((spent[long] - usual).sum()) / whole if long.sum() <= HOST_TIME.unusual_steps_share * len(lasted) else 0.0
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="the phases of the steps in the collectors' records, or the ranks' summaries.",
    means={
        ID: (
            "Evaluation takes a tenth of the recorded time or more. Its steps are left out of the verdict, so it is no "
            "part of any other cost."
        ),
    },
)
