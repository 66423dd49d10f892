"""Figures as JSON that a page may hold: once in light colours, with what is different in dark ones.

Data is the largest part of a figure and the same in both, so it is there once. What differs is not listed by hand: the
same pure function draws both, and the two are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

import plotly.graph_objects as go
from msgspec import Struct, structs
from plotly.io.json import to_json_plotly

from diag.app.drawings import Drawing
from diag.app.run_view import RunView
from diag.app.theme import DARK, LIGHT, Theme

from .page import Command, Page, RunName

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


# -- redaction ---------------------------------------------------------------------------------------------------------
#
# Applies pseudonyms to every text of a page, whatever it is called and wherever it stands.

T = TypeVar("T")


class Pseudonyms(Protocol):
    """What hides names. ``kept``: what it deliberately leaves, in words."""

    @property
    def kept(self) -> str: ...

    def text(self, text: str, /) -> str:
        """The text with pseudonyms for the names in it."""

    def command(self, text: str, /) -> str:
        """The same of a command, of which only what diag itself knows is left."""

    def run_name(self, text: str, /) -> str:
        """Instead of what a person called the run."""


def redacted_view(view: RunView, names: Pseudonyms) -> RunView:
    """The layout with the only words that figures show of it redacted: why steps do not count."""
    return replace(view, notes=tuple(names.text(note) for note in view.notes))


def redacted_page(page: Page, names: Pseudonyms) -> Page:
    """The page with every text in it redacted; its figures are those of a redacted view already."""
    return _redacted(page, names)


def _redacted(value: T, names: Pseudonyms) -> T:
    """Of records and tuples all the way down; numbers and functions stay."""
    found: Any = value
    if isinstance(value, RunName):
        found = RunName(names.run_name(value))
    elif isinstance(value, Command):
        found = Command(names.command(value))
    elif isinstance(value, str):
        found = names.text(value)
    elif isinstance(value, tuple):
        found = tuple(_redacted(item, names) for item in value)
    elif isinstance(value, Struct):
        found = structs.replace(value, **_fields(value, value.__struct_fields__, names))
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **_fields(value, [field.name for field in fields(value)], names))
    result: T = found
    return result


def _fields(value: Any, chosen: Iterable[str], names: Pseudonyms) -> dict[str, Any]:
    return {field: _redacted(getattr(value, field), names) for field in chosen}
