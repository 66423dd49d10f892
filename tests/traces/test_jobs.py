"""Traces of several jobs in one place are several runs: sorted by what they contain, listed, opened by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import diag as diag_api
from diag.api import Jobs, SeveralJobsError, find_jobs, list_runs, open_run, split_job
from diag.errors import DiagError
from diag.rundir.run import tables_of_job
from tests.account.kineto_builder import BASE_NS, PID, KinetoBuilder, nccl_args
from tests.app.runs import write_run
from tests.command import analyze_json, diag

MS, SECOND = 1_000_000, 1_000_000_000
HOUR = 3600 * SECOND
STEPS = 3


def put(
    path: Path,
    rank: int | None = 0,
    pid: int = PID,
    at_ns: int = 0,
    world: int = 2,
    device: str = "Test GPU",
    model: str = "mlp",
    host: str = "node-a",
    communicates: bool = True,
    first_step: int = 0,
    slow_ms: int = 0,
) -> Path:
    """One window of one process, three steps of 50 ms from ``at_ns`` on."""
    made = KinetoBuilder(rank, world, base_ns=BASE_NS + at_ns)
    made.header["host_name"] = host
    made.header["deviceProperties"] = [{"id": 0, "name": device}]
    # Distinct processes never share exact times.
    jitter = 1000 * (pid % 97) + 10 * (rank or 0)
    for step in range(first_step, first_step + STEPS):
        begin = (step - first_step) * 50 * MS + jitter
        made.step(step, begin, begin + 50 * MS)
        for layer in range(4):
            made.op(f"{model}::layer{'abcd'[layer]}", begin + layer * 1000 + 500, begin + layer * 1000 + 900)
        made.kernel(begin + 2 * MS, begin + (30 + slow_ms) * MS, f"{model}_gemm", launch=begin + 1_000)
        if communicates:
            made.kernel(
                begin + (30 + slow_ms) * MS, begin + 45 * MS, "ncclDevKernel_AllReduce_Sum_f32(x)", begin + 3_000, 20,
                **nccl_args("allreduce", 1000, seq=step),
            )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.text().replace(f'"pid": {PID}', f'"pid": {pid}'))
    return path


def put_job(folder: Path, name: str = "rank{}.json", pid: int = PID, **given: object) -> None:
    """Ranks 0 and 1 of one job."""
    for rank in range(2):
        put(folder / name.format(rank), rank=rank, pid=pid + rank, **given)  # type: ignore[arg-type]


def names_of(found: Jobs) -> dict[str, list[int]]:
    """The ranks of each job."""
    return {job.name: sorted(job.tables.ranks) if job.tables is not None else [] for job in found.jobs}


def reasons(found: Jobs) -> str:
    return "\n".join(job.reason for job in found.jobs).replace("\u00a0", " ")


def test_windows_of_the_processes_of_one_job(tmp_path: Path) -> None:
    for window in range(3):
        for rank in range(2):
            path = tmp_path / f"iteration_{window}" / f"rank{rank}_trace.json"
            put(path, rank=rank, pid=100 + rank, at_ns=window * 60 * SECOND, first_step=10 * window)
    result = open_run(tmp_path)
    assert {rank: len(own.traces) for rank, own in result.tables.ranks.items()} == {0: 3, 1: 3}
    assert not result.tables.gaps
    assert list_runs(tmp_path) == [tmp_path]


def test_folders_of_ranks_of_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        put(tmp_path / f"rank{rank}" / "trace.json", rank=rank, pid=100 + rank)
    assert sorted(open_run(tmp_path).tables.ranks) == [0, 1]


def test_nodes_whose_clocks_differ_are_of_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        put(tmp_path / f"node{rank}" / "trace.json", rank=rank, pid=7, at_ns=rank * 120 * SECOND, host=f"n{rank}")
    tables = open_run(tmp_path).tables
    assert sorted(tables.ranks) == [0, 1]
    assert [gap.reason.replace("\u00a0", " ") for gap in tables.gaps] == [
        "rank 1 recorded 2 min from the others: treated as the same job"
    ]


def test_hosts_with_different_devices_are_of_one_job(tmp_path: Path) -> None:
    put(tmp_path / "rank0.json", rank=0, pid=100, device="A100")
    put(tmp_path / "rank1.json", rank=1, pid=101, device="H100")
    assert sorted(open_run(tmp_path).tables.ranks) == [0, 1]


# -- several jobs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two jobs of two ranks in one folder, the second an hour later and slower."""
    put_job(tmp_path, "fast_rank{}.json")
    put_job(tmp_path, "slow_rank{}.json", pid=900, at_ns=HOUR, slow_ms=10)
    return tmp_path


def test_ranks_that_repeat_are_two_jobs(two: Path) -> None:
    found = find_jobs([two])
    assert names_of(found) == {"fast": [0, 1], "slow": [0, 1]}
    assert "ranks 0-1 recorded by different processes (900 and 100), 1 h apart: a restart or another job" in reasons(
        found
    )
    assert not found.unused
    with pytest.raises(SeveralJobsError, match="holds 2 jobs, not one: fast, slow"):
        open_run(two)
    slow = open_run(f"{two}::slow")
    assert {Path(trace.path).name for own in slow.tables.ranks.values() for trace in own.traces} == {
        "slow_rank0.json", "slow_rank1.json",
    }  # fmt: skip
    assert slow.attribution.steps[0].parts[0].compute_ns == 38 * MS


def test_jobs_at_the_same_time_are_told_apart_by_folder_name_and_process(tmp_path: Path) -> None:
    put_job(tmp_path / "folders" / "a")
    put_job(tmp_path / "folders" / "b", pid=900)
    assert names_of(find_jobs([tmp_path / "folders"])) == {"a": [0, 1], "b": [0, 1]}
    put_job(tmp_path / "names", "x_rank{}.json")
    put_job(tmp_path / "names", "y_rank{}.json", pid=900)
    assert names_of(find_jobs([tmp_path / "names"])) == {"x": [0, 1], "y": [0, 1]}
    put_job(tmp_path / "processes", "1_{}.json")
    put_job(tmp_path / "processes", "2_{}.json", pid=900)
    found = find_jobs([tmp_path / "processes"])
    assert [{Path(file).name[0] for file in job.files} for job in found.jobs] in ([{"1"}, {"2"}], [{"2"}, {"1"}])


def test_a_job_that_left_one_rank_takes_none_of_another_job(tmp_path: Path) -> None:
    put(tmp_path / "a" / "rank1.json", rank=1, pid=50)
    put_job(tmp_path / "b")
    assert names_of(find_jobs([tmp_path])) == {"a": [1], "b": [0, 1]}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"rank": 1, "world": 8}, "world sizes 2 and 8"),
        ({"rank": 1, "device": "H100", "at_ns": HOUR}, "devices Test GPU and H100"),
        ({"rank": 0, "pid": 900}, "rank 0 recorded by different processes (100 and 900), at the same time"),
        ({"rank": 1, "pid": 900, "at_ns": 48 * HOUR}, "recorded 2 d apart"),
        ({"rank": 1, "pid": 900, "at_ns": HOUR, "model": "conv", "communicates": False}, "different programs"),
        ({"rank": None, "pid": 900, "at_ns": HOUR}, "by different processes without ranks"),
        ({"rank": None, "pid": 900, "communicates": False}, "at most one of them has collectives"),
    ],
)
def test_what_keeps_two_traces_apart(tmp_path: Path, second: dict[str, object], reason: str) -> None:
    first = 0 if second["rank"] is not None else None
    put(tmp_path / "a.json", rank=first)
    put(tmp_path / "b.json", **second)  # type: ignore[arg-type]
    found = find_jobs([tmp_path])
    assert len(found.jobs) == 2
    assert reason in reasons(found)


def test_profiles_of_one_process_under_different_names_are_two_runs(tmp_path: Path) -> None:
    put(tmp_path / "amp.json", rank=None)
    put(tmp_path / "fp32.json", rank=None, at_ns=10 * SECOND, first_step=20)
    assert names_of(find_jobs([tmp_path])) == {"amp": [0], "fp32": [0]}


def test_another_model_in_the_same_process_is_another_run(tmp_path: Path) -> None:
    put(tmp_path / "trace_1.json")
    put(tmp_path / "trace_2.json", at_ns=10 * SECOND, model="attention", communicates=False)
    assert len(find_jobs([tmp_path]).jobs) == 2


def test_a_restart_is_a_run_of_its_own(tmp_path: Path) -> None:
    put_job(tmp_path, "rank{}.100.json")
    put_job(tmp_path, "rank{}.200.json", pid=300, at_ns=90 * SECOND)
    found = find_jobs([tmp_path])
    assert [sorted(job.tables.ranks) for job in found.jobs if job.tables is not None] == [[0, 1], [0, 1]]
    assert "a restart or another job" in reasons(found)


def test_a_folder_of_folders_and_of_runs(two: Path) -> None:
    """Each folder is a job, and each recorded run is one; nothing of a run is taken for a trace of another."""
    root = two.parent / "all"
    shutil.copytree(two, root / "traces")
    write_run(root / "recorded" / "run-1")
    put_job(root / "third", world=4, pid=20)
    found = find_jobs([root])
    assert list(names_of(found)) == ["recorded/run-1", "third", "traces/fast", "traces/slow"]
    assert list_runs(root) == [
        root / "recorded/run-1", root / "third", Path(f"{root}::traces/fast"), Path(f"{root}::traces/slow"),
    ]  # fmt: skip
    for job in found.jobs:  # what is said to open a job alone does
        assert open_run(*job.paths).tables.ranks
    assert open_run(f"{root}::recorded/run-1").tables.manifest is not None


def test_the_order_of_the_files_decides_nothing(two: Path) -> None:
    files = sorted(two.iterdir())
    sorted_files = [{Path(file).name for file in job.files} for job in find_jobs(files).jobs]
    turned = [{Path(file).name for file in job.files} for job in find_jobs(files[::-1]).jobs]
    assert sorted(map(sorted, sorted_files)) == sorted(map(sorted, turned))


# -- no file in silence ------------------------------------------------------------------------------------------------


def test_every_file_that_is_not_used_is_named(two: Path) -> None:
    (two / "broken.json").write_text('{"traceEvents": [')
    (two / "other.json").write_text('{"epochs": 3}')
    (two / "rank9.pt.trace.json.zst").write_bytes(b"(\xb5/\xfd")
    os.mkfifo(two / "pipe.json")
    shutil.copy(two / "fast_rank0.json", two / "fast_rank0.copy.json")
    found = find_jobs([two])
    assert names_of(found) == {"fast": [0, 1], "slow": [0, 1]}
    unused = {Path(gap.path).name: gap.reason for gap in found.unused}
    copy = "fast_rank0.json"  # which comes after fast_rank0.copy.json
    assert set(unused) == {"broken.json", "other.json", "rank9.pt.trace.json.zst", "pipe.json", copy}
    assert "compressed in an unsupported format" in unused["rank9.pt.trace.json.zst"]
    slow = open_run(f"{two}::slow")
    assert {Path(gap.path).name for gap in slow.coverage.skipped} >= {"broken.json", "other.json"}


def test_a_memory_snapshot_is_of_one_job_or_named(tmp_path: Path) -> None:
    snapshot = pickle.dumps({"segments": [], "device_traces": []}, protocol=2)
    put_job(tmp_path / "a")
    (tmp_path / "a" / "rank0.pickle").write_bytes(snapshot)
    assert open_run(tmp_path).tables.snapshots == (str(tmp_path / "a" / "rank0.pickle"),)
    put_job(tmp_path / "b", pid=900, at_ns=HOUR)
    (tmp_path / "rank1.pickle").write_bytes(snapshot)
    found = find_jobs([tmp_path])
    assert [gap.path for gap in found.unused] == [str(tmp_path / "rank1.pickle")]
    assert [len(tables_of_job(job).snapshots) for job in found.jobs] == [1, 0]


def test_a_part_of_a_trace_is_left_out_for_the_whole(tmp_path: Path) -> None:
    whole = put(tmp_path / "z" / "rank0.json")
    content = json.loads(whole.read_text())
    content["traceEvents"] = content["traceEvents"][: len(content["traceEvents"]) // 2]
    part = tmp_path / "a" / "rank0.json"
    part.parent.mkdir()
    part.write_text(json.dumps(content))
    result = open_run(tmp_path)
    assert [trace.path for trace in result.tables.ranks[0].traces] == [str(whole)]
    assert any(gap.path == str(part) and "left out" in gap.reason for gap in result.tables.gaps)


def test_hostile_names_and_clocks(tmp_path: Path) -> None:
    put(tmp_path / "\x1b[31mred::rank0.json")
    put(tmp_path / "..::rank0.json", pid=900, at_ns=HOUR)
    put(tmp_path / "boot" / "rank0.json", pid=901, at_ns=-BASE_NS)
    found = find_jobs([tmp_path])
    assert len(found.jobs) == 3
    for job in found.jobs:
        assert open_run(*job.paths).tables.ranks
    ended = diag("analyze", tmp_path)
    assert "3 jobs" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_a_run_and_a_job_have_different_names(tmp_path: Path) -> None:
    put_job(tmp_path, "fast_rank{}.json")
    put_job(tmp_path, "slow_rank{}.json", pid=900, at_ns=HOUR)
    write_run(tmp_path / "fast")
    found = {job.name: job.paths for job in find_jobs([tmp_path]).jobs}
    assert found == {
        "fast": (str(tmp_path / "fast"),), "fast-2": (f"{tmp_path}::fast-2",), "slow": (f"{tmp_path}::slow",),
    }  # fmt: skip
    assert open_run(f"{tmp_path}::fast-2").tables.manifest is None


def test_the_name_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "a::b").mkdir()
    assert split_job(tmp_path / "a::b") == (str(tmp_path / "a::b"), "")
    assert split_job(f"{tmp_path}::x::y") == (str(tmp_path), "x::y")
    assert split_job("s3://bucket/runs::x") == ("s3://bucket/runs", "x")
    assert split_job("tar://x::s3://bucket/y.tar") == ("tar://x::s3://bucket/y.tar", "")
    put(tmp_path / "a::b" / "rank0.json")
    assert open_run(tmp_path / "a::b").tables.ranks
    put(tmp_path / "c" / "rank0.json", pid=900)
    assert open_run(f"{tmp_path}::a::b").tables.ranks
    with pytest.raises(DiagError, match="there is no job 'no'") as error:
        open_run(f"{tmp_path}::no")
    assert error.value.hint == "the jobs are: a::b, c"


# -- commands ----------------------------------------------------------------------------------------------------------


def test_analyze_lists_jobs_with_their_verdicts(two: Path) -> None:
    ended = diag("analyze", two)
    assert ended.returncode == 0
    text = " ".join(ended.stdout.split())
    assert "holds 2 jobs." in text
    for name in ("fast", "slow"):
        assert open_run(f"{two}::{name}").verdict.headline.replace("\u00a0", " ") in text
        assert f"diag analyze {two}::{name}" in ended.stdout
    assert "not the same job as" in text
    one = diag("analyze", f"{two}::fast")
    assert one.returncode == 0
    assert "2 of 2 ranks" in one.stdout
    (two / "broken.json").write_text("{")
    assert diag("analyze", two).returncode == 4
    assert "broken.json" in diag("analyze", two).stdout


def test_the_list_as_json(two: Path) -> None:
    (two / "other.json").write_text('{"epochs": 3}')
    content = analyze_json(two, expect=4)
    assert list(content) == ["schema_version", "jobs", "skipped"]
    assert [job["name"] for job in content["jobs"]] == ["fast", "slow"]
    for job in content["jobs"]:
        alone = analyze_json(Path(job["paths"][0]), expect=4)
        assert (job["verdict"], job["run"]) == (alone["verdict"], alone["run"])
        assert job["run"]["ranks"] == [0, 1]
        assert len(job["files"]) == 2
        assert job["recorded_ns"][0] >= BASE_NS
        assert job["error"] is None
    assert [Path(gap["path"]).name for gap in content["skipped"]] == ["other.json"]


def test_a_job_that_cannot_be_analysed_is_listed_with_the_reason(two: Path) -> None:
    (two / "empty" / "ranks").mkdir(parents=True)
    content = analyze_json(two, expect=4)
    assert {job["name"]: bool(job["error"]) for job in content["jobs"]} == {
        "empty": True, "fast": False, "slow": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("check", "--max-data-wait", "5%"),
        ("report", "-o", "report.html"),
        ("compare",),
        ("open", "--rank", "0", "--step", "1"),
    ],
)
def test_commands_about_one_run_name_the_jobs(two: Path, command: tuple[str, ...]) -> None:
    paths = [str(two)] * (2 if command[0] == "compare" else 1)
    ended = diag(command[0], *paths, *command[1:])
    assert ended.returncode in (1, 2)
    assert "holds 2 jobs, not one: fast, slow" in " ".join(ended.stderr.split())
    assert "::fast" in ended.stderr


def test_two_jobs_of_a_folder_are_compared(two: Path) -> None:
    ended = diag("compare", f"{two}::fast", f"{two}::slow")
    assert ended.returncode == 0
    assert "No significant difference" in ended.stdout
    found = diag_api.compare(f"{two}::fast", f"{two}::slow")
    assert found.before_ns == found.after_ns == 50 * MS


@pytest.mark.parametrize(("first_step", "jobs"), [(0, 1), (20, 2)])
def test_the_clock_of_another_host_may_be_off_by_any_time(tmp_path: Path, first_step: int, jobs: int) -> None:
    """The same steps of the same world: one job, and the coverage says how far apart they seem to be."""
    put(tmp_path / "a.json", rank=0)
    put(tmp_path / "b.json", rank=1, pid=900, at_ns=48 * HOUR, host="node-b", first_step=first_step)
    found = find_jobs([tmp_path])
    assert len(found.jobs) == jobs
    if jobs == 1:
        skipped = open_run(tmp_path).coverage.skipped
        assert any("recorded 2\u00a0d from the others: treated as the same job" in gap.reason for gap in skipped)


def test_profiles_of_several_models_by_one_process_id_are_several_jobs(tmp_path: Path) -> None:
    """A number in a model's name is no number of a window."""
    for number, name in enumerate(("resnet50", "vgg16")):
        put(tmp_path / f"{name}_trace.json", rank=None, at_ns=number * HOUR, communicates=False)
    found = find_jobs([tmp_path])
    assert names_of(found) == {"resnet50_trace": [0], "vgg16_trace": [0]}
    assert "under different names" in reasons(found)


def test_numbered_windows_of_one_process_are_one_job(tmp_path: Path) -> None:
    for number in (10, 20):
        name = f"resnet50_step{number}.json"
        put(tmp_path / name, rank=None, at_ns=number * SECOND, communicates=False, first_step=number)
    assert len(open_run(tmp_path).tables.ranks[0].traces) == 2
