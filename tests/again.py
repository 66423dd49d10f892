"""Runs the few tests that failed beside others once more, alone: ``python -m tests.again ARGUMENTS OF PYTEST``.

On two shared cores, four trainings beside each other now and then fail for a reason that is the machine's. A test that
fails alone as well has failed. One that passes is named in the last line, as what it is: not reliable. More than a few
failures are not the machine's, and are not run again.
"""

from __future__ import annotations

import sys

import pytest

MOST = 3


class _Failed:
    """What failed in the run before, as pytest keeps it, and what then passes."""

    def __init__(self) -> None:
        self.again: list[str] = []
        self.passed: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        self.again = sorted(config.cache.get("cache/lastfailed", {})) if config.cache is not None else []
        if not 0 < len(self.again) <= MOST:
            pytest.exit(f"{len(self.again)} failed: none is run again", returncode=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def main() -> int:
    failed = _Failed()
    code = int(pytest.main(["--last-failed", "--last-failed-no-failures=none", *sys.argv[1:]], plugins=[failed]))
    for test in failed.passed:
        print(f"not reliable: {test} failed beside other tests, and passed alone")
    return code or int(len(failed.passed) < len(failed.again))


if __name__ == "__main__":
    sys.exit(main())
