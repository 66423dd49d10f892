"""How a cross-check and the analyses taken from HTA are shown: as text, and as parts of the JSON contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.crosscheck.model import (
    AGREE_PERCENT,
    Comparison,
    CriticalPath,
    CrossCheck,
    KernelSequences,
    Quantity,
    RankCheck,
)
from diag.show.policy import PAGE
from diag.words.formatting import rank_ranges
from diag.words.table import (
    COUNT,
    NUMBER,
    PRECISE_SHARE,
    TEXT_RIGHT,
    THOUSANDTHS_OF_MS,
    Cell,
    Column,
    Table,
    table_of,
)
from diag.words.terminal import report_console

from .table import print_table

_ANALYSIS = {CriticalPath: "critical-path", KernelSequences: "sequences"}


def to_dict(check: CrossCheck | None, offered: Sequence[CriticalPath | KernelSequences]) -> dict[str, Any]:
    """The keys ``cross_check`` and ``hta`` of the JSON document; each only if it was requested."""
    content: dict[str, Any] = {"cross_check": _check_to_dict(check)} if check else {}
    if offered:
        content["hta"] = [{"analysis": _ANALYSIS[type(analysis)], **asdict(analysis)} for analysis in offered]
    return content


def _check_to_dict(check: CrossCheck) -> dict[str, Any]:
    content = asdict(check)
    for rank, shown in zip(check.ranks, content["ranks"], strict=True):
        for comparison, item in zip(rank.comparisons, shown["comparisons"], strict=True):
            item["unit"] = "percent" if comparison.quantity == Quantity.OVERLAP else "ns"
    return content


def print_cross_check(check: CrossCheck, console: Console | None = None) -> None:
    """The numbers side by side, then what is not compared."""
    console = console or report_console()
    console.print()
    title = f"Compared with HolisticTraceAnalysis {check.version}, in the time window that it analyses; milliseconds"
    console.print(escape(title), style="italic")
    compared = [rank for rank in check.ranks if rank.comparisons]
    if compared:
        print_table(console, cross_check_table(compared))
    for line in _errors(check):
        console.print(f"[yellow]![/] {escape(line)}")
    for note in check.notes:
        console.print(Padding(f"[dim]{escape(note)}[/]", (0, 0, 0, 2)))
    if compared and all(item.agrees for rank in compared for item in rank.comparisons):
        console.print(f"[dim]Every number agrees within {AGREE_PERCENT} %.[/]")


def print_offered(analysis: CriticalPath | KernelSequences, console: Console | None = None) -> None:
    """A compact summary: where the path's time goes and its longest pieces; or the sequences and their time."""
    console = console or report_console()
    console.print()
    if isinstance(analysis, CriticalPath):
        length = "" if analysis.error else f": {THOUSANDTHS_OF_MS.text(analysis.dur_ns)} ms"
        title = f"HTA's critical path, rank {analysis.rank}, step {analysis.step}{length}"
    else:
        kernels = f"at least {analysis.length} kernels under *{analysis.operator}*"
        title = f"HTA's kernel sequences of {kernels}, rank {analysis.rank}"
    console.print(escape(title), style="italic")
    if analysis.error:
        console.print(f"[yellow]![/] {escape(f'HTA fails: {analysis.error}')}")
    elif isinstance(analysis, CriticalPath):
        _print_path(analysis, console)
    else:
        _print_sequences(analysis, console)


def _print_path(path: CriticalPath, console: Console) -> None:
    print_table(
        console,
        table_of(
            "critical_path",
            "",
            {
                Column("kind", weight=0): [share.kind for share in path.shares],
                Column("ns", THOUSANDTHS_OF_MS, label=""): [share.ns for share in path.shares],
                Column("share", PRECISE_SHARE): [share.ns / path.dur_ns for share in path.shares],
                Column("pieces", COUNT): [share.pieces for share in path.shares],
            },
        ),
    )
    console.print("longest pieces", style="dim")
    for edge in path.longest[: PAGE.most_cross_check_edges]:
        console.print(
            Padding(escape(f"{THOUSANDTHS_OF_MS.text(edge.ns)} ms  {edge.kind}: {_short(edge.name)}"), (0, 0, 0, 2))
        )


def _print_sequences(analysis: KernelSequences, console: Console) -> None:
    if not analysis.sequences:
        console.print("no sequence found: try another operator (a part of its name) or a smaller length", style="dim")
    for item in analysis.sequences[: PAGE.most_cross_check_sequences]:
        on_device, on_host = map(THOUSANDTHS_OF_MS.text, (item.device_ns, item.host_ns))
        times = f"{on_device} ms on the device, {on_host} on the host"
        console.print(escape(f"{item.count:,} times, {times}: {_short(item.operator)}"))
        more = f" … {len(item.kernels)} kernels" if len(item.kernels) > PAGE.most_cross_check_kernels else ""
        kernels = (
            " → ".join(
                _short(name, PAGE.cross_check_kernel_width) for name in item.kernels[: PAGE.most_cross_check_kernels]
            )
            + more
        )
        console.print(Padding(f"[dim]{escape(kernels)}[/]", (0, 0, 0, 2)))
    if analysis.found > PAGE.most_cross_check_sequences:
        console.print(f"[dim]… and {analysis.found - PAGE.most_cross_check_sequences} less frequent ones.[/]")


def cross_check_table(ranks: Sequence[RankCheck]) -> Table:
    """Two rows for each rank, ours and HTA's, and a third one where they disagree."""
    shown = ranks[: PAGE.most_cross_check_ranks]
    rows: list[tuple[Any, ...]] = []
    for rank in shown:
        items = {item.quantity: item for item in rank.comparisons}
        rows.append((_label(rank, ranks), "diag", *(_value(items[q], items[q].ours) for q in Quantity)))
        rows.append(("", "HTA", *(_value(items[q], items[q].hta) for q in Quantity)))
        gaps = [None if items[q].agrees else _gap(items[q]) for q in Quantity]
        if any(gaps):
            rows.append(("", "", *gaps))
    columns = (
        Column("rank", weight=0),
        Column("source", TEXT_RIGHT, label="", weight=0),
        *(Column(quantity.name.lower(), NUMBER, label=str(quantity)) for quantity in Quantity),
    )
    return Table("cross_check", "", columns, tuple(rows), left_out=len(ranks) - len(shown), noun="rank")


def _value(item: Comparison, value: float | None) -> Cell:
    if value is None:
        return Cell(None, "none")
    return Cell(value, f"{value:.2f}%" if item.quantity == Quantity.OVERLAP else THOUSANDTHS_OF_MS.text(value))


def _gap(item: Comparison) -> Cell:
    unit = " points" if item.quantity == Quantity.OVERLAP else "%"
    return Cell(item.difference, f"{item.difference:+.2f}{unit}")


def _errors(check: CrossCheck) -> list[str]:
    """Each error once, after the ranks or the file that it concerns."""
    ranks: dict[str, set[int]] = {}
    for rank in check.ranks:
        if rank.error and rank.rank is not None:
            ranks.setdefault(rank.error, set()).add(rank.rank)
    lines = [f"{rank_ranges(sorted(where))}: not compared: {error}" for error, where in ranks.items()]
    files = [rank for rank in check.ranks if rank.error and rank.rank is None]
    return lines + [f"{Path(file.path).name}: not compared: {file.error}" for file in files]


def _label(rank: RankCheck, ranks: Sequence[RankCheck]) -> str:
    """The rank, with the file's name where the rank has several files."""
    several = sum(check.rank == rank.rank for check in ranks) > 1
    return f"{rank.rank} {Path(rank.path).name}" if several else str(rank.rank)


def _short(name: str, width: int | None = None) -> str:
    width = PAGE.cross_check_name_width if width is None else width
    return name if len(name) <= width else name[: width - 1] + "…"
