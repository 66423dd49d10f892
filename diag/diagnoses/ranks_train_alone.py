"""Ranks of one job that do not communicate: each trains its own model, and none waits for another."""

from __future__ import annotations

from diag.diagnoses.policy import STRAGGLER
from diag.model.query import Query
from diag.model.steps import Evidence, Finding, Severity

from .ids import RANKS_TRAIN_ALONE as ID
from .needs import group_sizes, ranks_alone
from .subject import Diagnosis, Subject


def find(subject: Subject) -> list[Finding]:
    if not subject.once(ranks_alone):
        return []
    ranks, steps = len(subject.attribution.ranks), Query("steps", subject.counted)
    rows = sum(int((group_sizes(rank_tables) == 1).sum()) for rank_tables in subject.tables.ranks.values())
    return [
        Finding(
            id=ID,
            title=f"The {ranks} ranks do not communicate: they exchange no gradients and no parameters, so "
            "each trains a model of its own",
            severity=Severity.CRITICAL,
            confidence=STRAGGLER.confidence_of_ranks_alone_with_trace
            if any(rank_tables.traces for rank_tables in subject.tables.ranks.values())
            else STRAGGLER.confidence_of_ranks_alone,
            evidence=(
                Evidence("in groups of more than one rank, counted steps", 0.0, "calls", steps),
                Evidence("in groups of one rank", float(rows), "calls", steps),
                Evidence("counted steps", float(len(subject.shares.numbers)), "steps", steps),
            ),
            action="Wrap the model (DistributedDataParallel, fully_shard, or accelerator.prepare), or call the "
            "collectives yourself. With FSDP's HYBRID_SHARD pass a device mesh. If the ranks are meant to be "
            "independent trainings, record each as a run of its own.",
        )
    ]


DIAGNOSIS = Diagnosis(
    find,
    needs="two ranks or more, and recorded collectives.",
    means={
        ID: (
            "Ranks of one job exchanged nothing: each trains a model of its own. This finding comes before every other."
        ),
    },
)
