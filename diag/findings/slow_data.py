"""Waiting for the data loader: on every rank, on one, or now and then."""

from __future__ import annotations

import numpy as np

from diag.findings.culprits import Culprits
from diag.findings.shares import Cost
from diag.findings.subject import MENTION, Subject, mean_ns, ranks_text
from diag.model import Finding

# One step in a few holds nearly all of the wait: the mean hides what the loader does.
_BURST_QUIET = 0.02


def find(subject: Subject) -> list[Finding]:
    shares = subject.shares
    waited = shares.cost(Cost.DATA)
    share = shares.share(Cost.DATA)
    if share < MENTION:
        return []
    culprits = shares.culprits(Cost.DATA)
    one_rank = bool(culprits.ranks) and culprits.share >= share / 2
    bursty = bool(np.median(waited / shares.dur_ns) < _BURST_QUIET)
    kind = "slow-data-one-rank" if one_rank else "slow-data-bursty" if bursty else "slow-data-all-ranks"
    return [
        subject.costing(
            Cost.DATA,
            id=kind,
            title=_title(one_rank, bursty, culprits, mean_ns(waited)),
            action=_action(subject, one_rank, bursty, culprits.ranks),
            evidence=subject.per_rank("data_wait_ns"),
            ranks=culprits.ranks if one_rank else (),
        )
    ]


def _title(one_rank: bool, bursty: bool, culprits: Culprits, cost_ns: int) -> str:
    cost = f"{cost_ns / 1e6:.0f} ms a step"
    if one_rank:
        return f"The data loader of {ranks_text(culprits.ranks)} is slow: {cost}, and every other rank waits for it"
    if bursty:
        return f"The data loader stalls now and then: {cost} on average, in few steps"
    return f"The data loader is slower than the training: {cost}"


def _action(subject: Subject, one_rank: bool, bursty: bool, ranks: tuple[int, ...]) -> str:
    if one_rank:
        host = subject.host_of(ranks[0])
        where = f" on {host}" if host else ""
        return (
            f"Look at the input of {ranks_text(ranks)}{where}: its storage, its shard of the data, its transforms, its "
            "CPU affinity. More workers everywhere would only hide it."
        )
    if bursty:
        return "Let the queue ride out the stalls: raise prefetch_factor; look at what is read when it stalls."
    manifest = subject.tables.manifest
    workers = manifest.trainer.get("num_workers") if manifest is not None else None
    now = f" (now {workers})" if workers is not None else ""
    return f"Raise the DataLoader's num_workers{now}, or make the transform or the storage faster."
