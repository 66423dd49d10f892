"""Jobs of many devices (``tests.many_devices``) with a planted fault, and the right answers to them: what each fault
costs is measured on the same job without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from diag.account.device_summaries import on_devices
from diag.collectors.records import STEP
from diag.summaries import SummaryResult, of_summaries
from tests.bench.grid.truth import COMMUNICATION, COMPUTE, DATA, HOST, Cost, Truth, truth_of
from tests.many_devices import Devices, events, summaries_of

SLOW, SLOW_NODE, LOADER, LOADERS, LINK, HOST_BOUND, LATE_HOST, SAVING, SAVING_ONE = FAULTS = (
    "slow GPU", "slow node", "slow loader", "slow loaders", "slow network", "host-bound", "late host", "checkpoints",
    "slow checkpoint of a rank",
)  # fmt: skip
_CHANGES_MOST = 1_536  # ranks whose events are simulated to measure what a fault costs


def usual(rng: Random, ranks: int, tuning: bool) -> Devices:
    """A healthy job."""
    forward_ms, times = rng.choice((40, 80) if tuning else (30, 60, 110)), rng.choice((1.6, 2.0, 2.4))
    return Devices(
        ranks,
        forward_us=1_000 * forward_ms,
        backward_us=1_000 * forward_ms * times,
        optimizer_us=1_000 * forward_ms * rng.uniform(0.03, 0.2),
        launch_us=1_000 * forward_ms * rng.uniform(0.15, 0.5),
        loader_us=1_000 * forward_ms * rng.uniform(0.002, 0.02),
        transfer_us=1_000 * forward_ms * rng.uniform(0.02, 0.06),
        units=rng.choice((1, 2, 4)),
        jitter=rng.uniform(0.001, 0.004),
        spread=rng.uniform(0.001, 0.003),
        reads_loss=rng.random() < 0.6,
        seed=rng.randrange(1 << 30),
    )


def with_fault(job: Devices, fault: str, share: float, rng: Random) -> Devices:
    """The job with a fault that costs about this part of its step."""
    step_us = job.forward_us + job.backward_us + job.optimizer_us + job.loader_us + 2 * job.transfer_us
    extra, rank = step_us * share / (1 - share), rng.randrange(job.ranks)
    computing, idle = job.forward_us + job.backward_us, job.forward_us + job.backward_us - 2 * job.launch_us
    if fault in (SLOW, SLOW_NODE):
        node = range(rank - rank % job.ranks_a_host, min(job.ranks, rank - rank % job.ranks_a_host + job.ranks_a_host))
        return replace(job, slow=dict.fromkeys(node if fault == SLOW_NODE else (rank,), 1 + extra / computing))
    if fault in (LOADER, LOADERS):
        ahead = 0 if job.reads_loss else idle + job.optimizer_us  # what a loader may take beside the device's work
        return replace(job, loading={-1 if fault == LOADERS else rank: extra + ahead})
    if fault == LINK:
        return replace(job, transfer_us=job.transfer_us + extra / 2)
    if fault in (HOST_BOUND, LATE_HOST):
        # Hosts that run ahead wait for nobody: then the slowest holds up the others.
        each = replace(job, reads_loss=True)
        return replace(each, launching={-1 if fault == HOST_BOUND else rank: (extra + idle) / 2})
    every = rng.choice((5, 10))
    return replace(job, saving={-1 if fault == SAVING else rank: extra * every}, saved_every=every)


def step_us(job: Devices) -> float:
    """Mean duration of the steps."""
    end = events(job).device[STEP][1]
    return float(end[:, -1].max()) / job.steps


_COST_OF: Mapping[str, tuple[str, frozenset[str]]] = {
    "slow": (COMPUTE, frozenset({"compute-straggler"})),
    "loading": (DATA, frozenset({"slow-data-one-rank", "slow-data-all-ranks", "slow-data-bursty"})),
    "launching": (HOST, frozenset({"host-bound", "host-straggler"})),
    "saving": (HOST, frozenset({"checkpoint-stall"})),
}


def truth_for(job: Devices) -> Truth:
    whole_job = job
    if job.ranks > _CHANGES_MOST:
        job = _smaller(job)
    whole = step_us(job)

    def share(**changed: object) -> float:
        return max(0.0, 1 - step_us(replace(job, **changed)) / whole)  # type: ignore[arg-type]

    costs = [
        Cost(COMPUTE, share(jitter=0.0, spread=0.0), frozenset({"compute-imbalance"})),
        Cost(COMMUNICATION, share(transfer_us=0.0), frozenset({"exposed-communication"})),
        Cost(DATA, share(loader_us=0.0), frozenset({"slow-data-all-ranks"})),
    ]
    for name, (bottleneck, causes) in _COST_OF.items():
        planted = getattr(whole_job, name)
        if planted:
            at_fault = () if -1 in planted else tuple(sorted(planted))
            costs.append(Cost(bottleneck, share(**{name: {}}), causes, (at_fault,)))
    return truth_of(costs, max(cost.share for cost in costs))


def _smaller(job: Devices) -> Devices:
    """The same faults, of ranks with the same numbers, among fewer ranks; jitter's extremes grow little with more."""
    named = [rank for planted in (job.slow, job.loading, job.launching, job.saving) for rank in planted]
    if max(named, default=0) < _CHANGES_MOST:
        return replace(job, ranks=_CHANGES_MOST)
    moved = {rank: rank % _CHANGES_MOST for rank in named if rank >= 0} | {-1: -1}

    def of(planted: Mapping[int, float]) -> dict[int, float]:
        return {moved[rank]: more for rank, more in planted.items()}

    small = replace(job, ranks=_CHANGES_MOST, slow=of(job.slow), loading=of(job.loading))
    return replace(small, launching=of(job.launching), saving=of(job.saving))


def analysed(job: Devices) -> SummaryResult:
    summaries = summaries_of(job)
    return of_summaries(on_devices(summaries) or summaries)


def hard(rng: Random, tuning: bool) -> Devices:
    """A job whose answer is not always plain: few steps, noise, faults near the thresholds, or none."""
    job = usual(rng, rng.choice((32, 128, 512) if tuning else (24, 192, 768)), tuning)
    job = replace(
        job, steps=rng.choice((4, 8, 16, 30, 60)), jitter=rng.choice((job.jitter, 0.01, 0.02, 0.04)),
        sampled=rng.random() < 0.95,
    )  # fmt: skip
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
        near = rng.choice((rng.uniform(0.03, 0.3), rng.uniform(0.06, 0.16)))
        job = with_fault(job, rng.choice(FAULTS), near, rng)
        if job.loading and rng.random() < 0.3:
            job = replace(job, loading_steps=rng.choice((0.1, 0.3)))
    return job
