"""Pauses of Python's garbage collector on the critical path."""

from __future__ import annotations

from diag.findings.culprits import find_culprits
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, severity
from diag.model import Bottleneck, Evidence, Finding


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    share = shares.share(Cost.GC)
    if share < MENTION:
        return []
    paused = shares.cost(Cost.GC)
    culprits = find_culprits(shares.blame_ns.get(Cost.GC, {}), shares.dur_ns, len(shares.ranks))
    return [
        Finding(
            id="gc-pause",
            title=f"Python's garbage collector stops the training: {mean_ns(paused) / 1e6:.0f} ms a step",
            severity=severity(share),
            share=share,
            cost_ns_per_step=mean_ns(paused),
            confidence=subject.confidence(paused),
            ranks=culprits.ranks,
            evidence=(Evidence("critical path", "garbage collection, part of all steps", round(share, 4), "share"),),
            bottleneck=Bottleneck.COMPUTE,
            action="Call gc.freeze() after setting up, then gc.disable(), and gc.collect() every few hundred steps on "
            "all ranks together.",
        )
    ]
