"""Who waited when: ranks by steps. The rank that the others wait for is the faint stripe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import (
    MS,
    averaged,
    blocks_of,
    colour_bar,
    field_columns,
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


def field(view: RunView, theme: Theme) -> go.Figure:
    """Milliseconds that each rank waited for others in each step. Only where ``view.waiting_known``."""
    return field_of(view, Part.WAITING, view.culprits, "waited %{z:,.2f} ms", theme)


def field_of(view: RunView, part: Part, culprits: Sequence[int], hover: str, theme: Theme) -> go.Figure:
    """Milliseconds of one kind of waiting, of each rank in each step. ``hover``: what is said of one of them."""
    blocks = blocks_of(len(view.steps), field_columns(len(view.ranks)))
    waited = view.parts.get(part, np.zeros_like(view.dur_ns))
    # The first steps wait longest; they are left out of the verdict, and here out of the scale.
    top = float(np.nanmax(waited[:, view.counted], initial=0.0)) / MS
    figure = go.Figure(
        heatmap(
            averaged(waited, blocks) / MS,
            step_names(view.steps, blocks),
            rank_names(view.ranks, culprits, theme.ink),
            theme,
            zmax=top or 1.0,
            colorbar=colour_bar("ms"),
            hovertemplate=f"%{{y}}, step %{{x}}<br>{hover}<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(view.ranks), least=220),
        xaxis=step_axis(blocks),
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32, "showgrid": False},
    )
