"""Curves over the steps: of one run while it trains, or of several runs in one figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from msgspec.structs import replace

from diag.api import Result
from diag.app.figures import GB, MB, MS, averaged, blocks_of, finish, translucent
from diag.app.markup import label
from diag.app.policy import DASHBOARD
from diag.app.run_view import Grid
from diag.app.theme import Theme
from diag.live import Curves, curves_of
from diag.model.breakdown import KernelKind
from diag.tables import zoom
from diag.tables.memory_curves import BACKWARD, BEFORE_BACKWARD, FORWARD, OPTIMIZER, MemoryCurve
from diag.tables.snapshots import SnapshotAccount
from diag.words.formatting import counted, number, size

_DASHES = ("solid", "dash")  # where there are more runs than colours


@dataclass(frozen=True)
class Quantity:
    """A quantity over the steps. ``values``: computes it from a function that returns the mean of a field of
    ``Curves`` by block of steps. ``from_zero``: its axis begins at zero."""

    name: str
    axis: str
    values: Callable[[Callable[[str], Grid]], Grid]
    from_zero: bool = True


STEP_TIME = Quantity("step time", "step time, ms", lambda mean: mean("dur_ns") / MS)
STEPS = Quantity("steps per second", "steps per second", lambda mean: 1e9 / mean("period_ns"))
TOKENS = Quantity("tokens per second", "tokens/s per rank", lambda mean: mean("tokens") * 1e9 / mean("period_ns"))
LOSS = Quantity("loss", "loss", lambda mean: mean("loss"), from_zero=False)
MEMORY = Quantity("memory", "peak memory, GB", lambda mean: mean("memory") / GB)


def curves_of_result(result: Result) -> Curves:
    """The curves of an analysed run without records, such as a folder of traces: only its step times are known."""
    steps = result.attribution.steps
    dur_ns = steps.dur_ns.astype(np.float64)
    unknown = np.full(len(steps), np.nan)
    return Curves(None, steps.step, dur_ns, dur_ns, unknown, unknown, unknown)


def curves_of_run(result: Result) -> Curves | None:
    """The curves of an analysed run: of its records, else its step times; None without a step."""
    recorded = curves_of(result.tables.root)
    return recorded if recorded is not None or not result.attribution.steps else curves_of_result(result)


def throughput(curves: Sequence[Curves]) -> Quantity:
    """In tokens where a run counts them, else in steps."""
    return TOKENS if any(not np.isnan(curve.tokens).all() for curve in curves) else STEPS


# Of one run, or of several that repeat one another.
OfRuns = Curves | tuple[Curves, ...]


def known(curves: Sequence[OfRuns], quantities: Sequence[Quantity]) -> list[Quantity]:
    """The quantities that at least one run has values of."""
    return [quantity for quantity in quantities if any(is_known(curve, quantity) for curve in curves)]


def is_known(curves: OfRuns, quantity: Quantity) -> bool:
    return not bool(np.isnan(_points(curves, quantity)[1]).all())


def _points(curves: OfRuns, quantity: Quantity) -> tuple[list[int], Grid, tuple[Grid, Grid] | None]:
    """Steps, values, and of runs that repeat one another the lowest and the highest: over the steps that all of them
    have."""
    if isinstance(curves, Curves):
        return (*curve_points(curves, quantity), None)
    common = reduce(np.intersect1d, [each.steps for each in curves])
    of_each = [curve_points(_at(each, np.isin(each.steps, common)), quantity) for each in curves]
    values = np.stack([own for _, own in of_each])
    return of_each[0][0], values.mean(axis=0), (values.min(axis=0), values.max(axis=0))


def _at(curves: Curves, chosen: npt.NDArray[np.bool_]) -> Curves:
    names = ("steps", "dur_ns", "period_ns", "tokens", "loss", "memory")
    return replace(curves, **{name: getattr(curves, name)[chosen] for name in names})


def curve_figure(
    runs: Sequence[tuple[str, OfRuns]],
    quantities: Sequence[Quantity],
    theme: Theme,
    height: int,
    columns: int = 2,
    places: Sequence[int] | None = None,
) -> go.Figure:
    """A small figure for each quantity, over the same steps. A run has the same colour in all of them and one entry in
    the legend; runs that repeat one another have one line, the mean, in a band from the lowest to the highest.
    ``places``: of the runs among the looks (`look_at`); without them, in their order."""
    places = range(len(runs)) if places is None else places
    figure = go.Figure()
    rows = -(-len(quantities) // columns)
    layout: dict[str, dict[str, Any]] = {}
    for position, quantity in enumerate(quantities):
        number = "" if position == 0 else str(position + 1)
        row, column = divmod(position, columns)
        drawn = [(name, *_points(curves, quantity)) for name, curves in runs]
        for at, (name, steps, values, ends) in zip(places, drawn, strict=True):
            colour, dash = look_at(at, theme)
            axes = {"xaxis": f"x{number}", "yaxis": f"y{number}", "legendgroup": str(at)}
            if ends is not None:
                _band(figure, steps, ends, colour, axes)
            figure.add_scatter(
                x=steps,
                y=values,
                name=label(name, 40),
                showlegend=position == 0,
                mode="lines" if len(steps) > 1 else "markers",
                line={"color": colour, "width": 1.8, "dash": dash},
                **axes,
                hovertemplate=f"{label(name, 40)}<br>step %{{x:,}}<br>{quantity.axis}: %{{y:,.4~g}}<extra></extra>",
            )
        layout[f"xaxis{number}"] = _across(column, min(columns, len(quantities)), number, row == rows - 1)
        layout[f"yaxis{number}"] = _up(quantity, row, rows, number, [values for _, _, values, _ in drawn])
        across, up = layout[f"xaxis{number}"]["domain"], layout[f"yaxis{number}"]["domain"]
        figure.add_annotation(
            x=across[0], y=up[1], xref="paper", yref="paper", text=quantity.axis, showarrow=False,
            xanchor="left", yanchor="bottom", yshift=4, font={"size": 13, "color": theme.soft},
        )  # fmt: skip
    return finish(
        figure, theme, height, showlegend=len(runs) > 1, hovermode="closest",
        margin={"l": 8, "r": 16, "t": 28, "b": 8}, **layout,
    )  # fmt: skip


def _band(figure: go.Figure, steps: list[int], ends: tuple[Grid, Grid], colour: str, axes: dict[str, str]) -> None:
    common = {"x": steps, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", **axes}
    figure.add_scatter(y=ends[1], **common)
    figure.add_scatter(y=ends[0], fill="tonexty", fillcolor=translucent(colour, _INTERVAL), **common)


_INTERVAL = 0.2  # opacity


def look_at(place: int, theme: Theme) -> tuple[str, str]:
    """Colour and dash of the curve of a run; those of `looks` places differ."""
    return theme.series[place % len(theme.series)], _DASHES[place // len(theme.series) % len(_DASHES)]


def looks(theme: Theme) -> int:
    return len(theme.series) * len(_DASHES)


def places_of(drawn: Sequence[str], known: dict[str, int], most: int) -> list[int]:
    """The place of each drawn run among ``most`` looks, so that no two share one: the run's own, whatever is drawn
    beside it. ``known``: the place of every run; where there are more runs than looks and two that are drawn have the
    same one, the later of them gets another there."""
    taken: set[int] = set()
    for name in sorted(drawn, key=known.__getitem__):
        own = known[name] % most
        free = [own, *(place for place in range(most) if place not in {known[other] % most for other in drawn})]
        known[name] = next((place for place in free if place not in taken), own)
        taken.add(known[name])
    return [known[name] for name in drawn]


def curve_points(
    curves: Curves, quantity: Quantity, most: int = DASHBOARD.most_points_of_curve
) -> tuple[list[int], Grid]:
    """The first step of each block of steps, and the block's value; NaN where it is not known."""
    blocks = blocks_of(len(curves), most)
    values = quantity.values(lambda name: averaged(getattr(curves, name), blocks))
    return [int(curves.steps[block.start]) for block in blocks], values


def spark_of(curves: Curves | None) -> list[float]:
    """Step times from 0 to 1, where 1 is the longest, or twice the median where single steps are longer: the axis
    begins at zero, so that noise looks like noise."""
    values = _step_times(curves)
    if not len(values):
        return []
    top = min(float(values.max()), 2 * float(np.median(values))) or 1.0
    return [round(min(1.0, value / top), 3) for value in values.tolist()]


def spark_words(curves: Curves | None) -> str:
    """What that shows, with the range of the step times."""
    values = _step_times(curves)
    if not len(values) or curves is None:
        return ""
    low, high = number(float(values.min())), number(float(values.max()))
    return f"step time over {counted(len(curves), 'step')}: {low} to {high} ms"


def _step_times(curves: Curves | None) -> Grid:
    if curves is None or not len(curves):
        return np.zeros(0)
    _, values = curve_points(curves, STEP_TIME, DASHBOARD.most_points_of_spark)
    return values[~np.isnan(values)]


def _across(column: int, columns: int, number: str, last: bool) -> dict[str, Any]:
    gap = 0.12  # for the numbers of an axis on a phone
    width = (1 - gap * (columns - 1)) / columns
    begin = column * (width + gap)
    return {
        "domain": _domain(begin, begin + width),
        "anchor": f"y{number}",
        "title": {"text": "step"} if last else None,
        "showgrid": False,
    }


def _domain(begin: float, end: float) -> list[float]:
    """A part of the figure's width or height, clamped to 0 to 1 against rounding errors."""
    return [max(0.0, begin), min(1.0, end)]


def _up(quantity: Quantity, row: int, rows: int, number: str, drawn: Sequence[Grid]) -> dict[str, Any]:
    gap = 0.2
    height = (1 - gap * (rows - 1)) / rows
    end = 1 - row * (height + gap)
    axis: dict[str, Any] = {
        "domain": _domain(end - height, end),
        "anchor": f"x{number}",
        "nticks": 5,
    }
    if quantity.from_zero:
        axis["rangemode"] = "tozero"
        if (top := _top(drawn)) is not None:
            axis["range"] = [0, top]
    return axis


def _top(drawn: Sequence[Grid]) -> float | None:
    """Where the axis ends; None if nothing has to be cut off."""
    later = [values[DASHBOARD.first_steps :] if len(values) > 2 * DASHBOARD.first_steps else values for values in drawn]
    high = max(
        (float(np.nanmax(_without_stalls(values))) for values in later if not np.isnan(values).all()), default=0.0
    )
    highest = max((float(np.nanmax(values)) for values in drawn if not np.isnan(values).all()), default=0.0)
    return 1.15 * high if highest > DASHBOARD.cut_curve_at * high > 0 else None


def _without_stalls(values: Grid) -> Grid:
    """Without the few values that are far above all others, as that of a step that stalls."""
    usual = values[~(values > DASHBOARD.single_values_cut_at * np.nanmedian(values))]
    return usual if len(usual) >= (1 - DASHBOARD.most_values_cut) * len(values) else values


# -- memory over time --------------------------------------------------------------------------------------------------
#
# Figures of memory over time: the curve of a trace, and the history that a memory snapshot holds.

_AT_MS, _AT_EVENT = "%{x:,.3f} ms", "event %{x:,.0f}"  # in hover texts
_MS, _US_IN_MS = 1e6, 1e3
_BAND = 0.06  # height of the phases below the curve, as a fraction of the plot's
# The colours of the phases are those of the timeline.
_WORK = {FORWARD: zoom.FORWARD, BEFORE_BACKWARD: zoom.FORWARD, BACKWARD: zoom.BACKWARD, OPTIMIZER: KernelKind.OPTIMIZER}

Numbers = npt.NDArray[Any]


def memory_figure(curve: MemoryCurve, capacity: float | None, theme: Theme) -> go.Figure:
    """Allocated and reserved bytes over the window, with the peak, and the phases of the steps below."""
    high = max(int(curve.allocated.max()), int(curve.reserved.max()) if curve.reserved is not None else 0)
    high = max(high, int(capacity or 0))
    unit = _unit(high)
    figure = _lines(curve.at_ns / _MS, curve.allocated, curve.reserved, unit, theme)
    _mark_peak(figure, curve.peak_ns / _MS, curve.peak_allocated, float(curve.at_ns[-1]) / _MS, unit, theme)
    if capacity is not None:
        figure.add_hline(y=capacity / unit, line={"color": theme.ink, "dash": "dash"})
    for phase in dict.fromkeys(band.phase for band in curve.bands):
        colour = phase_colour(phase, theme)
        figure.add_bar(x=[None], y=[None], name=phase, marker={"color": colour})  # for the legend only
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
        DASHBOARD.memory_curve_px,
        xaxis={"title": {"text": "ms since the window began"}, "showgrid": False},
        yaxis={
            "title": {"text": _name(unit) if curve.totals else f"{_name(unit)}, from the window's begin"},
            "range": [(low - below) / unit, 1.15 * high / unit],
        },
    )


def phase_colour(phase: str, theme: Theme) -> str:
    """The timeline's colour of a phase of the step."""
    return theme.work[_WORK[phase]]


def snapshot_figure(account: SnapshotAccount, theme: Theme) -> go.Figure:
    """The recorded history up to the snapshot."""
    scale = _US_IN_MS if account.timed else 1.0
    high = max(account.peak_reserved, account.peak_allocated)
    unit = _unit(high)
    moment = _AT_MS if account.timed else _AT_EVENT
    figure = _lines(account.at_us / scale, account.allocated, account.reserved, unit, theme, moment)
    until = float(account.at_us[-1]) / scale
    _mark_peak(figure, account.peak_us / scale, account.peak_allocated, until, unit, theme, moment)
    for oom in account.ooms:
        if oom.at_us is not None:
            figure.add_vline(
                x=oom.at_us / scale,
                line={"color": theme.ink, "dash": "dot"},
                annotation_position="top left",
                annotation={"text": label(f"{size(oom.requested)} requested"), "font": {"color": theme.ink}},
            )
    return finish(
        figure,
        theme,
        DASHBOARD.memory_curve_px,
        xaxis={"title": {"text": "ms since the first event" if account.timed else "event"}, "showgrid": False},
        yaxis={"title": {"text": _name(unit)}, "range": [0, 1.15 * high / unit]},
    )


def _unit(most: int) -> float:
    """The unit, in bytes, of an axis whose largest value is ``most``."""
    return GB if most >= GB else MB


def _name(unit: float) -> str:
    return "GB" if unit == GB else "MB"


def _lines(
    at: Numbers, allocated: Numbers, reserved: Numbers | None, unit: float, theme: Theme, moment: str = _AT_MS
) -> go.Figure:
    """``moment``: how the hover text writes a position on the x axis."""
    figure = go.Figure()
    series = [("reserved", reserved, theme.held[1]), ("allocated", allocated, theme.held[0])]
    for name, values, colour in series:
        if values is None:
            continue
        figure.add_scatter(
            x=at,
            y=values.astype(np.float64) / unit,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertemplate=f"{moment}<br>{name} %{{y:,.3f}} {_name(unit)}<extra></extra>",
        )
    return figure


def _mark_peak(
    figure: go.Figure, at: float, peak: int, until: float, unit: float, theme: Theme, moment: str = _AT_MS
) -> None:
    """``until``: where the curve ends; the text stays inside the plot."""
    figure.add_scatter(
        x=[at],
        y=[peak / unit],
        mode="markers+text",
        name="peak",
        text=[f"peak {size(peak)}"],
        textposition="top left" if at > until / 2 else "top right",
        marker={"color": theme.ink, "size": 10, "symbol": "diamond"},
        hovertemplate=f"peak at {moment}<br>%{{y:,.3f}} {_name(unit)} allocated<extra></extra>",
    )
