"""Which tests ``make test-fast`` leaves out is read from what they name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import command
from tests.bench.grid.gpu import simulate
from tests.bench.grid.gpu.job import Job
from tests.slow import is_slow


class Started:
    @property
    def output(self) -> bytes:
        return subprocess.run(["true"], capture_output=True, check=True).stdout


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def through_another(started: Started) -> bytes:
    return b""


def by_a_helper() -> None:
    by_another()


def by_another() -> None:
    command.diag_process("run")


def in_this_process() -> None:
    command.diag("help")
    assert isinstance(subprocess.CompletedProcess([], 0).args, list)


def asks_for_a_fixture(through_another: bytes) -> None: ...


@given(st.integers())
def searches(number: int) -> None: ...


def simulates() -> None:
    simulate.simulate(Job())


@pytest.mark.parametrize(
    ("function", "slow"),
    [
        (by_a_helper, True),
        (asks_for_a_fixture, True),
        (simulates, True),
        (searches, False),
        (in_this_process, False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_slow(request: pytest.FixtureRequest, function: Callable[..., None], slow: bool) -> None:
    module = request.node.getparent(pytest.Module)
    assert is_slow(pytest.Function.from_parent(module, name=function.__name__, callobj=function)) == slow
