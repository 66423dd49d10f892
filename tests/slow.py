"""Which tests ``make test-fast`` leaves out: the matrices of trainings, those whose verdict rests on measured times,
and the dearest of the others, as it runs the cheapest first until a minute of two cores is spent.

``python -m tests.costs --write`` measures, and rewrites ``costs.txt``. A test that was never measured is run.
``python -m tests.slow`` says which share is run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

LIST = Path(__file__).with_name("costs.txt")
# Two cores for a minute, less what they take to read the tests and to start: 6 s each, and the server of forks.
BUDGET_S = 120 - 21
# A test that costs less has no line of its own: it is always run.
CHEAP_S = 0.02
OTHERS = "others"
_MARKED = ("matrix", "multiproc")


class Cost(NamedTuple):
    """Of a test with all its parameters. ``mean_s``: CPU seconds of one of them."""

    mean_s: float
    count: int
    name: str

    @property
    def line(self) -> str:
        return f"{self.mean_s * 1000:.0f} ms x {self.count} {self.name}\n"


def read(text: str) -> list[Cost]:
    rows = (line.split(maxsplit=4) for line in text.splitlines())
    return [Cost(int(ms) / 1000, int(count), name) for ms, _, _, count, name in rows]


def left_out(costs: Iterable[Cost], budget_s: float = BUDGET_S) -> frozenset[str]:
    """The dearest, if the cheapest are run first until ``budget_s`` is spent."""
    names, spent = set(), 0.0
    for cost in sorted(costs):
        spent += cost.mean_s * cost.count
        if spent > budget_s and cost.name != OTHERS:
            names.add(cost.name)
    return frozenset(names)


COSTS = read(LIST.read_text())
NAMES = left_out(COSTS)


def function_of(nodeid: str) -> str:
    """A test's name without its parameters."""
    return nodeid.partition("[")[0]


def is_slow(item: pytest.Item) -> bool:
    return function_of(item.nodeid) in NAMES or any(item.get_closest_marker(name) for name in _MARKED)


def share_that_is_run() -> str:
    run = [cost for cost in COSTS if cost.name not in NAMES]
    count, every = (sum(cost.count for cost in costs) for costs in (run, COSTS))
    spent = sum(cost.mean_s * cost.count for cost in run)
    return f"{count:,} of {every:,} tests ({count / every:.0%}): {spent:.0f} s of CPU time when they were measured"


if __name__ == "__main__":
    print(share_that_is_run())
