"""Code of Streamlit's page that the browser is told to load before it needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from diag.app.policy import DASHBOARD

_SCRIPTS = "static/js"
_IMPORTED = re.compile(rb'(?:from|import) ?"\./([\w.-]+\.js)"')  # by a script of Streamlit, at its begin


def scripts_of(folder: Path, elements: Iterable[str], page: bytes) -> list[str]:
    """The paths of the code of these kinds of elements and of all that it imports, relative to Streamlit's ``folder``
    with the page, without what the ``page`` names itself. A kind that this version of Streamlit has elsewhere is left
    out: its code is loaded when one is shown."""
    scripts = folder / _SCRIPTS
    names = [file.name.encode() for element in elements for file in scripts.glob(f"{element}.*.js")]
    for name in names:  # which grows
        with suppress(OSError), (scripts / name.decode()).open("rb") as script:
            imported = _IMPORTED.findall(script.read(DASHBOARD.imports_bytes))
            names += [new for new in dict.fromkeys(imported) if new not in names and new not in page]
    return [f"{_SCRIPTS}/{name.decode()}" for name in names]


def static_folder() -> Path | None:
    """Where Streamlit's package has its page, without importing it; None if it is not installed."""
    spec = find_spec("streamlit")
    found = spec.submodule_search_locations if spec is not None else None
    return Path(found[0]) / "static" if found else None


@cache
def of_figures() -> list[str]:
    """The same of figures, which is several megabytes: loaded once the first screen is drawn."""
    folder = static_folder()
    with suppress(OSError):
        return scripts_of(folder, ("PlotlyChart",), (folder / "index.html").read_bytes()) if folder is not None else []
    return []
