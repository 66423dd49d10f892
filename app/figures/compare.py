"""From one run's step to another's: which kinds of time became longer or shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from diag.app.theme import Theme
from diag.show.details import Comparison, RankDifference

from ..facts import label, number
from ..run_view import PART_OF
from .common import MOST_RANK_BARS, MS, finish, rank_names, rows_height

_THIN = 4  # times the differences: from here on the bars of the steps are cut off


def flow(found: Comparison, before: str, after: str, theme: Theme) -> go.Figure:
    """Milliseconds a step: the first run's bar, then a floating bar a kind from where the ones before it end, then the
    second run's. Lines are the intervals of the differences; hatched where one includes zero."""
    names = [label(before, 24), *(PART_OF[part.kind].value.partition(":")[0] for part in found.parts), label(after, 24)]
    bases, heights, tops = [0.0], [found.before_ns / MS], [found.before_ns / MS]
    at = float(found.before_ns)
    for part in found.parts:
        change = part.ns[1]
        bases.append(min(at, at + change) / MS)
        heights.append(abs(change) / MS)
        tops.append(max(at, at + change, at + part.ns[2]) / MS)
        at += change
    bases.append(0.0)
    heights.append(found.after_ns / MS)
    tops.append(found.after_ns / MS)
    colours = [theme.faint, *(theme.part[PART_OF[part.kind]] for part in found.parts), theme.faint]
    hatches = ["", *("" if part.sure else "/" for part in found.parts), ""]
    texts = [f"{number(found.before_ns / MS)} ms", *(_signed(p.ns[1]) for p in found.parts)]
    texts.append(f"{number(found.after_ns / MS)} ms")
    places = list(range(len(names)))
    figure = go.Figure(
        go.Bar(
            x=places,
            y=heights,
            base=bases,
            marker={"color": colours, "line": {"width": 0}, "pattern": {"shape": hatches, "size": 6}},
            customdata=[
                [name, text, interval] for name, text, interval in zip(names, texts, _intervals(found), strict=True)
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]} a step%{customdata[2]}<extra></extra>",
        )
    )
    _lines(figure, found, theme)
    for place, top, text in zip(places, tops, texts, strict=True):
        figure.add_annotation(x=place, y=top, text=text, showarrow=False, yanchor="bottom", yshift=3, font={"size": 12})
    return finish(
        figure,
        theme,
        420,
        bargap=0.35,
        showlegend=False,
        yaxis=_axis(bases[1:-1] or [0.0], tops),
        xaxis={"tickvals": places, "ticktext": names, "title": None},
    )


def _axis(lows: Sequence[float], tops: Sequence[float]) -> dict[str, Any]:
    """From zero; where the differences would be too thin to see, from below the lowest of them, which it says."""
    low, high = min(*lows, *tops), max(tops)
    span = high - low
    first = 0.0 if low < _THIN * span else low - 0.5 * span
    title = "milliseconds a step" if not first else f"milliseconds a step, cut off below {number(first)}"
    return {"title": {"text": title}, "range": [first, high + 0.12 * (high - first)]}


def _lines(figure: go.Figure, found: Comparison, theme: Theme) -> None:
    """The interval of each difference, at the end that it moves."""
    ends, low, high = [], [], []
    at = float(found.before_ns)
    for part in found.parts:
        ends.append((at + part.ns[1]) / MS)
        low.append((part.ns[1] - part.ns[0]) / MS)
        high.append((part.ns[2] - part.ns[1]) / MS)
        at += part.ns[1]
    figure.add_scatter(
        x=list(range(1, len(ends) + 1)),
        y=ends,
        mode="markers",
        marker={"color": theme.ink, "size": 4},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": high,
            "arrayminus": low,
            "color": theme.ink,
            "thickness": 1.5,
        },
        hoverinfo="skip",
    )


def _intervals(found: Comparison) -> list[str]:
    return ["", *(f", {_signed(part.ns[0])} to {_signed(part.ns[2])}" for part in found.parts), ""]


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else '±'}{number(abs(ns) / MS)} ms"


# -- differences -------------------------------------------------------------------------------------------------------
#
# How each rank differs from the others: the one at fault sticks out.

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
