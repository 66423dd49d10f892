"""The three ways of the bundled trainer that no CPU can run, as simulated GPU jobs with a fault that they must be
blamed for: what tests/grid/test_gpu_ways.py and tests/bench/strategies.py judge.

What they do was read in the source of torch 2.13 and DeepSpeed 0.19; nothing was recorded. The faults are those that
the other ways get on CPU ranks (tests/run/strategy_cases.py): the loader of rank 1, the computation of rank 0, a wire
that is slow for all.
"""

from __future__ import annotations

from pathlib import Path

from diag.api import open_run
from tests.bench.grid.cases import NOT_KEPT, Scored, answer, described
from tests.bench.grid.gpu.costs import costs_of, share_of
from tests.bench.grid.gpu.engine import MS, US
from tests.bench.grid.gpu.job import Host, Job, Planted, Recipe, Recorded
from tests.bench.grid.gpu.recorded import write_run
from tests.bench.grid.gpu.rows import add
from tests.bench.grid.gpu.simulate import simulate
from tests.bench.grid.truth import truth_of
from tests.copies import replace

_ON_ONE_NODE = Job(world=4, block_ns=6 * MS, alpha_ns=20 * US, own_ranges=True, recorded=Recorded())
# A model that does not fit the devices, and batches so large that moving it takes little of a step: two of 0.8 s a
# block stand for the dozens that a real step would add up.
_ON_DISK = replace(
    _ON_ONE_NODE,
    recipe=Recipe.DEEPSPEED,
    steps=3,
    blocks=3,
    dim=4096,
    wrap="linear",
    block_ns=800 * MS,
    head_ns=20 * MS,
    micro_batches=2,
    gb_s=4.0,
    host=Host(),
)
WAYS = {
    "ddp, bf16 hook": replace(_ON_ONE_NODE, recipe=Recipe.DDP, compressed=True),
    "fsdp2, separate reduce-scatter group": replace(_ON_ONE_NODE, own_reduce_group=True),
    "deepspeed 3, NVMe": _ON_DISK,
}
OPTIONS = {
    "ddp, bf16 hook": "--strategy ddp --set comm_hook=bf16",
    "fsdp2, separate reduce-scatter group": "--strategy fsdp2 --set separate_reduce_scatter_group=yes",
    "deepspeed 3, NVMe": "--strategy deepspeed --set stage=3 --set offload_param=nvme --set offload_optimizer=nvme "
    "--set nvme_path=FOLDER",
}
EXPOSED = replace(_ON_DISK, micro_batches=1, block_ns=200 * MS)  # states come and go for a single batch
HEALTHY = "nothing"
FAULTS = {"slow loader": (Planted.DATA, (1,)), "straggler": (Planted.FORWARD, (0,)), "slow wire": (Planted.NETWORK, ())}
_SHARE = 0.3  # of a step, that a fault costs


def planted(way: str, fault: str) -> Job:
    """The way's job with this fault; HEALTHY: without any."""
    if fault == HEALTHY:
        return WAYS[way]
    kind, ranks = FAULTS[fault]
    return add(WAYS[way], kind, _SHARE, ranks)


def judged(job: Job, folder: Path) -> Scored:
    """The job's run directory, written there, and what is said of it beside what is right."""
    assert job.recorded is not None, "a run directory is what the bundled trainer leaves"
    found = simulate(job, keep=True)
    write_run(job, job.recorded, found.ranks, found.step_ns, folder)
    kinds = {fault.kind for fault in job.faults}
    cost = share_of(job, lambda j: j.without(*kinds), found.step_ns)
    said = answer(open_run(folder, reading=NOT_KEPT))
    return Scored(
        folder.name, _SHARE if kinds else 0.0, bool(kinds), truth_of(costs_of(job), cost), said, described(job)
    )
