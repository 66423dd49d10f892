"""Groups of runs that repeat one another: the mean step of each with its interval, beside every run of it."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.figures import MS, finish
from diag.app.markup import label, plain
from diag.app.policy import DASHBOARD
from diag.app.theme import Theme, theme_of
from diag.app.views.common import draw, show_table, side_by_side
from diag.diagnoses.repeats import Repeats
from diag.show.repeats import repeats_sentence, repeats_table, spread_sentence
from diag.words.formatting import counted, number


def has_repeats(groups: Sequence[Repeats]) -> bool:
    """Whether a group has a mean."""
    return any(len(group.runs) > 1 for group in groups)


def sentences_of(groups: Sequence[Repeats]) -> list[str]:
    """Each group against the first one; of a single group, how much its runs differ."""
    if len(groups) == 1:
        return list(filter(None, [spread_sentence(groups[0])]))
    return list(filter(None, (repeats_sentence(groups[0], group) for group in groups[1:])))


def show_repeats(groups: Sequence[Repeats], key: str) -> None:
    """Draws the groups: the difference in a sentence each, a figure and a table."""
    theme = theme_of(st.context.theme.type)
    for text in sentences_of(groups):
        st.markdown(f"**{plain(text)}**")
    left, right = side_by_side(key)
    with left:
        draw(lambda: runs_and_means(groups, theme), f"{key} figure", "Mean step of each run, and of each group")
    with right:
        show_table(repeats_table(groups))
        alone = [group.name for group in groups if len(group.runs) < 2]
        if alone and len(groups) > 1:
            st.caption(plain(f"No repeat of {', '.join(alone)}: how much its runs differ is not known."))


def runs_and_means(groups: Sequence[Repeats], theme: Theme) -> go.Figure:
    """A row for each group, in milliseconds a step: a point for each run, and the mean with its interval."""
    figure = go.Figure()
    ends = [0.0]
    for place, group in enumerate(groups):
        figure.add_scatter(
            x=[ns / MS for ns in group.ns],
            y=[place] * len(group.ns),
            mode="markers",
            name="run",
            legendgroup="run",
            showlegend=place == 0,
            marker={"color": theme.soft, "size": 8, "opacity": 0.6},
            customdata=[label(run, 40) for run in group.runs],
            hovertemplate="%{customdata}: %{x:,.4~g} ms<extra></extra>",
        )
        ends += [ns / MS for ns in group.ns]
        if (mean := group.mean_ns) is None:
            continue
        low, likely, high = (ns / MS for ns in mean)
        ends.append(high)
        figure.add_scatter(
            x=[likely],
            y=[place],
            mode="markers",
            name="mean, 95% interval",
            legendgroup="mean",
            showlegend=not any(len(before.runs) > 1 for before in groups[:place]),
            marker={"color": theme.series[0], "size": 12, "symbol": "diamond"},
            error_x={
                "type": "data", "symmetric": False, "array": [high - likely], "arrayminus": [likely - low],
                "color": theme.series[0], "thickness": 2, "width": 6,
            },
            hovertemplate=f"{counted(len(group.runs), 'run')}: {number(likely)} ms, {number(low)} to {number(high)} ms"
            "<extra></extra>",
        )  # fmt: skip
    names = [label(group.name, 40) for group in groups]
    return finish(
        figure,
        theme,
        DASHBOARD.named_bar_px * len(groups) + 60,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max(ends) * 1.05 or 1.0]},
        yaxis={
            "tickvals": list(range(len(groups))), "ticktext": names, "range": [len(groups) - 0.5, -0.5],
            "title": None, "zeroline": False, "automargin": True,
        },
    )  # fmt: skip
