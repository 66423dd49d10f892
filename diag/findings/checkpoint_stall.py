"""Saving that stops the training."""

from __future__ import annotations

from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject
from diag.model import Evidence, Finding


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.CHECKPOINT) < MENTION:
        return []
    saved = shares.cost(Cost.CHECKPOINT)
    saving = saved[saved > 0]
    culprits = shares.culprits(Cost.CHECKPOINT)
    return [
        subject.costing(
            Cost.CHECKPOINT,
            id="checkpoint-stall",
            title=f"Checkpoints stop the training: {saving.mean() / 1e6:.0f} ms in {len(saving)} of {len(saved)} steps",
            action="Save asynchronously (torch.distributed.checkpoint.async_save with its own group), or less often.",
            evidence=[Evidence("steps", "steps with a checkpoint", float(len(saving)), "steps")],
            ranks=culprits.ranks,
        )
    ]
