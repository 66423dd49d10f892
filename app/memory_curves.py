"""Figures of memory over time: the curve of a trace, and the history that a memory snapshot holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diag.app.figures import finish
from diag.app.markup import label
from diag.app.run_view import Part
from diag.app.theme import Theme
from diag.tables.memory import BACKWARD, BEFORE_BACKWARD, FORWARD, OPTIMIZER, MemoryCurve
from diag.tables.snapshots import SnapshotAccount
from diag.words.formatting import size

_MB, _GB = 1e6, 1e9
_MS, _US_IN_MS = 1e6, 1e3
_HEIGHT = 360
_BAND = 0.06  # of the height of the plot, below the curve
_COLOURS = {FORWARD: Part.COMPUTE, BEFORE_BACKWARD: Part.COMPUTE, BACKWARD: Part.COPY, OPTIMIZER: Part.DATA}

Numbers = npt.NDArray[Any]


def curve_figure(curve: MemoryCurve, capacity: float | None, theme: Theme) -> go.Figure:
    """Allocated and reserved bytes over the window, the phases of the steps beneath, and the peak."""
    high = max(int(curve.allocated.max()), int(curve.reserved.max()) if curve.reserved is not None else 0)
    high = max(high, int(capacity or 0))
    unit = _unit(high)
    figure = _lines(curve.at_ns / _MS, curve.allocated, curve.reserved, unit, theme)
    _mark_peak(figure, curve.peak_ns / _MS, curve.peak_allocated, float(curve.at_ns[-1]) / _MS, unit, theme)
    if capacity is not None:
        figure.add_hline(y=capacity / unit, line={"color": theme.ink, "dash": "dash"})
    for phase in dict.fromkeys(band.phase for band in curve.bands):
        colour = theme.part[_COLOURS[phase]]
        figure.add_bar(x=[None], y=[None], name=phase, marker={"color": colour})  # of the legend alone
        for band in curve.bands:
            if band.phase == phase:
                figure.add_shape(
                    type="rect", xref="x", yref="paper", x0=band.begin_ns / _MS, x1=band.end_ns / _MS, y0=0, y1=_BAND,
                    fillcolor=colour, line={"width": 0}, layer="above",
                )  # fmt: skip
    low = min(0.0, float(curve.allocated.min()))
    # Room for the phases below the curve.
    below = (high - low) * _BAND * 1.5 if curve.bands else 0.0
    return finish(
        figure,
        theme,
        _HEIGHT,
        xaxis={"title": {"text": "ms since the window began"}, "showgrid": False},
        yaxis={
            "title": {"text": _name(unit) if curve.totals else f"{_name(unit)}, from the window's begin"},
            "range": [(low - below) / unit, 1.15 * high / unit],
        },
    )


def snapshot_figure(account: SnapshotAccount, theme: Theme) -> go.Figure:
    """The recorded history up to the snapshot."""
    scale = _US_IN_MS if account.timed else 1.0
    high = max(account.peak_reserved, account.peak_allocated)
    unit = _unit(high)
    figure = _lines(account.at_us / scale, account.allocated, account.reserved, unit, theme)
    _mark_peak(figure, account.peak_us / scale, account.peak_allocated, float(account.at_us[-1]) / scale, unit, theme)
    for oom in account.ooms:
        if oom.at_us is not None:
            figure.add_vline(
                x=oom.at_us / scale,
                line={"color": theme.ink, "dash": "dot"},
                annotation_position="top left",
                annotation={"text": label(f"{size(oom.requested)} asked for"), "font": {"color": theme.ink}},
            )
    return finish(
        figure,
        theme,
        _HEIGHT,
        xaxis={"title": {"text": "ms since the first event" if account.timed else "event"}, "showgrid": False},
        yaxis={"title": {"text": _name(unit)}, "range": [0, 1.15 * high / unit]},
    )


def _unit(most: int) -> float:
    """Bytes of one unit of an axis that reaches so far."""
    return _GB if most >= _GB else _MB


def _name(unit: float) -> str:
    return "GB" if unit == _GB else "MB"


def _lines(at: Numbers, allocated: Numbers, reserved: Numbers | None, unit: float, theme: Theme) -> go.Figure:
    figure = go.Figure()
    series = [("reserved", reserved, theme.part[Part.WAITING]), ("allocated", allocated, theme.part[Part.TRANSFER])]
    for name, values, colour in series:
        if values is None:
            continue
        figure.add_scatter(
            x=at,
            y=values.astype(np.float64) / unit,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertemplate=f"%{{x:,.3f}} ms<br>{name} %{{y:,.3f}} {_name(unit)}<extra></extra>",
        )
    return figure


def _mark_peak(figure: go.Figure, at: float, held: int, until: float, unit: float, theme: Theme) -> None:
    """``until``: where the curve ends; the text stays inside of it."""
    figure.add_scatter(
        x=[at],
        y=[held / unit],
        mode="markers+text",
        name="peak",
        text=[f"peak {size(held)}"],
        textposition="top left" if at > until / 2 else "top right",
        marker={"color": theme.ink, "size": 10, "symbol": "diamond"},
        hovertemplate=f"peak at %{{x:,.3f}} ms<br>%{{y:,.3f}} {_name(unit)} allocated<extra></extra>",
    )
