"""No regular expression of the project searches without end, whatever the text."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.patterns import Found, hostile_texts, patterns

# For four times the text a search takes 4 times as long, or 16 times where it begins at every character. Where
# repetitions overlap it takes 64 times, or never ends.
MOST_GROWTH = 40.0
SHORT_S = 0.003  # quadratic growth takes less for the shorter text
DEAREST = 8  # texts of a pattern, the first by what a search of them takes, of which longer ones are tried
TOO_LONG_S = 4.0  # of CPU time; the interpreter looks for signals within a search


@contextmanager
def limited(what: str, seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s: {what}")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def seconds(search: Callable[[str], object], text: str, times: int) -> float:
    """The least CPU time of so many turns, which what else the machine does hardly changes."""
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        search(text)
        taken.append(time.thread_time() - begin)
    return min(taken)


def test_every_pattern_is_found() -> None:
    assert len(patterns()) > 350


def test_the_texts_find_what_they_are_to_find() -> None:
    for bad in (r"\A(?:\s*(?:#[^\n]*)?\n)*\s*x", r"(a+)+b", r"(?:\w+|\d+)*!", r"\s*a?\s*b?\s*c"):
        with pytest.raises(AssertionError):
            grows_no_faster(Found("here", bad, 0), too_long_s=0.5)


def grows_no_faster(found: Found, too_long_s: float = TOO_LONG_S) -> None:
    pattern = re.compile(found.pattern, found.flags)
    search = pattern.match if found.anchored else pattern.search
    few, short = hostile_texts(found.pattern, found.flags), {}
    for name, text in few.items():
        with limited(f"{found.where}: {found.pattern} on {name}", too_long_s):
            if seconds(search, text, 1) >= SHORT_S and (taken := seconds(search, text, 2)) >= SHORT_S:
                short[name] = taken
    many = hostile_texts(found.pattern, found.flags, longer=4) if short else {}
    for name in sorted(short, key=short.__getitem__, reverse=True)[:DEAREST]:
        with limited(f"{found.where}: {found.pattern} on {name}", too_long_s):
            growth = seconds(search, many[name], 1) / short[name]
            if growth >= MOST_GROWTH:  # or others use the machine
                growth = seconds(search, many[name], 4) / seconds(search, few[name], 20)
        assert growth < MOST_GROWTH, f"{found.where}: {found.pattern} on {name}: {growth:.0f} times"


@pytest.mark.parametrize("part", range(4))
def test_no_pattern_searches_without_end(part: int) -> None:
    failed = []
    for found in patterns()[part::4]:
        try:
            grows_no_faster(found)
        except AssertionError as error:
            failed.append(str(error))
    assert not failed, "\n".join(failed)
