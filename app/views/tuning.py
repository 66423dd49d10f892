"""The history of ``diag tune`` in a folder: each change with its predicted and measured gain, and the final command."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import plotly.graph_objects as go
import streamlit as st

from diag.app.figures import MS, finish
from diag.app.markup import label, plain
from diag.app.theme import Theme, theme_of
from diag.app.views.common import METRIC_PX, draw, show_code
from diag.tune.history import History, Interval, Outcome, Round
from diag.words.formatting import counted, duration, share, size
from diag.words.wording import sentence

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
        figure = gains(history, theme_of(st.context.theme.type))
        alt = "Predicted and measured gain of each change, milliseconds a step"
        draw(lambda: figure, "gains", alt)
    for done in history.rounds:
        _round(done)


def _result(history: History) -> None:
    kept_rounds = history.kept
    first = history.rounds[0].baseline_ns if history.rounds else None
    now = history.step_ns_now if history.step_ns_now is not None else first
    row = st.container(horizontal=True)
    if first:
        row.metric("Step time before", duration(first), border=True, height="stretch", width=METRIC_PX)
    if now:
        row.metric(
            "Step time now",
            duration(now),
            delta=f"{now / first - 1:.0%}" if kept_rounds and first else None,
            delta_color="inverse",
            border=True,
            height="stretch",
            width=METRIC_PX,
            help="Measured in the last round that was kept, against the runs of that round.",
        )
    row.metric(
        "Changes kept", f"{len(kept_rounds)} of {len(history.rounds)}", border=True, height="stretch", width=METRIC_PX
    )
    if history.command:
        st.markdown("Command with the kept changes:" if kept_rounds else "Command without changes:")
        show_code(history.command, "bash")
    st.markdown(plain(f"Stopped: {history.stopped}." if history.stopped else "Still running, or interrupted."))
    for change in history.remaining:
        st.markdown(f"- Also advised, but `diag run` has no option for it: {plain(change)}")


def _round(done: Round) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            st.badge(done.outcome.value, icon=_ICON[done.outcome], color=_COLOUR[done.outcome])
            st.badge(f"round {done.number}", color="gray")
        st.markdown(f"**{plain(sentence(done.change))}**")
        lines = [f"Verdict before: {done.verdict}", f"Predicted: {_gain(done.predicted_gain_ns, done.baseline_ns)}"]
        if done.predicted_memory_delta_bytes:
            lines[-1] += f"; {_memory(done.predicted_memory_delta_bytes)}"
        if done.gain_ns is not None:
            lines.append(f"Measured: {_gain(done.gain_ns, done.baseline_ns)}")
            if done.memory_delta_bytes is not None:
                lines[-1] += f"; {_memory(done.memory_delta_bytes)}"
        lines.append(f"{done.outcome.value.capitalize()}: {done.reason}")
        st.markdown("\n".join(f"- {plain(line)}" for line in lines))


def _gain(gain: Interval, step_ns: int) -> str:
    part = f" ({share(abs(gain.likely) / step_ns)} of the step)" if step_ns else ""
    less = "less" if gain.likely >= 0 else "more"
    interval = f"the gain is between {duration(gain.low)} and {duration(gain.high)}"
    return f"{duration(abs(gain.likely))} a step {less}{part}; {interval}"


def _memory(delta: int) -> str:
    return f"{size(abs(delta))} {'more' if delta >= 0 else 'less'} device memory"


def gains(history: History, theme: Theme) -> go.Figure:
    """Two points per round in milliseconds per step: the predicted gain, and the gain measured with and without the
    change."""
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": theme.faint, "width": 1})
    rounds = [done for done in history.rounds if done.gain_ns is not None]
    _points(figure, "measured", rounds, [r.gain_ns for r in rounds], theme.series[0], "circle")
    _points(figure, "predicted", rounds, [r.predicted_gain_ns for r in rounds], theme.series[1], "diamond")
    finish(figure, theme, 90 + 60 * len(rounds), scattermode="group", scattergap=0.6)
    figure.update_xaxes(
        title_text="gain, ms a step; the line is its 95% interval", gridcolor=theme.faint, griddash="dot"
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _points(
    figure: go.Figure, name: str, rounds: list[Round], gain: list[Interval | None], colour: str, symbol: str
) -> None:
    points = [(done, interval) for done, interval in zip(rounds, gain, strict=True) if interval is not None]
    figure.add_trace(
        go.Scatter(
            name=name,
            x=[interval.likely / MS for _, interval in points],
            y=[f"round {done.number}" for done, _ in points],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(interval.high - interval.likely) / MS for _, interval in points],
                "arrayminus": [(interval.likely - interval.low) / MS for _, interval in points],
            },
            mode="markers",
            orientation="h",
            marker={"color": colour, "symbol": symbol, "size": 12},
            customdata=[label(done.change) for done, _ in points],
            hovertemplate="%{customdata}<br>" + name + " %{x:.1f} ms a step<extra></extra>",
        )
    )
