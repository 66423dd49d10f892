"""What each test costs, in seconds of CPU, those of the processes that it starts included: the dearest tests, files
and shared fixtures, for whoever makes the tests cheaper. On a busy machine, too, where seconds on the wall say nothing.

    python -m tests.costs -n 2 -m 'not slow'
    python -m tests.costs --write -n 2 -m 'not matrix and not multiproc' --hypothesis-profile=few

Other arguments are pytest's. ``--write`` renews ``slow.txt``, what ``make test-fast`` leaves out, for the tests that
were run. What a process takes that outlives the one that started it is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import slow as slow_tests

FILE = "PYTEST_COSTS"  # the environment's: where each worker writes its rows
SHOWN = 40
# A test is slow that takes as much on average over its parameters, at a load of 6 to 30 on two cores, which makes it
# slower. A tenth of all tests are.
SLOW_S = 0.6
# Of a test's time on the wall, a busy machine may take three quarters.
OF_WALL = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    kind: str  # collection, test, fixture
    name: str
    cpu_s: float
    wall_s: float


def cpu_s(pid: int | str = "self") -> float:
    """Of a process, of its children that ended, and of its descendants that run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        children = [child for thread in threads for child in thread.read_text().split()]
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(cpu_s, children))


def _measured(kind: str, name: str) -> Generator[None, Any, Any]:
    cpu, wall = cpu_s(), time.monotonic()
    try:
        return (yield)
    finally:
        row = Row(kind, name, cpu_s() - cpu, time.monotonic() - wall)
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    return (yield from _measured("collection", "of one worker"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _measured("test", item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)  # of the test, and as many as there are tests
    return (yield from _measured("fixture", f"{fixturedef.baseid}::{fixturedef.argname}"))


def _print(title: str, rows: Iterable[Row]) -> None:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for row in rows:
        for place, value in enumerate((row.cpu_s, row.wall_s, 1)):
            sums[row.name][place] += value
    cpu, wall, count = (sum(own[place] for own in sums.values()) for place in range(3))
    print(f"\n{title}: {count:.0f}, {cpu:.1f} s of CPU, {wall:.1f} s of wall time")
    for name, own in sorted(sums.items(), key=lambda item: -item[1][0])[:SHOWN]:
        print(f"{own[0]:8.1f} {own[1]:8.1f} {own[2]:6.0f}  {name}")


def slow(rows: Iterable[Row], before: set[str]) -> set[str]:
    """The tests that are slow, without parameters: of those in `rows` as measured, the better time of several, else as
    `before`."""
    best: dict[str, float] = {}
    for row in rows:
        if row.kind == "test":
            cost = max(row.cpu_s, row.wall_s * OF_WALL)
            best[row.name] = min(cost, best.get(row.name, cost))
    costs: dict[str, list[float]] = defaultdict(list)
    for name, cost in best.items():
        costs[slow_tests.function_of(name)].append(cost)
    return before.difference(costs) | {name for name, own in costs.items() if sum(own) >= SLOW_S * len(own)}


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(FILE, str(Path(folder, "rows")))
        code = pytest.main(["-p", "tests.costs", *arguments])
        rows = [Row(*json.loads(line)) for line in Path(os.environ[FILE]).read_text().splitlines()]
    _print("collections", (row for row in rows if row.kind == "collection"))
    tests = [row for row in rows if row.kind == "test"]
    _print("tests", tests)
    _print("files", (row._replace(name=row.name.partition("::")[0]) for row in tests))
    _print("fixtures that tests share", (row for row in rows if row.kind == "fixture"))
    if len(arguments) < len(sys.argv[1:]):
        names = sorted(slow(rows, set(slow_tests.NAMES)))
        slow_tests.LIST.write_text("".join(f"{name}\n" for name in names))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
