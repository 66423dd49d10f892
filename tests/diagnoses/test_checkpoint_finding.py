"""What is said of checkpoints that stop a training: how large, how fast, in the background or not, and what helps."""

from __future__ import annotations

import pytest

from diag.api import analyze
from diag.collectors.records import CHECKPOINT, CheckpointRecord
from diag.model.steps import Finding
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

STALL = Plan(extra=lambda step, rank: {CHECKPOINT: 300 * MS} if step % 4 == 3 else {})
SAVED = CheckpointRecord(3, start_ns=1, blocking_ns=300 * MS, bytes=30_000_000)
ASYNC = replace(SAVED, asynchronous=True, background_ns=600 * MS)


def found(*records: CheckpointRecord, plan: Plan = STALL) -> Finding:
    """The finding on a run of which every rank left these records."""
    tables = simulate(plan)
    ranks = {rank: replace(own, checkpoints=records) for rank, own in tables.ranks.items()}
    findings = analyze(replace(tables, ranks=ranks)).examination.findings
    (finding,) = [finding for finding in findings if finding.id == "checkpoint-stall"]
    return finding


def evidence(finding: Finding) -> dict[str, tuple[float, str]]:
    return {e.filter: (e.value, e.unit) for e in finding.evidence if e.table == "checkpoints"}


def test_one_in_the_foreground_has_a_size_and_a_speed() -> None:
    assert evidence(found(SAVED, replace(SAVED, step=7))) == {
        "size of a checkpoint, all ranks": (60.0, "MB"),
        "write bandwidth": (200.0, "MB/s"),
        "training blocked": (300.0, "ms"),
    }


def test_the_slowest_rank_sets_the_speed() -> None:
    assert evidence(found(SAVED, replace(SAVED, blocking_ns=600 * MS)))["write bandwidth"] == (
        pytest.approx(120e6 / 0.6 / 1e6), "MB/s",
    )  # fmt: skip


def test_in_the_background_the_two_parts_are_apart() -> None:
    waiting = replace(ASYNC, waited_ns=100 * MS)
    assert evidence(found(waiting)) == {
        "size of a checkpoint, all ranks": (60.0, "MB"),
        "write bandwidth": (100.0, "MB/s"),
        "training blocked": (300.0, "ms"),
        "training blocked by the previous checkpoint": (100.0, "ms"),
        "background write time": (600.0, "ms"),
    }


def test_one_that_failed_is_no_measure() -> None:
    assert evidence(found(replace(SAVED, failed="rank 1: OSError", bytes=0), replace(SAVED, step=7))) == evidence(
        found(SAVED)
    )


@pytest.mark.parametrize(
    ("records", "strategy", "action"),
    [
        ((), "fsdp2", "Save asynchronously (torch.distributed"),
        ((SAVED,), "fsdp2", "--checkpoint-async"),
        ((SAVED,), "deepspeed-zero2", "DeepSpeed's engine saves in the foreground"),
        ((ASYNC,), "fsdp2", "only copying the state blocks"),
        ((replace(ASYNC, waited_ns=200 * MS),), "fsdp2", "still being written when the next one was due"),
    ],
    ids=["not recorded", "foreground", "deepspeed", "copying", "slow disk"],
)
def test_the_advice_is_for_what_the_stop_was_made_of(
    records: tuple[CheckpointRecord, ...], strategy: str, action: str
) -> None:
    finding = found(*records, plan=replace(STALL, strategy=strategy))
    assert ("asynchronously" in finding.action) == (strategy == "fsdp2" and not any(r.asynchronous for r in records))
    assert action in finding.action
