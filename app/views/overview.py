"""The first page: the answer, the numbers behind it, where every rank's and step's time goes, and what was not seen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import streamlit as st

from diag import __version__
from diag.app import drawings
from diag.app.address import choose
from diag.app.drawings import Drawing
from diag.app.facts import metrics, shown_rank
from diag.app.figures.differences import compared
from diag.app.formatting import plain, prose
from diag.app.run_view import RunView
from diag.app.theme import SEVERITY_COLOUR, SEVERITY_ICON, Theme, theme_of
from diag.app.views import actions, coverage, findings
from diag.app.views.common import CONFIG, draw, show_metrics, table
from diag.model.steps import Verdict
from diag.show.details import IDLE_COLUMNS, IDLE_TITLE, STALLS_TITLE, idle_table, stall_table
from diag.words.wording import class_name, run_facts, verdict_facts, versions

_MEAN = "mean"


def show(view: RunView, baseline: RunView | None = None) -> None:
    """``baseline``: the run that the numbers at the top are held against."""
    theme = theme_of(st.context.theme.type)
    _caption(view)
    coverage.show_warning(view)
    _verdict(view)
    show_metrics(*metrics(view, baseline))
    evidence, todo = st.columns([3, 2], gap="medium")
    with evidence:
        _evidence(view, theme)
    with todo:
        actions.show(view)
    rank, step = _breakdown(view, theme)
    _idle(view, rank, step)
    _waiting(view, theme)
    _memory(view, rank, theme)
    findings.show(view)
    coverage.show(view)


def _caption(view: RunView) -> None:
    name = view.result.tables.root.resolve().name
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.title(plain(name), width="stretch")
        st.download_button(
            "Report",
            data=lambda: _report(view),
            file_name=f"{name}-report.html",
            mime="text/html",
            icon=":material/download:",
            on_click="ignore",
            help="This page as one HTML file to pass on; `diag report --redact` hides names and paths.",
        )
    facts = [*run_facts(view.run, view.result.coverage), *versions(view.run)]
    st.caption(" · ".join(plain(fact) for fact in facts))


def _report(view: RunView) -> bytes:
    """Made at the click: five megabytes that most visits do not ask for."""
    from diag.app.html_report.render import render

    command = shlex.join(["diag", "report", str(view.result.tables.root), "-o", "report.html"])
    return render(view.result, command, __version__).encode()


def show_kept(run: str, verdict: Verdict) -> None:
    """What the last analysis said, until there is more to show."""
    st.title(plain(run))
    st.caption("The answer of the last analysis; the figures behind it follow.")
    _card(verdict, verdict_facts(verdict), "")


def _verdict(view: RunView) -> None:
    verdict = view.result.verdict
    _card(verdict, verdict_facts(verdict, view.steps_counted), view.result.why)


def _card(verdict: Verdict, facts: Sequence[str], why: str) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            st.badge(
                verdict.severity.value, icon=SEVERITY_ICON[verdict.severity], color=SEVERITY_COLOUR[verdict.severity]
            )
            st.badge(class_name(verdict.bottleneck), color="gray")
        st.subheader(plain(verdict.headline), anchor=False)
        if facts:
            st.markdown(" · ".join(plain(fact) for fact in facts))
        if why:
            st.markdown(plain(why))


def _evidence(view: RunView, theme: Theme) -> None:
    text, drawing = drawings.of_differences(view)
    if drawing is None:
        st.markdown(plain(text))
        return
    _lead(drawing)
    st.plotly_chart(
        drawing.draw(theme),
        key=drawing.key,
        on_select=lambda: _choose_rank(view),
        selection_mode="points",
        config=CONFIG,
        alt=drawing.alt,
    )
    st.caption("A click on a rank shows its steps below.")


def _choose_rank(view: RunView) -> None:
    """A click on a rank is a choice in the list of ranks, and so in the address."""
    points = st.session_state["differences"].selection.points
    if points:
        st.session_state["rank"] = str(compared(view.result.differences)[points[0]["point_index"]].rank)


def _breakdown(view: RunView, theme: Theme) -> tuple[int, int | None]:
    """Draws the parts by rank and by step; the rank that is chosen, and the number of the step, None for the mean."""
    st.subheader("Where the time goes", anchor="time")
    chosen = {str(step): i for i, step in enumerate(view.steps)}
    names = {_MEAN: "mean of the counted ones", **view.step_names}
    left, right, _ = st.columns([2, 3, 5], vertical_alignment="bottom")
    with left:
        ranks = [str(rank) for rank in view.ranks]
        rank = int(choose("Rank", ranks, param="rank", default=str(shown_rank(view)), within=view.run["path"]))
    with right:
        label = choose(
            "Step",
            [_MEAN, *chosen],
            param="step",
            default=_MEAN,
            within=view.run["path"],
            format_func=names.__getitem__,
            help="Also by a click on a step below.",
        )
    step = chosen.get(label)
    _draw(drawings.of_ranks(view, step), theme)
    steps = drawings.of_steps(view, rank, step)
    _lead(steps)
    st.plotly_chart(
        steps.draw(theme),
        key=steps.key,
        on_select=_choose_step,
        selection_mode="points",
        config=CONFIG,
        alt=steps.alt,
    )
    return rank, None if step is None else view.steps[step]


def _choose_step() -> None:
    """A click on a step is a choice in the list of steps, and so in the address."""
    points = st.session_state["history"].selection.points
    if points:
        st.session_state["step"] = str(points[0]["x"])


def _idle(view: RunView, rank: int, step: int | None) -> None:
    """Only where a device was traced."""
    idle, stalls = idle_table(view.result.attribution, rank, step), stall_table(view.result.attribution, step)
    if idle is None:
        return
    st.subheader(IDLE_TITLE, anchor="idle")
    st.markdown(plain(idle.lead))
    table(IDLE_COLUMNS, idle.rows)
    if stalls.rows:
        st.markdown(f"**{STALLS_TITLE}**")
        table(stalls.columns, stalls.rows)


def _waiting(view: RunView, theme: Theme) -> None:
    st.subheader("Who waits", anchor="waiting")
    text, drawing = drawings.of_waiting(view)
    st.markdown(prose(text))
    if drawing is not None:
        _draw(drawing, theme)


def _memory(view: RunView, rank: int, theme: Theme) -> None:
    st.subheader("Memory", anchor="memory")
    text, drawn = drawings.of_memory(view, rank)
    if text:
        st.markdown(prose(text))
    if drawn:
        for column, drawing in zip(st.columns(len(drawn)), drawn, strict=True):
            with column:
                _draw(drawing, theme)


def _lead(drawing: Drawing) -> None:
    if drawing.lead:
        st.markdown(f"**{plain(drawing.lead)}**{plain(drawing.rest)}")


def _draw(drawing: Drawing, theme: Theme) -> None:
    _lead(drawing)
    draw(drawing.draw(theme), drawing.key, drawing.alt)
