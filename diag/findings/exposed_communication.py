"""Communication that nothing hides, as far as no other diagnosis has a part of it (diag.findings.comm_parts)."""

from __future__ import annotations

from diag.findings.comm_axes import evidence_by_axis
from diag.findings.comm_cause import bandwidth, cause_of, slow_link_of
from diag.findings.comm_parts import claims_of
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns
from diag.model import Finding


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.COMM) < MENTION:
        return []
    rest = 1 - sum(claim.part for claim in subject.once(claims_of))
    if rest < 1 and rest * shares.share(Cost.COMM) < MENTION:
        return []
    cause = subject.once(cause_of)
    exposed = rest * mean_ns(shares.cost(Cost.COMM))
    also = "" if rest == 1 else " besides"
    return [
        subject.costing(
            Cost.COMM,
            id=cause.id,
            title=f"Communication that nothing hides takes {exposed / 1e6:.0f} ms a step{also}: {cause.why}",
            action=cause.action,
            evidence=(*cause.evidence, *evidence_by_axis(subject), *bandwidth(subject)),
            ranks=subject.once(slow_link_of).ranks,
            part=rest,
        )
    ]
