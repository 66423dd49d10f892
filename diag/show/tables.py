"""The tables behind the verdict, as ``diag analyze --table`` prints them: at most 110 columns, largest first."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diag.api import Result
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
from diag.traces.comm_names import P2P_OPS
from diag.words.cells import UNKNOWN, ms, percent, print_columns, report_console, short, size
from diag.words.formatting import short_name
from diag.words.wording import fused_words

# -- path table --------------------------------------------------------------------------------------------------------
#
# The critical path by rank, category and module, as ``diag analyze --table path`` prints it.

_MOST_ROWS = 20
_OUTSIDE = "outside any module"


def print_path(console: Console, found: PathTable) -> None:
    """Prints the rows with most of the steps' time, and how much of it no module has."""
    if not found.rows:
        console.print("No step was recorded.", style="italic")
        return
    rows, steps = found.rows[:_MOST_ROWS], len(found.steps)
    which = f"{steps} {'traced' if found.traced else 'recorded'} step{'s' if steps > 1 else ''}"
    whole = ms(found.total_ns, steps)
    console.print(
        f"Critical path: {whole} ms a step ({which}), by who made all others wait, doing what", style="italic"
    )
    columns = {
        "rank": [str(row.rank) for row in rows],
        "category": [row.category for row in rows],
        "module": [row.module or _OUTSIDE for row in rows],
        "ms": [ms(row.total_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
    }
    print_columns(console, columns, left=("category", "module"), more=len(found.rows) - len(rows))
    if found.in_modules_ns < found.total_ns:
        rest = found.total_ns - found.in_modules_ns
        console.print(f"[dim]Outside any module: {ms(rest, steps)} ms ({rest / found.total_ns:.0%}).[/]")


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
    found = result.breakdowns
    console.print()
    if name == "collectives":
        _print_collectives(console, found.collectives)
    elif name == "kernels":
        _print_kernels(console, found.kernels)
    elif name == "modules":
        for table in found.modules:
            _print_modules(console, table, found.kernels.unit)
    elif name == "efficiency":
        _print_efficiency(console, found)
    elif name == "path":
        print_path(console, found.path)
    for note in found.notes:
        if _NOTED.get(name, "") in note:
            console.print(f"[dim]{escape(note[:1].upper() + note[1:])}.[/]")


# -- collectives -------------------------------------------------------------------------------------------------------


def _print_collectives(console: Console, found: CollectiveTable) -> None:
    if not found.rows:
        console.print("No collective was recorded in the counted steps.", style="italic")
        return
    rows = found.rows[:_MOST_ROWS]
    console.print("Collectives: mean milliseconds of a call; exposed and hidden, of a rank and step", style="italic")
    columns = {
        "operation": [_NAMES.get(row.op, row.op.replace("_", "-")) for row in rows],
        "group": [_group(row, len({row.axis for row in found.rows}) > 1) for row in rows],
        "size": [_size(row) for row in rows],
        "calls": [f"{row.count:,}" for row in rows],
        "takes": [ms(row.duration_mean_ns) for row in rows],
        "waits": [ms(row.wait_mean_ns) for row in rows],
        "at most": [ms(row.wait_max_ns) for row in rows],
        "last": [_last(row) for row in rows],
        "transfer": [_transfer(row) for row in rows],
        "bus GB/s": [_bus(row) for row in rows],
        "of best": [percent(row.efficiency) for row in rows],
        "exposed": [ms(row.exposed_ns, found.rank_steps) for row in rows],
        "hidden": [ms(row.hidden_ns, found.rank_steps) for row in rows],
    }
    print_columns(console, columns, left=("operation", "group"), more=len(found.rows) - len(rows))
    if found.rest_exposed_ns:
        rest = ms(found.rest_exposed_ns, found.rank_steps)
        console.print(f"[dim]Exposed beside these calls (in a step before, or in a wait): {rest} ms.[/]")
    if any(row.bandwidth_is_bound or row.transfer_mean_ns is None for row in rows):
        console.print("[dim]≤ and ≥: from the shortest duration over the ranks, which needs no common clock.[/]")
    if any(row.inferred for row in rows):
        console.print("[dim]* matched by the order of calls: the trace has no sequence numbers.[/]")


def _group(row: CollectiveStat, several: bool) -> str:
    """``several``: axes of a mesh, so that each needs its name."""
    if row.op in P2P_OPS and len(row.members) == 2:
        return f"{row.members[0]} to {row.members[1]}{'*' if row.inferred else ''}"
    name = (several and row.axis) or row.group.split("@")[0][:8] or "?"
    size = f"x{row.group_size}" if row.group_size else ""
    return f"{name}{size}{'*' if row.inferred else ''}"


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


def _print_kernels(console: Console, found: KernelTable) -> None:
    if not found.rows:
        console.print("No kernel was recorded in the counted steps.", style="italic")
        return
    on_device = found.unit == "kernel"
    rows = found.rows[:_MOST_ROWS]
    busy = ms(found.busy_ns, found.rank_steps)
    what = "Kernels: the device is" if on_device else "Operators, each without those inside it: the host is"
    console.print(f"{what} busy {busy} ms of a rank and step, overlaps counted twice", style="italic")
    steps = found.rank_steps
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
    print_columns(console, columns, left=left, more=len(found.rows) - len(rows))
    console.print(f"[dim]{_by_class(found)}[/]")
    if found.fused_ns:
        console.print(f"[dim]{fused_words(found.fused_ns / max(1, steps))}.[/]")
    if found.peak is not None and found.peak.ridge is not None:
        peak = found.peak
        console.print(
            f"[dim]{escape(peak.name)}: {peak.tflop_s:,g} TFLOP/s and {peak.gb_s:,g} GB/s, math-bound from "
            f"{peak.ridge:.0f} FLOPs a byte. (memory): by class of kernel, not measured.[/]"
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


def _by_class(found: KernelTable) -> str:
    shares: dict[str, int] = {}
    for row in found.rows:
        shares[row.kind] = shares.get(row.kind, 0) + row.total_ns
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return "By class: " + ", ".join(f"{kind} {ns / found.busy_ns:.1%}" for kind, ns in ordered if found.busy_ns) + "."


# -- modules and efficiency --------------------------------------------------------------------------------------------


def _print_modules(console: Console, found: ModuleTable, unit: str) -> None:
    rows, steps = found.rows[:_MOST_ROWS], found.rank_steps
    where = "device" if unit == "kernel" else "operator"
    console.print(
        f"Modules by {escape(found.source)}: {where} milliseconds of a rank and step, no communication", style="italic"
    )
    columns = {
        "module": [row.name for row in rows],
        "in": [row.parent for row in rows],
        "calls": [short(row.calls / steps) for row in rows],
        "forward": [ms(row.forward_ns, steps) for row in rows],
        "backward": [ms(row.backward_ns, steps) for row in rows],
        "recomputed": [ms(row.recompute_ns, steps) for row in rows],
        "own": [ms(row.self_ns, steps) for row in rows],
        "share": [f"{row.share:.1%}" for row in rows],
        "host": [ms(row.host_ns, steps) for row in rows],
    }
    if not any(row.recompute_ns for row in rows):
        columns.pop("recomputed")
    print_columns(console, columns, left=("module", "in"), more=len(found.rows) - len(rows))
    if found.unattributed_ns and found.busy_ns:
        backward = found.unattributed_backward_ns / found.unattributed_ns
        console.print(
            f"[dim]In no module: {ms(found.unattributed_ns, steps)} of {ms(found.busy_ns, steps)} ms "
            f"({found.unattributed_ns / found.busy_ns:.0%}), {backward:.0%} of it backward.[/]"
        )


def _print_efficiency(console: Console, found: Breakdowns) -> None:
    console.print("Efficiency", style="italic")
    measures = found.efficiency
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, measure in (
        ("model FLOPs utilisation (MFU)", measures.mfu),
        ("hardware FLOPs utilisation (HFU)", measures.hfu),
        ("recomputed part of compute", measures.recompute_share),
        ("compute lost to contention", measures.contention_share),
    ):
        table.add_row(name, _measure(measure))
    for peak in found.memory_peaks[:_MOST_ROWS]:
        of = f" of {size(peak.capacity)}" if peak.capacity else ""
        held = f"allocated {size(peak.allocated)}, reserved {size(peak.reserved)}{of}"
        table.add_row(f"memory peak of rank {peak.rank}", held)
    console.print(table)


def _measure(measure: Measure) -> str:
    if measure.value is None:
        return f"[dim]not known: {escape(measure.reason)}[/]"
    value = f"{measure.value:.1%}" if measure.value >= 0.01 else f"{measure.value:.2%}"
    return f"{value} [dim]({escape(measure.basis)})[/]"
