"""The tables behind a verdict: collectives, kernels, modules, efficiency, critical path, memory and data loading.

The terminal and the dashboard show the same columns, with the same names and meanings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from diag.api import Result
from diag.model.breakdown import (
    AllToAllStat,
    Bound,
    Breakdowns,
    CollectiveStat,
    CollectiveTable,
    ExposedCall,
    KernelKind,
    KernelStat,
    KernelTable,
    Measure,
    ModuleTable,
    PathTable,
)
from diag.model.memory import Category, Lower
from diag.model.steps import Fit
from diag.show.policy import PAGE
from diag.show.ranks import OTHERS_WAIT, RANK
from diag.show.table import print_table
from diag.tables.loading import LoadingTable
from diag.tables.memory import MemoryTable
from diag.tables.memory_curves import Share
from diag.tables.snapshots import Comparison
from diag.traces.kineto_names import P2P_OPS, TO_DEVICE_PATTERN, TO_HOST_PATTERN
from diag.words.formatting import UNKNOWN, counted, duration, number, share, short_name, size
from diag.words.table import (
    COUNT,
    DURATION,
    GB,
    GB_S,
    INDEX,
    MB,
    MEAN_COUNT,
    MS,
    PRECISE_SHARE,
    RATIO,
    SHARE,
    SIZE,
    TEXT,
    TEXT_RIGHT,
    TFLOP_S,
    US,
    Cell,
    Column,
    Table,
    table_of,
)
from diag.words.terminal import report_console
from diag.words.wording import fused_words, group_name, operation, per_whole, sentence

EXCHANGES_TITLE = "All-to-alls by rank, means of a step"
EXCHANGES_HELP = (
    "Sizes include the part that a rank keeps. Over mean: bytes received divided by the group's mean, in all-to-alls "
    "with unequal parts. Others wait: mean waiting of the other ranks where this rank arrives last at an all-to-all."
)
OUTSIDE_MODULES = "outside any module"
_CLASSES = {KernelKind.COMMUNICATION: "comm."}
_BOUND_FROM = {"shapes": "measured", "class": "inferred"}  # from recorded shapes, or from the class of kernel

_OPERATION = Column("op", TEXT, label="operation", weight=0)
_GROUP = Column("group", TEXT, "Process group, or the axis of the device mesh along which it lies.", weight=7)
_RANKS = Column("group_size", COUNT, "Ranks in the group.", label="ranks", weight=4)
_SIZE = Column("bytes_mean", SIZE, "Size of the full tensor: mean of its size class.", label="size", weight=8)
_DTYPE = Column("dtype", TEXT, "Element type.", label="type", weight=1)
_CALLS = Column("count", COUNT, "Calls in the counted steps.", label="calls", weight=6)
_TIME = Column(
    "duration_mean_ns", MS, "Mean duration over all ranks and calls, including waiting.", label="time", weight=9
)
_WAIT = Column("wait_mean_ns", MS, "Wait for the last rank to arrive: mean of ranks and calls.", "wait", weight=8)
_MAX_WAIT = Column("wait_max_ns", MS, "The longest wait of any rank.", "max wait", weight=2)
_LAST = Column(
    "last_rank",
    TEXT_RIGHT,
    "The rank that the others waited for longest, and its part of all that waiting.",
    "waited for",
    weight=7,
)
_TRANSFER = Column("transfer_mean_ns", MS, "From the last arrival to the first rank's end.", "transfer", weight=6)
_TAIL = Column(
    "tail_mean_ns", MS, "From the first rank's end to the last rank's: mean of the calls.", "later ends", weight=4
)
_BUS = Column("busbw_gb_s", GB_S, "Algorithm bandwidth times the operation's factor (nccl-tests).", "bus", weight=5)
_OF_BEST = Column(
    "efficiency",
    SHARE,
    "Fraction of the best bus bandwidth that the group reached at large sizes.",
    label="of best",
    weight=3,
)
_EXPOSED = Column("exposed_ns", MS, "Per rank and step: not overlapped with compute.", "exposed/step", weight=9)
_OVERLAPPED = Column("hidden_ns", MS, "Per rank and step: overlapped with compute.", "overlapped/step", weight=3)
BOUNDS = Column(
    "bounds",
    TEXT,
    "Values that are bounds: from the shortest duration over the ranks, which needs no aligned clocks.",
    weight=9,
)


def collective_table(table: CollectiveTable, most: int | None = None) -> Table:
    """The collectives with the longest exposed time first; at most ``most`` rows."""
    if not table.rows:
        return Table("collectives", "No collective was recorded in the counted steps.", (), ())
    rows, steps = table.rows[:most], max(1, table.rank_steps)
    several, groups = len({row.axis for row in table.rows}) > 1, len({row.group for row in table.rows})
    rest_ns = table.rest_exposed_ns / steps
    bounded = any(row.bandwidth_is_bound or row.transfer_mean_ns is None for row in rows)
    return table_of(
        "collectives",
        "Collectives: mean milliseconds per call; exposed and overlapped time per rank and step",
        {
            _OPERATION: [operation(row.op) for row in rows],
            BOUNDS: [_bounds(row) for row in rows],
            _GROUP: [Cell(group_name(row, several) if groups > 1 else None, _group(row, several)) for row in rows],
            _RANKS: [row.group_size for row in rows],
            _SIZE: [_size(row) for row in rows],
            _DTYPE: [row.dtype or None for row in rows],
            _CALLS: [row.count for row in rows],
            _TIME: [row.duration_mean_ns for row in rows],
            _WAIT: [row.wait_mean_ns for row in rows],
            _MAX_WAIT: [row.wait_max_ns for row in rows],
            _LAST: [None if row.last_share is None else f"{row.last_rank} ({share(row.last_share)})" for row in rows],
            _TRANSFER: [_transfer(row) for row in rows],
            _TAIL: [row.tail_mean_ns for row in rows],
            _BUS: [_bus(row) for row in rows],
            _OF_BEST: [row.efficiency for row in rows],
            _EXPOSED: [row.exposed_ns / steps for row in rows],
            _OVERLAPPED: [row.hidden_ns / steps for row in rows],
        },
        notes=(
            f"Exposed outside these calls (in an earlier step, or in a wait): {duration(rest_ns)}." if rest_ns else "",
            "≤ and ≥: from the shortest duration over the ranks, which needs no common clock." if bounded else "",
            "* matched by the order of calls: the trace has no sequence numbers."
            if any(row.inferred for row in rows)
            else "",
        ),
        symbol="ms",
        left_out=len(table.rows) - len(rows),
    )


def _group(row: CollectiveStat, several: bool) -> str:
    """``several``: axes of a mesh, so that each needs its name."""
    inferred = "*" if row.inferred else ""
    if row.op in P2P_OPS and len(row.members) == 2:
        return f"{group_name(row, several)}{inferred}"
    return f"{(several and row.axis) or row.group.split('@')[0][:8] or '?'}{inferred}"


def _size(row: CollectiveStat) -> Cell | None:
    if not row.bytes_low:
        return None
    same = row.bytes_low == row.bytes_high
    return Cell(row.bytes_mean, size(row.bytes_low) if same else f"{size(row.bytes_low)}+")


def _transfer(row: CollectiveStat) -> Cell | int:
    if row.transfer_mean_ns is not None:
        return row.transfer_mean_ns
    return Cell(row.transfer_bound_ns, f"≤{number(row.transfer_bound_ns / 1e6)}")


def _bus(row: CollectiveStat) -> Cell | float | None:
    if row.busbw_gb_s is None or not row.bandwidth_is_bound:
        return row.busbw_gb_s
    return Cell(row.busbw_gb_s, f"≥{number(row.busbw_gb_s)}")


def _bounds(row: CollectiveStat) -> str | None:
    bounds = (
        "transfer ≤" if row.transfer_mean_ns is None else "",
        "bandwidth ≥" if row.bandwidth_is_bound else "",
    )
    return ", ".join(filter(None, bounds)) or None


def longest_calls(calls: Sequence[ExposedCall]) -> Table:
    """The calls with the longest exposed time; the group only where they are of several."""
    several, groups = len({call.axis for call in calls}) > 1, len({call.group for call in calls}) > 1
    return table_of(
        "longest_calls",
        "Longest exposed calls",
        {
            Column("step", INDEX, weight=0): [call.step for call in calls],
            Column("rank", INDEX, weight=0): [call.rank for call in calls],
            Column("op", label="collective", weight=0): [operation(call.op) for call in calls],
            Column("group"): [group_name(call, several) or None if groups else None for call in calls],
            Column("bytes", SIZE, label="size"): [call.bytes or None for call in calls],
            Column("exposed_ns", DURATION, label="exposed", weight=9): [call.exposed_ns for call in calls],
            Column("wait_ns", DURATION, label="wait", weight=8): [call.wait_ns for call in calls],
            Column("phase"): [call.phase or None for call in calls],
            Column("module", long=True): [call.module or None for call in calls],
        },
    )


_KERNEL = Column("name", TEXT, label="kernel", long=True, weight=0)
_OPERATOR = Column("operator", TEXT, "Operator that launched most of its time.", long=True, weight=6)
_KIND = Column("kind", TEXT, "What it computes: gemm is a matrix multiplication.", label="class", weight=5)
_KERNEL_CALLS = Column("calls", MEAN_COUNT, "Per rank and step.", weight=6)
_KERNEL_TIME = Column("time_ns", MS, "Per rank and step.", label="time", weight=9)
_OF_BUSY = Column("share", PRECISE_SHARE, "Fraction of the busy time.", weight=8)
_KERNEL_EXPOSED = Column(
    "exposed_share",
    SHARE,
    "Not overlapped with work of higher priority: compute comes before communication.",
    label="exposed",
    weight=7,
)
_MEAN = Column("mean_ns", US, "Mean duration of a call.", label="mean", weight=4)
_MAX = Column("max_ns", US, "Duration of the longest call.", label="longest", weight=3)
_BOUND = Column("bound", TEXT, "Compute-bound or memory-bound.", label="bound by", weight=4)
BOUND_FROM = Column("bound_from", TEXT, "Measured from recorded shapes, or inferred from the kind.", "bound is")
_FLOPS = Column("tflop_s", TFLOP_S, "Over the calls whose shapes are known.", label="", weight=2)
_GB_S = Column("gb_s", GB_S, "Over the calls whose shapes are known.", label="", weight=2)


def between_memories(row: KernelStat) -> bool:
    """Whether this is a copy from or to the host, not one within a device's memory."""
    return row.kind == KernelKind.COPY and any(re.search(way, row.name) for way in (TO_DEVICE_PATTERN, TO_HOST_PATTERN))


def exchange_table(stats: Sequence[AllToAllStat], most: int | None = None) -> Table:
    """What each rank sends and receives in all-to-alls: at most ``most`` rows, of the ranks that receive most over the
    mean of their group. No rows where no all-to-all of known size was recorded."""
    most = PAGE.most_ranks if most is None else most
    groups = {(row.group, row.axis): row.imbalance for row in stats}
    shown = sorted(stats, key=lambda row: -row.received_over_mean)[:most]
    several = len(groups) > 1
    unequal = [
        f"{f'Group {_exchange_group(*name)}: the' if several else 'The'} rank that receives most in an all-to-all gets "
        f"{imbalance:.2f} times the mean."
        for name, imbalance in groups.items()
    ]
    return table_of(
        "all_to_alls",
        EXCHANGES_TITLE,
        {
            RANK: [row.rank for row in shown],
            **({Column("group"): [_exchange_group(row.group, row.axis) for row in shown]} if several else {}),
            Column("count", COUNT, label="calls"): [row.count for row in shown],
            Column("sent_bytes", SIZE, label="sends"): [row.sent_bytes for row in shown],
            Column("received_bytes", SIZE, label="receives"): [row.received_bytes for row in shown],
            Column("received_over_mean", RATIO, label="over mean"): [row.received_over_mean for row in shown],
            Column("caused_wait_ns", DURATION, label=OTHERS_WAIT): [row.caused_wait_ns for row in shown],
        },
        notes=(*unequal[: PAGE.most_groups_with_sentence], EXCHANGES_HELP),
        left_out=len(stats) - len(shown),
    )


def _exchange_group(group: str, axis: str) -> str:
    return axis or group.split("@")[0][:8] or UNKNOWN


def kernel_table(table: KernelTable, per: str, most: int | None = None) -> Table:
    """Kernels, or operators on a CPU, by their time; at most ``most`` rows. ``per``: what a mean is of."""
    if not table.rows:
        return Table("kernels", "No kernel was recorded in the counted steps.", (), ())
    on_device, steps = table.unit == "kernel", max(1, table.rank_steps)
    rows = table.rows[:most]
    subject = "Kernels: the device is" if on_device else "Operators, self time: the host is"
    columns: dict[Column, list[Any]] = {
        _KERNEL if on_device else Column("name", TEXT, label="operator", long=True, weight=0): [
            Cell(row.name, short_name(row.name).removeprefix("aten::")) for row in rows
        ]
    }
    if on_device:  # nothing launches an operator, and nothing overlaps with it
        columns[_OPERATOR] = [_launched_by(row) for row in rows]
    return table_of(
        "kernels",
        f"{subject} busy for {duration(table.busy_ns / steps)} per rank and step, overlaps counted twice",
        {
            **columns,
            _KIND: [Cell(str(row.kind), _CLASSES.get(row.kind, str(row.kind))) for row in rows],
            _KERNEL_CALLS: [Cell(row.count / steps, f"{row.count / steps:,.0f}") for row in rows],
            _KERNEL_TIME: [row.total_ns / steps for row in rows],
            _OF_BUSY: [row.share for row in rows],
            **(
                {_KERNEL_EXPOSED: [row.exposed_ns / row.total_ns if row.total_ns else None for row in rows]}
                if on_device
                else {}
            ),
            _MEAN: [row.mean_ns for row in rows],
            _MAX: [row.max_ns for row in rows],
            _BOUND: [_bound(row) for row in rows],
            BOUND_FROM: [
                None if row.bound == Bound.UNKNOWN else _BOUND_FROM.get(row.bound_from, row.bound_from) for row in rows
            ],
            _FLOPS: [row.tflop_s for row in rows],
            _GB_S: [row.gb_s for row in rows],
        },
        notes=kernel_notes(table, per),
        left_out=len(table.rows) - len(rows),
    )


def kernel_notes(table: KernelTable, per: str) -> tuple[str, ...]:
    """Sentences below the table of kernels."""
    peak, steps = table.peak, max(1, table.rank_steps)
    return (
        _by_class(table),
        f"{fused_words(table.fused_ns / steps, per)}." if table.fused_ns else "",
        f"{peak.name}: {peak.tflop_s:,g} TFLOP/s and {peak.gb_s:,g} GB/s, so kernels are compute-bound above "
        f"{peak.ridge:.0f} FLOPs per byte."
        if peak is not None and peak.ridge is not None
        else "",
        _inferred(table),
    )


def _inferred(table: KernelTable) -> str:
    """What "(memory)" means. Shapes say nothing of a kernel that is not a matmul, a convolution or attention."""
    known = {row.bound_from for row in table.rows if row.bound != Bound.UNKNOWN}
    if not known - {"shapes"}:
        return ""
    inferred = "(memory): inferred from the class of kernel, not measured"
    return f"{inferred}." if "shapes" in known else f"{inferred}; traces with record_shapes=True contain the shapes."


def _launched_by(row: KernelStat) -> str | None:
    return row.operator.removeprefix("aten::") or None if row.kind != KernelKind.COMMUNICATION else None


def _bound(row: KernelStat) -> Cell | str | None:
    if row.bound == Bound.UNKNOWN:
        return None
    return str(row.bound) if row.bound_from == "shapes" else Cell(str(row.bound), f"({row.bound})")


def _by_class(table: KernelTable) -> str:
    shares: dict[str, int] = {}
    for row in table.rows:
        shares[row.kind] = shares.get(row.kind, 0) + row.total_ns
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    of_kinds = (f"{kind} {share(ns / table.busy_ns, digits=1)}" for kind, ns in ordered if table.busy_ns)
    return f"By class: {', '.join(of_kinds)}."


# -- modules and efficiency --------------------------------------------------------------------------------------------

_MODULE = Column("name", TEXT, label="module", long=True, weight=0)
_PARENT = Column("parent", TEXT, "The module that it is a part of.", label="in", long=True, weight=6)
_FORWARD = Column("forward_ns", MS, "Including submodules.", label="forward", weight=9)
_BACKWARD = Column("backward_ns", MS, "Including submodules.", label="backward", weight=9)
_RECOMPUTED = Column(
    "recompute_ns", MS, "Forward that is recomputed during backward; included in backward.", "recomputed", weight=7
)
_SELF = Column("self_ns", MS, "Self time: not in a submodule.", label="self", weight=8)
_HOST = Column("host_ns", MS, "Host time inside the module.", label="host", weight=3)


def module_table(table: ModuleTable, unit: str, most: int | None = None) -> Table:
    """The modules that one kind of range names; at most ``most`` rows. ``unit``: "kernel" or "operator"."""
    rows, steps = table.rows[:most], max(1, table.rank_steps)
    where = "device" if unit == "kernel" else "operator"
    outside = ""
    if table.unattributed_ns and table.busy_ns:
        outside = (
            f"In no module: {duration(table.unattributed_ns / steps)} of {duration(table.busy_ns / steps)} "
            f"({share(table.unattributed_ns / table.busy_ns)}), "
            f"{share(table.unattributed_backward_ns / table.unattributed_ns)} of it backward."
        )
    recomputed = [row.recompute_ns / steps for row in rows]
    return table_of(
        "modules",
        f"Modules by {table.source}: {where} milliseconds per rank and step, without communication",
        {
            _MODULE: [row.name for row in rows],
            _PARENT: [row.parent for row in rows],
            _KERNEL_CALLS: [row.calls / steps for row in rows],
            _FORWARD: [row.forward_ns / steps for row in rows],
            _BACKWARD: [row.backward_ns / steps for row in rows],
            **({_RECOMPUTED: recomputed} if any(recomputed) else {}),
            _SELF: [row.self_ns / steps for row in rows],
            _OF_BUSY: [row.share for row in rows],
            _HOST: [row.host_ns / steps for row in rows],
        },
        notes=(outside,),
        symbol="ms",
        left_out=len(table.rows) - len(rows),
    )


def efficiency_table(breakdowns: Breakdowns) -> Table:
    """Utilisation, and the peak of each rank's memory."""
    measures = breakdowns.efficiency
    rows = [
        ("model FLOPs utilisation (MFU)", _measure(measures.mfu)),
        ("hardware FLOPs utilisation (HFU)", _measure(measures.hfu)),
        ("recomputed share of compute", _measure(measures.recompute_share)),
        ("compute lost to contention", _measure(measures.contention_share)),
    ]
    for peak in breakdowns.memory_peaks[: PAGE.most_text_rows]:
        of = f" of {size(peak.capacity)}" if peak.capacity else ""
        held = f"allocated {size(peak.allocated)}, reserved {size(peak.reserved)}{of}"
        rows.append((f"memory peak of rank {peak.rank}", held))
    columns = (Column("measure", label="", weight=0), Column("value", label="", weight=0))
    return Table("efficiency", "Efficiency", columns, tuple(rows))


def _measure(measure: Measure) -> str:
    if measure.value is None:
        return f"not known: {measure.reason}"
    return f"{utilisation(measure.value)} ({measure.basis})"


def utilisation(value: float) -> str:
    """``41.2%``, or ``0.34%`` of less than 1%."""
    return share(value, digits=1 if value >= 0.01 else 2)


def path_table(table: PathTable, per: str, most: int | None = None) -> Table:
    """The parts of the critical path that take most of it; at most ``most`` rows. ``per``: what a mean is of."""
    if not table.rows:
        return Table("path", "No step was recorded.", (), ())
    rows, steps = table.rows[:most], len(table.steps)
    which = counted(steps, "traced step" if table.traced else "recorded step")
    rest_ns = table.total_ns - table.in_modules_ns
    return table_of(
        "path",
        f"Critical path: {duration(table.total_ns / steps)} {per} ({which}), by the rank that others wait for and what "
        "it does",
        {
            Column("rank", INDEX, weight=9): [row.rank for row in rows],
            Column("category", weight=0): [row.category for row in rows],
            Column("module", long=True, weight=8): [row.module or OUTSIDE_MODULES for row in rows],
            Column("time_ns", MS, label="time", weight=9): [row.total_ns / steps for row in rows],
            Column("share", PRECISE_SHARE, weight=9): [row.share for row in rows],
        },
        notes=(
            f"Outside any module: {duration(rest_ns / steps)} ({share(rest_ns / table.total_ns)})." if rest_ns else "",
        ),
        left_out=len(table.rows) - len(rows),
    )


# -- memory and loading ------------------------------------------------------------------------------------------------


def memory_rows(table: MemoryTable) -> Table:
    """The peak of each rank's memory, and how the allocator fares."""
    held = "allocated" if table.on_device else "resident"
    columns: dict[Column, list[Any]] = {
        Column("rank", INDEX, weight=0): [row.rank for row in table.rows],
        Column("allocated", GB, "The largest of all steps.", label=held, weight=9): [
            row.allocated for row in table.rows
        ],
    }
    if table.on_device:
        columns |= {
            Column("reserved", GB, "By the allocator: the largest of all steps.", weight=8): [
                row.reserved for row in table.rows
            ],
            Column("capacity", GB, weight=5): [row.capacity for row in table.rows],
            Column("fragmentation", SHARE, "Fraction of the reserved memory of the fullest step.", "never used"): [
                row.fragmentation for row in table.rows
            ],
            Column("retries", COUNT, "Since the first recorded step.", weight=4): [row.retries for row in table.rows],
            Column("ooms", COUNT, "Errors since the first recorded step.", "out of memory", weight=6): [
                row.ooms for row in table.rows
            ],
        }
    growth = Column(
        "growth_per_step",
        MB,
        "Median slope over the counted steps; a one-time jump does not count.",
        label="growth per step",
        weight=3,
    )
    return table_of("memory", "", {**columns, growth: [row.growth_per_step for row in table.rows]})


def allocation_table(shares: Sequence[Share], before: int | None = None, peak: int = 0) -> Table:
    """What was allocated at a peak, by one of its causes. ``before``: bytes of the ``peak`` that were allocated before
    the window; they are a row as well."""
    rows: list[tuple[str, int, float | None, int | None]] = [
        (item.name, item.bytes, item.share, item.count) for item in shares
    ]
    if before and peak:
        rows.append((Category.BEFORE.value, before, before / peak, None))
    return table_of(
        "allocations",
        "",
        {
            Column("name", label="allocated by", long=True, weight=0): [name for name, *_ in rows],
            Column("bytes", SIZE, label="size", weight=9): [held for _, held, *_ in rows],
            Column("share", SHARE, label="share of peak", weight=8): [part for *_, part, _ in rows],
            Column("count", COUNT, label="allocations"): [count for *_, count in rows],
        },
    )


def lower_peak_table(found: Sequence[Lower]) -> Table:
    """What would lower a peak."""
    return table_of(
        "lower_peak",
        "",
        {
            Column("change", long=True, weight=0): [lower.change for lower in found],
            Column("peak", SIZE, "Allocated bytes.", "peak with it", weight=9): [
                None if lower.peak is None else Cell(lower.peak, _about(lower.peak, lower.at_most, "at least"))
                for lower in found
            ],
            Column("frees", SIZE, weight=9): [
                Cell(lower.frees, _about(lower.frees, lower.at_most, "at most")) for lower in found
            ],
            Column("risk", label="its price", long=True): [lower.risk or "none known" for lower in found],
        },
    )


def made_room_table(fits: Sequence[Fit]) -> Table:
    """What would have made room for an allocation that failed."""
    return table_of(
        "made_room",
        "",
        {
            Column("change", long=True, weight=0): [fit.change for fit in fits],
            Column("frees", SIZE, weight=9): [
                Cell(fit.frees, _about(fit.frees, fit.at_most, "at most")) for fit in fits
            ],
            Column("enough", label="enough by itself", weight=8): ["yes" if fit.enough else "no" for fit in fits],
            Column("risk", label="its price", long=True): [fit.risk or "none known" for fit in fits],
        },
    )


def _about(held: int, bound: bool, words: str) -> str:
    return f"{words if bound else 'about'} {size(held)}"


def larger_there(compared: Comparison) -> Table:
    """The places that hold more at the highest peak than at the others."""
    rows = compared.larger
    return table_of(
        "larger_there",
        "Allocations that are larger there",
        {
            Column("place", label="allocated at", long=True, weight=0): [row.place for row in rows],
            Column("bytes", SIZE, label=compared.name, weight=9): [row.bytes for row in rows],
            Column("median", SIZE, label="median of the others", weight=9): [row.median for row in rows],
            Column("more", SIZE, label="more", weight=8): [row.bytes - row.median for row in rows],
        },
    )


def loading_rows(table: LoadingTable, on_device: bool) -> Table:
    """How long each rank waited for data, and what its loader had ready."""
    rows = table.rows
    return table_of(
        "loading",
        "",
        {
            Column("rank", INDEX, weight=0): [row.rank for row in rows],
            Column("host", weight=4): [row.host for row in rows],
            Column("wait_mean_ns", MS, "Mean of the counted steps.", "data wait", weight=9): [
                row.wait_mean_ns for row in rows
            ],
            Column("wait_median_ns", MS, label="median", weight=5): [row.wait_median_ns for row in rows],
            Column("wait_max_ns", MS, "The longest of the counted steps.", "longest", weight=5): [
                row.wait_max_ns for row in rows
            ],
            Column("wait_share", SHARE, label="share of step", weight=8): [row.wait_share for row in rows],
            Column(
                "waited_steps", SHARE, "Fraction of steps that wait for at least 2% of their time.", "steps with wait"
            ): [row.waited_steps for row in rows],
            Column("excess_ns", MS, "Data wait above the median of the other ranks.", "beyond others", weight=7): [
                row.excess_ns for row in rows
            ],
            Column(
                "others_waited_ns",
                MS,
                "Time that the others wait for this rank, because its loader was later than theirs.",
                label="others wait",
                weight=7,
            ): [row.others_waited_ns for row in rows],
            Column(
                "ready",
                MEAN_COUNT,
                "Batches ready when a step requests one: median over the second half of the rank's steps.",
                label="ready, batches",
            ): [None if row.reserve is None else row.reserve.ready for row in rows],
            Column(
                "idle",
                MEAN_COUNT,
                "Idle loader processes when a step requests a batch. None: the loader is at its limit, even if earlier "
                "batches are ready.",
                label="idle processes",
            ): [None if row.reserve is None else row.reserve.idle for row in rows],
            Column("host_copy_ns", MS, "Host time in the training's copies.", "host copies"): [
                row.host_copy_ns if on_device else None for row in rows
            ],
            Column("exposed_copy_ns", MS, "Device time of copies that are not overlapped.", "exposed copies"): [
                row.exposed_copy_ns if on_device else None for row in rows
            ],
        },
    )


# -- tables ------------------------------------------------------------------------------------------------------------
#
# What ``--table`` prints: the largest rows first.

_NOTED = {
    "collectives": "collective",
    "kernels": "kernels",
    "modules": "module",
    "efficiency": "recomputation",
    "path": "module",
}


def print_breakdowns(result: Result, console: Console) -> None:
    """Prints all of them."""
    for name in _NOTED:
        print_breakdown(result, name, console)


def print_breakdown(result: Result, name: str, console: Console | None = None) -> None:
    """Prints one of "collectives", "kernels", "modules", "efficiency" and "path" to standard output."""
    console = console or report_console()
    console.print()
    for table in breakdown_tables(result, name):
        if table.rows:
            print_table(console, table)
        else:
            console.print(escape(table.title), style="italic")
    for note in result.breakdowns.notes:
        if _NOTED.get(name, "") in note:
            console.print(f"[dim]{escape(sentence(note))}.[/]")


def breakdown_tables(result: Result, name: str) -> list[Table]:
    """The tables of one breakdown. One without rows has a title that says why."""
    breakdowns, per, most = result.breakdowns, per_whole(result.attribution), PAGE.most_text_rows
    if name == "collectives":
        exchanged = exchange_table(breakdowns.collectives.all_to_alls)
        return [collective_table(breakdowns.collectives, most), *([exchanged] if exchanged.rows else [])]
    if name == "kernels":
        return [kernel_table(breakdowns.kernels, per, most)]
    if name == "modules":
        return [module_table(table, breakdowns.kernels.unit, most) for table in breakdowns.modules]
    return [efficiency_table(breakdowns)] if name == "efficiency" else [path_table(breakdowns.path, per, most)]


def meanings() -> list[tuple[tuple[str, str, str], str]]:
    """Of each column with a meaning, how tables may head it, and the meaning."""
    columns = [column for column in globals().values() if isinstance(column, Column) and column.meaning]
    return [
        ((column.name, f"{column.name} {column.unit.symbol}".strip(), column.sortable_heading), column.meaning)
        for column in columns
    ]
