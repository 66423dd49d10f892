"""How right the words that programs share are by themselves: each case read without any pattern and any other rule."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from diag.hang.classes import anchors
from diag.hang.job import JobLogs
from diag.hang.order import choose
from diag.hang.rules.general import read
from diag.hang.text import read_logs
from tests.hang.real import Case, Verdict, held_against, write_logs


def by_words(case: Case, folder: Path) -> Verdict | None:
    """The verdict on what its words say; None where they say nothing. ``folder``: empty."""
    write_logs(case, folder)
    cause = choose(read(JobLogs(read_logs([folder], anchors())), ()), None).cause
    return held_against(case, (cause.fault_class,), cause.culprits) if cause is not None else None


def verdicts(cases: Iterable[Case]) -> list[Verdict]:
    """Of the cases of which the words say something."""
    found = []
    for case in cases:
        with TemporaryDirectory() as folder:
            found.append(by_words(case, Path(folder)))
    return [verdict for verdict in found if verdict is not None]
