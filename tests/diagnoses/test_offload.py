"""Copies of states that are kept on the host are told from copies of inputs, by where the host launched them; and
waiting for a host that fetches or updates them from waiting for one that launches late."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, analyze, open_run
from diag.collectors.records import Manifest
from diag.model.steps import Bottleneck, Detail, Kind
from tests.account.kineto_builder import KinetoBuilder
from tests.copies import replace

MS = 1_000_000
STEPS = 6
COMPUTE = 60 * MS
INPUT, NUMBER = 4 * MS, 3_000  # the batch; a loss that the host asks for


def analysed(folder: Path, fetch: int, bring: int, optimize: int, ranges: tuple[str, str]) -> Result:
    """One GPU rank. A step: inputs come, parameters are fetched, compute, gradients are brought to the host, and the
    optimizer there sends parameters back. Nothing runs beside a copy."""
    built, now = KinetoBuilder(rank=0, world_size=1), 10 * MS
    for step in range(STEPS):
        begin = now
        built.range("diag.data", now, now + MS)
        now += MS
        built.copy(now + 2_000, now + 2_000 + INPUT, launch=now + 1_000)
        now += 2_000 + INPUT
        built.range("diag.forward", now, now + fetch + COMPUTE // 2 + NUMBER + 30_000)
        if fetch:
            built.range(ranges[0], now, now + 10_000)
            built.copy(now + 10_000, now + 10_000 + fetch, launch=now + 5_000)
        now += 10_000 + fetch
        built.op("aten::mm", now, now + 5_000)
        built.kernel(now + 1_000, now + COMPUTE // 2, launch=now)
        now += COMPUTE // 2
        built.copy(now + 1_000, now + 1_000 + NUMBER, "DtoH", launch=now)
        now += 1_000 + NUMBER + 20_000
        built.range("diag.backward", now, now + COMPUTE // 2 + bring + 20_000)
        built.kernel(now + 1_000, now + COMPUTE // 2, launch=now)
        now += COMPUTE // 2
        if bring:
            built.range(ranges[1], now, now + 4_000)
            built.copy(now + 5_000, now + 5_000 + bring, "DtoH", launch=now + 1_000)
        now += bring + 20_000
        built.range("diag.optimizer", now, now + optimize + MS)
        if optimize:
            built.copy(now + 5_000, now + 5_000 + optimize, launch=now + 1_000)
        now += optimize + MS
        built.step(step, begin, now)
    built.write(folder, "rank0.json")
    return open_run(folder)


@pytest.mark.parametrize(
    ("ranges", "optimize"),
    [
        pytest.param(("FSDP::all_gather (layers.0)", "FSDP::post_backward_reduce (layers.0)"), 0, id="fsdp2"),
        pytest.param(
            ("FullyShardedDataParallel._pre_forward", "FullyShardedDataParallel._post_backward_hook"), 0, id="fsdp1"
        ),
    ],
)
def test_fsdp_keeps_its_states_on_the_host(tmp_path: Path, ranges: tuple[str, str], optimize: int) -> None:
    result = analysed(tmp_path, 10 * MS, 12 * MS, optimize, ranges)
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == 22 * MS
        assert step.segments.total(Kind.COPY) == 22 * MS + INPUT + NUMBER
    assert result.verdict.cause == "exposed-offload", result.verdict.headline
    assert result.verdict.bottleneck == Bottleneck.COMMUNICATION


def test_deepspeed_has_no_ranges_but_copies_in_its_backward_and_optimizer(tmp_path: Path) -> None:
    result = analysed(tmp_path, 0, 12 * MS, 10 * MS, ("", "aten::mm"))
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == 22 * MS
    assert result.verdict.cause == "exposed-offload", result.verdict.headline


def test_inputs_and_numbers_are_no_offload(tmp_path: Path) -> None:
    result = analysed(tmp_path, 0, 0, 0, ("", ""))
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == 0
        assert step.segments.total(Kind.COPY) == INPUT + NUMBER
    assert "exposed offload copies" in result.examination.not_found


def test_addresses_that_fsdp_copies_before_it_reduces_are_no_offload(tmp_path: Path) -> None:
    """fsdp::chunk_cat copies a list of addresses to the device, from pinned memory, before each reduce-scatter."""
    result = analysed(tmp_path, 30_000, 0, 0, ("FSDP::post_backward_reduce (layers.0)", ""))
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == step.segments.total(Kind.IDLE, Detail.OFFLOAD) == 0
    assert "exposed-offload" not in {finding.id for finding in result.examination.findings}


def test_inputs_that_fsdp_moves_are_inputs(tmp_path: Path) -> None:
    result = analysed(tmp_path, 22 * MS, 0, 0, ("FSDP::inputs_to_device", ""))
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == 0
    assert result.verdict.cause == "exposed-copy", result.verdict.headline
    assert result.verdict.bottleneck == Bottleneck.DATA


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ({}, "(pin_memory=True)"),
        ({"pin_memory": False}, "pin_memory=True), which is off"),
        ({"pin_memory": True}, "in pinned memory already"),
    ],
)
def test_where_inputs_are_copied_from(tmp_path: Path, loader: dict[str, bool], words: str) -> None:
    tables = analysed(tmp_path, 22 * MS, 0, 0, ("FSDP::inputs_to_device", "")).tables
    result = analyze(replace(tables, manifest=Manifest("run", 0, loader=loader)))
    (finding,) = [finding for finding in result.examination.findings if finding.id == "exposed-copy"]
    assert words in finding.action


@pytest.mark.parametrize(
    ("stream", "first", "offloaded"),
    [
        pytest.param(20, False, True, id="parameters beside the forward"),
        pytest.param(7, False, False, id="a mask on the forward's own stream"),
        pytest.param(20, True, False, id="inputs on DDP's side stream"),
    ],
)
def test_deepspeed_fetches_parameters_beside_its_forward(
    tmp_path: Path, stream: int, first: bool, offloaded: bool
) -> None:
    """The host reads for 20 ms before each copy of 10 ms."""
    built, now = KinetoBuilder(rank=0, world_size=1), 10 * MS
    for step in range(STEPS):
        begin = now
        built.range("diag.forward", now, now + COMPUTE + 29 * MS)
        if not first:
            built.kernel(now + 1_000, now + COMPUTE // 2, launch=now)
            now += COMPUTE // 2
        built.copy(now + 20 * MS, now + 30 * MS, launch=now + 20 * MS - 4_000, stream=stream)
        now += 30 * MS
        rest = COMPUTE if first else COMPUTE // 2
        built.kernel(now, now + rest, launch=now - 1_000)
        now += rest
        built.step(step, begin, now)
    built.write(tmp_path, "rank0.json")
    result = open_run(tmp_path)
    for step in result.attribution.rank_steps[1:]:
        assert step.segments.total(Kind.COPY, Detail.OFFLOAD) == offloaded * 10 * MS
        assert step.segments.total(Kind.IDLE, Detail.OFFLOAD) == offloaded * 20 * MS
    assert (result.verdict.cause == "exposed-offload") == offloaded, result.verdict.headline


@pytest.mark.parametrize("bring", [12 * MS, 0])
def test_a_host_that_updates_its_states_is_waited_for(tmp_path: Path, bring: int) -> None:
    """Only where gradients went there before: else the host is just slow in launching the optimizer."""
    built, now = KinetoBuilder(rank=0, world_size=1), 10 * MS
    for step in range(STEPS):
        begin = now
        built.range("diag.forward", now, now + COMPUTE // 2)
        built.kernel(now + 2_000, now + COMPUTE // 2, launch=now + 1_000)
        now += COMPUTE // 2
        built.range("diag.backward", now, now + COMPUTE // 2 + bring)
        built.kernel(now, now + COMPUTE // 2, launch=now - 1_000)
        now += COMPUTE // 2
        if bring:
            built.copy(now, now + bring, "DtoH", launch=now - 1_000, stream=24)
        now += bring
        built.range("Optimizer.step#AdamW.step", now, now + 30 * MS)
        built.op("aten::lerp_", now + MS, now + 20 * MS)
        now += 30 * MS
        built.step(step, begin, now)
    built.write(tmp_path, "rank0.json")
    result = open_run(tmp_path)
    waited = 30 * MS if bring else 0
    for step in result.attribution.rank_steps[1:-1]:
        assert step.segments.total(Kind.IDLE, Detail.OFFLOAD) == waited
    assert (result.verdict.cause == "exposed-offload") == bool(bring), result.verdict.headline
