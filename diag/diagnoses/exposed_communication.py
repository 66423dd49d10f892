"""Communication that nothing hides, as far as no other diagnosis has a part of it (diag.diagnoses.comm_parts)."""

from __future__ import annotations

from msgspec.structs import replace

from diag.model.steps import Finding

from .comm_axes import evidence_by_axis
from .comm_cause import Cause, bandwidth, cause_of, slow_link_of
from .comm_parts import claims_of
from .missing_ranks import MOST, missing_ranks
from .shares import Cost
from .subject import MENTION, Subject, in_ms, mean_ns


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    if shares.share(Cost.COMM) < MENTION:
        return []
    rest = 1 - sum(claim.part for claim in subject.once(claims_of))
    if rest < 1 and rest * shares.share(Cost.COMM) < MENTION:
        return []
    cause = subject.once(cause_of)
    if cause.unseen:
        return _with_missing_ranks(subject, cause)
    exposed = rest * mean_ns(shares.cost(Cost.COMM))
    also = "" if rest == 1 else " besides"
    return [
        subject.costing(
            Cost.COMM,
            id=cause.id,
            title=f"Communication that nothing hides takes {in_ms(exposed)} a step{also}: {cause.why}",
            action=cause.action,
            evidence=(*cause.evidence, *evidence_by_axis(subject), *bandwidth(subject)),
            ranks=subject.once(slow_link_of).ranks,
            part=rest,
        )
    ]


def _with_missing_ranks(subject: Subject, cause: Cause) -> list[Finding]:
    """What is longer than the fastest call of its size is waiting; the rest is transfer, or waiting that every call
    had. Neither says anything about the network."""
    missing = subject.once(missing_ranks)
    if missing is None:
        return []
    whole = mean_ns(subject.shares.cost(Cost.COMM))
    share, waiting = subject.shares.share(Cost.COMM), missing.waiting
    found: list[Finding] = []
    if waiting * share >= MENTION:
        found.append(
            subject.costing(
                Cost.COMM,
                id="waiting-for-missing-ranks",
                title=f"Collectives wait {in_ms(waiting * whole)} a step, probably for {missing.who}, which "
                f"{'was' if len(missing.ranks) == 1 else 'were'} not recorded",
                action=missing.action,
                evidence=missing.evidence,
                part=waiting,
            )
        )
    if (1 - waiting) * share >= MENTION or not found:
        part, besides = (1 - waiting, " besides") if found else (1.0, "")
        found.append(
            subject.costing(
                Cost.COMM,
                id=cause.id,
                title=f"Exposed communication takes {in_ms(part * whole)} a step{besides}: {cause.why}",
                action=cause.action,
                evidence=(*cause.evidence, *(() if found else missing.evidence), *evidence_by_axis(subject)),
                part=part,
            )
        )
    return [replace(finding, confidence=min(finding.confidence, MOST)) for finding in found]
