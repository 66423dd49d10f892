"""The first page: the answer, the numbers behind it, where every rank's and step's time goes, and what was not seen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

import streamlit as st

from diag import __version__
from diag.app import drawings
from diag.app.address import choose
from diag.app.drawings import Drawing
from diag.app.facts import metrics, shown_rank
from diag.app.run_view import RunView
from diag.app.theme import SEVERITY_COLOUR, SEVERITY_ICON, Theme, theme_of
from diag.model.steps import Advice, Bottleneck, Finding, Risk, Severity, Verdict
from diag.show.details import IDLE_COLUMNS, IDLE_TITLE, STALLS_TITLE, idle_table, stall_table
from diag.words.wording import (
    EVERYTHING_FOUND,
    EVERYTHING_LOOKED_FOR,
    EVIDENCE_COLUMNS,
    MOST_GAPS,
    NOTHING_FOUND,
    basis,
    class_name,
    evidence_row,
    finding_badge,
    finding_facts,
    gain,
    incomplete,
    not_predicted,
    price,
    run_facts,
    sentence,
    verdict_facts,
    versions,
)

from ..facts import counted, duration, plain, prose, share
from ..figures.compare import compared
from .common import CONFIG, bullets, draw, show_code, show_metrics, table

# -- coverage ----------------------------------------------------------------------------------------------------------
#
# What the answer rests on: what was looked for in vain, what could not be looked for, what could not be read.


def show_warning(view: RunView) -> None:
    """At the top of the page, only where data is missing."""
    missing = incomplete(view.result.coverage)
    if missing:
        st.warning(f"{plain(missing)} [The list](#coverage)", icon=":material/warning:")


def show_coverage(view: RunView) -> None:
    result = view.result
    coverage = result.coverage
    st.subheader("What this rests on", anchor="coverage")
    st.markdown(plain(basis(coverage)))
    for note in coverage.notes:
        st.warning(plain(f"{sentence(note)}."), icon=":material/warning:")
    looked, not_looked = st.columns(2)
    with looked:
        st.markdown("**Looked for, not found**")
        st.markdown(bullets(result.examination.not_found) or EVERYTHING_FOUND)
    with not_looked:
        st.markdown("**Could not look for, because**")
        st.markdown(bullets(tuple(map(str, coverage.not_looked))) or EVERYTHING_LOOKED_FOR)
    for gap in coverage.skipped[:MOST_GAPS]:
        st.warning(plain(gap.reason), title=plain(gap.path), icon=":material/warning:")
    if len(coverage.skipped) > MOST_GAPS:
        st.markdown(f"… and {len(coverage.skipped) - MOST_GAPS} more; `diag analyze` prints all of them.")


# -- actions -----------------------------------------------------------------------------------------------------------
#
# What to change first: at most three, each with what it gains, costs and risks, and how to do it.

_COLOUR: dict[Risk, Literal["gray", "orange", "red"]] = {
    Risk.SAFE: "gray",
    Risk.MEMORY: "orange",
    Risk.NUMERICS: "orange",
    Risk.CORRECTNESS: "red",
}
_API_NAMES = {
    "fsdp2": "FSDP2",
    "fsdp1": "FSDP1",
    "ddp": "DDP",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "hf_trainer": "HF Trainer",
    "pytorch": "PyTorch",
}


def show_actions(view: RunView) -> None:
    """What the cause asks for, then the changes whose gain was predicted; for a healthy run what margin is left."""
    result, found = view.result, view.result.recommendation
    st.markdown("**What to do**")
    cause = result.cause
    if result.verdict.severity == Severity.HEALTHY:
        st.markdown(
            f"Nothing. The most that one change could remove is {share(max(result.verdict.share, 0.0))} of a step."
        )
    elif cause is not None and cause.action:
        st.markdown(prose(cause.action))
    elif result.verdict.bottleneck == Bottleneck.UNDETERMINED:
        st.markdown("Nothing yet: record what the answer needs first.")
    for number, advice in enumerate(found.advice, start=1):
        _action(number, advice)
    if found.advice and found.replay_error is not None:
        st.caption(
            "Gains are predicted by replaying the recorded steps with the change; the replay of the unchanged ones is "
            f"off by {share(found.replay_error)}."
        )
    for reason in not_predicted(found.not_advised):
        st.caption(plain(reason))


def _action(number: int, advice: Advice) -> None:
    with st.container(border=True):
        st.markdown(f"**{number}. {plain(sentence(advice.change))}**")
        memory, risk = price(advice)
        with st.container(horizontal=True, gap="small"):
            low, likely, _ = advice.predicted_gain_ns
            st.badge(
                f"{duration(likely)} less, {share(advice.gain_share)}",
                icon=":material/speed:",
                color="green" if low > 0 else "gray",
            )
            st.badge(memory, icon=":material/memory:", color="gray")
            st.badge(risk, color=_COLOUR[advice.risk])
        st.caption(prose(sentence(gain(advice)) + "."))
        if advice.command:
            show_code(advice.command, "bash")
        if advice.code:
            _code(advice)
        if advice.assumptions:
            with st.expander("Taken for granted"):
                st.markdown("\n".join(f"- {prose(assumed)}" for assumed in advice.assumptions))


def _code(advice: Advice) -> None:
    """For the run's own API first; the others in tabs behind it."""
    with st.expander("In your own code", expanded=not advice.command):
        names = list(advice.code)
        for tab, name in zip(st.tabs([_API_NAMES.get(name, name) for name in names]), names, strict=True):
            with tab:
                show_code(advice.code[name], "json" if name == "deepspeed" else "python")


# -- findings ----------------------------------------------------------------------------------------------------------
#
# What was found, most expensive first: the cost, what to do, and the numbers that it rests on.


def show_findings(view: RunView) -> None:
    found = view.result.examination.findings
    st.subheader("Findings", anchor="findings")
    if not found:
        st.markdown(NOTHING_FOUND)
    for position, finding in enumerate(found):
        _finding(finding, expanded=position == 0)


def _finding(finding: Finding, expanded: bool) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            if finding.severity == Severity.HEALTHY:
                st.badge(finding_badge(finding), icon=":material/info:", color="gray")
            else:
                st.badge(
                    finding_badge(finding),
                    icon=SEVERITY_ICON[finding.severity],
                    color=SEVERITY_COLOUR[finding.severity],
                )
            st.markdown(f"**{plain(finding.title)}**")
        st.caption(" · ".join(plain(fact) for fact in finding_facts(finding)))
        if finding.action:
            st.markdown(f"**What to do:** {plain(finding.action)}")
        if finding.evidence:
            with st.expander(f"Evidence: {counted(len(finding.evidence), 'number')}", expanded=expanded):
                rows = [
                    dict(zip(EVIDENCE_COLUMNS, map(plain, evidence_row(item)), strict=True))
                    for item in finding.evidence
                ]
                st.table(rows, border="horizontal", hide_index=True)


_MEAN = "mean"


def show(view: RunView, baseline: RunView | None = None) -> None:
    """``baseline``: the run that the numbers at the top are held against."""
    theme = theme_of(st.context.theme.type)
    _caption(view)
    show_warning(view)
    _verdict(view)
    show_metrics(*metrics(view, baseline))
    evidence, todo = st.columns([3, 2], gap="medium")
    with evidence:
        _evidence(view, theme)
    with todo:
        show_actions(view)
    rank, step = _breakdown(view, theme)
    _idle(view, rank, step)
    _waiting(view, theme)
    _memory(view, rank, theme)
    show_findings(view)
    show_coverage(view)


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
