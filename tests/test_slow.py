"""What ``make test-fast`` leaves out is chosen by what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.costs import OF_WALL_THAT_WAITS, WAITS_S, Row, renewed
from tests.slow import BUDGET_S, CHEAP_S, COSTS, LIST, NAMES, OTHERS, Cost, left_out, read

HERE = Path(__file__).parent.parent


def _test(name: str, cpu_s: float, wall_s: float = 0.0) -> Row:
    return Row("test", name, cpu_s, wall_s)


def test_every_test_of_the_list_is_there() -> None:
    gone = []
    for cost in COSTS:
        file, _, function = cost.name.partition("::")
        path = HERE / file
        if cost.name != OTHERS and not (
            path.is_file() and re.search(rf"\bdef {function.rpartition('::')[2]}\b", path.read_text())
        ):
            gone.append(cost.name)
    assert not gone, f"{LIST.name} names tests that are gone: remove their lines"
    assert LIST.read_text() == "".join(sorted((cost.line for cost in COSTS), key=lambda line: line.split()[4]))


def test_the_cheapest_fill_a_minute_of_two_cores() -> None:
    run = [cost for cost in COSTS if cost.name not in NAMES]
    assert NAMES
    assert sum(cost.mean_s * cost.count for cost in run) <= BUDGET_S
    dearest = max(cost.mean_s for cost in run)
    assert all(cost.mean_s >= dearest for cost in COSTS if cost.name in NAMES)


@pytest.mark.parametrize(("budget_s", "names"), [(1.0, {"b", "c"}), (5.0, {"c"}), (100.0, set())])
def test_the_dearest_are_left_out(budget_s: float, names: set[str]) -> None:
    costs = [Cost(3.0, 2, "c"), Cost(0.1, 5, "a"), Cost(1.0, 4, "b"), Cost(0.01, 9, OTHERS)]
    assert left_out(costs, budget_s) == names


def test_a_test_costs_the_mean_of_its_parameters() -> None:
    rows = [_test("a::one[x]", 0.3), _test("a::one[y]", 0.1), _test("a::two", CHEAP_S / 2)]
    one, others = renewed(rows, [])
    assert (round(one.mean_s, 9), *one[1:]) == (0.2, 2, "a::one")
    assert others == (CHEAP_S / 2, 1, OTHERS)


def test_it_costs_more_if_it_waits() -> None:
    (waits, _), (runs, _) = (renewed([_test("a::one", 0.5, wall_s)], []) for wall_s in (WAITS_S * 10, WAITS_S))
    assert waits.mean_s == WAITS_S * 10 * OF_WALL_THAT_WAITS
    assert runs.mean_s == 0.5  # which a busy machine may be


def test_what_was_measured_again_and_what_was_not() -> None:
    before = [Cost(0.9, 1, "a::one"), Cost(0.9, 1, "a::two"), Cost(0.001, 50, OTHERS)]
    assert renewed([_test("a::one", 0.1)], before) == [Cost(0.1, 1, "a::one"), *before[1:]]
    twice = [_test("a::one", 0.5), _test("a::one", 0.1)]
    assert renewed(twice, before)[0].mean_s == 0.1  # something else took the core in the other run


def test_what_is_not_a_test_has_no_line() -> None:
    rows = [Row("fixture", "a::run", 2.0, 0.0), Row("collection", "of one worker", 9.0, 9.0)]
    assert [cost.name for cost in renewed(rows, [])] == [OTHERS]


def test_a_line_is_read_as_it_was_written() -> None:
    costs = [Cost(0.25, 3, "tests/a.py::one"), Cost(0.006, 5524, OTHERS)]
    assert read("".join(cost.line for cost in costs)) == costs
