"""Memory: the peak of every rank against the capacity, and how it moves over the steps."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import (
    MOST_RANK_BARS,
    blocks_of,
    colour_bar,
    field_columns,
    finish,
    heatmap,
    highest,
    rank_names,
    rows_height,
    step_axis,
    step_names,
)
from diag.app.run_view import Grid, Memory, RunView
from diag.app.theme import Theme
from diag.show.details import MemoryTable

from ..run_view import Part

GB = 1e9
_DASHES = ("solid", "dash")
MOST_LINES = 12


def peaks(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """The largest peak of every rank, in GB."""
    names = rank_names(view.ranks)
    figure = go.Figure()
    for name, grid, colour in _series(memory, theme):
        figure.add_bar(
            x=_largest(grid) / GB,
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{name} %{{x:,.3f}} GB<extra></extra>",
        )
    if memory.capacity is not None:
        figure.add_vline(x=memory.capacity / GB, line={"color": theme.ink, "dash": "dash"})
        figure.add_annotation(
            x=memory.capacity / GB,
            y=1,
            yref="paper",
            text="capacity",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=260),
        barmode="group",
        bargap=0.4,
        showlegend=memory.on_device,
        xaxis={"title": {"text": "peak, GB"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )


def history(view: RunView, memory: Memory, rank: int, theme: Theme) -> go.Figure:
    """The peak of each step: of one rank as lines."""
    blocks = blocks_of(len(view.steps))
    names = step_names(view.steps, blocks)
    row = view.ranks.index(rank)
    figure = go.Figure()
    for name, grid, colour in _series(memory, theme):
        figure.add_scatter(
            x=names,
            y=highest(grid[row], blocks) / GB,
            name=name,
            mode="lines+markers" if len(names) <= 60 else "lines",
            line={"color": colour, "width": 2},
            hovertemplate=f"step %{{x}}<br>{name} %{{y:,.3f}} GB<extra></extra>",
        )
    if memory.capacity is not None:
        figure.add_hline(y=memory.capacity / GB, line={"color": theme.ink, "dash": "dash"})
    return finish(
        figure,
        theme,
        rows_height(len(view.ranks) if len(view.ranks) <= MOST_RANK_BARS else 1, least=260),
        showlegend=memory.on_device,
        xaxis=step_axis(blocks, ticks=12),
        yaxis={"title": {"text": f"rank {rank}, GB"}, "rangemode": "tozero"},
    )


def every_rank(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """What counts against the capacity in each step, a line a rank: which of them grows."""
    blocks = blocks_of(len(view.steps))
    names = step_names(view.steps, blocks)
    held = highest(memory.peaks, blocks) / GB
    figure = go.Figure()
    for row, rank in enumerate(view.ranks):
        figure.add_scatter(
            x=names,
            y=held[row],
            name=f"rank {rank}",
            mode="lines",
            line={
                "color": theme.series[row % len(theme.series)],
                "width": 2,
                "dash": _DASHES[row // len(theme.series)],
            },
            hovertemplate=f"rank {rank}, step %{{x}}<br>%{{y:,.3f}} GB<extra></extra>",
        )
    if memory.capacity is not None:
        figure.add_hline(y=memory.capacity / GB, line={"color": theme.ink, "dash": "dash"})
    return finish(
        figure,
        theme,
        340,
        xaxis=step_axis(blocks),
        yaxis={"title": {"text": "reserved, GB" if memory.on_device else "resident, GB"}, "rangemode": "tozero"},
    )


def against_states(table: MemoryTable, theme: Theme) -> go.Figure:
    """Every rank's peak as what the model's states take by formula, and the rest. Only where the estimate is known."""
    states = table.estimate.states
    assert states is not None
    rows = table.rows
    rest = [max(0, row.allocated - states.total) for row in rows]
    series = [
        ("parameters", [states.parameters] * len(rows), theme.part[Part.COMPUTE]),
        ("gradients", [states.gradients] * len(rows), theme.part[Part.DATA]),
        ("optimizer states", [states.optimizer] * len(rows), theme.part[Part.COPY]),
        ("the rest of the peak", rest, theme.part[Part.IDLE]),
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


def field(view: RunView, memory: Memory, theme: Theme) -> go.Figure:
    """The peak of every rank in every step, for many ranks."""
    blocks = blocks_of(len(view.steps), field_columns(len(view.ranks)))
    figure = go.Figure(
        heatmap(
            highest(memory.peaks, blocks) / GB,
            step_names(view.steps, blocks),
            rank_names(view.ranks),
            theme,
            zmax=memory.capacity / GB if memory.capacity is not None else None,
            colorbar=colour_bar("GB"),
            hovertemplate="%{y}, step %{x}<br>%{z:,.3f} GB<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(view.ranks)),
        xaxis=step_axis(blocks),
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32, "showgrid": False},
    )


def _series(memory: Memory, theme: Theme) -> list[tuple[str, Grid, str]]:
    if not memory.on_device:
        return [("resident memory of the process", memory.allocated, theme.part[Part.COMPUTE])]
    return [
        ("allocated", memory.allocated, theme.part[Part.COMPUTE]),
        ("reserved by the allocator", memory.reserved, theme.part[Part.CHECKPOINT]),
    ]


def _largest(grid: Grid) -> Grid:
    """Of every rank; NaN where nothing is known of it."""
    known = ~np.isnan(grid)
    return np.where(known.any(axis=1), np.where(known, grid, 0).max(axis=1, initial=0.0), np.nan)
