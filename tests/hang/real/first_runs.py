"""The first runs of the blind sets (``figures/first_runs.toml``): the answers to texts that nobody had seen."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hang.real import HERE, Case


@dataclass(frozen=True)
class FirstRun:
    name: str
    files: str  # the beginning of the names of the set's files
    threads: int
    right_class: tuple[int, int]  # right, of how many
    culprit: tuple[int, int]
    accused: int
    called_healthy: int
    note: str = ""

    def holds(self, case: Case) -> bool:
        return case.file.startswith(self.files)


def first_runs() -> tuple[FirstRun, ...]:
    """All blind sets, in their order. Raises KeyError where a figure is missing."""
    return tuple(
        FirstRun(
            found["name"],
            found["files"],
            found["threads"],
            (found["class"][0], found["class"][1]),
            (found["culprit"][0], found["culprit"][1]),
            found["accused"],
            found["called_healthy"],
            found.get("note", ""),
        )
        for found in tomllib.loads((HERE / "figures" / "first_runs.toml").read_text())["set"]
    )


def is_blind(case: Case) -> bool:
    return case.file.startswith("blind")


def total(runs: Sequence[FirstRun]) -> FirstRun:
    """The sum of several first runs."""
    return FirstRun(
        "all",
        "blind",
        sum(run.threads for run in runs),
        (sum(run.right_class[0] for run in runs), sum(run.right_class[1] for run in runs)),
        (sum(run.culprit[0] for run in runs), sum(run.culprit[1] for run in runs)),
        sum(run.accused for run in runs),
        sum(run.called_healthy for run in runs),
    )
