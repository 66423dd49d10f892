"""The runs of a folder: the state of each, and its last analysis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import streamlit as st

from diag.api import RunState, State, state_of
from diag.app.address import choose
from diag.app.markup import plain
from diag.app.views.common import EMPTY, shown_rows
from diag.app.views.hang import ras_line
from diag.words.formatting import NBSP, counted, duration

_EVERY_S = 3.0
_NOT_ANALYSED = "not analysed since its last step"


def show(root: Path, runs: Sequence[Path], choose: Callable[[str], None]) -> None:
    """``choose``: called with the name of the run that was clicked."""
    st.title("Runs")
    live = any(state_of(run).live for run in runs)
    following = " Runs that are training are read again every few seconds." if live else ""
    st.caption(plain(f"{counted(len(runs), 'run')} in {root}.{following} Choose one to open it."))
    st.fragment(_table, run_every=_EVERY_S if live else None)(tuple(runs), choose)


def _table(runs: tuple[Path, ...], choose: Callable[[str], None]) -> None:
    states = sorted((state_of(run) for run in runs), key=lambda state: (not state.live, -state.changed_ns))
    event = st.dataframe(
        shown_rows([row_of(state) for state in states]),
        key="runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "Step time": st.column_config.TextColumn(help="Of the first rank, the median of its last 20 steps."),
            "Last answer": st.column_config.TextColumn(width="large"),
        },
    )
    chosen = event.selection.rows
    if chosen:
        choose(states[chosen[0]].path.name)


def row_of(state: RunState) -> dict[str, str]:
    """A row of the table."""
    ranks = f"{state.ranks} of {state.world_size}" if state.world_size else str(state.ranks or EMPTY)
    answer = state.answer.headline if state.answer is not None else _NOT_ANALYSED
    return {
        "Run": state.path.name,
        "State": state.state.value + (f" ({state.exit_code})" if state.state == State.FAILED else ""),
        "Ranks": ranks,
        "Strategy": state.strategy or EMPTY,
        "Last step": EMPTY if state.last_step is None else f"{state.last_step:,}",
        "Step time": EMPTY if state.step_ns is None else duration(state.step_ns),
        "Last record": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.changed_ns / 1e9)),
        "Last answer": answer,
    }


# -- the chosen run, in the sidebar ------------------------------------------------------------------------------------


_ICON = {
    State.TRAINING: ":material/play_arrow:",
    State.FINISHED: ":material/check:",
    State.FAILED: ":material/error:",
    State.STOPPED: ":material/stop:",
    State.RECORDED: ":material/description:",
}
_COLOUR: dict[State, Literal["blue", "red"]] = {State.TRAINING: "blue", State.FAILED: "red"}
_SHARE = 0.25  # of the time at most is spent on analysing a run that is still training
_FOLLOW, _STAY = "follow", "stay"


def watch(shown: RunState, took_s: float) -> None:
    """Drawn into the sidebar. ``shown``: the run as it was before the page was drawn, so that what is written while it
    is analysed counts as new. ``took_s``: how long the analysis of this run takes, which is not done more often than
    makes sense."""
    following = shown.live and _follows(shown.path)
    every_s = max(_EVERY_S, took_s / _SHARE) if following else None
    again_s = time.monotonic() + every_s if every_s is not None else math.inf
    st.fragment(_watched, run_every=every_s)(shown, again_s)


def _follows(run: Path) -> bool:
    labels = {_FOLLOW: "new steps as they come", _STAY: "what is here now"}
    chosen = choose(
        "Show", list(labels), param="live", default=_FOLLOW, within=str(run), format_func=labels.__getitem__
    )
    return chosen == _FOLLOW


def _watched(shown: RunState, again_s: float) -> None:
    """``again_s``: from when on the page may be drawn again, monotonic. This runs with the page, too."""
    state = state_of(shown.path)
    st.badge(state.state.value, icon=_ICON[state.state], color=_COLOUR.get(state.state, "gray"))
    shown_facts = facts(state)
    if shown_facts:
        st.caption(plain(shown_facts))
    if state.live:
        ras_line(state.path)
    if time.monotonic() >= again_s and (state.changed_ns != shown.changed_ns or state.live != shown.live):
        st.rerun()


def facts(state: RunState) -> str:
    """The last step, how long steps take, how it ended; "" where nothing is known."""
    found = []
    if state.last_step is not None:
        found.append(f"step {state.last_step:,}")
    if state.live and state.step_ns is not None:  # of a run that has ended, the page has the mean of the counted steps
        found.append(f"lately {duration(state.step_ns)} a step")
    if state.state == State.STOPPED and state.changed_ns:
        found.append(f"silent for {_ago(state.changed_ns)}, no end recorded")
    if state.exit_code:
        found.append(f"exit code {state.exit_code}")
    return " · ".join(found)


def _ago(then_ns: int) -> str:
    seconds = max(0.0, time.time() - then_ns / 1e9)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f}{NBSP}{unit}"
    return f"{seconds:.0f}{NBSP}s"
