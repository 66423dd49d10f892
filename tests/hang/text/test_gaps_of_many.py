"""A folder of very many files that hold nothing takes time by their number."""

from __future__ import annotations

import sys

from diag.hang.text.streams import Gaps


def steps(files: int) -> int:
    """Lines of Python that reading so many empty files takes in ``Gaps``."""
    gaps, count = Gaps(), 0

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        for number in range(files):
            if not gaps.about(str(number)):
                gaps.say(str(number), "is empty")
    finally:
        sys.settrace(before)
    return count


def test_each_file_costs_the_same() -> None:
    assert steps(400) < 5 * steps(100)
