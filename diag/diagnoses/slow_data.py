"""Waiting for the data loader: on every rank, on one, occasionally, or on one that is not identified."""

from __future__ import annotations

import numpy as np

from diag.account.records import loader_settings
from diag.diagnoses.policy import DATA_LOADING
from diag.model.accounts import Attribution
from diag.model.query import Query
from diag.model.steps import Evidence, Finding
from diag.rundir.tables import Tables
from diag.tables.loading import Reserve, full_share, reserve_of
from diag.traces.kineto_names import ANNOTATION, CPU_OP
from diag.traces.trace import Trace
from diag.words import sentences

from .contended_host import no_core_for_loaders
from .costs import Cost
from .culprits import Culprits
from .subject import Diagnosis, Subject, both_ends, in_ms, mean_ns, ranks_text, waited_for
from .workload import workload

# A loader with workers draws a seed when its iterator is made, just before it starts them.
_WITH_WORKERS, _SEED = r"_MultiProcessingDataLoaderIter\.__next__", r"^aten::random_$"


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    waited = shares.cost(Cost.DATA)
    share = shares.share(Cost.DATA)
    culprits = shares.culprits(Cost.DATA)
    cost = subject.each(waited)
    if _lie_ready(subject, culprits.ranks if culprits.share >= share / 2 else ()):
        return [_handing_over(subject, cost)]
    if culprits.ranks and culprits.share >= share / 2:
        return [_waiting_on(subject, culprits)]
    bursty = bool(np.median(waited / shares.dur_ns) < DATA_LOADING.quiet_median_share)
    suspected = None if bursty else _suspected(subject)
    if suspected is not None:
        return [_uncertain_rank(subject, suspected, cost)]
    if bursty:
        title = f"The data loader stalls occasionally: {cost} on average, in few steps"
        ahead = "prepare more batches ahead" if subject.once(workload).loader is False else "raise prefetch_factor"
        action = f"Buffer the stalls: {ahead}; check what is read when it stalls."
    elif of_first_batch(subject.attribution, subject.tables):
        title = (
            f"The first batch of the data loader takes {in_ms(mean_ns(waited))}, with the start of its worker "
            "processes; whether later batches are late is not in this window"
        )
        action = (
            "Mark the steps with prof.step() and record several of them after the warm-up. If every epoch begins like "
            "this, set persistent_workers=True."
        )
    else:
        title, action = sentences.LOADER_OF_ALL_IS_SLOW(cost=cost), _more_workers(subject)
    return [
        subject.costing(
            Cost.DATA,
            id="slow-data-bursty" if bursty else "slow-data-all-ranks",
            title=title,
            action=action,
            evidence=subject.per_rank("data_wait_ns"),
        )
    ]


def of_first_batch(attribution: Attribution, tables: Tables) -> bool:
    """Whether the only batch in a window without steps is the first of an iterator with workers, on every rank: their
    start is in the wait, and none of them had loaded ahead."""
    traces = [trace for rank in tables.ranks.values() for trace in rank.traces]
    return attribution.undivided and bool(traces) and all(map(_begins_loading, traces))


def _begins_loading(trace: Trace) -> bool:
    fetched = trace.select(ANNOTATION, name=_WITH_WORKERS)
    if len(fetched) != 1:
        return False
    seeds = trace.select(CPU_OP, name=_SEED, within=(trace.begin_ns, int(fetched["ts_ns"][0])))
    return not seeds.is_empty()


def _lie_ready(subject: Subject, ranks: tuple[int, ...]) -> bool:
    """Whether nearly all of the waiting for data fell into steps that found the queue full, on these ranks or on all:
    then no worker was too slow."""
    counted = frozenset(subject.shares.numbers)
    steps_of = [tables.steps for rank, tables in subject.tables.ranks.items() if not ranks or rank in ranks]
    full_shares = (full_share(steps, counted) for steps in steps_of)  # of thousands of ranks the first may decide
    return bool(steps_of) and all(share is not None and share >= DATA_LOADING.full_wait_share for share in full_shares)


def _handing_over(subject: Subject, cost: str) -> Finding:
    return subject.costing(
        Cost.DATA,
        id="slow-batch-handover",
        title=f"Batches are ready in the loader's queue, but handing them over takes {cost}",
        action="Look at what the training's process does to receive a batch: many small tensors, objects that are "
        "pickled, a collate function or a copy in the main process, pin_memory. More workers would not help.",
        evidence=(*subject.per_rank("data_wait_ns"), *_ready(subject.once(_reserves))),
    )


def _suspected(subject: Subject) -> Culprits | None:
    """The ranks that may be the only ones with slow loaders, although that is not proven: then the loaders of all ranks
    cannot be called slow.

    It is ruled out if all ranks waited about as long, if the rank that waits longest changes, or if the others' loaders
    are known to be at their limit.
    """
    half = subject.shares.share(Cost.DATA) / 2
    for shares in (subject.shares, subject.by_phases):
        culprits = shares.culprits(Cost.DATA) if shares is not None else None
        if culprits is not None and culprits.suspects and culprits.share >= half:
            others = _others(subject, culprits.suspects)
            return culprits if not others or _faster(others) else None
    return None


def _uncertain_rank(subject: Subject, suspected: Culprits, cost: str) -> Finding:
    names, (led, affected) = ranks_text(suspected.suspects), suspected.steps
    return subject.costing(
        Cost.DATA,
        id="slow-data-rank-unknown",
        title=sentences.ONE_LOADER_IS_SLOW(
            cost=cost,
            ranks=names.capitalize(),
            count=led,
            affected=affected,
            waits=waited_for(suspected, subject.per),
        ),
        action=f"Record more steps, with a profiler window of all ranks (`diag trace`), and analyse again. If {names} "
        f"still {'waits' if len(suspected.suspects) == 1 else 'wait'} longest, check the storage, the data shard and "
        "the transforms there; more workers on all ranks help only if the others start to wait as long.",
        evidence=(
            Evidence(
                f"steps in which {names} waited longest, of {affected} affected",
                float(led),
                "steps",
                Query("steps", {**subject.counted, "rank": list(suspected.suspects)}, "data_wait_ns"),
            ),
            *subject.per_rank("data_wait_ns"),
            *_ready(subject.once(_reserves)),
        ),
    )


def _waiting_on(subject: Subject, culprits: Culprits) -> Finding:
    """Only these ranks wait for their loaders. Their loaders are at fault unless those of the other ranks are at their
    limit: then all are too slow, and while the others wait for these ranks in a collective, their workers get a head
    start."""
    ranks = culprits.ranks
    others = _others(subject, ranks)
    alone = not others or _faster(others)
    names = ranks_text(ranks)
    cost = subject.each(subject.charged(Cost.DATA, ranks if alone else ()))
    if alone:
        cost += subject.in_few_steps(culprits)
        others_wait = subject.waiting_ranks_text(ranks)
        title = sentences.LOADER_OF_RANKS_IS_SLOW(ranks=names, cost=cost, others_wait=others_wait)
        action = _look_at(subject, ranks, bool(others))
    else:
        title = sentences.LOADERS_AT_THEIR_LIMIT(len(ranks), cost=cost, ranks=names.capitalize())
        action = (
            f"{_more_workers(subject)} The other ranks only have a head start: batches that were loaded while they "
            f"waited for {names}."
        )
    return subject.costing(
        Cost.DATA,
        id="slow-data-one-rank" if alone else "slow-data-all-ranks",
        title=title,
        action=action,
        evidence=(*subject.per_rank("data_wait_ns"), *_ready(subject.once(_reserves))),
        ranks=ranks if alone else (),
    )


def _others(subject: Subject, ranks: tuple[int, ...]) -> list[Reserve]:
    return [reserve for rank, reserve in subject.once(_reserves).items() if rank not in ranks]


def _faster(reserves: list[Reserve]) -> bool:
    """Whether most of these loaders could deliver more than they do."""
    return sum(reserve.faster for reserve in reserves) > len(reserves) / 2


def _reserves(subject: Subject) -> dict[int, Reserve]:
    """By rank; ranks without a record are left out."""
    counted = frozenset(subject.shares.numbers)
    recorded = {rank: tables.steps for rank, tables in subject.tables.ranks.items() if len(tables.steps)}
    reserves = {rank: reserve_of(steps, counted) for rank, steps in recorded.items()}
    return {rank: reserve for rank, reserve in reserves.items() if reserve is not None}


def _ready(reserves: dict[int, Reserve]) -> list[Evidence]:
    """The emptiest queues first; for a large job, both ends of the range."""
    shown = both_ends(sorted(reserves, key=lambda rank: reserves[rank].idle))
    return [
        Evidence(
            f"rank {rank}, median of queue.ready of {queue.capacity} (all workers busy: up to {queue.most_if_busy})",
            queue.ready,
            "batches",
            Query("steps", {"rank": rank}, "data_wait_ns"),
        )
        for rank in shown
        for queue in (reserves[rank],)
    ]


def _look_at(subject: Subject, ranks: tuple[int, ...], others_known: bool) -> str:
    host = subject.host_of(ranks[0])
    where = f" on {host}" if host else ""
    text = (
        f"Look at the input of {ranks_text(ranks)}{where}: its storage, its shard of the data, its transforms, its CPU "
        "affinity. More workers on all ranks would only hide it."
    )
    if not others_known and _workers(subject):
        text += " Whether the other ranks' loaders have batches in reserve was not recorded."
    return text


def _more_workers(subject: Subject) -> str:
    workers = _workers(subject)
    if no_core_for_loaders(subject.shares, subject.scheduling):
        return (
            "Make the transform or the storage faster. The cores are all taken, so more worker processes would wait "
            "for them as well."
        )
    if workers is None and subject.once(workload).loader is False:
        return "Prepare batches ahead of the step, in other processes, or make the transform or the storage faster."
    now = f" (now {workers})" if workers is not None else ""
    return f"Raise the DataLoader's num_workers{now}, or make the transform or the storage faster."


def _workers(subject: Subject) -> int | None:
    configured = loader_settings(subject.tables.manifest).workers
    if configured is not None:
        return configured
    seen = {reserve.workers for reserve in subject.once(_reserves).values()}
    return seen.pop() if len(seen) == 1 else None


DIAGNOSIS = Diagnosis(
    find,
    needs="the phases of the steps: the collectors' records, or a trace whose data loader is visible.",
    means={
        "slow-data-one-rank": "One rank waits for its data loader, and the others wait for that rank.",
        "slow-data-all-ranks": (
            "All ranks wait for their data loaders. This is also the answer where one rank waits and the other ranks' "
            "workers are as busy as its own: they consume batches that they loaded while they waited for it."
        ),
        "slow-data-bursty": "The data loader is slow in some steps only.",
        "slow-batch-handover": (
            "The training waits for the loader although the loader's queue was full nearly all of that time. Handing "
            "over a batch is slow; no worker is."
        ),
        "slow-data-rank-unknown": (
            "One rank waited longest for its loader in most steps, but the steps are too few to say that it is always "
            "that rank."
        ),
    },
)
