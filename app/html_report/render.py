"""The report as HTML, from its template, style sheet and script; nothing in it is loaded from anywhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from diag.api import Result
from diag.app.html_report.page import page_of
from diag.app.html_report.specs import FONT, to_json
from diag.app.run_view import view_of
from diag.app.theme import DARK, LIGHT, favicon
from diag.show.details import IDLE_COLUMNS, IDLE_TITLE, STALLS_TITLE
from diag.words.wording import EVERYTHING_FOUND, EVERYTHING_LOOKED_FOR, EVIDENCE_COLUMNS, NOTHING_FOUND, pieces

from ..facts import masked, visible_lines
from .specs import Pseudonyms, redacted_page, redacted_view

_OPEN_EVIDENCE = 1  # findings whose evidence is unfolded


def render(result: Result, command: str, version: str, names: Pseudonyms | None = None) -> str:
    """The whole file. ``command`` and ``version`` of diag: how it was made;
    secrets in it are masked. ``names``: what hides names, None where
    they may be read."""
    view, command = view_of(result), masked(command)
    if names is None:
        page = page_of(view, command)
    else:
        page = redacted_page(page_of(redacted_view(view, names), command), names)
    scripts = (_script(get_plotlyjs()), _script(_asset("script.js")))
    return _template().render(
        page=page,
        csp=_policy(scripts),
        light=LIGHT,
        dark=DARK,
        font=Markup(FONT),
        style=Markup(_asset("style.css")),
        icon=f"data:image/svg+xml,{quote(favicon())}",
        specs=Markup(to_json(page.figures)),
        scripts=[Markup(script) for script in scripts],
        version=version,
        kept=names.kept if names is not None else "",
        evidence_columns=EVIDENCE_COLUMNS,
        idle_title=IDLE_TITLE,
        idle_columns=IDLE_COLUMNS,
        stalls_title=STALLS_TITLE,
        open_evidence=_OPEN_EVIDENCE,
        nothing_found=NOTHING_FOUND,
        everything_found=EVERYTHING_FOUND,
        everything_looked_for=EVERYTHING_LOOKED_FOR,
    )


def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters["prose"] = _prose
    return environment.from_string(_asset("template.html"))


def _shown(value: object) -> object:
    """What the template puts in, with control characters as escapes; our own markup as it is."""
    return visible_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Text that cannot end its script element, with the line ends that browsers compute its hash with."""
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: Iterable[str]) -> str:
    """No network at all, and no script but ours. Plotly writes styles, and draws fields as images in data addresses."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _prose(text: str) -> Markup:
    """With what stands between backticks as code."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if typed else escape(part) for part, typed in pieces(visible_lines(text)))
