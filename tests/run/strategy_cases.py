"""Every way of training with a fault that it must be blamed for: what test_every_strategy.py and the bench run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from diag.api import Result
from diag.model.steps import Bottleneck
from tests.busy import others_take_cores
from tests.trainer.launching import launch
from tests.trainer.ways import APART, COMMON, INTERLEAVED, ON_EIGHT, ON_FOUR, ON_TWO, Options

STEPS = 9
SCRIPT = str(Path(__file__).with_name("recorded_runs.py"))

LOADER, STRAGGLER, WIRE = "slow-loader", "straggler", "slow-wire"
# Milliseconds of a micro-batch, more than all else in it. With tensor parallelism two cores need long for every layer.
SLEEPS = {"tp": 250, "fsdp2 x tp": 500, "pp x fsdp2 x tp": 700, "pp, 1f1b": 80, "pp, gpipe": 80, "pp, interleaved": 150}


def planted(way: str, fault: str) -> str:
    own = OPTIONS[way]
    if fault == WIRE:
        often = own.get("micro_batches", 1) > 1 or own.get("tensor_parallel", 1) > 1
        return f"{WIRE}:ms=8,mbps=800" if often else f"{WIRE}:ms=20,mbps=400"
    rank = 1 if fault == LOADER else 0
    return f"{fault}:rank={rank},ms={SLEEPS.get(way, 200)}"


WAYS = {
    2: [
        "ddp",
        "zero1",
        "fsdp1",
        "fsdp1, shard_grad_op",
        "fsdp2",
        "deepspeed 1",
        "deepspeed 2",
        "deepspeed 3",
        "tp",
        "pp, 1f1b",
        "pp, gpipe",
        "pp, interleaved",
    ],
    4: ["hsdp", "fsdp1, hybrid", "fsdp2 x tp", "pp x ddp", "pp x fsdp2"],
    8: ["pp x fsdp2 x tp"],
}
# What else there is; the bench runs it, since these have the schedules of those above.
MORE = {
    2: [
        "ddp, static graph", "ddp, small buckets, copies", "ddp, unused parameters looked for", "zero1, bucket views",
        "fsdp1, whole model", "fsdp1, linear", "fsdp1, no_shard", "fsdp1, prefetch", "fsdp1, flat parameters",
        "fsdp2, offload", "fsdp2, prefetch", "fsdp2, kept", "fsdp2, checkpointing", "fsdp2, selective checkpointing",
        "fsdp2, accumulation", "fsdp2, compiled", "fsdp2, bf16", "deepspeed 2, overlap", "deepspeed 2, offload",
        "deepspeed 3, zero.Init", "deepspeed 3, offload",
    ],
    4: ["fsdp2, reshard to two", "pp x zero1"],
}  # fmt: skip
OPTIONS: dict[str, Options] = {**ON_TWO, **ON_FOUR, **ON_EIGHT, **INTERLEAVED, **APART}
FAULTS = (LOADER, STRAGGLER, WIRE)
# By which each of them may be reported, with its ranks.
FINDINGS: dict[str, set[tuple[object, ...]]] = {
    LOADER: {("slow-data-one-rank", 1)},
    STRAGGLER: {("compute-straggler", 0)},
    WIRE: {("slow-network",), ("exposed-communication",)},
}


def options_of(way: str, fault: str) -> Options:
    return {**COMMON, "steps": STEPS, "inject": [planted(way, fault)], **OPTIONS[way]}


def record(ranks: int, runs: Iterable[tuple[Path, str, str]], timeout: float) -> None:
    """Trains (run directory, way, fault) one after the other in one launch. AssertionError where that fails."""
    asked = [{"out": str(folder), "options": options_of(way, fault)} for folder, way, fault in runs]
    ended = launch([SCRIPT, json.dumps(asked)], ranks=ranks, collect=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-5000:]


def is_right(result: Result, fault: str) -> bool:
    """Whether the verdict is what was planted: the class, and the rank where there is one."""
    verdict = result.verdict
    ranks = list(verdict.culprit_ranks)
    if fault == WIRE:
        return verdict.bottleneck == Bottleneck.COMMUNICATION and not ranks
    if fault == LOADER:
        return verdict.bottleneck == Bottleneck.DATA and ranks == [1]
    return verdict.bottleneck == Bottleneck.COMPUTE and ranks == [0]


def is_found_on_a_busy_machine(result: Result, fault: str) -> bool:
    """Whether ranks wait for cores, rightly, and what was planted is a finding beside that."""
    findings = {(finding.id, *finding.ranks) for finding in result.examination.findings}
    return others_take_cores(str(name) for name, *_ in findings) and not FINDINGS[fault].isdisjoint(findings)
