"""The page of the memory shows what was recorded, and the model states by formula."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from streamlit.testing.v1 import AppTest

from diag.api import open_run
from diag.app.curves import memory_figure, snapshot_figure
from diag.app.picture import grid_of_peaks
from diag.app.run_view import view_of
from diag.app.theme import LIGHT
from diag.app.views import memory as figures
from diag.collectors.layout import RunLayout
from diag.collectors.records import MemoryRecord
from diag.planning.lower import lowered as lowered_of
from diag.serve.server import SCRIPT
from diag.words.formatting import size, spaced
from tests.allocator import FORWARD, MIB, Allocator, frame, train
from tests.app.runs import write_run
from tests.app.shown import metrics, shown, text
from tests.patience import PATIENCE_S
from tests.samples import opened_sample
from tests.tables.test_breakdowns import rank_trace, two_ranks
from tests.tables.test_memory_curve import trained

SAMPLES = Path(__file__).parents[2] / "sample_traces"
OUT_OF_MEMORY = Path(__file__).parents[1] / "hang" / "captured" / "h200-out-of-memory"
MS, GB = 1_000_000, 10**9
FULL = MemoryRecord(rss=1, allocated=60 * GB, reserved=75 * GB, alloc_retries=2, ooms=0, capacity=80 * GB)


def written(test: AppTest) -> str:
    """What a reader sees: without the escapes that keep names from becoming Markdown."""
    return text(test).replace("\\", "")


def shares(test: AppTest) -> list[Any]:
    """The tables of what was allocated at the peak."""
    return [table.value for table in test.table if "Allocated by" in table.value]


def column(table: Any, name: str) -> list[str]:
    """What a reader sees."""
    return [cell.replace("\\", "").replace("\u00a0", " ") for cell in table[name].tolist()]


def test_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", memory=FULL)
    table = open_run(run).memory_table
    test = shown("memory", run, monkeypatch)
    assert metrics(test) == {
        "Reserved, of 80.0 GB": "75.0 GB",
        "Peak allocated": "60.0 GB",
        "Growth per step": "0 bytes",
        "Reserved, never used": "20%",
        "Allocation retries": "0",
    }
    assert "nearly full" in text(test)
    frame = test.dataframe[0].value
    assert frame["Reserved, GB"].tolist() == [row.reserved / 1e9 for row in table.rows if row.reserved is not None]
    assert frame["Never used"].tolist() == pytest.approx([0.2, 0.2])
    assert "Not known" in text(test)  # the manifest names no model


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_single_rank_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Its bars would repeat the numbers above them."""
    test = shown("memory", write_run(tmp_path / "run", ranks=ranks, memory=FULL), monkeypatch)
    headings = [one.value for one in test.subheader]
    assert ("Peaks" in headings) == (ranks > 1)
    assert "Over the steps" in headings


def test_a_sample_and_its_models_states(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SAMPLES / "fsdp2-root-only"
    table = open_run(run).memory_table
    states = table.estimate.states
    assert states is not None
    test = shown("memory", run, monkeypatch)
    told = metrics(test)
    assert told["Total per rank"] == size(states.total).replace("\u00a0", " ")
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
    assert "no manifest describes the training" in text(test)


def test_samples_of_the_allocator_in_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = rank_trace(0).memory(20 * MS, 10 * GB, 40 * GB).memory(21 * MS, 30 * GB, 60 * GB)
    built.write(tmp_path, "rank0.json")
    (row,) = open_run(tmp_path).memory_table.rows
    assert (row.allocated, row.reserved, row.growth_per_step, row.fragmentation) == (30 * GB, 60 * GB, None, 0.5)
    test = shown("memory", tmp_path, monkeypatch)
    assert metrics(test)["Peak reserved"] == "60.0 GB"
    assert metrics(test)["Peak allocated"] == "30.0 GB"
    assert "profiled windows" in text(test)


def test_memory_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained().write(tmp_path, "rank0.json")
    (curve,) = open_run(tmp_path).memory_curves
    test = shown("memory", tmp_path, monkeypatch)
    assert "190 MB allocated" in text(test)
    assert "100 MB of it (53%) was allocated before the window" in written(test)
    assert metrics(test)["Peak reserved"] == "400 MB", "which the overview shows, too"
    assert metrics(test)["Peak allocated"] == "190 MB", "the peak of the figure"
    overview = shown("overview", tmp_path, monkeypatch)
    assert metrics(overview)["Peak reserved"] == "400 MB"
    assert "190 MB allocated" in text(overview)
    operators, modules, phases = shares(test)
    assert column(operators, "Allocated by") == ["aten::mm", "outside of operators", "before the window"]
    assert column(modules, "Size") == ["50.0 MB", "40.0 MB", "100 MB"], "their sum is the peak"
    assert column(phases, "Share of peak") == ["21%", "16%", "11%", "53%"]
    (lower,) = (table.value for table in test.table if "Peak with it" in table.value)
    assert column(lower, "Peak with it") == ["-", "at least 150 MB", "about 170 MB"]
    figure = memory_figure(curve, 1e9, LIGHT)
    lines = {line.name: line for line in figure.data}
    assert max(lines["allocated"].y) == pytest.approx(0.19)
    assert (lines["peak"].x[0], lines["peak"].y[0]) == pytest.approx((18.0, 0.19))
    assert len(figure.layout.shapes) == 3 * 3 + 1, "three phases of three steps, and the capacity"


def test_snapshots_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", memory=FULL)
    for rank, extra in ((0, 0), (1, 6 * MIB)):
        allocator = train(extra=extra)
        allocator.fail(64 * MIB, 10 * MIB, FORWARD)
        diag = {"rank": rank, "step": 3, "reason": "oom"}
        allocator.write(RunLayout(run).rank(rank).memory_snapshot("oom", 3), diag=diag)
    (RunLayout(run).rank(1).memory_snapshot("asked", 9)).write_bytes(b"\x80\x04no snapshot: segments")
    test = shown("memory", run, monkeypatch)
    assert metrics(test)["Peak allocated"] == "24.1 MB"
    assert "Rank 1 has the highest peak: 24.1 MB, 6.29 MB above" in written(test)
    assert "An allocation of 67.1 MB failed at model.py:12 forward" in written(test)
    titles = [warning.proto.title.replace("\\", "") for warning in test.warning]
    assert any(title.endswith("memory-asked-step000009.pickle") for title in titles)
    assert test.selectbox(key="snapshot").value == "1"
    table = open_run(run).memory_snapshots
    figure = snapshot_figure(table.accounts[1], LIGHT)
    assert max(figure.data[1].y) == pytest.approx(23 * MIB / 1e6), "in MB, for there is less than one GB"
    assert figure.data[1].hovertemplate.startswith("%{x:,.3f} ms")
    untimed = snapshot_figure(replace(table.accounts[1], timed=False), LIGHT)  # as of older versions of PyTorch
    assert untimed.data[1].hovertemplate.startswith("event %{x:,.0f}")
    other = shown("memory", run, monkeypatch, snapshot="0")
    assert metrics(other)["Peak allocated"] == "17.8 MB"


def test_a_folder_of_snapshots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        train().write(tmp_path / f"rank{rank}.pickle")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    test = AppTest.from_file(str(SCRIPT), default_timeout=PATIENCE_S).run()
    assert not test.exception
    assert test.title[0].value == "Memory"
    assert "hold no steps" in text(test)
    assert metrics(test)["Peak allocated"] == "17.8 MB"


def test_a_run_that_ran_out_of_memory_in_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step was recorded, so there is nothing to analyse; the snapshot shows what was allocated. From an H200."""
    run = tmp_path / "run"
    shutil.copytree(OUT_OF_MEMORY, run, ignore=shutil.ignore_patterns("truth.json"))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(run)])
    test = AppTest.from_file(str(SCRIPT), default_timeout=PATIENCE_S).run()
    assert not test.exception
    assert [title.value for title in test.title] == ["run"], "whose answer it is"
    assert "GPU memory is used up: rank 0" in written(test)
    assert "An allocation of 33.0 GB failed at base.py:289 loss_of" in written(test)
    assert metrics(test)["Peak allocated"] == "123 GB"
    first = shares(test)[0].iloc[0].to_dict()  # activations of one line of the model
    assert first["Allocated by"].replace("\\", "") == "model.py:87 forward"
    assert int(first["Allocations"]) == 108
    assert "Memory outside of PyTorch is not known" not in written(test)  # the error has the capacity
    assert "nothing else to show" not in written(test)
    offered = [str(table.value.to_dict()) for table in test.table if "Change" in table.value]
    assert any("activation checkpointing" in each for each in offered)
    manifest = json.loads((run / "manifest.json").read_bytes())
    manifest["trainer"]["activation_checkpointing"] = True
    (run / "manifest.json").write_text(json.dumps(manifest))
    again = AppTest.from_file(str(SCRIPT), default_timeout=PATIENCE_S).run()
    offered = [str(table.value.to_dict()) for table in again.table if "Change" in table.value]
    assert offered
    assert not any("activation checkpointing" in each for each in offered)


def test_names_in_a_snapshot_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator()
    hostile = "/home/[x](http://evil.example) <b>$x$ `rm`\x1b[2J.py"
    allocator.alloc(MIB, [frame("forward", hostile)])
    allocator.fail(MIB, 0, [frame("forward", hostile)])
    run = write_run(tmp_path / "run", memory=FULL)
    allocator.write(RunLayout(run).rank(0).memory_snapshot("oom", 1))
    test = shown("memory", run, monkeypatch)
    (error,) = [one.value for one in test.error if "An allocation" in one.value]
    assert "\x1b" not in error
    assert "](http" not in error
    assert "\x1b" not in shares(test)[0]["Allocated by"][0]


def test_many_ranks_are_a_field_and_one_chosen_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "wide", ranks=70, steps=4, memory=FULL)
    test = shown("memory", run, monkeypatch, rank="66")
    assert test.selectbox(key="rank").value == "66"


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    """40 ranks on devices of 80 GB, each with 24 GB reserved; rank 37 takes 0.3 GB more in each step."""
    held = MemoryRecord(rss=GB, allocated=20 * GB, reserved=24 * GB, capacity=80 * GB)
    run = write_run(tmp_path / "leaking", ranks=40, memory=held)
    lines = RunLayout(run).rank(37).steps
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    for record in records:
        for field in ("allocated", "reserved"):
            record["memory"][field] += record["step"] * 3 * GB // 10
    lines.write_text("\n".join(map(json.dumps, records)) + "\n")
    return run


def test_the_rank_whose_memory_grows_is_found_among_many(leaking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(open_run(leaking))
    grid = grid_of_peaks(view, LIGHT)
    assert grid["most"].startswith("Most: rank 37 on node37, 3.30 GB")
    assert {cell[0]: cell[1] for row in grid["rows"] for cell in row["cells"]}[36] == 0
    test = shown("memory", leaking, monkeypatch)
    told = written(test).replace("\u00a0", " ")
    # 80 GB - (24 GB + 11 x 0.3 GB), by 0.3 GB
    assert "Memory of rank 37 grows by 300 MB a step; no other rank" in told
    assert "its device is full after 175 more steps" in told
    assert test.selectbox(key="rank").value == "37"
    (lower,) = (table.value for table in test.table if "Frees" in table.value)
    assert column(lower, "Frees") == ["at most 4.00 GB"]


def test_a_run_of_profiled_steps_has_the_memory_of_all_recorded_steps() -> None:
    view = view_of(opened_sample("gpu-hf-trainer"))
    assert view.memory is not None
    assert len(view.steps) == 3
    assert len(view.memory.steps) == 60
    assert not view.memory.windows.any(), "the profiled steps are those that count"
    (line,) = figures.lines_of_ranks(view, view.memory, LIGHT).select_traces({"mode": "lines"})
    assert len(line.y) == 60
    assert not np.isnan(line.y).any()


def test_a_full_device_says_what_would_lower_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a simulation of the step that agrees with the measured peak: checkpointing frees less than half of what a
    bound by the model's states says."""
    run = SAMPLES / "gpu-memory-nearly-full"
    result = open_run(run)
    (row,) = result.memory_table.rows
    lowered = result.lowered
    assert lowered is not None
    changes = {each.change: each for each in lowered.changes}
    checkpointing = changes["activation checkpointing"]
    half = changes["half the micro-batch, and twice as many of them"]
    assert checkpointing.peak == row.allocated - checkpointing.frees
    assert 0.3 * row.allocated < checkpointing.frees < half.frees < 0.5 * row.allocated
    test = shown("memory", run, monkeypatch)
    assert "What would lower the peak" in text(test)
    assert "By a simulation of every allocation" in text(test)


def test_where_only_a_bound_is_known_it_is_said_if_it_tells_anything() -> None:
    """Without the model's shape: that checkpointing frees at most 131 of 133 GB is no advice."""
    result = opened_sample("gpu-memory-nearly-full")
    manifest = result.tables.manifest
    assert manifest is not None
    unknown = {name: value for name, value in manifest.model.items() if name != "heads"}
    changed = dataclasses.replace(manifest, model=unknown)
    lowered = lowered_of(replace(result.tables, manifest=changed), result.memory_table)
    assert lowered is not None
    assert "activation checkpointing" not in {lower.change for lower in lowered.changes}
    assert all(2 * lower.frees <= lowered.allocated for lower in lowered.changes)


def test_a_device_with_much_free_memory_gets_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = text(shown("overview", SAMPLES / "gpu-hf-trainer", monkeypatch))
    assert "Host\\-bound \\(about 28% of 66.9 ms a step, in 53 steps without the profiler\\)" in first
    assert "The profiler makes a step longer\\: 89.0 ms with it, 66.9 ms in 53 steps without it" in first
    test = shown("memory", SAMPLES / "gpu-hf-trainer", monkeypatch)
    assert "What would lower the peak" not in text(test)
    assert "137 GB of 150 GB are free" in spaced(text(test))
