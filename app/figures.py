"""Shared by all figures: axes of ranks and steps, merging of columns where there are too many, layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diag.app.policy import DASHBOARD
from diag.app.run_view import Grid
from diag.app.theme import Theme
from diag.words.formatting import number
from diag.words.formatting import spans as spans

MS, MB, GB = 1e6, 1e6, 1e9  # nanoseconds; bytes


def rank_names(ranks: Sequence[int], culprits: Sequence[int] = (), ink: str = "") -> list[str]:
    """Labels of ranks; those at fault are marked by words as well as by a colour."""
    mark = f'<b><span style="color:{ink}">at fault ▸ rank {{}}</span></b>' if ink else "<b>at fault ▸ rank {}</b>"
    return [mark.format(rank) if rank in culprits else f"rank {rank}" for rank in ranks]


def step_names(steps: Sequence[int], blocks: Sequence[slice]) -> list[str]:
    """One label a column: the step, or the first of its block."""
    return [str(steps[block.start]) for block in blocks]


def step_axis(blocks: Sequence[slice], noun: str = "step", **options: Any) -> dict[str, Any]:
    """An axis of categories, because step numbers have gaps, for example between profiler windows."""
    width = blocks[0].stop - blocks[0].start if blocks else 1
    title = noun if width == 1 else f"{noun}; each column stands for {width} {noun}s"
    return {
        "title": {"text": title},
        "type": "category",
        "nticks": DASHBOARD.most_step_labels,
        "tickangle": 0,
        "showgrid": False,
        **options,
    }


def blocks_of(count: int, most: int = DASHBOARD.most_columns) -> list[slice]:
    """At most ``most`` blocks of neighbouring steps, each drawn as one column. Single steps if there are few."""
    width = -(-count // most) if count else 1
    return [slice(i, min(i + width, count)) for i in range(0, count, width)]


def field_columns(ranks: int) -> int:
    """The most columns that a heat map of so many ranks may have."""
    return max(DASHBOARD.least_columns_of_map, min(DASHBOARD.most_columns, DASHBOARD.most_cells // max(ranks, 1)))


def averaged(grid: Grid, blocks: Sequence[slice]) -> Grid:
    """One column a block: the mean of the known values, NaN without any."""
    if len(blocks) == grid.shape[-1]:
        return grid
    known = ~np.isnan(grid)
    edges = [block.start for block in blocks]
    total = np.add.reduceat(np.where(known, grid, 0.0), edges, axis=-1)
    count = np.add.reduceat(known.astype(np.float64), edges, axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def highest(grid: Grid, blocks: Sequence[slice]) -> Grid:
    """One column a block: the largest value. For peaks, where a mean would hide the one that matters."""
    if len(blocks) == grid.shape[-1]:
        return grid
    peaks: Grid = np.fmax.reduceat(grid, [block.start for block in blocks], axis=-1)
    return peaks


PROFILER_WINDOW = "profiler window (not counted)"
SHADE = 0.16  # opacity, low enough that the shaded columns stay readable


def shade_windows(
    figure: go.Figure, windows: npt.NDArray[np.bool_], blocks: Sequence[slice], theme: Theme
) -> go.Figure:
    """Shades the columns with steps in profiler windows and adds a legend entry. ``windows``: by step. The shade is
    drawn above the data, because a heat map would hide it."""
    inside = [at for at, block in enumerate(blocks) if windows[block].any()]
    look = {"type": "rect", "xref": "x", "yref": "y domain", "y0": 0, "y1": 1, "fillcolor": theme.ink, "opacity": SHADE}
    shades = [{**look, "x0": first - 0.5, "x1": last + 0.5, "line": {"width": 0}} for first, last in spans(inside)]
    if inside:
        figure.update_layout(shapes=[*figure.layout.shapes, *shades])  # at once: add_vrect copies all before it
        marker = {"color": theme.ink, "opacity": 2 * SHADE, "symbol": "square", "size": 12}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=PROFILER_WINDOW, hoverinfo="skip")
        figure.update_layout(showlegend=True)
    return figure


def finish(figure: go.Figure, theme: Theme, height: int, **layout: Any) -> go.Figure:
    """Sets the margins, font and legend that all figures have in common, then ``layout``."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        font={"color": theme.ink},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        hoverlabel={"align": "left"},
    )
    figure.update_layout(**layout)
    return figure


def translucent(colour: str, opacity: float) -> str:
    """A colour of the theme, ``#rrggbb``, through which others are seen."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def signed_ms(ns: float) -> str:
    """A difference."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else '±'}{number(abs(ns) / MS)} ms"


class Entry(NamedTuple):
    """An entry of a legend. ``name``: escaped for Plotly; ``mark``: the symbol of points, or the dash of a line;
    ``group``: of the traces that a click on it isolates, "" if it does not."""

    name: str
    colour: str
    line: bool
    mark: str
    opacity: float
    group: str = ""


def legend_of(figure: go.Figure) -> list[Entry]:
    """The entries that Plotly's legend of the figure has."""
    named = [trace for trace in figure.data if trace.name and trace.type in _NAMED and trace.showlegend is not False]
    shown = figure.layout.showlegend
    if shown is None:
        shown = len(named) > 1 or any(trace.showlegend for trace in named)
    return [_entry(trace) for trace in named] if shown else []


_NAMED = ("bar", "scatter")


def _entry(trace: Any) -> Entry:
    marker, is_bar = trace.marker, trace.type == "bar"
    if not is_bar and trace.fill:
        return Entry(trace.name, trace.fillcolor, False, "square", 1.0)
    if not is_bar and "lines" in (trace.mode or "lines"):
        group = trace.legendgroup or ""
        return Entry(trace.name, trace.line.color, True, trace.line.dash or "solid", 1.0, group)
    colour = _first(marker.color) or trace.line.color  # Plotly's: of points without one, that of their line
    symbol = "square" if is_bar else (_first(marker.symbol) or "circle").removesuffix("-open")
    return Entry(trace.name, colour, False, symbol, 1.0 if marker.opacity is None else marker.opacity)


def _first(values: Any) -> Any:
    """Of one for all points, that."""
    return values if values is None or isinstance(values, str) else values[0]


def name_above(figure: go.Figure, row: int, name: str, value: str, more: str = "") -> None:
    """Writes name and value above a lying bar, so that both have the whole width of the figure. All texts are escaped
    for Plotly."""
    figure.add_annotation(
        x=0, xref="paper", xanchor="left", y=row - DASHBOARD.named_bar_share / 2, yanchor="bottom",
        text=f"{name} <b>{value}</b>{more}", showarrow=False, font={"size": 13}, borderpad=1,
    )  # fmt: skip


def named_bars(count: int) -> dict[str, Any]:
    """The layout of that many lying bars with their names above: the axis, and how thick they are."""
    thick = DASHBOARD.named_bar_share
    return {"bargap": 1 - thick, "yaxis": {"range": [count - 1 + thick, -1 + thick / 2], "visible": False}}


def heatmap(z: Grid, columns: Sequence[str], rows: Sequence[str], theme: Theme, **options: Any) -> go.Heatmap:
    """A heat map of ``rows`` by ``columns``, as 32-bit floats, which Plotly sends in binary."""
    return go.Heatmap(
        z=z.astype(np.float32),
        x=list(columns),
        y=list(rows),
        colorscale=[list(stop) for stop in theme.heat],
        zmin=0,
        hoverongaps=False,
        xgap=1 if len(columns) <= 64 else 0,
        ygap=1 if len(rows) <= 64 else 0,
        **options,
    )


def make_cells_clickable(figure: go.Figure) -> bool:
    """Puts a point into each cell of a heat map, the figure's first trace, because Plotly can select only points. A
    point's custom data begin with its row and its column. False if there are too many cells."""
    field = figure.data[0]
    rows, columns = field.z.shape
    if rows * columns > DASHBOARD.most_bars:
        return False
    row, column = np.mgrid[:rows, :columns].reshape(2, -1)
    known = ~np.isnan(field.z[row, column])
    row, column = row[known], column[known]
    figure.add_scatter(
        x=[field.x[i] for i in column],
        y=[field.y[i] for i in row],
        mode="markers",
        marker={"opacity": 0, "size": 8},
        unselected={"marker": {"opacity": 0}},
        selected={"marker": {"opacity": 0}},
        customdata=np.column_stack((row, column, field.z[row, column])),
        hovertemplate=field.hovertemplate.replace("%{z", "%{customdata[2]"),
        showlegend=False,
    )
    figure.update_layout(hovermode="closest", hoverdistance=-1)
    return True


def colour_bar(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "side": "top"}, "thickness": 10, "outlinewidth": 0, "len": 1.0}


def rows_height(count: int, least: int = 120, each: int = 30, most: int = 640) -> int:
    return max(least, min(most, 90 + each * count))
