"""A run that trains: its progress, its curves, and new analyses as they are made. The page never blocks on an analysis.

The parts that follow the run are Streamlit fragments: only they are redrawn, from what the run wrote since the last
time. The whole page is redrawn when a new analysis is available.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import streamlit as st

from diag.api import RunState, Standstill, State, split_job
from diag.app.address import Version, age_s, analysed, choose, is_refused, renew, show_link, version_of
from diag.app.curves import LOSS, curve_figure, known, spark_of, spark_words, throughput
from diag.app.looks import state_of
from diag.app.markup import plain, prose
from diag.app.policy import DASHBOARD
from diag.app.theme import theme_of
from diag.app.views.common import draw
from diag.live import Curves, Progress, curves_of, progress_of
from diag.words.formatting import NBSP, counted, elapsed, number, visible

_ICON = {
    State.STUCK: ":material/pause:",
    State.FINISHED: ":material/check:",
    State.FAILED: ":material/error:",
    State.HUNG: ":material/error:",
    State.STOPPED: ":material/stop:",
    State.UNCLOSED: ":material/stop:",
    State.UNKNOWN: ":material/question_mark:",
    State.RECORDED: ":material/description:",
}
_Colour = Literal["blue", "red", "gray", "orange"]
_COLOUR: dict[State, _Colour] = {
    State.STUCK: "red",
    State.FAILED: "red",
    State.HUNG: "red",
    State.SLOW: "orange",
    State.UNKNOWN: "orange",
}
LARGE = "####"  # what a run that is stuck or failed says first is larger than its verdict
_FOLLOW, _STAY = "follow", "stay"
_REDRAWN = "redrawn for a new analysis"
# While Streamlit redraws, it fades the page and shows a running man: twice a minute, on a page that somebody reads.
_STEADY = """<style>
[data-stale="true"], [data-stale="true"] * { opacity: 1 !important; transition: none !important; }
[data-testid="stStatusWidget"]:not(:has([data-testid="stConnectionStatus"])) { display: none !important; }
</style>"""


def wait_for(path: Path) -> None:
    """The page of a run that does not exist yet; it shows the run as soon as that exists."""
    st.title(plain(f"Waiting for {path.name}"))
    st.info(
        f"{plain(path)} does not exist yet. This page continues by itself when it does. "
        + prose(f"`diag run --out {path}` writes it."),
        icon=":material/hourglass_empty:",
    )
    until_changed(path)


def until_changed(path: Path) -> None:
    """Redraws the page when the file or folder appears, or when something is added to the folder."""
    st.html(_STEADY)
    st.fragment(_when_changed, run_every=DASHBOARD.live_every_s)(path, _changed(path))


def _when_changed(path: Path, before: int) -> None:
    if _changed(path) != before:
        st.rerun()


def _changed(path: Path) -> int:
    try:
        return os.lstat(split_job(path)[0]).st_mtime_ns
    except OSError:
        return 0


# -- the chosen run, in the sidebar ------------------------------------------------------------------------------------


def watch(shown: RunState) -> None:
    """Draws the state of the run into the sidebar. ``shown``: the run as it was before the page was drawn."""
    may_go_on = shown.live or shown.state is State.UNKNOWN
    following = may_go_on and _follows(shown.path)
    if following:
        st.html(_STEADY)
    st.fragment(_watched, run_every=DASHBOARD.live_every_s if following else None)(
        shown, analysed(shown.path), following
    )


def redrawn() -> bool:
    """Whether a new analysis, and not the user, caused this redraw. True once per analysis."""
    return bool(st.session_state.pop(_REDRAWN, False))


def _follows(run: Path) -> bool:
    labels = {_FOLLOW: "new steps as they come", _STAY: "steps recorded so far"}
    chosen = choose(
        "Show", list(labels), param="live", default=_FOLLOW, within=str(run), format_func=labels.__getitem__
    )
    return chosen == _FOLLOW


def _watched(shown: RunState, drawn: Version | None, following: bool) -> None:
    """``drawn``: the analysis that the page shows."""
    state = state_of(shown.path)
    st.set_page_config(page_title=tab_title(state))
    badge(state)
    if state.live:
        _progress(state)
        if drawn is not None:
            st.caption(f"verdict from the newest steps, {_span(age_s(state.path))} ago")
        from diag.app.views.hang import ras_line  # needed only while a job trains

        ras_line(state.path)
    elif text := facts(state):
        st.caption(plain(text))
    newest = analysed(state.path)
    if not following:
        return
    goes_on = state.live and not shown.live
    turned = comes_first(state) != comes_first(shown)  # what to do, and which rank is marked, is about something else
    if newest != drawn or goes_on or turned or (state.live != shown.live and is_refused(state)):
        st.session_state[_REDRAWN] = True
        st.rerun()
    if newest != version_of(state):
        renew(state, at_once=not state.live)


def tab_title(state: RunState) -> str:
    """The title of the browser's tab: a run that stops or fails says so there, whatever tab one looks at."""
    name = visible(split_job(state.path)[1] or state.path.resolve().name)
    return f"{state.state.value}: {name}" if state.live or comes_first(state) else f"{name} · diag"


def badge(state: RunState) -> None:
    """Draws the state in a word."""
    colour: _Colour = "blue" if state.live else "gray"
    icon = _ICON.get(state.state, ":material/play_arrow:")
    st.badge(state.state.value, icon=icon, color=_COLOUR.get(state.state, colour))


def comes_first(state: RunState) -> bool:
    """Whether the answer is how the run stands or ended, and not what bound its steps."""
    return bool(state.headline) or state.state in (State.FAILED, State.HUNG)


def show_beginning(run: Path) -> None:
    """Says why a run that trains has no verdict yet, for as long as it has none."""
    st.fragment(_beginning, run_every=DASHBOARD.live_every_s)(run)


def _beginning(run: Path) -> None:
    state = state_of(run)
    progress = _progress_of(state)
    if progress is None:
        st.info("The training has recorded no whole step yet; this page shows the first one when it is there.")
    else:
        done = _steps_done(progress.done, progress.planned)
        st.info(plain(f"{done} recorded. The first verdict follows once they are analysed."))


def _progress(state: RunState) -> None:
    progress = _progress_of(state)
    if progress is None:
        st.caption("no step recorded yet")
    elif progress.planned is not None:
        text = progress_line(progress, state.standstill)
        st.progress(min(progress.done / progress.planned, 1.0), text=plain(text))
    else:
        st.caption(plain(progress_line(progress, state.standstill)))
    if (curves := curves_of(state.path)) is not None:
        st.html(spark_html(curves))


def spark_html(curves: Curves) -> str:
    """The step time over the steps as small bars, in the colour of the text around them; "" without a step."""
    bars = "".join(
        f'<i style="flex: 1; height: {100 * value:.0f}%; background: currentColor"></i>' for value in spark_of(curves)
    )
    about = spark_words(curves)
    if not bars:
        return ""
    style = "display: flex; align-items: flex-end; gap: 1px; height: 30px; opacity: 0.6"
    return (
        f'<div role="img" aria-label="{about}" style="{style}">{bars}</div>'
        f'<div style="font-size: 12px; opacity: 0.7">{about}</div>'
    )


def _progress_of(state: RunState) -> Progress | None:
    curves = curves_of(state.path)
    return progress_of(curves, state.planned_steps) if curves is not None else None


def progress_line(progress: Progress, standstill: Standstill | None = None) -> str:
    """Steps, time left and throughput, as far as they are known. Of a training that makes no progress, why: the time
    left and the throughput of its last steps say nothing about it."""
    texts = [_steps_done(progress.done, progress.planned)]
    if standstill is not None:
        return " · ".join((*texts, standstill.words))
    if progress.left_ns is not None:
        texts.append(f"about {_span(progress.left_ns / 1e9)} left")
    if progress.steps_per_s is not None:
        texts.append(f"{number(progress.steps_per_s)}{NBSP}steps/s")
    if progress.tokens_per_s is not None:
        texts.append(f"{progress.tokens_per_s:,.0f}{NBSP}tokens/s a rank")
    return " · ".join(texts)


def _steps_done(done: int, planned: int | None) -> str:
    """A number of steps, not the number of the last one, which is one less."""
    return counted(done, "step") if planned is None else f"{done:,} of {counted(planned, 'step')}"


def facts(state: RunState) -> str:
    """How far a run that does not train came, and how it ended; "" if neither is known."""
    texts = []
    if state.last_step is not None:
        texts.append(_steps_done(state.last_step + 1, state.planned_steps))
    if state.was is not None and state.as_of_ns:
        texts.append(f"silent for {_span(max(0.0, time.time() - state.as_of_ns / 1e9))}, no end recorded")
    if state.was is State.STUCK:
        texts.append("it was stuck")
    if state.exit_code:
        texts.append(f"exit code {state.exit_code}")
    return " · ".join(texts)


def _span(seconds: float) -> str:
    return elapsed(max(1.0, seconds) * 1e9)


def show_standstill(run: Path, linked: bool = True) -> None:
    """Says on the overview that a run that trains makes no progress, for as long as it does not. ``linked``: with a
    link to the evidence."""
    st.fragment(_standstill, run_every=DASHBOARD.live_every_s)(run, linked)


def _standstill(run: Path, linked: bool) -> None:
    state = state_of(run)
    if state.stuck:
        st.error(f"{LARGE} {plain(state.headline)}", icon=_ICON[State.STUCK])
        if linked:
            show_link("hang", "Hang triage: who is at fault", icon="search")


# -- its curves, on the overview ---------------------------------------------------------------------------------------


def show_curves(state: RunState) -> None:
    """Draws loss and throughput of a run directory over its steps; follows a run that trains."""
    if state.state != State.RECORDED:
        st.fragment(_curves, run_every=DASHBOARD.curves_every_s if state.live else None)(state.path)


def _curves(run: Path) -> None:
    curves = curves_of(run)
    if curves is None:
        return
    quantities = known([curves], (LOSS, throughput([curves])))
    st.markdown(
        f"**{' and '.join(quantity.name for quantity in quantities).capitalize()}** of rank {curves.rank}, by step"
    )
    draw(
        lambda: curve_figure(
            [(run.name, curves)], quantities, theme_of(st.context.theme.type), DASHBOARD.live_curves_px
        ),
        "curves",
        f"{' and '.join(quantity.name for quantity in quantities)} over {counted(len(curves), 'step')}",
    )
