"""What Streamlit runs: chooses the run, then draws the chosen page. ``main.py PATH``, a run or a folder of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from diag.api import RunState, list_runs, state_of
from diag.app.address import choose, is_open, opened, seconds_to_open
from diag.app.facts import plain
from diag.app.run_view import RunView
from diag.app.theme import favicon
from diag.app.views import (
    collectives,
    compare,
    hang,
    kernels,
    live,
    loading,
    memory,
    overview,
    timeline,
    tuning,
    what_if,
)
from diag.app.views import runs as list_of_runs
from diag.app.views.common import show_error
from diag.errors import DiagError
from diag.tune.history import is_tuned, load

# (title, path in the address, what draws it), in the order of the navigation, behind the overview.
_VIEWS: tuple[tuple[str, str, Callable[[RunView], None]], ...] = (
    ("Timeline", "timeline", timeline.show),
    ("What if", "what-if", what_if.show),
    ("Collectives", "collectives", collectives.show),
    ("Kernels", "kernels", kernels.show),
    ("Input", "input", loading.show),
    ("Memory", "memory", memory.show),
)
_OVERVIEW, _HANG, _RUNS, _TUNING = "overview", "hang", "runs", "tuning"
_RUN = "run"  # in the address
_NO_BASELINE = "none"
_REFUSED = "This cannot be shown"


def main() -> None:
    st.set_page_config(page_title="diag", page_icon=favicon(), layout="wide")
    root = Path(sys.argv[1])
    try:
        runs = list_runs(root)
    except DiagError as error:
        show_error(error, _REFUSED)
        return
    views = list(_VIEWS)
    if len(runs) > 1:
        views.append(("Compare", "compare", lambda view: compare.show(view, root)))
    # Of the run that is chosen below, as it is before the page is drawn; asked for by the pages of a run alone.
    state: RunState
    baseline: Path | None = None

    def page(draw: Callable[[RunView], None], *, answer_first: bool = False) -> Callable[[], None]:
        return lambda: _with_run(state, draw, answer_first)

    pages = {path: st.Page(page(draw), title=title, url_path=path) for title, path, draw in views}
    pages[_OVERVIEW] = st.Page(
        page(lambda view: overview.show(view, _baseline(baseline)), answer_first=True),
        title="Overview",
        url_path=_OVERVIEW,
        default=True,
    )
    pages[_HANG] = st.Page(lambda: hang.show(root, state.path), title="Hang triage", url_path=_HANG)
    if len(runs) > 1:
        pages[_RUNS] = st.Page(
            lambda: list_of_runs.show(root, runs, lambda name: _open(name, pages[_OVERVIEW])),
            title="Runs",
            url_path=_RUNS,
        )
    if is_tuned(root):
        pages[_TUNING] = st.Page(lambda: _tuning(root), title="Tuning", url_path=_TUNING)
    shown = st.navigation([pages[_OVERVIEW], *(own for path, own in pages.items() if path != _OVERVIEW)])
    of_one_run = shown.url_path not in (_RUNS, _TUNING)
    if of_one_run:
        state = state_of(_chosen_run(root, runs))
        baseline = _chosen_baseline(state.path, runs)
    shown.run()
    if of_one_run:
        with st.sidebar:
            live.watch(state, seconds_to_open(state.path))


def _open(name: str, page: StreamlitPage) -> None:
    st.session_state[_RUN] = name
    st.switch_page(page, query_params={_RUN: name})


def _with_run(state: RunState, draw: Callable[[RunView], None], answer_first: bool) -> None:
    """Draws the chosen run; a mistake that the user can mend is a message, everything else stays a traceback.
    ``answer_first``: while it is analysed, what the last analysis said."""
    before = st.empty()
    if answer_first and state.answer is not None and not is_open(state.path, state.changed_ns):
        with before.container():
            overview.show_kept(state.path.resolve().name, state.answer)
    try:
        view = opened(state.path, state.changed_ns)
    except DiagError as error:
        before.empty()
        if state.live:
            st.info("The training has recorded no whole step yet; this page shows the first one when it is there.")
            return
        show_error(error, _REFUSED)
        return
    before.empty()
    draw(view)


def _baseline(run: Path | None) -> RunView | None:
    if run is None:
        return None
    try:
        return opened(run)
    except DiagError as error:
        st.warning(plain(f"The baseline {run.name} cannot be opened: {error.message}"))
        return None


def _tuning(root: Path) -> None:
    try:
        history = load(root)
    except DiagError as error:
        show_error(error, _REFUSED)
        return
    if history is not None:
        tuning.show(root, history)


def _chosen_run(root: Path, runs: list[Path]) -> Path:
    if len(runs) == 1:
        return runs[0]
    by_name = {run.name: run for run in runs}
    with st.sidebar:
        name = choose("Run", list(by_name), param=_RUN, default=runs[0].name)
        st.caption(plain(f"{len(runs)} runs in {root}"))
    return by_name[name]


def _chosen_baseline(run: Path, runs: list[Path]) -> Path | None:
    """The run that the overview's numbers are held against; None where none is chosen."""
    by_name = {other.name: other for other in runs if other != run}
    if not by_name:
        return None
    with st.sidebar:
        name = choose(
            "Baseline", [_NO_BASELINE, *by_name], param="baseline", default=_NO_BASELINE, within=str(run),
            help="The overview shows by how much its numbers differ from those of this run.",
        )  # fmt: skip
    return by_name.get(name)


main()
