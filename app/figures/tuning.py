"""Predicted against measured gain of each change, with their intervals."""

from __future__ import annotations

import plotly.graph_objects as go

from diag.app.figures.common import MS, finish
from diag.app.theme import Theme
from diag.tune.history import History, Interval, Round

from ..facts import label
from ..run_view import Part


def gains(history: History, theme: Theme) -> go.Figure:
    """Two points a round, milliseconds a step: what was predicted, and what runs with and without it showed."""
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": theme.faint, "width": 1})
    rounds = [done for done in history.rounds if done.gain_ns is not None]
    _points(figure, "measured", rounds, [r.gain_ns for r in rounds], theme.part[Part.COMPUTE], "circle")
    _points(figure, "predicted", rounds, [r.predicted_gain_ns for r in rounds], theme.part[Part.WAITING], "diamond")
    finish(figure, theme, 90 + 60 * len(rounds), scattermode="group", scattergap=0.6)
    figure.update_xaxes(
        title_text="gain, ms a step; the line is its 95% interval", gridcolor=theme.faint, griddash="dot"
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _points(
    figure: go.Figure, name: str, rounds: list[Round], gain: list[Interval | None], colour: str, symbol: str
) -> None:
    found = [(done, own) for done, own in zip(rounds, gain, strict=True) if own is not None]
    figure.add_trace(
        go.Scatter(
            name=name,
            x=[own.likely / MS for _, own in found],
            y=[f"round {done.number}" for done, _ in found],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(own.high - own.likely) / MS for _, own in found],
                "arrayminus": [(own.likely - own.low) / MS for _, own in found],
            },
            mode="markers",
            orientation="h",
            marker={"color": colour, "symbol": symbol, "size": 12},
            customdata=[label(done.change) for done, _ in found],
            hovertemplate="%{customdata}<br>" + name + " %{x:.1f} ms a step<extra></extra>",
        )
    )
