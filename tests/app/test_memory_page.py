"""The page of the memory shows what was recorded, and what the model needs by formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.app.theme import LIGHT
from diag.app.views import memory as figures
from diag.collectors.records import MemoryRecord
from diag.words.formatting import size
from tests.app.runs import write_run
from tests.app.shown import metrics, shown, text
from tests.test_breakdowns import rank_trace, two_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MS, GB = 1_000_000, 10**9
FULL = MemoryRecord(rss=1, allocated=60 * GB, reserved=75 * GB, alloc_retries=2, ooms=0, capacity=80 * GB)


def test_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", memory=FULL)
    table = open_run(run).memory_table
    test = shown("memory", run, monkeypatch)
    assert metrics(test) == {
        "Memory, of 80.0 GB": "75.0 GB",
        "Growth per step": "0 bytes",
        "Reserved, never used": "20%",
        "Allocation retries": "0",
    }
    assert "nearly full" in text(test)
    frame = test.dataframe[0].value
    assert frame["Reserved, GB"].tolist() == [row.reserved / 1e9 for row in table.rows if row.reserved is not None]
    assert frame["Never used"].tolist() == pytest.approx([0.2, 0.2])
    assert "Not known" in text(test)  # the manifest names no model


def test_a_sample_and_its_models_states(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-root-only"
    table = open_run(run).memory_table
    states = table.estimate.states
    assert states is not None
    test = shown("memory", run, monkeypatch)
    told = metrics(test)
    assert told["Together, on each rank"] == size(states.total).replace("\u00a0", " ")
    assert told["Optimizer states"] == size(states.optimizer).replace("\u00a0", " ")
    assert "By formula, not measured" in text(test)
    bars = figures.against_states(table, LIGHT).data
    summed = [sum(bar.x[row] for bar in bars) for row in range(len(table.rows))]
    assert summed == pytest.approx([max(row.allocated, states.total) / 1e9 for row in table.rows])
    assert "Resident, GB" in test.dataframe[0].value


def test_a_jump_is_told_with_its_step_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace that was written before step 16 took the memory, and it stays taken."""
    run = SAMPLES / "fsdp2-straggler-rank0"
    rows = open_run(run).memory_table.rows
    assert [(row.growth_per_step, row.jump) for row in rows] == [(0, (16, 6_488_064)), (0, (16, 6_762_496))]
    test = shown("memory", run, monkeypatch)
    assert metrics(test)["Growth per step"] == "0 bytes"
    told = text(test).replace("\\", "").replace("\u00a0", " ")
    why = "the profiler was writing a trace before it"
    assert f"Memory of rank 1 jumps by 6.76 MB at step 16 ({why}), the largest jump of 2 ranks. It does not" in told


def test_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ranks(tmp_path)
    test = shown("memory", tmp_path, monkeypatch)
    assert "Memory was not recorded" in text(test)
    assert "no manifest describes what was trained" in text(test)


def test_samples_of_the_allocator_in_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = rank_trace(0).memory(20 * MS, 10 * GB, 40 * GB).memory(21 * MS, 30 * GB, 60 * GB)
    built.write(tmp_path, "rank0.json")
    (row,) = open_run(tmp_path).memory_table.rows
    assert (row.allocated, row.reserved, row.growth_per_step, row.fragmentation) == (30 * GB, 60 * GB, None, 0.5)
    test = shown("memory", tmp_path, monkeypatch)
    assert metrics(test)["Peak memory"] == "60.0 GB"
    assert "samples" in text(test)


def test_many_ranks_are_a_field_and_one_chosen_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "wide", ranks=70, steps=4, memory=FULL)
    test = shown("memory", run, monkeypatch, rank="66")
    assert test.selectbox(key="rank").value == "66"
