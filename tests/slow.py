"""Which tests ``make test-fast`` leaves out: those that start a process, and those that simulate a job of GPUs.

Nobody keeps a list of them: the names in the code of a test say it, of its fixtures, and of the helpers in ``tests``
that these call. Only a test that takes long by itself is marked by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import pytest

# What starts a process, a fork of one, or a browser.
_STARTING = {"Popen", "check_output", "check_call", "fork", "forkpty", "fork_server", "start_processes", "spawn"}
_STARTING |= {"sync_playwright", "forked_python"}
_SIMULATING = "tests.bench.grid.gpu.simulate"
_MARKED = ("matrix", "multiproc", "slow")


def is_slow(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in _MARKED):
        return True
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # those that it asks for, and those that they ask for
    searched = getattr(item.obj, "hypothesis", None)
    called = searched.inner_test if searched else item.obj
    functions = [called, *(fixture.func for same in fixtures for fixture in same)]
    return any(_takes_long(function) for function in functions)


@cache
def _takes_long(function: object) -> bool:
    """Whether the function, or a function or class of the tests that it names, does one of these."""
    seen: set[object] = set()
    left = [function]
    while left:
        named = left.pop()
        if named in seen:
            continue
        seen.add(named)
        if isinstance(named, type):
            left += [value for value in vars(named).values() if callable(value) or isinstance(value, property)]
            continue
        plain = getattr(named, "fget", None) or getattr(named, "__func__", named)
        plain = getattr(plain, "__wrapped__", plain)
        if not isinstance(plain, FunctionType):
            continue
        if plain.__module__ == _SIMULATING:
            return True
        for code in _codes(plain.__code__):
            names = set(code.co_names)
            if names & _STARTING or {"subprocess", "run"} <= names:
                return True
            found = [plain.__globals__.get(name) for name in names]
            for module in [one for one in found if isinstance(one, ModuleType) and _is_of_tests(one.__name__)]:
                found += [vars(module).get(name) for name in names]
            left += [one for one in found if callable(one) and _is_of_tests(getattr(one, "__module__", None))]
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _is_of_tests(module: object) -> bool:
    return isinstance(module, str) and module.startswith("tests.")
