"""Ranks that are ready to run and wait for a CPU core: other processes run on their host, or too many of their own."""

from __future__ import annotations

from collections.abc import Mapping

from diag.account.scheduling import Scheduling, load_of
from diag.diagnoses.policy import FINDINGS
from diag.model.steps import Evidence, Finding
from diag.words import sentences

from .costs import Cost
from .culprits import Culprits, Series
from .shares import Shares
from .subject import Diagnosis, Subject, highest_ranks, late_ranks_text, mean_ns, ranks_text, times_last

ID = "contended-host"


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    culprits = shares.culprits(Cost.CONTENTION)
    unequal = shares.mostly_late(Cost.CONTENTION)
    if culprits.ranks and not subject.scheduling.apart(culprits.ranks, "queued_ns", "loading_ns"):
        unequal = False
    ranks = culprits.ranks if unequal else ()
    cost = subject.each(subject.charged(Cost.CONTENTION, ranks))
    return [
        subject.costing(
            Cost.CONTENTION,
            id=ID,
            title=_title(subject, culprits, unequal, cost),
            action=_action(subject, ranks),
            evidence=_evidence(subject, culprits if unequal else None),
            ranks=ranks,
        )
    ]


def dominates(shares: Shares) -> bool:
    """Whether contention costs so much that more processes or threads would make the run slower."""
    return shares.share(Cost.CONTENTION) >= FINDINGS.warning_share


def no_core_for_loaders(shares: Shares, scheduling: Scheduling) -> bool:
    """Whether more loader processes would wait for cores as well: the cores are taken, and loading needs them."""
    return dominates(shares) and scheduling.loading_needs_cores


def queued(subject: Subject) -> Mapping[int, Series]:
    """Nanoseconds in which a rank was ready to run without a core, by rank and counted step. Ranks without this record
    are left out."""
    return {rank: scheduling.queued_ns for rank, scheduling in subject.scheduling.ranks.items()}


def _title(subject: Subject, culprits: Culprits, unequal: bool, cost: str) -> str:
    if unequal:
        late_ranks = late_ranks_text(culprits).capitalize()
        if not culprits.ranks:
            waits = subject.others_waited(Cost.CONTENTION, culprits)
            return sentences.SOME_RANK_WAITS_FOR_A_CORE(which=late_ranks, cost=cost, waits=waits)
        others_wait = subject.waiting_ranks_text(culprits.ranks)
        count = len(culprits.ranks)
        return sentences.RANKS_WAIT_FOR_A_CORE(count, ranks=late_ranks, cost=cost, others_wait=others_wait)
    one = len(subject.shares.ranks) == 1
    return (sentences.TRAINING_WAITS_FOR_CORES if one else sentences.ALL_RANKS_WAIT_FOR_CORES)(cost=cost)


def _action(subject: Subject, ranks: tuple[int, ...]) -> str:
    asked = ranks or tuple(subject.scheduling.ranks)
    hosts = list(dict.fromkeys(host for rank in asked if (host := subject.host_of(rank))))
    where = f" on {', '.join(hosts[:3])}" if hosts else " on the host"
    known = load_of(subject.tables, subject.scheduling, asked)
    load = f" ({known.runnable:.0f} threads were runnable there, on {known.cores} cores)" if known is not None else ""
    text = (
        f"Find what else runs{where}{load} with top or pidstat: other jobs, loader processes, compute threads "
        "(OMP_NUM_THREADS, torch.set_num_threads). "
    )
    if ranks:
        its = "its" if len(ranks) == 1 else "their"
        return text + f"Give {ranks_text(ranks)} cores of {its} own (taskset, numactl, --cpus-per-task)."
    text += "Use fewer of them, or more cores"
    return text + ("; more loader processes would make it slower." if subject.scheduling.loading_needs_cores else ".")


def _evidence(subject: Subject, culprits: Culprits | None) -> list[Evidence]:
    evidence = []
    if culprits is not None:
        leads, affected = culprits.steps
        evidence.append(times_last(Cost.CONTENTION, culprits.suspects, leads, affected))
    for name, quantity in (
        ("queued_ns", "queued_ns"),
        ("loading_ns", "data wait while queued"),
        ("communicating_ns", "waiting for collectives while queued"),
    ):
        means = subject.scheduling.mean_ms(name)
        if max(means.values(), default=0.0) * 1e6 >= FINDINGS.mention_share * mean_ns(subject.shares.dur_ns) / 2:
            evidence += highest_ranks(subject.scheduling, name, quantity)
    return evidence


DIAGNOSIS = Diagnosis(
    find,
    needs="Linux: the scheduler's counters (`schedstat`).",
    means={
        ID: (
            "Ranks are ready to run and have no CPU core: something else runs on their host, or they have too many "
            "loader processes and compute threads of their own."
        ),
    },
)
