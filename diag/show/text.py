"""The parts of a report that stand behind its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.api import Result
from diag.deferred import by_name
from diag.model import Gap
from diag.show import page as shown
from diag.show.answer import (
    BETWEEN_FACTS,
    COLOUR,
    Part,
    causes_ruled_out,
    facts_in_a_row,
    head,
    more_of,
    numbers_of,
    others_of,
    point,
    print_answer,
    title_and_share,
)
from diag.show.fitting import print_together, warning
from diag.show.memory import snapshots_sentence
from diag.show.page import Advised, Card, Page, advice_of, page_of
from diag.show.policy import PAGE
from diag.show.ranks import STALLS_TITLE
from diag.show.table import print_table
from diag.words import sentences
from diag.words.formatting import counted, spaced, visible
from diag.words.terminal import report_console

# Behind an answer, where they are asked for.
_print_breakdowns: Callable[[Result, Console], None] = by_name("diag.show.breakdowns:print_breakdowns")


def print_report(
    result: Result, console: Console | None = None, parts: Collection[Part] = (), paths: Sequence[str] = ()
) -> None:
    """Prints the answer, or the parts that are asked for with it. ``paths``: what was opened, for the commands that go
    on."""
    console = console or report_console()
    if not parts:
        print_answer(result, console, paths)
        return
    page = page_of(result)
    whole = Part.CHECKED in parts
    facts = BETWEEN_FACTS.join(page.facts) if whole else facts_in_a_row(console, page.facts)
    for row in head(result, page, facts):
        console.print(row)
    numbers = BETWEEN_FACTS.join(numbers_of(console, page))
    print_together(console, page.verdict.facts_in_short, "", numbers, "dim")
    if Part.EVIDENCE in parts:
        for number, finding in enumerate(page.findings):
            _print_finding(console, finding, first=number == 0)
        print_advice(console, advice_of(result))
    else:
        _print_next_steps(console, page)
    console.print()
    print_table(console, page.ranks)
    if Part.EVIDENCE in parts and page.stall_lines:
        console.print()
        _say(console, STALLS_TITLE, "italic")
        for line in page.stall_lines:
            console.print(Padding(escape(visible(line)), (0, 0, 0, 2)))
    console.print()
    if snapshots := snapshots_sentence(result.tables.snapshots):
        _say(console, snapshots)
    if whole:
        for line in (page.basis, *_checked(page)):
            _say(console, line, "dim")
    notes = page.notes if whole else page.notes[: PAGE.most_notes_in_short]
    for note in notes:
        console.print(warning(note))
    if more := len(page.notes) - len(notes):
        console.print(warning(sentences.MORE_NOTES(notes=counted(more, "more note"))))
    print_gaps(console, result.coverage.skipped, PAGE.most_gaps if whole else PAGE.most_gaps_in_short)
    if Part.TABLES in parts:
        _print_breakdowns(result, console)
    ruled_out = "" if whole else causes_ruled_out(page, result.coverage)[0]
    rest = [part for part in Part if part not in parts]
    print_together(console, ruled_out, "dim", more_of(console, rest, paths), "dim", command=True)


def _print_next_steps(console: Console, page: Page) -> None:
    """What to do about the cause, and a line for each finding that the headline does not name."""
    if page.verdict.action:
        console.print(point(shown.TO_DO, page.verdict.action))
    for heading, card in others_of(page):
        console.print(point(heading, title_and_share(card)))


def _checked(page: Page) -> list[str]:
    """All that was looked for, and why the rest could not be."""
    found_not = [f"{shown.NOT_FOUND}: {', '.join(page.not_found)}."] if page.not_found else []
    return [*found_not, *(f"{shown.NOT_LOOKED} {asked_and_reason}." for asked_and_reason in page.not_looked)]


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
