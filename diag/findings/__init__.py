"""The diagnoses: one file each, one pure function each, found through the registry below.

A finding looks at the account of the steps and says what costs time, whose fault it is, and what to do about it. What
was looked for and not found, and what could not be looked for, are results as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diag.findings import (
    checkpoint_stall,
    exposed_communication,
    exposed_copy,
    garbage_collection,
    host_bound,
    memory_pressure,
    mismatched_collectives,
    slow_data,
    straggler,
)
from diag.findings.noise import noise_of
from diag.findings.shares import Shares, shares_of
from diag.findings.subject import Subject
from diag.ingest.run import Tables
from diag.model import Attribution, Finding

# What is looked for, by the question that the reader has.
REGISTRY: dict[str, Callable[[Subject], Sequence[Finding]]] = {
    "slow data loading": slow_data.find,
    "exposed host-to-device copies": exposed_copy.find,
    "exposed communication": exposed_communication.find,
    "a slow rank": straggler.find,
    "garbage collection pauses": garbage_collection.find,
    "checkpoint stalls": checkpoint_stall.find,
    "a device that waits for its host": host_bound.find,
    "memory pressure": memory_pressure.find,
    "collectives of different sizes": mismatched_collectives.find,
}


@dataclass(frozen=True)
class Examination:
    """``findings``: most expensive first. ``not_found`` and ``not_looked`` (with the reason) complete the picture."""

    findings: tuple[Finding, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[str, ...]
    shares: Shares


def examine(attribution: Attribution, tables: Tables) -> Examination:
    """Asks every diagnosis."""
    subject = Subject(attribution, tables, shares_of(attribution, tables.on_device, noise_of(tables)))
    found: list[Finding] = []
    not_found, not_looked = [], []
    for question, find in REGISTRY.items():
        reason = subject.cannot_look(question)
        if reason:
            not_looked.append(f"{question}: {reason}")
            continue
        answers = find(subject)
        found.extend(answers)
        if not answers:
            not_found.append(question)
    found.sort(key=lambda finding: (-finding.share, finding.id))
    return Examination(tuple(found), tuple(not_found), tuple(not_looked), subject.shares)
