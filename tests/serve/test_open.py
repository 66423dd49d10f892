"""``diag open``: the right part of the right file, and mistakes as messages."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diag.api import open_run
from diag.cli.open import open_trace
from diag.collectors.layout import RunLayout
from diag.errors import DiagError, ExitCode
from diag.perfetto import PORT, Excerpt, save_archive, step_of, together, window_of, write_excerpt
from diag.serve.server import SAMPLES
from tests.account.kineto_builder import BASE_NS
from tests.app.runs import write_run
from tests.command import diag_process
from tests.patience import PATIENCE_S
from tests.tables.lane_traces import STEP_US, STEPS, gpu_trace, write_gpu_traces

SAMPLE = SAMPLES / "fsdp2-straggler-rank0"
TRACED = 15  # the step that its traces cover


def written(excerpt: Excerpt, target: Path) -> dict[str, Any]:
    events = write_excerpt(excerpt, target)
    data = target.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if target.suffix == ".gz" else data)
    assert events == sum(event["ph"] != "M" for event in document["traceEvents"])
    return document


def test_a_step_of_a_gpu_runs_from_the_host_to_the_end_of_its_device_work(tmp_path: Path) -> None:
    traces = write_gpu_traces(tmp_path / "traces")
    excerpt = step_of(traces, 1, STEPS[1])
    assert (excerpt.begin_ns, excerpt.end_ns) == (STEP_US * 1000, 2 * STEP_US * 1000)
    document = written(excerpt, tmp_path / "out.json.gz")
    kept = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["name"] for event in kept} >= {f"ProfilerStep#{STEPS[1]}", "gemm", "ncclDevKernel_AllReduce"}
    assert not {event["name"] for event in kept} & {f"ProfilerStep#{STEPS[0]}", f"ProfilerStep#{STEPS[2]}"}
    assert document["distributedInfo"]["rank"] == 1


def test_the_excerpt_opens_as_a_trace_of_that_step(tmp_path: Path) -> None:
    excerpt = step_of(SAMPLE, 0, TRACED)
    written(excerpt, tmp_path / "rank-0.json.gz")
    part, whole = open_run(tmp_path / "rank-0.json.gz"), open_run(SAMPLE)
    found = {(parts.rank, account.step): parts for account in whole.attribution.steps for parts in account.parts}
    again = {(parts.rank, account.step): parts for account in part.attribution.steps for parts in account.parts}
    assert list(again) == [(0, TRACED)]
    assert again[0, TRACED].dur_ns == found[0, TRACED].dur_ns
    assert written(excerpt, tmp_path / "plain.json")["traceEvents"]


def test_a_window_of_the_trace(tmp_path: Path) -> None:
    traces = write_gpu_traces(tmp_path / "traces")
    document = written(window_of(traces, 0, 1.0, 1.0505), tmp_path / "out.json")
    names = [event["name"] for event in document["traceEvents"] if event.get("cat") in ("cpu_op", "kernel")]
    assert names == ["aten::outer", "aten::mm"]
    open_ended = written(window_of(traces, 0, 2.0, None), tmp_path / "out.json")
    assert [e["name"] for e in open_ended["traceEvents"] if e.get("cat") == "user_annotation"] == ["ProfilerStep#5"]
    until = written(window_of(traces, 0, None, 0.5), tmp_path / "out.json")
    assert [e["name"] for e in until["traceEvents"] if e.get("cat") == "user_annotation"] == ["ProfilerStep#3"]


def test_a_trace_in_an_archive(tmp_path: Path) -> None:
    traces = write_gpu_traces(tmp_path / "traces")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(traces, "traces")
    document = written(step_of(tmp_path / "all.tar.gz", 1, STEPS[0]), tmp_path / "out.json")
    assert document["distributedInfo"]["rank"] == 1


@pytest.mark.parametrize(
    ("rank", "step", "message", "hint"),
    [(5, TRACED, "no trace of rank 5", "ranks 0-1"), (0, 99, "no trace of rank 0 covers step 99", "these steps: 15")],
)
def test_what_is_not_there(rank: int, step: int, message: str, hint: str) -> None:
    with pytest.raises(DiagError, match=message) as error:
        step_of(SAMPLE, rank, step)
    assert hint in error.value.hint


def test_a_run_without_traces(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="no trace of rank 0") as error:
        step_of(write_run(tmp_path / "run"), 0, None)
    assert "--no-trace" in error.value.hint


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="no such file or folder"):
        step_of(tmp_path / "nothing", 0, 3)


@pytest.mark.parametrize(("begin", "end"), [(5.0, 4.0), (100.0, None), (None, -5.0), (float("nan"), 0.0)])
def test_windows_with_nothing_in_them(tmp_path: Path, begin: float | None, end: float | None) -> None:
    with pytest.raises(DiagError, match="window") as error:
        window_of(write_gpu_traces(tmp_path / "traces"), 0, begin, end)
    assert error.value.hint


def test_a_damaged_trace_leaves_no_file(tmp_path: Path) -> None:
    path = gpu_trace(0).write(tmp_path, "rank-0.json", compress=True)
    excerpt = step_of(path, 0, STEPS[0])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DiagError, match="truncated"):
        write_excerpt(excerpt, tmp_path / "out.json.gz")
    assert [file.name for file in tmp_path.iterdir()] == ["rank-0.json.gz"]


def test_the_damaged_trace_of_a_run(tmp_path: Path) -> None:
    run = RunLayout(write_run(tmp_path / "run"))
    trace = run.rank(0).trace(3)
    trace.write_bytes(gzip.compress(gpu_trace(0).text().encode())[:-50])
    with pytest.raises(DiagError, match="truncated") as error:
        step_of(run.root, 0, None)
    assert error.value.path == str(trace)
    assert "truncated" in step_of(run.root, 0, 3).why


def test_the_trace_itself_is_never_written_over(tmp_path: Path) -> None:
    path = gpu_trace(0).write(tmp_path, "rank-0.json")
    before = path.read_bytes()
    with pytest.raises(DiagError, match="the trace itself"):
        write_excerpt(step_of(path, 0, STEPS[0]), path)
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    excerpt = step_of(SAMPLE, 0, TRACED)
    with pytest.raises(DiagError, match="cannot be written") as error:
        write_excerpt(excerpt, tmp_path / "nothing" / "out.json")
    assert "--output" in error.value.hint


# -- the command -------------------------------------------------------------------------------------------------------


def test_only_writing(tmp_path: Path) -> None:
    ended = diag_process("open", SAMPLE, "--rank", "1", "--step", str(TRACED), "-o", tmp_path / "out.json.gz")
    assert ended.returncode == 0, ended.stderr
    assert "rank 1, step 15" in ended.stdout
    assert "perfetto" not in ended.stdout
    document = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))
    steps = [event["name"] for event in document["traceEvents"] if event.get("name", "").startswith("diag.step#")]
    assert steps == ["diag.step#15"]


def test_a_step_without_a_trace_is_made_from_its_records_and_that_is_said(tmp_path: Path) -> None:
    ended = diag_process("open", SAMPLE, "--rank", "1", "--step", "12", "-o", tmp_path / "out.json.gz")
    assert ended.returncode == 0, ended.stderr
    assert "no trace of rank 1 covers step 12: the step is made from what was recorded" in ended.stdout
    document = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))
    spans: dict[int, list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(spans) >= 3, "the step, its phases and its collectives"
    for of_thread in spans.values():
        assert all(begin >= end for (_, end), (begin, _) in pairwise(sorted(of_thread))), "slices of a thread overlap"
    assert f"{sum(map(len, spans.values()))} events" in ended.stdout


def test_either_a_step_or_a_window() -> None:
    with pytest.raises(DiagError, match="--step") as error:
        open_trace(str(SAMPLE), 0, step=3, to_ms=5.0)
    assert error.value.exit_code == ExitCode.USAGE


def test_without_a_step_it_is_the_first_of_the_trace(tmp_path: Path) -> None:
    assert step_of(SAMPLE, 0, None) == step_of(SAMPLE, 0, TRACED)
    several = write_gpu_traces(tmp_path / "traces")
    assert step_of(several, 1, None) == step_of(several, 1, min(STEPS))


def test_a_mistake_is_a_message() -> None:
    ended = diag_process("open", SAMPLE, "--rank", "7", "--step", "1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "there is no trace of rank 7" in ended.stderr
    assert "ranks 0-1" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_says_that_nothing_is_uploaded() -> None:
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", diag_process("open", "--help").stdout).split())
    assert "Nothing is uploaded" in said
    assert "127.0.0.1:9001" in said


def test_it_serves_once_and_ends(tmp_path: Path) -> None:
    """As a user starts it; skipped where something else has Perfetto's port."""
    command = [sys.executable, "-m", "diag", "open", str(SAMPLE), "--rank", "0", "--step", str(TRACED), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        line = process.stdout.readline()
        if not line:
            assert "cannot be used" in process.stderr.read()
            pytest.skip("port 9001 is taken")
        try:
            found = re.search(rf"https://ui\.perfetto\.dev/#!/\?url=http://127\.0\.0\.1:{PORT}(/[^&]+)&", line)
            assert found, line
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE_S)
            connection.request("GET", found[1])
            data = connection.getresponse().read()
            assert json.loads(gzip.decompress(data))["traceEvents"]
            connection.close()
            assert process.wait(timeout=PATIENCE_S) == 0
        finally:
            process.kill()


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diag", "open", str(SAMPLE), "--rank", "0", "--step", str(TRACED), "--no-browser"]
    environment = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "DIAG_CACHE": "off"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        if not process.stdout.readline():
            assert "cannot be used" in process.stderr.read()
            pytest.skip("port 9001 is taken")
        assert [folder.name.startswith("diag-open-") for folder in tmp_path.iterdir()] == [True]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    assert not list(tmp_path.iterdir())


# -- several ranks -----------------------------------------------------------------------------------------------------


def merged(archive: Path) -> dict[int, list[tuple[str, float, float]]]:
    """The slices of each rank as Perfetto places them: name, begin and end in ns on the first file's clock."""
    with zipfile.ZipFile(archive) as opened:
        manifest = json.loads(opened.read("perfetto_manifest.json"))["perfetto_manifest"]
        assert manifest["version"] == 1
        assert {file["path"] for file in manifest["files"]} == {*opened.namelist()} - {"perfetto_manifest.json"}
        first = manifest["files"][0]["path"]
        slices: dict[int, list[tuple[str, float, float]]] = {}
        for file in manifest["files"]:
            clocks = file.get("clocks", {"sync_to": {"file": first}, "offset_ns": 0})
            assert clocks["sync_to"] == {"file": first}
            document = json.loads(opened.read(file["path"]))
            slices[int(file["machine"]["name"].split()[1])] = [
                (event["name"], start, start + 1000 * event.get("dur", 0))
                for event in document["traceEvents"]
                if event["ph"] == "X" and (start := 1000 * event["ts"] + clocks["offset_ns"]) >= 0
            ]
    return slices


def test_ranks_together_are_on_the_clock_of_the_account(tmp_path: Path) -> None:
    result = open_run(SAMPLE)
    chosen = together(result, None)
    assert (chosen.step, chosen.about) == (TRACED, [])
    save_archive(chosen.members, tmp_path / "both.zip")
    begins = {
        rank: next(start for name, start, _ in of_rank if name == f"diag.step#{TRACED}")
        for rank, of_rank in merged(tmp_path / "both.zip").items()
    }
    account = {each.rank: each.begin_ns for each in result.attribution.rank_steps if each.step == TRACED}
    assert begins[1] - begins[0] == pytest.approx(account[1] - account[0], abs=1000)


def test_ranks_without_a_common_clock_begin_the_step_together(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(2):
        gpu_trace(rank, base_ns=BASE_NS + 7_000_000_000 * rank).framed().write(traces, f"rank-{rank}.json")
    chosen = together(open_run(traces), STEPS[1])
    save_archive(chosen.members, tmp_path / "both.zip")
    assert "clock offset of rank 1 is not known" in " ".join(chosen.about)
    step = f"ProfilerStep#{STEPS[1]}"
    slices = merged(tmp_path / "both.zip")
    begins = [next(start for name, start, _ in of_rank if name == step) for of_rank in slices.values()]
    assert begins[0] == begins[1]


def test_ranks_together_in_a_step_that_was_not_profiled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks=3, slow_data_ms={1: 40})
    chosen = together(open_run(run), 5, [0, 1])
    save_archive(chosen.members, tmp_path / "two.zip")
    assert "not profiled on ranks 0-1" in " ".join(chosen.about)
    slices = merged(tmp_path / "two.zip")
    assert set(slices) == {0, 1}
    data = {rank: next(end - start for name, start, end in slices[rank] if name == "data") for rank in slices}
    assert data[1] - data[0] == pytest.approx(39e6)
    (begins,) = {next(start for name, start, _ in of_rank if name == "step 5") for of_rank in slices.values()}
    assert begins > 0, "Perfetto drops what begins before a clock's zero"


def test_ranks_that_are_not_there(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    with pytest.raises(DiagError, match="no rank 7"):
        together(run, 5, [0, 7])
    with pytest.raises(DiagError, match="step 99 was not recorded"):
        together(run, 99)
    with pytest.raises(DiagError, match="no step was profiled"):
        together(run, None)


def test_all_ranks_by_the_command(tmp_path: Path) -> None:
    ended = diag_process("open", SAMPLE, "--ranks", "all", "-o", tmp_path / "all.zip")
    assert ended.returncode == 0, ended.stderr
    assert "step 15 of 2\N{NO-BREAK SPACE}ranks, on one clock" in ended.stdout
    assert set(merged(tmp_path / "all.zip")) == {0, 1}
    assert diag_process("open", SAMPLE, "--ranks", "all", "--rank", "0").returncode == ExitCode.USAGE
    assert diag_process("open", SAMPLE).returncode == ExitCode.USAGE
