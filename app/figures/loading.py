"""The input: waiting for the loader by rank and step, and copies to the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import plotly.graph_objects as go

from diag.app.figures.common import MS, finish, rank_names, rows_height
from diag.app.run_view import RunView
from diag.app.theme import Theme
from diag.show.details import LoadingTable

from ..run_view import Part
from .what_if import field_of


def ranks(table: LoadingTable, culprits: Collection[int], theme: Theme) -> go.Figure:
    """Milliseconds a step that each rank waits for its loader, and that the others wait because of it."""
    return _pairs(
        rank_names([row.rank for row in table.rows], tuple(culprits), theme.ink),
        (
            ("waits for its loader", [row.wait_mean_ns for row in table.rows], theme.part[Part.DATA]),
            ("the others wait for that", [row.others_waited_ns for row in table.rows], theme.part[Part.WAITING]),
        ),
        "{} %{{x:,.2f}} ms a step",
        theme,
        least=190,
    )


def field(view: RunView, culprits: Collection[int], theme: Theme) -> go.Figure:
    """Milliseconds that each rank waited for its loader in each step."""
    return field_of(view, Part.DATA, tuple(culprits), "waited %{z:,.2f} ms for its loader", theme)


def copies(table: LoadingTable, theme: Theme) -> go.Figure:
    """Milliseconds a step that each rank's host spends in copies to the device, and of exposed copies."""
    return _pairs(
        [f"rank {row.rank}" for row in table.rows],
        (
            ("the host, in its copies", [row.host_copy_ns for row in table.rows], theme.part[Part.CHECKPOINT]),
            (
                "the device, in exposed copies",
                [row.exposed_copy_ns for row in table.rows],
                theme.part[Part.COPY],
            ),
        ),
        "{}: %{{x:,.3f}} ms a step",
        theme,
        least=180,
    )


def _pairs(
    names: Sequence[str],
    series: Iterable[tuple[str, Sequence[int | None], str]],
    hover: str,
    theme: Theme,
    least: int,
) -> go.Figure:
    """Bars of several series beside each other, a group a rank. ``series``: name, nanoseconds by rank, colour."""
    figure = go.Figure()
    for name, values, colour in series:
        figure.add_bar(
            x=[None if ns is None else ns / MS for ns in values],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{hover.format(name)}<extra></extra>",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=least, each=42),
        barmode="group",
        bargap=0.35,
        xaxis={"title": {"text": "milliseconds a step"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )
