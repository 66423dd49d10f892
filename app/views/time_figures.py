"""All ranks over time, and the lanes of one: pixels where there is much, real bars where there is little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diag.app.figures import MOST_RANK_BARS, MS, SHADE, colour_bar, finish, rank_names, rows_height
from diag.app.markup import label
from diag.app.markup import label as shown_label
from diag.app.run_view import Part
from diag.app.theme import Theme, ink_on
from diag.tables.zoom import AllRanks, Bars, Category, Lane, Pixels, StepSpan, pixel_edges, read_bars
from diag.words.formatting import NBSP, duration

_MOST_CELLS = 400_000  # of a heat map: 1.6 MB on their way to the browser
_MOST_PIXELS = 1200
_MOST_LABELS = 32
_ROW_PX, _HEADING_ROWS = 19, 1.1
_LEGEND_PX = 56  # three lines: one's entries are as wide as its longest
_CHAR_PX, _PLOT_PX, _LEAST_CHARS = 7.5, 800, 9  # of a bar's text, about


def bars_of_all(timeline: AllRanks, window: Window) -> tuple[Bars, ...] | None:
    """Every stretch of every rank, where that can be drawn."""
    if len(timeline.ranks) > MOST_RANK_BARS:
        return None
    lanes = [lane for rank in timeline.ranks.values() for lane in rank.lanes]
    return read_bars(lanes, window.begin_ns, window.end_ns)


def overview(
    timeline: AllRanks,
    window: Window,
    drawn: Category | tuple[Bars, ...],
    theme: Theme,
    culprits: Sequence[int] = (),
) -> go.Figure:
    """Ranks by time: what each one does as bars, or the share of one category in each pixel."""
    labels = rank_names(list(timeline.ranks), culprits, theme.ink)
    figure = go.Figure()
    if isinstance(drawn, tuple):
        _rank_bars(figure, timeline, drawn, labels, theme)
    else:
        _rank_pixels(figure, timeline, window, drawn, labels, theme)
    mark_steps(figure, timeline.steps, window, theme)
    above = _LEGEND_PX if isinstance(drawn, tuple) else 0
    return finish(
        figure,
        theme,
        rows_height(len(labels), least=170, each=34) + above,
        margin={**MARGIN, "t": MARGIN["t"] + above},
        barmode="overlay",
        bargap=0.2,
        # Of the whole picture, not of its axes: next to the labels there is room for one line.
        legend={
            "orientation": "h", "xref": "container", "yref": "container", "x": 0, "y": 1,
            "xanchor": "left", "yanchor": "top", "traceorder": "normal",
        },
        **axes(window),
        yaxis={
            "range": [len(labels) - 0.5, -0.5], "type": "category", "title": None, "showgrid": False,
            "fixedrange": True, "categoryorder": "array", "categoryarray": labels,
            "tickvals": _ticks(len(labels), [i for i, rank in enumerate(timeline.ranks) if rank in culprits]),
        },
    )  # fmt: skip


def _ticks(count: int, always: Sequence[int]) -> list[int]:
    """Which of so many rows have a label: some of them, and those that need one."""
    each = -(-count // _MOST_LABELS)
    if each == 1:
        return list(range(count))
    kept = list(always[:_MOST_LABELS])
    free = [row for row in range(0, count, each) if all(abs(row - other) >= each for other in kept)]
    return sorted({*kept, *free})


def lanes(
    groups: Mapping[str, Sequence[Pixels | Bars]], steps: Sequence[StepSpan], window: Window, theme: Theme
) -> go.Figure:
    """One rank: its lanes under the heading of their group, each in the colour of its category."""
    figure = go.Figure()
    top = 0.0
    ticks: list[tuple[float, str]] = []
    for heading, rows in groups.items():
        figure.add_annotation(
            x=0, xref="paper", y=top + _HEADING_ROWS / 2, xanchor="right", xshift=-6, showarrow=False,
            text=f"<b>{heading}</b>", font={"size": 12},
        )  # fmt: skip
        top += _HEADING_ROWS
        for row in rows:
            height = row.rows if isinstance(row, Bars) else 1
            if isinstance(row, Bars):
                _bars(figure, row, top, window, theme)
            else:
                _pixels(figure, row, top, theme)
            ticks.append((top + height / 2, text(title(row.lane))))
            top += height + 0.15
    mark_steps(figure, steps, window, theme)
    return finish(
        figure,
        theme,
        round(_ROW_PX * top) + 96,
        margin=MARGIN,
        barmode="overlay",
        **axes(window),
        yaxis={
            "range": [top, 0], "title": None, "showgrid": False, "zeroline": False, "fixedrange": True,
            "tickvals": [middle for middle, _ in ticks], "ticktext": [label for _, label in ticks],
        },
    )  # fmt: skip


def _rank_bars(
    figure: go.Figure, timeline: AllRanks, drawn: Iterable[Bars], labels: Sequence[str], theme: Theme
) -> None:
    of_lane = {
        id(lane): label for label, rank in zip(labels, timeline.ranks.values(), strict=True) for lane in rank.lanes
    }
    rows = [(of_lane[id(bars.lane)], bars) for bars in drawn]
    for category in timeline.categories:
        own = [(label, bars) for label, bars in rows if bars.lane.category == category]
        starts = np.concatenate([bars.start_ns for _, bars in own])
        lengths = np.concatenate([bars.end_ns - bars.start_ns for _, bars in own])
        names = [name for _, bars in own for name in bars.names]
        hover = [
            f"{words(category)}{f' ({name})' if name else ''}, {duration(length)}<br>from {at(start)}"
            for name, start, length in zip(names, starts.tolist(), lengths.tolist(), strict=True)
        ]
        figure.add_bar(
            base=starts / MS,
            x=lengths / MS,
            y=[label for label, bars in own for _ in bars.names],
            orientation="h",
            name=words(category),
            marker={"color": colour(category, theme), "line": {"width": 0}},
            hovertext=hover,
            hovertemplate="%{y}<br>%{hovertext}<extra></extra>",
            **STAY,
        )


def _rank_pixels(
    figure: go.Figure, timeline: AllRanks, window: Window, category: Category, labels: Sequence[str], theme: Theme
) -> None:
    most = max(100, min(_MOST_PIXELS, _MOST_CELLS // max(1, len(labels))))
    edges = pixel_edges(window.begin_ns, window.end_ns, most)
    figure.add_heatmap(
        z=timeline.shares(category, edges).astype(np.float32),
        **columns(edges),
        y=list(labels),
        colorscale=[list(stop) for stop in theme.heat],
        zmin=0,
        zmax=1,
        ygap=1 if len(labels) <= MOST_RANK_BARS else 0,
        colorbar={**colour_bar("share"), "tickformat": ".0%", "tickvals": [0, 1]},
        hovertemplate=f"%{{y}}<br>{words(category)} %{{z:.0%}}<br>of {duration(pixel_ns(edges))} at %{{x:,.3f}} ms"
        "<extra></extra>",
    )
    selectable(figure, window, labels[0])


def _pixels(figure: go.Figure, row: Pixels, top: float, theme: Theme) -> None:
    figure.add_heatmap(
        z=row.share.astype(np.float32)[None],
        **columns(row.edges),
        y=[top + 0.06, top + 0.94],
        colorscale=[[0.0, theme.ground], [1.0, colour(row.lane.category, theme)]],
        zmin=0,
        zmax=1,
        showscale=False,
        hovertemplate=f"{text(title(row.lane))}<br>busy %{{z:.0%}} of {duration(pixel_ns(row.edges))} "
        "at %{x:,.3f} ms<extra></extra>",
    )
    selectable(figure, Window(int(row.edges[0]), int(row.edges[-1])), top + 0.5)


def _bars(figure: go.Figure, row: Bars, top: float, window: Window, theme: Theme) -> None:
    lengths = (row.end_ns - row.start_ns).tolist()
    starts = row.start_ns.tolist()
    label = text(title(row.lane))
    what = [text(name) or label for name in row.names]
    # Only what is seen of them, so that a name stands in the middle of that.
    begin, end = np.maximum(row.start_ns, window.begin_ns), np.minimum(row.end_ns, window.end_ns)
    room = ((end - begin) / window.dur_ns * (_PLOT_PX / _CHAR_PX)).astype(np.int64).tolist()
    tone = colour(row.lane.category, theme)
    figure.add_bar(
        base=begin / MS,
        x=(end - begin) / MS,
        y=top + row.row + 0.5,
        width=0.88,
        orientation="h",
        showlegend=False,
        # A line of the same colour, so that what is thinner than a pixel is seen.
        marker={"color": tone, "line": {"width": 0.6, "color": tone}},
        text=[_fitting(name, chars) for name, chars in zip(row.names, room, strict=True)],
        textposition="inside",
        insidetextanchor="middle",
        insidetextfont={"color": ink_on(tone), "size": 11},
        textangle=0,
        constraintext="none",
        hovertext=[
            f"<b>{name}</b><br>{label}<br>lasts {duration(length)}, from {at(start)}"
            for name, start, length in zip(what, starts, lengths, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
        **STAY,
    )


def _fitting(name: str, chars: int) -> str:
    """As much of the name as fits; nothing where too little of it fits."""
    if chars < min(_LEAST_CHARS, len(name)):
        return ""
    return shown_label(name if len(name) <= chars else f"{name[: chars - 1]}…", chars)


# -- time axis ---------------------------------------------------------------------------------------------------------


# Left and right of all figures the same, so that one moment is in one place: labels, and the heat map's scale.
MARGIN = {"l": 230, "r": 84, "t": 32, "b": 8}
_MOST_STEPS, _MOST_NAMED = 30, 12  # that are marked, and with more than their number
_NAME_CHARS = 160

_PART: Mapping[Category, Part] = {
    Category.COMPUTE: Part.COMPUTE,
    Category.TRANSFER: Part.TRANSFER,
    Category.WAITING: Part.WAITING,
    Category.COMMUNICATION: Part.COMMUNICATION,
    Category.COPY: Part.COPY,
    Category.DATA: Part.DATA,
    Category.CHECKPOINT: Part.CHECKPOINT,
    Category.NOT_LAUNCHED: Part.HOST,
    Category.QUEUED: Part.QUEUED,
    Category.IDLE: Part.IDLE,
}
# A drag selects; what it does not hit must not fade.
STAY = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}


@dataclass(frozen=True)
class Window:
    """The part of the run that is shown, in ns since its begin."""

    begin_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.begin_ns


def words(category: Category) -> str:
    """What people read."""
    return _PART[category].value if category in _PART else category.value


def colour(category: Category, theme: Theme) -> str:
    """One a category, the same on every page."""
    return theme.part[_PART[category]] if category in _PART else theme.host


def text(name: str) -> str:
    """A name from a trace as Plotly shows it: as it is, and not longer than a line."""
    return label(name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…", _NAME_CHARS)


def title(lane: Lane) -> str:
    """What a lane is called: a lane of the account is named after its category."""
    return words(lane.category) if lane.title == lane.category.value else lane.title


def axes(window: Window) -> dict[str, Any]:
    """The layout of time: a drag over it selects a stretch of it."""
    return {
        "xaxis": {
            "range": [window.begin_ns / MS, window.end_ns / MS],
            "title": {"text": "milliseconds since the run's begin"},
            "tickformat": ",.6~f",
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "dragmode": "select",
        "selectdirection": "h",
    }


def columns(edges: npt.NDArray[np.int64]) -> dict[str, float]:
    """Where a heat map's columns are, in milliseconds."""
    width = (int(edges[-1]) - int(edges[0])) / (len(edges) - 1) / MS
    return {"x0": int(edges[0]) / MS + width / 2, "dx": width}


def pixel_ns(edges: npt.NDArray[np.int64]) -> float:
    """How long a pixel is."""
    return (int(edges[-1]) - int(edges[0])) / (len(edges) - 1)


def selectable(figure: go.Figure, window: Window, y: float | str) -> None:
    """Plotly reports a drag only where there are points to select: here is an invisible one."""
    figure.add_scatter(
        x=[(window.begin_ns + window.end_ns) / 2 / MS],
        y=[y],
        mode="markers",
        marker={"opacity": 0, "size": 1},
        showlegend=False,
        hoverinfo="skip",
    )


def mark_steps(figure: go.Figure, steps: Sequence[StepSpan], window: Window, theme: Theme) -> None:
    """A line where the first rank begins a step, with its number. Steps in profiler windows are shaded."""
    for step in steps:
        if step.window and step.begin_ns < window.end_ns and step.end_ns > window.begin_ns:
            begin, end = max(step.begin_ns, window.begin_ns) / MS, min(step.end_ns, window.end_ns) / MS
            figure.add_vrect(x0=begin, x1=end, fillcolor=theme.ink, opacity=SHADE / 2, line={"width": 0})
    seen = [step for step in steps if window.begin_ns <= step.begin_ns < window.end_ns]
    if len(seen) > _MOST_STEPS:
        return
    for step in seen:
        begin = step.begin_ns / MS
        figure.add_shape(
            type="line",
            x0=begin,
            x1=begin,
            y0=0,
            y1=1,
            yref="paper",
            line={"color": theme.faint, "width": 1, "dash": "dot"},
        )
        figure.add_annotation(
            x=begin, y=1, yref="paper", yanchor="bottom", xanchor="left", xshift=-2, showarrow=False,
            text=_step_name(step, len(seen)), font={"size": 11, "color": theme.faint},
        )  # fmt: skip


def _step_name(step: StepSpan, seen: int) -> str:
    """As long as there is room for, of so many steps."""
    name = f"step {step.step}" if seen <= _MOST_NAMED else str(step.step)
    return f"{name}, profiled" if step.window and seen <= _MOST_NAMED else name


def at(ns: int) -> str:
    """A moment."""
    return f"{ns / MS:,.3f}{NBSP}ms"
