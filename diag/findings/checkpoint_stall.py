"""Saving that stops the training."""

from __future__ import annotations

from diag.findings.culprits import find_culprits
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, severity
from diag.model import Bottleneck, Evidence, Finding


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    share = shares.share(Cost.CHECKPOINT)
    if share < MENTION:
        return []
    saved = shares.cost(Cost.CHECKPOINT)
    saving = saved[saved > 0]
    culprits = find_culprits(shares.blame_ns.get(Cost.CHECKPOINT, {}), shares.dur_ns, len(shares.ranks))
    return [
        Finding(
            id="checkpoint-stall",
            title=f"Checkpoints stop the training: {saving.mean() / 1e6:.0f} ms in {len(saving)} of {len(saved)} steps",
            severity=severity(share),
            share=share,
            cost_ns_per_step=mean_ns(saved),
            confidence=subject.confidence(saved),
            ranks=culprits.ranks,
            evidence=(
                Evidence("critical path", "checkpoint, part of all steps", round(share, 4), "share"),
                Evidence("steps", "steps with a checkpoint", float(len(saving)), "steps"),
            ),
            bottleneck=Bottleneck.COMPUTE,
            action="Save asynchronously (torch.distributed.checkpoint.async_save with its own group), or less often.",
        )
    ]
