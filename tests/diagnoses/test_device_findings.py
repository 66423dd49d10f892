"""Two GPU ranks of FSDP units made of kernels, as a run directory: stalls, recomputation, throttling, utilisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diag.api import Result, open_run
from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    CollectiveLine,
    DeviceRecord,
    Manifest,
    MemoryRecord,
    PhaseRow,
    RankRecord,
    StepRecord,
)
from diag.model.steps import Bottleneck, Severity
from diag.replay.case import headroom
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, KinetoBuilder, nccl_args
from tests.copies import replace

MS, US, GB = 1_000_000, 1_000, 1 << 30
BOOT_NS = 7_000_000_000  # the monotonic clock at the traces' zero
FIRST, STEPS = 10, 6
UNITS, UNIT = 3, 25_000_000  # elements of each
ROOMY = MemoryRecord(GB, allocated=20 * GB, reserved=30 * GB, alloc_retries=0, ooms=0, capacity=80 * GB)


@dataclass(frozen=True)
class Gpu:
    """Units whose gathers and computation come one after the other, ``slower`` on rank 1. Durations in ns; FLOPs a
    token that give the MFU, with 4096 tokens a step and rank."""

    forward: int = 10 * MS  # of a unit
    backward: int = 20 * MS
    gather: int = MS // 2
    reduce: int = MS // 2
    slower: int = 0
    recompute: bool = False
    memory: MemoryRecord = field(default_factory=lambda: ROOMY)
    mfu: float | None = None
    device: str = "NVIDIA H100 80GB HBM3"
    one_gpu: bool = False  # which both ranks use
    samples: tuple[tuple[int, tuple[str, ...]], ...] = ((1980, ()), (1980, ()))  # of each rank: SM clock, reasons
    trainer: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return MS + UNITS * (self.gather + self.forward + self.slower) + UNITS * (self.backward + self.reduce) + MS


def trace_of(plan: Gpu, rank: int) -> KinetoBuilder:
    built = KinetoBuilder(rank=rank)
    built.header["deviceProperties"] = [{"id": 0, "name": plan.device}]
    seq = 0

    def collective(op: str, arrival: int, meet: int, long: int, launch: int) -> int:
        nonlocal seq
        elements = UNIT * long // max(plan.gather, plan.reduce)  # all at one bandwidth
        args = nccl_args("_allgather_base" if op == "AllGather" else "_reduce_scatter_base", elements, seq)
        args |= {"In msg nelems" if op == "AllGather" else "Out msg nelems": elements // 2}
        seq += 1
        built.kernel(arrival, meet + long, f"ncclDevKernel_{op}_RING_LL", launch=launch, stream=20, **args)
        return meet + long

    for step in range(STEPS):
        begin = 10 * MS + step * plan.step
        built.step(FIRST + step, begin, begin + plan.step)
        built.range("diag.data", begin, begin + MS)
        built.range("diag.forward", begin + MS, begin + MS + 200 * US)
        backward = begin + MS + 200 * US
        built.range("diag.backward", backward, backward + 200 * US)
        built.op("autograd::engine::evaluate_function: MmBackward0", backward, backward + 190 * US, tid=AUTOGRAD)
        if plan.recompute:
            built.op("aten::linear", backward + 10 * US, backward + 30 * US, tid=AUTOGRAD)
            built.op("aten::relu", backward + 40 * US, backward + 60 * US, tid=AUTOGRAD)
        ready = all_ready = begin + MS  # this rank, and the later of the two
        for unit in range(UNITS):
            launch = begin + MS + (2 * unit + 1) * 10 * US
            done = collective("AllGather", ready, all_ready, plan.gather, launch)
            ready, all_ready = done + plan.forward + plan.slower * rank, done + plan.forward + plan.slower
            built.kernel(done, ready, launch=launch + 10 * US)
        for unit in range(UNITS):
            half = ready + plan.backward // 2
            built.kernel(ready, half, launch=backward + 20 * US + unit, tid=AUTOGRAD)
            built.kernel(half, ready + plan.backward, launch=backward + 100 * US + unit, tid=AUTOGRAD)
            wait = f"FSDP::post_backward_rs_wait (blocks.{unit})"
            built.range(wait, backward + 120 * US, backward + 121 * US, AUTOGRAD)
            ready, all_ready = ready + plan.backward, all_ready + plan.backward
            ready = all_ready = collective("ReduceScatter", ready, all_ready, plan.reduce, backward + (130 + unit) * US)
    return built


def run_of(folder: Path, plan: Gpu) -> Result:
    layout = RunLayout(folder)
    per_token = plan.mfu * 989e12 * plan.step / 1e9 / 4096 if plan.mfu is not None else None
    model = {"flops_per_token": per_token} if per_token is not None else {}
    manifest = Manifest("gpu", 0, world_size=2, backend="nccl", strategy="fsdp2", model=model, trainer=plan.trainer)
    replace_file(layout.manifest, encode(manifest))
    for rank in (0, 1):
        files = layout.rank(rank)
        identity = RankRecord(rank, rank, 2, f"node-{rank}", 1, "boot", BOOT_NS, BASE_NS, plan.device, rank)
        replace_file(files.identity, encode(replace(identity, device_uuid="GPU-a" if plan.one_gpu else f"GPU-{rank}")))
        records, samples = [], []
        for step in range(FIRST + STEPS):
            begin = BOOT_NS + 10 * MS + (step - FIRST) * plan.step
            phases = [PhaseRow("data", begin, begin + MS), PhaseRow("forward", begin + MS, begin + 2 * MS)]
            records.append(StepRecord(step, begin, begin + plan.step, phases, tokens=4096, memory=plan.memory))
            clock, reasons = plan.samples[rank]
            samples.append(DeviceRecord(begin + 1, sm_clock_mhz=clock, throttle_reasons=list(reasons)))
        files.steps.write_bytes(b"".join(encode(record) for record in records))
        files.device.write_bytes(b"".join(encode(sample) for sample in samples))
        files.collectives.write_bytes(encode(CollectiveLine(0, [], {"0": [0, 1]})))
        trace_of(plan, rank).write(files.folder, files.trace(FIRST).name.removesuffix(".gz"), compress=True)
    return open_run(folder)


def ids(result: Result) -> set[str]:
    return {finding.id for finding in result.examination.findings}


def test_a_healthy_run_of_gpus(tmp_path: Path) -> None:
    result = run_of(tmp_path, Gpu(mfu=0.4))
    assert (result.verdict.bottleneck, result.verdict.severity) == (Bottleneck.COMPUTE, Severity.HEALTHY)
    assert ids(result) == set()
    asked = {"throttled devices", "recomputation with free memory", "low MFU"}
    assert asked <= set(result.examination.not_found)


def test_a_backward_that_waits_for_the_reductions_of_earlier_units(tmp_path: Path) -> None:
    result = run_of(tmp_path, Gpu(reduce=15 * MS))
    assert (result.verdict.bottleneck, result.verdict.cause) == (Bottleneck.COMMUNICATION, "reduce-scatter-stall")
    finding = next(f for f in result.examination.findings if f.id == "reduce-scatter-stall")
    assert finding.cost_ns_per_step / MS == pytest.approx(2 * 15, abs=1), "the last one has nothing beside it"
    assert any("rs_wait" in evidence.filter for evidence in finding.evidence)
    assert "set_reduce_scatter_max_input_buffers(2)" in finding.action
    assert ids(result) == {"reduce-scatter-stall", "communication-not-overlapped"}


def test_gathers_that_nothing_prefetches_on_gpus(tmp_path: Path) -> None:
    """Two gathers wait for 10 ms of the unit before; the first one has none before it."""
    result = run_of(tmp_path, Gpu(gather=9 * MS, trainer={"prefetch": 0}))
    findings = {finding.id: finding for finding in result.examination.findings}
    assert findings["missing-prefetch"].cost_ns_per_step / MS == pytest.approx(2 * 9, abs=0.5)
    assert "gloo" not in findings["missing-prefetch"].action


@pytest.mark.parametrize(
    ("samples", "throttled"),
    [
        (((1980, ()), (1200, ("hardware thermal",))), True),
        (((1980, ()), (1980, ("software thermal",))), True),
        (((1980, ()), (1200, ())), True),
        (((1980, ("power cap",)), (1980, ("power cap",))), False),
        (((1200, ("hardware thermal",)), (1200, ("hardware thermal",))), False),
        (((1200, ("hardware thermal",)), (1980, ())), False),
    ],
    ids=["hot and slow", "hot", "slow", "capped", "all of them", "the other one"],
)
def test_a_throttled_device_is_why_a_rank_is_late(
    tmp_path: Path, samples: tuple[tuple[int, tuple[str, ...]], ...], throttled: bool
) -> None:
    result = run_of(tmp_path, Gpu(slower=15 * MS, samples=samples))
    assert result.verdict.culprit_ranks == (1,)
    assert result.verdict.cause == ("throttled-device" if throttled else "compute-straggler")
    assert ids(result) & {"throttled-device", "compute-straggler"} == {result.verdict.cause}
    if throttled:
        assert "node-1" in result.examination.findings[0].action


def test_recomputation_with_memory_to_spare(tmp_path: Path) -> None:
    """The first half of each unit's backward is launched by forward operators: 30 of 90 ms, in a step of 95."""
    (tmp_path / "a").mkdir()
    finding = next(f for f in run_of(tmp_path / "a", Gpu(recompute=True, mfu=0.4)).examination.findings)
    assert finding.id == "recompute-with-memory-free"
    assert finding.share == pytest.approx(30 / 95, abs=0.01)
    assert finding.bottleneck is None
    (tmp_path / "b").mkdir()
    full = run_of(tmp_path / "b", Gpu(recompute=True, mfu=0.4, memory=replace(ROOMY, reserved=60 * GB)))
    assert ids(full) == set()


@pytest.mark.parametrize("one_gpu", [True, False])
def test_memory_that_two_ranks_fill_together(tmp_path: Path, one_gpu: bool) -> None:
    """Each reserves 49 % of its GPU, which is one for both or another one."""
    half = replace(ROOMY, allocated=30 * GB, reserved=39 * GB)
    result = run_of(tmp_path, Gpu(recompute=True, mfu=0.4, memory=half, one_gpu=one_gpu))
    full = [finding for finding in result.examination.findings if finding.id == "near-out-of-memory"]
    assert headroom(result.tables) == (2 * GB if one_gpu else 41 * GB)
    assert ("recompute-with-memory-free" in ids(result)) != one_gpu
    if not one_gpu:
        assert full == []
        return
    assert full[0].title == "Device memory is nearly full on ranks 0, 1, which several ranks share"
    assert full[0].ranks == (0, 1)
    assert [item.value for item in full[0].evidence] == [round(39 / 80, 4)] * 2


@pytest.mark.parametrize(("mfu", "low"), [(0.12, True), (0.29, True), (0.31, False), (None, False)])
def test_low_use_of_the_device(tmp_path: Path, mfu: float | None, low: bool) -> None:
    result = run_of(tmp_path, Gpu(mfu=mfu))
    verdict = result.verdict
    assert verdict.bottleneck == Bottleneck.COMPUTE
    assert (verdict.cause, verdict.severity) == (("low-mfu", "warn") if low else ("", "healthy"))
    if low:
        assert f"{mfu:.0%}" in verdict.headline
        assert verdict.confidence <= 0.6
    if mfu is None:
        reasons = map(str, result.coverage.not_looked)
        assert any(r.startswith("low MFU: the manifest") for r in reasons)


def test_low_use_is_no_finding_of_its_own_where_something_removable_explains_it(tmp_path: Path) -> None:
    assert "low-mfu" not in ids(run_of(tmp_path, Gpu(mfu=0.1, slower=15 * MS)))


def test_an_unknown_device_has_no_reference(tmp_path: Path) -> None:
    result = run_of(tmp_path, Gpu(mfu=0.1, device="Test GPU"))
    assert result.verdict.severity == Severity.HEALTHY
    assert any("is not in the table" in reason for reason in map(str, result.coverage.not_looked))


def test_samples_that_are_missing_are_said(tmp_path: Path) -> None:
    run_of(tmp_path, Gpu(slower=15 * MS))
    for rank in (0, 1):
        record = DeviceRecord(1, unavailable="no NVIDIA driver")
        RunLayout(tmp_path).rank(rank).device.write_bytes(encode(record))
    result = open_run(tmp_path)
    assert result.verdict.cause == "compute-straggler"
    assert "throttled devices: no NVIDIA driver" in map(str, result.coverage.not_looked)
