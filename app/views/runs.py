"""The runs of a folder: the state of each, and its last analysis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from diag.api import RunState, State, state_of
from diag.app.markup import plain
from diag.app.views.common import EMPTY, shown_rows
from diag.words.formatting import counted, duration

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
        column_config={"Last answer": st.column_config.TextColumn(width="large")},
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
