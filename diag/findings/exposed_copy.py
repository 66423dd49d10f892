"""Host-to-device copies that no computation hides."""

from __future__ import annotations

from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, severity
from diag.model import Bottleneck, Evidence, Finding


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    share = shares.share(Cost.COPY)
    if share < MENTION:
        return []
    copied = shares.cost(Cost.COPY)
    return [
        Finding(
            id="exposed-copy",
            title=f"The device waits for copies from the host: {mean_ns(copied) / 1e6:.1f} ms a step",
            severity=severity(share),
            share=share,
            cost_ns_per_step=mean_ns(copied),
            confidence=subject.confidence(copied),
            ranks=(),
            evidence=(
                Evidence("critical path", "exposed copies, part of all steps", round(share, 4), "share"),
                *subject.per_rank("exposed_copy_ns"),
            ),
            bottleneck=Bottleneck.DATA,
            action="Copy from pinned memory (pin_memory=True) with non_blocking=True, one batch ahead.",
        )
    ]
