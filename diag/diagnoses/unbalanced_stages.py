"""A pipeline stage with more work than the others, so that it sets the pace of all."""

from __future__ import annotations

import numpy as np

from diag.account.pipeline import Pipeline
from diag.diagnoses.policy import FINDINGS
from diag.model.axes import rank_words
from diag.model.query import Query
from diag.model.steps import Evidence, Finding

from .costs import Cost
from .pipeline_bubble import pipeline
from .subject import Diagnosis, Subject

ID = "unbalanced-stages"


def find(subject: Subject) -> list[Finding]:
    account = subject.once(pipeline)
    if account is None:
        return []
    ranks = account.stages[account.slowest]
    cost = subject.each(subject.shares.cost(Cost.IMBALANCE))
    work = [float(np.median(stage_ns)) / 1e6 for stage_ns in account.work_ns]
    return [
        subject.costing(
            Cost.IMBALANCE,
            id=ID,
            title=f"{_stage(subject, account)} has more work than the others: {cost}",
            action=_action(account),
            evidence=(
                Evidence(
                    "work of the slowest stage over the mean",
                    round(max(work) / float(np.mean(work)), 3),
                    "",
                    Query("steps", {**subject.counted, "rank": list(ranks)}),
                ),
                *(
                    Evidence(
                        f"{rank_words(stage_ranks)}: work {subject.of_whole}, median",
                        round(ms, 3),
                        "ms",
                        Query("steps", {**subject.counted, "rank": list(stage_ranks)}),
                    )
                    for stage_ranks, ms in list(zip(account.stages, work, strict=True))[: FINDINGS.ranks_as_evidence]
                ),
            ),
            ranks=ranks,
        )
    ]


def _stage(subject: Subject, account: Pipeline) -> str:
    """``Stage 1 of the pipeline (rank 1)``; with several stages per rank, it is not known which one."""
    manifest = subject.tables.manifest
    several = manifest is not None and (manifest.trainer.get("stages_per_rank") or 1) != 1
    which = f"Position {account.slowest} in" if several else f"Stage {account.slowest} of"
    return f"{which} the pipeline ({rank_words(account.stages[account.slowest])})"


def _action(account: Pipeline) -> str:
    alone = len(account.stages[account.slowest]) == 1
    slow = (
        " No other rank runs the same layers, so a slow machine would look the same: check its clocks and other "
        "processes on it first."
        if alone
        else ""
    )
    return (
        f"Give it fewer layers. The first stage also has the embedding, the last one the output "
        f"layer and the loss: each costs as much as several layers.{slow}"
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="a run with pipeline parallelism.",
    means={
        ID: "A pipeline stage has more work than the mean. With one rank a stage, a slow machine looks the same.",
    },
)
