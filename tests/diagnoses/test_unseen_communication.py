"""Communication that cannot be seen: inside fused kernels, and in kernels whose names nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.api import Result, open_run
from diag.show.answer import Part
from diag.show.breakdowns import print_breakdown
from diag.show.json import to_json
from diag.show.text import print_report
from diag.words.formatting import duration
from tests.account.kineto_builder import KinetoBuilder, nccl_args

MS = 1_000_000
STEPS = 4
FUSED = "kernel_fused_gemm_allreduce"
FUSED_SAID = (
    f"communication inside fused kernels: {duration(5 * MS)} a step are spent in fused kernels that compute and "
    "communicate; the communication in them cannot be separated"
)


def built(rank: int, *kernels: tuple[str, int], world_size: int | None = 2) -> KinetoBuilder:
    """Steps of 10 ms in which the kernels run one after the other, each as long as it says."""
    build = KinetoBuilder(rank=rank, world_size=world_size or 1)
    if world_size is None:
        build.header.pop("distributedInfo", None)
    for step in range(STEPS):
        at = step * 10 * MS
        build.step(step, at, at + 10 * MS)
        for name, ns in kernels:
            build.kernel(at, at + ns, name, launch=at + 1)
            at += ns
    return build


def written(folder: Path, *builds: KinetoBuilder) -> Result:
    folder.mkdir(exist_ok=True)
    for number, build in enumerate(builds):
        build.write(folder, f"trace.{number}.json")
    return open_run(folder)


def about_communication(result: Result) -> list[str]:
    return [text for text in map(str, result.coverage.not_looked) if text.startswith("exposed communication: ")]


def test_a_fused_kernel_computes_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = (("gemm", 3 * MS), (FUSED, 5 * MS))
    builds = [built(rank, *kernels) for rank in (0, 1)]
    for build in builds:  # beside the fused kernel and 1 ms longer: 5 of its 6 ms are hidden
        for step in range(STEPS):
            at = step * 10 * MS
            args = nccl_args("allreduce", 1000, step)
            build.kernel(at + 3 * MS, at + 9 * MS, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at + 2, 20, **args)
    result = written(tmp_path, *builds)
    parts = [part for step in result.attribution.steps for part in step.parts]
    assert {(p.compute_ns, p.fused_ns, p.exposed_comm_ns, p.overlapped_comm_ns) for p in parts} == {
        (8 * MS, 5 * MS, MS, 5 * MS)
    }
    assert FUSED_SAID in map(str, result.coverage.not_looked)
    assert about_communication(result) == []
    kinds = {row.name: (str(row.kind), row.total_ns // row.count) for row in result.breakdowns.kernels.rows}
    assert kinds[FUSED] == ("fused", 5 * MS)
    content = json.loads(to_json(result))
    assert {rank["fused_ns"] for step in content["steps"] for rank in step["ranks"]} == {5 * MS}
    print_report(result, parts=(Part.CHECKED,))
    print_breakdown(result, "kernels")
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("5.00 ms a step are spent in fused kernels that compute and communicate") == 2


def test_nothing_is_told_of_fused_kernels_where_there_are_none(tmp_path: Path) -> None:
    result = written(tmp_path, *(built(rank, ("gemm", 8 * MS)) for rank in (0, 1)))
    assert not any("fused" in text for text in map(str, result.coverage.not_looked))
    assert {part.fused_ns for step in result.attribution.steps for part in step.parts} == {0}


def test_only_fused_communication_is_not_called_absent(tmp_path: Path) -> None:
    result = written(tmp_path, *(built(rank, ("gemm", 3 * MS), (FUSED, 5 * MS)) for rank in (0, 1)))
    assert "exposed communication" not in result.examination.not_found
    (reason,) = about_communication(result)
    assert reason.endswith("the job has 2 ranks, and all communication that was recognised is inside fused kernels")


def test_a_job_of_several_ranks_whose_communication_has_unknown_names(tmp_path: Path) -> None:
    """The three longest kernels that neither name nor operator explains; not the matrix product, nor the shortest."""
    kernels = (("gemm", 5 * MS), ("swap_b", MS), ("swap_a", 2 * MS), ("swap_d", 10_000), ("swap_c", 500_000))
    result = written(tmp_path, *(built(rank, *kernels, world_size=8) for rank in (0, 1)))
    assert "exposed communication" not in result.examination.not_found
    assert about_communication(result) == [
        "exposed communication: the job has 8 ranks, and no kernel was recognised as communication; the longest "
        "kernels of unknown kind are swap_a (2.0 ms a step), swap_b (1.0 ms a step), swap_c (0.5 ms a step): name "
        "those that communicate (--comm-kernels)"
    ]


def test_one_rank_has_nobody_to_talk_to(tmp_path: Path) -> None:
    result = written(tmp_path, built(0, ("gemm", 5 * MS), ("swap", 2 * MS), world_size=1))
    assert about_communication(result) == ["exposed communication: the run has one rank"]


def test_where_nothing_says_that_there_are_several_ranks_none_are_assumed(tmp_path: Path) -> None:
    build = built(0, ("gemm", 5 * MS), ("swap", 2 * MS), world_size=None)
    build.write(tmp_path, "gpt-rank3.json")
    assert about_communication(open_run(tmp_path)) == []


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ({"Group size": 4}, "the job has 4 ranks, and"),
        ({"Group size": 1}, ""),
        ({}, "the host calls collectives, and"),
    ],
)
def test_what_the_host_calls_says_that_there_are_several(tmp_path: Path, calls: dict[str, Any], said: str) -> None:
    build = built(0, ("gemm", 5 * MS), world_size=None)
    arguments: dict[str, Any] = {"Collective name": "allreduce", **calls}
    build.op("record_param_comms", MS, MS + 10, **arguments)
    found = about_communication(written(tmp_path, build))
    assert [said in text for text in found] == ([True] if said else [])


def test_communication_that_was_recognised_is_looked_for(tmp_path: Path) -> None:
    kernels = (("gemm", 5 * MS), ("swap", 2 * MS), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", MS))
    assert about_communication(written(tmp_path, *(built(rank, *kernels) for rank in (0, 1)))) == []
