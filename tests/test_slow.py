"""What ``make test-fast`` leaves out is chosen by what was measured."""

from __future__ import annotations

import re
from pathlib import Path

from tests.costs import SLOW_S, Row, slow
from tests.slow import LIST, NAMES

HERE = Path(__file__).parent.parent


def _test(name: str, cpu_s: float, wall_s: float = 0.0) -> Row:
    return Row("test", name, cpu_s, wall_s)


def test_every_test_of_the_list_is_there() -> None:
    gone = []
    for name in sorted(NAMES):
        file, _, function = name.partition("::")
        path = HERE / file
        if not (path.is_file() and re.search(rf"\bdef {function.rpartition('::')[2]}\b", path.read_text())):
            gone.append(name)
    assert not gone, f"{LIST.name} names tests that are gone: remove their lines"
    assert LIST.read_text() == "".join(f"{name}\n" for name in sorted(NAMES)), "sorted, each once"


def test_a_test_is_slow_by_the_mean_of_its_parameters() -> None:
    rows = [_test("a::one[x]", SLOW_S * 1.5), _test("a::one[y]", SLOW_S), _test("a::two", SLOW_S / 2)]
    assert slow(rows, set()) == {"a::one"}


def test_it_is_slow_if_it_waits() -> None:
    assert slow([_test("a::one", 0.0, SLOW_S * 10)], set()) == {"a::one"}
    assert slow([_test("a::one", 0.0, SLOW_S * 2)], set()) == set()  # which a busy machine may be


def test_what_was_measured_again_and_what_was_not() -> None:
    before = {"a::one", "a::two"}
    assert slow([_test("a::one", SLOW_S / 2)], before) == {"a::two"}
    twice = [_test("a::one", SLOW_S * 2), _test("a::one", SLOW_S / 2)]
    assert slow(twice, before) == {"a::two"}  # the better of two runs: something else took the core in the other


def test_what_is_not_a_test_is_not_in_the_list() -> None:
    assert (
        slow([Row("fixture", "a::run", SLOW_S * 2, 0.0), Row("collection", "of one worker", 9.0, 9.0)], set()) == set()
    )
