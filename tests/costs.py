"""What each test costs, in seconds of CPU, those of the processes that it starts included: the dearest tests, files
and shared fixtures, for whoever makes the tests cheaper. On a busy machine, too, where seconds on the wall say nothing.

    python -m tests.costs -n 2 -m 'not slow'
    python -m tests.costs --write -n 2 -m 'not matrix and not multiproc' --hypothesis-profile=few

Other arguments are pytest's. ``--write`` renews ``costs.txt``, by which ``make test-fast`` chooses, for the tests that
were run. What a process takes that outlives the one that started it is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.slow import CHEAP_S, COSTS, LIST, OTHERS, Cost, function_of

FILE = "PYTEST_COSTS"  # the environment's: where each worker writes its rows
SHOWN = 40
# A test that waits for long keeps a worker from others. A busy machine may take three quarters of the time on the wall.
WAITS_S, OF_WALL_THAT_WAITS = 2.0, 0.25
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


def renewed(rows: Iterable[Row], before: Sequence[Cost]) -> list[Cost]:
    """The cost of each test, without parameters: of those in `rows` as measured, the better time of several, else as
    `before`; the cheap ones in one sum."""
    best: dict[str, float] = {}
    for row in rows:
        if row.kind == "test":
            cost = max(row.cpu_s, row.wall_s * OF_WALL_THAT_WAITS if row.wall_s > WAITS_S else 0.0, 0.0)
            best[row.name] = min(cost, best.get(row.name, cost))
    costs: dict[str, list[float]] = defaultdict(list)
    for name, cost in best.items():
        costs[function_of(name)].append(cost)
    measured = [Cost(sum(own) / len(own), len(own), name) for name, own in costs.items()]
    dear = [cost for cost in measured if cost.mean_s >= CHEAP_S]
    cheap = [cost for cost in measured if cost.mean_s < CHEAP_S]
    kept = [cost for cost in before if cost.name not in costs and cost.name != OTHERS]
    count = sum(cost.count for cost in cheap)
    others = Cost(sum(cost.mean_s * cost.count for cost in cheap) / max(1, count), count, OTHERS)
    known = next((cost for cost in before if cost.name == OTHERS), others)
    return sorted([*dear, *kept, max(others, known, key=lambda cost: cost.count)], key=lambda cost: cost.name)


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
        LIST.write_text("".join(cost.line for cost in renewed(rows, COSTS)))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
