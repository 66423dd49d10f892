"""Why a device was idle, against a truth that is worked out nanosecond by nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from diag.account.attribute import parts_of
from diag.account.gpu import partition, step_windows
from diag.account.rank_steps import RankSteps
from diag.model.steps import Detail, IdleParts, Kind, Parts
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import BASE_NS, MAIN, KinetoBuilder
from tests.examples import examples

US, MS = 1_000, 1_000_000
END = 300


class Kernel(NamedTuple):
    """``launch``: begin and end of the call on the host; None where the trace lacks it."""

    begin: int
    end: int
    launch: tuple[int, int] | None


def parts(build: KinetoBuilder, folder: Path) -> list[Parts]:
    trace = read_trace(build.write(folder))
    return parts_of(RankSteps.of(partition(trace, step_windows(trace), 0)), {})


def launched(build: KinetoBuilder, kernel: Kernel, correlation: int) -> None:
    if kernel.launch is not None:
        build.runtime("cudaLaunchKernel", *kernel.launch, correlation=correlation)
    build.event("kernel", "gemm", kernel.begin, kernel.end, 7, 0, device=0, stream=7, correlation=correlation)


@st.composite
def _kernels(draw: st.DrawFn) -> list[Kernel]:
    begins = sorted(draw(st.sets(st.integers(0, END - 10), min_size=1, max_size=8)))
    found = []
    for begin in begins:
        call = None
        if draw(st.integers(0, 5)):
            at = draw(st.integers(0, begin))
            call = at, draw(st.integers(at + 1, at + 40))
        found.append(Kernel(begin, draw(st.integers(begin + 1, END)), call))
    return found


_spans = st.lists(st.tuples(st.integers(0, END - 2), st.integers(1, 60)), max_size=3)


@settings(max_examples=examples(40, thorough=150), deadline=None)
@given(kernels=_kernels(), waits=_spans, allocations=_spans)
def test_idle_parts_are_those_of_every_nanosecond(
    kernels: list[Kernel],
    waits: list[tuple[int, int]],
    allocations: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    build = KinetoBuilder().step(0, 0, END)
    for number, kernel in enumerate(kernels, start=1):
        launched(build, kernel, number)
    calls = [("cudaStreamSynchronize", *span) for span in waits] + [("cudaMalloc", *span) for span in allocations]
    for name, begin, length in calls:
        build.runtime(name, begin, begin + length)
    truth = dict.fromkeys(IdleParts.__struct_fields__, 0)
    trace = read_trace(build.write(tmp_path_factory.mktemp("idle")))
    (step,) = partition(trace, step_windows(trace), 0)
    found = parts_of(RankSteps.of([step]), {})[0]
    end = step.end_ns - BASE_NS
    # A step begins when the device is done with what was queued before it.
    for at in range(step.begin_ns - BASE_NS, end):
        if any(kernel.begin <= at < kernel.end for kernel in kernels):
            continue
        following = [kernel for kernel in kernels if kernel.begin > at]
        launch = following[0].launch if following else (end, end)
        if launch is None:
            truth["unknown_ns"] += 1
        elif at < launch[0]:
            inside = any(begin <= at < begin + length for _, begin, length in calls)
            truth["host_call_ns" if inside else "not_launched_ns"] += 1
        else:
            truth["in_launch_ns" if at < launch[1] else "queued_ns"] += 1
    assert to_builtins(found.idle_parts) == truth
    assert sum(truth.values()) == found.idle_ns


def test_what_lies_outside_of_an_unmarked_window_is_no_part_of_a_step(tmp_path: Path) -> None:
    build = KinetoBuilder().op("aten::mm", 0, 400 * US)
    launched(build, Kernel(100 * US, 200 * US, (90 * US, 95 * US)), 1)
    launched(build, Kernel(250 * US, 300 * US, (230 * US, 240 * US)), 2)
    (found,) = parts(build, tmp_path)
    assert found.idle_parts == IdleParts(
        not_launched_ns=30 * US, in_launch_ns=10 * US, queued_ns=10 * US, outside_ns=100 * US + 100 * US
    )


@pytest.mark.parametrize(
    "call", ["cudaFree", "cudaStreamCreateWithFlags", "cuModuleLoadData", "cudaGetDeviceProperties_v2"]
)
def test_a_long_call_that_creates_a_context_or_loads_code_is_no_allocation(tmp_path: Path, call: str) -> None:
    build = KinetoBuilder().step(0, 0, 100 * MS)
    launched(build, Kernel(MS, 2 * MS, (0, 5 * US)), 1)
    build.runtime(call, 10 * MS, 70 * MS)
    launched(build, Kernel(80 * MS, 100 * MS, (80 * MS - 10 * US, 80 * MS - 5 * US)), 2)
    (found,) = parts(build, tmp_path)
    assert (found.idle_parts.in_launch_ns, found.idle_parts.host_call_ns) == (60 * MS + 5 * US + 5 * US, 0)


def test_long_stalls_are_named_by_the_innermost_thing_of_the_host(tmp_path: Path) -> None:
    build = (
        KinetoBuilder()
        .step(0, 0, 100 * MS)
        .event("python_function", "lib/data/video.py(12): preprocess", 3 * MS, 42 * MS)
    )
    build.event("python_function", "train.py(3): main", 0, 100 * MS).op("aten::empty", 5 * MS, 6 * MS)
    launched(build, Kernel(MS, 3 * MS, (0, 5 * US)), 1)
    launched(build, Kernel(43 * MS, 50 * MS, (43 * MS - 10 * US, 43 * MS - 5 * US)), 2)
    build.runtime("hipMemcpyWithStream", 44 * MS, 91 * MS)
    launched(build, Kernel(90 * MS, 100 * MS, (44 * MS - 10 * US, 44 * MS)), 3)
    (found,) = parts(build, tmp_path)
    queued, late = found.stalls
    assert (queued.part, queued.dur_ns, queued.host, queued.host_share) == (
        "queued",
        40 * MS,
        "hipMemcpyWithStream",
        1.0,
    )
    assert (late.part, late.at_ns, late.dur_ns, late.host) == (
        "not_launched",
        3 * MS,
        40 * MS - 10 * US,
        "video.preprocess",
    )
    assert late.host_share == pytest.approx(39 / 39.99, abs=1e-4)


def test_a_name_that_covers_less_than_half_of_a_stall_does_not_name_it(tmp_path: Path) -> None:
    build = KinetoBuilder().step(0, 0, 50 * MS).op("aten::cat", 10 * MS, 20 * MS)
    launched(build, Kernel(0, MS, (0, 1)), 1)
    launched(build, Kernel(40 * MS, 50 * MS, (39 * MS, 39 * MS + US)), 2)
    (found,) = parts(build, tmp_path)
    assert [(stall.host, stall.host_share) for stall in found.stalls] == [("", 0.0)]


def test_work_that_another_thread_of_the_host_does_is_not_the_reason(tmp_path: Path) -> None:
    build = KinetoBuilder().step(0, 0, 50 * MS).op("aten::sort", 0, 45 * MS, tid=MAIN + 50)
    launched(build, Kernel(0, MS, (0, 1)), 1)
    launched(build, Kernel(40 * MS, 50 * MS, (39 * MS, 39 * MS + US)), 2)
    (found,) = parts(build, tmp_path)
    assert [stall.host for stall in found.stalls] == [""]


def test_allocations_that_come_back_are_the_allocators_however_long(tmp_path: Path) -> None:
    build = KinetoBuilder()
    for step in range(10):
        begin = step * 40 * MS
        build.step(step, begin, begin + 40 * MS).runtime("cudaMalloc", begin + 2 * MS, begin + 22 * MS)
        launched(build, Kernel(begin + 25 * MS, begin + 40 * MS, (begin + 24 * MS, begin + 24 * MS + US)), 2 * step + 1)
    assert [step.idle_parts.host_call_ns for step in parts(build, tmp_path)] == [20 * MS] * 10


def test_waiting_for_the_loader_is_seen_in_pythons_stacks(tmp_path: Path) -> None:
    build = KinetoBuilder().step(0, 0, 50 * MS)
    build.event("python_function", "torch/utils/data/dataloader.py(701): __next__", 2 * MS, 38 * MS)
    launched(build, Kernel(0, MS, (0, 1)), 1)
    launched(build, Kernel(40 * MS, 50 * MS, (39 * MS, 39 * MS + US)), 2)
    (found,) = parts(build, tmp_path)
    assert found.data_wait_ns == 36 * MS


def test_only_the_first_launch_of_a_kernel_loads_its_code(tmp_path: Path) -> None:
    """Both launches take 20 ms: the second one of the same kernel is a host that stalls."""
    build = KinetoBuilder().step(0, 0, 100 * MS)
    launched(build, Kernel(0, MS, (0, 1)), 1)
    build.runtime("cudaLaunchKernel", 10 * MS, 30 * MS, correlation=2)
    build.event("kernel", "conv", 30 * MS, 40 * MS, 7, 0, device=0, stream=7, correlation=2)
    build.runtime("cudaLaunchKernel", 50 * MS, 70 * MS, correlation=3)
    build.event("kernel", "conv", 70 * MS, 100 * MS, 7, 0, device=0, stream=7, correlation=3)
    trace = read_trace(build.write(tmp_path))
    (step,) = partition(trace, step_windows(trace), 0)
    assert step.segments.total(Kind.IDLE, Detail.LOADING) == 20 * MS
    assert step.segments.total(Kind.IDLE, Detail.IN_LAUNCH) == 20 * MS
    assert parts_of(RankSteps.of([step]), {})[0].idle_parts.in_launch_ns == 40 * MS
