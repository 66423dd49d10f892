"""The diagnoses: one file each, which ``registry`` lists, and which is loaded where a run may show what it looks for.

A diagnosis examines the account of the steps and returns findings: their cost, the culprits and the remedy. Problems
that were not found, and those that could not be looked for, are results as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diag.account.attribute import Profiled, profiled
from diag.account.device_clock import DeviceClocked, on_device_clocks
from diag.account.durations import durations_of, of_steps
from diag.account.frontier import BlockAccount
from diag.account.scheduling import Scheduling, scheduling_of
from diag.deferred import by_name
from diag.model.accounts import Attribution
from diag.model.steps import Finding, Knob, NotLooked
from diag.rundir.durations import with_ranks
from diag.rundir.sharing import Sharing, sharing_of
from diag.rundir.tables import Tables
from diag.words.wording import ONLY_DURATIONS

from . import durations, ids, needs
from .cost_rows import Source
from .costs import Cost
from .durations import CollectivesAccount, collectives_account
from .hidden_waits import Gain, with_hidden_waits
from .phases import PhaseAccount, phases_from, phases_of, unlike_the_rest
from .registry import BY_ID, DIAGNOSES
from .relabel import relabelled
from .resolutions import Comparison, follow
from .shares import NO_NOISE, Shares, noise_of
from .subject import Listed, Subject
from .timelines import shares_of

# With a finding in hand, what the machines say about it; of a run whose machines were recorded.
_cited: Callable[[Subject, Finding], Finding] = by_name("diag.diagnoses.machine_samples:cited")

# The findings, what was not found, and what was not looked for: as in ``Examination``.
Answers = tuple[tuple[Finding, ...], tuple[str, ...], tuple[NotLooked, ...]]


def answered_by(knob: Knob) -> dict[str, str]:
    """The ids of the findings that a knob answers, with what to change, "" where the knob says that."""
    return {id: knobs[knob] for listed in DIAGNOSES for id, knobs in listed.knobs.items() if knob in knobs}


class Examination(Struct, frozen=True):
    """``findings``: most expensive first. ``not_found`` and ``not_looked`` (with the reason) complete the picture.
    ``phases``: the account from the durations of phases, None where there is none; ``doubts``: what contradicts the
    findings. ``followed``: where the phases explain what the timelines leave open, and the answer follows them.
    ``collectives``: the account from the durations of collectives, where these are known and their exposed part is not.
    ``longer``: what the profiler adds to a step."""

    findings: tuple[Finding, ...]
    not_found: tuple[str, ...]
    not_looked: tuple[NotLooked, ...]
    shares: Shares
    phases: PhaseAccount | None = None
    doubts: tuple[str, ...] = ()
    scheduling: Scheduling = field(default_factory=Scheduling)
    followed: str = ""
    collectives: CollectivesAccount | None = None
    longer: Profiled | None = None

    def unseen(self, cost: Cost) -> str:
        """Why this cost could not be looked for; "" if it was."""
        looks_for = next(diagnosis.id for diagnosis in DIAGNOSES if cost in diagnosis.costs)
        return next((item.reason for item in self.not_looked if item.diagnosis == looks_for), "")


def examine(
    attribution: Attribution,
    tables: Tables,
    clocked: Mapping[int, DeviceClocked] | None = None,
    blocks: BlockAccount | None = None,
    gain: Gain | None = None,
) -> Examination:
    """``clocked``: as in ``attribute``. ``blocks``: of a long run. ``gain``: of ranks that would be as fast as the
    others."""
    clocked, noise = on_device_clocks(tables) if clocked is None else clocked, noise_of(tables)
    shares = shares_of(attribution, tables.on_device, noise)
    if blocks is None:
        phases = phases_of(attribution, tables, clocked, noise)
        scheduling = scheduling_of(tables, shares.numbers)
    else:
        phases = phases_from(blocks.frontier, attribution, tables, clocked, noise)
        scheduling = blocks.scheduling
    alone, sharing = needs.train_alone(attribution, tables), sharing_of(tables)
    shares = relabelled(shares, scheduling, attribution, alone, sharing)
    if phases is not None:
        phases = replace(phases, shares=relabelled(phases.shares, scheduling, attribution, alone, sharing))
    compared, by_phases = Comparison(shares), None
    if phases is not None and phases.alone:
        compared = Comparison(phases.shares)
    elif phases is not None:
        by_phases = phases.shares
        compared = follow(shares, by_phases)
    if gain is not None and attribution.counted.parts.overlapped_comm_ns.any():  # else nothing hides
        compared = replace(compared, shares=with_hidden_waits(compared.shares, gain))
    rests_on_phases = compared.shares.source == Source.PHASES
    subject = Subject(attribution, tables, compared.shares, rests_on_phases, by_phases, scheduling)
    findings, not_found, not_looked = ask(subject, DIAGNOSES)
    not_looked += needs.inside_fused(attribution)
    longer = profiled(attribution, tables)
    doubts = tuple(doubt for doubt in (compared.doubt, unlike_the_rest(attribution, tables, longer)) if doubt)
    collectives = _collectives_of(attribution, tables, sharing)
    answers = with_collectives((findings, not_found, not_looked), collectives)
    return Examination(
        *answers,
        compared.shares,
        phases,
        doubts,
        scheduling,
        compared.followed,
        collectives,
        longer,
    )


def examine_collectives(collectives: CollectivesAccount) -> Examination:
    """For a job of which nothing else is known: it has no steps."""
    findings = durations.find(collectives)
    looked = BY_ID[ids.STRAGGLER]
    not_looked = tuple(NotLooked(d.question, ONLY_DURATIONS, d.id) for d in DIAGNOSES if d is not looked)
    steps = Shares((), np.zeros(0), (), collectives.durations.ranks, True, NO_NOISE)
    not_found = () if findings else (looked.question,)
    return Examination(findings, not_found, not_looked, steps, collectives=collectives)


def _collectives_of(attribution: Attribution, tables: Tables, sharing: Sharing) -> CollectivesAccount | None:
    """For a run on GPUs without any profiler window, whose communication is known from these durations only. Where
    ranks take turns on a GPU, durations do not show who arrives last."""
    if tables.durations is None or attribution.comm_known or sharing.ranks:
        return None
    read, ranks = tables.durations
    account = of_steps(durations_of(with_ranks(read, ranks), read.sizes), attribution, read.seen)
    return collectives_account(account, read) if account.complete else None


def with_collectives(answers: Answers, collectives: CollectivesAccount | None) -> Answers:
    """The answers with the late ranks of this account, which shows them where the other accounts may not."""
    if collectives is None:
        return answers
    findings, not_found, not_looked = answers
    looked, late = BY_ID[ids.STRAGGLER], durations.find(collectives)
    findings = tuple(sorted((*findings, *late), key=lambda finding: (-finding.share, finding.id)))
    open_before = any(item.diagnosis == looked.id for item in not_looked)
    not_looked = tuple(item for item in not_looked if item.diagnosis != looked.id)
    not_found = tuple(question for question in not_found if question != looked.question or not late)
    not_found += (looked.question,) if open_before and not late else ()
    return findings, not_found, not_looked


def ask(subject: Subject, diagnoses: Iterable[Listed]) -> Answers:
    """The first three fields of ``Examination``."""
    findings: list[Finding] = []
    not_found, not_looked = [], []
    machines = subject.machines is not None or any(of_rank.machine for of_rank in subject.tables.ranks.values())
    for diagnosis in diagnoses:
        if reason := diagnosis.unseen(subject):
            not_looked.append(NotLooked(diagnosis.question, reason, diagnosis.id))
            continue
        answers = diagnosis.diagnosis.find(subject) if diagnosis.worth_looking(subject.shares) else ()
        findings.extend(_cited(subject, answer) if machines else answer for answer in answers)
        if not answers:
            not_found.append(diagnosis.question)
    findings.sort(key=lambda finding: (finding.id != ids.RANKS_TRAIN_ALONE, -finding.share, finding.id))
    return tuple(findings), tuple(not_found), tuple(not_looked)
