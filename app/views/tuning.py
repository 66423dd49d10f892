"""What ``diag tune`` did in a folder: each change, predicted and measured, and the command that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import streamlit as st

from diag.app.figures import tuning as figures
from diag.app.theme import theme_of
from diag.app.views.common import draw, show_code
from diag.tune.history import History, Interval, Outcome, Round
from diag.words.wording import sentence

from ..facts import UNKNOWN, counted, duration, plain, share, size

_COLOUR: dict[Outcome, Literal["green", "gray", "red"]] = {
    Outcome.KEPT: "green",
    Outcome.REVERTED: "gray",
    Outcome.FAILED: "red",
}
_ICON = {
    Outcome.KEPT: ":material/check_circle:",
    Outcome.REVERTED: ":material/undo:",
    Outcome.FAILED: ":material/error:",
}


def show(folder: Path, history: History) -> None:
    st.title(plain(f"Tuning of {folder.resolve().name}"))
    runs = sum(len(done.without) + len(done.with_it) for done in history.rounds)
    st.caption(plain(f"{counted(len(history.rounds), 'round')} · {counted(runs, 'run')} · {folder}"))
    _result(history)
    if any(done.gain_ns is not None for done in history.rounds):
        st.subheader("Predicted and measured", anchor="gains")
        figure = figures.gains(history, theme_of(st.context.theme.type))
        alt = "Predicted and measured gain of each change, milliseconds a step"
        draw(figure, "gains", alt)
    for done in history.rounds:
        _round(done)


def _result(history: History) -> None:
    kept = history.kept
    first = history.rounds[0].baseline_ns if history.rounds else None
    now = history.step_ns_now if history.step_ns_now is not None else first
    columns = st.columns(3)
    columns[0].metric("Step time before", duration(first) if first else UNKNOWN, border=True, height="stretch")
    columns[1].metric(
        "Step time now",
        duration(now) if now else UNKNOWN,
        delta=f"{now / first - 1:.0%}" if kept and first and now else None,
        delta_color="inverse",
        border=True,
        height="stretch",
        help="Measured in the last round that was kept, against the runs of that round.",
    )
    columns[2].metric("Changes kept", f"{len(kept)} of {len(history.rounds)}", border=True, height="stretch")
    if history.command:
        st.markdown("To train with what was kept:" if kept else "To train as it was:")
        show_code(history.command, "bash")
    st.markdown(plain(f"Stopped: {history.stopped}." if history.stopped else "Still running, or ended before its end."))
    for change in history.remaining:
        st.markdown(f"- Advised as well, but no option of `diag run` does it: {plain(change)}")


def _round(done: Round) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            st.badge(done.outcome.value, icon=_ICON[done.outcome], color=_COLOUR[done.outcome])
            st.badge(f"round {done.number}", color="gray")
        st.markdown(f"**{plain(sentence(done.change))}**")
        lines = [f"Before it: {done.verdict}", f"Predicted: {_gain(done.predicted_gain_ns, done.baseline_ns)}"]
        if done.predicted_memory_delta_bytes:
            lines[-1] += f"; {_memory(done.predicted_memory_delta_bytes)}"
        if done.gain_ns is not None:
            lines.append(f"Measured: {_gain(done.gain_ns, done.baseline_ns)}")
            if done.memory_delta_bytes is not None:
                lines[-1] += f"; {_memory(done.memory_delta_bytes)}"
        lines.append(f"{done.outcome.value.capitalize()}: {done.reason}")
        st.markdown("\n".join(f"- {plain(line)}" for line in lines))


def _gain(gain: Interval, step_ns: int) -> str:
    part = f", {share(abs(gain.likely) / step_ns)} of it" if step_ns else ""
    less = "less" if gain.likely >= 0 else "more"
    interval = f"the gain is between {duration(gain.low)} and {duration(gain.high)}"
    return f"{duration(abs(gain.likely))} a step {less}{part}; {interval}"


def _memory(delta: int) -> str:
    return f"{size(abs(delta))} {'more' if delta >= 0 else 'less'} device memory"
