"""How each rank differs from the others: the one at fault sticks out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import MOST_RANK_BARS, MS, finish, rank_names, rows_height
from diag.app.parts import PART_OF
from diag.app.theme import Theme
from diag.show.details import RankDifference

# What differs by less on every rank is no difference to show.
_LEAST_NS = 10_000


def compared(found: Sequence[RankDifference]) -> list[RankDifference]:
    """All ranks, or of many those that differ most, in their order."""
    if len(found) <= MOST_RANK_BARS:
        return list(found)
    most = sorted(found, key=lambda each: -sum(abs(ns) for ns in each.more_ns.values()))[:MOST_RANK_BARS]
    return sorted(most, key=lambda each: each.rank)


def bars(found: Sequence[RankDifference], culprits: Sequence[int], theme: Theme) -> go.Figure:
    """Milliseconds a step more (to the right) or less than the others' median, by part. Waiting is not among them."""
    ranks = compared(found)
    names = rank_names([each.rank for each in ranks], culprits, theme.ink)
    figure = go.Figure()
    for kind, part in PART_OF.items():
        more = np.array([each.more_ns.get(kind, 0) for each in ranks], dtype=np.float64)
        if np.abs(more).max(initial=0.0) < _LEAST_NS:
            continue
        figure.add_bar(
            x=more / MS,
            y=names,
            orientation="h",
            name=part.value,
            customdata=[each.rank for each in ranks],
            marker={"color": theme.part[part], "line": {"color": theme.ground, "width": 1}},
            hovertemplate=f"%{{y}}<br>{part.value} %{{x:+,.2f}} ms<extra></extra>",
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
        )
    figure.add_vline(x=0, line={"color": theme.faint, "width": 1})
    return finish(
        figure,
        theme,
        rows_height(len(names), least=160, each=30, most=420),
        barmode="relative",
        bargap=0.3,
        xaxis={"title": {"text": "milliseconds a step more than the others' median"}, "zeroline": False},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )
