"""Verdicts on a machine that others use as well: that ranks wait for cores may be the verdict then, and it is true."""

from __future__ import annotations

import os
from typing import Any

CONTENTION = ("contended-host", "crowded-host")


def contended(result: dict[str, Any], cause: str, ranks: list[int]) -> bool:
    """Whether ``diag analyze --json`` says that ranks wait for cores, and more want to run than there are cores.
    AssertionError where the planted cause and its ranks are not among the findings then."""
    if result["verdict"]["cause"] not in CONTENTION or os.getloadavg()[0] <= (os.cpu_count() or 1):
        return False
    findings = [(finding["id"], finding["ranks"]) for finding in result["findings"]]
    assert (cause, ranks) in findings, findings
    return True
