"""Exposed communication that no other diagnosis claims (diag.diagnoses.comm_cause)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from diag.diagnoses.policy import COMMUNICATION, FINDINGS
from diag.model.steps import Finding
from diag.words import sentences

from . import (
    ddp_buckets,
    low_bus_bandwidth,
    missing_prefetch,
    reduce_scatter_stall,
    regather_in_backward,
    sync_every_micro_step,
    zero_buckets,
)
from .comm_cause import (
    Cause,
    Claim,
    bandwidth,
    cause_of,
    evidence_by_axis,
    shards_optimizer_only,
    slow_link_of,
    worth_asking,
)
from .costs import Cost
from .ids import EXPOSED_COMMUNICATION, SLOW_LINK, WAITING_FOR_MISSING
from .missing_ranks import missing_ranks
from .subject import Column, Diagnosis, Subject, in_ms, mean_ns


def find(subject: Subject) -> list[Finding]:
    if Column.CALLS in subject.lacks:
        return [_without_calls(subject)]
    shares = subject.shares
    rest = 1 - sum(claim.part for claim in subject.once(claims_of))
    if rest < 1 and rest * shares.share(Cost.COMM) < FINDINGS.mention_share:
        return []
    cause = subject.once(cause_of)
    if cause.unseen:
        return _with_missing_ranks(subject, cause)
    exposed = rest * mean_ns(shares.cost(Cost.COMM))
    title = sentences.EXPOSED_COMMUNICATION if rest == 1 else sentences.OTHER_EXPOSED_COMMUNICATION
    return [
        subject.costing(
            Cost.COMM,
            id=cause.id,
            title=title(cost=f"{in_ms(exposed)} {subject.per}", why=cause.why),
            action=cause.action,
            evidence=(*cause.evidence, *evidence_by_axis(subject), *bandwidth(subject)),
            ranks=subject.once(slow_link_of).ranks,
            part=rest,
        )
    ]


def _without_calls(subject: Subject) -> Finding:
    cost = subject.each(subject.shares.cost(Cost.COMM))
    return subject.costing(
        Cost.COMM,
        id=EXPOSED_COMMUNICATION,
        title=sentences.EXPOSED_COMMUNICATION(cost=cost, why="every rank waits at least that long"),
        action="Record a profiler window of a few ranks (`diag trace`) to see which collectives, and why.",
        evidence=subject.per_rank("exposed_comm_ns"),
    )


def _with_missing_ranks(subject: Subject, cause: Cause) -> list[Finding]:
    """Time beyond the fastest call of the same size is waiting; the rest is transfer, or waiting common to all calls.
    Neither is evidence about the network."""
    missing = subject.once(missing_ranks)
    if missing is None:
        return []
    whole = mean_ns(subject.shares.cost(Cost.COMM))
    share, waiting = subject.shares.share(Cost.COMM), missing.waiting
    findings: list[Finding] = []
    if waiting * share >= FINDINGS.mention_share:
        findings.append(
            subject.costing(
                Cost.COMM,
                id=WAITING_FOR_MISSING,
                title=sentences.COLLECTIVES_WAIT(
                    len(missing.ranks), cost=f"{in_ms(waiting * whole)} {subject.per}", ranks=missing.names
                ),
                action=missing.action,
                evidence=missing.evidence,
                part=waiting,
            )
        )
    if (1 - waiting) * share >= FINDINGS.mention_share or not findings:
        part, exposed = 1.0, sentences.EXPOSED_COMMUNICATION
        if findings:
            part, exposed = 1 - waiting, sentences.OTHER_EXPOSED_COMMUNICATION
        findings.append(
            subject.costing(
                Cost.COMM,
                id=cause.id,
                title=exposed(cost=f"{in_ms(part * whole)} {subject.per}", why=cause.why),
                action=cause.action,
                evidence=(*cause.evidence, *(() if findings else missing.evidence), *evidence_by_axis(subject)),
                part=part,
            )
        )
    return [
        replace(finding, confidence=min(finding.confidence, COMMUNICATION.confidence_of_missing_ranks))
        for finding in findings
    ]


def claims_of(subject: Subject) -> tuple[Claim, ...]:
    """All claims that are worth mentioning; none where one cause explains all of the communication."""
    if not worth_asking(subject):
        return ()
    slow = low_bus_bandwidth.claim(subject)
    if slow is not None:  # a wire below its best delays everything, so it is to be fixed first
        return (slow,)
    claims: tuple[Claim | None, ...]
    if subject.once(shards_optimizer_only):
        claims = (sync_every_micro_step.claim(subject), zero_buckets.claim(subject))
    else:
        gathers = regather_in_backward.claim(subject)
        claims = (
            missing_prefetch.claim(subject),
            gathers,
            sync_every_micro_step.claim(subject),
            reduce_scatter_stall.claim(subject, gathers_claimed=gathers is not None),
            ddp_buckets.claim(subject),
        )
    exposed = subject.shares.share(Cost.COMM)
    return tuple(claim for claim in claims if claim is not None and claim.part * exposed >= FINDINGS.mention_share)


def finder(id: str) -> Callable[[Subject], list[Finding]]:
    """The ``find`` of a diagnosis of a part of the communication: returns its finding, if its claim was made."""

    def find_part(subject: Subject) -> list[Finding]:
        return [
            subject.costing(
                Cost.COMM,
                id=claim.id,
                title=claim.title,
                action=claim.action,
                evidence=claim.evidence,
                part=claim.part,
                title_ms=round(claim.ms, 1),
            )
            for claim in subject.once(claims_of)
            if claim.id == id
        ]

    return find_part


DIAGNOSIS = Diagnosis(
    find,
    needs=(
        "collectives in the records or in a trace. On a GPU without a profiler window, it needs the waits of the "
        "training's stream (`device_steps.jsonl`)."
    ),
    means={
        EXPOSED_COMMUNICATION: "Too little computation overlaps with communication.",
        "communication-not-overlapped": "No computation overlaps with communication.",
        WAITING_FOR_MISSING: (
            "Ranks of the job were not recorded, and collectives take longer than the fastest of their size. The rest "
            "is waiting, probably for those ranks."
        ),
        "slow-network": "Every collective is slow.",
        SLOW_LINK: "The results of one rank arrive late.",
        "root-only-unit": "The whole model is one FSDP unit, so nothing can be prefetched.",
        "latency-bound-collectives": "There are many collectives that are too small for their latency.",
        "many-small-modules": (
            "DeepSpeed's ZeRO-3 gathers many small modules one by one, such as experts, which a leaf module gathers at "
            "once."
        ),
        "crowded-host": "There are more CPU ranks than cores, so transfers wait for a core.",
        "pipeline-communication": "Most of the exposed communication is messages between pipeline stages.",
        "tensor-parallel-communication": "Most of the exposed communication belongs to tensor parallelism.",
    },
)
_PARTS = (
    low_bus_bandwidth,
    missing_prefetch,
    regather_in_backward,
    sync_every_micro_step,
    reduce_scatter_stall,
    ddp_buckets,
    zero_buckets,
)
PARTS = {
    part.ID: Diagnosis(
        finder(part.ID),
        needs=part.NEEDS,
        means={part.ID: part.MEANS},
    )
    for part in _PARTS
}
