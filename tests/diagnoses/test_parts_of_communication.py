"""Exposed communication with a cause of its own in one part: exactly that is found, and no nanosecond twice."""

from __future__ import annotations

import pytest

from diag.api import Result, analyze
from diag.collectors.records import BACKWARD, FORWARD, MemoryRecord
from diag.diagnoses.costs import Cost
from diag.model.steps import Bottleneck, Finding
from tests.copies import replace
from tests.simulate import MS, Plan, simulate

GB, MB = 1 << 30, 1_000_000
ROOMY = MemoryRecord(GB, allocated=20 * GB, reserved=30 * GB, alloc_retries=0, ooms=0, capacity=80 * GB)
FULL = replace(ROOMY, reserved=72 * GB)
QUICK = Plan(ranks=2, transfer_ns=MS // 10)

PREFETCH = replace(
    QUICK, wire=lambda op, phase, unit: 8 * MS if (op, phase) == ("all_gather", FORWARD) and unit else None
)
REGATHER = replace(
    QUICK,
    regather=True,
    memory=ROOMY,
    wire=lambda op, phase, unit: 9 * MS if (op, phase) == ("all_gather", BACKWARD) else None,
)
EVERY = replace(QUICK, micro_batches=4, wire=lambda op, phase, unit: 10 * MS if op == "reduce_scatter" else None)
BUCKETS = replace(
    QUICK,
    strategy="ddp",
    sizes=lambda op, unit: 20 * MB if unit == 2 else MB,
    wire=lambda op, phase, unit: 20 * MS if (phase, unit) == (BACKWARD, 2) else None,
)
ZERO = replace(
    QUICK,
    strategy="zero2",
    units=6,
    wire=lambda op, phase, unit: 8 * MS if op == "reduce_scatter" and unit < 5 else None,
)
SLOW_GATHERS = replace(
    QUICK,
    unit_bytes=64 * MB,
    wire=lambda op, phase, unit: 40 * MS if op == "all_gather" else 10 * MS if op == "reduce_scatter" else None,
)
PLANTED = {
    "missing-prefetch": PREFETCH,
    "regather-in-backward": REGATHER,
    "sync-every-micro-step": EVERY,
    "ddp-buckets": BUCKETS,
    "zero-buckets": ZERO,
    "low-bus-bandwidth": SLOW_GATHERS,
}
OF_COMMUNICATION = {*PLANTED, "reduce-scatter-stall", "communication-not-overlapped", "exposed-communication"}


def found(plan: Plan) -> tuple[Result, dict[str, Finding]]:
    result = analyze(simulate(plan))
    return result, {f.id: f for f in result.examination.findings if f.id in OF_COMMUNICATION}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_planted_is_the_cause_and_nothing_else(name: str, ranks: int) -> None:
    result, findings = found(replace(PLANTED[name], ranks=ranks))
    verdict = result.verdict
    assert (verdict.bottleneck, verdict.cause) == (Bottleneck.COMMUNICATION, name)
    assert verdict.culprit_ranks == ()
    assert set(findings) <= {name, "communication-not-overlapped"}, "what is left over stays with its parent"
    assert findings[name].action
    assert all(evidence.value > 0 for evidence in findings[name].evidence)


@pytest.mark.parametrize("name", PLANTED)
def test_no_nanosecond_is_told_twice(name: str) -> None:
    result, findings = found(PLANTED[name])
    whole = result.examination.shares.share(Cost.COMM)
    told = sum(finding.share for finding in findings.values())
    assert told <= whole + 1e-9
    assert told > whole - 0.05, "what is not told is not worth mentioning"


def test_the_cost_is_what_was_planted() -> None:
    """Two of three gathers, 8 ms each; 10 ms are computed before each of them."""
    finding = found(PREFETCH)[1]["missing-prefetch"]
    assert finding.cost_ns_per_step / MS == pytest.approx(16, abs=0.5)
    finding = found(EVERY)[1]["sync-every-micro-step"]
    assert finding.cost_ns_per_step / MS == pytest.approx(3 * 3 * 10, abs=2), "of four micro-batches' three reductions"
    finding = found(SLOW_GATHERS)[1]["low-bus-bandwidth"]
    assert finding.cost_ns_per_step / MS == pytest.approx(3 * 40 * 0.875, abs=3), "an eighth of what reductions reach"


@pytest.mark.parametrize(
    ("strategy", "say"),
    [
        ("fsdp2", "set_requires_gradient_sync(False)"),
        ("fsdp1", "no_sync()"),
        ("zero1", "no_sync()"),
        ("ddp", "no_sync()"),
        ("deepspeed-zero1", "gradient_accumulation_steps"),
        ("deepspeed-zero2", "fewer and larger micro-batches"),
        ("deepspeed-zero3", "fewer and larger micro-batches"),
    ],
)
def test_what_to_do_about_reductions_is_said_in_the_strategys_own_words(strategy: str, say: str) -> None:
    tables = simulate(EVERY)
    assert tables.manifest is not None
    result = analyze(replace(tables, manifest=replace(tables.manifest, strategy=strategy)))
    (finding,) = (f for f in result.examination.findings if f.id == "sync-every-micro-step")
    assert say in finding.action
    advised = "sync-last-micro-batch" in {advice.id for advice in result.advice}
    assert advised == (strategy not in ("deepspeed-zero2", "deepspeed-zero3"))


def test_only_what_the_unit_before_could_hide_is_charged_to_prefetching() -> None:
    long = replace(QUICK, wire=lambda op, phase, unit: 25 * MS if (op, phase) == ("all_gather", FORWARD) else None)
    findings = found(long)[1]
    assert findings["missing-prefetch"].cost_ns_per_step / MS == pytest.approx(2 * 10, abs=0.5)
    assert findings["communication-not-overlapped"].cost_ns_per_step / MS == pytest.approx(25 + 2 * 15, abs=1.5)


def test_gathers_again_are_no_fault_without_memory_to_keep_them() -> None:
    assert set(found(replace(REGATHER, memory=FULL))[1]) == {"communication-not-overlapped"}
    result, findings = found(replace(REGATHER, memory=None))
    assert set(findings) == {"communication-not-overlapped"}
    assert any(
        r.startswith("all-gathers in the backward: no device memory") for r in map(str, result.coverage.not_looked)
    )


def test_reductions_in_the_last_micro_batch_only_are_as_they_should_be() -> None:
    assert set(found(replace(EVERY, reduce_every=False, units=6))[1]) == {"communication-not-overlapped"}
    assert "sync-every-micro-step" not in found(replace(EVERY, micro_batches=1))[1]


def test_many_small_buckets() -> None:
    many = replace(
        QUICK,
        strategy="ddp",
        units=70,
        unit_ns=MS // 2,
        transfer_ns=MS // 2,
        sizes=lambda op, unit: 70_000 if unit % 2 else 80_000,
    )
    result, findings = found(many)
    assert result.verdict.cause == "ddp-buckets"
    assert set(findings) == {"ddp-buckets"}
    assert "bucket_cap_mb" in findings["ddp-buckets"].action
    assert analyze(simulate(replace(many, strategy="fsdp2"))).verdict.cause == "latency-bound-collectives"


def test_zero_3_that_gathers_each_expert_by_itself() -> None:
    many = replace(
        QUICK,
        strategy="fsdp2",
        units=70,
        unit_ns=MS // 2,
        transfer_ns=MS // 2,
        sizes=lambda op, unit: 70_000 if unit % 2 else 80_000,
    )
    tables = simulate(many)
    assert tables.manifest is not None
    by_deepspeed = replace(tables, manifest=replace(tables.manifest, strategy="deepspeed-zero3"))
    (finding,) = [one for one in analyze(by_deepspeed).examination.findings if one.id == "many-small-modules"]
    assert "set_z3_leaf_modules" in finding.action
    assert analyze(tables).verdict.cause == "latency-bound-collectives"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["pretrain_gpt.py", "--micro-batch-size", "1", "--use-distributed-optimizer"], "--overlap-grad-reduce"),
        (
            ["pretrain.py", "model.micro_batch_size=1", "model.tensor_model_parallel_size=1"],
            "model.optim.overlap_grad_sync=True",
        ),
        (["pretrain_gpt.py", "--micro-batch-size", "1", "--overlap-grad-reduce"], "larger --micro-batch-size"),
    ],
)
def test_advice_in_the_names_of_the_program_that_trains(command: list[str], words: str) -> None:
    tables = simulate(replace(EVERY, reduce_every=False, units=6))
    assert tables.manifest is not None
    manifest = replace(tables.manifest, strategy="none", collector={"attached": {"command": ["python", *command]}})
    findings = {one.id: one for one in analyze(replace(tables, manifest=manifest)).examination.findings}
    assert words in findings["communication-not-overlapped"].action


def test_one_bucket_of_zero_is_told_from_none_that_overlaps() -> None:
    assert "overlap_comm" in found(ZERO)[1]["zero-buckets"].action
    one = replace(ZERO, units=1, wire=lambda op, phase, unit: 8 * MS if op == "reduce_scatter" else None)
    result, findings = found(one)
    assert result.verdict.cause == "zero-buckets", "not one FSDP unit: nothing is gathered for the forward"
    assert "smaller" in findings["zero-buckets"].action
    many = replace(
        QUICK,
        strategy="zero2",
        units=70,
        unit_ns=MS // 2,
        transfer_ns=MS // 2,
        sizes=lambda op, unit: 70_000 if unit % 2 else 80_000,
    )
    assert "reduce_bucket_size" in found(many)[1]["zero-buckets"].action


def test_equal_buckets_are_no_finding() -> None:
    even = replace(BUCKETS, sizes=lambda op, unit: 7 * MB)
    assert "ddp-buckets" not in found(even)[1]


@pytest.mark.parametrize(
    "plan", [Plan(), Plan(strategy="ddp"), Plan(micro_batches=3), Plan(regather=True, memory=ROOMY)]
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_healthy_runs_stay_healthy(plan: Plan, ranks: int) -> None:
    result, findings = found(replace(plan, ranks=ranks))
    assert (result.verdict.severity, result.verdict.cause, findings) == ("healthy", "", {})


def test_one_cause_for_all_of_it_comes_first() -> None:
    """On a network that is slow at anything no part of it is looked at."""
    result, findings = found(replace(PREFETCH, transfer_ns=20 * MS))
    assert result.verdict.cause == "slow-network"
    assert findings == {}


@pytest.mark.parametrize(("strategy", "say"), [("ddp", "smaller buckets"), ("none", "DistributedDataParallel")])
def test_reductions_after_the_backward_that_the_script_itself_calls(strategy: str, say: str) -> None:
    """As of a script that sums its gradients with all_reduce."""
    plan = replace(
        QUICK, strategy="ddp", unit_bytes=64 * MB, wire=lambda op, phase, unit: 10 * MS if phase == BACKWARD else None
    )
    tables = simulate(plan)
    assert tables.manifest is not None
    result = analyze(replace(tables, manifest=replace(tables.manifest, strategy=strategy)))
    (finding,) = (f for f in result.examination.findings if f.id == "communication-not-overlapped")
    assert say in finding.action
