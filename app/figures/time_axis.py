"""What the figures over time share: the window, the axis, the steps on it, and how categories and names are told.

Names come from traces: they are escaped, since Plotly shows some HTML in labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diag.app.figures.common import MS
from diag.app.theme import Theme
from diag.show.details import Category, Lane, StepSpan

from ..facts import NBSP, label
from ..run_view import Part

# Left and right of all figures the same, so that one moment is in one place: labels, and the heat map's scale.
MARGIN = {"l": 230, "r": 84, "t": 32, "b": 8}
_MOST_STEPS = 30  # that are marked
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
    """What is looked at, in ns since the run's begin."""

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
    """Plotly reports a drag only where there are points to select: here is one, which nobody sees."""
    figure.add_scatter(
        x=[(window.begin_ns + window.end_ns) / 2 / MS],
        y=[y],
        mode="markers",
        marker={"opacity": 0, "size": 1},
        showlegend=False,
        hoverinfo="skip",
    )


def mark_steps(figure: go.Figure, steps: Sequence[StepSpan], window: Window, theme: Theme) -> None:
    """A line where the first rank begins a step, with its number."""
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
            text=f"step {step.step}" if len(seen) <= 12 else str(step.step), font={"size": 11, "color": theme.faint},
        )  # fmt: skip


def at(ns: int) -> str:
    """A moment."""
    return f"{ns / MS:,.3f}{NBSP}ms"
