"""The input: waiting for the loader by rank and step, and copies to the device."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import (
    MS,
    averaged,
    blocks_of,
    colour_bar,
    finish,
    heatmap,
    rank_names,
    rows_height,
    step_axis,
    step_names,
)
from diag.app.parts import Part
from diag.app.run_view import RunView
from diag.app.theme import Theme
from diag.details import LoadingTable


def ranks(table: LoadingTable, culprits: Collection[int], theme: Theme) -> go.Figure:
    """Milliseconds a step that each rank waits for its loader, and that the others wait because of it."""
    names = rank_names([row.rank for row in table.rows], tuple(culprits), theme.ink)
    figure = go.Figure()
    for name, values, colour in (
        ("waits for its loader", [row.wait_mean_ns for row in table.rows], theme.part[Part.DATA]),
        ("the others wait for that", [row.others_waited_ns for row in table.rows], theme.part[Part.WAITING]),
    ):
        figure.add_bar(
            x=[ns / MS for ns in values],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{name} %{{x:,.2f}} ms a step<extra></extra>",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=190, each=42),
        barmode="group",
        bargap=0.35,
        xaxis={"title": {"text": "milliseconds a step"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )


def field(view: RunView, culprits: Collection[int], theme: Theme) -> go.Figure:
    """Milliseconds that each rank waited for its loader in each step."""
    blocks = blocks_of(len(view.steps))
    waited = view.parts.get(Part.DATA, np.zeros_like(view.dur_ns))
    # The first steps wait for the loader to start; they are left out of the verdict, and here out of the scale.
    top = float(np.nanmax(waited[:, view.counted], initial=0.0)) / MS
    figure = go.Figure(
        heatmap(
            averaged(waited, blocks) / MS,
            step_names(view.steps, blocks),
            rank_names(view.ranks, tuple(culprits), theme.ink),
            theme,
            zmax=top or 1.0,
            colorbar=colour_bar("ms"),
            hovertemplate="%{y}, step %{x}<br>waited %{z:,.2f} ms for its loader<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(view.ranks), least=220),
        xaxis=step_axis(blocks),
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32, "showgrid": False},
    )


def copies(table: LoadingTable, theme: Theme) -> go.Figure:
    """Milliseconds a step that each rank's host spends in copies to the device, and of copies that nothing hides."""
    names = [f"rank {row.rank}" for row in table.rows]
    figure = go.Figure()
    for name, values, colour in (
        ("the host, in its copies", [row.host_copy_ns for row in table.rows], theme.part[Part.CHECKPOINT]),
        (
            "the device, in copies that nothing hides",
            [row.exposed_copy_ns for row in table.rows],
            theme.part[Part.COPY],
        ),
    ):
        figure.add_bar(
            x=[None if ns is None else ns / MS for ns in values],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{name}: %{{x:,.3f}} ms a step<extra></extra>",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=180, each=42),
        barmode="group",
        bargap=0.35,
        xaxis={"title": {"text": "milliseconds a step"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )
