"""What stands behind a verdict, for people: what the step consists of, and how each rank differs from the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from diag.account.peers import median_of_others
from diag.model.steps import Attribution, Kind, Parts, StepAccount

_WORDS = {
    Kind.COMPUTE: "computation",
    Kind.COMM: "exposed communication",
    Kind.COPY: "copies to the device",
    Kind.DATA: "waiting for the data loader",
    Kind.CHECKPOINT: "checkpoints",
    Kind.IDLE: "idle time",
}
_FIELD = {
    Kind.COMPUTE: "compute_ns",
    Kind.COMM: "exposed_transfer_ns",
    Kind.COPY: "exposed_copy_ns",
    Kind.DATA: "data_wait_ns",
    Kind.CHECKPOINT: "checkpoint_ns",
    Kind.IDLE: "idle_ns",
}
_WORTH_TELLING = 0.01  # of the path
_MOSTLY = 0.6  # of a kind's time on one rank, where there are several


class RankDifference(Struct, frozen=True):
    """What a rank does more of (positive) or less than the median of the others, mean nanoseconds a step by kind.

    Waiting for other ranks is left out: it is the mirror image of what they do more of. COMM is transfers alone, and
    missing where those could not be told from waiting.
    """

    rank: int
    host: str
    more_ns: dict[Kind, int]

    @property
    def total_ns(self) -> int:
        """How much longer than the others this one is at work."""
        return sum(self.more_ns.values())


def differences(attribution: Attribution, hosts: dict[int, str]) -> tuple[RankDifference, ...]:
    """Of every rank, in their order, over the steps that count."""
    counted = attribution.usable or attribution.steps
    by_rank: dict[int, list[Parts]] = {rank: [] for rank in attribution.ranks}
    for step in counted:
        for parts in step.parts:
            by_rank[parts.rank].append(parts)
    ranks = [rank for rank, own in by_rank.items() if own]
    if not ranks:
        return ()
    transfers = all(p.exposed_transfer_ns is not None for own in by_rank.values() for p in own)
    kinds = [kind for kind in Kind if kind != Kind.COMM or transfers]
    spent = np.array([[np.mean([getattr(p, _FIELD[kind]) for p in by_rank[rank]]) for kind in kinds] for rank in ranks])
    whole = np.rint(spent).astype(np.int64)
    more = whole - median_of_others(whole)
    return tuple(
        RankDifference(rank, hosts.get(rank, ""), dict(zip(kinds, row, strict=True)))
        for rank, row in zip(ranks, more.tolist(), strict=True)
    )


def path_sentence(attribution: Attribution) -> str:
    """What the critical path consists of on average, the most first; "" where there is none."""
    counted = [step for step in attribution.usable or attribution.steps if step.path.dur_ns]
    total = sum(step.path.dur_ns for step in counted)
    if not total:
        return ""
    spent = {kind: sum(step.path.total(kind) for step in counted) for kind in Kind}
    told = sorted((kind for kind in Kind if spent[kind] >= _WORTH_TELLING * total), key=lambda kind: -spent[kind])
    pieces = [_piece(counted, kind, spent[kind]) for kind in told]
    listed = " and ".join([", ".join(pieces[:-1]), pieces[-1]]) if len(pieces) > 1 else pieces[0]
    return (
        "A step lasts as long as its critical path, the chain of work and transfers in which each had to wait for the "
        f"one before: on average {listed}."
    )


def _piece(counted: Sequence[StepAccount], kind: Kind, ns: int) -> str:
    text = f"{ns / len(counted) / 1e6:,.1f} ms of {_WORDS[kind]}"
    of_rank: dict[int, int] = {}
    for step in counted:
        chosen = step.path.kind == kind
        ranks, own = step.path.rank[chosen], (step.path.end_ns - step.path.start_ns)[chosen]
        for rank in np.unique(ranks).tolist():
            of_rank[rank] = of_rank.get(rank, 0) + int(own[ranks == rank].sum())
    most = max(of_rank, key=lambda rank: of_rank[rank])
    several = any(len(step.parts) > 1 for step in counted)
    share = of_rank[most] / ns
    return f"{text} ({share:.0%} of it on rank {most})" if several and share >= _MOSTLY else text
