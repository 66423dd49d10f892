"""The sentence and the differences behind a verdict hold the planted numbers."""

import re

import numpy as np
import pytest

from diag.account.blame import median_of_others
from diag.api import analyze
from diag.collectors.records import FORWARD
from diag.diagnoses.compare import differences, path_sentence
from diag.model.steps import Kind
from tests.simulate import MS, Plan, simulate


def test_the_slow_rank_sticks_out_by_what_it_does_more_of() -> None:
    result = analyze(simulate(Plan(ranks=4, extra=lambda step, rank: {FORWARD: 30 * MS} if rank == 2 else {})))
    found = differences(result.attribution, {2: "node2"})
    assert [each.rank for each in found] == [0, 1, 2, 3]
    assert found[2].host == "node2"
    assert found[2].more_ns[Kind.COMPUTE] == pytest.approx(30 * MS, rel=0.1)
    assert all(abs(each.total_ns) < 3 * MS for each in found if each.rank != 2)


def test_one_rank_differs_from_nobody() -> None:
    (only,) = differences(analyze(simulate(Plan(ranks=1))).attribution, {})
    assert set(only.more_ns.values()) == {0}


def test_the_sentence_adds_up_to_the_step() -> None:
    result = analyze(simulate(Plan(ranks=3, data_ns=80 * MS)))
    sentence = path_sentence(result.attribution, result.examination.shares)
    told = sum(float(number) for number in re.findall(r"([\d.]+) ms of", sentence))
    steps = result.attribution.usable
    mean = sum(step.path.dur_ns for step in steps) / len(steps) / MS
    assert told == pytest.approx(mean, rel=0.03)
    assert "data wait" in sentence


def test_the_rank_that_has_most_of_a_kind_is_named() -> None:
    slow = analyze(simulate(Plan(ranks=3, extra=lambda step, rank: {FORWARD: 90 * MS} if rank == 1 else {})))
    sentence = path_sentence(slow.attribution, slow.examination.shares)
    assert re.search(r"of compute \(\d+% of it on rank 1\)", sentence)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_the_median_of_the_others(ranks: int) -> None:
    values = np.random.default_rng(ranks).integers(0, 100, size=(ranks, 5)) * 2
    found = median_of_others(values)
    for i in range(ranks):
        assert (found[i] == np.median(np.delete(values, i, axis=0), axis=0).astype(np.int64)).all()
