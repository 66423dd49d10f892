"""The ways of the bundled trainer that no CPU can run: their simulated schedules are those of the sources, and what is
planted in them is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.model.steps import Bottleneck
from tests.bench.grid.cases import NOT_KEPT
from tests.bench.grid.gpu.costs import share_of
from tests.bench.grid.gpu.engine import COMPUTE_STREAM, GRADIENT_STREAM, MS, POOL_STREAM, Event, Rank
from tests.bench.grid.gpu.job import Host, Job, Planted
from tests.bench.grid.gpu.kineto import write_traces
from tests.bench.grid.gpu.loop import CAST
from tests.bench.grid.gpu.rows import add
from tests.bench.grid.gpu.simulate import simulate, without_offload
from tests.bench.grid.gpu_ways import EXPOSED, FAULTS, HEALTHY, WAYS, judged, planted
from tests.bench.grid.report import wrong
from tests.copies import replace

HOOK, APART, DISK = WAYS
CLASSES = {
    HEALTHY: "healthy",
    "slow loader": str(Bottleneck.DATA),
    "straggler": str(Bottleneck.COMPUTE),
    "slow wire": str(Bottleneck.COMMUNICATION),
}


@pytest.mark.parametrize("fault", [HEALTHY, *FAULTS])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_planted_is_found(way: str, fault: str, tmp_path: Path) -> None:
    found = judged(planted(way, fault), tmp_path)
    assert found.truth.expected == CLASSES[fault], "the fault is not what costs the most"
    assert not found.truth.grey
    assert found.first_right, wrong([found])
    if fault != HEALTHY:
        assert found.said.culprits == FAULTS[fault][1]
        assert found.said.share == pytest.approx(found.truth.share, abs=0.06)


@pytest.mark.parametrize(("disk_gb_s", "own_ranges"), [(12.0, True), (12.0, False), (1.0, True)])
def test_states_that_come_and_go_for_one_batch_are_what_costs(
    disk_gb_s: float, own_ranges: bool, tmp_path: Path
) -> None:
    """Also where nothing but the traces is there, without ranges around the phases."""
    job = replace(EXPOSED, host=Host(nvme_gb_s=disk_gb_s), own_ranges=own_ranges)
    found = simulate(job, keep=True)
    write_traces(job, found.ranks, tmp_path)
    verdict = open_run(tmp_path, reading=NOT_KEPT).verdict
    assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (
        Bottleneck.COMMUNICATION,
        "exposed-offload",
        (),
    ), verdict.headline
    share = share_of(job, without_offload, found.step_ns)
    assert verdict.share >= share - 0.03, "the class: the wire's part is in it, too"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_larger_fault_wins_over_exposed_states(fault: str, tmp_path: Path) -> None:
    kind, ranks = FAULTS[fault]
    found = judged(add(EXPOSED, kind, 0.45, ranks), tmp_path)
    assert found.truth.expected == CLASSES[fault]
    assert found.first_right, wrong([found])
    assert "exposed-offload" in found.said.found, "the states are still mentioned"


def named(rank: Rank, name: str) -> list[Event]:
    return [e for e in rank.events if e.name.startswith(name)]


def last_step(job: Job) -> Rank:
    """Rank 0 with the events of its last step."""
    rank = simulate(replace(job, jitter=0.0), keep=True).ranks[0]
    begin = named(rank, "ProfilerStep#")[-1].start
    return replace(rank, events=[e for e in rank.events if e.start >= begin])


def test_the_hook_casts_before_and_behind_the_reduction() -> None:
    """In the order of bf16_compress_hook: cast and divided on the computation's stream, cast back on a pool's."""
    job = WAYS[HOOK]
    rank = last_step(job)
    reductions = [e for e in named(rank, "ncclDevKernel_AllReduce") if '"In msg nelems": 1,' not in e.args]
    buckets = -(-job.blocks // job.bucket_blocks)
    assert len(reductions) == buckets
    assert all("AllReduce_Sum_bf16" in e.name and '"dtype": "BFloat16"' in e.args for e in reductions)
    casts = [e for e in named(rank, CAST) if e.cat == "kernel"]
    before = [e for e in casts if e.tid == COMPUTE_STREAM]
    behind = [e for e in casts if e.tid >= POOL_STREAM]
    assert len(before) == len(behind) == buckets
    assert len({e.tid for e in behind}) == buckets, "every callback on the next stream of the pool"
    for down, reduced, up in zip(before, reductions, behind, strict=True):
        assert down.end <= reduced.start
        assert reduced.tid == GRADIENT_STREAM
        assert up.start == reduced.end
    optimizer = named(rank, "void at::native::(anonymous namespace)::multi_tensor_apply_kernel")
    assert optimizer[0].start >= behind[-1].end


def test_only_a_group_of_their_own_lets_reductions_run_beside_gathers() -> None:
    def together(job: Job) -> tuple[int, set[str]]:
        rank = last_step(job)
        gathers, reductions = named(rank, "ncclDevKernel_AllGather"), named(rank, "ncclDevKernel_ReduceScatter")
        groups = {e.args.partition('"Process Group Description": "')[2].partition('"')[0] for e in reductions}
        return sum(max(0, min(a.end, b.end) - max(a.start, b.start)) for a in gathers for b in reductions), groups

    job = add(WAYS[APART], Planted.NETWORK, 0.3)
    shared = replace(job, own_reduce_group=False)
    assert together(shared) == (0, {"mesh"})
    overlap, groups = together(job)
    assert overlap > MS
    assert groups == {"fsdp_reduce_scatter"}
    assert simulate(job).step_ns < simulate(shared).step_ns


def test_the_device_idles_while_states_are_read_updated_and_written() -> None:
    job = EXPOSED
    assert job.host is not None
    rank = last_step(job)
    span = named(rank, "Optimizer.step#EngineOptimizer.step")[0]
    part = (job.root_params + job.blocks * job.block_params) // job.world
    # Fp32 parameters and two moments there and back, gradients there, bf16 parameters back.
    assert span.end - span.start >= part * (12 + 4 + 2 + 12) / job.host.nvme_gb_s + part * job.host.adam_ns
    busy = [e for e in rank.events if e.cat in ("kernel", "gpu_memcpy") and span.start < e.end and e.start < span.end]
    assert sum(e.end - e.start for e in busy) < MS, "the norm, and nothing else"
    brought = named(rank, "Memcpy DtoH (Device -> Pinned)")
    assert len(brought) == 2 * len(named(rank, "ncclDevKernel_ReduceScatter"))
    gathers, fetched = named(rank, "ncclDevKernel_AllGather"), named(rank, "Memcpy HtoD (Pinned -> Device)")
    assert fetched
    assert all(any(copy.end <= gather.start for copy in fetched) for gather in gathers)
