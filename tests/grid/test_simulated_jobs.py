"""The simulator of GPU jobs: its schedules are those of the real thing, and what it plants costs what it says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from diag.api import open_run
from tests.bench.grid.gpu.costs import share_of
from tests.bench.grid.gpu.engine import COMPUTE_STREAM, MS, Event, Rank
from tests.bench.grid.gpu.job import Fault, Job, Planted, Recipe
from tests.bench.grid.gpu.kineto import text, write_traces
from tests.bench.grid.gpu.loop import WARM_STEPS
from tests.bench.grid.gpu.rows import add
from tests.bench.grid.gpu.simulate import simulate, without_communication
from tests.copies import replace

EVEN = Job(jitter=0.0, world=4, steps=3)
RECIPES = pytest.mark.parametrize("job", [
    EVEN, replace(EVEN, reshard=False), replace(EVEN, recipe=Recipe.DDP), replace(EVEN, recipe=Recipe.HSDP, per_node=2),
    replace(EVEN, wrap="linear"), replace(EVEN, wrap="root"), replace(EVEN, prefetch="sync"),
], ids=["fsdp2", "fsdp2 keeping", "ddp", "hsdp", "per linear", "root only", "sync"])  # fmt: skip


def nccl(rank: Rank, op: str = "") -> list[Event]:
    return [e for e in rank.events if e.name.startswith(f"ncclDevKernel_{op}")]


@RECIPES
def test_collectives_end_together_and_one_after_the_other(job: Job) -> None:
    ranks = simulate(job, keep=True).ranks
    by_number: dict[str, list[Event]] = {}
    for rank in ranks:
        last: dict[str, int] = {}
        for event in nccl(rank):
            group = event.args.partition('"Process Group Name": "')[2].partition('"')[0]
            assert event.start >= last.get(group, 0), "one communicator, one collective at a time"
            last[group] = event.end
            by_number.setdefault(group + event.args.partition('"Seq": ')[2], []).append(event)
    for members in by_number.values():
        assert len({event.end for event in members}) == 1
        assert max(event.start for event in members) < members[0].end


@RECIPES
def test_what_is_launched_in_order_runs_in_order(job: Job) -> None:
    for rank in simulate(job, keep=True).ranks:
        launches = {e.correlation: e for e in rank.events if e.cat == "cuda_runtime"}
        work = [e for e in rank.events if e.cat in ("kernel", "gpu_memcpy")]
        for before, after in pairwise(e for e in work if e.tid == COMPUTE_STREAM):
            assert after.start >= before.end
        assert all(launches[e.correlation].start < e.start for e in work if e.correlation in launches)


def gathers(job: Job) -> list[Event]:
    """The all-gathers of rank 0 in the last step."""
    events = simulate(job, keep=True).ranks[0].events
    begin = [e.start for e in events if e.name.startswith("ProfilerStep#")][-1]
    return [e for e in events if e.name.startswith("ncclDevKernel_AllGather") and e.start >= begin]


def test_fsdp2_gathers_a_unit_in_forward_and_again_in_backward_unless_it_keeps_it() -> None:
    assert len(gathers(EVEN)) == 1 + 2 * EVEN.blocks
    assert len(gathers(replace(EVEN, reshard=False))) == 1 + EVEN.blocks
    assert len(gathers(replace(EVEN, wrap="root"))) == 1
    assert len(gathers(replace(EVEN, wrap="linear"))) == 1 + 2 * 4 * EVEN.blocks


def test_prefetching_hides_what_waiting_exposes() -> None:
    hidden, late, sync = (
        share_of(replace(EVEN, prefetch=how), without_communication) for how in ("implicit", "late", "sync")
    )
    assert hidden < 0.05
    assert late > 2 * hidden
    assert sync > 2 * hidden


def test_a_healthy_step_is_as_long_as_its_computation() -> None:
    compute = EVEN.blocks * 3 * EVEN.block_ns + 3 * EVEN.head_ns + EVEN.optimizer_ns
    assert compute < simulate(EVEN).step_ns < 1.08 * compute


@pytest.mark.parametrize(
    "kind", [Planted.DATA, Planted.FORWARD, Planted.BACKWARD, Planted.NETWORK, Planted.TINY, Planted.GC]
)
def test_a_planted_fault_costs_what_was_asked_for(kind: Planted) -> None:
    job = add(replace(EVEN, jitter=0.015), kind, 0.2, (1,) if kind in (Planted.FORWARD, Planted.GC) else ())
    assert share_of(job, lambda j: j.without(kind)) == pytest.approx(0.2, rel=0.05)


def test_slack_hides_a_fault_and_the_truth_knows_it() -> None:
    """The host runs ahead: a loader that takes half a step costs nothing."""
    job = replace(EVEN, read_loss=False, faults=(Fault(Planted.DATA, 40 * MS),))
    assert share_of(job, lambda j: j.without(Planted.DATA)) < 0.01


@RECIPES
def test_diag_reads_every_trace_as_it_was_simulated(job: Job, tmp_path: Path) -> None:
    found = simulate(job, keep=True)
    write_traces(job, found.ranks, tmp_path)
    result = open_run(tmp_path)
    assert not result.coverage.incomplete
    assert result.tables.world_size == job.world
    usable = result.attribution.usable
    assert len(usable) == job.steps - 1
    assert sum(step.dur_ns for step in usable) / len(usable) == pytest.approx(found.step_ns, rel=0.002)
    a_step = len(nccl(found.ranks[0])) // (WARM_STEPS + job.steps)
    assert sum(met.step == usable[-1].step and 0 in met.ranks for met in result.attribution.collectives) == a_step


def without_base(trace: str) -> str:
    return trace.rpartition("baseTimeNanoseconds")[0]


@pytest.mark.parametrize("change", [lambda job: replace(job, offset_ns=(50 * MS,)), lambda job: job])
def test_the_same_job_is_the_same_file(change: Callable[[Job], Job]) -> None:
    one, other = (simulate(job, keep=True).ranks[1] for job in (EVEN, EVEN))
    assert without_base(text(EVEN, one)) == without_base(text(change(EVEN), other))
