"""Traces read by several threads at once, as the dashboard analyses the runs of a folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import polars as pl
import pytest

from diag.traces.trace import ARGUMENTS, COUNTERS, Events

THREADS, TRACES, NAMES = 8, 40, 50
PATTERNS = (r"^diag\.step#", r"^ProfilerStep#", r"gloo:", r"7$")


def events(trace: str) -> Events:
    kinds = ("diag.step#", "ProfilerStep#", "gloo:all_reduce ", "aten::mm ")
    names = [f"{kind}{trace}.{number}" for number in range(NAMES) for kind in kinds]
    return Events((), pl.Series("name", names), (), pl.DataFrame(schema=ARGUMENTS), pl.DataFrame(schema=COUNTERS))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("attempt", range(3))
def test_names_match_in_each_thread_as_in_one(attempt: int) -> None:
    begin = Barrier(THREADS)

    def wrong(thread: int) -> list[str]:
        begin.wait()
        found = []
        for trace in (events(f"{attempt}-{thread}-{number}") for number in range(TRACES)):
            for pattern in PATTERNS:
                answers = trace.matching(pattern).tolist()
                found += [name for name, said in zip(trace.names, answers, strict=True)
                          if said != bool(re.search(pattern, name))]  # fmt: skip
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        assert [name for names in pool.map(wrong, range(THREADS)) for name in names] == []
