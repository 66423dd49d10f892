"""``diag analyze`` of memory snapshots, and where a run that ran out of memory points to its own."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from diag.api import open_run
from diag.app.html_report.render import render
from diag.collectors.layout import RunLayout
from diag.hang.api import triage
from diag.hang.flight import read_dumps
from diag.model.steps import FailedAllocation
from diag.show.json import to_dict
from diag.show.memory import failures_of
from diag.show.notebook import to_html
from diag.show.page import page_of
from diag.show.text import print_report
from tests.allocator import FORWARD, MIB, train
from tests.app.runs import write_run
from tests.app.shown import shown
from tests.app.shown import text as app_text
from tests.command import diag

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8 GiB"
)


def plain(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split())


def test_a_folder_of_two_ranks(tmp_path: Path) -> None:
    for rank, extra in ((0, 0), (1, 6 * MIB)):
        allocator = train(extra=extra)
        allocator.fail(64 * MIB, 10 * MIB, FORWARD)
        allocator.write(tmp_path / f"rank{rank}.pickle")
    ended = diag("analyze", tmp_path)
    assert ended.returncode == 0, ended.stderr
    report = plain(ended.stdout)
    assert "2 memory snapshots of 2 ranks" in report
    headline = "Out of memory: 2 allocations failed, the largest of 67.1 MB on rank 0, at model.py:12 forward."
    assert report.index(headline) < report.index("Rank 1 has the highest peak: 24.1 MB, 6.29 MB above the other rank.")
    assert "9.44 MB at model.py:12 forward; the other 3.15 MB" in report
    assert "Rank 0: rank0.pickle" in report
    assert "8.39 MB (47%) train.py:44 main, 1 allocation" in report
    assert "An allocation of 67.1 MB failed at model.py:12 forward. The device had 10.5 MB free." in report
    told = json.loads(diag("analyze", tmp_path, "--json").stdout)
    assert [one["peak_allocated_bytes"] for one in told["memory_snapshots"]] == [17 * MIB, 23 * MIB]
    assert told["compared"]["rank"] == 1
    assert plain(told["headline"]) == headline
    assert told["memory_snapshots"][0]["by_phase"][0] == {
        "name": "optimizer", "bytes": 8 * MIB, "count": 1, "share": 8 / 17,
    }  # fmt: skip


def test_ranks_that_fail_alike_are_one_failure() -> None:
    one = FailedAllocation(0, "rank0.pickle", 64 * MIB, "model.py:12 forward", device_free=10 * MIB)
    elsewhere = FailedAllocation(5, "rank5.pickle", 64 * MIB, "loss.py:3 forward")
    (alike, other) = failures_of((one, replace(one, rank=1, source="rank1.pickle", device_free=MIB), elsewhere))
    assert "failed on ranks 0, 1, at model.py:12 forward" in plain(alike.text)
    assert plain(alike.room) == "On rank 0, the device had 10.5 MB free."
    assert "failed on rank 5, at loss.py:3 forward" in plain(other.text)
    unknown = FailedAllocation(None, "a.log")
    assert len(failures_of((unknown, unknown))) == 2, "nothing says that they are alike"


def test_a_file_that_is_refused_is_stated(tmp_path: Path) -> None:
    train().write(tmp_path / "a.pickle")
    (tmp_path / "b.pickle").write_bytes(b"\x80\x04}\x8c\x08segmentscos\nsystem\n.")
    ended = diag("analyze", tmp_path)
    assert ended.returncode == 4
    assert "refused: asks for os.system" in plain(ended.stdout)
    alone = diag("analyze", tmp_path / "b.pickle")
    assert alone.returncode == 1
    assert "refused: asks for os.system" in plain(alone.stderr)


@pytest.fixture
def out_of_memory(tmp_path: Path) -> RunLayout:
    layout = RunLayout(write_run(tmp_path / "run"))
    manifest = json.loads(layout.manifest.read_text())
    layout.manifest.write_text(json.dumps({**manifest, "exit_code": 1}))
    layout.rank(1).log.write_text(f"[rank1]: {OUT_OF_MEMORY}\n")
    for rank, reason in ((0, "near-oom"), (1, "near-oom"), (1, "oom")):
        train().write(layout.rank(rank).memory_snapshot(reason, 7), diag={"rank": rank, "step": 7, "reason": reason})
    return layout


def test_a_run_that_ran_out_of_memory_points_to_the_snapshot(out_of_memory: RunLayout) -> None:
    found = triage([str(out_of_memory.root)])
    assert found.fault_class == "cuda_oom"
    file = out_of_memory.rank(1).memory_snapshot("oom", 7)
    assert found.next_steps[0] == f"`diag analyze {file}` shows what was allocated on rank 1."
    result = open_run(out_of_memory.root)
    assert result.outcome is not None
    assert str(file) in result.outcome.action
    assert len(result.memory_snapshots.accounts) == 3


def test_a_snapshot_is_no_flight_recorder_dump(out_of_memory: RunLayout) -> None:
    dumps = read_dumps([out_of_memory.root])
    assert (dumps.dumps, dumps.gaps) == ({}, ())


def test_snapshots_beside_traces_are_no_gap(tmp_path: Path) -> None:
    from tests.tables.test_memory_curve import trained

    file = train().write(tmp_path / "rank0.pickle")
    trace = trained().write(tmp_path, "rank0.json")
    result = open_run(trace, file)
    assert result.tables.snapshots == (str(file),)
    assert result.coverage.skipped == ()
    assert open_run(tmp_path).tables.snapshots == (str(file),)


# -- a run that ran out of memory --------------------------------------------------------------------------------------


def by_snapshot(layout: RunLayout) -> str:
    allocator = train()
    allocator.fail(64 * MIB, 10 * MIB, FORWARD)
    of = {"rank": 1, "step": 7, "reason": "oom"}
    path = allocator.write(layout.rank(1).memory_snapshot("oom", 7), diag=of)
    return f"an allocation of 67.1 MB failed on rank 1 in step 7, at model.py:12 forward ({path.name}). `diag analyze"


def by_snapshot_without_events(layout: RunLayout) -> str:
    train().write(layout.rank(1).memory_snapshot("oom", 7), diag={"rank": 1, "step": 7, "reason": "oom"})
    return "an allocation failed on rank 1 (memory-oom-step000007.pickle)"


def by_log(layout: RunLayout) -> str:
    layout.rank(1).log.write_text(f"retrying\n[rank1]: {OUT_OF_MEMORY}\nwith a smaller batch\n")
    return "an allocation of 2.15 GB failed on rank 1 (log.txt)"


def by_error_file(layout: RunLayout) -> str:
    layout.rank(1).error.write_text(json.dumps({"message": {"message": OUT_OF_MEMORY, "extraInfo": {}}}))
    return "an allocation of 2.15 GB failed on rank 1 (error.json)"


def by_log_of_another_library(layout: RunLayout) -> str:
    layout.rank(1).log.write_text("node1:7:7 [0] NCCL WARN Failed to CUDA calloc 67108864 bytes\n")
    return "an allocation of 67.1 MB failed on rank 1 (log.txt)"


def by_counts(layout: RunLayout) -> str:
    lines = [json.loads(line) for line in layout.rank(1).steps.read_text().splitlines()]
    for line in lines:
        line["memory"] = {"rss": 1, "allocated": 1, "reserved": 1, "alloc_retries": 0, "ooms": 3, "capacity": 10**10}
    layout.rank(1).steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "3 allocations failed on rank 1 (steps.jsonl)"


@pytest.mark.parametrize(
    "plant",
    [by_snapshot, by_snapshot_without_events, by_log, by_log_of_another_library, by_error_file, by_counts],
    ids=lambda plant: plant.__name__,
)
def test_every_front_end_says_that_a_run_was_out_of_memory(
    plant: Callable[[RunLayout], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    said = f"Out of memory: {plant(layout)}"
    result = open_run(layout.root)
    words = " ".join(page_of(result).out_of_memory)
    assert plain(words).startswith(said)
    text = io.StringIO()
    print_report(result, Console(file=text, width=400))
    report = plain(text.getvalue())
    assert report.index(said) < report.index(plain(result.verdict.headline)[:40])
    start = said.split("(", 1)[0].strip()
    assert start in plain(html.unescape(to_html(result)))
    assert start in plain(html.unescape(render(result, "", "1")))
    assert start in plain(app_text(shown("overview", layout.root, monkeypatch)).replace("\\", ""))
    assert [failure["rank"] for failure in to_dict(result)["out_of_memory"]] == [1]


def test_a_run_with_memory_to_spare_says_nothing_of_it(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    train().write(layout.rank(1).memory_snapshot("asked", 7))
    layout.rank(0).log.write_text("a bloom filter and an OutOfMemory handler were made\n")
    assert open_run(layout.root).failed_allocations == ()
