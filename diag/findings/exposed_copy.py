"""Host-to-device copies that no computation hides."""

from __future__ import annotations

from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns
from diag.model import Finding


def find(subject: Subject) -> list[Finding]:
    if subject.shares.share(Cost.COPY) < MENTION:
        return []
    copied = mean_ns(subject.shares.cost(Cost.COPY))
    return [
        subject.costing(
            Cost.COPY,
            id="exposed-copy",
            title=f"The device waits for copies from the host: {copied / 1e6:.1f} ms a step",
            action="Copy from pinned memory (pin_memory=True) with non_blocking=True, one batch ahead.",
            evidence=subject.per_rank("exposed_copy_ns"),
        )
    ]
