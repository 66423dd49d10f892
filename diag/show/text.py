"""What ``diag analyze`` prints: the answer first, then why, then how sure; and the tables behind it (``--table``)."""

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
from rich.table import Table

from diag.api import Job, Jobs, Result, describe_run
from diag.errors import DiagError, ExitCode
from diag.model import Gap
from diag.model.breakdown import (
    Bound,
    Breakdowns,
    CollectiveStat,
    CollectiveTable,
    KernelKind,
    KernelStat,
    KernelTable,
    Measure,
    ModuleTable,
    PathTable,
)
from diag.model.steps import Coverage, Severity, Verdict
from diag.rundir.lines import ANALYSIS_VERSION
from diag.show import page as shown
from diag.show.memory import snapshots_sentence
from diag.show.page import Advised, Card, Page, advice_of, page_of
from diag.show.policy import PAGE
from diag.show.ranks import EXCHANGES_HELP, EXCHANGES_TITLE, STALLS_TITLE, exchange_table
from diag.traces.kineto_names import P2P_OPS
from diag.words.formatting import counted, masked, short_name, spaced, visible
from diag.words.terminal import UNKNOWN, ms, percent, print_columns, report_console, short, size
from diag.words.wording import fused_words, per_whole, run_facts

from .json import coverage_to_dict, verdict_to_dict

COLOUR = {Severity.HEALTHY: "green", Severity.WARN: "yellow", Severity.CRITICAL: "red"}


def print_report(result: Result, console: Console | None = None) -> None:
    """Prints the verdict and its evidence."""
    console = console or report_console()
    page = page_of(result)
    _say(console, " · ".join(page.facts), "dim")
    console.print()
    for failure in page.out_of_memory:
        _say(console, visible(failure), f"bold {COLOUR[Severity.CRITICAL]}")
    if page.outcome is not None:
        _say(console, page.outcome.headline, f"bold {COLOUR[Severity.CRITICAL]}")
        _say(console, f"{page.outcome.action} The evidence: diag triage {visible(str(result.tables.root))}".strip())
        console.print()
        _say(console, f"{shown.UNTIL_THEN}:", "dim")
    _say(console, page.verdict.headline, f"bold {COLOUR[page.verdict.severity]}")
    if page.verdict.facts:
        first, *facts = page.verdict.facts
        _say(console, "; ".join((first, *(f"{fact[:1].lower()}{fact[1:]}" for fact in facts))) + ".")
    _say(console, " · ".join(f"{metric.label} {metric.value}" for metric in page.metrics), "dim")
    for number, finding in enumerate(page.findings):
        _print_finding(console, finding, first=number == 0)
    print_advice(console, advice_of(result))
    console.print()
    _print_ranks(console, page)
    if page.stall_lines:
        console.print()
        _say(console, STALLS_TITLE, "italic")
        for line in page.stall_lines:
            console.print(Padding(escape(visible(line)), (0, 0, 0, 2)))
    console.print()
    if snapshots := snapshots_sentence(result.tables.snapshots):
        _say(console, snapshots)
    _say(console, page.basis, "dim")
    if page.not_found:
        _say(console, f"{shown.NOT_FOUND}: {', '.join(page.not_found)}.", "dim")
    for questions_and_reason in page.not_looked:
        _say(console, f"{shown.NOT_LOOKED} {questions_and_reason}.", "dim")
    for note in page.notes:
        console.print(f"[yellow]![/] {escape(spaced(note))}")
    print_gaps(console, result.coverage.skipped)


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


def caption(result: Result) -> str:
    """What was run, in one line."""
    return spaced(" · ".join(run_facts(describe_run(result), result.coverage)))


def _print_finding(console: Console, finding: Card, first: bool) -> None:
    console.print()
    cost = f" ({spaced(finding.cost)})" if finding.cost else ""
    console.print(f"[{COLOUR[finding.severity]}]●[/] [bold]{escape(spaced(finding.title))}[/]{cost}")
    if finding.action:
        console.print(Padding(f"[bold]{shown.TO_DO}:[/] {escape(finding.action)}", (0, 0, 0, 2)))
    for table, rows, value in finding.evidence if first else finding.evidence[:1]:
        console.print(Padding(f"[dim]{escape(spaced(f'{table}: {rows} = {value}'))}[/]", (0, 0, 0, 2)))


def _print_ranks(console: Console, page: Page) -> None:
    _say(console, page.ranks.title, "italic")
    table = Table(box=None, pad_edge=False)
    for name in ("rank", *page.ranks.columns):
        table.add_column(name, justify="right")
    for rank, culprit, cells in page.ranks.rows:
        table.add_row(str(rank), *cells, style="bold red" if culprit else "")
    console.print(table)
    if page.ranks.left_out:
        console.print(f"[dim]… and {page.ranks.left_out:,} more ranks.[/]")


def print_gaps(console: Console, gaps: Sequence[Gap]) -> None:
    """What could not be read or used, one line each; only the first ``most_gaps``."""
    for gap in gaps[: PAGE.most_gaps]:
        console.print(f"[yellow]![/] {escape(visible(gap.path))}: {escape(visible(gap.reason))}")
    if (more := len(gaps) - PAGE.most_gaps) > 0:
        console.print(f"[yellow]![/] and {more:,} more, listed by --json")


# -- tables ------------------------------------------------------------------------------------------------------------
#
# At most 110 columns, largest rows first.

_OUTSIDE = "outside any module"
_CLASSES = {KernelKind.COMMUNICATION: "comm."}
_NOTED = {
    "collectives": "collective",
    "kernels": "kernels",
    "modules": "module",
    "efficiency": "recomputation",
    "path": "module",
}
_NAMES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}


def print_table(result: Result, name: str, console: Console | None = None) -> None:
    """Prints one of "collectives", "kernels", "modules", "efficiency" and "path" to standard output."""
    console = report_console(console)
    breakdowns, per = result.breakdowns, per_whole(result.attribution)
    console.print()
    if name == "collectives":
        _print_collectives(console, breakdowns.collectives)
    elif name == "kernels":
        _print_kernels(console, breakdowns.kernels, per)
    elif name == "modules":
        for table in breakdowns.modules:
            _print_modules(console, table, breakdowns.kernels.unit)
    elif name == "efficiency":
        _print_efficiency(console, breakdowns)
    elif name == "path":
        _print_path(console, breakdowns.path, per)
    for note in breakdowns.notes:
        if _NOTED.get(name, "") in note:
            console.print(f"[dim]{escape(note[:1].upper() + note[1:])}.[/]")


# -- collectives -------------------------------------------------------------------------------------------------------


def _print_collectives(console: Console, table: CollectiveTable) -> None:
    if not table.rows:
        console.print("No collective was recorded in the counted steps.", style="italic")
        return
    rows = table.rows[: PAGE.most_text_rows]
    console.print(
        "Collectives: mean milliseconds per call; exposed and overlapped time per rank and step", style="italic"
    )
    columns = {
        "operation": [_NAMES.get(row.op, row.op.replace("_", "-")) for row in rows],
        "group": [_group(row, len({row.axis for row in table.rows}) > 1) for row in rows],
        "size": [_size(row) for row in rows],
        "calls": [f"{row.count:,}" for row in rows],
        "time": [ms(row.duration_mean_ns) for row in rows],
        "wait": [ms(row.wait_mean_ns) for row in rows],
        "max wait": [ms(row.wait_max_ns) for row in rows],
        "last": [_last(row) for row in rows],
        "transfer": [_transfer(row) for row in rows],
        "bus GB/s": [_bus(row) for row in rows],
        "of best": [percent(row.efficiency) for row in rows],
        "exposed": [ms(row.exposed_ns, table.rank_steps) for row in rows],
        "overlapped": [ms(row.hidden_ns, table.rank_steps) for row in rows],
    }
    print_columns(console, columns, left=("operation", "group"), more=len(table.rows) - len(rows))
    if table.rest_exposed_ns:
        rest = ms(table.rest_exposed_ns, table.rank_steps)
        console.print(f"[dim]Exposed outside these calls (in an earlier step, or in a wait): {rest} ms.[/]")
    if any(row.bandwidth_is_bound or row.transfer_mean_ns is None for row in rows):
        console.print("[dim]≤ and ≥: from the shortest duration over the ranks, which needs no common clock.[/]")
    if any(row.inferred for row in rows):
        console.print("[dim]* matched by the order of calls: the trace has no sequence numbers.[/]")
    _print_exchanges(console, table)


def _print_exchanges(console: Console, table: CollectiveTable) -> None:
    """What each rank sends and receives in all-to-alls, where any were recorded."""
    exchanged = exchange_table(table.all_to_alls)
    if not exchanged.rows:
        return
    console.print()
    console.print(EXCHANGES_TITLE, style="italic")
    cells = list(zip(*exchanged.rows, strict=True))
    columns = {name: [spaced(cell) for cell in column] for name, column in zip(exchanged.columns, cells, strict=True)}
    print_columns(console, columns, left=("group",), more=exchanged.left_out)
    for line in (*exchanged.lead, EXCHANGES_HELP):
        console.print(f"[dim]{escape(line)}[/]")


def _group(row: CollectiveStat, several: bool) -> str:
    """``several``: axes of a mesh, so that each needs its name."""
    if row.op in P2P_OPS and len(row.members) == 2:
        return f"{row.members[0]} to {row.members[1]}{'*' if row.inferred else ''}"
    name = (several and row.axis) or row.group.split("@")[0][:8] or "?"
    members = f"x{row.group_size}" if row.group_size else ""
    return f"{name}{members}{'*' if row.inferred else ''}"


def _size(row: CollectiveStat) -> str:
    if not row.bytes_low:
        return UNKNOWN
    return size(row.bytes_low) if row.bytes_low == row.bytes_high else f"{size(row.bytes_low)}+"


def _last(row: CollectiveStat) -> str:
    return f"{row.last_rank} ({row.last_share:.0%})" if row.last_share is not None else UNKNOWN


def _transfer(row: CollectiveStat) -> str:
    return ms(row.transfer_mean_ns) if row.transfer_mean_ns is not None else f"≤{ms(row.transfer_bound_ns)}"


def _bus(row: CollectiveStat) -> str:
    if row.busbw_gb_s is None:
        return UNKNOWN
    return f"{'≥' if row.bandwidth_is_bound else ''}{short(row.busbw_gb_s)}"


# -- kernels -----------------------------------------------------------------------------------------------------------


def _print_kernels(console: Console, table: KernelTable, per: str) -> None:
    if not table.rows:
        console.print("No kernel was recorded in the counted steps.", style="italic")
        return
    on_device = table.unit == "kernel"
    rows = table.rows[: PAGE.most_text_rows]
    busy = ms(table.busy_ns, table.rank_steps)
    subject = "Kernels: the device is" if on_device else "Operators, self time: the host is"
    console.print(f"{subject} busy {busy} ms per rank and step, overlaps counted twice", style="italic")
    steps = table.rank_steps
    columns = {
        "operator: kernel" if on_device else "operator": [_label(row, on_device) for row in rows],
        "class": [_CLASSES.get(row.kind, str(row.kind)) for row in rows],
        "calls": [f"{row.count / steps:,.0f}" for row in rows],
        "ms": [ms(row.total_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
        "mean µs": [short(row.mean_ns / 1e3) for row in rows],
        "max µs": [short(row.max_ns / 1e3) for row in rows],
        "bound by": [_bound(row) for row in rows],
        "TFLOP/s": [short(row.tflop_s) for row in rows],
        "GB/s": [short(row.gb_s) for row in rows],
    }
    left = ("operator: kernel", "operator", "class", "bound by")
    print_columns(console, columns, left=left, more=len(table.rows) - len(rows))
    console.print(f"[dim]{_by_class(table)}[/]")
    if table.fused_ns:
        console.print(f"[dim]{fused_words(table.fused_ns / max(1, steps), per)}.[/]")
    if table.peak is not None and table.peak.ridge is not None:
        peak = table.peak
        console.print(
            f"[dim]{escape(peak.name)}: {peak.tflop_s:,g} TFLOP/s and {peak.gb_s:,g} GB/s, math-bound from "
            f"{peak.ridge:.0f} FLOPs per byte. (memory): by kernel class, not measured.[/]"
        )


def _label(row: KernelStat, on_device: bool) -> str:
    name = short_name(row.name).removeprefix("aten::")
    operator = row.operator.removeprefix("aten::")
    label = f"{operator}: {name}" if on_device and operator and row.kind != KernelKind.COMMUNICATION else name
    return label if row.exposed_ns == row.total_ns else f"{row.exposed_ns / row.total_ns:.0%} exposed: {label}"


def _bound(row: KernelStat) -> str:
    if row.bound == Bound.UNKNOWN:
        return UNKNOWN
    return str(row.bound) if row.bound_from == "shapes" else f"({row.bound})"


def _by_class(table: KernelTable) -> str:
    shares: dict[str, int] = {}
    for row in table.rows:
        shares[row.kind] = shares.get(row.kind, 0) + row.total_ns
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return "By class: " + ", ".join(f"{kind} {ns / table.busy_ns:.1%}" for kind, ns in ordered if table.busy_ns) + "."


# -- modules and efficiency --------------------------------------------------------------------------------------------


def _print_modules(console: Console, table: ModuleTable, unit: str) -> None:
    rows, steps = table.rows[: PAGE.most_text_rows], table.rank_steps
    where = "device" if unit == "kernel" else "operator"
    console.print(
        f"Modules by {escape(table.source)}: {where} milliseconds per rank and step, without communication",
        style="italic",
    )
    columns = {
        "module": [row.name for row in rows],
        "in": [row.parent for row in rows],
        "calls": [short(row.calls / steps) for row in rows],
        "forward": [ms(row.forward_ns, steps) for row in rows],
        "backward": [ms(row.backward_ns, steps) for row in rows],
        "recomputed": [ms(row.recompute_ns, steps) for row in rows],
        "self": [ms(row.self_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
        "host": [ms(row.host_ns, steps) for row in rows],
    }
    if not any(row.recompute_ns for row in rows):
        columns.pop("recomputed")
    print_columns(console, columns, left=("module", "in"), more=len(table.rows) - len(rows))
    if table.unattributed_ns and table.busy_ns:
        backward = table.unattributed_backward_ns / table.unattributed_ns
        console.print(
            f"[dim]In no module: {ms(table.unattributed_ns, steps)} of {ms(table.busy_ns, steps)} ms "
            f"({table.unattributed_ns / table.busy_ns:.0%}), {backward:.0%} of it backward.[/]"
        )


def _print_efficiency(console: Console, breakdowns: Breakdowns) -> None:
    console.print("Efficiency", style="italic")
    measures = breakdowns.efficiency
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, measure in (
        ("model FLOPs utilisation (MFU)", measures.mfu),
        ("hardware FLOPs utilisation (HFU)", measures.hfu),
        ("recomputed share of compute", measures.recompute_share),
        ("compute lost to contention", measures.contention_share),
    ):
        table.add_row(name, _measure(measure))
    for peak in breakdowns.memory_peaks[: PAGE.most_text_rows]:
        of = f" of {size(peak.capacity)}" if peak.capacity else ""
        held = f"allocated {size(peak.allocated)}, reserved {size(peak.reserved)}{of}"
        table.add_row(f"memory peak of rank {peak.rank}", held)
    console.print(table)


def _measure(measure: Measure) -> str:
    if measure.value is None:
        return f"[dim]not known: {escape(measure.reason)}[/]"
    value = f"{measure.value:.1%}" if measure.value >= 0.01 else f"{measure.value:.2%}"
    return f"{value} [dim]({escape(measure.basis)})[/]"


# -- critical path by rank, category and module ------------------------------------------------------------------------


def _print_path(console: Console, table: PathTable, per: str) -> None:
    """Prints the rows with most of the steps' time, and how much time is outside any module."""
    if not table.rows:
        console.print("No step was recorded.", style="italic")
        return
    rows, steps = table.rows[: PAGE.most_text_rows], len(table.steps)
    which = f"{steps} {'traced' if table.traced else 'recorded'} step{'s' if steps > 1 else ''}"
    whole = ms(table.total_ns, steps)
    console.print(
        f"Critical path: {whole} ms {per} ({which}), by the rank that others wait for and what it does",
        style="italic",
    )
    columns = {
        "rank": [str(row.rank) for row in rows],
        "category": [row.category for row in rows],
        "module": [row.module or _OUTSIDE for row in rows],
        "ms": [ms(row.total_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
    }
    print_columns(console, columns, left=("category", "module"), more=len(table.rows) - len(rows))
    if table.in_modules_ns < table.total_ns:
        rest = table.total_ns - table.in_modules_ns
        console.print(f"[dim]Outside any module: {ms(rest, steps)} ms ({rest / table.total_ns:.0%}).[/]")


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
    where = f"{visible(masked(jobs.paths[0]))} holds" if len(jobs.paths) == 1 else "There are"
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
    shown = [visible(masked(path)) for path in paths[: PAGE.most_job_paths]]
    return shlex.join(["diag", name, *shown]) + (" ..." if len(paths) > len(shown) else "")


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
