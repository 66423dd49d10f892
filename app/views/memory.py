"""Memory: peaks against the capacity, growth over the steps, allocator retries, and the size of the model's states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from diag.app import drawings
from diag.app.address import choose
from diag.app.figures import GB, blocks_of, finish, highest, rows_height, shade_windows, step_axis, step_names
from diag.app.markup import plain
from diag.app.picture import grid_of_peaks
from diag.app.policy import DASHBOARD
from diag.app.run_view import Memory, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.allocations import show_curves, show_lower, show_snapshots
from diag.app.views.common import (
    beyond_summaries,
    card_px,
    draw,
    draw_grid,
    head,
    nothing,
    show_metrics,
    show_rows,
    without_steps,
)
from diag.model.memory import Category
from diag.model.steps import Severity
from diag.show.breakdowns import memory_rows
from diag.show.memory import action_of
from diag.show.page import Metric
from diag.tables.memory import MemoryTable
from diag.words.formatting import UNKNOWN, counted, share, size

_FINDINGS = ("allocator-retries", "near-out-of-memory", "recompute-with-memory-free")


def show(view: RunView) -> None:
    if without_steps("Memory", view) or beyond_summaries("Memory", view):
        return
    table, memory = view.result.memory_table, view.memory
    contents = "Peaks of the device's allocator" if table.on_device else "Resident memory of the training processes"
    head(
        "Memory",
        view,
        (f"{contents}, of every step" if table.of_steps else contents) if table.rows else "Memory of each rank",
    )
    theme = theme_of(st.context.theme.type)
    if not table.rows:
        show_curves(view, theme)
        _snapshots(view, theme)
        seen = view.result.memory_curves or view.result.tables.snapshots
        if seen:
            nothing("The peak of each step was not recorded.", "`diag run` records it.")
        else:
            nothing(
                "Memory was not recorded.",
                "`diag run` records it in every step, torch.profiler with `profile_memory=True`.",
            )
        _states(table, None)
        return
    _numbers(view.page.metrics[-1], table)
    _findings(view)
    show_curves(view, theme)
    _snapshots(view, theme)
    if memory is not None and table.of_steps:
        _peaks(view, memory, theme)
        _lower(view)
        _growth(view, memory, theme)
    else:
        nothing("Peaks are known only for the profiled windows.", "`diag run` records memory of every step.")
    _states(table, theme)
    _rows(table)


def _snapshots(view: RunView, theme: Theme) -> None:
    if view.result.tables.snapshots:
        st.subheader("Memory snapshots", anchor="snapshots")
        capacity = view.memory.capacity if view.memory is not None else None
        show_snapshots(view.result.memory_snapshots, theme, view.run["path"], capacity, view.result.tables.manifest)


def _numbers(peak: Metric, table: MemoryTable) -> None:
    rows = table.rows
    retries = [row.retries for row in rows if row.retries is not None]
    fragmentation = max((row.fragmentation for row in rows if row.fragmentation is not None), default=None)
    metrics = [
        Metric(peak.label, peak.value, help=peak.help),
        Metric(
            "Growth per step",
            _growth_text(max((row.growth_per_step for row in rows if row.growth_per_step is not None), default=None)),
            help="Median slope over the counted steps, on the rank with the steepest growth, if memory grows over most "
            "of the run. A one-time jump does not count.",
        ),
    ]
    if table.on_device:
        metrics[1:1] = [_allocated(max(row.allocated for row in rows))]
        metrics += _of_allocator(fragmentation, retries)
    show_metrics(*metrics)


def _allocated(most: int) -> Metric:
    return Metric(
        "Peak allocated",
        size(most),
        help="The most that tensors used at once (torch.cuda.max_memory_allocated), of any rank. It is a part of the "
        "reserved memory.",
    )


def _of_allocator(fragmentation: float | None, retries: list[int]) -> tuple[Metric, ...]:
    return (
        Metric(
            "Reserved, never used",
            UNKNOWN if fragmentation is None else share(fragmentation),
            help="Fragmentation: the fraction of the peak reserved memory that was never allocated at the same time.",
        ),
        Metric(
            "Allocation retries",
            f"{sum(retries):,}" if retries else UNKNOWN,
            help="All ranks, since the first recorded step. Each retry empties the allocator's cache.",
        ),
    )


def _growth_text(growth: int | None) -> str:
    if growth is None:
        return UNKNOWN
    return f"{'+' if growth > 0 else ''}{size(growth)}"


def _findings(view: RunView) -> None:
    for finding in view.result.examination.findings:
        if finding.id in _FINDINGS:
            show_it = st.error if finding.severity == Severity.CRITICAL else st.warning
            show_it(plain(f"{finding.title}. {action_of(view.result, finding)}"), icon=":material/memory:")


def _peaks(view: RunView, memory: Memory, theme: Theme) -> None:
    """Draws the peaks of the ranks. The numbers above are those of a single one, and the curve shows its capacity."""
    if len(view.result.memory_table.rows) < 2:
        return
    st.subheader("Peaks", anchor="peaks")
    alike = drawings.alike_peaks(memory)
    if alike:
        st.markdown(plain(alike))
    if len(view.result.memory_table.rows) > DASHBOARD.most_bars_of_ranks:
        draw_grid(view, "memory-grid", grid_of_peaks(view, theme))
    elif not alike:
        draw(lambda: drawings.memory_peaks(view, memory, theme), "memory-peaks", "Peak memory of each rank")


def _lower(view: RunView) -> None:
    """Draws what would lower the highest peak where nothing is known but its size: else the history of a trace or of a
    snapshot shows it."""
    lowered = view.result.lowered
    if lowered is None or view.result.memory_curves or view.result.tables.snapshots:
        return
    show_lower(lowered.changes, lowered.basis)
    if lowered.allocated:
        nothing(
            "What is allocated at the peak is not known.",
            "`diag trace R --memory` records it of a running job, `diag run --memory-snapshots` near out-of-memory.",
        )


def growth_text(view: RunView) -> str:
    """A sentence on the rank whose memory grows most, and when its device is full; "" if none grows."""
    growing = {row: row.growth_per_step or 0 for row in view.result.memory_table.rows if (row.growth_per_step or 0) > 0}
    if not growing:
        return ""
    row = max(growing, key=growing.__getitem__)
    alone = len(growing) == 1 and len(view.result.memory_table.rows) > 1
    others = "; no other rank's memory grows" if alone else f", the most of {len(growing):,} ranks"
    text = (
        f"Memory of rank {row.rank} grows by {size(growing[row])} a step{others if alone or len(growing) > 1 else ''}."
    )
    if row.capacity is None:
        return text
    left = max(0, row.capacity - row.peak) // growing[row]
    return f"{text} At this rate its device is full after {counted(left, 'more step')}."


def jump_text(view: RunView) -> str:
    """A sentence on the largest memory jump of any rank that does not grow otherwise; "" if no rank has one."""
    rows = [row for row in view.result.memory_table.rows if row.jump is not None]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row.jump[1] if row.jump is not None else 0)
    assert row.jump is not None
    step, by = row.jump
    notes = dict(zip(view.steps, view.notes, strict=True))
    when = f" ({notes[step]})" if notes.get(step) else ""
    others = f", the largest jump of {len(rows)} ranks" if len(rows) > 1 else ""
    return f"Memory of rank {row.rank} jumps by {size(by)} at step {step}{when}{others}. It does not grow otherwise."


@st.fragment
def _growth(view: RunView, memory: Memory, theme: Theme) -> None:
    st.subheader("Over the steps", anchor="growth")
    if text := " ".join(filter(None, (growth_text(view), jump_text(view)))):
        st.markdown(plain(text))
    if len(view.ranks) <= DASHBOARD.most_memory_lines:
        draw(lambda: lines_of_ranks(view, memory, theme), "memory-lines", "Memory of every rank by step")
        return
    shown = [row for row in view.result.memory_table.rows if row.rank in view.ranks]
    first = max(shown, key=lambda row: (max(0, row.growth_per_step or 0), row.peak)).rank
    names = [str(rank) for rank in view.ranks]
    rank = int(choose("Rank", names, param="rank", default=str(first), within=view.run["path"]))
    draw(
        lambda: range_of_ranks(view, memory, rank, theme),
        "memory-steps",
        f"Memory of rank {rank} and of all ranks by step",
    )
    st.caption(plain(f"The band reaches from the lowest to the highest of {counted(len(view.ranks), 'rank')}."))


def _states(table: MemoryTable, theme: Theme | None) -> None:
    st.subheader("Model states", anchor="states")
    estimate = table.estimate
    if estimate.states is None:
        nothing(
            f"Not known: {estimate.reason}.", "The manifest of `diag run` holds it for the bundled trainer's models."
        )
        return
    states = estimate.states
    row = st.container(horizontal=True)
    for name, value in (
        ("Parameters", states.parameters),
        ("Gradients", states.gradients),
        ("Optimizer states", states.optimizer),
        ("Total per rank", states.total),
    ):
        row.metric(name, size(value), border=True, width=card_px(name, size(value)))
    st.caption(plain(f"By formula, not measured: {estimate.basis}."))
    if theme is None or len(table.rows) > DASHBOARD.most_rank_bars:
        return
    if states.total < DASHBOARD.equal_ranks_share * max((row.allocated for row in table.rows), default=0):
        st.caption(f"That is less than {share(DASHBOARD.equal_ranks_share)} of the peak.")
        return
    draw(
        lambda: against_states(table, theme), "states", "Peak of each rank: the model's states by formula, and the rest"
    )
    rest = (
        "activations, gathered units and buffers" if table.on_device else "Python, libraries, batches and activations"
    )
    below = [row.rank for row in table.rows if row.allocated < states.total]
    caption = f"The rest: {rest}."
    if below:
        caption += (
            f" On {counted(len(below), 'rank')} the peak is below the formula's sum: not all states were allocated at "
            "the same time."
        )
    st.caption(plain(caption))


def _rows(table: MemoryTable) -> None:
    st.subheader("Every rank", anchor="table")
    show_rows(memory_rows(table), key="memory-table", alt="Memory of each rank")


_DASHES = ("solid", "dot", "dash", "longdash", "dashdot", "longdashdot")


def lines_of_ranks(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """Memory that counts against the capacity in each step, a line per rank, to see which ranks grow. No rank has
    the colour of a use of memory."""
    blocks = blocks_of(len(memory.steps))
    names = step_names(memory.steps, blocks)
    held = highest(memory.peaks, blocks) / GB
    figure = go.Figure()
    for row, rank in enumerate(view.ranks):
        figure.add_scatter(
            x=names,
            y=held[row],
            name=f"rank {rank}",
            mode="lines",
            line={"color": theme.held[row // len(_DASHES)], "width": 2, "dash": _DASHES[row % len(_DASHES)]},
            hovertemplate=f"rank {rank}, step %{{x}}<br>%{{y:,.3f}} GB<extra></extra>",
        )
    return _over_steps(figure, memory, blocks, step_axis(blocks), theme)


def range_of_ranks(view: RunView, memory: Memory, rank: int, theme: Theme) -> go.Figure:
    """Memory that counts against the capacity in each step: a rank, and the range and the median of all ranks."""
    blocks = blocks_of(len(memory.steps))
    names = step_names(memory.steps, blocks)
    held = highest(memory.peaks, blocks) / GB
    low, high, middle = np.fmin.reduce(held), np.fmax.reduce(held), np.full(len(names), np.nan)
    known = ~np.isnan(high)
    middle[known] = np.nanmedian(held[:, known], axis=0)
    figure = go.Figure()
    edge = {"x": names, "mode": "lines", "line": {"width": 0, "color": theme.soft}, "hoverinfo": "skip"}
    figure.add_scatter(y=low, showlegend=False, **edge)
    figure.add_scatter(y=high, name="all ranks", fill="tonexty", fillcolor=theme.grid, **edge)
    for name, values, colour, dash in (
        ("median of the ranks", middle, theme.ink, "dot"),
        (f"rank {rank}", held[view.ranks.index(rank)], theme.held[0], "solid"),
    ):
        figure.add_scatter(
            x=names,
            y=values,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate=f"{name}, step %{{x}}<br>%{{y:,.3f}} GB<extra></extra>",
        )
    return _over_steps(figure, memory, blocks, step_axis(blocks), theme)


def _over_steps(
    figure: go.Figure, memory: Memory, blocks: Sequence[slice], axis: dict[str, Any], theme: Theme
) -> go.Figure:
    """With the capacity as a line, the axes, and the profiler's windows. ``axis``: as of ``step_axis``."""
    if memory.capacity is not None:
        line, text = {"color": theme.ink, "dash": "dash"}, f"capacity {size(memory.capacity)}"
        figure.add_hline(y=memory.capacity / GB, line=line, annotation_text=text, annotation_position="top right")
    finish(
        figure,
        theme,
        340,
        xaxis=axis,
        yaxis={"title": {"text": "reserved, GB" if memory.on_device else "resident, GB"}, "rangemode": "tozero"},
    )
    return shade_windows(figure, memory.windows, blocks, theme)


def against_states(table: MemoryTable, theme: Theme) -> go.Figure:
    """Each rank's peak, split into the model's states by formula and the rest. The estimate must be known."""
    states = table.estimate.states
    assert states is not None
    rows = table.rows
    rest = [max(0, row.allocated - states.total) for row in rows]
    series = [
        ("parameters", [states.parameters] * len(rows), theme.memory[Category.PARAMETERS]),
        ("gradients", [states.gradients] * len(rows), theme.memory[Category.GRADIENTS]),
        ("optimizer states", [states.optimizer] * len(rows), theme.memory[Category.OPTIMIZER]),
        ("the rest of the peak", rest, theme.memory[Category.BEFORE]),
    ]
    names = [f"rank {row.rank}" for row in rows]
    figure = go.Figure()
    for name, sizes, colour in series:
        figure.add_bar(
            x=[size / GB for size in sizes],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"color": theme.ground, "width": 1}},
            hovertemplate=f"%{{y}}<br>{name} %{{x:,.3f}} GB<extra></extra>",
        )
    return finish(
        figure,
        theme,
        rows_height(len(rows), least=170),
        barmode="stack",
        bargap=0.4,
        xaxis={"title": {"text": "GB"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )
