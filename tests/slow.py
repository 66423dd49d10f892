"""Which tests ``make test-fast`` leaves out: those in ``slow.txt``, which took long when they were measured, the
matrices of trainings, and those whose verdict rests on measured times.

``python -m tests.costs --write`` measures and rewrites the list. A test that was never measured is run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
NAMES = frozenset(LIST.read_text().splitlines())
_MARKED = ("matrix", "multiproc")


def function_of(nodeid: str) -> str:
    """A test's name without its parameters."""
    return nodeid.partition("[")[0]


def is_slow(item: pytest.Item) -> bool:
    return function_of(item.nodeid) in NAMES or any(item.get_closest_marker(name) for name in _MARKED)
