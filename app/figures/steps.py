"""The steps of one rank in order: what each consists of, and which class the analysis gave it."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from diag.app.figures.common import MOST_BARS, MS, averaged, blocks_of, finish, step_axis, step_names
from diag.app.run_view import Grid, RunView
from diag.app.theme import Theme
from diag.model.steps import Bottleneck
from diag.words.wording import class_name

from ..facts import label, number

_CUT = 2  # times the longest step that counts: longer ones that do not count are cut off
_ROOM = 1.1
_MOST_CUT = 12  # that are labelled with their length
_HATCH = "/"


def history(view: RunView, rank: int, theme: Theme, selected: int | None = None) -> go.Figure:
    """Stacked bars a step, hatched where the verdict leaves the step out, over a strip of classes. Areas where bars
    would be too many. ``selected``: the index of a step to mark."""
    as_bars = len(view.steps) * (len(view.parts) + 1) <= MOST_BARS
    blocks = blocks_of(len(view.steps))
    names = step_names(view.steps, blocks)
    hatches = ["" if view.counted[block].any() else _HATCH for block in blocks]
    row = view.ranks.index(rank)
    figure = go.Figure()
    for part, grid in view.parts.items():
        ms = averaged(grid[row], blocks) / MS
        options = {
            "name": part.value,
            "legendgroup": part.value,
            "showlegend": False,
            "hovertemplate": "%{y:,.2f} ms",
        }
        if as_bars:
            figure.add_bar(x=names, y=ms, marker=_marker([theme.part[part]] * len(names), hatches), **_STAY, **options)
        else:
            figure.add_scatter(
                x=names,
                y=np.nan_to_num(ms),
                mode="lines",
                line={"width": 0, "shape": "hvh", "color": theme.part[part]},
                fillcolor=theme.part[part],
                stackgroup="parts",
                **options,
            )
        _legend(figure, part.value, theme.part[part])
    classes = [_class(view, block) for block in blocks]
    figure.add_bar(
        x=names,
        y=[1] * len(names),
        yaxis="y2",
        name="class",
        showlegend=False,
        marker=_marker([theme.bottleneck[name] for name, _ in classes], hatches),
        customdata=[text for _, text in classes],
        hovertemplate="%{customdata}",
        **_STAY,
    )
    drawn = {theme.part[part] for part in view.parts}
    for name in Bottleneck:
        # A class has the colour of a part, which may be none of these steps', or one of its own.
        own = name in (Bottleneck.MIXED, Bottleneck.UNDETERMINED) or theme.bottleneck[name] not in drawn
        if own and any(name == found for found, _ in classes):
            _legend(figure, f"{name.value} (class)", theme.bottleneck[name])
    limit = limit_ms(view, rank)
    if limit is not None and as_bars:
        _label_cut(figure, names, averaged(view.dur_ns[row], blocks) / MS, limit, theme)
    if selected is not None:
        column = next(i for i, block in enumerate(blocks) if block.start <= selected < block.stop)
        figure.add_vrect(x0=column - 0.5, x1=column + 0.5, line={"color": theme.ink, "width": 2}, fillcolor=None)
    return finish(
        figure,
        theme,
        400,
        barmode="stack",
        # One or two steps would be walls.
        bargap=max(0.12, 1 - len(names) / 8) if len(names) <= 200 else 0,
        hovermode="x unified",
        hoversubplots="axis",
        # The second y axis hangs on the same x axis, so that one hover label tells the parts and the class.
        yaxis={
            "domain": [0.14, 1],
            "title": {"text": f"rank {rank}, milliseconds"},
            "rangemode": "tozero",
            **({"range": [0, limit]} if limit is not None else {}),
        },
        yaxis2={
            "domain": [0, 0.09],
            "range": [0, 1],
            "tickvals": [0.5],
            "ticktext": ["class"],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        xaxis=step_axis(blocks, view.noun, anchor="y2"),
    )


def limit_ms(view: RunView, rank: int) -> float | None:
    """Where the axis ends; None where it need not be cut. Start-up is part of the first step, or lies before it, and
    can take a hundred times as long as a step: the steps that count would be flat lines beside it."""
    dur = view.dur_ns[view.ranks.index(rank)] / MS
    longest = float(np.nanmax(dur[view.counted], initial=0.0))
    return _ROOM * longest if longest and float(np.nanmax(dur)) > _CUT * longest else None


def _label_cut(figure: go.Figure, names: list[str], ms: Grid, limit: float, theme: Theme) -> None:
    """How long the steps are that are cut off."""
    cut = [(name, value) for name, value in zip(names, ms.tolist(), strict=True) if value > limit]
    for name, value in cut[:_MOST_CUT]:
        figure.add_annotation(
            x=name, y=limit, text=f"{number(value)} ms ↑", showarrow=False, yanchor="top", xanchor="left",
            bgcolor=theme.ground, font={"size": 11, "color": theme.soft},
        )  # fmt: skip


# A click chooses a step; the bars that it does not hit must not fade.
_STAY = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}


def _marker(colours: list[str], hatches: list[str]) -> dict[str, object]:
    return {"color": colours, "line": {"width": 0}, "pattern": {"shape": hatches, "size": 5}}


def _legend(figure: go.Figure, name: str, colour: str) -> None:
    """An entry of its own: that of the bars would be hatched when the first step is."""
    marker = {"color": colour, "symbol": "square", "size": 12}
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legendgroup=name, hoverinfo="skip")


def _class(view: RunView, block: slice) -> tuple[Bottleneck, str]:
    """The class of the steps in a block, the most frequent one of those that count, and the same in words."""
    steps = list(zip(view.bottlenecks[block], view.notes[block], view.counted[block], strict=True))
    classes = [name for name, _, counts in steps if counts] or [name for name, _, _ in steps]
    name = max(Bottleneck, key=classes.count)
    reasons = dict.fromkeys(note or "no reason given" for _, note, counts in steps if not counts)
    text = class_name(name)
    return name, f"{text}, not counted: {label(', '.join(reasons))}" if reasons else text
