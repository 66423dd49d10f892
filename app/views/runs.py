"""The runs of a folder: the state of each, and its last analysis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import streamlit as st

from diag.api import Job, Jobs, RunState, State, Tables, state_of
from diag.app.address import answer_of, choose, name_of
from diag.app.markup import plain
from diag.app.views.common import EMPTY, bullets, shown_rows
from diag.app.views.hang import ras_line
from diag.words.formatting import counted, duration, elapsed

_EVERY_S = 3.0
_NOT_ANALYSED = "not analysed since its last step"


def show(root: Path, runs: Sequence[Path], choose: Callable[[str], None], found: Jobs | None = None) -> None:
    """``choose``: called with the name of the run that was clicked. ``found``: how traces were sorted into jobs."""
    st.title("Runs")
    live = any(state_of(run).live for run in runs)
    following = " Runs that are training are read again every few seconds." if live else ""
    st.caption(plain(f"{counted(len(runs), 'run')} in {root}.{following} Choose one to open it."))
    st.fragment(_table, run_every=_EVERY_S if live else None)(root, tuple(runs), choose, found)
    if found is not None:
        _found(found)


def _found(found: Jobs) -> None:
    """Why traces were taken for several runs, and the files that are in none."""
    apart = [f"{job.name}: {job.reason}" for job in found.jobs if job.reason]
    if apart:
        st.subheader("Why these are several runs", anchor="apart")
        st.markdown(bullets(tuple(apart)))
    if found.unused:
        st.subheader("Files in none of them", anchor="unused")
        st.markdown(bullets(tuple(f"{gap.path}: {gap.reason}" for gap in found.unused)))


def _table(root: Path, runs: tuple[Path, ...], choose: Callable[[str], None], found: Jobs | None = None) -> None:
    jobs = {job.paths[0]: job for job in found.jobs if job.tables is not None} if found is not None else {}
    states = sorted((state_of(run) for run in runs), key=lambda state: (not state.live, -state.changed_ns))
    event = st.dataframe(
        shown_rows([row_of(state, name_of(root, state.path), jobs.get(str(state.path))) for state in states]),
        key="runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        column_config={"Last answer": st.column_config.TextColumn(width="large")},
    )
    chosen = event.selection.rows
    if chosen:
        choose(name_of(root, states[chosen[0]].path))


def row_of(state: RunState, name: str = "", job: Job | None = None) -> dict[str, str]:
    """A row of the table. ``job``: where it is one of traces, which are all that is known of it."""
    if job is not None and job.tables is not None:
        return _row_of_traces(state, job, job.tables)
    ranks = f"{state.ranks} of {state.world_size}" if state.world_size else str(state.ranks or EMPTY)
    answer = state.answer.headline if state.answer is not None else _NOT_ANALYSED
    return {
        "Run": name or state.path.name,
        "State": state.state.value + (f" ({state.exit_code})" if state.state == State.FAILED else ""),
        "Ranks": ranks,
        "Strategy": state.strategy or EMPTY,
        "Last step": EMPTY if state.last_step is None else f"{state.last_step:,}",
        "Step time": EMPTY if state.step_ns is None else duration(state.step_ns),
        "Last record": _at(state.changed_ns),
        "Last answer": answer,
    }


def _row_of_traces(state: RunState, job: Job, tables: Tables) -> dict[str, str]:
    traces = [trace for rank in tables.ranks.values() for trace in rank.traces]
    ranks = f"{len(tables.ranks)} of {tables.world_size}" if tables.world_size else str(len(tables.ranks))
    return {
        "Run": job.name,
        "State": state.state.value,
        "Ranks": ranks,
        "Strategy": EMPTY,
        "Last step": EMPTY,
        "Step time": EMPTY,
        "Last record": _at(max(trace.end_ns for trace in traces)),
        "Last answer": answer_of(job.paths[0], state.changed_ns),
    }


def _at(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))


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
    if state.step_ns is not None:
        found.append(f"{duration(state.step_ns)} a step")
    if state.state == State.STOPPED and state.changed_ns:
        found.append(f"silent for {_ago(state.changed_ns)}, no end recorded")
    if state.exit_code:
        found.append(f"exit code {state.exit_code}")
    return " · ".join(found)


def _ago(then_ns: int) -> str:
    return elapsed(max(1e9, time.time_ns() - then_ns))
