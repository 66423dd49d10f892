"""GPU traces with known truth: exact numbers for every kind, and sums that hold whatever the trace is."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.account.gpu import partition, step_windows
from diag.account.trace_collectives import CALLS_A_STEP
from diag.model.steps import Detail, Kind, RankStep
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, KinetoBuilder, nccl_args
from tests.examples import examples


def account(build: KinetoBuilder, folder: Path) -> list[RankStep]:
    trace = read_trace(build.write(folder))
    steps = partition(trace, step_windows(trace), rank=0)
    for step in steps:
        assert_exact(step)
    return steps


def one(build: KinetoBuilder, folder: Path) -> RankStep:
    (step,) = account(build, folder)
    return step


def assert_exact(step: RankStep) -> None:
    parts = step.segments
    assert sum(parts.total(kind) for kind in Kind) == step.dur_ns
    assert (parts.start_ns[1:] == parts.end_ns[:-1]).all()
    assert (parts.end_ns > parts.start_ns).all()
    if step.dur_ns:
        assert (parts.start_ns[0], parts.end_ns[-1]) == (step.begin_ns, step.end_ns)
    assert 0 <= step.optimizer_ns <= parts.total(Kind.COMPUTE) + parts.total(Kind.IDLE)


def kinds(step: RankStep) -> dict[Kind, int]:
    return {kind: step.segments.total(kind) for kind in Kind if step.segments.total(kind)}


def idle(step: RankStep) -> dict[Detail, int]:
    return {
        detail: step.segments.total(Kind.IDLE, detail) for detail in Detail if step.segments.total(Kind.IDLE, detail)
    }


def test_communication_is_exposed_only_where_nothing_computes(tmp_path: Path) -> None:
    build = KinetoBuilder().step(5, 0, 100_000)
    build.kernel(0, 40_000).kernel(10_000, 30_000, stream=8).kernel(60_000, 70_000)
    build.kernel(
        30_000, 65_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", stream=20, **nccl_args("allreduce", 1000, 7)
    )
    build.kernel(
        70_000, 90_000, "ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", stream=20, **nccl_args("_allgather_base", 10)
    )
    step = one(build, tmp_path)
    assert kinds(step) == {Kind.COMPUTE: 50_000, Kind.COMM: 40_000, Kind.IDLE: 10_000}
    assert step.overlapped_comm_ns == 15_000
    assert (step.step, step.rank, step.source, step.begin_ns) == (5, 0, "trace", BASE_NS)
    reduce, gather = step.collectives
    assert (reduce.key, reduce.bytes, reduce.group_ranks, reduce.inferred) == (
        ("0", 7, "all_reduce"),
        4000,
        (0, 1),
        False,
    )
    assert (reduce.start_ns - BASE_NS, reduce.end_ns - BASE_NS) == (30_000, 65_000)
    assert (gather.key, gather.bytes, gather.inferred) == (("0", 5 * CALLS_A_STEP, "all_gather"), 40, True)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "rcclGenericKernel(x)", "mscclKernel_Sum_half_Simple(x)",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)", "void mscclpp::allreduce<float>(x)",
        "void c10d::symmetric_memory::(anonymous namespace)::two_shot_all_reduce_kernel<float>(x)",
    ],
)  # fmt: skip
def test_communication_of_every_library_is_recognised(tmp_path: Path, name: str) -> None:
    assert kinds(one(KinetoBuilder().step(1, 0, 10).kernel(0, 10, name), tmp_path)) == {Kind.COMM: 10}


@pytest.mark.parametrize("name", ["gemm", "triton_poi_fused_all_gather_nccl_0", "void at::native::reduce_kernel<x>(y)"])
def test_ordinary_kernels_compute(tmp_path: Path, name: str) -> None:
    assert kinds(one(KinetoBuilder().step(1, 0, 10).kernel(0, 10, name), tmp_path)) == {Kind.COMPUTE: 10}


def test_copies_hide_behind_compute_and_communication(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100).kernel(0, 20).kernel(20, 40, "ncclDevKernel_X(y)", stream=9)
    build.copy(10, 50, "HtoD").copy(50, 60, "DtoH").copy(60, 75, "DtoD").copy(75, 80, "PtoP")
    build.event("gpu_memset", "Memset (Device)", 80, 100, 7, 0, device=0, stream=7)
    assert kinds(one(build, tmp_path)) == {Kind.COMPUTE: 20 + 15 + 20, Kind.COMM: 20 + 5, Kind.COPY: 20}


def test_pipeline_transfers_are_marked(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 20).kernel(0, 10, "ncclDevKernel_SendRecv(x)", **nccl_args("recv", 4))
    step = one(build.kernel(10, 20, "ncclDevKernel_SendRecv(x)", **nccl_args("all_to_all", 4)), tmp_path)
    assert (step.segments.total(Kind.COMM, Detail.P2P), step.segments.total(Kind.COMM, Detail.NONE)) == (10, 10)


def test_data_wait_checkpoint_and_gc_take_only_what_the_device_idles(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 1000).kernel(0, 100, launch=0).kernel(500, 600, launch=490)
    build.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 300).range("diag.data", 250, 350)
    build.range("enumerate(DataLoader)#_X.__next__", 350, 480, tid=77)  # a thread that launches nothing
    build.event("python_function", "Python GC", 400, 420).range("diag.checkpoint", 600, 900).kernel(
        990, 1000, launch=985
    )
    step = one(build, tmp_path)
    assert kinds(step) == {Kind.COMPUTE: 210, Kind.DATA: 250, Kind.CHECKPOINT: 300, Kind.IDLE: 240}
    assert idle(step) == {Detail.GC: 20, Detail.LAUNCH: 50 + 70 + 85, Detail.IN_LAUNCH: 1 + 1, Detail.LATENCY: 9 + 4}


def test_idle_causes(tmp_path: Path) -> None:
    us = 1000
    build = KinetoBuilder().step(1, 0, 500 * us)
    build.kernel(0, 100 * us, launch=0)
    build.kernel(105 * us, 110 * us, launch=1 * us)  # queued, 5 us later: the device's hand-over
    build.kernel(140 * us, 150 * us, launch=2 * us)  # queued, 30 us later: dependency
    build.runtime("cudaStreamSynchronize", 20 * us, 160 * us)
    build.kernel(180 * us, 200 * us, launch=175 * us)  # after the wait for the device: sync bubble
    build.kernel(260 * us, 270 * us, launch=250 * us)  # launched late
    build.runtime("cudaMalloc", 280 * us, 300 * us).kernel(310 * us, 320 * us, launch=305 * us)
    build.copy(320 * us, 321 * us, "DtoH", launch=316 * us, until=330 * us)  # .item()
    build.kernel(351 * us, 500 * us, launch=350 * us)
    step = one(build, tmp_path)
    assert idle(step) == {
        Detail.NONE: 5 * us, Detail.DEPENDENCY: 30 * us,
        Detail.LATENCY: 5 * us - 1 + 10 * us - 1 + 5 * us - 1 + 1 * us - 1,
        Detail.SYNC: 10 * us + 9 * us, Detail.AFTER_SYNC: 15 * us + 20 * us, Detail.ALLOCATOR: 20 * us,
        Detail.LAUNCH: 50 * us + 15 * us, Detail.IN_LAUNCH: 4,
    }  # fmt: skip
    assert step.segments.total(Kind.COPY) == 1 * us


def test_phases_follow_the_launch_not_the_execution(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 400).range("diag.forward", 0, 100).range("Optimizer.step#AdamW.step", 200, 300)
    build.op("autograd::engine::evaluate_function: MmBackward0", 100, 200, AUTOGRAD)
    build.kernel(150, 200, launch=50).kernel(200, 260, launch=150, tid=AUTOGRAD)
    build.kernel(300, 340, launch=210).kernel(350, 370, launch=220).kernel(380, 400, launch=310)
    step = one(build, tmp_path)
    found = {
        detail: step.segments.total(Kind.COMPUTE, detail)
        for detail in (Detail.FORWARD, Detail.BACKWARD, Detail.OPTIMIZER)
    }
    assert found == {Detail.FORWARD: 50, Detail.BACKWARD: 60, Detail.OPTIMIZER: 60}
    assert step.optimizer_ns == 70  # with the gap between its two kernels
    assert step.segments.total(Kind.COMPUTE, Detail.NONE) == 20


def test_a_step_ends_when_the_device_has_done_what_it_launched(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100, "ProfilerStep#").step(2, 100, 200, "ProfilerStep#").op("aten::mm", 100, 110)
    build.kernel(0, 20)  # launched before the recording
    build.kernel(50, 250, launch=10).kernel(250, 450, "ncclDevKernel_A(x)", launch=110)
    build.event("gpu_user_annotation", "ProfilerStep#1", 50, 250, 7, 0)
    steps = account(build, tmp_path)
    assert [(s.step, s.begin_ns - BASE_NS, s.end_ns - BASE_NS) for s in steps] == [(1, 20, 250), (2, 250, 450)]
    assert [s.segments.total(Kind.COMM) for s in steps] == [0, 200]


def test_our_own_steps_go_before_the_profilers(tmp_path: Path) -> None:
    build = KinetoBuilder().step(7, 10, 90).step(0, 0, 100, "ProfilerStep#").kernel(20, 30, launch=15)
    assert [(s.step, s.dur_ns) for s in account(build, tmp_path)] == [(7, 80)]


def test_the_profilers_closing_stub_is_no_step(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100, "ProfilerStep#").op("aten::mm", 5, 9).kernel(20, 30, launch=15)
    assert [s.step for s in account(build.step(2, 100, 101, "ProfilerStep#"), tmp_path)] == [1]


def test_without_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    assert one(KinetoBuilder().op("aten::mm", 0, 10).kernel(20, 30), tmp_path).dur_ns == 30


def test_missing_arguments_come_from_the_range_around_the_launch(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100).kernel(20, 30, "ncclDevKernel_Generic(x)", launch=10)
    build.op(
        "record_param_comms",
        5,
        15,
        **{**nccl_args("_reduce_scatter_base", 0, 42), "In msg nelems": 8, "Out msg nelems": 4},
    )
    build.kernel(50, 60, "ncclKernel_SendRecv(x)", launch=45)
    build.range("nccl:all_to_all", 44, 46, args={"Input Dims": [[3, 5]], "Input type": ["c10::Half"]})
    build.kernel(70, 80, "ncclKernel_AllReduce_RING(x)", launch=65)
    calls = one(build, tmp_path).collectives
    assert [(c.key, c.bytes, c.inferred) for c in calls] == [
        (("0", 42, "reduce_scatter"), 32, False),
        (("", CALLS_A_STEP, "all_to_all"), 30, True),
        (("", CALLS_A_STEP, "all_reduce"), 0, True),
    ]


def test_a_repeated_sequence_number_is_not_trusted(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100)
    for k in range(3):
        build.kernel(k * 10, k * 10 + 5, "ncclDevKernel_X(y)", **nccl_args("broadcast", 1, 9))
    calls = one(build, tmp_path).collectives
    assert [(c.key[1] - CALLS_A_STEP, c.inferred) for c in calls] == [(0, True), (1, True), (2, True)]


SPAN = st.tuples(st.integers(0, 300), st.integers(0, 60))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "ncclDevKernel_A(x)", "HtoD", "DtoD", "data", "ckpt", "gc", "sync", "malloc", "opt"]),
        SPAN,
    ),
    max_size=25,
)


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(EVENTS, st.lists(st.integers(0, 300), min_size=1, max_size=4, unique=True))
def test_parts_sum_to_the_step_and_match_a_bitmap(events: list[tuple[str, tuple[int, int]]], edges: list[int]) -> None:
    build = KinetoBuilder()
    bits = {name: np.zeros(400, dtype=np.bool_) for name in ("compute", "comm", "copy", "data", "ckpt")}
    plain = {"data": "diag.data", "ckpt": "diag.checkpoint", "gc": "diag.gc", "opt": "Optimizer.step#SGD.step"}
    kind = {"gemm": "compute", "DtoD": "compute", "HtoD": "copy", "ncclDevKernel_A(x)": "comm"}
    for number, (name, (start, length)) in enumerate(events):
        end = start + length
        if name in plain:
            build.range(plain[name], start, end)
        elif name in ("sync", "malloc"):
            build.runtime({"sync": "cudaDeviceSynchronize", "malloc": "cudaMalloc"}[name], start, end)
        elif name.endswith("toD"):
            build.copy(start, end, name, launch=max(start - number, 0))
        else:
            build.kernel(start, end, name, launch=max(start - number, 0) if number % 3 else None)
        if kind.get(name, name) in bits:
            bits[kind.get(name, name)][start:end] = True
    edges = sorted(edges)
    for index, (begin, end) in enumerate(zip(edges, [*edges[1:], 300], strict=True)):
        build.step(index, begin, max(end, begin))
    with TemporaryDirectory() as folder:
        steps = account(build, Path(folder))
    shown = np.zeros(400, dtype=np.bool_)
    order = (
        ("compute", Kind.COMPUTE),
        ("comm", Kind.COMM),
        ("copy", Kind.COPY),
        ("data", Kind.DATA),
        ("ckpt", Kind.CHECKPOINT),
    )
    for name, label in order:
        mine = bits[name] & ~shown
        shown |= bits[name]
        for step in steps:
            window = slice(step.begin_ns - BASE_NS, step.end_ns - BASE_NS)
            assert step.segments.total(label) == mine[window].sum()
    for step in steps:
        window = slice(step.begin_ns - BASE_NS, step.end_ns - BASE_NS)
        assert step.overlapped_comm_ns == (bits["comm"] & bits["compute"])[window].sum()


def test_collectives_that_were_launched_before_the_trace_are_not_counted(tmp_path: Path) -> None:
    """How many of them were queued differs from rank to rank: counted, they would shift all that follow."""
    name = "ncclKernel_AllReduce_RING_LL_Sum_float(x)"
    build = KinetoBuilder().step(1, 0, 100).kernel(0, 10, launch=0)
    build.kernel(12, 20, name, stream=20).kernel(22, 30, name, launch=15).kernel(40, 50, name, launch=35)
    step = one(build, tmp_path)
    assert [(call.start_ns - BASE_NS, call.key[1] % CALLS_A_STEP) for call in step.collectives] == [(22, 0), (40, 1)]
    assert kinds(step)[Kind.COMM] == 8 + 8 + 10
