"""The tables of runs whose truth is planted: two ranks of kernels, collectives, modules and a recomputed block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from diag.account import gpu
from diag.api import Result, open_run
from diag.model.breakdown import Bound, CollectiveStat, KernelKind, KernelStat
from diag.tables.bandwidth import best_bandwidth, bus_factor, saturating_bytes
from diag.tables.collectives import who_was_waited_for
from diag.tables.policy import BANDWIDTH
from diag.traces import kineto_names as names
from tests.account.kineto_builder import BASE_NS, KinetoBuilder, nccl_args

MS, US = 1_000_000, 1_000
STEPS, STEP = 4, 130 * MS
COUNTED = STEPS - 1  # the first step of a trace is its warm-up
BACKWARD = 2  # autograd's thread
MM = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
FLOPS = 2 * 4096**3


def rank_trace(
    rank: int, late: int = 30 * MS, off: int = 0, shapes: bool = True, recompute: bool = True, apart: int = 0
) -> KinetoBuilder:
    """A step: 20 ms forward of block.0, 40 ms backward (10 of them the forward again), `late` more on rank 1, then
    two all-reduces: 100 MB in 10 ms behind nothing, 50 MB in 10 ms half behind the optimizer's 5 ms. In every other
    step those of rank 1 end ``apart`` later."""
    built = KinetoBuilder(rank=rank, base_ns=BASE_NS + off)
    built.header["host_name"] = f"node-{rank}" if off else "node-a"
    built.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    args: dict[str, Any] = MM if shapes else {}
    lag = late * rank
    for step in range(STEPS):
        t = 10 * MS + step * STEP
        built.step(step, t, t + STEP)
        built.range("diag.forward", t, t + MS).range("block.0", t, t + 900 * US)
        built.op("aten::linear", t + 10 * US, t + 90 * US, **args).op("aten::mm", t + 20 * US, t + 80 * US, **args)
        built.kernel(t + 50 * US, t + 50 * US + 20 * MS, "nvjet_tst_128x256", launch=t + 30 * US)
        built.op("autograd::engine::evaluate_function: MmBackward0", t + MS, t + 2 * MS, tid=BACKWARD)
        if recompute:
            built.op("aten::linear", t + MS + 10 * US, t + MS + 50 * US, tid=BACKWARD)
            built.op("aten::relu", t + MS + 60 * US, t + MS + 90 * US, tid=BACKWARD)
        begin = t + 50 * US + 20 * MS
        built.kernel(begin, begin + 10 * MS, "nvjet_tst_128x256", launch=t + MS + 20 * US, tid=BACKWARD)
        built.kernel(
            begin + 10 * MS, begin + 40 * MS + lag, "reduce_kernel<512>", launch=t + MS + 500 * US, tid=BACKWARD
        )
        arrival = begin + 40 * MS + lag
        last = begin + 40 * MS + late
        for seq, (start, done, elems) in enumerate(
            ((arrival, last + 10 * MS, 25_000_000), (last + 10 * MS, last + 20 * MS, 12_500_000))
        ):
            call = nccl_args("allreduce", elems, seq=2 * step + seq)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            done += apart * rank * (step % 2)
            built.kernel(start, done, name, launch=t + 3 * MS + seq, stream=20, **call)
        built.range("Optimizer.step#AdamW.step", t + 4 * MS, t + 5 * MS)
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, float>(int)"
        built.kernel(last + 15 * MS, last + 20 * MS, name, launch=t + 4 * MS + 100 * US)
    return built


def two_ranks(folder: Path, **how: Any) -> Result:
    for rank in (0, 1):
        rank_trace(rank, **{**how, "off": how.get("off", 0) * rank}).write(folder, f"rank{rank}.json")
    return open_run(folder)


def rows(result: Result) -> dict[int, CollectiveStat]:
    return {row.bytes_mean: row for row in result.breakdowns.collectives.rows}


def kernels(result: Result) -> dict[str, KernelStat]:
    return {row.name.split("<")[0]: row for row in result.breakdowns.kernels.rows}


def device_time(result: Result) -> int:
    """Nanoseconds of all device work that starts in the counted steps, before union."""
    total = 0
    for trace in (trace for rank in result.tables.ranks.values() for trace in rank.traces):
        work = trace.select(*names.DEVICE_CATEGORIES)
        for step, begin, end in gpu.step_windows(trace):
            if step in result.breakdowns.steps:
                total += work.filter(pl.col("ts_ns") >= begin, pl.col("ts_ns") < end)["dur_ns"].sum()
    return total


def check_sums(result: Result) -> None:
    """What must hold for any run: the rows of each table add up to what the partition says."""
    found = result.breakdowns
    parts = [p for s in result.attribution.steps if s.step in found.steps for p in s.parts]
    collectives = found.collectives
    exposed = sum(row.exposed_ns for row in collectives.rows) + collectives.rest_exposed_ns
    assert exposed == sum(p.exposed_comm_ns for p in parts)
    assert sum(r.hidden_ns for r in collectives.rows) + collectives.rest_hidden_ns == sum(
        p.overlapped_comm_ns for p in parts
    )
    assert collectives.rest_exposed_ns >= 0
    assert collectives.rest_hidden_ns >= 0
    assert sum(row.total_ns for row in found.kernels.rows) == found.kernels.busy_ns
    if found.kernels.unit == "kernel":
        assert found.kernels.busy_ns == device_time(result)
    assert sum(row.share for row in found.kernels.rows) == pytest.approx(1 if found.kernels.rows else 0)
    for table in found.modules:
        assert sum(row.self_ns for row in table.rows) + table.unattributed_ns == table.busy_ns
        communication = sum(r.total_ns for r in found.kernels.rows if r.kind == KernelKind.COMMUNICATION)
        assert table.busy_ns == found.kernels.busy_ns - communication


def test_collectives(tmp_path: Path) -> None:
    result = two_ranks(tmp_path)
    check_sums(result)
    large, small = rows(result)[100_000_000], rows(result)[50_000_000]
    assert (large.count, large.matched, large.ranks, large.group_size, large.dtype) == (COUNTED, COUNTED, 2, 2, "Float")
    assert (large.wait_mean_ns, large.wait_max_ns) == (15 * MS, 30 * MS)
    assert (large.last_rank, large.last_share) == (1, 1.0)
    assert (large.transfer_mean_ns, large.transfer_bound_ns, large.tail_mean_ns) == (10 * MS, 10 * MS, 0)
    assert large.duration_mean_ns == 25 * MS
    assert large.algbw_gb_s == pytest.approx(10)
    assert large.busbw_gb_s == pytest.approx(10), "2 (n - 1) / n is 1 for two ranks"
    assert (large.bandwidth_is_bound, large.inferred) == (False, False)
    assert large.efficiency == pytest.approx(1)
    assert small.efficiency == pytest.approx(0.5)
    assert (large.exposed_ns, large.hidden_ns) == (COUNTED * 50 * MS, 0)
    assert (small.exposed_ns, small.hidden_ns) == (COUNTED * 10 * MS, COUNTED * 10 * MS)


def test_who_was_last_is_weighed_by_how_long_the_others_waited() -> None:
    """One rank is last nine times by a microsecond, another once by a second."""
    waits = [(3, 1_000)] * 9 + [(7, 1_000_000_000), (5, 0)]
    assert who_was_waited_for(waits) == ((7, 1_000_000_000), (3, 9_000))


def test_one_rank_does_not_know_who_waits(tmp_path: Path) -> None:
    rank_trace(0).write(tmp_path, "rank0.json")
    result = open_run(tmp_path)
    check_sums(result)
    large = rows(result)[100_000_000]
    assert (large.wait_mean_ns, large.last_rank, large.transfer_mean_ns, large.efficiency) == (None,) * 4
    assert (large.transfer_bound_ns, large.bandwidth_is_bound) == (40 * MS, True)
    assert large.busbw_gb_s == pytest.approx(2.5)
    assert any("cannot be attributed to ranks: only one rank" in note for note in result.breakdowns.notes)


def test_clocks_that_say_nothing_leave_the_bound(tmp_path: Path) -> None:
    """Nobody is late, so that the bounds leave a transfer open; and the kernels do not end together."""
    result = two_ranks(tmp_path, off=50 * MS, late=0, apart=20 * MS)
    check_sums(result)
    large = rows(result)[100_000_000]
    assert (large.wait_mean_ns, large.transfer_mean_ns, large.efficiency) == (None,) * 3
    assert (large.transfer_bound_ns, large.bandwidth_is_bound) == (10 * MS, True)


def test_bus_factors() -> None:
    assert bus_factor("all_reduce", 8) == pytest.approx(1.75)
    assert bus_factor("reduce_scatter", 8) == pytest.approx(0.875)
    assert bus_factor("reduce_scatter", 8, gloo=True) == pytest.approx(1.75)
    assert bus_factor("all_gather", 4) == bus_factor("all_to_all", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1.0
    assert bus_factor("barrier", 4) is bus_factor("all_reduce", None) is bus_factor("all_reduce", 1) is None


def test_the_best_of_a_group_is_taken_where_sizes_saturate_it() -> None:
    sizes = [1 << 10, 1 << 20, 1 << 24, 1 << 28]
    times = [20_000 + size // 100 for size in sizes]  # 20 us and 100 GB/s
    assert saturating_bytes(sizes, times) == pytest.approx(8e6, rel=0.05)
    assert best_bandwidth(sizes, times, [s / t for s, t in zip(sizes, times, strict=True)]) == pytest.approx(
        98, rel=0.02
    )
    assert saturating_bytes(sizes[:2], times[:2]) == BANDWIDTH.saturating_bytes
    assert best_bandwidth(sizes[:2], times[:2], [1.0, 2.0]) is None


def test_kernels(tmp_path: Path) -> None:
    result = two_ranks(tmp_path)
    table, found = result.breakdowns.kernels, kernels(result)
    assert (table.unit, table.rank_steps) == ("kernel", 2 * COUNTED)
    product = found["nvjet_tst_128x256"]
    assert (product.kind, product.operator) == (KernelKind.GEMM, "aten::mm")
    assert (product.count, product.total_ns, product.max_ns) == (4 * COUNTED, COUNTED * 60 * MS, 20 * MS)
    assert product.shapes_share == pytest.approx(2 / 3), "the one in the backward has no shapes"
    assert product.flops == pytest.approx(2 * COUNTED * FLOPS), "the outer aten::linear does not count again"
    assert product.tflop_s == pytest.approx(FLOPS / 20e-3 / 1e12)
    assert product.intensity == pytest.approx(4096 / 3)
    assert (product.bound, product.bound_from) == (Bound.MATH, "shapes")
    reduction = found["reduce_kernel"]
    assert (reduction.kind, reduction.bound, reduction.bound_from) == (KernelKind.REDUCTION, Bound.MEMORY, "class")
    assert reduction.total_ns == COUNTED * (30 + 60) * MS
    assert found["void at::native::vectorized_elementwise_kernel"].kind == KernelKind.OPTIMIZER
    communication = found["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert (communication.kind, communication.bound) == (KernelKind.COMMUNICATION, Bound.UNKNOWN)
    assert communication.exposed_ns == communication.total_ns - 2 * COUNTED * 5 * MS


def test_small_products_are_memory_bound(tmp_path: Path) -> None:
    built = KinetoBuilder()
    built.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    for i, (rows_of_a, kind) in enumerate(((16, "c10::BFloat16"), (16, "float"), (256, "float"))):
        begin = 10 * MS * i
        args = {"Input Dims": [[rows_of_a, 4096], [4096, 4096]], "Input type": [kind, kind]}
        built.op("aten::mm", begin, begin + MS, **args).kernel(
            begin + MS, begin + 2 * MS, f"gemm_{i}", launch=begin + 1
        )
    built.write(tmp_path)
    found = kernels(open_run(tmp_path))
    assert [found[f"gemm_{i}"].bound for i in range(3)] == [Bound.MEMORY, Bound.MEMORY, Bound.UNKNOWN]


@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_what_the_allocator_held_at_most(tmp_path: Path, layout: Any) -> None:
    build = KinetoBuilder(world_size=1).step(1, 0, 1000).kernel(10, 900, launch=5)
    build.memory(100, 5 << 30, 9 << 30).memory(200, 7 << 30, 9 << 30).memory(300, 6 << 30, 8 << 30)
    (peak,) = open_run(build.write(tmp_path, layout=layout)).breakdowns.memory_peaks
    assert (peak.rank, peak.allocated, peak.reserved, peak.capacity) == (0, 7 << 30, 9 << 30, None)


def test_kernels_beside_communication_are_compared_with_the_same_ones_alone(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1).step(1, 0, 2000)
    build.kernel(0, 100).kernel(100, 200).kernel(200, 330, stream=8)  # alone 100, beside 130
    build.kernel(205, 400, "ncclDevKernel_AllReduce_Sum_f32(x)", stream=20, **nccl_args("allreduce", 10))
    build.kernel(500, 900, name="only alone").kernel(320, 390, name="only beside", stream=9)
    measure = open_run(build.write(tmp_path)).breakdowns.efficiency.contention_share
    assert measure.value == pytest.approx(30 / (100 + 100 + 130 + 400 + 70))
    assert "1 kernels that overlap communication take 1.30 times" in measure.basis
    quiet = open_run(KinetoBuilder(world_size=1).step(1, 0, 200).kernel(0, 100).write(tmp_path, "quiet.json"))
    assert quiet.breakdowns.efficiency.contention_share.value is None
