"""Budgets held against runs of which everything is known: kept, exceeded, too close, or not known, never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from diag.api import Result, analyze
from diag.collectors.records import MemoryRecord
from diag.errors import ExitCode
from diag.gate.budgets import BY_NAME, QUANTITIES, Budget, parse_limit
from diag.gate.check import MEANINGS, Checked, Gate, Status, check
from diag.serve.server import SAMPLES
from tests.command import diag
from tests.copies import replace
from tests.simulate import MS, Plan, simulate, without_rank

GB = 10**9
STEP_NS = 99 * MS + MS // 2  # of an unchanged plan: 1 + 3 x 10 + 3 x 20 + 5, and seven transfers of half a millisecond


def run(**plan: Any) -> Result:
    return analyze(simulate(Plan(**plan)))


def budget(name: str, written: str) -> Budget:
    return parse_limit(BY_NAME[name], written)


def one(result: Result, name: str, written: str, baseline: Result | None = None) -> Checked:
    (checked,) = check(result, [budget(name, written)], baseline).checked
    return checked


def test_the_plan_is_as_this_file_thinks() -> None:
    assert {step.dur_ns for step in run(jitter=0).attribution.usable} == {STEP_NS}


@pytest.mark.parametrize(
    ("written", "status"),
    [("99ms", Status.EXCEEDED), ("99.4999ms", Status.EXCEEDED), ("99.5ms", Status.KEPT), ("0.1s", Status.KEPT)],
)
def test_without_noise_the_limit_is_sharp(written: str, status: Status) -> None:
    assert one(run(jitter=0), "max-step", written).status is status


def test_near_the_limit_noise_is_told_from_excess() -> None:
    noisy = run(jitter=0.1)
    found = one(noisy, "max-step", "1s").interval
    assert found is not None
    assert found.low < found.likely < found.high
    statuses = [
        one(noisy, "max-step", f"{at:.0f}ns").status
        for at in (found.low - 1, found.low + 1, found.likely, found.high - 1, found.high + 1)
    ]
    assert statuses == [Status.EXCEEDED, Status.NOISE, Status.NOISE, Status.NOISE, Status.KEPT]


def test_floors_are_the_other_way_round() -> None:
    result = run(jitter=0)  # 2 ranks of 512 tokens in 99.5 ms
    found = one(result, "min-tokens-per-second", "10k")
    assert found.status is Status.KEPT
    assert found.interval is not None
    assert found.interval.likely == pytest.approx(1024 / 0.0995)
    assert one(result, "min-tokens-per-second", "10500").status is Status.EXCEEDED


@pytest.mark.parametrize(
    ("name", "plan", "share"),
    [
        ("max-data-wait", {"data_ns": 20 * MS}, 20 / 118.5),
        ("max-exposed-comm", {"transfer_ns": 4 * MS}, 28 / 124),
        ("max-checkpoint", {"extra": lambda step, rank: {"checkpoint": 20 * MS}}, 20 / 119.5),
        ("max-straggler", {"extra": lambda step, rank: {"forward": 20 * MS} if rank else {}}, 20 / 119.5),
    ],
)
def test_each_share_is_what_was_planted(name: str, plan: dict[str, Any], share: float) -> None:
    result = run(jitter=0, **plan)
    found = one(result, name, "100%").interval
    assert found is not None
    assert found.likely == pytest.approx(share, rel=0.01)
    assert one(result, name, f"{100 * share + 1:.2f}%").status is Status.KEPT
    assert one(result, name, f"{100 * share - 1:.2f}%").status is Status.EXCEEDED


def test_peak_memory_is_the_fullest_rank_s() -> None:
    memory = MemoryRecord(rss=GB, allocated=60 * GB, reserved=70 * GB)
    result = run(memory=memory)
    assert one(result, "max-peak-memory", "70GB").status is Status.KEPT
    assert one(result, "max-peak-memory", "64GiB").status is Status.EXCEEDED


def test_a_rank_without_memory_may_be_the_fullest() -> None:
    tables = simulate(Plan())
    own = tables.ranks[1]
    silent = replace(own, steps=tuple(replace(step, memory=None) for step in own.steps))
    result = analyze(replace(tables, ranks={**tables.ranks, 1: silent}))
    assert one(result, "max-peak-memory", "2GB").status is Status.UNKNOWN
    assert one(result, "max-peak-memory", "1MB").status is Status.EXCEEDED


def test_a_regression_is_measured_from_the_baseline() -> None:
    before, after = run(jitter=0), run(jitter=0, data_ns=11 * MS)  # 10 of 99.5 ms longer
    assert one(after, "max-regression", "10%", before).status is Status.EXCEEDED
    assert one(after, "max-regression", "10.1%", before).status is Status.KEPT
    assert one(before, "max-regression", "0%", after).status is Status.KEPT
    assert "not comparable" in one(run(ranks=4), "max-regression", "10%", before).reason


def test_two_runs_alike_seldom_surely_regress() -> None:
    """The interval's two ends are each left by one in forty."""
    pairs = [(run(seed=2 * at, jitter=0.05), run(seed=2 * at + 1, jitter=0.05)) for at in range(15)]
    failed = [one(after, "max-regression", "0%", before).status is Status.EXCEEDED for before, after in pairs]
    assert sum(failed) <= 3


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
def test_what_cannot_be_known_is_never_passed(quantity: Any) -> None:
    """A missing rank may be the slow one, the one that waits, or the one that runs out of memory."""
    tables = without_rank(simulate(Plan(ranks=4)), 2)
    generous = {"SHARE": "1%" if quantity.is_floor else "900%", "TIME": "9s", "BYTES": "9TB", "RATE": "1"}
    asked = parse_limit(quantity, generous[quantity.unit.value])
    gate = check(analyze(tables), [asked], analyze(tables))
    assert gate.checked[0].status is Status.UNKNOWN
    assert gate.checked[0].reason
    assert gate.exit_code is ExitCode.DATA_INCOMPLETE


def test_few_steps_decide_nothing() -> None:
    assert "only" in one(run(steps=5), "max-step", "1s").reason


def test_mfu_of_a_cpu_is_not_known() -> None:
    assert one(run(), "min-mfu", "1%").reason == "the run is on a CPU"


def test_excess_decides_over_what_is_not_known() -> None:
    asked = [budget("min-mfu", "35%"), budget("max-step", "1ms"), budget("max-data-wait", "50%")]
    gate = check(run(), asked)
    assert [found.status for found in gate.checked] == [Status.UNKNOWN, Status.EXCEEDED, Status.KEPT]
    assert gate.exit_code is ExitCode.GATE_EXCEEDED


def test_noise_fails_only_when_it_shall() -> None:
    noisy = run(jitter=0.1)
    likely = one(noisy, "max-step", "1s").interval
    assert likely is not None
    asked = [budget("max-step", f"{likely.likely:.0f}ns")]
    assert check(noisy, asked).exit_code is ExitCode.OK
    assert check(noisy, asked, strict=True).exit_code is ExitCode.GATE_EXCEEDED
    assert Gate(()).exit_code is ExitCode.OK


@pytest.mark.parametrize(("limit", "legend"), [("10s", []), ("1ms", ["Exceeded"])])
def test_only_a_status_that_occurs_is_explained(limit: str, legend: list[str]) -> None:
    said = diag("check", SAMPLES / "fsdp2-slow-loader-rank1", "--max-step", limit).stdout
    explained = [
        meaning.partition(":")[0]
        for meaning in MEANINGS.values()
        if meaning.partition(".")[0] in " ".join(said.split())
    ]
    assert explained == legend
