"""Which collectives, kernels and modules differ between runs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.figures import MS, finish, name_above, named_bars, signed_ms
from diag.app.markup import label, plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import draw, in_view, nothing, show_rows
from diag.show.compare import WITHIN_NOISE, Change, change_of, differences_by_name, named_table
from diag.tables.of_runs import NamedTime, NamedTimes

_FIRST = ("difference_ns", "interval", "waiting_ns", "transfer_ns")
_OF_RANKS = (
    "Means over all ranks, not the critical path: waiting for a slow rank is a part of a collective. It mirrors what "
    "that rank does meanwhile, and may be longer where the step is shorter; the path has of communication the transfer."
)


def show_by_name(views: Sequence[RunView], names: Sequence[str]) -> None:
    """Draws which collectives, kernels and modules differ between runs, once it is in view: that reads traces again."""
    st.subheader("Difference by collective, kernel and module", anchor="by-name")
    st.caption(plain(_OF_RANKS))
    st.fragment(_by_name)(views, names)


def _by_name(views: Sequence[RunView], names: Sequence[str]) -> None:
    if not in_view(f"by name {' '.join(names)}", DASHBOARD.memory_picture_px):
        return
    found = differences_by_name(*(view.result for view in views))
    if not found:
        nothing("Neither run recorded collectives, kernels or modules.", "`diag run` records a profiler window.")
        return
    for tab, times in zip(st.tabs([times.of.capitalize() for times in found]), found, strict=True):
        with tab:
            if len(views) == 2:
                _draw_changes(times, names)
            table = named_table(times, names)
            st.caption(plain(" ".join((f"{table.title}.", *table.notes))))
            show_rows(table, key=f"by-name-{times.of}", alt=f"Difference by name: {times.what}", at_first=_FIRST)


def _draw_changes(times: NamedTimes, names: Sequence[str]) -> None:
    rows = times.rows[: DASHBOARD.most_changes_drawn]
    theme = theme_of(st.context.theme.type)
    draw(
        lambda: changes(rows, theme),
        f"changes of {times.of}",
        f"Difference by {times.noun} from {names[0]} to {names[1]}, milliseconds a step",
    )


def changes(rows: Sequence[NamedTime], theme: Theme) -> go.Figure:
    """A bar for each name from zero, to the right where it takes longer in the second run; of collectives, waiting and
    transfer apart and the interval of both together."""
    found = [(row, change_of(row)) for row in rows]
    figure = go.Figure()
    places = list(range(len(rows)))
    of_parts = all(change.transfer_ns is not None for _, change in found)
    if of_parts:
        for part, values in (
            (Part.WAITING, [change.waiting_ns or 0.0 for _, change in found]),
            (Part.TRANSFER, [change.transfer_ns or 0.0 for _, change in found]),
        ):
            _bars(figure, places, part.value, values, theme.part[part])
    else:
        _bars(figure, places, "difference", [_whole(row) for row, _ in found], theme.series[0])
    known = [(place, change.ns) for place, (_, change) in enumerate(found) if change.ns is not None]
    if known:
        figure.add_scatter(
            x=[ns[1] / MS for _, ns in known],
            y=[place for place, _ in known],
            mode="markers",
            name="all of it, 95% interval",
            marker={"color": theme.ink, "size": 5},
            error_x={
                "type": "data", "symmetric": False, "array": [(ns[2] - ns[1]) / MS for _, ns in known],
                "arrayminus": [(ns[1] - ns[0]) / MS for _, ns in known], "color": theme.ink, "thickness": 1.5,
            },
            hoverinfo="skip",
        )  # fmt: skip
    for place, (row, change) in enumerate(found):
        name_above(figure, place, label(row.name, DASHBOARD.kernel_name_chars), _said(row, change))
    figure.add_vline(x=0, line={"color": theme.faint, "width": 1})
    return finish(
        figure,
        theme,
        DASHBOARD.named_bar_px * len(rows) + 60,
        barmode="relative",
        xaxis={"title": {"text": "milliseconds a step more"}, "zeroline": False},
        **named_bars(len(rows)),
    )


def _bars(figure: go.Figure, places: Sequence[int], name: str, ns: Sequence[float], colour: str) -> None:
    figure.add_bar(
        x=[each / MS for each in ns],
        y=list(places),
        orientation="h",
        width=DASHBOARD.named_bar_share,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"{name} %{{x:+,.3g}} ms<extra></extra>",
    )


def _whole(row: NamedTime) -> float:
    return (row.ns[1] or 0.0) - (row.ns[0] or 0.0)


def _said(row: NamedTime, change: Change) -> str:
    """The difference beside a name, and where the interval holds zero, that."""
    ns = _whole(row)
    noise = change.ns is not None and change.ns[0] <= 0 <= change.ns[2]
    return f"{signed_ms(ns)}{f', {WITHIN_NOISE}' if noise else ''}"
