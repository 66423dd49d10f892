"""Parameters, gradients or optimizer states that are kept on the host, and copies of them that no computation hides."""

from __future__ import annotations

import numpy as np

from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns
from diag.model import Detail, Evidence, Finding, Kind

ID = "exposed-offload"


def find(subject: Subject) -> list[Finding]:
    if subject.shares.share(Cost.OFFLOAD) < MENTION:
        return []
    copied = mean_ns(subject.shares.cost(Cost.OFFLOAD))
    return [
        subject.costing(
            Cost.OFFLOAD,
            id=ID,
            title=f"The device waits for states that are kept on the host: {copied / 1e6:.1f} ms a step",
            action="Keep on the device what fits (diag plan says what does): the parameters first, then the optimizer. "
            "What stays: pinned memory (CPUOffloadPolicy(pin_memory=True); DeepSpeed, offload_optimizer and "
            'offload_param: "pin_memory": true), and more micro-batches between the copies.',
            evidence=_per_rank(subject),
        )
    ]


def _per_rank(subject: Subject) -> tuple[Evidence, ...]:
    """The mean over the steps that count."""
    usable = set(subject.shares.numbers)
    copied: dict[int, list[int]] = {}
    for step in subject.attribution.rank_steps:
        if step.step in usable:
            copied.setdefault(step.rank, []).append(step.segments.total(Kind.COPY, Detail.OFFLOAD))
    values = {rank: round(float(np.mean(own)) / 1e6, 3) for rank, own in copied.items()}
    most = sorted(values, key=lambda rank: -values[rank])[:8]
    return tuple(Evidence("segments", f"rank == {rank}, exposed offload copies", values[rank], "ms") for rank in most)
