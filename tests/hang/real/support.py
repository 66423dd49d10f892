"""How much the real failures support each rule and each pattern: what is lost without a rule, and who shows a pattern.

A rule that no case needs is proven by generated logs alone; a pattern that one case shows was perhaps learned from it.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diag.ended.model import Clue
from diag.hang import reason, text
from diag.hang.classes import PATTERNS
from diag.hang.job import JobLogs
from diag.hang.text import read_logs
from tests.hang.real import Case, judge

Rule = Callable[[JobLogs], list[Clue]]


def name_of(rule: Rule) -> str:
    """``absence`` for ``rules.absence.clues``, else the function's own name."""
    return rule.__module__.rpartition(".")[2] if rule.__name__ == "clues" else rule.__name__


def lost_without(cases: Sequence[Case]) -> dict[str, list[str]]:
    """By rule, the ids of the cases whose answer is right with it and wrong without it. Reads each log once."""
    lost: dict[str, list[str]] = {name_of(rule): [] for rule in reason.RULES}
    rules = reason.RULES
    for case in cases:
        with tempfile.TemporaryDirectory() as folder, _logs_read_once():
            if not judge(case, Path(folder)).right:
                continue
            for left_out in rules:
                with _rules(tuple(rule for rule in rules if rule is not left_out)):
                    if not judge(case, Path(folder)).right:
                        lost[name_of(left_out)].append(case.id)
    return lost


def shown_by(cases: Sequence[Case]) -> dict[str, list[str]]:
    """By pattern, the ids of the cases with a line that it matches."""
    shown: dict[str, list[str]] = {name: [] for _, name, _ in PATTERNS}
    seen: dict[str, set[str]] = defaultdict(set)

    def hits(job: JobLogs) -> list[Clue]:
        seen["of this case"] |= {hit.name for hit in job.hits}
        return []

    for case in cases:
        seen.clear()
        with tempfile.TemporaryDirectory() as folder, _rules((hits,)):
            judge(case, Path(folder))
        for name in seen["of this case"]:
            shown[name].append(case.id)
    return shown


@contextmanager
def _rules(rules: tuple[Rule, ...]) -> Iterator[None]:
    before: Any = reason.RULES
    reason.RULES = rules  # type: ignore[assignment]
    try:
        yield
    finally:
        reason.RULES = before


@contextmanager
def _logs_read_once() -> Iterator[None]:
    kept: list[Any] = []

    def once(*given: Any) -> Any:
        if not kept:
            kept.append(read_logs(*given))
        return kept[0]

    text.read_logs = once
    try:
        yield
    finally:
        text.read_logs = read_logs
