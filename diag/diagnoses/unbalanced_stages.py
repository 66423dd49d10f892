"""A pipeline stage with more work than the others: all of them go at its pace."""

from __future__ import annotations

import numpy as np

from diag.account.pipeline import Pipeline
from diag.model.axes import rank_words
from diag.model.steps import Evidence, Finding

from .pipeline_bubble import cannot_look as cannot_look
from .pipeline_bubble import pipeline
from .shares import Cost
from .subject import MENTION, Diagnosis, Subject, a_step

ID = "unbalanced-stages"


def find(subject: Subject) -> list[Finding]:
    found = subject.once(pipeline)
    if found is None or subject.shares.share(Cost.IMBALANCE) < MENTION:
        return []
    ranks = found.stages[found.slowest]
    cost = a_step(subject.shares.cost(Cost.IMBALANCE))
    work = [float(np.median(own)) / 1e6 for own in found.work_ns]
    return [
        subject.costing(
            Cost.IMBALANCE,
            id=ID,
            title=f"{_stage(subject, found)} has more work than the others: {cost}",
            action=_action(found),
            evidence=(
                Evidence(
                    "segments",
                    "work of the slowest stage over the mean",
                    round(max(work) / float(np.mean(work)), 3),
                    "",
                ),
                *(
                    Evidence("segments", f"{rank_words(own)}: work of a step, median", round(ms, 3), "ms")
                    for own, ms in list(zip(found.stages, work, strict=True))[:8]
                ),
            ),
            ranks=ranks,
        )
    ]


def _stage(subject: Subject, found: Pipeline) -> str:
    """``Stage 1 of the pipeline (rank 1)``; of ranks with several stages each, which one it is is not known."""
    manifest = subject.tables.manifest
    several = manifest is not None and (manifest.trainer.get("stages_per_rank") or 1) != 1
    which = f"Place {found.slowest} in" if several else f"Stage {found.slowest} of"
    return f"{which} the pipeline ({rank_words(found.stages[found.slowest])})"


def _action(found: Pipeline) -> str:
    alone = len(found.stages[found.slowest]) == 1
    slow = (
        " No other rank runs the same layers, so a slow machine would look the same: check its clocks and other "
        "processes on it first."
        if alone
        else ""
    )
    return (
        f"Give it fewer layers. The first stage also has the embedding, the last one the output "
        f"layer and the loss: they count for some layers each.{slow}"
    )


DIAGNOSIS = Diagnosis(ID, "unbalanced pipeline stages", find, cannot_look)
