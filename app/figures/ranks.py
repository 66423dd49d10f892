"""Where each rank's time goes: stacked bars, or for many ranks a field of colours."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import MOST_RANK_BARS, MS, colour_bar, finish, heatmap, rank_names, rows_height
from diag.app.run_view import RunView
from diag.app.theme import Theme, ink_on

from ..facts import number

_MOST_LABELLED = 30  # ranks


def breakdown(view: RunView, theme: Theme, step: int | None = None) -> go.Figure:
    """Milliseconds by part for every rank: the mean of the steps that count, or one step (its index)."""
    if len(view.ranks) > MOST_RANK_BARS:
        return _field(view, theme, step)
    names = rank_names(view.ranks, view.culprits, theme.ink)
    # Thinner bars have no room for numbers, and the browser measures each of them: a second for 64 ranks.
    labelled = len(names) <= _MOST_LABELLED
    figure = go.Figure()
    for part, grid in view.parts.items():
        ms = view.per_rank(grid, step) / MS
        figure.add_bar(
            x=ms,
            y=names,
            orientation="h",
            name=part.value,
            marker={"color": theme.part[part], "line": {"color": theme.ground, "width": 1}},
            text=["" if np.isnan(value) else number(value) for value in ms] if labelled else None,
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink_on(theme.part[part])},
            textangle=0,
            hovertemplate=f"%{{y}}<br>{part.value} %{{x:,.2f}} ms<extra></extra>",
        )
    totals = np.nan_to_num(view.per_rank(view.dur_ns, step)) / MS
    for name, total in zip(names, totals, strict=True) if labelled else ():
        figure.add_annotation(
            x=total, y=name, text=f"{number(total)} ms", showarrow=False, xanchor="left", xshift=4, font={"size": 12}
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=160, each=36),
        barmode="stack",
        bargap=0.25,
        uniformtext={"minsize": 11, "mode": "hide"},
        xaxis={"title": {"text": f"milliseconds a {view.noun}"}, "range": [0, max(float(totals.max()) * 1.1, 1e-9)]},
        yaxis={"autorange": "reversed", "type": "category", "title": None},
    )


def _field(view: RunView, theme: Theme, step: int | None) -> go.Figure:
    parts = list(view.parts)
    z = np.stack([view.per_rank(view.parts[part], step) / MS for part in parts])
    figure = go.Figure(
        heatmap(
            z,
            [str(rank) for rank in view.ranks],
            [part.value for part in parts],
            theme,
            colorbar=colour_bar("ms"),
            hovertemplate="rank %{x}<br>%{y} %{z:,.2f} ms<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(parts), each=28),
        xaxis={"title": {"text": "rank"}, "type": "category", "nticks": 20},
        yaxis={"autorange": "reversed", "type": "category", "title": None},
    )
