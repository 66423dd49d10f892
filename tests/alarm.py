"""A test that hangs prints every thread's stack, and ends the run.

pytest's own ``faulthandler_timeout`` sets and takes back an alarm for each test, and waits for the end of its thread:
5 to 17 ms a test on a busy machine, where most tests take less. Here one alarm holds for all tests of half a minute.
"""

from __future__ import annotations

import faulthandler
import time

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

HANGS_AFTER_S = 600
ONE_ALARM_S = 30  # a test that starts later sets it again

_last_set = float("-inf")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _last_set
    if (now := time.monotonic()) - _last_set > ONE_ALARM_S:
        _last_set = now
        file = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(HANGS_AFTER_S + ONE_ALARM_S, exit=True, file=file)


def pytest_exception_interact() -> None:
    """pytest takes the alarm back: somebody may look at the exception."""
    global _last_set
    _last_set = float("-inf")


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()
