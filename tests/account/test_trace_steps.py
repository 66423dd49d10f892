"""Which windows a trace's step marks give: disjoint, in order, and none for what is no step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.account import cpu, gpu
from diag.account.trace_ranges import host_windows
from diag.model.steps import Kind
from diag.traces.kineto import read_trace
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, KinetoBuilder
from tests.examples import examples

US = 1000
PROFILER = "ProfilerStep#"


def windows(build: KinetoBuilder, folder: Path) -> list[tuple[int, int, int]]:
    found = host_windows(read_trace(build.write(folder)))
    return [(step, begin - BASE_NS, end - BASE_NS) for step, begin, end in found]


def test_without_marks_the_whole_trace_is_one_window(tmp_path: Path) -> None:
    assert windows(KinetoBuilder().op("aten::mm", 3, 10).kernel(20, 30), tmp_path) == [(0, 3, 30)]


def test_copies_of_the_marks_on_the_device_are_no_steps(tmp_path: Path) -> None:
    build = KinetoBuilder().step(4, 0, 100, PROFILER).kernel(50, 60, launch=5)
    build.event("gpu_user_annotation", "ProfilerStep#4", 50, 160, 7, 0)
    build.event("gpu_user_annotation", "ProfilerStep#3", 10, 40, 7, 0)
    assert windows(build, tmp_path) == [(4, 0, 100)]


def test_a_step_marked_by_two_threads_is_one(tmp_path: Path) -> None:
    build = KinetoBuilder()
    for step in (1, 2):
        begin = (step - 1) * 100 * US
        build.range(f"ProfilerStep#{step}", begin, begin + 99 * US)
        build.range(f"ProfilerStep#{step}", begin + 3 * US, begin + 90 * US, AUTOGRAD)
        build.op("aten::mm", begin + 5 * US, begin + 9 * US)
    assert windows(build, tmp_path) == [(1, 0, 99 * US), (2, 100 * US, 199 * US)]


def test_steps_may_move_to_another_thread(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100, PROFILER).range("ProfilerStep#2", 100, 200, AUTOGRAD)
    build.op("aten::mm", 5, 10).op("aten::mm", 105, 110, AUTOGRAD)
    assert windows(build, tmp_path) == [(1, 0, 100), (2, 100, 200)]


def test_a_trainer_inside_a_step_of_another_does_not_cut_it(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 100).step(2, 100, 200)
    build.step(70, 10, 40).step(71, 40, 90).step(72, 110, 150)
    assert windows(build, tmp_path) == [(1, 0, 100), (2, 100, 200)]


def test_numbers_that_start_again_go_on(tmp_path: Path) -> None:
    build = KinetoBuilder()
    for index, number in enumerate((5, 6, 7, 5, 6, 9)):
        build.step(number, index * 100, index * 100 + 90, PROFILER).op("aten::mm", index * 100, index * 100 + 9)
    assert [step for step, _, _ in windows(build, tmp_path)] == [5, 6, 7, 8, 9, 12]


def test_rounding_makes_no_overlap(tmp_path: Path) -> None:
    build = KinetoBuilder().step(1, 0, 101, PROFILER).step(2, 100, 200, PROFILER).op("aten::mm", 5, 9)
    assert windows(build.op("aten::mm", 150, 160), tmp_path) == [(1, 0, 100), (2, 100, 200)]


@pytest.mark.parametrize(
    ("inside", "kept"), [(["cudaDeviceSynchronize"], [1]), (["cudaEventQuery", "cudaLaunchKernel"], [1, 2])]
)
def test_the_closing_stub_launches_nothing(tmp_path: Path, inside: list[str], kept: list[int]) -> None:
    build = KinetoBuilder().step(1, 0, 100, PROFILER).op("aten::mm", 5, 9).kernel(20, 30, launch=15)
    build.step(2, 100, 140, PROFILER).op("aten::item", 101, 103)  # a loop that prints before it stops the profiler
    for index, call in enumerate(inside):
        build.runtime(call, 110 + index, 111 + index)
    assert [step for step, _, _ in windows(build, tmp_path)] == kept


def test_a_step_that_the_profiler_joined_late_holds_no_earlier_work(tmp_path: Path) -> None:
    build = KinetoBuilder().kernel(0, 50)  # launched before the recording
    build.step(8, 20, 100, PROFILER).kernel(60, 120, launch=30).step(9, 100, 200, PROFILER).kernel(150, 190, launch=110)
    trace = read_trace(build.write(tmp_path))
    steps = gpu.partition(trace, gpu.step_windows(trace), 0)
    assert [(s.step, s.begin_ns - BASE_NS, s.end_ns - BASE_NS) for s in steps] == [(8, 50, 120), (9, 120, 200)]
    assert [s.segments.total(Kind.COMPUTE) for s in steps] == [60, 40]


RANGES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 300), st.integers(0, 120), st.sampled_from([1, AUTOGRAD])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(RANGES, st.booleans(), st.booleans())
def test_any_marks_give_disjoint_windows_with_exact_sums(
    marks: list[tuple[int, int, int, int]], ours: bool, device: bool
) -> None:
    build = KinetoBuilder().op("aten::mm", 0, 400)
    for number, begin, length, thread in marks:
        build.range(f"{'diag.step#' if ours else PROFILER}{number}", begin, begin + length, thread)
    if device:
        build.kernel(20, 250, launch=10).kernel(260, 300, launch=40)
    with TemporaryDirectory() as folder:
        trace = read_trace(build.write(Path(folder)))
        source = gpu if device else cpu
        found = source.step_windows(trace)
        steps = source.partition(trace, found, 0)
    numbers = [step for step, _, _ in found]
    assert len(set(numbers)) == len(numbers)
    assert all(begin <= end for _, begin, end in found)
    assert all(before[2] <= after[1] for before, after in pairwise(found))
    for step in steps:
        assert sum(step.segments.total(kind) for kind in Kind) == step.dur_ns
