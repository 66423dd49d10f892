"""What Streamlit runs: chooses the run, then draws the chosen page. ``main.py PATH``, a run or a folder of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from diag.api import list_runs
from diag.app.address import choose
from diag.app.formatting import plain, prose
from diag.app.opening import opened
from diag.app.run_view import RunView
from diag.app.theme import favicon
from diag.app.views import overview, timeline, tuning
from diag.errors import DiagError
from diag.tune.history import FILE_NAME, load

# (title, path in the address, what draws it), in the order of the navigation.
_VIEWS: tuple[tuple[str, str, Callable[[RunView], None]], ...] = (
    ("Overview", "overview", overview.show),
    ("Timeline", "timeline", timeline.show),
)


def main() -> None:
    st.set_page_config(page_title="diag", page_icon=favicon(), layout="wide")
    root = Path(sys.argv[1])

    def page(draw: Callable[[RunView], None]) -> Callable[[], None]:
        return lambda: _with_run(root, draw)

    pages = [
        st.Page(page(draw), title=title, url_path=path, default=path == _VIEWS[0][1]) for title, path, draw in _VIEWS
    ]
    if root.is_dir() and (root / FILE_NAME).is_file():
        pages.append(st.Page(lambda: _tuning(root), title="Tuning", url_path="tuning"))
    st.navigation(pages).run()


def _with_run(root: Path, draw: Callable[[RunView], None]) -> None:
    """Draws the chosen run; a mistake that the user can mend is a message, everything else stays a traceback."""
    try:
        view = opened(_chosen_run(root))
    except DiagError as error:
        st.error(plain(f"{error.path}: {error.message}" if error.path else error.message), title="This cannot be shown")
        if error.hint:
            st.info(prose(error.hint), icon=":material/lightbulb:")
        return
    draw(view)


def _tuning(root: Path) -> None:
    try:
        history = load(root)
    except DiagError as error:
        st.error(plain(error.message), title="This cannot be shown")
        return
    if history is not None:
        tuning.show(root, history)


def _chosen_run(root: Path) -> Path:
    runs = list_runs(root)
    if len(runs) == 1:
        return runs[0]
    by_name = {run.name: run for run in runs}
    with st.sidebar:
        name = choose("Run", list(by_name), param="run", default=runs[0].name)
        st.caption(plain(f"{len(runs)} runs in {root}"))
    return by_name[name]


main()
