"""The step as measured, and as it is predicted with each chosen change and with all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from diag.app.run_view import RunView
from diag.app.theme import Theme
from diag.show.details import Prospect

from ..facts import label, number
from ..run_view import Part
from .common import (
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

MEASURED = "as measured"
TOGETHER = "all together"


def steps(prospects: Sequence[tuple[str, Prospect]], theme: Theme) -> go.Figure:
    """A bar a prospect, milliseconds a step, with the interval that a measurement is expected in. The first bar is the
    measured step; what is refused is left out."""
    drawn = [(name, prospect) for name, prospect in prospects if not prospect.refused]
    measured = prospects[0][1].step_ns
    names = [MEASURED, *(label(name, 70) for name, _ in drawn)]
    likely = [measured, *(p.new_step_ns[1] for _, p in drawn)]
    low = [measured, *(p.new_step_ns[0] for _, p in drawn)]
    high = [measured, *(p.new_step_ns[2] for _, p in drawn)]
    colours = [theme.part[Part.IDLE], *(theme.part[Part.CHECKPOINT] for _ in drawn)]
    if drawn:
        colours[-1] = theme.part[Part.COMPUTE]
    figure = go.Figure(
        go.Bar(
            x=[ns / MS for ns in likely],
            y=list(range(len(names))),
            orientation="h",
            marker={"color": colours},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(h - x) / MS for h, x in zip(high, likely, strict=True)],
                "arrayminus": [(x - b) / MS for b, x in zip(low, likely, strict=True)],
                "color": theme.ink,
                "thickness": 1.5,
            },
            customdata=[
                [name, f"{number(b / MS)} to {number(h / MS)}"] for name, b, h in zip(names, low, high, strict=True)
            ],
            hovertemplate="%{customdata[0]}<br>%{x:,.1f} ms a step, %{customdata[1]}<extra></extra>",
        )
    )
    for at, (ns, top) in enumerate(zip(likely, high, strict=True)):
        figure.add_annotation(
            x=top / MS, y=at, text=f"{number(ns / MS)} ms", showarrow=False, xanchor="left", xshift=6, font={"size": 12}
        )
    figure.add_vline(x=measured / MS, line={"color": theme.faint, "width": 1, "dash": "dot"})
    return finish(
        figure,
        theme,
        rows_height(len(names), least=150, each=36),
        bargap=0.4,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max(high) / MS * 1.15]},
        yaxis={"autorange": "reversed", "tickvals": list(range(len(names))), "ticktext": names, "title": None},
    )


# -- waiting -----------------------------------------------------------------------------------------------------------
#
# Who waited when: ranks by steps. The rank that the others wait for is the faint stripe.


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
