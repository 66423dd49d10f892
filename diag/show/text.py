"""What ``diag analyze`` prints: the answer first, then why, then how sure; and the tables behind it (``--table``)."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.api import DurationResult, Job, Jobs, Result, describe_run
from diag.deferred import by_name
from diag.errors import DiagError, ExitCode
from diag.model import Gap
from diag.model.steps import Coverage, Severity, Verdict
from diag.rundir.lines import ANALYSIS_VERSION
from diag.show import page as shown
from diag.show.fitting import fitting, print_together, rows_of, sentences_of
from diag.show.memory import snapshots_sentence
from diag.show.page import RISK, Advised, Card, Page, advice_of, page_of
from diag.show.policy import PAGE
from diag.show.ranks import STALLS_TITLE
from diag.show.table import print_table
from diag.words import sentences
from diag.words.formatting import counted, masked, spaced, visible
from diag.words.places import in_command
from diag.words.places import shown as name_of
from diag.words.table import Column, Table
from diag.words.terminal import report_console
from diag.words.wording import per_whole, run_facts

from .json import coverage_to_dict, verdict_to_dict

# Behind an answer, where they are asked for.
_print_breakdowns: Callable[[Result, Console], None] = by_name("diag.show.breakdowns:print_breakdowns")
COLOUR = {Severity.HEALTHY: "green", Severity.WARN: "yellow", Severity.CRITICAL: "red"}


class Part(StrEnum):
    """What stands behind the answer. It is printed if it is asked for."""

    EVIDENCE = "evidence"
    CHECKED = "checked"
    TABLES = "tables"


def print_report(
    result: Result, console: Console | None = None, parts: Collection[Part] = (), paths: Sequence[str] = ()
) -> None:
    """Prints the answer, and the parts that are asked for. ``paths``: what was opened, for the commands that go on."""
    console = console or report_console()
    few = len(result.coverage.ranks_used) <= PAGE.most_ranks_in_full or Part.TABLES in parts
    page = page_of(result, None if few else PAGE.ranks_that_matter)
    _print_verdict(console, result, page, in_short=Part.CHECKED not in parts)
    if Part.EVIDENCE in parts:
        for number, finding in enumerate(page.findings):
            _print_finding(console, finding, first=number == 0)
        print_advice(console, advice_of(result))
    else:
        _print_next_steps(console, page, advice_of(result))
    console.print()
    if parts:
        print_table(console, page.ranks)
    else:
        print_table(console, _ranks_in_short(result, page.ranks), in_short=True)
    if Part.EVIDENCE in parts and page.stall_lines:
        console.print()
        _say(console, STALLS_TITLE, "italic")
        for line in page.stall_lines:
            console.print(Padding(escape(visible(line)), (0, 0, 0, 2)))
    console.print()
    if snapshots := snapshots_sentence(result.tables.snapshots):
        _say(console, snapshots)
    whole = Part.CHECKED in parts
    if whole:
        for line in (page.basis, *_checked(page)):
            _say(console, line, "dim")
    notes = page.notes if whole else page.notes[: PAGE.most_notes_in_short]
    for note in notes:
        console.print(f"[yellow]![/] {escape(spaced(note))}")
    if more := len(page.notes) - len(notes):
        console.print(f"[yellow]![/] and {counted(more, 'more note')}, printed by --checked")
    print_gaps(console, result.coverage.skipped, PAGE.most_gaps if whole else PAGE.most_gaps_in_short)
    if Part.TABLES in parts:
        _print_breakdowns(result, console)
    ruled_out = "" if whole else _checked_in_short(page, result.coverage)
    print_together(console, ruled_out, "dim", _more(console, parts, paths), "dim", command=True)


def _more(console: Console, parts: Collection[Part], paths: Sequence[str]) -> str:
    """The commands that show more; "" if all is shown, or nothing names what was opened."""
    rest = [part for part in Part if part not in parts]
    if not paths or not rest:
        return ""
    dashboard = _command("dashboard", paths)
    options = " ".join(f"--{part}" for part in rest)
    more = sentences.MORE_BEHIND_THE_ANSWER(options=options, dashboard=dashboard)
    return more if rows_of(console, more) == 1 else sentences.MORE_IN_SHORT(dashboard=dashboard)


def print_verdict(result: Result, console: Console) -> None:
    """Prints what was run, the verdict and what to do about it: how ``diag run`` ends."""
    page = page_of(result, PAGE.ranks_that_matter)
    _print_verdict(report_console(console), result, page)
    _print_next_steps(console, page, advice_of(result))


_BETWEEN_FACTS = " · "


def facts_in_a_row(console: Console, known: Sequence[str], before: str = "") -> str:
    """As much of what was run as fits in one row, behind ``before``. The last two facts say which steps, and of which
    run: they stay longer than those in the middle."""
    facts = [visible(spaced(fact)) for fact in known]
    for tail in (2, 1):
        for kept in range(len(facts) - 2, 0, -1):
            row = before + _BETWEEN_FACTS.join((*facts[:kept], *facts[-2:][:tail]))
            if rows_of(console, row) == 1:
                return row
    return before + fitting(console, facts, 1, _BETWEEN_FACTS, before)


def _ranks_in_short(result: Result, ranks: Table) -> Table:
    """The table of ranks without a line for its title: the first heading says what the numbers are."""
    per = "" if isinstance(result, DurationResult) else f" {per_whole(result.attribution)}"
    per = "" if len(result.attribution.steps) == 1 else per
    first = Column("rank", label=f"ms{per}", weight=0)
    rows = tuple((f"rank {row[0]}", *row[1:]) for row in ranks.rows)
    return replace(ranks, title="", columns=(first, *ranks.columns[1:]), rows=rows)


def _print_verdict(console: Console, result: Result, page: Page, in_short: bool = True) -> None:
    """What was run, how it ended, the verdict, and its numbers."""
    _say(console, facts_in_a_row(console, page.facts) if in_short else _BETWEEN_FACTS.join(page.facts), "dim")
    for failure in page.out_of_memory:
        _say(console, visible(failure), f"bold {COLOUR[Severity.CRITICAL]}")
    for card in page.urgent:
        _say(console, f"{card.title}. {card.action}", f"bold {COLOUR[Severity.CRITICAL]}")
    if page.outcome is not None:
        _say(console, page.outcome.headline, f"bold {COLOUR[Severity.CRITICAL]}")
        _say(
            console,
            f"{page.outcome.action} The evidence: diag triage {visible(in_command(str(result.tables.root)))}".strip(),
        )
        console.print()
        _say(console, f"{shown.UNTIL_THEN}:", "dim")
    _say(console, page.verdict.headline, f"bold {COLOUR[page.verdict.severity]}")
    if page.since:
        _say(console, page.since)
    print_together(console, page.verdict.facts_in_short, "", _numbers(console, page), "dim")


_NAMES_THE_STEP = re.compile(r"(?:% of|-bound,) \d\S* \S+ a (?:step|window)\b")


def _numbers(console: Console, page: Page) -> str:
    """The metrics in one line; without the step time where there is no room and the headline begins with it."""
    shown = [spaced(f"{metric.label} {metric.value}") for metric in page.metrics]
    whole, rest = " · ".join(shown), " · ".join(shown[1:])
    named = _NAMES_THE_STEP.search(spaced(page.verdict.headline))
    return rest if named and rows_of(console, whole) > rows_of(console, rest) else whole


def _print_next_steps(console: Console, page: Page, advised: Advised) -> None:
    """What to do about the cause, the change with the largest gain, and a line for each finding that the headline does
    not name."""
    others = [card for card in page.findings if card.title.lower() not in page.verdict.headline.lower()]
    others = [card for card in others if card not in page.urgent]
    if others and others[0].action == page.verdict.action:  # of a healthy run
        _point(console, shown.LARGEST, others.pop(0).title)  # the headline has its share
    if page.verdict.action:
        action = sentences_of(page.verdict.action)
        _point(console, shown.TO_DO, fitting(console, action, PAGE.rows_to_do, before=f"{shown.TO_DO}: "))
    for change in [change for change in advised.changes if change.how][:1]:
        doubt = () if change.sure else (sentences.TUNE_MEASURES_IT(),)
        pieces = (f"{change.title}: {change.saves}", RISK[change.risk], *doubt, change.memory)
        _point(console, shown.ADVICE, fitting(console, pieces, PAGE.rows_of_advice, "; ", f"{shown.ADVICE}: "))
    most = PAGE.most_other_findings
    for card in others[:most]:
        _point(console, shown.ALSO, _title_and_share(card))
    if (more := len(others) - most) > 0:
        _point(console, shown.ALSO, sentences.AND_MORE_FINDINGS(more=counted(more, "more finding")))


def _title_and_share(card: Card) -> str:
    return f"{card.title} ({card.share})" if card.share else card.title


def _point(console: Console, heading: str, text: str) -> None:
    console.print(f"[bold]{heading}:[/] {escape(spaced(text))}")


def _checked(page: Page) -> list[str]:
    """All that was looked for, and why the rest could not be."""
    found_not = [f"{shown.NOT_FOUND}: {', '.join(page.not_found)}."] if page.not_found else []
    return [*found_not, *(f"{shown.NOT_LOOKED} {asked_and_reason}." for asked_and_reason in page.not_looked)]


def _checked_in_short(page: Page, coverage: Coverage) -> str:
    """How much was looked for, in one line."""
    reasons, causes = Counter(item.reason for item in coverage.not_looked), counted(len(page.not_found), "cause")
    if not reasons:
        return sentences.CAUSES_RULED_OUT(causes=causes) if page.not_found else ""
    commonest, _ = reasons.most_common(1)[0]
    more = len(reasons) - 1
    why = commonest if not more else sentences.AND_MORE_REASONS(reason=commonest, more=counted(more, "more reason"))
    return sentences.CAUSES_RULED_OUT_OR_UNSEEN(causes=causes, unseen=reasons.total(), why=why)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(escape(spaced(text)), style=style or None)


def print_advice(console: Console, advised: Advised) -> None:
    """The changes worth trying, or why nothing is predicted; nothing for a healthy run."""
    for reason in advised.not_predicted:
        console.print()
        _say(console, reason, "dim")
    if not advised.changes:
        return
    console.print()
    _say(console, shown.ADVICE, "bold")
    _say(console, advised.basis, "dim")
    for number, change in enumerate(advised.changes, start=1):
        console.print(f"{number}. [bold]{escape(spaced(change.title))}[/]")
        console.print(Padding(escape(spaced("; ".join((change.gain, *change.price)))), (0, 0, 0, 3)))
        for line in change.how.splitlines():
            console.print(Padding(f"[cyan]{escape(line)}[/]", (0, 0, 0, 3)))


def _print_finding(console: Console, finding: Card, first: bool) -> None:
    console.print()
    cost = f" ({spaced(finding.cost)})" if finding.cost else ""
    console.print(f"[{COLOUR[finding.severity]}]●[/] [bold]{escape(spaced(finding.title))}[/]{cost}")
    if finding.action:
        console.print(Padding(f"[bold]{shown.TO_DO}:[/] {escape(finding.action)}", (0, 0, 0, 2)))
    for rows, value, table in finding.evidence.texts()[: None if first else 1]:
        console.print(Padding(f"[dim]{escape(spaced(f'{rows} = {value} ({table})'))}[/]", (0, 0, 0, 2)))


def print_gaps(console: Console, gaps: Sequence[Gap], most: int | None = None) -> None:
    """What could not be read or used, one line each; only the first ``most``."""
    most = PAGE.most_gaps if most is None else most
    for gap in gaps[:most]:
        console.print(f"[yellow]![/] {escape(visible(gap.path))}: {escape(visible(gap.reason))}")
    if (more := len(gaps) - most) > 0:
        console.print(f"[yellow]![/] and {more:,} more, listed by --json")


# -- jobs --------------------------------------------------------------------------------------------------------------
#
# What ``diag analyze`` shows for several jobs: a list, with the verdict of each.


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
        console.print(f"  [cyan]{escape(_command('analyze', entry.job.paths))}[/]", soft_wrap=True)
    console.print()
    if all(len(entry.job.paths) == 1 for entry in entries[:2]):
        both = [path for entry in entries[:2] for path in entry.job.paths]
        console.print(escape(f"To compare two: {_command('compare', both)}"), style="dim", soft_wrap=True)
    print_gaps(console, jobs.unused)


def _line(console: Console, text: str, style: str) -> None:
    console.print(Padding(f"[{style}]{escape(spaced(text))}[/]", (0, 0, 0, 2)))


def _command(name: str, paths: Sequence[str]) -> str:
    named = [visible(masked(name_of(path))) for path in paths[: PAGE.most_job_paths]]
    return shlex.join(["diag", name, *named]) + (" ..." if len(paths) > len(named) else "")


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
