"""Streamlit's script: chooses the run, then draws the chosen page. ``main.py PATH``, a run or a folder of runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from diag.api import RunState, shown_first, snapshots_alone, split_job
from diag.app.address import (
    RUN,
    begun_on,
    charge,
    choose,
    choose_baseline,
    is_open,
    keeping,
    name_of,
    offer,
    opened,
    runs_of,
)
from diag.app.ahead import of_figures
from diag.app.looks import drawing as drawing_of
from diag.app.looks import state_of
from diag.app.markup import plain
from diag.app.pages import COMPARE, OVERVIEW, Page, Visit, contents_of, pages_for
from diag.app.policy import DASHBOARD
from diag.app.ready import wait_until_ready
from diag.app.run_view import RunView
from diag.app.theme import favicon
from diag.app.views import live, overview
from diag.app.views.common import component, show_error
from diag.errors import DiagError
from diag.words.formatting import visible
from diag.words.places import shown

# The first screen of a laptop holds the answer: Streamlit's own margins take a quarter of it.
_COMPACT = """<style>
[data-testid="stMainBlockContainer"] { padding: 2.4rem 2.5rem 4rem; }
[data-testid="stHeader"] { background: transparent; pointer-events: none; }
[data-testid="stHeader"] * { pointer-events: auto; }
[data-testid="stMain"] h1 { font-size: 1.9rem; padding: 0 0 0.4rem; }
[data-testid="stMain"] [class*="st-key-verdict"] h3 { font-size: 1.3rem; line-height: 1.3; padding: 0; }
/* Streamlit cuts what does not fit; how wide a text is differs between browsers. */
[data-testid="stMetricLabel"] *, [data-testid="stMetricValue"] *, [data-testid="stSidebarNavLink"] *,
[data-testid="stMain"] label * {
  white-space: normal; overflow: visible; text-overflow: clip; overflow-wrap: anywhere;
}
/* A long text takes the room that the window has: Streamlit breaks it, or cuts a long name, at 400 pixels. */
@media (min-width: 901px) {
  [data-testid="stTable"] td [data-testid="stMarkdownContainer"] {
    max-width: 44rem !important; overflow-wrap: break-word !important;
  }
  [data-testid="stTable"] th * { white-space: nowrap !important; }
}
.js-plotly-plot:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] { padding: 3.5rem 1rem 3rem; }
  [data-testid="stMain"] h1 { font-size: 1.5rem; }
  [data-testid="stMain"] h3 { font-size: 1.2rem; }
}
/* Beside the menu, a page in a small window is as narrow as a phone. */
@media (max-width: 900px) {
  [class*="st-key-beside-"] > * > [data-testid="stHorizontalBlock"] { flex-direction: column; }
  [class*="st-key-beside-"] > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"] {
    width: 100% !important; flex: none !important;
  }
  /* Every column of a table is in the window: small rather than cut off. */
  [data-testid="stTable"] :is(td, th), [data-testid="stTable"] :is(td, th) * {
    padding: 0.15rem 0.08rem !important; font-size: 0.68rem !important; min-width: 0 !important;
    white-space: normal !important; overflow-wrap: break-word !important;
  }
  /* The name of a row may be one long word, such as a setting: it breaks, so that no other column is cut off. */
  [data-testid="stTable"] td:first-child:not(:has(a)) { min-width: 3.5rem !important; }
  [data-testid="stTable"] td:first-child:not(:has(a)), [data-testid="stTable"] td:first-child:not(:has(a)) * {
    overflow-wrap: anywhere !important;
  }
}
</style>"""
_REFUSED = "This page cannot be shown"


def main() -> None:
    st.set_page_config(page_title="diag", page_icon=favicon(), layout="wide", initial_sidebar_state=DASHBOARD.menu_px)
    st.html(_COMPACT)
    root = Path(sys.argv[1])
    if not os.path.lexists(split_job(root)[0]):
        live.wait_for(root)
        return
    try:
        runs, jobs = runs_of(root)
    except DiagError as error:
        show_error(error, _REFUSED)
        return
    pages = pages_for(root, runs, contents_of(root, runs, jobs))
    first = pages[0]
    overview_page = next((page for page in pages if page.path == OVERVIEW), first)
    linked: dict[str, StreamlitPage] = {}
    # The state of the chosen run before its page is drawn; it is set below, before a page runs.
    state: RunState | None = None
    baseline: Path | None = None

    def drawing(page: Page) -> Callable[[], None]:
        def draw() -> None:
            run = state.path if state is not None else root
            at = Visit(
                root, runs, lambda name: _open(name, linked[overview_page.path]), run,
                lambda: _baseline(root, baseline),
                lambda before, after: _compare(before, after, linked[COMPARE]),
            )  # fmt: skip
            if page.of_files is not None:
                _guarded(page.of_files, at)
            elif page.of_run is not None and state is not None:
                _with_run(state, page.of_run, at, answer_first=page is overview_page)

        return draw

    for page in pages:
        linked[page.path] = st.Page(
            drawing(page), title=page.title, url_path=page.path if page is not first else "first", default=page is first
        )
    offer(linked)
    # The first page has no path in the address. A link to its path, from before it came first, opens it all the same.
    by_path = st.Page(drawing(first), title=first.title, url_path=first.path, visibility="hidden")
    shown = st.navigation([*linked.values(), by_path])
    drawn = next((page for page in pages if page.path == shown.url_path), first)  # the first has no path of its own
    if drawn.of_folder and drawn is first and RUN in st.query_params:  # an address of one run, without a page
        st.switch_page(linked[overview_page.path], query_params=dict(st.query_params))
    if not drawn.of_folder:
        state = state_of(_chosen_run(root, runs))
        if shown.url_path != COMPARE:  # which has a list of its own
            baseline = _chosen_baseline(root, state.path, runs)
    begin = time.process_time()
    with drawing_of(state):
        shown.run()
        component("figures")(key="figures", data=of_figures())
        component("colours")(key="colours", on_changed_change=lambda: None)
        if state is not None:
            if live.redrawn():
                charge(state.path, time.process_time() - begin)
            with st.sidebar:
                live.watch(state)


def _open(name: str, page: StreamlitPage) -> None:
    st.session_state[RUN] = name
    st.switch_page(page, query_params={RUN: name})


def _compare(before: str, after: str, page: StreamlitPage) -> None:
    st.session_state[RUN] = after
    st.switch_page(page, query_params={RUN: after, "with": before})


def _guarded(draw: Callable[[Visit], None], at: Visit) -> None:
    """Draws a page. A mistake that the user can correct is a message; everything else stays a traceback."""
    wait_until_ready()
    try:
        draw(at)
    except DiagError as error:
        show_error(error, _REFUSED)


def _with_run(state: RunState, draw: Callable[[RunView, Visit], None], at: Visit, answer_first: bool) -> None:
    """Draws the chosen run. ``answer_first``: shows the answer of the last analysis while the run is analysed."""
    before, begun = st.empty(), None
    if answer_first and not is_open(state):
        begun = begun_on(state, keeping(state.path))
        screen = begun.last() if begun is not None else None
        with before.container():
            if screen is not None:
                overview.show_last_screen(state, screen)
            elif state.answer is not None:
                overview.show_last_answer(state, state.answer)
    try:
        view = opened(state.path, state, begun)
    except DiagError as error:
        before.empty()
        if snapshots_alone([state.path]):
            from diag.app.views.allocations import show_alone

            _guarded(lambda _: show_alone(state.path, state.changed_ns), at)
            return
        st.title(plain(name_of(at.root, state.path)))
        if state.live:
            live.show_beginning(state.path)
            live.show_standstill(state.path)
            return
        wait_until_ready()
        if _triaged(state.path):
            from diag.app.views.allocations import show_left

            if not show_left(state.path, state.changed_ns):
                st.caption(plain(f"There is nothing else to show: {error.message}."))
        else:
            show_error(error, _REFUSED)
        live.until_changed(state.path)
        return
    before.empty()
    if not answer_first:
        wait_until_ready()
    draw(view, at)


def _triaged(run: Path) -> bool:
    """Draws the answer of the hang triage for a run that cannot be analysed; whether that names a cause."""
    from diag.app.views import hang

    with suppress(DiagError):
        return hang.show_answer(run)
    return False


def _baseline(root: Path, run: Path | None) -> RunView | None:
    if run is None:
        return None
    try:
        return opened(run)
    except DiagError as error:
        st.warning(plain(f"The baseline {name_of(root, run)} cannot be opened: {error.message}"))
        return None


def _chosen_run(root: Path, runs: list[Path]) -> Path:
    if len(runs) == 1:
        return runs[0]
    by_name = {name_of(root, run): run for run in runs}
    asked = st.query_params.get(RUN)  # `choose` corrects it
    with st.sidebar:
        if asked is not None and asked not in by_name:
            st.warning(plain(f"{visible(asked)} is not in this folder, or is no run: another one is shown."))
        name = choose("Run", list(by_name), param=RUN, default=name_of(root, shown_first(runs)))
        st.caption(plain(f"{len(runs)} runs in {shown(str(root))}"))
    return by_name[name]


def _chosen_baseline(root: Path, run: Path, runs: list[Path]) -> Path | None:
    """The run that the overview's numbers are compared with; None if none is chosen, or the run itself."""
    if len(runs) < 2:
        return None
    with st.sidebar:
        chosen = choose_baseline(root, runs)
    return chosen if chosen != run else None


main()
