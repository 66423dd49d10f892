"""Evaluation that takes much of the recorded time. The steps that it lies in do not count, so it is in no cost."""

from __future__ import annotations

from diag.collectors.records import EVALUATION
from diag.model.steps import Evidence, Finding

from .subject import CRITICAL, WARN, Diagnosis, Subject, severity

ID = "long-evaluation"


def find(subject: Subject) -> list[Finding]:
    spent_ns = whole_ns = 0
    steps: set[int] = set()
    for tables in subject.tables.ranks.values():
        for step in tables.steps:
            rows = [row for row in step.phases if row.phase == EVALUATION]
            whole_ns += step.end_ns - step.begin_ns
            spent_ns += sum(row.end_ns - row.start_ns for row in rows)
            if rows:
                steps.add(step.step)
    share = spent_ns / whole_ns if whole_ns else 0.0
    if share < WARN:
        return []
    seconds = spent_ns / 1e9 / len(subject.tables.ranks)
    where = f"the {len(steps)} steps that it lies in do" if len(steps) > 1 else "the step that it lies in does"
    return [
        Finding(
            id=ID,
            title=f"Evaluation takes {share:.0%} of the recorded time, {seconds:.3g} s on each rank; {where} not count",
            severity=severity(share if share >= CRITICAL else 0.0),
            share=0.0,
            cost_ns_per_step=0,
            confidence=0.95,
            ranks=(),
            evidence=(
                Evidence("steps", "evaluation, share of the recorded time", round(share, 4), "share"),
                Evidence("steps", "steps with an evaluation", float(len(steps)), "steps"),
            ),
            bottleneck=None,
            action="Evaluate less often, on a part of the data or with larger batches (torch.inference_mode needs less "
            "memory), or evaluate saved checkpoints in another job.",
        )
    ]


def cannot_look(subject: Subject) -> str:
    recorded = any(tables.steps for tables in subject.tables.ranks.values())
    return "" if recorded else "a trace does not mark evaluations"


DIAGNOSIS = Diagnosis(
    ID,
    "long evaluation",
    find,
    cannot_look,
    needs="the phases of the steps in the collectors' records.",
    means={
        ID: (
            "Evaluation takes a tenth of the recorded time or more. Its steps are left out of the verdict, so it is no "
            "part of any other cost."
        ),
    },
)
