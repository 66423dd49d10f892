"""What ``diag analyze`` shows of several jobs: a list, with the verdict of each."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.api import Job, Jobs, Result, describe_run
from diag.errors import DiagError, ExitCode
from diag.model.steps import Coverage, Verdict
from diag.words.cells import report_console
from diag.words.formatting import counted, masked, spaced, visible
from diag.words.wording import run_facts

from .json import ANALYSIS_VERSION, coverage_to_dict, verdict_to_dict
from .text import COLOUR, print_gaps

_MOST_PATHS = 4  # of a job that is opened by its files, on a line


class ListedJob(Struct, frozen=True):
    """One job and its answer. ``problem``: why it could not be analysed; then it has no verdict. ``recorded``: begin
    and end of its traces, Unix time in ns."""

    job: Job
    run: dict[str, Any] | None = None
    verdict: Verdict | None = None
    coverage: Coverage | None = None
    recorded: tuple[int, int] | None = None
    problem: str = ""

    @property
    def incomplete(self) -> bool:
        return self.coverage is None or self.coverage.incomplete


def listed(job: Job, outcome: Result | DiagError) -> ListedJob:
    """What the list keeps of an analysis, which holds all events."""
    if isinstance(outcome, DiagError):
        return ListedJob(job, problem=outcome.message)
    return ListedJob(job, describe_run(outcome), outcome.verdict, outcome.coverage, outcome.tables.recorded)


def exit_code(found: Jobs, jobs: Sequence[ListedJob]) -> ExitCode:
    if all(one.problem for one in jobs):
        return ExitCode.ERROR
    return ExitCode.DATA_INCOMPLETE if found.unused or any(one.incomplete for one in jobs) else ExitCode.OK


def print_jobs(found: Jobs, jobs: Sequence[ListedJob], console: Console | None = None) -> None:
    """Prints each job with its facts, its verdict, why it is a job of its own, and the command that opens it."""
    console = console or report_console()
    where = f"{visible(masked(found.paths[0]))} holds" if len(found.paths) == 1 else "There are"
    console.print(escape(f"{where} {spaced(counted(len(jobs), 'job'))}."), style="bold")
    for one in jobs:
        console.print()
        console.print(f"[bold]{escape(visible(one.job.name))}[/]")
        _line(console, " · ".join(facts(one)), "dim")
        if one.verdict is not None:
            _line(console, one.verdict.headline, COLOUR[one.verdict.severity])
        else:
            _line(console, f"not analysed: {visible(one.problem)}", "yellow")
        if one.job.reason:
            _line(console, visible(one.job.reason), "dim")
        # Whole, so that it can be copied.
        console.print(f"  [cyan]{escape(_command('analyze', one.job.paths))}[/]", soft_wrap=True)
    console.print()
    if all(len(one.job.paths) == 1 for one in jobs[:2]):
        both = [path for one in jobs[:2] for path in one.job.paths]
        console.print(escape(f"To compare two: {_command('compare', both)}"), style="dim", soft_wrap=True)
    print_gaps(console, found.unused)


def _line(console: Console, text: str, style: str) -> None:
    console.print(Padding(f"[{style}]{escape(spaced(text))}[/]", (0, 0, 0, 2)))


def _command(name: str, paths: Sequence[str]) -> str:
    shown = [visible(masked(path)) for path in paths[:_MOST_PATHS]]
    return shlex.join(["diag", name, *shown]) + (" ..." if len(paths) > len(shown) else "")


def facts(one: ListedJob) -> list[str]:
    """Ranks, device, steps, when it was recorded, and its trace files: what is known."""
    found = run_facts(one.run, one.coverage)[:-1] if one.run is not None and one.coverage is not None else []
    if one.recorded is not None and one.recorded[0] > 0:
        found.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.recorded[0] / 1e9)))
    if files := len(one.job.files):
        found.append(counted(files, "file"))
    return found


def to_json(found: Jobs, jobs: Sequence[ListedJob]) -> str:
    """The list form of the contract: ``jobs`` in the place of one verdict."""
    content = {
        "schema_version": ANALYSIS_VERSION,
        "jobs": [_to_dict(one) for one in jobs],
        "skipped": [to_builtins(gap) for gap in found.unused],
    }
    return json.dumps(content, indent=1)


def _to_dict(one: ListedJob) -> dict[str, Any]:
    return {
        "name": one.job.name,
        "paths": [masked(path) for path in one.job.paths],
        "reason": spaced(one.job.reason) or None,
        "files": list(one.job.files),
        "recorded_ns": list(one.recorded) if one.recorded is not None else None,
        "run": one.run,
        "verdict": verdict_to_dict(one.verdict) if one.verdict is not None else None,
        "coverage": coverage_to_dict(one.coverage) if one.coverage is not None else None,
        "error": one.problem or None,
    }
