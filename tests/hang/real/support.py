"""How much the real failures support each rule and each pattern: whose answer a rule gives, what is lost without it,
and who shows a pattern.

A rule that no case needs is proven by generated logs alone; a pattern that one case shows was perhaps learned from it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.ended.model import Clue
from diag.hang import reason, text
from diag.hang.classes import PATTERNS
from diag.hang.classes.base import LogPattern
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


@dataclass
class Support:
    """What one pass over the cases shows: ids of cases by name."""

    patterns: dict[str, list[str]] = field(default_factory=lambda: {name: [] for _, name, _ in PATTERNS})
    rules: dict[str, list[str]] = field(default_factory=lambda: {name_of(rule): [] for rule in reason.RULES})


@contextmanager
def recorded(support: Support, case: Case) -> Iterator[None]:
    """While the case is judged: which patterns match a line of it. The clues of each rule are kept until the end, when
    a rule that has a clue of an accepted class supports the case."""
    clues: dict[str, list[Clue]] = {}

    def noted(rule: Rule) -> Rule:
        def run(job: JobLogs) -> list[Clue]:
            found = rule(job)
            clues.setdefault(name_of(rule), []).extend(found)
            return found

        return run

    def hits(job: JobLogs) -> list[Clue]:
        for name in {hit.name for hit in job.hits}:
            support.patterns[name].append(case.id)
        return []

    noted_rules = {rule: noted(rule) for rule in reason.RULES}
    of_lines = tuple(noted_rules[rule] for rule in reason.OF_LINES)
    with _rules((hits, *noted_rules.values()), of_lines):
        yield
    for name, found in clues.items():
        if any(clue.fault_class in (case.fault_class, *case.also) for clue in found):
            support.rules[name].append(case.id)


SOURCE = re.compile(
    r"\b[\w.-]+\.(?:py|cc|cpp|hpp|c|cu|h|go|rs|js|txt|java|scala|jl|[fF]90|F|for|inc)\b|\berror code [A-Z]+\d+\b"
)


def names_its_source(pattern: LogPattern) -> bool:
    """Whether it says which file of the program prints the line, or which error code its documentation lists."""
    return SOURCE.search(pattern.printed_by) is not None


def independent(cases: Sequence[Case]) -> int:
    """How many repositories, or sites of another kind, the cases are from."""
    return len({"/".join(case.thread.split("/")[:5]) for case in cases})


@contextmanager
def _rules(rules: tuple[Rule, ...], of_lines: tuple[Rule, ...] = reason.OF_LINES) -> Iterator[None]:
    """``of_lines``: those of the rules whose answers have a fitted confidence."""
    before: Any = reason.RULES
    before_of_lines: Any = reason.OF_LINES
    reason.RULES, reason.OF_LINES = rules, of_lines  # type: ignore[assignment]
    try:
        yield
    finally:
        reason.RULES, reason.OF_LINES = before, before_of_lines


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
