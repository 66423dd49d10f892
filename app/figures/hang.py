"""Where every rank is in every group: the culprit's column is lit, and whoever is apart from the others stands out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import finish
from diag.app.theme import Theme
from diag.hang.groups import At, GroupPlaces, Place

from ..facts import label
from ..run_view import Part

MOST_GROUPS = 24
_MOST_NAMED = 24  # columns in which the last call is written
_ROW, _LEAST, _LEGEND = 34, 150, 32  # pixels
_GAP = 2
_STATES = tuple(At)


def colours(theme: Theme) -> dict[At, str]:
    """One for each place: grey for where all should be."""
    part = theme.part
    return {
        At.HERE: part[Part.IDLE],
        At.BEHIND: part[Part.TRANSFER],
        At.NEVER_BEGAN: part[Part.TRANSFER],
        At.INITIALISING: part[Part.WAITING],
        At.ENDED: part[Part.COPY],
        At.UNKNOWN: theme.grid,
    }


def places(groups: Sequence[GroupPlaces], culprits: Sequence[int], theme: Theme) -> go.Figure:
    """Groups by ranks; the last call of each rank is written where there is room. At most MOST_GROUPS."""
    shown = groups[:MOST_GROUPS]
    columns = sorted({_column(place) for group in shown for place in group.members})
    at = {column: i for i, column in enumerate(columns)}
    names = [_name(column, culprits, theme) for column in columns]
    state = np.full((len(shown), len(columns)), np.nan)
    text = [["" for _ in columns] for _ in shown]
    hover = [["" for _ in columns] for _ in shown]
    for row, group in enumerate(shown):
        for place in group.members:
            i = at[_column(place)]
            state[row, i] = _STATES.index(place.at)
            text[row][i] = label(place.last, 20) if len(columns) <= _MOST_NAMED else ""
            hover[row][i] = _told(group, place)
    shades = colours(theme)
    scale = [shades[state] for state in _STATES]
    figure = go.Figure(
        go.Heatmap(
            z=state,
            x=names,
            y=[label(group.title, 40) for group in shown],
            text=text,
            texttemplate="%{text}",
            textfont={"size": 10},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            zmin=-0.5,
            zmax=len(scale) - 0.5,
            colorscale=[(edge / len(scale), colour) for i, colour in enumerate(scale) for edge in (i, i + 1)],
            showscale=False,
            xgap=_GAP,
            ygap=_GAP,
        )
    )
    seen = {place.at for group in shown for place in group.members}
    for one in (at for at in _STATES if at in seen):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=one.value,
            marker={"symbol": "square", "size": 11, "color": shades[one], "line": {"width": 1, "color": theme.faint}},
            hoverinfo="skip",
        )
    for column in columns:
        if column in [(0, rank) for rank in culprits]:
            i = at[column]
            figure.add_shape(
                type="rect", x0=i - 0.5, x1=i + 0.5, y0=-0.5, y1=len(shown) - 0.5, line={"color": theme.ink, "width": 2}
            )
    return finish(
        figure,
        theme,
        max(_LEAST, 90 + _ROW * len(shown)) + _LEGEND,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"l": 8, "r": 16, "t": 8, "b": _LEGEND},
        xaxis={"type": "category", "title": None, "showgrid": False, "side": "top", "nticks": 32, "tickangle": 0},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "showgrid": False},
    )


def _column(place: Place) -> tuple[int, int]:
    """Ranks first, in order; then members of which the rank is not known."""
    return (0, place.rank) if place.rank is not None else (1, place.group_rank)


def _name(column: tuple[int, int], culprits: Sequence[int], theme: Theme) -> str:
    unknown, number = column
    if unknown:
        return f"member {number}"
    return f'<b><span style="color:{theme.ink}">▾ {number}</span></b>' if number in culprits else str(number)


def _told(group: GroupPlaces, place: Place) -> str:
    who = f"rank {place.rank}" if place.rank is not None else f"member {place.group_rank}"
    call = f"<br>last call: {label(place.last)}{', not finished' if place.waits else ''}" if place.last else ""
    return f"{label(group.title)}<br>{who}: {place.at.value}{call}"
