"""The report: the dashboard's first page as one HTML file. It loads nothing and sends nothing."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from diag.api import Result
from diag.app import drawings
from diag.app.drawings import Drawing
from diag.app.html_report.evidence import figures_of, without_logs
from diag.app.run_view import RunView, view_of
from diag.app.theme import DARK, LIGHT, Theme, favicon
from diag.show import page as words
from diag.show import ranks
from diag.show.page import Command, advice_of
from diag.show.redacted import Pseudonyms, page_without_names, redacted
from diag.words.formatting import masked, moment, visible_lines
from diag.words.wording import ONLY_DURATIONS, pieces

Path = tuple[str | int, ...]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Characters that can end a script element or a line of JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(result: Result, command: str, version: str, names: Pseudonyms | None = None) -> str:
    """The report as HTML. ``command``, ``version``: the command and the version of diag that make it; secrets in the
    command are masked. ``names``: the pseudonyms of a redacted report."""
    view, typed = view_of(result), Command(masked(command))
    page, advised = view.page, advice_of(result)
    sections = sections_of(view if names is None else _redacted_view(view, names))
    found = figures_of(view)
    if names is not None:
        page, advised = page_without_names(page, names), redacted(advised, names)
        sections, typed = redacted(sections, names), redacted(typed, names)
        found = redacted(without_logs(found), names)
    scripts = (_script(get_plotlyjs()), _script(_asset("script.js")))
    return _template().render(
        page=page,
        advised=advised,
        sections=sections,
        found=found,
        command=typed,
        words=words,
        ranks=ranks,
        csp=_policy(scripts),
        light=LIGHT,
        dark=DARK,
        font=Markup(FONT),
        style=Markup(_asset("style.css")),
        icon=f"data:image/svg+xml,{quote(favicon())}",
        specs=Markup(to_json(sections.figures)),
        scripts=[Markup(script) for script in scripts],
        version=version,
        reported=moment(time.time_ns()),
        kept=names.kept if names is not None else "",
    )


@dataclass(frozen=True)
class Section:
    """Text and figures under one heading."""

    text: str
    figures: tuple[Drawing, ...]


@dataclass(frozen=True)
class Sections:
    """The sections of the page that have figures, from top to bottom."""

    differences: Section
    time: Section
    waiting: Section
    memory: Section

    @property
    def figures(self) -> tuple[Drawing, ...]:
        return (*self.differences.figures, *self.time.figures, *self.waiting.figures, *self.memory.figures)


def sections_of(view: RunView) -> Sections:
    """The figures that the overview draws when it opens; none if no step was recorded."""
    if not view.result.attribution.steps:
        nothing = Section(f"{ONLY_DURATIONS}.", ())
        return Sections(nothing, nothing, nothing, nothing)
    rank = view.page.rank
    differences, by_rank = drawings.of_differences(view)
    waiting, by_step = drawings.of_waiting(view)
    memory, peaks = drawings.of_memory(view, rank)
    return Sections(
        differences=Section(differences, (by_rank,) if by_rank is not None else ()),
        time=Section("", (drawings.of_ranks(view), drawings.of_steps(view, rank))),
        waiting=Section(waiting, (by_step,) if by_step is not None else ()),
        memory=Section(memory, peaks),
    )


def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters["prose"] = _prose
    return environment.from_string(_asset("template.html"))


def _shown(value: object) -> object:
    """The value as the template inserts it: text with control characters escaped, markup unchanged."""
    return visible_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """The script, escaped so that it cannot end its element, with the LF line ends over which browsers hash it."""
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: Iterable[str]) -> str:
    """A content security policy: no network, and no scripts but these. Plotly writes inline styles, and draws heat maps
    as ``data:`` images."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _prose(text: str) -> Markup:
    """The text as HTML; parts in backticks become ``<code>``."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if typed else escape(part) for part, typed in pieces(visible_lines(text)))


# -- figures -----------------------------------------------------------------------------------------------------------
#
# Figures as JSON inside the page: the light figure, and the values that differ in the dark one. So the data, most of a
# figure, is stored once. One function draws both themes; the differences come from comparing the two figures.


def to_json(drawings: Iterable[Drawing]) -> str:
    """``{key: {"figure": {...}, "dark": [[path, value], ...]}}``, safe inside a script element."""
    specs = {drawing.key: _spec(drawing) for drawing in drawings}
    text: str = to_json_plotly(specs, engine="json")
    return text.translate(_ESCAPED)


def _spec(drawing: Drawing) -> dict[str, Any]:
    light, dark = plain_figure(drawing, LIGHT), plain_figure(drawing, DARK)
    return {"figure": light, "dark": [[list(path), value] for path, value in differences(light, dark)]}


def differences(left: Any, right: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The paths at which ``right`` differs from ``left``, each with its value in ``right``. Lists of plain values are
    compared as a whole."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        for key in left:
            yield from differences(left[key], right[key], (*at, key))
    elif _nested(left) and _nested(right) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from differences(a, b, (*at, index))
    elif left != right:
        yield at, right


def _nested(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in value)


def plain_figure(drawing: Drawing, theme: Theme) -> dict[str, Any]:
    """The figure with the report's template, as plain dicts and lists; numeric arrays are typed arrays in base64."""
    figure = drawing.draw(theme)
    figure.update_layout(template=_look(theme))
    content: dict[str, Any] = figure.to_dict()
    return content


def _look(theme: Theme) -> go.layout.Template:
    """A template like Streamlit's theme in the dashboard: light grid lines, labels that fit, the page's font."""
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


def _redacted_view(view: RunView, names: Pseudonyms) -> RunView:
    """The view with its notes on steps redacted. Figures show no other names."""
    return replace(view, notes=tuple(names.text(note) for note in view.notes))
