"""Verdicts on a machine that others use as well: that ranks wait for cores may be the verdict then, and it is true."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tests/gpu needs this where nothing but torch is installed
    from diag.api import Result

CONTENTION = frozenset({"contended-host", "crowded-host"})


def others_take_cores(findings: Iterable[str]) -> bool:
    """Whether ranks wait for cores by one of the findings' ids, and more want to run than there are cores."""
    return not CONTENTION.isdisjoint(findings) and os.getloadavg()[0] > (os.cpu_count() or 1)


def is_contended(result: Result, cause: str, *ranks: int) -> bool:
    """``contended`` of a result. AssertionError where the planted cause is not found with its ranks."""
    findings = [(finding.id, *finding.ranks) for finding in result.examination.findings]
    if not others_take_cores(str(name) for name, *_ in findings):
        return False
    assert (cause, *ranks) in findings, findings
    return True


def contended(result: dict[str, Any], cause: str, ranks: list[int]) -> bool:
    """Whether ``diag analyze --json`` says that ranks wait for cores, rightly. AssertionError where the planted cause
    is not among the findings then, with its ranks or, as far as other ranks are late as well, with none."""
    findings = [(finding["id"], finding["ranks"]) for finding in result["findings"]]
    if not others_take_cores(name for name, _ in findings):
        return False
    assert (cause, ranks) in findings or (cause, []) in findings, findings
    return True
