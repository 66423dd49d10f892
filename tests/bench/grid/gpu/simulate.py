"""A job run in simulated time, with or without a record of what happened."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.bench.grid.gpu.engine import Rank, run
from tests.bench.grid.gpu.job import Host, Job, Planted
from tests.bench.grid.gpu.loop import WARM_STEPS
from tests.bench.grid.gpu.recipes import programs
from tests.copies import replace

# What diag leaves out of a trace: its first step.
_UNUSED_STEPS = 1


@dataclass(frozen=True)
class Outcome:
    """``step_ns``: the mean length of a step that counts. ``ranks``: what each did, where it was asked for."""

    step_ns: float
    ranks: tuple[Rank, ...]


def simulate(job: Job, *, keep: bool = False) -> Outcome:
    """Runs the job; with ``keep`` the events of its ranks are kept."""
    ranks = {
        rank: Rank(
            rank=rank,
            random=Random(f"{job.seed}/{rank}"),
            jitter=job.jitter,
            launch_ns=job.launch_ns,
            latency_ns=job.latency_ns,
            queue=job.queue,
            now=1_000_000_000 + 10_000 * rank,
            keeps_events=keep,
        )
        for rank in range(job.world)
    }
    run(programs(job, ranks))
    first = WARM_STEPS + _UNUSED_STEPS
    begin = max(r.step_ends[first - 1] for r in ranks.values())
    end = max(r.step_ends[-1] for r in ranks.values())
    return Outcome((end - begin) / (WARM_STEPS + job.steps - first), tuple(ranks.values()))


# What each kind of cost is made of: the same job, rid of all of it.


def without_data(job: Job) -> Job:
    return replace(job.without(Planted.DATA), data_ns=0)


def without_communication(job: Job) -> Job:
    """An ideal network: transfers take no time; ranks still wait for each other."""
    return replace(job.without(Planted.NETWORK, Planted.TAIL), alpha_ns=0, gb_s=float("inf"))


def without_copies(job: Job) -> Job:
    return replace(job.without(Planted.COPY), copy_ns=0)


def without_offload(job: Job) -> Job:
    """States that are kept on the host come and go, and are updated there, in no time."""
    return replace(job, host=job.host and Host(nvme_gb_s=float("inf"), pcie_gb_s=float("inf"), adam_ns=0))


def without_host(job: Job) -> Job:
    """A host that launches at no cost, asks nothing and allocates nothing."""
    return replace(job.without(Planted.TINY, Planted.ITEM, Planted.ALLOCATOR), launch_ns=1, latency_ns=0)


def without_stragglers(job: Job) -> Job:
    """Ranks that are all equally fast: no slow one, and no chance differences either."""
    return replace(job.without(Planted.FORWARD, Planted.BACKWARD), jitter=0.0)
