"""Suppositions: the step without a fault, or on another network, for any run that can be replayed. No advice, as none
of them is a setting; they show what a fault costs, and what a change of the machines would do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diag.model.breakdown import Supposition as Supposition
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
from .predict import Baseline, gain
from .program import Refusal


def mutations_of(supposed: Supposition) -> Sequence[Mutation]:
    found: list[Mutation] = []
    if supposed.of and supposed.work:
        found.append(without_straggler(supposed.of, part=supposed.work))
    if supposed.of and supposed.loading:
        found.append(without_straggler(supposed.of, (Kind.DATA,), supposed.loading))
    if supposed.data:
        found.append(without_data_wait(supposed.data))
    if supposed.host:
        found.append(without_host_wait(supposed.host))
    if supposed.of and supposed.link:
        found.append(faster_links(supposed.of, supposed.link))
    if supposed.network != 1.0:
        found.append(more_bandwidth(supposed.network))
    if supposed.ranks:
        found.append(on_ranks(supposed.ranks))
    return found


def mutation_of(supposed: Supposition) -> Mutation:
    return in_turn(*mutations_of(supposed))


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


def gain_of_ranks(base: Baseline | Refusal, ranks: Collection[int]) -> tuple[float, float] | None:
    """How much shorter a step would be were these ranks as fast as the others, nanoseconds: at least, and most likely.
    None where the run cannot be replayed."""
    if isinstance(base, Refusal):
        return None
    predicted = gain(base, without_straggler(ranks))
    return None if predicted.refused else predicted.gain_ns_per_step[:2]
