"""The first page: the verdict, its metrics, where the time of every rank and step goes, and what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import streamlit as st

from diag.api import RunState, notes_on_profiler
from diag.app import drawings
from diag.app.address import choose, go_to_page, href, keeping, set_choices
from diag.app.card import card_of
from diag.app.drawings import Drawing, compared
from diag.app.kept import FirstScreen
from diag.app.looks import state_of
from diag.app.markup import plain, prose
from diag.app.moment import moment_of
from diag.app.picture import Data, advice_rows, bars_of_peaks, colours_of, picture_of
from diag.app.policy import DASHBOARD
from diag.app.ready import wait_until_ready
from diag.app.run_view import RunView
from diag.app.standing import standing_picture
from diag.app.theme import DARK, LIGHT, SEVERITY_COLOUR, SEVERITY_ICON, Theme, theme_of
from diag.app.views import live
from diag.app.views.common import (
    bullets,
    choose_clicked_rank,
    component,
    draw,
    in_view,
    made_in_view,
    moment_link,
    plot,
    show_code,
    show_evidence,
    show_field,
    show_gaps,
    show_metrics,
    show_on_timeline,
    show_table,
    side_by_side,
)
from diag.diagnoses.compare import reasons_against
from diag.ended.model import FULL
from diag.model import Gap
from diag.model.steps import Bottleneck, Finding, Outcome, Risk, Severity, Verdict
from diag.show import page as words
from diag.show.answer import title_and_share
from diag.show.brief import as_issue, as_message
from diag.show.memory import MEMORY_FINDINGS, Failure
from diag.show.page import Advised, Card, Change, Page, Place, VerdictShown, advice_of, metrics_of, verdict_of
from diag.show.ranks import IDLE_TITLE, STALLS_TITLE, idle_table, longest_stalls, stall_table
from diag.timeline import timeline_of
from diag.version import version
from diag.words.formatting import counted, share
from diag.words.places import shown as name_of
from diag.words.table import Table
from diag.words.wording import sentence

_MEAN = "mean"
_PICTURE = "picture"
_VERDICT_AND_PICTURE = (5, 6)  # widths
_FINDING_AND_PICTURE = (5, 6)
_FASTER = "What would make its steps shorter, once it goes on"
_DETAILS = "Commands, code and assumptions"
_RISK_COLOUR: dict[Risk, Literal["gray", "orange", "red"]] = {
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


def show(view: RunView, baseline: RunView | None = None) -> None:
    """``baseline``: the run that the metrics are compared with. What takes long is drawn after the rest, in the place
    that it has on the page."""
    theme, page = theme_of(st.context.theme.type), view.page
    _head(view)
    if page.incomplete:
        st.warning(f"{plain(page.incomplete)} [Details](#coverage)", icon=":material/warning:")
    state = state_of(view.result.tables.root)
    ended = _ended_by_it(view, state)
    for failure in page.failures[:1]:
        _out_of_memory(failure, ended)
    if others := page.failures[1:]:
        with st.expander(f"{counted(len(others), 'more failed allocation')}"):
            for failure in others:
                _out_of_memory(failure)
    if state.live:
        # A run that is drawn as going on may stop; of one that stands still, what to do has the link.
        live.show_standstill(state.path, linked=not live.comes_first(state))
    elif page.outcome is not None and not ended:
        _outcome(page.outcome, first=live.comes_first(state))
    if live.comes_first(state):
        from diag.app.views.hang import show_to_do  # loads the triage

        show_to_do(state.path, page.outcome.action if page.outcome is not None and not state.live else "")
    beside = side_by_side("verdict", _VERDICT_AND_PICTURE) if view.result.attribution.steps else (st.container(), None)
    with beside[0]:
        every_s = DASHBOARD.live_every_s if state.live else None
        st.fragment(_followed, run_every=every_s)(page.verdict, state.path, page.since)
        if not page.verdict.unprofiled:  # else the headline has it
            for note in notes_on_profiler(view.result.attribution, view.result.tables, view.result.examination.longer):
                st.caption(plain(f"{sentence(note)}."))
        for card in page.further[: DASHBOARD.most_findings_beside]:
            link = f"[{plain(title_and_share(card))}](#findings)"
            st.markdown(f":material/warning: **{words.ALSO}:** {link}. {prose(card.action)}")
        if page.beside:
            titles = " · ".join(
                f"[{plain(card.title)}](#findings)" for card in page.beside[: DASHBOARD.most_findings_beside]
            )
            st.markdown(f":material/warning: **{words.ALSO}:** {titles}")
    show_metrics(*(metrics_of(view.result, baseline.result) if baseline is not None else page.metrics))
    if baseline is not None:
        _not_comparable(view, baseline)
    advised = advice_of(view.result)
    if beside[1] is not None:
        with beside[1]:
            _picture(view, state, theme)
    kept = keeping(state.path)
    if kept is not None and baseline is None and not _more_is_first(page, state):
        kept.keep(view.result, lambda: _first_screen(view, state))
    if live.comes_first(state):  # what the steps before would gain is not what to do now
        with st.expander(_FASTER):
            _to_do(view, advised, theme)
    else:
        _to_do(view, advised, theme)
    _copies(page, advised, theme)
    wait_until_ready()
    if state.live:
        live.show_curves(state)
    if view.result.attribution.steps:
        _steps(view, theme)
        if not state.live:
            live.show_curves(state)
    else:
        st.subheader(page.ranks.title, anchor="ranks")
        show_table(page.ranks)
    st.subheader(words.FINDINGS, anchor="findings")
    if not page.findings:
        st.markdown(words.NOTHING_FOUND)
    for position, (card, finding) in enumerate(zip(page.findings, view.result.examination.findings, strict=True)):
        _finding(view, card, finding, position, theme)
    _coverage(page, view.result.coverage.skipped)


def _picture(view: RunView, state: RunState, theme: Theme) -> None:
    """Draws the ranks beside the verdict. A click on one shows its steps below. Of many ranks that are stuck: where
    each one is."""
    if state.stuck and len(state.by_rank) > DASHBOARD.most_bars_of_ranks:
        component("picture")(key="standing", data=standing_picture(state, theme))
        return

    component("picture")(
        key=_PICTURE,
        data=_beside(view, state, theme),
        on_rank_change=lambda: choose_clicked_rank(view, _PICTURE),
    )


def _beside(view: RunView, state: RunState, theme: Theme) -> Data | None:
    """The data of the picture beside the verdict."""
    data = None
    if view.result.verdict.cause in MEMORY_FINDINGS:
        data = bars_of_peaks(view, view.result.cause.ranks if view.result.cause is not None else (), theme)
    return data or picture_of(view, theme, next(iter(view.result.advice), None), _who_stands(view, state))


def _more_is_first(page: Page, state: RunState) -> bool:
    """Whether something stands above the verdict, or changes with time: no such screen is kept."""
    return (
        bool(page.incomplete or page.failures or page.outcome or page.beside) or state.live or live.comes_first(state)
    )


def _first_screen(view: RunView, state: RunState) -> FirstScreen:
    page, drawn = view.page, bool(view.result.attribution.steps)
    pictures = {theme.name: _beside(view, state, theme) if drawn else None for theme in (LIGHT, DARK)}
    return FirstScreen(str(page.title), _facts(page), page.verdict, page.since, page.metrics, pictures)


def _who_stands(view: RunView, state: RunState) -> tuple[int, ...] | None:
    """The ranks that are at fault for a standstill or an end; None for a run that goes on, or ended well."""
    if not live.comes_first(state):
        return None
    outcome = view.page.outcome
    return tuple(rank.rank for rank in state.behind) or (outcome.ranks if outcome is not None else ())


@st.fragment
def _steps(view: RunView, theme: Theme) -> None:
    """Draws where the time of the steps goes. A choice of a rank or a step draws only this part of the page again."""
    rank, step = _breakdown(view, theme)
    _differences(view, theme)
    _idle(view, rank, step)
    _waiting(view, theme)
    _memory(view, rank, theme)


def show_last_screen(state: RunState, screen: FirstScreen) -> None:
    """Draws the first screen as it was kept, until there is more to show."""
    st.title(plain(screen.title))
    st.caption(screen.facts)
    picture = screen.pictures.get(theme_of(st.context.theme.type).name)
    beside = side_by_side("verdict before", _VERDICT_AND_PICTURE) if picture is not None else (st.container(), None)
    with beside[0]:
        _verdict(screen.verdict, state, screen.since, key="verdict-before")
    if beside[1] is not None:
        with beside[1]:
            component("picture")(key="picture-before", data=picture)
    show_metrics(*screen.metrics)


def show_last_answer(state: RunState, answer: Verdict) -> None:
    """Draws the verdict of the last analysis, until there is more to show."""
    st.title(plain(state.path.resolve().name))
    st.caption("Verdict of the last analysis; the figures follow.")
    _verdict(verdict_of(answer), state, key="verdict-before")


def _head(view: RunView) -> None:
    page = view.page
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.title(plain(page.title), width="stretch")
        st.download_button(
            "Report",
            data=lambda: _report(view),
            file_name=f"{page.title}-report.html",
            mime="text/html",
            icon=":material/download:",
            on_click="ignore",
            help="This page as one HTML file to pass on; `diag report --redact` hides names and paths.",
        )
    st.caption(_facts(page))


def _facts(page: Page) -> str:
    """The line below the title, as Markdown."""
    recorded = f"recorded {page.recorded}" if page.recorded else ""
    return " · ".join(plain(fact) for fact in (*page.facts, recorded, *page.versions) if fact)


def _copies(page: Page, advised: Advised, theme: Theme) -> None:
    """Draws buttons that copy the answer as text."""
    texts = [["Copy as issue", as_issue(page, advised, version())], ["Copy as message", as_message(page, advised)]]
    component("copies")(key="copies", data={"texts": texts, "colours": colours_of(theme)})


def _report(view: RunView) -> bytes:
    """The HTML report. Rendered on click: it has five megabytes, and most visits do not ask for it."""
    from diag.app.html_report.render import render

    command = shlex.join(["diag", "report", name_of(str(view.result.tables.root)), "-o", "report.html"])
    return render(view.result, command, version()).encode()


def _not_comparable(view: RunView, baseline: RunView) -> None:
    """Draws why the differences from the baseline count as neither better nor worse."""
    reasons = reasons_against(baseline.result.tables, view.result.tables)
    if reasons:
        st.warning("Not comparable with the baseline, because:\n" + bullets(reasons), icon=":material/difference:")


def _ended_by_it(view: RunView, state: RunState) -> str:
    """How the run ended, if by the allocation that failed first: one box then has both. "" otherwise."""
    outcome, failed = view.page.outcome, view.result.failed_allocations[:1]
    if outcome is None or outcome.cause != FULL or state.live or not live.comes_first(state):
        return ""
    return outcome.ended if any(failure.rank in outcome.ranks for failure in failed) else ""


def _out_of_memory(failure: Failure, ended: str = "") -> None:
    """Draws what failed, what was free, and what would have made room. ``ended``: with which the run ended."""
    what, _, detail = failure.text.partition(". ")
    what = prose(what.rstrip("."))
    lines = (
        [f"{live.LARGE} {plain(ended)}. {what}.", prose(failure.room)]
        if ended
        else [f"**{what}.** {prose(failure.room)}"]
    )
    if failure.enough:
        lines.append("It might have fitted with:\n" + "\n".join(f"- {prose(change)}" for change in failure.enough))
    if failure.others:
        lines.append(
            ("Not enough alone" if failure.enough else "No single change frees enough")
            + ":\n"
            + "\n".join(f"- {prose(change)}" for change in failure.others)
        )
    if detail:
        lines.append(f"What was live is on [Memory]({href('memory')}). {prose(detail)}")
    st.error("\n\n".join(lines), icon=":material/memory:")


def _outcome(outcome: Outcome, first: bool) -> None:
    """Draws how a run failed, or that it recorded no end, above what bound it until then. ``first``: as the answer,
    below which stands what to do, with a link to the evidence."""
    headline = plain(outcome.headline)
    lines = [f"{live.LARGE} {headline}" if first else f"**{headline}**"]
    if not first:
        lines += [
            *([prose(outcome.action)] if outcome.action else []),
            f"The evidence is on [Hang triage]({href('hang')}).",
        ]
    st.error("\n\n".join(lines), icon=":material/cancel:")
    if not first:
        st.caption(f"{words.UNTIL_THEN}:")


def _followed(verdict: VerdictShown, run: Path, since: str) -> None:
    """Draws the verdict with the state that the run has now."""
    _verdict(verdict, state_of(run), since)


def _verdict(verdict: VerdictShown, state: RunState, since: str = "", key: str = "verdict") -> None:
    """``key``: that of the last analysis has another, because one run of the page draws both. Of a run that is stuck or
    failed the verdict is not the answer: it says what the steps before that were like."""
    first = not live.comes_first(state)
    with st.container(border=True, key=key):
        with st.container(horizontal=True, gap="small"):
            live.badge(state)
            if first:
                st.badge(
                    verdict.severity.words,
                    icon=SEVERITY_ICON[verdict.severity],
                    color=SEVERITY_COLOUR[verdict.severity],
                )
                st.badge(verdict.bottleneck, color="gray")
        card = card_of(verdict)
        if first:
            st.subheader(plain(card.headline), anchor=False)
        else:
            st.markdown(f"{words.UNTIL_THEN}: {plain(verdict.headline)}")
            return  # who was at fault then is not at fault for the end
        if card.causes:
            st.markdown("\n".join(f"{at}. **{plain(cause)}**" for at, cause in enumerate(card.causes, start=1)))
        if card.said:
            st.markdown(plain(card.said))
        if verdict.facts:
            st.caption(" · ".join(plain(fact) for fact in verdict.facts))
        if since:
            st.caption(plain(since))
        if verdict.why:
            with st.expander(plain(card.why)):
                if card.headline != verdict.headline:
                    st.markdown(plain(verdict.headline))
                st.markdown(plain(verdict.why), help=words.CRITICAL_PATH)


def _to_do(view: RunView, advised: Advised, theme: Theme) -> None:
    """Draws the action for the cause, then changes with a predicted gain; for a healthy run, the margin left."""
    answer, action = view.result.verdict, view.page.verdict.action
    text = ""
    if answer.severity == Severity.HEALTHY:
        text = "Nothing for the speed." if view.page.beside else "Nothing."
        text += f" One change could save at most {share(max(answer.share, 0.0))} of a step."
    elif action:
        text = action
    elif answer.bottleneck == Bottleneck.UNDETERMINED:
        text = "Nothing yet: collect the missing data first."
    where = f" [Memory]({href('memory')})" if answer.cause in MEMORY_FINDINGS else ""
    if also := view.page.verdict.also:  # a mixed run has two causes
        st.markdown(f"**{words.TO_DO}**\n- Cause 1: {prose(text)}{where}\n- Cause 2: {prose(also)}")
    else:
        st.markdown(f"**{words.TO_DO}** {prose(text)}{where}")
    if advised.changes:
        component("advice")(key="advice", data=advice_rows(view, view.result.advice, advised.changes, theme))
    for reason in advised.not_predicted:
        st.caption(plain(reason))
    if advised.changes:
        with st.expander(_DETAILS):
            st.caption(plain(advised.basis))
            for number, change in enumerate(advised.changes, start=1):
                _change(number, change)


def _change(number: int, change: Change) -> None:
    with st.container(border=True):
        st.markdown(f"**{number}. {plain(change.title)}**")
        memory, risk = change.price
        with st.container(horizontal=True, gap="small"):
            st.badge(change.saves, icon=":material/speed:", color="green" if change.sure else "gray")
            st.badge(memory, icon=":material/memory:", color="gray")
            st.badge(risk, color=_RISK_COLOUR[change.risk])
        st.caption(prose(f"{change.gain}."))
        if change.command:
            show_code(change.command, "bash")
        if change.code:
            _code(change)
        if change.assumptions:
            st.markdown(
                f"**{words.ASSUMPTIONS}**\n" + "\n".join(f"- {prose(assumed)}" for assumed in change.assumptions)
            )


def _code(change: Change) -> None:
    """Draws the code for each API in a tab, the run's own API first."""
    diffs = dict(change.diffs)
    st.markdown("**In your own code**")
    tabs = st.tabs([_API_NAMES.get(name, name) for name, _ in change.code])
    for tab, (name, text) in zip(tabs, change.code, strict=True):
        with tab:
            if name in diffs:
                st.caption(words.BEFORE_AND_AFTER)
                show_code(diffs[name], "diff")
                st.caption("To copy")
            show_code(text, "json" if name == "deepspeed" else "python")


# -- findings and coverage ---------------------------------------------------------------------------------------------


def _finding(view: RunView, card: Card, finding: Finding, position: int, theme: Theme) -> None:
    """Draws what was found beside the picture that shows it; the numbers of the first one are open."""
    with st.container(border=True):
        with st.container(horizontal=True, gap="small"):
            if card.severity == Severity.HEALTHY:
                st.badge(card.badge, icon=":material/info:", color="gray")
            else:
                st.badge(card.badge, icon=SEVERITY_ICON[card.severity], color=SEVERITY_COLOUR[card.severity])
            st.markdown(f"**{plain(card.title)}**")
        said, seen = side_by_side(f"finding {position}", _FINDING_AND_PICTURE)
        with said:
            st.caption(" · ".join(plain(fact) for fact in card.facts))
            if card.action:
                st.markdown(f"**{words.TO_DO}:** {plain(card.action)}")
        with seen:
            if card.place is not None:
                _moment(view, finding, card.place, f"moment {position}", theme)
            elif card.rows is not None and card.rows.frame == "memory":
                _peaks(view, finding, f"moment {position}", theme)
        with st.container(horizontal=True):
            if card.place is not None:
                show_on_timeline(card.place.rank, card.place.step)
            if card.rows is not None:
                show_evidence(card.rows)
        if card.evidence.rows:
            with st.expander(card.evidence.title, expanded=position == 0):
                show_table(card.evidence)


@st.fragment
def _moment(view: RunView, finding: Finding, place: Place, key: str, theme: Theme) -> None:
    """Draws the step in which a finding costs most, on the ranks that it is about. A click opens it on the timeline."""
    if not in_view(key, DASHBOARD.moment_px):
        return
    data = moment_of(view, finding, place, theme)
    if data is not None and component("moment")(key=key, data=data, on_open_change=lambda: None).open:
        go_to_page("timeline", rank=place.rank, step=place.step)


@st.fragment
def _peaks(view: RunView, finding: Finding, key: str, theme: Theme) -> None:
    """Draws the peaks of the ranks that a finding on memory names."""
    if in_view(key, DASHBOARD.moment_px) and (data := bars_of_peaks(view, finding.ranks, theme)) is not None:
        component("picture")(key=key, data=data, on_rank_change=lambda: None)


def _coverage(page: Page, gaps: Sequence[Gap]) -> None:
    st.subheader(words.COVERAGE, anchor="coverage")
    st.markdown(plain(page.basis))
    if page.notes:
        st.warning(bullets(page.notes) if len(page.notes) > 1 else plain(page.notes[0]), icon=":material/warning:")
    looked, not_looked = st.columns(2)
    with looked:
        st.markdown(f"**{words.NOT_FOUND}**")
        st.markdown(bullets(page.not_found) or words.EVERYTHING_FOUND)
    with not_looked:
        st.markdown(f"**{words.NOT_LOOKED}**")
        st.markdown(bullets(page.not_looked) or words.EVERYTHING_LOOKED_FOR)
    show_gaps(gaps)


def _differences(view: RunView, theme: Theme) -> None:
    text, drawing = drawings.of_differences(view)
    if drawing is None:
        st.markdown(plain(text))
        return
    _lead(drawing)
    figure = made_in_view(lambda: drawing.draw(theme), drawing.key)
    if figure is not None:
        plot(figure, drawing.key, drawing.alt, on_select=lambda: _choose_rank(view), selection_mode="points")
        st.caption("Click a rank to show its steps above.")


def _choose_rank(view: RunView) -> None:
    """Selects the clicked rank in the list of ranks, and so in the page's address."""
    points = st.session_state["differences"].selection.points
    if points:
        set_choices(rank=str(compared(view.result.differences)[points[0]["point_index"]].rank))


def _breakdown(view: RunView, theme: Theme) -> tuple[int, int | None]:
    """Draws the parts by rank and by step; returns the chosen rank and the chosen step's number, None for the mean."""
    st.subheader(words.TIME, anchor="time")
    chosen = {str(step): i for i, step in enumerate(view.steps)}
    names = {_MEAN: "mean of the counted steps", **view.step_names}
    left, right, _ = st.columns([3, 6, 3], vertical_alignment="bottom")
    with left:
        ranks = [str(rank) for rank in view.ranks]
        rank = int(choose("Rank", ranks, param="rank", default=str(view.page.rank), within=view.run["path"]))
    with right:
        label = choose(
            "Step",
            [_MEAN, *chosen],
            param="step",
            default=_MEAN,
            within=view.run["path"],
            format_func=names.__getitem__,
            help="Or click a step below.",
        )
    step = chosen.get(label)
    # A place of its own, also where it stays empty: else the figure of the steps moves down by one when a step is
    # chosen, and where that run of the page is broken off for the next one, Streamlit keeps it at both places.
    of_ranks = st.container()
    if step is not None or len(view.result.attribution.ranks) > DASHBOARD.most_bars_of_ranks:
        with of_ranks:
            _draw(drawings.of_ranks(view, step), theme)  # the means of a few ranks are beside the verdict
    if len(view.steps) > 1:  # a single step is in the bars above
        steps = drawings.of_steps(view, rank, step)
        _lead(steps)
        figure = made_in_view(lambda: steps.draw(theme), steps.key)
        if figure is not None:
            plot(figure, steps.key, steps.alt, on_select=_choose_step, selection_mode="points")
    number = None if step is None else view.steps[step]
    if number is not None:
        show_on_timeline(rank, number)
    return rank, number


def _choose_step() -> None:
    """Selects the clicked step in the list of steps, and so in the page's address."""
    points = st.session_state["history"].selection.points
    if points:
        set_choices(step=str(points[0]["x"]))


def _idle(view: RunView, rank: int, step: int | None) -> None:
    """Draws idle time and stalls; nothing if no device was traced."""
    idle, stalls = idle_table(view.result.attribution, rank, step), stall_table(view.result.attribution, step)
    if idle is None:
        return
    st.subheader(IDLE_TITLE, anchor="idle")
    st.markdown(plain(idle.title))
    show_table(idle)
    if stalls.rows:
        st.markdown(f"**{STALLS_TITLE}**")
        st.fragment(_stalls)(view, step, stalls)


def _stalls(view: RunView, step: int | None, stalls: Table) -> None:
    """Draws the stalls, each with a link to its moment on the timeline, which is made once they are in view."""
    if not in_view("stalls", DASHBOARD.figure_px):
        return
    lanes, links = timeline_of(view.result).ranks, []
    for account, parts, stall in longest_stalls(view.result.attribution, step)[: len(stalls.rows)]:
        of_rank = lanes[parts.rank]
        begin_ns = next(each.begin_ns for each in of_rank.steps if each.step == account.step)
        at_ns = begin_ns + of_rank.moved_ns + stall.at_ns
        links.append(moment_link(parts.rank, account.step, at_ns, at_ns + stall.dur_ns))
    show_table(stalls, first=("Timeline", links))


def _waiting(view: RunView, theme: Theme) -> None:
    st.subheader(words.WAITING, anchor="waiting")
    text, drawing = drawings.of_waiting(view)
    st.markdown(prose(text))
    if drawing is None:
        return
    show_field(view, lambda: drawing.draw(theme), drawing.key, drawing.alt, drawing.ranks)


def _memory(view: RunView, rank: int, theme: Theme) -> None:
    st.subheader(words.MEMORY, anchor="memory")
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
    draw(lambda: drawing.draw(theme), drawing.key, drawing.alt)
