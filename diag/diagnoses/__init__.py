"""The diagnoses: one file each, listed in ``DIAGNOSES``; those of a part of the communication in
``exposed_communication.PARTS``.

A finding looks at the account of the steps and says what costs time, whose fault it is, and what to do about it. What
was looked for and not found, and what could not be looked for, are results as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from diag.account.pipeline import pipeline_of
from diag.account.scheduling import Scheduling, scheduling_of
from diag.model.steps import Attribution, Finding, NotLooked
from diag.rundir.run import Tables

from . import (
    checkpoint_stall,
    contended_host,
    exposed_communication,
    exposed_copy,
    exposed_offload,
    garbage_collection,
    host_bound,
    low_mfu,
    memory_pressure,
    mismatched_collectives,
    pipeline_bubble,
    ranks_train_alone,
    recompute_with_memory_free,
    slow_data,
    stalled_rank,
    straggler,
    throttled_device,
    unbalanced_stages,
    unseen_communication,
)
from .phases import PhaseAccount, disagreement, phases_of
from .shares import Shares, charge, noise_of, shares_of, with_pipeline
from .subject import Diagnosis, Subject

DIAGNOSES: tuple[Diagnosis, ...] = (
    slow_data.DIAGNOSIS,
    exposed_copy.DIAGNOSIS,
    exposed_offload.DIAGNOSIS,
    exposed_communication.DIAGNOSIS,
    *exposed_communication.PARTS,
    straggler.DIAGNOSIS,
    pipeline_bubble.DIAGNOSIS,
    unbalanced_stages.DIAGNOSIS,
    throttled_device.DIAGNOSIS,
    contended_host.DIAGNOSIS,
    stalled_rank.DIAGNOSIS,
    ranks_train_alone.DIAGNOSIS,
    garbage_collection.DIAGNOSIS,
    checkpoint_stall.DIAGNOSIS,
    host_bound.DIAGNOSIS,
    memory_pressure.DIAGNOSIS,
    recompute_with_memory_free.DIAGNOSIS,
    low_mfu.DIAGNOSIS,
    mismatched_collectives.DIAGNOSIS,
)


class Examination(Struct, frozen=True):
    """``findings``: most expensive first. ``not_found`` and ``not_looked`` (with the reason) complete the picture.
    ``phases``: the account from the durations of phases, None where there is none; ``doubts``: what contradicts the
    findings."""

    findings: tuple[Finding, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[NotLooked, ...]
    shares: Shares
    phases: PhaseAccount | None = None
    doubts: tuple[str, ...] = ()
    scheduling: Scheduling = field(default_factory=Scheduling)


def examine(attribution: Attribution, tables: Tables) -> Examination:
    """Asks every diagnosis."""
    noise = noise_of(tables)
    shares, phases = shares_of(attribution, tables.on_device, noise), phases_of(attribution, tables, noise)
    scheduling = scheduling_of(tables, shares.numbers)
    alone = ranks_train_alone.train_alone(attribution, tables)

    def charged(account: Shares) -> Shares:
        return charge(ranks_train_alone.without_others(account) if alone else account, scheduling, attribution)

    shares = charged(shares)
    if phases is not None:
        phases = replace(phases, shares=charged(phases.shares))
    doubt = disagreement(phases, shares)
    shares = with_pipeline(shares, pipeline_of(attribution, shares.numbers))
    by_phases = phases.shares if phases is not None else None
    if phases is not None and phases.alone and by_phases is not None:
        subject = Subject(attribution, tables, by_phases, phases_alone=True, scheduling=scheduling)
    else:
        subject = Subject(attribution, tables, shares, by_phases=by_phases, scheduling=scheduling)
    found, not_found, not_looked = ask(subject, DIAGNOSES)
    not_looked += unseen_communication.inside_fused(attribution)
    doubts = (doubt,) if doubt else ()
    return Examination(found, not_found, not_looked, subject.shares, phases, doubts, scheduling)


def ask(
    subject: Subject, diagnoses: Iterable[Diagnosis]
) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[NotLooked, ...]]:
    """The first three fields of ``Examination``."""
    found: list[Finding] = []
    not_found, not_looked = [], []
    for diagnosis in diagnoses:
        if reason := diagnosis.cannot_look(subject):
            not_looked.append(NotLooked(diagnosis.question, reason, diagnosis.id))
            continue
        answers = diagnosis.find(subject)
        found.extend(answers)
        if not answers:
            not_found.append(diagnosis.question)
    found.sort(key=lambda finding: (finding.id != ranks_train_alone.ID, -finding.share, finding.id))
    return tuple(found), tuple(not_found), tuple(not_looked)
