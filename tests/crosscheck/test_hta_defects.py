"""Where HTA's number is wrong, ours is the planted truth, and the cross-check says why: one small trace per defect.

These need HolisticTraceAnalysis, which `make test` installs with the development tools; elsewhere they are skipped.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pytest

from diag.crosscheck.analyses import Answer
from diag.crosscheck.hta_process import main
from diag.crosscheck.model import Quantity
from tests.account.kineto_builder import KinetoBuilder
from tests.crosscheck.traces import MS, US, checked, make_compact, numbers, profiled, why

pytest.importorskip("hta", reason="the extra diag[hta] is not installed")


def _answers(jobs: Sequence[dict[str, Any]]) -> str:
    """What the script prints that runs HTA, in this process."""
    with tempfile.TemporaryFile() as out:
        os.dup2(out.fileno(), 1)
        sys.stdin = io.StringIO(json.dumps(jobs))
        main()
        out.seek(0)
        return out.read().decode()


@pytest.fixture(scope="module")
def hta() -> Iterator[Pool]:
    """A process that has imported HTA, which takes one and a half seconds. That ``diag`` starts one by itself is in
    test_command_line."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _one_process_for_all(hta: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_jobs(jobs: Sequence[dict[str, Any]]) -> list[Answer]:
        answers = [json.loads(line) for line in hta.apply(_answers, (jobs,)).splitlines()]
        return [Answer(answer.get("found") or {}, answer.get("error", "")) for answer in answers]

    monkeypatch.setattr("diag.crosscheck.analyses.run_jobs", run_jobs)


def test_what_both_read_alike_agrees(tmp_path: Path) -> None:
    trace = profiled(0).kernel(MS, 4 * MS, launch=5 * US)
    trace.kernel(3 * MS, 7 * MS, "ncclDevKernel_AllReduce", launch=6 * US, stream=8).copy(8 * MS, 9 * MS, launch=7 * US)
    found = numbers(checked(trace, folder=tmp_path))
    assert all(item.agrees and not item.reasons for item in found.values())
    assert {quantity: item.ours for quantity, item in found.items()} == {
        Quantity.WINDOW: 8 * MS, Quantity.COMPUTE: 3 * MS, Quantity.NON_COMPUTE: 4 * MS, Quantity.IDLE: MS,
        Quantity.OVERLAP: pytest.approx(25),
    }  # fmt: skip


def test_hta_drops_the_last_step(tmp_path: Path) -> None:
    trace = profiled(0, 10 * MS, 20 * MS)
    for start in (0, 10 * MS, 20 * MS):
        trace.kernel(start + MS, start + 6 * MS, launch=start + 5 * US)
    window = numbers(checked(trace, folder=tmp_path))[Quantity.WINDOW]
    assert (window.ours, window.hta) == (25 * MS, 15 * MS)
    assert why(window) == ["last-step"]
    assert "ProfilerStep#2" in window.reasons[0].text
    assert window.residual == 0


def test_hta_drops_work_of_the_window_that_the_last_step_launched(tmp_path: Path) -> None:
    """The last step's first kernel runs before the last one of the step before: another stream."""
    trace = profiled(0, 10 * MS).kernel(MS, 2 * MS, launch=5 * US).kernel(30 * MS, 40 * MS, launch=6 * US)
    trace.kernel(20 * MS, 25 * MS, launch=11 * MS, stream=8).kernel(41 * MS, 42 * MS, launch=12 * MS)
    found = numbers(checked(trace, folder=tmp_path))
    compute = found[Quantity.COMPUTE]
    assert (compute.ours, compute.hta) == (16 * MS, 11 * MS)
    assert why(compute) == why(found[Quantity.IDLE]) == ["last-step"]


def test_hta_drops_work_whose_launch_was_not_recorded(tmp_path: Path) -> None:
    trace = profiled(0, 10 * MS).kernel(MS, 2 * MS, launch=5 * US).kernel(3 * MS, 5 * MS)
    trace.kernel(8 * MS, 9 * MS, launch=6 * US)
    compute = numbers(checked(trace, folder=tmp_path))[Quantity.COMPUTE]
    assert (compute.ours, compute.hta, why(compute)) == (4 * MS, 2 * MS, ["launch-not-in-trace"])


def test_hta_rounds_nanoseconds_away(tmp_path: Path) -> None:
    """Ten kernels of 2.6 us, 100 us apart, that begin 0.7 us after a whole microsecond: 2 us each for HTA."""
    trace = profiled(0)
    for i in range(10):
        start = MS + i * 100 * US + 700
        trace.kernel(start, start + 2_600, launch=(5 + i) * US)
    compute = numbers(checked(trace, folder=tmp_path))[Quantity.COMPUTE]
    assert (compute.ours, compute.hta) == (10 * 2_600 - 600, 10 * 2 * US)  # HTA's window begins and ends rounded, too
    assert why(compute) == ["whole-microseconds"]


def test_hta_counts_a_kernel_below_a_microsecond_as_less_than_nothing(tmp_path: Path) -> None:
    trace = profiled(0).kernel(MS, MS + 10 * US, launch=5 * US)
    for i in range(1, 6):
        trace.kernel(MS + i * 100 * US + 200, MS + i * 100 * US + 800, launch=(5 + i) * US)
    trace.kernel(2 * MS, 2 * MS + 10 * US, launch=20 * US)
    compute = numbers(checked(trace, folder=tmp_path))[Quantity.COMPUTE]
    assert (compute.ours, compute.hta) == (20 * US + 5 * 600, 20 * US - 5 * US)
    assert (why(compute), compute.residual) == (["whole-microseconds"], 0)


def test_hta_takes_deep_ep_for_compute(tmp_path: Path) -> None:
    name = "void deep_ep::internode::dispatch<false, 4>(int4*, float*, long*)"
    trace = profiled(0).kernel(0, 10 * MS, name, launch=5 * US, stream=8).kernel(2 * MS, 5 * MS, launch=6 * US)
    found = numbers(checked(trace, folder=tmp_path))
    assert (found[Quantity.COMPUTE].ours, found[Quantity.COMPUTE].hta) == (3 * MS, 10 * MS)
    assert (found[Quantity.NON_COMPUTE].ours, found[Quantity.NON_COMPUTE].hta) == (7 * MS, 0)
    assert (found[Quantity.OVERLAP].ours, found[Quantity.OVERLAP].hta) == (pytest.approx(30), None)
    for quantity in (Quantity.COMPUTE, Quantity.NON_COMPUTE, Quantity.OVERLAP):
        assert why(found[quantity]) == ["unknown-communication"]
        assert "deep_ep::internode::dispatch" in found[quantity].reasons[0].text


def test_hta_takes_a_kernel_for_none_by_its_name(tmp_path: Path) -> None:
    trace = profiled(0).kernel(0, 4 * MS, "batch_norm_SyncBN_backward", launch=5 * US).kernel(6 * MS, 7 * MS)
    compute = numbers(checked(trace, folder=tmp_path))[Quantity.COMPUTE]
    assert (compute.ours, compute.hta, why(compute)) == (5 * MS, MS, ["compute-by-another-name"])


def test_hta_takes_the_host_s_triton_range_for_device_work(tmp_path: Path) -> None:
    trace = profiled(0).kernel(2 * MS, 3 * MS, launch=5 * US).op("triton_poi_fused_add_0", MS, 2 * MS, stream=7)
    compute = numbers(checked(trace, folder=tmp_path))[Quantity.COMPUTE]
    assert (compute.ours, compute.hta, why(compute)) == (MS, 2 * MS, ["host-event-on-a-stream"])


def test_copies_within_the_device_are_compute_for_us_only(tmp_path: Path) -> None:
    """No defect: a definition that differs, and is named."""
    trace = profiled(0).kernel(0, 4 * MS, launch=5 * US).copy(5 * MS, 6 * MS, "DtoD", launch=6 * US)
    found = numbers(checked(trace, folder=tmp_path))
    assert (found[Quantity.COMPUTE].ours, found[Quantity.COMPUTE].hta) == (5 * MS, 4 * MS)
    assert why(found[Quantity.COMPUTE]) == why(found[Quantity.NON_COMPUTE]) == ["copy-within-device"]


def test_every_reason_of_a_rank_is_found_at_once(tmp_path: Path) -> None:
    trace = profiled(0, 10 * MS).kernel(MS + 500, 4 * MS, launch=5 * US).copy(5 * MS, 6 * MS, "DtoD", launch=6 * US)
    trace.kernel(6 * MS, 7 * MS, "nvshmem_alltoall", launch=7 * US, stream=8).kernel(20 * MS, 30 * MS, launch=11 * MS)
    found = numbers(checked(trace, folder=tmp_path))
    assert why(found[Quantity.WINDOW]) == ["last-step"]
    assert why(found[Quantity.COMPUTE]) == []  # a DtoD copy less and an all-to-all more: equal by chance, and so said
    assert why(found[Quantity.OVERLAP]) == ["unknown-communication"]


def test_hta_mixes_up_the_ranks_of_compact_json(tmp_path: Path) -> None:
    traces = [profiled(0, rank=rank).kernel(MS, (2 + rank) * MS, launch=5 * US) for rank in range(3)]
    assert checked(*traces, folder=tmp_path).notes == ()
    for path in tmp_path.glob("*.json"):
        make_compact(path)
    check = checked(folder=tmp_path)
    assert [numbers(check, rank)[Quantity.COMPUTE].hta for rank in range(3)] == [MS, 2 * MS, 3 * MS]
    assert "HTA reads 1 of 3 traces" in check.notes[0]


def test_hta_raises_on_a_trace_without_a_device(tmp_path: Path) -> None:
    trace = profiled(0, 10 * MS).gloo("all_reduce", MS, 2 * MS)
    check = checked(trace, profiled(0, rank=1).kernel(MS, 2 * MS, launch=5 * US), folder=tmp_path)
    assert check.ranks[0].comparisons == ()
    assert "IndexError" in check.ranks[0].error
    assert "no device event" in check.ranks[0].error
    assert numbers(check, rank=1)[Quantity.COMPUTE].agrees


def test_hta_raises_on_a_truncated_file_and_the_other_ranks_are_compared(tmp_path: Path) -> None:
    broken = profiled(0, rank=1).write(tmp_path, "broken.json")
    broken.write_text(broken.read_text()[:-100])
    check = checked(profiled(0).kernel(MS, 2 * MS, launch=5 * US), folder=tmp_path)
    assert numbers(check)[Quantity.COMPUTE].agrees
    last = check.ranks[-1]
    assert (last.rank, last.path) == (None, str(broken))
    assert "JSONDecodeError" in last.error


def test_a_relative_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA looks for relative paths in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    trace = profiled(0).kernel(MS, 2 * MS, launch=5 * US)
    assert numbers(checked(trace, profiled(0, rank=1), folder=Path()))[Quantity.COMPUTE].agrees


def test_nothing_to_compare_is_said(tmp_path: Path) -> None:
    check = checked(KinetoBuilder().op("aten::mm", 0, MS), folder=tmp_path)
    assert all(rank.error for rank in check.ranks)
