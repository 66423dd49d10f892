"""What each cost of a simulated GPU job comes to, measured by simulating the job without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.bench.grid.gpu.job import BETWEEN, Fault, Job, Planted, Recipe
from tests.bench.grid.gpu.simulate import (
    simulate,
    without_communication,
    without_copies,
    without_data,
    without_host,
    without_offload,
    without_stragglers,
)
from tests.bench.grid.truth import COMMUNICATION, COMPUTE, DATA, HOST, Cost, Ranks
from tests.copies import replace

Change = Callable[[Job], Job]

_UNHIDDEN = frozenset({"exposed-communication", "communication-not-overlapped"})
REFERENCE_MFU = 0.35  # Llama-8B in torchtitan on H100s
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
        *_communication(job, share, planted(Planted.TAIL)),
    ]
    if job.host is not None:
        found.append(Cost(COMMUNICATION, share(without_offload), frozenset({"exposed-offload"})))
    if faults := planted(Planted.COPY):
        found.append(Cost(DATA, share(without_copies), frozenset({"exposed-copy"}), _culprits(faults)))
    if faults := planted(Planted.FORWARD, Planted.BACKWARD):
        found.append(Cost(COMPUTE, share(without_stragglers), _slower(job, faults), _culprits(faults)))
    else:
        found.append(Cost(COMPUTE, share(without_stragglers), frozenset({"compute-imbalance"})))
    for kind, name in ((Planted.GC, "gc-pause"), (Planted.CHECKPOINT, "checkpoint-stall")):
        if faults := planted(kind):
            found.append(Cost(HOST, share(partial(_rid, kinds=(kind,))), frozenset({name}), _culprits(faults)))
    causes = {_HOST_CAUSES[fault.kind] for fault in planted(*_HOST_CAUSES)}
    culprits = _culprits(planted(*_HOST_CAUSES))
    if culprits != ((),):
        causes |= {"compute-straggler", "host-straggler"}  # one host that is slow makes one rank slow: both say so
    found.append(Cost(HOST, share(without_host), frozenset(causes or {"launch-bound"}), culprits))
    if job.recorded is not None and job.recorded.mfu is not None:
        low = max(0.0, 1 - job.recorded.mfu / REFERENCE_MFU)
        found.append(Cost(COMPUTE, low, frozenset({"low-mfu"})))
    return found


def _rid(job: Job, kinds: tuple[Planted, ...]) -> Job:
    return job.without(*kinds)


def _data_causes(faults: list[Fault]) -> frozenset[str]:
    if any(fault.ranks for fault in faults):
        return frozenset({"slow-data-one-rank"})
    return frozenset({"slow-data-bursty" if any(fault.every > 1 for fault in faults) else "slow-data-all-ranks"})


def _slower(job: Job, faults: list[Fault]) -> frozenset[str]:
    """What a slow rank is called, given what is recorded beside its trace."""
    if any(fault.rotate for fault in faults):
        told = job.recorded is not None and job.recorded.longest
        return frozenset({"load-imbalance" if told else "compute-imbalance"})
    hot = job.recorded is not None and job.recorded.throttled
    return frozenset({"throttled-device" if hot else "compute-straggler"})


def _communication(job: Job, share: Callable[[Change], float], tails: list[Fault]) -> list[Cost]:
    """All exposed communication: as one cost where one cause stands for all of it, else what each of the parts would
    save that have a cause of their own, and the rest."""
    whole = share(without_communication)
    if tails:
        # Where nobody can tell a late end from a clock that is off, the class without the rank is all there is to say.
        blind = job.nodes > 1 and not job.clip
        causes = frozenset({"slow-link"}) | (_UNHIDDEN if blind else frozenset())
        link = Cost(
            COMMUNICATION, share(partial(_rid, kinds=(Planted.TAIL,))), causes, (*_culprits(tails), *([()] * blind))
        )
        return [link, Cost(COMMUNICATION, max(0.0, whole - link.share), _UNHIDDEN)]
    if job.gb_s / (1 + job.amount(Planted.NETWORK, 0, 0) / 1000) < _SOCKETS_GB_S:
        return [Cost(COMMUNICATION, whole, frozenset({"slow-network"}))]
    if job.wrap != "block" and job.recipe in (Recipe.FSDP2, Recipe.HSDP):
        name = "root-only-unit" if job.wrap == "root" else "latency-bound-collectives"
        return [Cost(COMMUNICATION, whole, frozenset({name}))]
    parts = [Cost(COMMUNICATION, share(rid), frozenset({name})) for name, rid in _parts(job).items()]
    rest = max(0.0, whole - sum(part.share for part in parts))
    return [*parts, Cost(COMMUNICATION, rest, _UNHIDDEN)]


def _parts(job: Job) -> dict[str, Change]:
    """Causes of parts of the communication, by what a job does, and the change that rids it of each."""
    found: dict[str, Change] = {}
    if job.amount(Planted.REDUCE, 0, 0):
        found["low-bus-bandwidth"] = lambda j: j.without(Planted.REDUCE)
        return found
    if job.recipe == Recipe.DDP and job.bucket_blocks == job.blocks:
        found["ddp-buckets"] = lambda j: replace(j, free_ops=frozenset({"all_reduce"}))
    if job.micro_batches > 1 and job.reduce_every:
        found["sync-every-micro-step"] = lambda j: replace(j, reduce_every=False)
    if job.recipe != Recipe.DDP and job.reduce_width == 4:
        found["reduce-scatter-stall"] = lambda j: replace(j, free_ops=frozenset({BETWEEN}))
    if job.prefetch == "late-backward" and job.reshard and job.recorded is not None:
        found["regather-in-backward"] = lambda j: replace(j, reshard=False)
    if job.prefetch in ("late", "sync"):
        found["missing-prefetch"] = lambda j: replace(j, prefetch="late-backward")
    return found


def _culprits(faults: list[Fault]) -> tuple[Ranks, ...]:
    named = [fault.ranks for fault in faults if fault.ranks]
    return tuple(named) or ((),)
