"""Figures as JSON that a page may hold: once in light colours, with what is different in dark ones.

Data is the largest part of a figure and the same in both, so it is there once. What differs is not listed by hand: the
same pure function draws both, and the two are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import plotly.graph_objects as go
from plotly.io.json import to_json_plotly

from diag.app.drawings import Drawing
from diag.app.theme import DARK, LIGHT, Theme

Path = tuple[str | int, ...]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Characters that end a script element, or a line of JavaScript, wherever they stand.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def to_json(drawings: Iterable[Drawing]) -> str:
    """``{key: {"figure": {...}, "dark": [[path, value], ...]}}``, safe inside a script element."""
    specs = {drawing.key: _spec(drawing) for drawing in drawings}
    text: str = to_json_plotly(specs, engine="json")
    return text.translate(_ESCAPED)


def _spec(drawing: Drawing) -> dict[str, Any]:
    light, dark = plain_figure(drawing, LIGHT), plain_figure(drawing, DARK)
    return {"figure": light, "dark": [[list(path), value] for path, value in differences(light, dark)]}


def differences(one: Any, other: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Where the second differs from the first, and what it has there; lists of plain values are compared as a whole."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], (*at, key))
    elif _nested(one) and _nested(other) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, (*at, index))
    elif one != other:
        yield at, other


def _nested(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in value)


def plain_figure(drawing: Drawing, theme: Theme) -> dict[str, Any]:
    """The figure in the look of the report, in plain containers; arrays of numbers as typed arrays in base64."""
    figure = drawing.draw(theme)
    figure.update_layout(template=_template(theme))
    content: dict[str, Any] = figure.to_dict()
    return content


def _template(theme: Theme) -> go.layout.Template:
    """What Streamlit's own theme gives the dashboard's figures: quiet lines, labels that fit, the page's letters."""
    axis = {
        "automargin": True,
        "gridcolor": theme.grid,
        "zerolinecolor": theme.grid,
        "linecolor": theme.grid,
        "ticks": "",
        "ticklabelstandoff": 5,
        "title": {"font": {"size": 13, "color": theme.soft}, "standoff": 10},
        "tickfont": {"size": 12, "color": theme.ink},
    }
    bar = {"title": {"font": {"size": 12, "color": theme.ink}}, "tickfont": {"size": 11, "color": theme.ink}}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": theme.ink},
            "hoverlabel": {
                "bgcolor": theme.ground,
                "bordercolor": theme.faint,
                "font": {"family": FONT, "size": 13, "color": theme.ink},
            },
            "xaxis": axis,
            "yaxis": axis,
        },
        data={"heatmap": [go.Heatmap(colorbar=bar)]},
    )
