"""Modules, recomputation and utilisation of runs whose truth is planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diag.account.rank_steps import RankSteps
from diag.api import open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest, MemoryRecord, PhaseRow, RankRecord, StepRecord
from diag.model.breakdown import Measure, peak_of
from diag.rundir.columns import Steps
from diag.show.breakdowns import print_breakdown
from diag.show.json import to_json
from diag.tables.efficiency import efficiency
from diag.tables.module_excess import module_excess
from diag.words.formatting import NBSP
from tests.account.kineto_builder import BASE_NS, KinetoBuilder
from tests.app.runs import write_run
from tests.tables.test_breakdowns import (
    BACKWARD,
    COUNTED,
    FLOPS,
    MM,
    MS,
    STEP,
    STEPS,
    US,
    check_sums,
    rank_trace,
    two_ranks,
)


def test_modules_and_recomputation(tmp_path: Path) -> None:
    result = two_ranks(tmp_path)
    (table,) = result.breakdowns.modules
    (block,) = table.rows
    assert (table.source, block.name, block.calls) == ("annotation", "block.0", 2 * COUNTED)
    assert (block.forward_ns, block.backward_ns, block.self_ns) == (2 * COUNTED * 20 * MS, 0, 2 * COUNTED * 20 * MS)
    assert block.host_ns == 2 * COUNTED * 900 * US
    assert table.unattributed_backward_ns == COUNTED * (40 + 70) * MS
    again = result.breakdowns.efficiency.recompute_share
    assert again.value == pytest.approx(20 / (2 * 20 + 40 + 70 + 2 * 5))
    assert "inferred" in again.basis


def test_units_of_fsdp_have_their_backward_and_what_they_recompute(tmp_path: Path) -> None:
    built = KinetoBuilder(rank=0)
    built.step(0, 0, 100 * MS).range("diag.forward", 0, 10 * MS)
    names = ("", " (layers.0)")
    for i, name in enumerate(names):
        built.range(f"FSDP::pre_forward{name}", i * MS, i * MS + 100).range(
            f"FSDP::post_forward{name}", (5 - i) * MS, (5 - i) * MS + 100
        )
    built.kernel(20 * MS, 22 * MS, launch=MS // 2).kernel(22 * MS, 25 * MS, launch=3 * MS)
    built.op("autograd::engine::evaluate_function: X", 10 * MS, 19 * MS, tid=BACKWARD)
    built.range("FSDP::pre_backward", 10 * MS + 1, 10 * MS + 100, tid=BACKWARD)
    built.range("FSDP::pre_backward (layers.0)", 11 * MS, 11 * MS + 100, tid=BACKWARD)
    built.range("FSDP::pre_forward (layers.0)", 12 * MS, 12 * MS + 100, tid=BACKWARD)
    built.kernel(25 * MS, 26 * MS, launch=12 * MS + 500, tid=BACKWARD)
    built.range("FSDP::post_forward (layers.0)", 13 * MS, 13 * MS + 100, tid=BACKWARD)
    built.kernel(26 * MS, 31 * MS, launch=14 * MS, tid=BACKWARD)
    built.range("FSDP::post_backward_reduce (layers.0)", 15 * MS, 15 * MS + 100, tid=BACKWARD)
    built.kernel(31 * MS, 38 * MS, launch=16 * MS, tid=BACKWARD)
    built.range("FSDP::root_post_backward_callback", 17 * MS, 18 * MS)
    built.kernel(40 * MS, 44 * MS, launch=30 * MS)
    built.write(tmp_path)
    found = open_run(tmp_path).breakdowns
    (table,) = found.modules
    by_name = {row.name: row for row in table.rows}
    layer, root = by_name["layers.0"], by_name["(root)"]
    assert (layer.forward_ns, layer.backward_ns, layer.recompute_ns) == (3 * MS, 6 * MS, MS)
    assert (root.forward_ns, root.backward_ns, root.self_ns) == (5 * MS, 13 * MS, 9 * MS)
    assert layer.parent == "(root)"
    assert (table.unattributed_ns, table.busy_ns) == (4 * MS, 22 * MS)
    assert found.efficiency.recompute_share.value == pytest.approx(1 / 22)


@pytest.mark.parametrize("by", ["frames", "node"])
def test_recomputation_by_stacks_and_by_the_reentrant_node(tmp_path: Path, by: str) -> None:
    built = KinetoBuilder(rank=0).step(0, 0, 100 * MS)
    built.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 0, 20 * MS, tid=BACKWARD)
    if by == "frames":
        built.event("python_function", "torch/utils/checkpoint.py(1500): recompute_fn", MS, 5 * MS, tid=BACKWARD)
    else:
        built.op("CheckpointFunctionBackward", MS, 19 * MS, tid=BACKWARD)
        built.op("autograd::engine::evaluate_function: MmBackward0", 5 * MS, 18 * MS, tid=BACKWARD)
    built.kernel(30 * MS, 40 * MS, launch=2 * MS, tid=BACKWARD).kernel(40 * MS, 70 * MS, launch=6 * MS, tid=BACKWARD)
    built.write(tmp_path)
    share = open_run(tmp_path).breakdowns.efficiency.recompute_share
    assert share.value == pytest.approx(0.25)
    assert ("stacks" in share.basis) == (by == "frames")


def run_directory(folder: Path, shapes: bool = True) -> RunLayout:
    layout = RunLayout(folder)
    model = {"parameters": 10**9, "layers": 10, "dim": 100, "seq_len": 1000}
    replace_file(layout.manifest, encode(Manifest("m", 0, world_size=2, backend="nccl", strategy="ddp", model=model)))
    for rank in (0, 1):
        files = layout.rank(rank)
        device = "NVIDIA H100 80GB HBM3"
        replace_file(files.identity, encode(RankRecord(rank, rank, 2, "node-a", 1, "boot", 0, BASE_NS, device, rank)))
        memory = MemoryRecord(1, allocated=60 + rank, reserved=70, capacity=80)
        records = [
            StepRecord(step, begin, begin + STEP, [PhaseRow("forward", begin, begin + MS)], tokens=5000, memory=memory)
            for step, begin in ((step, 10 * MS + step * STEP) for step in range(STEPS))
        ]
        files.steps.write_bytes(b"".join(encode(record) for record in records))
        rank_trace(rank, shapes=shapes, recompute=False).write(
            files.folder, files.trace(0).name.removesuffix(".gz"), compress=True
        )
    return layout


def test_utilisation(tmp_path: Path) -> None:
    result = open_run(run_directory(tmp_path).root)
    found = result.breakdowns
    per_token = 6 * 10**9 + 12 * 10 * 100 * 1000
    assert found.efficiency.mfu.value == pytest.approx(per_token * 5000 / (STEP / 1e9) / 989e12)
    assert found.efficiency.hfu.value is None
    assert "67%" in found.efficiency.hfu.reason, "a third of the product's time has no shapes"
    assert found.efficiency.recompute_share.value is None
    assert [peak.allocated for peak in found.memory_peaks] == [60, 61]


def recorded(lasted_ms: dict[int, int], window: dict[int, str]) -> Steps:
    """Steps of so many milliseconds, 1,000 tokens each."""
    return Steps.of(
        [
            StepRecord(step, step * 1000 * MS, (step * 1000 + ms) * MS, [], window.get(step, ""), tokens=1000)
            for step, ms in lasted_ms.items()
        ]
    )


def model_utilisation(steps: list[Steps], gpus: int | None = None) -> Measure:
    """MFU of two ranks on H200s, with 10^9 FLOPs a token."""
    manifest, name = Manifest("m", 0, world_size=2, model={"flops_per_token": 10**9}), "NVIDIA H200"
    return efficiency((), manifest, steps, 1e9, 2, peak_of(name), name, on_device=True, gpus=gpus).mfu


def test_utilisation_of_ranks_that_share_a_gpu_is_that_of_the_gpu() -> None:
    steps = recorded(dict.fromkeys(range(20), 100), {})
    alone, shared = model_utilisation([steps, steps]), model_utilisation([steps, steps], gpus=1)
    assert alone.value == pytest.approx(1000 * 10**9 / 0.1 / 989e12)
    assert alone.basis.endswith(f"2{NBSP}ranks, 989 TFLOP/s peak each")
    assert shared.value == pytest.approx(2 * 1000 * 10**9 / 0.1 / 989e12)
    assert shared.basis.endswith(f"2{NBSP}ranks on 1{NBSP}GPU, 989 TFLOP/s peak")


def test_ranks_share_a_gpu_if_they_record_one_id(tmp_path: Path) -> None:
    layout = run_directory(tmp_path)
    alone = open_run(layout.root).breakdowns.efficiency.mfu.value
    assert alone is not None
    for uuids, gpus in ((("a", "b"), 2), (("a", "a"), 1), (("a", ""), 2)):
        for rank, uuid in enumerate(uuids):
            files = layout.rank(rank)
            one = RankRecord(rank, rank, 2, "node-a", 1, "boot", 0, BASE_NS, "NVIDIA H100 80GB HBM3", 0)
            replace_file(files.identity, encode(replace(one, device_uuid=uuid)))
        result = open_run(layout.root)
        assert result.breakdowns.efficiency.mfu.value == result.mfu.value == pytest.approx(alone * 2 / gpus)


def test_a_step_that_waits_for_a_trace_to_be_written_is_left_out_of_the_utilisation() -> None:
    """A recording on a H200: step 16 follows the window, and rank 1 waits in step 17 for rank 0, which still writes."""
    window = {9: "warmup", **dict.fromkeys(range(10, 16), "active"), 16: "after"}
    usual = dict.fromkeys(range(24), 100)
    ranks = [recorded({**usual, 16: 56, 17: 60}, window), recorded({**usual, 16: 51, 17: 339}, window)]
    assert model_utilisation(ranks).value == pytest.approx(1000 * 10**9 / 0.1 / 989e12)


def test_hardware_utilisation_counts_what_shapes_ask_for(tmp_path: Path) -> None:
    built = KinetoBuilder().step(0, 0, 100 * MS)
    built.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    built.op("aten::mm", 0, MS, **MM).kernel(MS, 21 * MS, "gemm", launch=1).kernel(
        21 * MS, 95 * MS, "relu", launch=2 * MS
    )
    built.kernel(95 * MS, 100 * MS, "gemm", launch=3 * MS).write(tmp_path)
    found = open_run(tmp_path).breakdowns.efficiency.hfu
    assert found.value == pytest.approx(FLOPS / (0.1 * 989e12))
    assert "80%" in found.basis


def test_an_unknown_device_has_no_utilisation(tmp_path: Path) -> None:
    built = rank_trace(0)
    built.header["deviceProperties"] = [{"id": 0, "name": "Test GPU"}]
    built.write(tmp_path)
    found = open_run(tmp_path).breakdowns.efficiency
    assert (found.mfu.value, found.hfu.value, found.peak) == (None, None, None)
    assert "Test GPU" in found.mfu.reason


def test_the_tables_are_not_made_unless_asked_for(tmp_path: Path) -> None:
    result = two_ranks(tmp_path)
    assert "breakdowns" not in vars(result)
    assert result.breakdowns is result.breakdowns
    assert json.dumps(result.breakdowns.kernels.rows[0].kind) == '"reduction"'


@pytest.mark.parametrize("what", ["ranges", "kernels", "operators", "collective", "records"])
def test_runs_of_which_little_is_known(tmp_path: Path, what: str) -> None:
    built = KinetoBuilder(rank=0).step(0, 0, 10 * MS)
    if what == "kernels":
        built.kernel(10, MS, "x", launch=5).kernel(MS, 2 * MS)
    elif what == "operators":
        built.op("aten::mm", 0, MS).op("aten::linear", 2 * MS, 2 * MS)
    elif what == "collective":
        built.kernel(0, MS, "ncclKernel_Broadcast_RING", launch=1)
    if what == "records":
        layout = run_directory(tmp_path)
        for rank in (0, 1):
            for path in layout.rank(rank).traces():
                path.unlink()
    else:
        built.write(tmp_path, "rank0.json")
    result = open_run(tmp_path)
    check_sums(result)
    for name in ("collectives", "kernels", "modules", "efficiency", "path"):
        print_breakdown(result, name)
    content = json.loads(to_json(result, tables=True))["breakdowns"]
    assert len(content["kernels"]["rows"]) == {"kernels": 2, "operators": 2, "collective": 1}.get(what, 0)
    assert len(content["collectives"]["rows"]) == (what == "collective")


def test_steps_without_a_trace_are_made_into_no_objects_to_look_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = open_run(write_run(tmp_path / "run", slow_data_ms={1: 60}))

    def made(*_: object) -> None:
        raise AssertionError("a step became an object")

    monkeypatch.setattr(RankSteps, "_records", made)
    assert module_excess(result.attribution, result.tables, [1], range(12)) == []
