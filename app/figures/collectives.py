"""Collectives: bus bandwidth by size beside the fitted costs, and waiting against transfer."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from diag.app.figures.common import MS, finish, rows_height
from diag.app.theme import Theme
from diag.model.breakdown import CollectiveStat
from diag.show.details import CostCurve

from ..facts import label, number, size
from ..run_view import Part

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon")
_BAND = 0.16  # opacity of a curve's interval


def operation(op: str) -> str:
    """``all-gather``, as people write it."""
    return op.replace("_", "-")


def series_name(op: str, group: str, groups: int) -> str:
    """The group is named only where there are several. Its name can be a hash, or hold all of its ranks."""
    return operation(op) if groups == 1 else f"{operation(op)}, group {group.split('@')[0][:12]}"


def bandwidth(rows: Sequence[CollectiveStat], curves: Sequence[CostCurve], theme: Theme) -> go.Figure:
    """GB/s of the bus by bytes of the full tensor, both logarithmic: a point a row (open: at least this much), a line a
    fitted curve with its interval."""
    known = [row for row in rows if row.busbw_gb_s and row.bytes_mean]
    drawn = [curve for curve in curves if len(curve.bus_gb_s) > 1]
    keys = list(dict.fromkeys([(row.op, row.group) for row in known] + [(c.op, c.group) for c in drawn]))
    groups = len({group for _, group in keys})
    figure = go.Figure()
    for at, (op, group) in enumerate(keys):
        colour, symbol = theme.series[at % len(theme.series)], _SYMBOLS[at % len(_SYMBOLS)]
        name = label(series_name(op, group, groups), 60)
        for curve in drawn:
            if (curve.op, curve.group) == (op, group):
                _curve(figure, curve, name, colour)
        own = [row for row in known if (row.op, row.group) == (op, group)]
        if own:
            _points(figure, own, name, colour, symbol)
    axis = {"type": "log", "gridcolor": theme.faint, "griddash": "dot", "gridwidth": 0.5, "dtick": 1}
    return finish(
        figure,
        theme,
        440,
        xaxis={**axis, "title": {"text": "size of the full tensor, bytes"}, "exponentformat": "SI"},
        yaxis={**axis, "title": {"text": "bus bandwidth, GB/s"}, "exponentformat": "none"},
    )


def _points(figure: go.Figure, rows: Sequence[CollectiveStat], name: str, colour: str, symbol: str) -> None:
    figure.add_scatter(
        x=[row.bytes_mean for row in rows],
        y=[row.busbw_gb_s for row in rows],
        mode="markers",
        name=name,
        legendgroup=name,
        marker={
            "color": colour,
            "size": 11,
            "symbol": [f"{symbol}-open" if row.bandwidth_is_bound else symbol for row in rows],
            "line": {"width": 2, "color": colour},
        },
        customdata=[
            [
                f"{'≥ ' if row.bandwidth_is_bound else ''}{number(row.busbw_gb_s or 0.0)} GB/s",
                size(row.bytes_mean),
                f"{row.count:,} calls, {label(row.dtype, 30) or 'type unknown'}",
            ]
            for row in rows
        ],
        hovertemplate="%{customdata[1]}: %{customdata[0]}<br>%{customdata[2]}",
    )


def _curve(figure: go.Figure, curve: CostCurve, name: str, colour: str) -> None:
    sizes = [row[0] for row in curve.line]
    slow, likely, fast = (list(column) for column in zip(*curve.bus_gb_s, strict=True))
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    common = {"legendgroup": name, "showlegend": False, "mode": "lines", "hoverinfo": "skip"}
    figure.add_scatter(x=sizes, y=slow, line={"width": 0}, name=f"{name}, slow", **common)
    figure.add_scatter(
        x=sizes,
        y=fast,
        line={"width": 0},
        fill="tonexty",
        fillcolor=f"rgba({red},{green},{blue},{_BAND})",
        name=f"{name}, fast",
        **common,
    )
    dash = "dot" if curve.borrowed else "solid"
    figure.add_scatter(
        x=sizes, y=likely, line={"color": colour, "width": 2, "dash": dash}, name=f"{name}, fit", **common
    )


def waits(rows: Sequence[CollectiveStat], theme: Theme) -> go.Figure:
    """Milliseconds of a call, one bar a row: waiting for the last rank, then the transfer; hatched where the transfer
    is only known to be no longer."""
    names = [
        label(f"{operation(row.op)} {size(row.bytes_mean) if row.bytes_mean else 'of unknown size'}", 60)
        for row in rows
    ]
    places = list(range(len(rows)))
    figure = go.Figure()
    bound = [row.transfer_mean_ns is None for row in rows]
    transfer = [row.transfer_bound_ns if row.transfer_mean_ns is None else row.transfer_mean_ns for row in rows]
    for part, values, hatches, signs in (
        (Part.WAITING, [row.wait_mean_ns or 0 for row in rows], [""] * len(rows), [""] * len(rows)),
        (Part.TRANSFER, transfer, ["/" if b else "" for b in bound], ["≤ " if b else "" for b in bound]),
    ):
        if not any(values):
            continue
        figure.add_bar(
            x=[ns / MS for ns in values],
            y=places,
            orientation="h",
            name=part.value,
            marker={"color": theme.part[part], "line": {"width": 0}, "pattern": {"shape": hatches, "size": 6}},
            customdata=[[name, sign] for name, sign in zip(names, signs, strict=True)],
            hovertemplate=f"%{{customdata[0]}}<br>{part.value} %{{customdata[1]}}%{{x:,.3f}} ms<extra></extra>",
        )
    for at, (row, sign) in enumerate(zip(rows, bound, strict=True)):
        total = (row.wait_mean_ns or 0) + transfer[at]
        figure.add_annotation(
            x=total / MS,
            y=at,
            text=f"{'≤ ' if sign else ''}{number(total / MS)} ms",
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 12},
        )
    most = max(((row.wait_mean_ns or 0) + ns for row, ns in zip(rows, transfer, strict=True)), default=0)
    return finish(
        figure,
        theme,
        rows_height(len(rows), least=180, each=30),
        barmode="stack",
        bargap=0.3,
        xaxis={"title": {"text": "milliseconds of a call"}, "range": [0, max(most / MS * 1.15, 1e-6)]},
        yaxis={"autorange": "reversed", "tickvals": places, "ticktext": names, "title": None},
    )


def last(row: CollectiveStat, theme: Theme, most: int = 24) -> go.Figure:
    """How often each rank was the last to arrive, of the collectives that several ranks were seen in."""
    counts = row.last_counts[:most]
    places = list(range(len(counts)))
    figure = go.Figure(
        go.Bar(
            x=[count / row.matched for _, count in counts],
            y=places,
            orientation="h",
            marker={"color": theme.part[Part.WAITING]},
            customdata=[[rank, count, row.matched] for rank, count in counts],
            hovertemplate="rank %{customdata[0]}: last in %{customdata[1]:,} of %{customdata[2]:,}<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(counts), least=150),
        bargap=0.4,
        xaxis={
            "title": {"text": "part of the calls in which the rank arrived last"},
            "tickformat": ".0%",
            "range": [0, 1],
        },
        yaxis={
            "autorange": "reversed",
            "tickvals": places,
            "ticktext": [f"rank {rank}" for rank, _ in counts],
            "title": None,
        },
    )
