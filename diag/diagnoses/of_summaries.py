"""The diagnoses of a run that only the ranks' summaries are read of, and what few ranks recorded beside them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from diag.account.device_summaries import hosts_work
from diag.account.durations import durations_of, of_steps
from diag.account.frontier import Frontier
from diag.account.scheduling import Scheduling, scheduling_of
from diag.model.accounts import Attribution, Idle
from diag.model.query import By, Query
from diag.model.steps import NotLooked
from diag.rundir.beside import Beside
from diag.rundir.block_sums import durations_in
from diag.rundir.durations import with_ranks
from diag.rundir.sharing import Sharing, sharing_of
from diag.rundir.summaries import Summaries
from diag.rundir.tables import Tables
from diag.words.formatting import counted

from . import Examination, ask, with_collectives
from .durations import CollectivesAccount, collectives_account
from .phases_alone import phases_alone
from .policy import FINDINGS
from .registry import DIAGNOSES
from .relabel import relabelled
from .shares import Shares, noise_of
from .subject import Column, RankMeans, Subject, mean_ns

_NOT_IN_SUMMARIES = "the ranks' summaries do not contain it; a profiler window does (`diag trace`)"
_IN_SUMMARIES = (Column.PHASES, Column.DEVICE, Column.OWN_DEVICE, Column.MEMORY, Column.NUMBERS)
# What a source of less than the records lacks.
LACKS_IN_SUMMARIES: Mapping[Column, str] = {
    column: _NOT_IN_SUMMARIES for column in Column if column not in _IN_SUMMARIES
}
# What is read of few ranks beside the summaries.
_OF_FEW_RANKS = (Column.SAMPLES, Column.SCHEDULING)


def examine_summary(
    summaries: Summaries,
    frontier: Frontier,
    attribution: Attribution,
    tables: Tables,
    means_ms: Mapping[str, Mapping[int, float]],
    idle: Idle | None = None,
    beside: Beside | None = None,
) -> Examination:
    """As ``examine``, from the phases of the steps, and from what the late ranks and some others recorded beside
    these. ``means_ms``: ``summary_means`` of the frontier's steps. ``idle``: of the devices, of the frontier's ranks
    and steps; None: not known."""
    places = np.flatnonzero(np.isin(summaries.numbers, frontier.numbers)).tolist()
    hosts = hosts_work(summaries, places)
    phases = phases_alone(frontier, summaries.on_device, noise_of(tables), idle, hosts)
    means = RankMeans(Query("summaries", by=By.MEAN), means_ms)
    sharing = sharing_of(tables)
    few = beside.of_ranks(worth_reading(phases.shares)) if beside is not None else {}
    lacks, scheduling = dict(LACKS_IN_SUMMARIES), Scheduling()
    if few:
        tables = replace(tables, ranks={**tables.ranks, **few})
        lacks = {column: reason for column, reason in lacks.items() if column not in _OF_FEW_RANKS}
        scheduling = scheduling_of(replace(tables, ranks=few), phases.shares.numbers)
    explained = scheduling.explains(FINDINGS.mention_share * mean_ns(phases.shares.dur_ns))
    if explained or sharing.ranks:
        known = scheduling if explained else Scheduling()
        labelled = relabelled(phases.shares, known, attribution, alone=False, sharing=sharing)
        phases = replace(phases, shares=labelled)
    machines = beside.machines if beside is not None else None
    subject = Subject(
        attribution, tables, phases.shares, True, scheduling=scheduling, lacks=lacks, means=means, machines=machines
    )
    findings, not_found, not_looked = ask(subject, DIAGNOSES)
    if few and len(few) < len(tables.ranks):
        whole = f"only {len(few)} of {counted(len(tables.ranks), 'rank')} were looked at: late ones, and some others"
        partly = [each for each in DIAGNOSES if each.question in not_found and set(each.reads) & set(_OF_FEW_RANKS)]
        not_looked += tuple(NotLooked(each.question, whole, each.id) for each in partly)
        not_found = tuple(question for question in not_found if question not in {each.question for each in partly})
    collectives = _collectives_of(summaries, attribution, sharing)
    answers = with_collectives((findings, not_found, not_looked), collectives)
    return Examination(*answers, phases.shares, phases, scheduling=scheduling, collectives=collectives)


def _collectives_of(summaries: Summaries, attribution: Attribution, sharing: Sharing) -> CollectivesAccount | None:
    """Of GPUs whose waits were not all observed: from the sums of durations in their summaries.
    Where ranks take turns on a GPU, durations do not show who arrives last."""
    if attribution.comm_known or sharing.ranks or not summaries.durations:
        return None
    spent_ns = int(attribution.steps.dur_ns.sum())
    sums = durations_in(summaries.durations, summaries.ranks, summaries.identities, spent_ns)
    if sums is None:
        return None
    account = durations_of(with_ranks(sums.read, sums.ranks), sums.read.sizes)
    return collectives_account(of_steps(account, attribution) if sums.timed else account, sums.read)


def worth_reading(shares: Shares) -> tuple[int, ...]:
    """The ranks whose records may say why ranks are late: those that the others wait for most because of a cost that is
    worth a mention, and as many others, spread over the job. None where nobody is late."""
    late: dict[int, None] = {}
    for cost in shares.blame_ns:
        if shares.share(cost) >= FINDINGS.mention_share:
            culprits = shares.culprits(cost)
            worst = culprits.ranks or culprits.suspects or tuple(rank for rank, _ in culprits.late_ns)
            late.update(dict.fromkeys(worst[: FINDINGS.late_ranks_read]))
    if not late:
        return ()
    others = [rank for rank in shares.ranks if rank not in late]
    spread = others[:: max(1, len(others) // FINDINGS.late_ranks_read)]
    return (*late, *spread[: FINDINGS.late_ranks_read])
