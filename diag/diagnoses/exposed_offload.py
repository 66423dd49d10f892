"""Parameters, gradients or optimizer states offloaded to the host: copies that are not overlapped, and a device that
waits while its host fetches, updates or stores them."""

from __future__ import annotations

import numpy as np

from diag.diagnoses.policy import FINDINGS
from diag.model.query import Query
from diag.model.steps import Detail, Evidence, Finding, Kind

from .costs import Cost
from .subject import Diagnosis, Subject, mean_ns

ID = "exposed-offload"


def find(subject: Subject) -> list[Finding]:
    copied_ms = mean_ns(subject.shares.cost(Cost.OFFLOAD)) / 1e6
    return [
        subject.costing(
            Cost.OFFLOAD,
            id=ID,
            title=f"The device waits for offloaded states: {copied_ms:.1f} ms {subject.per}",
            action="Keep on the device what fits (see `diag plan`): the parameters first, then the optimizer. "
            "For the rest: pinned memory (CPUOffloadPolicy(pin_memory=True); DeepSpeed, offload_optimizer and "
            'offload_param: "pin_memory": true), and more micro-batches a step. On NVMe: "pipeline_read" and '
            '"pipeline_write" of offload_optimizer.',
            evidence=_per_rank(subject),
            title_ms=round(copied_ms, 1),
        )
    ]


def _per_rank(subject: Subject) -> tuple[Evidence, ...]:
    """Mean over the counted steps: exposed copies, and waiting for the host."""
    usable = set(subject.shares.numbers)
    spent: dict[int, list[tuple[int, int]]] = {}
    for step in subject.attribution.rank_steps:
        if step.step in usable:
            both = (step.segments.total(kind, Detail.OFFLOAD) for kind in (Kind.COPY, Kind.IDLE))
            spent.setdefault(step.rank, []).append((next(both), next(both)))
    means = {rank: np.mean(step_ns, axis=0) / 1e6 for rank, step_ns in spent.items()}
    most = sorted(means, key=lambda rank: -means[rank].sum())[: FINDINGS.ranks_as_evidence]
    return tuple(
        Evidence(
            f"rank {rank}, {quantity}",
            round(float(means[rank][i]), 3),
            "ms",
            Query("steps", {**subject.counted, "rank": rank}),
        )
        for rank in most
        for i, quantity in enumerate(("exposed offload copies", "waiting for offloaded states"))
        if means[rank][i] > 0
    )


DIAGNOSIS = Diagnosis(
    find,
    needs="a run on a GPU.",
    means={
        ID: (
            "Parameters, gradients or optimizer states are kept on the host (CPU or NVMe). Their copies are not "
            "overlapped, and the device waits while the host fetches, updates or stores them."
        ),
    },
)
