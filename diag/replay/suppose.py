"""Suppositions: the step without a fault, or on another network, for any run that can be replayed. No advice, as none
of them is a setting; they show what a fault costs, and what a change of the machines would do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.model.steps import Bottleneck, Kind, Severity, Verdict

from .mutations import (
    Mutation,
    faster_links,
    in_turn,
    more_bandwidth,
    on_ranks,
    without_data_wait,
    without_host_wait,
    without_straggler,
)


class Supposition(Struct, frozen=True):
    """``of``: ranks, such as those of one host, whose time beyond the median of the others shrinks: their work by the
    part ``work``, their waiting for data by the part ``loading``, how much later they get the results of collectives by
    the part ``link`` (0: as it is, 1: like the others). ``data``: the part by which the waiting for data of all ranks
    shrinks. ``host``: the part by which the waiting of all devices for launches shrinks. ``network``: how many times as
    fast every byte moves. ``ranks``: how many there are, each with the work of one rank now; 0: as many as now."""

    of: tuple[int, ...] = ()
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
        if self.of and self.work:
            found.append(without_straggler(self.of, part=self.work))
        if self.of and self.loading:
            found.append(without_straggler(self.of, (Kind.DATA,), self.loading))
        if self.data:
            found.append(without_data_wait(self.data))
        if self.host:
            found.append(without_host_wait(self.host))
        if self.of and self.link:
            found.append(faster_links(self.of, self.link))
        if self.network != 1.0:
            found.append(more_bandwidth(self.network))
        if self.ranks:
            found.append(on_ranks(self.ranks))
        return found

    @property
    def mutation(self) -> Mutation:
        return in_turn(*self.mutations)


def without_fault(verdict: Verdict, on_device: bool = False) -> Supposition:
    """What a verdict is about, taken away: its ranks, loaders or links are like the others, no rank waits for data, or
    no device for its host. Nothing of a healthy run, or where the cause is none of these."""
    of = verdict.culprit_ranks
    if verdict.severity == Severity.HEALTHY:
        return Supposition()
    if verdict.bottleneck == Bottleneck.DATA:
        return Supposition(of, loading=1.0) if of else Supposition(data=1.0)
    if of and verdict.bottleneck == Bottleneck.COMMUNICATION:
        return Supposition(of, link=1.0)
    if not of and verdict.bottleneck == Bottleneck.HOST and on_device:
        return Supposition(host=1.0)
    work = of and verdict.bottleneck in (Bottleneck.COMPUTE, Bottleneck.HOST)
    return Supposition(of, work=1.0) if work else Supposition()
