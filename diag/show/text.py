"""The report that ``diag analyze`` prints: the answer first, then why, then how sure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from diag.api import Result, describe_run
from diag.model.steps import Advice, Finding, Gap, Risk, Severity
from diag.words.cells import report_console, size
from diag.words.formatting import counted, spaced, visible
from diag.words.rank_table import STALLS_TITLE, rank_table, stall_lines
from diag.words.wording import RISK, divided_into, not_predicted, sentence, steps_counted, verdict_facts

# -- advice ------------------------------------------------------------------------------------------------------------
#
# What to change, as text: the gain with its interval, the price in memory, the risk, and how to do it.

_TOLD_IN_BYTES = (Risk.SAFE, Risk.MEMORY)


def print_advice(console: Console, result: Result) -> None:
    """The changes worth trying, or why nothing is predicted; nothing for a healthy run."""
    found = result.recommendation
    if not found.advice:
        for reason in not_predicted(found.not_advised):
            console.print()
            console.print(f"[dim]{escape(reason)}[/]")
        return
    console.print()
    console.print(
        f"[bold]Try first[/] [dim](gains predicted by replaying the steps; error {found.replay_error:.1%})[/]"
    )
    for number, advice in enumerate(found.advice, start=1):
        console.print(f"{number}. [bold]{escape(sentence(advice.change))}[/]")
        console.print(Padding(escape(f"{_gain(advice)}{_price(advice)}"), (0, 0, 0, 3)))
        how = advice.command or next(iter(advice.code.values()), "")
        for line in how.splitlines():
            console.print(Padding(f"[cyan]{escape(line)}[/]", (0, 0, 0, 3)))


def _gain(advice: Advice) -> str:
    low, likely, high = (value / 1e6 for value in advice.predicted_gain_ns)
    doubt = ", so it may gain nothing: `diag tune` measures it" if low <= 0 else ""
    return f"{likely:,.0f} ms a step less, {advice.gain_share:.0%} of it (between {low:,.0f} and {high:,.0f}{doubt})"


def _price(advice: Advice) -> str:
    parts = []
    if advice.memory_delta_bytes is None:
        parts.append("memory not known")
    elif advice.memory_delta_bytes:
        more = "more" if advice.memory_delta_bytes > 0 else "less"
        parts.append(f"{size(abs(advice.memory_delta_bytes))} {more} memory for parameters and gradients")
    if advice.risk not in _TOLD_IN_BYTES:
        parts.append(RISK[advice.risk])
    return "".join(f"; {part}" for part in parts)


_MOST_GAPS = 50  # a line each
COLOUR = {Severity.HEALTHY: "green", Severity.WARN: "yellow", Severity.CRITICAL: "red"}


def print_report(result: Result, console: Console | None = None) -> None:
    """Prints the verdict and what it rests on."""
    console = console or report_console()
    verdict = result.verdict
    console.print(escape(caption(result)), style="dim")
    console.print()
    console.print(f"[bold {COLOUR[verdict.severity]}]{escape(verdict.headline)}[/]")
    first, *facts = verdict_facts(verdict, steps_counted(result.attribution))
    said = "; ".join((first, *(f"{fact[:1].lower()}{fact[1:]}" for fact in facts)))
    console.print(escape(f"{spaced(said)}."))
    for number, finding in enumerate(result.examination.findings):
        _print_finding(console, finding, first=number == 0)
    print_advice(console, result)
    console.print()
    _print_ranks(console, result)
    _print_stalls(console, result)
    _print_coverage(console, result)


def caption(result: Result) -> str:
    """Where the run lies and what it was, in one line."""
    run = describe_run(result)
    ranks = run["world_size"] or len(run["ranks"])
    parts = [
        str(run["path"]),
        f"{ranks} rank{'s' if ranks != 1 else ''}",
        run["strategy"],
        run["backend"],
        run["device"],
        spaced(divided_into(run)),
    ]
    return " · ".join(str(part) for part in parts if part)


def _print_finding(console: Console, finding: Finding, first: bool) -> None:
    console.print()
    cost = f" ({finding.share:.0%} of the step)" if finding.share else ""
    console.print(f"[{COLOUR[finding.severity]}]●[/] [bold]{escape(finding.title)}[/]{cost}")
    if finding.action:
        console.print(Padding(f"[bold]do:[/] {escape(finding.action)}", (0, 0, 0, 2)))
    for item in finding.evidence if first else finding.evidence[:1]:
        line = f"{escape(item.table)}: {escape(item.filter)} = {_number(item.value, item.unit)}"
        console.print(Padding(f"[dim]{line}[/]", (0, 0, 0, 2)))


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,.4g} {unit}"


def _print_ranks(console: Console, result: Result) -> None:
    found = rank_table(result.attribution, result.scheduled)
    console.print(escape(found.title), style="italic")
    table = Table(box=None, pad_edge=False)
    for name in ("rank", *found.columns):
        table.add_column(name, justify="right")
    for rank, cells in found.rows:
        table.add_row(str(rank), *cells, style="bold red" if rank in result.verdict.culprit_ranks else "")
    if found.left_out:
        table.add_row("…", *[""] * len(found.columns))
    console.print(table)


def _print_stalls(console: Console, result: Result) -> None:
    lines = stall_lines(result.attribution)
    if not lines:
        return
    console.print()
    console.print(STALLS_TITLE, style="italic")
    for line in lines:
        console.print(Padding(escape(visible(line)), (0, 0, 0, 2)))


def _print_coverage(console: Console, result: Result) -> None:
    coverage = result.coverage
    console.print()
    total = len(coverage.ranks_used) + len(coverage.ranks_missing)
    clock = coverage.clock_uncertainty_ns
    clocks = "one clock" if clock == 0 else f"clocks ± {clock / 1e6:.2f} ms" if clock is not None else "not aligned"
    if coverage.clock_drift_ppm:
        clocks += f" after a drift of {coverage.clock_drift_ppm:.1f} ppm between them was taken out"
    console.print(
        f"[dim]{len(coverage.ranks_used)} of {spaced(counted(total, 'rank'))}{f', {clocks}' if total > 1 else ''}.[/]"
    )
    if result.examination.not_found:
        console.print(f"[dim]Looked for, not found: {escape(', '.join(result.examination.not_found))}.[/]")
    by_reason: dict[str, list[str]] = {}
    for item in coverage.not_looked:
        by_reason.setdefault(item.reason, []).append(item.question)
    for reason, questions in by_reason.items():
        console.print(f"[dim]Could not look for {escape(', '.join(questions))}: {escape(reason)}.[/]")
    for note in coverage.notes:
        console.print(f"[yellow]![/] {escape(note)}.")
    print_gaps(console, coverage.skipped)


def print_gaps(console: Console, gaps: Sequence[Gap]) -> None:
    """What could not be read or used, a line each, of very many the first."""
    for gap in gaps[:_MOST_GAPS]:
        console.print(f"[yellow]![/] {escape(visible(gap.path))}: {escape(visible(gap.reason))}")
    if (more := len(gaps) - _MOST_GAPS) > 0:
        console.print(f"[yellow]![/] and {more:,} more, which --json names")
