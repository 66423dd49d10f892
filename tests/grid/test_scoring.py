"""How the grid decides what is right, and how it counts."""

from __future__ import annotations

import pytest

from tests.bench.grid.cases import TRACE_ROWS, Replayed, Said, Scored, case_ids
from tests.bench.grid.gpu.rows import HALVES
from tests.bench.grid.markdown import document
from tests.bench.grid.misjudged import why
from tests.bench.grid.record_rows import RECORD_ROWS
from tests.bench.grid.report import detection, macro_f1, replays, summary, table, wilson, wrong
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
    said: str,
    cause: str = "",
    culprits: tuple[int, ...] = (),
    truth: Truth | None = None,
    confidence: float = 0.8,
    replay: Replayed | None = None,
) -> Scored:
    truth = truth or truth_of(costs(0.3, 0.02), 0.3)
    answer = Said(said, cause, culprits, confidence, 0.3, "as it is", (cause,) if cause else ())
    return Scored("tuning/D2-data-one/0", 0.3, True, truth, answer, "a job", replay or Replayed(0.01))


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


def test_a_fault_is_found_by_its_cause_and_warned_of_by_the_verdict() -> None:
    edge = truth_of(costs(0.105, 0.02), 0.105)
    mentioned = scored("healthy", "slow-data-one-rank", truth=edge)
    missed = scored("communication", "exposed-communication", truth=edge)
    warned, found = detection([mentioned, missed], 0.10, 0.12)
    assert (warned, found) == ([False, True], [True, False])
    assert detection([mentioned], 0.12, 0.2) == ([], [])


def test_replays_that_were_refused_are_no_error_of_zero() -> None:
    errors, refused = replays([scored("data"), scored("data", replay=Replayed(refused="one rank"))])
    assert errors == [0.01]
    assert refused == {"one rank": 1}


def test_the_document_lists_each_wrong_answer_with_the_kind_of_the_error() -> None:
    right, rank = scored("data", "slow-data-one-rank", (2,)), scored("data", "slow-data-one-rank", (1,))
    assert why(rank) == "other ranks named"
    assert why(scored("data", "slow-data-one-rank")) == "no rank named"
    assert why(scored("healthy")) == "another class"
    assert "threshold" in why(scored("healthy", truth=truth_of(costs(0.125, 0.02), 0.125)))
    text = document([right, rank], ["tuning", "heldout"], 0)
    assert "| class, cause and rank, first answer | 1 | 2 | 50.0% |" in text
    assert "expected data slow-data-one-rank of rank 2; said data slow-data-one-rank of rank 1" in text
    assert "Held-out" not in text.split("## ", 1)[1], "there are no such cases"
    assert document([right], ["tuning"], 0).rstrip().endswith("None.")


def test_the_halves_share_nothing() -> None:
    one, other = HALVES.values()
    for name in ("blocks", "dims", "worlds", "block_ms", "shares"):
        assert not set(getattr(one, name)) & set(getattr(other, name)), name
    ids = case_ids(tuple(HALVES), (), 3)
    assert len(ids) == len(set(ids)) == 2 * 3 * (len(TRACE_ROWS) + len(RECORD_ROWS))
