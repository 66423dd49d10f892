"""``diag analyze`` of memory snapshots, and where a run that ran out of memory points to its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.api import open_run
from diag.collectors.layout import RunLayout
from diag.hang.api import triage
from diag.hang.flight import read_dumps
from tests.allocator import FORWARD, MIB, train
from tests.app.runs import write_run
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
    assert "Rank 1 has the highest peak: 24.1 MB, 6.29 MB above the median of the other ranks." in report
    assert "9.44 MB at model.py:12 forward; median of the others 3.15 MB" in report
    assert "Rank 0: rank0.pickle" in report
    assert "8.39 MB (47%) train.py:44 main, 1 allocation" in report
    assert "An allocation of 67.1 MB failed at model.py:12 forward. The device had 10.5 MB free." in report
    told = json.loads(diag("analyze", tmp_path, "--json").stdout)
    assert [one["peak_allocated_bytes"] for one in told["memory_snapshots"]] == [17 * MIB, 23 * MIB]
    assert told["compared"]["rank"] == 1
    assert told["memory_snapshots"][0]["by_phase"][0] == {
        "name": "optimizer", "bytes": 8 * MIB, "count": 1, "share": 8 / 17,
    }  # fmt: skip


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
        train().write(layout.rank(rank).memory_snapshot(reason, 7))
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
