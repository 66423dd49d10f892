"""The diagnoses: one file each, one pure function each, found through the registry below.

A finding looks at the account of the steps and says what costs time, whose fault it is, and what to do about it. What
was looked for and not found, and what could not be looked for, are results as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from diag.account.pipeline import pipeline_of
from diag.account.scheduling import Scheduling, scheduling_of
from diag.model.steps import Attribution, Finding
from diag.rundir.run import Tables

from . import (
    checkpoint_stall,
    contended_host,
    ddp_buckets,
    exposed_communication,
    exposed_copy,
    exposed_offload,
    garbage_collection,
    host_bound,
    low_bus_bandwidth,
    low_mfu,
    memory_pressure,
    mismatched_collectives,
    missing_prefetch,
    pipeline_bubble,
    ranks_train_alone,
    recompute_with_memory_free,
    reduce_scatter_stall,
    regather_in_backward,
    slow_data,
    stalled_rank,
    straggler,
    sync_every_micro_step,
    throttled_device,
    unbalanced_stages,
    unseen_communication,
    zero_buckets,
)
from .shares import Shares, charge, noise_of, shares_of, with_pipeline
from .stages import Stages, disagreement, stages_of
from .subject import Subject

# What is looked for, by the question that the reader has.
Find = Callable[[Subject], Sequence[Finding]]

REGISTRY: dict[str, Find] = {
    "slow data loading": slow_data.find,
    "exposed host-to-device copies": exposed_copy.find,
    "exposed offload copies": exposed_offload.find,
    "exposed communication": exposed_communication.find,
    "collectives below their group's best": exposed_communication.finder(low_bus_bandwidth.ID),
    "gathers that nothing prefetches": exposed_communication.finder(missing_prefetch.ID),
    "gathers in the backward": exposed_communication.finder(regather_in_backward.ID),
    "reductions in every micro-batch": exposed_communication.finder(sync_every_micro_step.ID),
    "a backward that waits for reductions": exposed_communication.finder(reduce_scatter_stall.ID),
    "buckets that are reduced late": exposed_communication.finder(ddp_buckets.ID),
    "ZeRO's reductions that the backward does not hide": exposed_communication.finder(zero_buckets.ID),
    "a slow rank": straggler.find,
    "pipeline bubbles": pipeline_bubble.find,
    "unequal pipeline stages": unbalanced_stages.find,
    "a throttled device": throttled_device.find,
    "ranks that wait for a CPU core": contended_host.find,
    "ranks that are blocked": stalled_rank.find,
    "ranks that exchange nothing": ranks_train_alone.find,
    "garbage collection pauses": garbage_collection.find,
    "checkpoint stalls": checkpoint_stall.find,
    "a device that waits for its host": host_bound.find,
    "memory pressure": memory_pressure.find,
    "recomputation with memory to spare": recompute_with_memory_free.find,
    "low use of the device's arithmetic": low_mfu.find,
    "collectives of different sizes": mismatched_collectives.find,
}

# Why a question cannot be answered, where the diagnosis itself knows best; the others are in ``Subject.cannot_look``.
LIMITS: dict[str, Callable[[Subject], str]] = {
    "exposed communication": unseen_communication.unrecognised,
    "collectives below their group's best": low_bus_bandwidth.cannot_look,
    "gathers that nothing prefetches": missing_prefetch.cannot_look,
    "gathers in the backward": regather_in_backward.cannot_look,
    "reductions in every micro-batch": sync_every_micro_step.cannot_look,
    "a backward that waits for reductions": reduce_scatter_stall.cannot_look,
    "buckets that are reduced late": ddp_buckets.cannot_look,
    "ZeRO's reductions that the backward does not hide": zero_buckets.cannot_look,
    "pipeline bubbles": pipeline_bubble.cannot_look,
    "unequal pipeline stages": unbalanced_stages.cannot_look,
    "a throttled device": throttled_device.cannot_look,
    "ranks that wait for a CPU core": contended_host.cannot_look,
    "ranks that are blocked": stalled_rank.cannot_look,
    "ranks that exchange nothing": ranks_train_alone.cannot_look,
    "recomputation with memory to spare": recompute_with_memory_free.cannot_look,
    "low use of the device's arithmetic": low_mfu.cannot_look,
}


class Examination(Struct, frozen=True):
    """``findings``: most expensive first. ``not_found`` and ``not_looked`` (with the reason) complete the picture.
    ``stages``: the account from the durations of stages, None where there is none; ``doubts``: what contradicts the
    findings."""

    findings: tuple[Finding, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[str, ...]
    shares: Shares
    stages: Stages | None = None
    doubts: tuple[str, ...] = ()
    scheduling: Scheduling = field(default_factory=Scheduling)


def examine(attribution: Attribution, tables: Tables) -> Examination:
    """Asks every diagnosis."""
    noise = noise_of(tables)
    shares, stages = shares_of(attribution, tables.on_device, noise), stages_of(attribution, tables, noise)
    scheduling = scheduling_of(tables, shares.numbers)
    alone = ranks_train_alone.train_alone(attribution, tables)

    def charged(account: Shares) -> Shares:
        return charge(ranks_train_alone.without_others(account) if alone else account, scheduling, attribution)

    shares = charged(shares)
    if stages is not None:
        stages = replace(stages, shares=charged(stages.shares))
    doubt = disagreement(stages, shares)
    shares = with_pipeline(shares, pipeline_of(attribution, shares.numbers))
    by_stages = stages.shares if stages is not None else None
    if stages is not None and stages.alone and by_stages is not None:
        subject = Subject(attribution, tables, by_stages, stages_alone=True, scheduling=scheduling)
    else:
        subject = Subject(attribution, tables, shares, by_stages=by_stages, scheduling=scheduling)
    found, not_found, not_looked = ask(
        subject,
        (
            (question, find, subject.cannot_look(question) or (LIMITS[question](subject) if question in LIMITS else ""))
            for question, find in REGISTRY.items()
        ),
    )
    not_looked += unseen_communication.inside_fused(attribution)
    doubts = (doubt,) if doubt else ()
    return Examination(found, not_found, not_looked, subject.shares, stages, doubts, scheduling)


def ask(
    subject: Subject, questions: Iterable[tuple[str, Find, str]]
) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[str, ...]]:
    """The first three fields of ``Examination``. A question comes with who answers it, and why it cannot be looked for,
    "" where it can."""
    found: list[Finding] = []
    not_found, not_looked = [], []
    for question, find, reason in questions:
        if reason:
            not_looked.append(f"{question}: {reason}")
            continue
        answers = find(subject)
        found.extend(answers)
        if not answers:
            not_found.append(question)
    found.sort(key=lambda finding: (finding.id != ranks_train_alone.ID, -finding.share, finding.id))
    return tuple(found), tuple(not_found), tuple(not_looked)
