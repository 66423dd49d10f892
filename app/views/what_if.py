"""Settings to choose, with their combined gain as predicted by replay, their memory cost and assumptions."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import choose
from diag.app.figures import (
    MS,
    finish,
    rows_height,
)
from diag.app.markup import label, plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import METRIC_PX, beyond_summaries, bullets, draw, head, nothing, show_code, without_steps
from diag.model.breakdown import KnobChange, Prospect
from diag.model.steps import Knob, Risk
from diag.words.formatting import duration, number, share, size

AS_IT_IS = "as-it-is"
_RISK = {
    Risk.MEMORY: "memory",
    Risk.NUMERICS: "numerical results",
    Risk.CORRECTNESS: "training results",
}


def show(view: RunView) -> None:
    if without_steps("What if", view) or beyond_summaries("What if", view):
        return
    head("What if", view, "Step time with other settings, predicted by replaying the recorded steps")
    with st.spinner("Replaying the steps…", show_time=True):
        offered = view.result.what_if
    if offered.refused:
        nothing(
            f"Nothing can be predicted: {offered.refused}.",
            "The replay needs every rank's steps and collectives, on a device with a profiler window: "
            "`diag run` records them.",
        )
        return
    if not offered.changes:
        nothing(
            "No setting is proposed for this run: no known setting fixes the findings, or they cost less than 5% of "
            "the step. The overview shows the findings and what to do."
        )
        return
    chosen = _choose(view, offered.changes)
    with st.spinner("Replaying the steps with the chosen settings…", show_time=True):
        together = offered.predict([change.id for change in chosen])
        rows = [(change.change, offered.predict([change.id])) for change in chosen] if len(chosen) > 1 else []
    _numbers(view, together)
    if not chosen:
        st.markdown("Nothing is changed: choose settings above.")
        return
    if together.refused:
        st.warning(plain(f"Not predicted: {together.refused}."), icon=":material/block:")
    name = TOGETHER if rows else chosen[0].change
    st.subheader("Step time", anchor="step-time")
    draw(
        steps([*rows, (name, together)], theme_of(st.context.theme.type)),
        "prospects",
        "Milliseconds a step as measured and as predicted with the chosen settings",
    )
    st.caption("The lines are the intervals in which a measurement is expected.")
    for change, (_, prospect) in zip(chosen, rows, strict=False):
        if prospect.refused:
            st.markdown(plain(f"{change.change}, alone: not predicted, {prospect.refused}."))
    if not together.refused:
        _how(together)


def _choose(view: RunView, changes: tuple[KnobChange, ...]) -> list[KnobChange]:
    """Draws one list per knob, with the best advice preselected; returns the chosen changes."""
    advised = {advice.id for advice in view.result.advice[:1]}
    by_knob: dict[Knob, list[KnobChange]] = {}
    for change in changes:
        by_knob.setdefault(change.knob, []).append(change)
    chosen: list[KnobChange] = []
    columns = st.columns(2 if len(by_knob) > DASHBOARD.lists_in_a_row else 1)  # the texts are long
    for at, (knob, knob_changes) in enumerate(by_knob.items()):
        texts = {change.id: change.change for change in knob_changes}
        default = next((change.id for change in knob_changes if change.id in advised), AS_IT_IS)
        with columns[at % len(columns)]:
            picked = choose(
                knob.capitalize(),
                [AS_IT_IS, *texts],
                param=knob.replace(" ", "-"),
                default=default,
                within=view.run["path"],
                format_func=lambda name, texts=texts: texts.get(name, "as it is"),  # type: ignore[misc]
            )
        chosen += [change for change in knob_changes if change.id == picked]
    return chosen


def _numbers(view: RunView, prospect: Prospect) -> None:
    low, likely, high = prospect.new_step_ns
    gains = not prospect.refused and bool(prospect.changes)
    row = st.container(horizontal=True)
    row.metric(
        "Step time now",
        duration(prospect.step_ns),
        border=True,
        height="stretch",
        width=METRIC_PX,
        help="Mean of the counted steps, as on every page.",
    )
    if not prospect.refused:  # else the reason is above, and there is no number
        row.metric(
            "Predicted",
            duration(likely) if gains else duration(prospect.step_ns),
            border=True,
            height="stretch",
            width=METRIC_PX,
            delta=f"{duration(low)} to {duration(high)}" if gains else None,
            delta_color="off",
            delta_arrow="off",
            help="Below: the interval in which a measurement is expected." if gains else None,
        )
        row.metric(
            "Gain",
            share(prospect.gain_share) if gains else "0%",
            delta=f"{duration(prospect.gain_ns[1])} a step" if gains else None,
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            width=METRIC_PX,
            help=f"Between {duration(prospect.gain_ns[0])} and {duration(prospect.gain_ns[2])} a step. "
            f"The replay without a change is off by {prospect.replay_error:.1%}."
            if gains
            else None,
        )
    delta, room = prospect.memory_delta_bytes, prospect.headroom_bytes
    on_device = view.result.tables.on_device
    if delta is not None:
        row.metric(
            "Device memory",
            f"{'+' if delta > 0 else ''}{size(delta)}",
            delta=None if room is None else f"of {size(room)} free",
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            width=METRIC_PX,
            help="Per rank, compared with now."
            if on_device
            else "Per device. This run is on a CPU, so no change is ruled out.",
        )
    if prospect.memory_veto:
        st.error(plain(f"Does not fit: {prospect.memory_veto}."), icon=":material/memory:")


def _how(prospect: Prospect) -> None:
    if prospect.assumptions:
        st.subheader("Assumptions", anchor="assumptions")
        st.markdown(bullets(prospect.assumptions))
    st.subheader("How", anchor="how")
    risks = tuple(f"{_RISK[c.risk]}: {c.change}" for c in prospect.changes if c.risk in _RISK)
    if risks:
        st.markdown("Risks:\n" + bullets(risks))
    if prospect.command:
        st.markdown("Try it:")
        show_code(prospect.command, "bash")
    else:
        st.markdown("The bundled trainer has no options for all of these; in code:")
    for code in prospect.code:
        if not code.by_api:
            st.markdown(
                plain(f"{code.change}: not a setting, so there is no code to copy; the gain is what it would save.")
            )
            continue
        with st.expander(plain(code.change), expanded=not prospect.command):
            for api, text in code.by_api.items():
                st.caption(api)
                show_code(text, "python")


# -- figures -----------------------------------------------------------------------------------------------------------


MEASURED = "as measured"
TOGETHER = "all together"


def steps(prospects: Sequence[tuple[str, Prospect]], theme: Theme) -> go.Figure:
    """A bar per prospect in milliseconds per step, with the interval in which a measurement is expected. The first bar
    is the measured step. Refused prospects are left out."""
    drawn = [(name, prospect) for name, prospect in prospects if not prospect.refused]
    measured = prospects[0][1].step_ns
    names = [MEASURED, *(label(name, 40) for name, _ in drawn)]
    likely = [measured, *(p.new_step_ns[1] for _, p in drawn)]
    low = [measured, *(p.new_step_ns[0] for _, p in drawn)]
    high = [measured, *(p.new_step_ns[2] for _, p in drawn)]
    colours = [theme.faint, *(theme.series[4] for _ in drawn)]
    if drawn:
        colours[-1] = theme.series[0]
    figure = go.Figure(
        go.Bar(
            x=[ns / MS for ns in likely],
            y=list(range(len(names))),
            orientation="h",
            marker={"color": colours},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(h - x) / MS for h, x in zip(high, likely, strict=True)],
                "arrayminus": [(x - b) / MS for b, x in zip(low, likely, strict=True)],
                "color": theme.ink,
                "thickness": 1.5,
            },
            customdata=[
                [name, f"{number(b / MS)} to {number(h / MS)}"] for name, b, h in zip(names, low, high, strict=True)
            ],
            hovertemplate="%{customdata[0]}<br>%{x:,.1f} ms a step, %{customdata[1]}<extra></extra>",
        )
    )
    for at, (ns, top) in enumerate(zip(likely, high, strict=True)):
        figure.add_annotation(
            x=top / MS, y=at, text=f"{number(ns / MS)} ms", showarrow=False, xanchor="left", xshift=6, font={"size": 12}
        )
    figure.add_vline(x=measured / MS, line={"color": theme.faint, "width": 1, "dash": "dot"})
    return finish(
        figure,
        theme,
        rows_height(len(names), least=150, each=36),
        bargap=0.4,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max(high) / MS * 1.25]},
        yaxis={"autorange": "reversed", "tickvals": list(range(len(names))), "ticktext": names, "title": None},
    )
