"""How the grid decides what is right, and how it counts."""

from __future__ import annotations

import pytest

from tests.bench.grid.cases import Said, Scored, case_ids
from tests.bench.grid.gpu.rows import GPU_ROWS, HALVES
from tests.bench.grid.record_rows import RECORD_ROWS
from tests.bench.grid.report import macro_f1, summary, table, wilson, wrong
from tests.bench.grid.truth import Answer, Cost, Truth, truth_of

SLOW = frozenset({"slow-data-one-rank"})
WIRE = frozenset({"exposed-communication"})


def costs(data: float, wire: float) -> list[Cost]:
    return [Cost("data", data, SLOW, ((2,),)), Cost("communication", wire, WIRE)]


@pytest.mark.parametrize(
    ("data", "wire", "right"),
    [
        (0.05, 0.03, ["healthy"]),
        (0.30, 0.03, ["data"]),
        (0.03, 0.30, ["communication"]),
        (0.095, 0.01, ["healthy", "data"]),  # on the edge both are right
        (0.105, 0.01, ["data", "healthy"]),
        (0.30, 0.29, ["mixed"]),
        (0.30, 0.26, ["mixed", "data"]),
        (0.30, 0.24, ["data", "mixed"]),
        (0.30, 0.20, ["data"]),
    ],
)
def test_which_classes_are_right(data: float, wire: float, right: list[str]) -> None:
    assert [answer.bottleneck for answer in truth_of(costs(data, wire), data).right] == right


def test_costs_of_one_class_add_up_and_the_largest_is_the_cause() -> None:
    truth = truth_of(
        [Cost("compute", 0.07, frozenset({"gc-pause"}), ((1,),)), Cost("compute", 0.20, frozenset({"launch-bound"}))],
        0.2,
    )
    assert truth.right == (Answer("compute", frozenset({"launch-bound"}), ((),)),)


def scored(
    said: str, cause: str = "", culprits: tuple[int, ...] = (), truth: Truth | None = None, confidence: float = 0.8
) -> Scored:
    truth = truth or truth_of(costs(0.3, 0.02), 0.3)
    return Scored(
        "tuning/D2-data-one/0", 0.3, True, truth, Said(said, cause, culprits, confidence, 0.3, "as it is"), "a job"
    )


def test_verdict_cause_and_rank_are_three_questions() -> None:
    right = scored("data", "slow-data-one-rank", (2,))
    assert (right.verdict_right, right.cause_right, right.first_right) == (True, True, True)
    rank = scored("data", "slow-data-one-rank", (1,))
    assert (rank.verdict_right, rank.cause_right, rank.first_right) == (True, True, False)
    cause = scored("data", "slow-data-all-ranks")
    assert (cause.verdict_right, cause.cause_right, cause.first_right) == (True, False, False)
    assert not scored("healthy").verdict_right


def test_abstaining_is_right_only_where_nobody_can_tell() -> None:
    blind = truth_of(costs(0.3, 0.02), 0.3, abstain=True)
    assert scored("communication", "exposed-communication", truth=blind, confidence=0.5).first_right
    assert scored("undetermined", truth=blind).first_right
    assert not scored("communication", "exposed-communication", truth=blind, confidence=0.9).verdict_right
    assert not scored("communication", "exposed-communication", (1,), truth=blind, confidence=0.5).verdict_right
    assert not scored("undetermined").verdict_right


def test_a_false_alarm_is_one_about_nothing() -> None:
    healthy = truth_of(costs(0.04, 0.03), 0.04)
    assert scored("data", "slow-data-all-ranks", truth=healthy).false_alarm
    assert not scored("healthy", truth=healthy).false_alarm
    assert not scored("communication").false_alarm, "wrong, but something is"


def test_the_numbers() -> None:
    cases = [scored("data", "slow-data-one-rank", (2,)), scored("healthy"), scored("data", "slow-data-one-rank", (0,))]
    numbers = summary(cases)
    assert (numbers["verdict"]["right"], numbers["rank_and_cause"]["right"]) == (2, 1)  # type: ignore[index]
    assert macro_f1(cases) == pytest.approx(0.8), "two of three data-bound runs found, nothing else called so"
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert "D2-data-one" in table(cases)
    assert wrong(cases).count("expected data slow-data-one-rank [2]") == 2


def test_the_halves_share_nothing() -> None:
    one, other = HALVES.values()
    for name in ("blocks", "dims", "worlds", "block_ms", "shares"):
        assert not set(getattr(one, name)) & set(getattr(other, name)), name
    ids = case_ids(tuple(HALVES), (), 3)
    assert len(ids) == len(set(ids)) == 2 * 3 * (len(GPU_ROWS) + len(RECORD_ROWS))
