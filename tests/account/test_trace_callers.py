"""Communication and the calls of the host that made it: copies, coalesced and point-to-point calls, graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.account.gpu import partition, step_windows
from diag.account.match import by_key
from diag.account.trace_collectives import CALLS_A_STEP
from diag.model.steps import CollectiveCall, Detail, Kind, RankStep
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import BASE_NS, MAIN, KinetoBuilder, nccl_args

US = 1000
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def one(build: KinetoBuilder, folder: Path) -> RankStep:
    trace = read_trace(build.write(folder))
    (step,) = partition(trace, step_windows(trace), rank=trace.rank or 0)
    assert sum(step.segments.total(kind) for kind in Kind) == step.dur_ns
    return step


def step_build(end: int, rank: int = 0, world_size: int = 2) -> KinetoBuilder:
    return KinetoBuilder(rank=rank, world_size=world_size).step(1, 0, end)


def times(call: CollectiveCall) -> tuple[int, int]:
    return call.start_ns - BASE_NS, call.end_ns - BASE_NS


def param(build: KinetoBuilder, begin: int, end: int, op: str, elems: int, **more: Any) -> KinetoBuilder:
    return build.op("record_param_comms", begin, end, **nccl_args(op, elems), **more)


def test_copies_by_which_nccl_gathers_are_one_collective(tmp_path: Path) -> None:
    build = step_build(1000).range("FSDP::all_gather (blocks.0)", 10, 90)
    build.op("fsdp::all_gather_copy_in", 15, 25).copy(100, 120, "DtoD", launch=20)  # into its own buffer: compute
    param(build, 30, 80, "_allgather_base", 8).range("nccl:_all_gather_base", 35, 75)
    build.copy(200, 300, "DtoD", launch=40).copy(210, 350, "PtoP", launch=45).copy(340, 400, "DtoD", launch=50)
    step = one(build, tmp_path)
    assert (step.segments.total(Kind.COMPUTE), step.segments.total(Kind.COMM)) == (20, 200)
    (call,) = step.collectives
    assert (call.op, call.bytes, times(call)) == ("all_gather", 32, (200, 400))


@pytest.mark.parametrize("by_torch", [True, False])
def test_torchs_own_copies_in_a_call_are_local(tmp_path: Path, by_torch: bool) -> None:
    build = param(step_build(200), 0, 90, "all_gather", 8).range("nccl:all_gather", 5, 80)
    build.kernel(10, 50, "ncclDevKernel_AllGather_RING_LL(x)", launch=8).copy(60, 70, "DtoD", launch=20)
    if by_torch:
        build.op("aten::copy_", 15, 30)
    step = one(build, tmp_path)
    assert step.segments.total(Kind.COMPUTE) == (10 if by_torch else 0)
    assert [(call.op, times(call)) for call in step.collectives] == [("all_gather", (10, 50))]


@pytest.mark.parametrize("where", ["world", "group"])
def test_a_collective_of_one_rank_copies_locally(tmp_path: Path, where: str) -> None:
    build = step_build(100, world_size=1 if where == "world" else 2).range("nccl:_all_gather_base", 5, 25)
    args = {**nccl_args("_allgather_base", 8), "Group size": 1 if where == "group" else 2}
    build.op("record_param_comms", 0, 30, **args).copy(40, 60, "DtoD", launch=10)
    step = one(build, tmp_path)
    assert (step.segments.total(Kind.COMPUTE), step.collectives) == (20, ())


def test_copies_of_symmetric_memory_are_one_collective(tmp_path: Path) -> None:
    build = step_build(500).op("symm_mem::_low_contention_all_gather", 0, 100).op("aten::copy_", 20, 30)
    barrier = "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)"
    build.kernel(100, 120, barrier, launch=10).copy(120, 200, "DtoD", launch=25).copy(200, 290, "PtoP", launch=40)
    step = one(build.kernel(300, 310, barrier, launch=60), tmp_path)
    assert step.segments.total(Kind.COMM) == 200
    assert [(call.op, times(call)) for call in step.collectives] == [("all_gather", (100, 310))]


def test_a_copy_between_devices_that_nobody_called_a_collective(tmp_path: Path) -> None:
    step = one(step_build(100).op("aten::to", 0, 30).copy(40, 60, "PtoP", launch=10), tmp_path)
    assert (step.segments.total(Kind.COMM), step.collectives) == (20, ())


# -- what the host says ------------------------------------------------------------------------------------------------


def test_ranges_repeated_on_the_device_count_once(tmp_path: Path) -> None:
    build = step_build(200).range("nccl:all_reduce", 0, 20)
    build.kernel(30, 90, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", launch=10)
    build.event("gpu_user_annotation", "nccl:all_reduce", 29, 91, 7, 0)
    step = one(build, tmp_path)
    assert (step.segments.total(Kind.COMM), len(step.collectives)) == (60, 1)


def test_a_coalesced_call_is_what_was_described_before_it(tmp_path: Path) -> None:
    build = step_build(1000)
    for begin, elems in ((0, 100), (20, 200)):
        param(build, begin, begin + 10, "_allgather_base", elems).range("nccl:_all_gather_base", begin + 2, begin + 8)
    build.range("nccl:ALLGATHER_coalesced", 40, 60).kernel(50, 100, "ncclDevKernel_AllGather_RING_LL(x)", launch=50)
    param(build, 70, 75, "wait", 0)
    param(build, 110, 120, "_allgather_base", 7)
    build.range("nccl:ALLGATHER_coalesced", 140, 160).kernel(200, 250, "ncclDevKernel_AllGather_RING_LL(x)", launch=150)
    found = [(c.key, c.bytes, c.group_ranks, c.inferred) for c in one(build, tmp_path).collectives]
    assert found == [
        (("0", CALLS_A_STEP, "all_gather"), 1200, (0, 1), True),
        (("0", CALLS_A_STEP + 1, "all_gather"), 28, (0, 1), True),
    ]


def test_functional_collectives_and_barriers(tmp_path: Path) -> None:
    build = step_build(300).op("_c10d_functional::all_gather_into_tensor", 0, 30)
    param(build, 5, 25, "_allgather_base", 4).range("nccl:_all_gather_base", 6, 24)
    build.kernel(40, 60, "ncclDevKernel_AllGather_RING_LL(x)", launch=10).op("_c10d_functional::wait_tensor", 70, 90)
    build.range("nccl:all_reduce_barrier", 100, 110).kernel(120, 130, "ncclDevKernel_AllReduce_Sum_f32(x)", launch=105)
    assert [call.op for call in one(build, tmp_path).collectives] == ["all_gather", "barrier"]


def test_a_call_without_its_group_is_not_matched_where_there_are_several(tmp_path: Path) -> None:
    calls = {}
    for rank in (0, 1):
        build = step_build(100, rank).kernel(0, 50, "void deep_ep::intranode::dispatch<8>(x)")
        configs = build.header["distributedInfo"]["pg_config"]
        configs.append({"pg_name": "1", "pg_desc": "tp", "pg_size": 2, "ranks": [rank, rank + 2]})
        calls[rank] = one(build, tmp_path).collectives
        assert [call.op for call in calls[rank]] == ["all_to_all"]
    assert not by_key(calls)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def p2p(step: RankStep) -> tuple[int, int]:
    return step.segments.total(Kind.COMM, Detail.P2P), step.segments.total(Kind.COMM, Detail.NONE)


def test_a_send_meets_its_receive(tmp_path: Path) -> None:
    calls = {}
    for rank, title, op in ((0, "nccl:send 0->1", "send"), (1, "nccl:recv 1<-0", "recv")):
        build = param(step_build(100, rank), 0, 20, op, 4).range(title, 5, 15)
        if rank:  # a send to another peer does not shift the count
            param(build, 20, 40, "send", 4).range("nccl:send 1->2", 25, 35).kernel(50, 60, SEND_RECV, launch=30)
        build.kernel(20, 50, SEND_RECV, launch=10)
        step = one(build, tmp_path)
        assert p2p(step) == (40 if rank else 30, 0)
        calls[rank] = step.collectives
    ((key, members),) = by_key(calls).items()
    assert key == ("0", CALLS_A_STEP, "send 0->1")
    assert {rank: (call.op, call.group_ranks) for rank, call in members.items()} == {
        0: ("send", (0, 1)), 1: ("recv", (0, 1)),
    }  # fmt: skip


def test_sends_and_receives_in_one_kernel(tmp_path: Path) -> None:
    calls = {}
    for rank in (0, 1):
        build = param(step_build(100, rank), 0, 5, "send", 4).range("nccl:send 0->1", 1, 4)
        param(build, 6, 9, "recv", 4).range("nccl:coalesced", 10, 20).kernel(30, 60, SEND_RECV, launch=15)
        step = one(build, tmp_path)
        assert p2p(step) == (30, 0)
        calls[rank] = step.collectives
        assert [(call.op, call.group) for call in step.collectives] == [("send_recv", "0")]
    assert not by_key(calls)  # the kernels of two ranks need not be two ends of one transfer


def test_an_all_to_all_is_no_pipeline_transfer(tmp_path: Path) -> None:
    step = one(step_build(100).range("nccl:all_to_all", 0, 20).kernel(30, 60, SEND_RECV, launch=10), tmp_path)
    assert (p2p(step), [call.op for call in step.collectives]) == ((0, 30), ["all_to_all"])


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_gaps_within_a_graph_are_dependencies(tmp_path: Path, call: str) -> None:
    build = step_build(500 * US).range("DistributedDataParallel.forward", 40 * US, 60 * US)
    build.kernel(0, 20 * US, launch=0).runtime(call, 50 * US, 55 * US, correlation=900)
    names = ["gemm", "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "gemm"]
    for (start, end), name in zip(((70, 100), (150, 200), (200, 240), (245, 500)), names, strict=True):
        build.event("kernel", name, start * US, end * US, 7, 0, device=0, stream=7, correlation=900)
    step = one(build, tmp_path)
    idle = {d: step.segments.total(Kind.IDLE, d) // US for d in Detail if step.segments.total(Kind.IDLE, d)}
    assert idle == {Detail.LAUNCH: 30, Detail.IN_LAUNCH: 5, Detail.DEPENDENCY: 15 + 50, Detail.NONE: 5}
    assert step.segments.total(Kind.COMPUTE, Detail.FORWARD) == (30 + 50 + 255) * US


def test_launches_by_the_driver(tmp_path: Path) -> None:
    build = step_build(100).event("cuda_driver", "cuLaunchKernelEx", 40, 45, MAIN, correlation=901)
    build.event("kernel", "triton_poi_fused_all_gather_0", 50, 100, 7, 0, device=0, stream=7, correlation=901)
    step = one(build.range("Forward 0", 30, 60), tmp_path)
    assert step.segments.total(Kind.COMPUTE, Detail.FORWARD) == 50
    assert step.segments.total(Kind.IDLE, Detail.LAUNCH) == 40


def test_devices_that_are_not_known_do_no_work(tmp_path: Path) -> None:
    build = step_build(100).kernel(0, 10, launch=0)
    for category in ("mtia_ccp_events", "mtia_runtime", "hpu_op", "collective_comm", "cuda_sync", "overhead"):
        build.event(category, "xccl::allreduce", 20, 90, 7, 0, device=0, stream=7)
    step = one(build, tmp_path)
    assert (step.segments.total(Kind.COMPUTE), step.segments.total(Kind.COMM)) == (10, 0)


def test_an_intel_gpu(tmp_path: Path) -> None:
    build = step_build(100).event("xpu_runtime", "urEnqueueKernelLaunch", 0, 2, correlation=7)
    build.event("kernel", "gemm_kernel", 10, 40, 7, 0, device=0, stream=7, correlation=7)
    for start, name in ((40, "Memcpy M2D (MEMORY(Unknown) -> DEVICE)"), (60, "Memcpy D2D (DEVICE -> DEVICE)")):
        build.event("gpu_memcpy", name, start, start + 20, 7, 0, device=0, stream=7)
    build.event("kernel", "oneccl_allreduce_kernel", 80, 100, 7, 0, device=0, stream=8)
    step = one(build, tmp_path)
    assert [step.segments.total(kind) for kind in (Kind.COMPUTE, Kind.COPY, Kind.COMM)] == [50, 20, 20]
