"""``python -m tests.hang.limited``: ``diag`` with bounded memory. An input that needs more has got its way."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from diag.cli.main import main
from diag.hang import api
from diag.hang.model import Triage

MEMORY = 3 << 30  # address space, beyond what libraries take
USED = "DIAG_TEST_USED"  # a file for the CPU seconds and the peak memory in bytes, of this process and those it started


def limit() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))


def used() -> str:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return f"{sum(one.ru_utime + one.ru_stime for one in both)} {max(one.ru_maxrss for one in both) * 1024}"


def json_and_text(path: str) -> None:
    """Prints, as JSON, the exit code, the output and the errors of ``diag triage --json`` and of ``diag triage``. The
    second one prints the answer of the first. Both run in this process, and not in one that another one watches for
    want of memory."""
    from tests.command import diag

    answers: dict[tuple[str, ...], Triage] = {}
    triage = api.triage

    def once(paths: Sequence[str], *others: Any) -> Triage:
        if tuple(paths) not in answers:
            answers[tuple(paths)] = triage(paths, *others)
        return answers[tuple(paths)]

    with patch.object(api, "triage", once), patch.object(sys.modules[main.__module__], "has_little_memory", bool):
        ended = [diag("triage", path, *options) for options in (["--json"], [])]
    json.dump([(one.returncode, one.stdout, one.stderr) for one in ended], sys.stdout)


if __name__ == "__main__":
    limit()
    try:
        main()
    finally:
        if USED in os.environ:
            Path(os.environ[USED]).write_text(used())
