"""Steps of traces that mark none: what repeats, what does not, and what ranks must agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.account.trace_ranges import iterations_of
from diag.api import open_run
from diag.model.steps import Division
from diag.traces.kineto import read_trace
from diag.words.formatting import NBSP
from tests.account.kineto_builder import KinetoBuilder

MS = 1_000_000
ITERATION = 20 * MS


def training(
    count: int, *, start_up: int = 100 * MS, marks: tuple[str, ...] = ("Optimizer.step#AdamW.step",), rank: int = 0
) -> KinetoBuilder:
    """Start-up, then iterations of 20 ms: loader, operators, and the step of the optimizer in the last 2 ms."""
    build = KinetoBuilder(rank=rank).op("aten::empty", 0, start_up // 2)
    for number in range(count):
        begin = start_up + number * ITERATION
        if "loader" in marks:
            build.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, begin + MS)
        build.kernel(begin + 2 * MS, begin + 17 * MS, launch=begin + MS).op("aten::mm", begin + MS, begin + 2 * MS)
        for mark in marks:
            if mark.startswith("Optimizer"):
                build.range(mark, begin + 18 * MS, begin + ITERATION - 1000)
    return build


def edges(build: KinetoBuilder, folder: Path) -> tuple[str, list[float]] | None:
    trace = read_trace(build.write(folder))
    found = iterations_of(trace)
    return None if found is None else (found.marker, [(edge - trace.begin_ns) / MS for edge in found.edges])


def test_iterations_end_with_the_steps_of_the_optimizer(tmp_path: Path) -> None:
    marker, found = edges(training(5), tmp_path) or ("", [])
    assert marker == "Optimizer.step#AdamW.step"
    assert found == pytest.approx([120, 140, 160, 180, 200], abs=0.01)


def test_of_two_optimizers_the_one_that_steps_less_often_ends_an_iteration(tmp_path: Path) -> None:
    build = training(8)
    for number in range(0, 8, 2):
        begin = 100 * MS + number * ITERATION
        build.range("Optimizer.step#SGD.step", begin + 17 * MS, begin + 18 * MS)
    marker, found = edges(build, tmp_path) or ("", [])
    assert (marker, len(found)) == ("Optimizer.step#SGD.step", 4)


def test_iterations_begin_with_the_loader_where_no_optimizer_steps(tmp_path: Path) -> None:
    marker, found = edges(training(4, marks=("loader",)), tmp_path) or ("", [])
    assert marker.startswith("enumerate(DataLoader)")
    assert found == pytest.approx([100, 120, 140, 160])


@pytest.mark.parametrize("name", ["step[DECODE bs={}]", "[pl][profile]run_training_batch", "my iteration {}"])
def test_ranges_that_follow_each_other_are_iterations(tmp_path: Path, name: str) -> None:
    build = training(5, marks=())
    for number in range(5):
        begin = 100 * MS + number * ITERATION
        build.range(name.format(number), begin, begin + 18 * MS)
    _, found = edges(build, tmp_path) or ("", [])
    assert found == pytest.approx([100, 120, 140, 160, 180, 198])


def generation(count: int, *, exchanging: bool) -> KinetoBuilder:
    """Operators alone: ten of one name in each iteration, and one that begins it."""
    build = KinetoBuilder()
    for number in range(count):
        begin = number * ITERATION
        build.op("aten::embedding", begin, begin + 100_000)
        for layer in range(10):
            at = begin + (layer + 1) * MS
            build.op("aten::linear", at, at + 500_000).kernel(at + 200_000, at + 900_000, launch=at + 1_000)
        if exchanging:
            build.copy(begin + 15 * MS, begin + 15 * MS + 2_000, "DtoH", launch=begin + 14 * MS)
    return build


def test_a_sequence_of_operators_that_comes_back_with_a_copy_is_an_iteration(tmp_path: Path) -> None:
    marker, found = edges(generation(6, exchanging=True), tmp_path) or ("", [])
    assert marker == "aten::embedding"
    assert found == pytest.approx([0, 20, 40, 60, 80, 100])


def test_the_layers_of_one_forward_pass_are_no_iterations(tmp_path: Path) -> None:
    assert edges(generation(6, exchanging=False), tmp_path) is None


@pytest.mark.parametrize("longest", ["before", "after", "within"])
def test_what_repeats_beside_the_devices_work_is_no_iteration(tmp_path: Path, longest: str) -> None:
    """The points of one image: each is a few operators and a copy; most of the device's time is one other pass."""
    begin, middle, end = -ITERATION, 3 * ITERATION + 12 * MS, 6 * ITERATION + MS
    at = {"before": begin, "within": middle, "after": end}[longest]
    build = generation(6, exchanging=True).op("aten::conv2d", at, at + 100_000)
    build.kernel(end + ITERATION, end + 31 * ITERATION, launch=at + 50_000)
    assert edges(build, tmp_path) is None


def test_two_repeats_may_be_chance(tmp_path: Path) -> None:
    assert edges(training(2), tmp_path) is None


def test_what_lies_before_and_after_the_iterations_does_not_count(tmp_path: Path) -> None:
    result = open_run(training(6).write(tmp_path))
    steps = result.attribution.steps
    assert (result.attribution.division, result.attribution.step_marker) == (
        Division.INFERRED,
        "Optimizer.step#AdamW.step",
    )
    assert [step.note for step in steps] == [
        "before the first iteration", "warm-up", "", "", "", "", "after the last iteration",
    ]  # fmt: skip
    assert [step.dur_ns for step in steps if step.usable] == pytest.approx([ITERATION] * 4, abs=2000)
    inferred = next(note for note in result.coverage.notes if "inferred" in note).replace(NBSP, " ")
    assert inferred.endswith("; 120 ms before the first iteration do not count")
    # Everything that the device did is in one of the windows.
    assert sum(step.parts[0].compute_ns for step in steps) == 6 * 15 * MS


def test_ranks_that_show_different_iterations_are_compared_as_a_whole(tmp_path: Path) -> None:
    training(6).write(tmp_path, "rank0.json")
    training(5, rank=1).write(tmp_path, "rank1.json")
    result = open_run(tmp_path)
    assert result.attribution.division == Division.UNDIVIDED
    assert [step.step for step in result.attribution.steps] == [0]
    assert any("counts as one step" in note for note in result.coverage.notes)


def test_marked_steps_are_not_inferred(tmp_path: Path) -> None:
    build = training(6)
    for number in range(6):
        begin = 100 * MS + number * ITERATION
        build.step(number, begin, begin + ITERATION, "ProfilerStep#")
    result = open_run(build.write(tmp_path))
    assert (result.attribution.division, len(result.attribution.steps)) == (Division.MARKED, 6)


def test_ranges_that_launch_nothing_are_no_iterations(tmp_path: Path) -> None:
    """One range holds the work; those of the same name that follow are as long, and empty."""
    build = KinetoBuilder().op("aten::mm", 0, 120 * MS)
    for number in range(6):
        build.range(f"generate {number}", number * ITERATION, number * ITERATION + 19 * MS)
    for kernel in range(15):
        build.kernel((kernel + 1) * MS, (kernel + 2) * MS, launch=kernel * MS)
    assert edges(build, tmp_path) is None
