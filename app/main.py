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
from diag.app.views import collectives, compare, kernels, loading, memory, overview, timeline, tuning, what_if
from diag.errors import DiagError
from diag.tune.history import FILE_NAME, load

# (title, path in the address, what draws it), in the order of the navigation.
_VIEWS: tuple[tuple[str, str, Callable[[RunView], None]], ...] = (
    ("Overview", "overview", overview.show),
    ("Timeline", "timeline", timeline.show),
    ("What if", "what-if", what_if.show),
    ("Collectives", "collectives", collectives.show),
    ("Kernels", "kernels", kernels.show),
    ("Input", "input", loading.show),
    ("Memory", "memory", memory.show),
)
_TUNING = "tuning"


def main() -> None:
    st.set_page_config(page_title="diag", page_icon=favicon(), layout="wide")
    root = Path(sys.argv[1])
    runs = list_runs(root)
    views = list(_VIEWS)
    if len(runs) > 1:
        views.append(("Compare", "compare", lambda view: compare.show(view, root)))
    run = runs[0]  # until one is chosen, below: on all pages the same

    def page(draw: Callable[[RunView], None]) -> Callable[[], None]:
        return lambda: _with_run(run, draw)

    pages = [
        st.Page(page(draw), title=title, url_path=path, default=path == _VIEWS[0][1]) for title, path, draw in views
    ]
    if root.is_dir() and (root / FILE_NAME).is_file():
        pages.append(st.Page(lambda: _tuning(root), title="Tuning", url_path=_TUNING))
    shown = st.navigation(pages)
    if shown.url_path != _TUNING:
        run = _chosen_run(root, runs)
    shown.run()


def _with_run(run: Path, draw: Callable[[RunView], None]) -> None:
    """Draws the chosen run; a mistake that the user can mend is a message, everything else stays a traceback."""
    try:
        view = opened(run)
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


def _chosen_run(root: Path, runs: list[Path]) -> Path:
    if len(runs) == 1:
        return runs[0]
    by_name = {run.name: run for run in runs}
    with st.sidebar:
        name = choose("Run", list(by_name), param="run", default=runs[0].name)
        st.caption(plain(f"{len(runs)} runs in {root}"))
    return by_name[name]


main()
