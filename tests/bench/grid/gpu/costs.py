"""What each cost of a simulated GPU job comes to, measured by simulating the job without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.bench.grid.gpu.job import Fault, Job, Planted, Recipe
from tests.bench.grid.gpu.simulate import (
    simulate,
    without_communication,
    without_copies,
    without_data,
    without_host,
    without_stragglers,
)
from tests.bench.grid.truth import COMMUNICATION, COMPUTE, DATA, Cost, Ranks

Change = Callable[[Job], Job]

_UNHIDDEN = frozenset({"exposed-communication", "communication-not-overlapped"})
_HOST_CAUSES = {Planted.TINY: "launch-bound", Planted.ITEM: "synchronising-calls", Planted.ALLOCATOR: "allocator-stall"}
_SOCKETS_GB_S = 0.5  # below this even a poor network is ill


def share_of(job: Job, rid: Change, step_ns: float | None = None) -> float:
    """The part of the step that is saved without it."""
    whole = step_ns if step_ns is not None else simulate(job).step_ns
    return max(0.0, 1 - simulate(rid(job)).step_ns / whole)


def costs_of(job: Job) -> list[Cost]:
    """Every cost of the job, with the causes that name it and who is at fault."""
    step_ns = simulate(job).step_ns

    def share(rid: Change) -> float:
        return share_of(job, rid, step_ns)

    def planted(*kinds: Planted) -> list[Fault]:
        return [fault for fault in job.faults if fault.kind in kinds]

    found = [
        Cost(DATA, share(without_data), _data_causes(planted(Planted.DATA)), _culprits(planted(Planted.DATA))),
        Cost(COMMUNICATION, share(without_communication), *_communication(job, planted(Planted.TAIL))),
    ]
    if faults := planted(Planted.COPY):
        found.append(Cost(DATA, share(without_copies), frozenset({"exposed-copy"}), _culprits(faults)))
    if faults := planted(Planted.FORWARD, Planted.BACKWARD):
        name = "compute-imbalance" if any(f.rotate for f in faults) else "compute-straggler"
        found.append(Cost(COMPUTE, share(without_stragglers), frozenset({name}), _culprits(faults)))
    else:
        found.append(Cost(COMPUTE, share(without_stragglers), frozenset({"compute-imbalance"})))
    for kind, name in ((Planted.GC, "gc-pause"), (Planted.CHECKPOINT, "checkpoint-stall")):
        if faults := planted(kind):
            found.append(Cost(COMPUTE, share(partial(_rid, kinds=(kind,))), frozenset({name}), _culprits(faults)))
    causes = {_HOST_CAUSES[fault.kind] for fault in planted(*_HOST_CAUSES)}
    culprits = _culprits(planted(*_HOST_CAUSES))
    if culprits != ((),):
        causes |= {"compute-straggler"}  # one host that is slow makes one rank slow: both say so
    found.append(Cost(COMPUTE, share(without_host), frozenset(causes or {"launch-bound"}), culprits))
    return found


def _rid(job: Job, kinds: tuple[Planted, ...]) -> Job:
    return job.without(*kinds)


def _data_causes(faults: list[Fault]) -> frozenset[str]:
    if any(fault.ranks for fault in faults):
        return frozenset({"slow-data-one-rank"})
    return frozenset({"slow-data-bursty" if any(fault.every > 1 for fault in faults) else "slow-data-all-ranks"})


def _communication(job: Job, tails: list[Fault]) -> tuple[frozenset[str], tuple[Ranks, ...]]:
    if tails:
        return frozenset({"slow-link"}), _culprits(tails)
    if job.gb_s < _SOCKETS_GB_S:
        return frozenset({"slow-network"}), ((),)
    if job.wrap != "block" and job.recipe != Recipe.DDP:
        return frozenset({"root-only-unit" if job.wrap == "root" else "latency-bound-collectives"}), ((),)
    return _UNHIDDEN, ((),)


def _culprits(faults: list[Fault]) -> tuple[Ranks, ...]:
    named = [fault.ranks for fault in faults if fault.ranks]
    return tuple(named) or ((),)
