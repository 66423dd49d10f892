"""Verdicts on a machine that others use as well: that ranks wait for cores may be the verdict then, and it is true."""

from __future__ import annotations

import os
from typing import Any

CONTENTION = ("contended-host", "crowded-host")


def others_take_cores(cause: str) -> bool:
    """Whether a verdict of this cause is right: more want to run than there are cores."""
    return cause in CONTENTION and os.getloadavg()[0] > (os.cpu_count() or 1)


def contended(result: dict[str, Any], cause: str, ranks: list[int]) -> bool:
    """Whether ``diag analyze --json`` says that ranks wait for cores, rightly.
    AssertionError where the planted cause and its ranks are not among the findings then."""
    if not others_take_cores(result["verdict"]["cause"]):
        return False
    findings = [(finding["id"], finding["ranks"]) for finding in result["findings"]]
    assert (cause, ranks) in findings, findings
    return True
