"""Large collectives whose bus bandwidth is far below the best that the same group reaches."""

from __future__ import annotations

from diag.diagnoses.policy import COMMUNICATION, FINDINGS
from diag.model.breakdown import CollectiveStat, CollectiveTable
from diag.model.steps import Evidence

from .comm_cause import NEEDS_PARTS, Claim, bandwidth_of, rows_of, table_of_collectives, worth_asking
from .costs import Cost
from .needs import cannot_tell_parts
from .subject import Subject, mean_ns

ID = "low-bus-bandwidth"
NEEDS = f"{NEEDS_PARTS}, and collectives large enough to show the best bandwidth of their group."
MEANS = "Large collectives reach less than half of the best bandwidth of their own group."


def cannot_look(subject: Subject) -> str:
    reason = cannot_tell_parts(subject)
    if reason or not worth_asking(subject):
        return reason
    if not any(row.efficiency is not None for row in _large(subject.once(table_of_collectives))):
        return "no group has collectives large enough to show its best bandwidth"
    return ""


def claim(subject: Subject) -> Claim | None:
    """The exposed time that such collectives would save at their group's best bandwidth."""
    table = subject.once(table_of_collectives)
    low = [
        row
        for row in _large(table)
        if row.efficiency is not None and row.efficiency < COMMUNICATION.low_bandwidth_share
    ]
    exposed = sum(row.exposed_ns for row in table.rows) + table.rest_exposed_ns
    saved = sum(row.exposed_ns * (1 - (row.efficiency or 0.0)) for row in low)
    part = min(1.0, saved / exposed) if exposed else 0.0
    if part * subject.shares.share(Cost.COMM) < FINDINGS.mention_share:
        return None
    worst = max(low, key=lambda row: row.exposed_ns)
    ms = part * mean_ns(subject.shares.cost(Cost.COMM)) / 1e6
    best = worst.efficiency or 0.0
    return Claim(
        ID,
        part,
        ms,
        f"Large collectives run at {best:.0%} of their group's best bandwidth: {ms:.1f} ms {subject.per}",
        "Look for other traffic at that time (other groups, storage, other jobs), for a wrong "
        "interface or missing GPUDirect (NCCL_IB_HCA, NCCL_DEBUG=INFO), and for buffers that are not registered "
        "(set_allocate_memory_from_process_group_for_comm).",
        (
            *(bandwidth_of(row) for row in low[:4]),
            Evidence(
                f"{worst.op}, share of the group's best",
                round(best, 3),
                "share",
                rows_of(worst, "efficiency"),
            ),
        ),
    )


def _large(table: CollectiveTable) -> list[CollectiveStat]:
    largest: dict[str, int] = {}
    for row in table.rows:
        largest[row.group] = max(largest.get(row.group, 0), row.bytes_mean)
    return [
        row
        for row in table.rows
        if row.bytes_mean
        >= max(COMMUNICATION.large_collective_bytes, COMMUNICATION.comparable_size_share * largest[row.group])
    ]
