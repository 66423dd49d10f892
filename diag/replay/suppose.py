"""Suppositions: the step without a fault, or on another network, for any run that can be replayed. No advice, as none
of them is a setting; they show what a fault costs, and what a change of the machines would do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.model.steps import Bottleneck, Kind, Severity, Verdict

from .mutations import (
    Mutation,
    faster_link,
    in_turn,
    more_bandwidth,
    on_ranks,
    without_data_wait,
    without_host_wait,
    without_straggler,
)


class Supposition(Struct, frozen=True):
    """``rank``: one whose time beyond the median of the others shrinks: its work by the part ``work``, its waiting for
    data by the part ``loading``, how much later it gets the results of collectives by the part ``link`` (0: as it is,
    1: like the others). ``data``: the part by which the waiting for data of all ranks shrinks. ``host``: the part by
    which the waiting of all devices for launches shrinks. ``network``: how many times as fast every byte moves.
    ``ranks``: how many there are, each with the work of one rank now; 0: as many as now."""

    rank: int | None = None
    work: float = 0.0
    loading: float = 0.0
    data: float = 0.0
    network: float = 1.0
    link: float = 0.0
    ranks: int = 0
    host: float = 0.0

    @property
    def nothing(self) -> bool:
        return not self.mutations

    @property
    def mutations(self) -> Sequence[Mutation]:
        found: list[Mutation] = []
        if self.rank is not None and self.work:
            found.append(without_straggler((self.rank,), part=self.work))
        if self.rank is not None and self.loading:
            found.append(without_straggler((self.rank,), (Kind.DATA,), self.loading))
        if self.data:
            found.append(without_data_wait(self.data))
        if self.host:
            found.append(without_host_wait(self.host))
        if self.rank is not None and self.link:
            found.append(faster_link(self.rank, self.link))
        if self.network != 1.0:
            found.append(more_bandwidth(self.network))
        if self.ranks:
            found.append(on_ranks(self.ranks))
        return found

    @property
    def mutation(self) -> Mutation:
        return in_turn(*self.mutations)


def without_fault(verdict: Verdict, on_device: bool = False) -> Supposition:
    """What a verdict is about, taken away: its rank, loader or link is like the others, no rank waits for data, or no
    device for its host. Nothing of a healthy run, or where the cause is none of these."""
    rank = verdict.culprit_ranks[0] if len(verdict.culprit_ranks) == 1 else None
    if verdict.severity == Severity.HEALTHY:
        return Supposition()
    if verdict.bottleneck == Bottleneck.DATA:
        return Supposition(rank, loading=1.0) if rank is not None else Supposition(data=1.0)
    if rank is not None and verdict.bottleneck == Bottleneck.COMMUNICATION:
        return Supposition(rank, link=1.0)
    if rank is None and verdict.bottleneck == Bottleneck.HOST and on_device:
        return Supposition(host=1.0)
    of_rank = rank is not None and verdict.bottleneck in (Bottleneck.COMPUTE, Bottleneck.HOST)
    return Supposition(rank, work=1.0) if of_rank else Supposition()
