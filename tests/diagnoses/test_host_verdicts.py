"""What a GPU trace says when its device is idle: whose time that is, and when nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, describe_run, open_run
from diag.model.steps import Bottleneck, Severity
from tests.account.kineto_builder import KinetoBuilder

US, MS = 1_000, 1_000_000
STEPS = 6


def trace_of(*, step: int, busy: int, kernels: int = 50, queued: bool = False) -> KinetoBuilder:
    """Steps in which the device works ``busy``, in equal kernels spread over the step; each is launched 2 us before it
    begins, or all at the begin of the step."""
    build = KinetoBuilder(world_size=1)
    for number in range(STEPS):
        begin = number * step
        build.step(number, begin, begin + step, "ProfilerStep#")
        for kernel in range(kernels):
            at = begin + 100 * US + kernel * (step - 100 * US) // kernels
            launch = begin + 10 * US + kernel * 1_000 if queued else at - 2 * US
            build.kernel(at, at + busy // kernels, launch=launch)
    return build


def opened(build: KinetoBuilder, folder: Path) -> Result:
    return open_run(build.write(folder))


def test_late_launches_make_a_run_host_bound(tmp_path: Path) -> None:
    result = opened(trace_of(step=10 * MS, busy=4 * MS), tmp_path)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.severity, verdict.cause) == (Bottleneck.HOST, Severity.CRITICAL, "launch-bound")
    assert verdict.share == pytest.approx(0.6, abs=0.01)
    assert verdict.confidence > 0.85  # fewer than eight steps
    assert {result.bottleneck_of(step) for step in result.attribution.usable} == {Bottleneck.HOST}
    assert verdict.headline.startswith("Host-bound (")


def test_one_long_stall_in_every_step_is_named(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1)
    for number in range(STEPS):
        begin = number * 50 * MS
        build.step(number, begin, begin + 50 * MS, "ProfilerStep#")
        build.event("python_function", "app/images.py(40): resize", begin + MS, begin + 29 * MS)
        for kernel in range(20):
            at = begin + 30 * MS + kernel * MS
            build.kernel(at, at + MS, launch=begin + 29 * MS + kernel * 5_000)
    verdict = opened(build, tmp_path).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.HOST, "host-stall")
    assert "images.resize" in verdict.headline


def test_work_that_was_launched_and_does_not_run_leaves_the_verdict_open(tmp_path: Path) -> None:
    result = opened(trace_of(step=10 * MS, busy=4 * MS, queued=True), tmp_path)
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.UNDETERMINED, "idle-after-launch")
    assert (verdict.severity, verdict.confidence) == (Severity.WARN, 0)
    assert "Next: " in verdict.headline


def test_idle_time_before_work_without_a_launch_is_not_said_to_be_after_one(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1)
    for number in range(STEPS):
        build.step(number, number * 10 * MS, (number + 1) * 10 * MS, "ProfilerStep#")
        for kernel in range(50):
            at = number * 10 * MS + kernel * 200 * US
            build.kernel(at, at + 80 * US)
    result = opened(build, tmp_path)
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.UNDETERMINED, "idle-after-launch")
    assert "does not show when its next work was launched" in result.verdict.headline
    assert "had been launched" not in result.verdict.headline


def test_a_run_on_the_cpu_of_a_host_with_a_gpu_is_called_one(tmp_path: Path) -> None:
    build = KinetoBuilder(rank=None)
    for number in range(STEPS):
        build.step(number, number * 10 * MS, (number + 1) * 10 * MS, "ProfilerStep#")
        build.op("aten::mkldnn_convolution", number * 10 * MS, number * 10 * MS + 9 * MS)
    result = opened(build, tmp_path)
    assert (result.verdict.bottleneck, describe_run(result)["device"]) == (Bottleneck.COMPUTE, "CPU")
    assert any("no kernel of Test GPU was recorded" in note for note in result.coverage.notes)


def test_time_without_operators_on_a_cpu_makes_a_verdict_less_sure(tmp_path: Path) -> None:
    build = KinetoBuilder(rank=None)
    for number in range(STEPS):
        build.step(number, number * 10 * MS, (number + 1) * 10 * MS, "ProfilerStep#")
        build.op("aten::mkldnn_convolution", number * 10 * MS, number * 10 * MS + 7 * MS)
    verdict = opened(build, tmp_path).verdict
    assert (verdict.bottleneck, verdict.severity) == (Bottleneck.COMPUTE, Severity.HEALTHY)
    assert verdict.confidence <= 0.7
    assert "No operator runs for 30% of the time" in verdict.headline


def test_a_run_whose_kernels_are_not_in_the_trace_is_no_run_on_a_cpu(tmp_path: Path) -> None:
    build = KinetoBuilder(rank=None)
    for number in range(STEPS):
        build.step(number, number * 10 * MS, (number + 1) * 10 * MS, "ProfilerStep#")
        build.op("aten::mm", number * 10 * MS, number * 10 * MS + 9 * MS)
        build.runtime("cudaLaunchKernel", number * 10 * MS + US, number * 10 * MS + 5 * US)
    result = opened(build, tmp_path)
    assert (result.verdict.bottleneck, describe_run(result)["device"]) == (Bottleneck.UNDETERMINED, "Test GPU")
    reasons = {what.reason for what in result.coverage.not_looked}
    assert "the device's work was not recorded" in reasons
    assert "the run is on a CPU" not in reasons


@pytest.mark.parametrize("begins", [True, False])
def test_the_first_batch_of_a_loader_with_workers_is_no_slow_loader(tmp_path: Path, begins: bool) -> None:
    """One batch in a window without steps. The loader draws a seed where its iterator is made."""
    build = KinetoBuilder(rank=None).op("aten::empty", 0, 10 * US)
    if begins:
        build.op("aten::random_", 20 * US, 30 * US)
    build.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", MS, 800 * MS)
    for kernel in range(40):
        at = 801 * MS + kernel * MS
        build.kernel(at, at + MS, launch=800 * MS + 500 * US + kernel * US)
    build.kernel(100 * US, 110 * US, launch=90 * US)
    verdict = opened(build, tmp_path).verdict
    assert verdict.bottleneck == Bottleneck.DATA
    assert ("first batch" in verdict.headline) is begins
    assert (verdict.confidence <= 0.5) is begins


def test_a_cost_of_a_window_without_steps_is_not_called_one_of_a_step(tmp_path: Path) -> None:
    build = KinetoBuilder(rank=None).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", MS, 80 * MS)
    for kernel in range(40):
        at = 81 * MS + kernel * MS
        build.kernel(at, at + MS, launch=80 * MS + 500 * US + kernel * US)
    build.kernel(100 * US, 110 * US, launch=90 * US)
    verdict = opened(build, tmp_path).verdict
    assert "79 ms in this window" in verdict.headline
    assert "a step" not in verdict.headline


def test_a_busy_device_is_compute_bound(tmp_path: Path) -> None:
    verdict = opened(trace_of(step=10 * MS, busy=97 * MS // 10), tmp_path).verdict
    assert (verdict.bottleneck, verdict.severity) == (Bottleneck.COMPUTE, Severity.HEALTHY)


@pytest.mark.parametrize("inside", [True, False])
def test_a_window_of_start_up_says_nothing_about_a_step(tmp_path: Path, inside: bool) -> None:
    """Ten seconds before the first kernel, or in the call that launches it."""
    build = KinetoBuilder(world_size=1).op("aten::conv2d", 0, 11_000 * MS)
    if inside:
        build.kernel(0, MS, launch=0)
    build.runtime("cudaLaunchKernel", 2 * MS if inside else 10_000 * MS - 10 * US, 10_000 * MS, correlation=900)
    build.event(
        "kernel", "implicit_convolve_sgemm", 10_000 * MS, 10_400 * MS, 7, 0, device=0, stream=7, correlation=900
    )
    verdict = opened(build, tmp_path).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.UNDETERMINED, "")
    assert "start-up" in verdict.headline
    assert "skip_first" in verdict.headline


def test_one_stall_in_an_undivided_window_may_never_come_again(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1).op("aten::conv2d", 2 * MS, 100 * MS)
    for kernel in range(50):
        at = (0 if kernel < 10 else 100 * MS) + kernel * MS
        build.kernel(at, at + MS, launch=max(0, at - 5 * US))
    verdict = opened(build, tmp_path).verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.UNDETERMINED, "one-long-stall")
    assert "aten::conv2d" in verdict.headline


def test_a_handful_of_kernels_is_not_enough_for_a_verdict(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1).step(0, 0, MS, "ProfilerStep#").kernel(10 * US, 12 * US, launch=5 * US)
    verdict = opened(build, tmp_path).verdict
    assert verdict.bottleneck == Bottleneck.UNDETERMINED
    assert "2.0 us of work" in verdict.headline


def test_idle_time_of_many_small_causes_is_not_healthy(tmp_path: Path) -> None:
    """Between queued kernels of 12 us the device takes 8 us to begin the next one: 40 % idle, and nobody's fault."""
    build = KinetoBuilder(world_size=1)
    for number in range(STEPS):
        begin = number * 2 * MS
        build.step(number, begin, begin + 2 * MS, "ProfilerStep#")
        for kernel in range(100):
            at = begin + kernel * 20 * US
            build.kernel(at, at + 12 * US, launch=max(0, at - 100 * US))
    verdict = opened(build, tmp_path).verdict
    assert (verdict.bottleneck, verdict.severity) == (Bottleneck.UNDETERMINED, Severity.WARN)
    assert "idle for 40%" in verdict.headline


def test_few_pieces_of_work_and_a_single_step_lower_the_confidence(tmp_path: Path) -> None:
    def confidence(kernels: int, name: str) -> float:
        (tmp_path / name).mkdir()
        build = KinetoBuilder(world_size=1).step(0, 0, 10 * MS, "ProfilerStep#")
        for kernel in range(kernels):
            at = 100 * US + kernel * 9 * MS // kernels
            build.kernel(at, at + 4 * MS // kernels, launch=at - 2 * US)
        verdict = opened(build, tmp_path / name).verdict
        assert verdict.bottleneck == Bottleneck.HOST
        return verdict.confidence

    assert confidence(4, "few") < 0.6 < confidence(60, "more") <= confidence(600, "many") < 0.9


def test_an_answer_on_a_window_of_start_up_is_as_sure_as_the_rest_is_long(tmp_path: Path) -> None:
    """Of 10 ms, a first launch that loads code takes 6 ms."""
    build = KinetoBuilder(world_size=1).step(0, 0, 10 * MS, "ProfilerStep#")
    build.kernel(0, 50 * US, launch=0)
    build.runtime("cudaLaunchKernel", 60 * US, 6060 * US, correlation=900)
    build.event("kernel", "volta_sgemm", 6060 * US, 6100 * US, 7, 0, device=0, stream=7, correlation=900)
    for at in range(6200 * US, 10 * MS - 50 * US, 100 * US):
        build.kernel(at, at + 40 * US, launch=at - 2 * US)
    verdict = opened(build, tmp_path).verdict
    assert verdict.bottleneck == Bottleneck.HOST
    assert verdict.confidence == pytest.approx(0.4, abs=0.02)
    assert verdict.doubts[0].name == "most of the window is start-up"
