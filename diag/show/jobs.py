"""What ``diag analyze`` shows for several jobs: a list, with the verdict of each."""

from __future__ import annotations

import json
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
from diag.rundir.lines import ANALYSIS_VERSION
from diag.show.answer import COLOUR, command_of
from diag.words.formatting import counted, masked, spaced, visible
from diag.words.places import shown as name_of
from diag.words.terminal import report_console
from diag.words.wording import run_facts

from .json import coverage_to_dict, verdict_to_dict
from .text import print_gaps


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
    """The part of an analysis that the list needs; the result itself holds all events."""
    if isinstance(outcome, DiagError):
        return ListedJob(job, problem=outcome.message)
    return ListedJob(job, describe_run(outcome), outcome.verdict, outcome.coverage, outcome.tables.recorded)


def exit_code(jobs: Jobs, entries: Sequence[ListedJob]) -> ExitCode:
    if all(entry.problem for entry in entries):
        return ExitCode.ERROR
    return ExitCode.DATA_INCOMPLETE if jobs.unused or any(entry.incomplete for entry in entries) else ExitCode.OK


def print_jobs(jobs: Jobs, entries: Sequence[ListedJob], console: Console | None = None) -> None:
    """Prints each job with its facts, its verdict, why it is a job of its own, and the command that opens it."""
    console = console or report_console()
    where = f"{visible(masked(name_of(jobs.paths[0])))} holds" if len(jobs.paths) == 1 else "There are"
    console.print(escape(f"{where} {spaced(counted(len(entries), 'job'))}."), style="bold")
    for entry in entries:
        console.print()
        console.print(f"[bold]{escape(visible(entry.job.name))}[/]")
        _line(console, " · ".join(facts(entry)), "dim")
        if entry.verdict is not None:
            _line(console, entry.verdict.headline, COLOUR[entry.verdict.severity])
        else:
            _line(console, f"not analysed: {visible(entry.problem)}", "yellow")
        if entry.job.reason:
            _line(console, visible(entry.job.reason), "dim")
        # Whole, so that it can be copied.
        console.print(f"  [cyan]{escape(command_of('analyze', entry.job.paths))}[/]", soft_wrap=True)
    console.print()
    if all(len(entry.job.paths) == 1 for entry in entries[:2]):
        both = [path for entry in entries[:2] for path in entry.job.paths]
        console.print(escape(f"To compare two: {command_of('compare', both)}"), style="dim", soft_wrap=True)
    print_gaps(console, jobs.unused)


def _line(console: Console, text: str, style: str) -> None:
    console.print(Padding(f"[{style}]{escape(spaced(text))}[/]", (0, 0, 0, 2)))


def facts(entry: ListedJob) -> list[str]:
    """Ranks, device, steps, when it was recorded, and its trace files: what is known."""
    parts = run_facts(entry.run, entry.coverage)[:-1] if entry.run is not None and entry.coverage is not None else []
    if entry.recorded is not None and entry.recorded[0] > 0:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.recorded[0] / 1e9)))
    if files := len(entry.job.files):
        parts.append(counted(files, "file"))
    return parts


def to_json(jobs: Jobs, entries: Sequence[ListedJob]) -> str:
    """The list form of the contract: ``jobs`` in the place of one verdict."""
    content = {
        "schema_version": ANALYSIS_VERSION,
        "jobs": [_to_dict(entry) for entry in entries],
        "skipped": [to_builtins(gap) for gap in jobs.unused],
    }
    return json.dumps(content, indent=1)


def _to_dict(entry: ListedJob) -> dict[str, Any]:
    return {
        "name": entry.job.name,
        "paths": [masked(path) for path in entry.job.paths],
        "reason": spaced(entry.job.reason) or None,
        "files": list(entry.job.files),
        "recorded_ns": list(entry.recorded) if entry.recorded is not None else None,
        "run": entry.run,
        "verdict": verdict_to_dict(entry.verdict) if entry.verdict is not None else None,
        "coverage": coverage_to_dict(entry.coverage) if entry.coverage is not None else None,
        "error": entry.problem or None,
    }
