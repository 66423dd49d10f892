"""The life of a run: its step time, what changed it, what went wrong, and where the wall time went. The same objects as
``diag history`` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import go_to_page, show_link
from diag.app.figures import MS, finish
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import draw, head, nothing, plot, show_code, show_table
from diag.collectors.layout import RunLayout
from diag.history.condense import condensed
from diag.history.losses import RESTART, SLOW, STUCK
from diag.model.history import Goodput, History, Incident, Life, Stretch
from diag.show.history import NO_CHANGE, analysing, facts_of, step_table
from diag.summaries import life_of_result, life_of_training
from diag.timeline import timeline_of
from diag.words.formatting import counted, duration, listing, spaced, visible
from diag.words.history import (
    PARTS,
    change_words,
    cost_words,
    goodput_words,
    hours,
    incident_words,
    kept_words,
    long_time,
    restart_words,
)
from diag.words.table import COUNT, Column, table_of

_TURN = "history turn"  # how often a click has led away: the figure begins anew without a selection


def show(view: RunView, runs: Sequence[Path]) -> None:
    """``runs``: all that the dashboard shows. Those of which one goes on where another one ended are one life."""
    life, theme = life_of_view(view, runs), theme_of(st.context.theme.type)
    head("History", view, "The life of the run")
    drawn = [attempt for attempt in life.attempts if attempt.stretches]
    for attempt in drawn or life.attempts[:1]:
        facts = facts_of(attempt)
        st.caption(plain(" · ".join(facts if len(_folders(life)) > 1 else facts[1:])))
    if not drawn:
        nothing("No step of this run was recorded in full.", "`diag run` records every step.")
        return
    if (goodput := life.goodput) is not None:
        st.markdown(f"**{plain(spaced(goodput_words(goodput)))}**")
        draw(lambda: goodput_figure(goodput, theme), "goodput", goodput_words(goodput))
        for note in goodput.notes:
            st.caption(plain(note))
    st.subheader("Step time", anchor="step-time")
    if sum(stretch.last - stretch.first + 1 for attempt in drawn for stretch in attempt.stretches) == 1:
        only = drawn[0].stretches[0]
        st.markdown(
            plain(
                f"One step was recorded, step {only.first:,}: {duration(only.step_ns)}. A history needs more than one."
            )
        )
        return
    _figure(view, life, theme)
    _said(view, life)
    _kept(view, life)
    _hosts(life)
    with st.expander("As numbers"):
        for attempt in drawn:
            show_table(step_table(attempt))


def life_of_view(view: RunView, runs: Sequence[Path] = ()) -> Life:
    """The life of the training, read once for each analysis of the run and each set of runs."""
    kept, key = vars(view.result), f"_life of {sorted(map(str, runs))}"
    if key not in kept:
        root = view.result.tables.root
        if RunLayout(root).is_run():
            kept[key] = life_of_training(view.result, root, runs)
        else:
            kept[key] = life_of_result(view.result, None)
    life: Life = kept[key]
    return life


def _folders(life: Life) -> set[str]:
    """The folders of the runs; restarts are in that of their run."""
    return {attempt.path for attempt in life.attempts if not RunLayout(Path(attempt.path)).is_restart}


def goodput_figure(goodput: Goodput, theme: Theme) -> go.Figure:
    """One bar: the wall time by what it went into."""
    figure = go.Figure()
    names = {"new_steps": "new steps", **PARTS}
    colours = {"new_steps": theme.good, "checkpoints": theme.part[Part.CHECKPOINT], "stalls": theme.bad,
               "restarts": theme.warn, "other": theme.faint}  # fmt: skip
    rest = iter(theme.series)
    for name, ns in goodput.parts.items():
        if ns < goodput.wall_ns / 1000:
            continue
        colour = colours.get(name) or next(rest, theme.faint)
        text = f"{names[name]}: {long_time(ns)}, {ns / max(goodput.wall_ns, 1):.1%}"
        figure.add_bar(
            x=[ns / max(goodput.wall_ns, 1) * 100], y=[""], orientation="h", name=names[name],
            marker={"color": colour, "line": {"width": 0}}, hovertemplate=f"{text}<extra></extra>",
        )  # fmt: skip
    return finish(
        figure, theme, 64, barmode="stack", showlegend=True,
        xaxis={"range": [0, 100], "ticksuffix": " %", "showgrid": False, "visible": False},
        yaxis={"visible": False}, margin={"l": 0, "r": 0, "t": 4, "b": 4}, hovermode="closest",
    )  # fmt: skip


def life_figure(life: Life, theme: Theme) -> go.Figure:
    """The step time of every attempt over the wall time, or over the steps without a clock. Dashed: the level before
    and after each change; bands and marks: incidents, of which a mark's ``customdata`` is the place."""
    timed = all(stretch.begin_unix_ns for attempt in life.attempts for stretch in attempt.stretches)
    figure = go.Figure()
    top = 0.0
    for attempt in life.attempts:
        rows = condensed(attempt, DASHBOARD.most_points_of_curve)
        if not rows:
            continue
        levels = [level for change in attempt.changes for level in (change.before_ns, change.after_ns)]
        top = max(top, *levels, sorted(row.step_ns for row in rows)[19 * len(rows) // 20])
        name = "step time" if attempt.number == 0 else f"step time after restart {attempt.number}"
        x, step_ms = [_at(row, timed) for row in rows], [row.step_ns / MS for row in rows]
        figure.add_scatter(
            x=x, y=step_ms, name=name, mode="lines" if len(rows) > 1 else "markers",
            line={"color": theme.series[attempt.number % len(theme.series)], "width": 1.6},
            customdata=[[row.first, row.last, row.longest_ns / MS] for row in rows],
            hovertemplate="steps %{customdata[0]:,} to %{customdata[1]:,}<br>%{y:,.1f} ms, longest "
            "%{customdata[2]:,.1f} ms<extra></extra>",
        )  # fmt: skip
        _changes(figure, attempt, rows, timed, theme)
    top *= 1.25 / MS  # a checkpoint or a stall is longer by far: cut off
    _incidents(figure, life, timed, top, theme)
    return finish(
        figure, theme, 360, hovermode="closest", dragmode="zoom",
        xaxis={"title": None if timed else {"text": "step"}, "showgrid": False, "type": "date" if timed else "linear"},
        yaxis={"title": {"text": "ms"}, "range": [0, top or 1]}, margin={"l": 8, "r": 8, "t": 24, "b": 8},
    )  # fmt: skip


def _at(stretch: Stretch, timed: bool) -> datetime | int:
    return _moment(stretch.begin_unix_ns or 0) if timed else stretch.first


def _moment(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)


def _changes(figure: go.Figure, attempt: History, rows: Sequence[Stretch], timed: bool, theme: Theme) -> None:
    edges = [rows[0].first, *(change.step for change in attempt.changes), rows[-1].last + 1]
    levels = [attempt.changes[0].before_ns, *(change.after_ns for change in attempt.changes)] if attempt.changes else []
    for place, level in enumerate(levels):
        inside = [row for row in rows if edges[place] <= row.first < edges[place + 1]]
        if inside:
            figure.add_scatter(
                x=[_at(inside[0], timed), _at(inside[-1], timed)], y=[level / MS] * 2, mode="lines",
                name="level between changes", legendgroup="level", showlegend=attempt.number == 0 and place == 0,
                line={"color": theme.ink, "width": 1.5, "dash": "dash"}, hoverinfo="skip",
            )  # fmt: skip
    for change in attempt.changes:
        after = next((row for row in rows if row.first >= change.step), None)
        if after is not None:
            figure.add_shape(
                type="line", x0=_at(after, timed), x1=_at(after, timed), y0=0, y1=1, yref="paper",
                line={"color": theme.bad if change.slower else theme.good, "width": 1.5},
            )  # fmt: skip
            figure.add_annotation(
                x=_at(after, timed), y=1, yref="paper", yanchor="bottom", showarrow=False, text=f"{change.by:+.0%}",
                font={"size": 12, "color": theme.bad if change.slower else theme.good},
            )  # fmt: skip


_MARK = "incident"  # in the custom data of its point
_NAMES = {SLOW: "slower", STUCK: "stuck", RESTART: "restart"}


def _incidents(figure: go.Figure, life: Life, timed: bool, top: float, theme: Theme) -> None:
    by_kind: dict[str, list[int]] = defaultdict(list)
    for place, incident in enumerate(life.incidents):
        by_kind[incident.kind].append(place)
        begin, end = _span(incident, timed)
        figure.add_shape(
            type="rect", x0=begin, x1=end, y0=0, y1=1, yref="paper", layer="below", opacity=0.16,
            fillcolor=_colour(incident, theme), line={"width": 0},
        )  # fmt: skip
    for kind, places in by_kind.items():
        figure.add_scatter(
            x=[_span(life.incidents[place], timed)[0] for place in places], y=[0.96 * top] * len(places),
            mode="markers", name=_NAMES.get(kind, kind), customdata=[[place, _MARK] for place in places],
            text=[_hover(life.incidents[place], life) for place in places], hovertemplate="%{text}<extra></extra>",
            marker={"symbol": "triangle-down", "size": 13, "color": _colour(life.incidents[places[0]], theme),
                    "line": {"color": theme.ground, "width": 1}},
        )  # fmt: skip


def _span(incident: Incident, timed: bool) -> tuple[datetime | int, datetime | int]:
    if timed and incident.begin_unix_ns and incident.end_unix_ns:
        return _moment(incident.begin_unix_ns), _moment(incident.end_unix_ns)
    return incident.first, incident.last + 1


def _colour(incident: Incident, theme: Theme) -> str:
    return {SLOW: theme.warn, RESTART: theme.soft}.get(incident.kind, theme.bad)


def _hover(incident: Incident, life: Life) -> str:
    on_device = any(attempt.on_device for attempt in life.attempts)
    who = f"<br>{listing(incident.ranks)}" if incident.ranks else ""
    cause = f"<br>{visible(incident.cause)}" if incident.cause else ""
    steps = (
        f"step {incident.first:,}"
        if incident.first == incident.last
        else f"steps {incident.first:,} to {incident.last:,}"
    )
    return f"{_NAMES.get(incident.kind, incident.kind)}, {steps}{who}{cause}<br>lost {hours(incident, on_device)}"


# -- what was clicked, and what is said --------------------------------------------------------------------------------


def _figure(view: RunView, life: Life, theme: Theme) -> None:
    turn = st.session_state.get(_TURN, 0)
    figure = life_figure(life, theme)
    alt = f"Step time over the life of the run, {counted(len(life.incidents), 'incident')}"
    chosen = plot(figure, f"life {turn}", alt, on_select="rerun", selection_mode="points")
    places = [place for point in chosen.selection.points if (place := _place_of(point)) is not None]
    if places and places[0] < len(life.incidents):
        incident = life.incidents[places[0]]
        attempt = _attempt_of(life, incident)
        if choices := _on_timeline(view, attempt, incident.first, incident.last, incident.ranks):
            st.session_state[_TURN] = turn + 1
            go_to_page("timeline", **choices)
        st.caption("The timeline does not hold these steps. What is left of them:")
        _to_type(attempt, incident.first, incident.last)
    else:
        click = " Click the mark of an incident to open its steps." if life.incidents else ""
        st.caption(f"Mean of neighbouring steps, in UTC. Much longer steps are cut off.{click}")


def _place_of(point: Mapping[str, Any]) -> int | None:
    """The place of the incident that was clicked; None for a point of a curve."""
    data = point.get("customdata")
    values = list(data.values() if isinstance(data, Mapping) else data) if isinstance(data, Mapping | list) else []
    return int(values[0]) if len(values) == 2 and values[1] == _MARK else None


def _on_timeline(
    view: RunView, attempt: History, first: int, last: int, ranks: Sequence[int] = ()
) -> dict[str, object]:
    """The choices that show the begin of these steps on the timeline; none if they are not known one by one, or are of
    another run."""
    if view.result.from_summaries or attempt.path != str(view.result.tables.root):
        return {}
    inside = [span for span in timeline_of(view.result).steps if first <= span.step <= last]
    spans = inside[: DASHBOARD.most_steps_opened]
    if not spans:
        return {}
    rank = {"rank": ranks[0]} if ranks and ranks[0] in view.ranks else {}
    if len(spans) == 1:
        return {**rank, "step": spans[0].step}
    return {**rank, "from": f"{spans[0].begin_ns / MS:.3f}", "to": f"{spans[-1].end_ns / MS:.3f}"}


def _attempt_of(life: Life, incident: Incident) -> History:
    return next(attempt for attempt in life.attempts if attempt.number == incident.attempt)


def _to_type(attempt: History, first: int, last: int) -> None:
    """The command for steps that the timeline does not hold."""
    show_code(analysing(attempt, first, last), "bash")


def _said(view: RunView, life: Life) -> None:
    """Each change and incident in a sentence, with a link to its steps."""
    on_device = any(attempt.on_device for attempt in life.attempts)
    restarts = {restart.number: restart for restart in life.restarts}
    costs = {(incident.attempt, incident.first): incident for incident in life.incidents if incident.kind == SLOW}
    compared = any(len(attempt.stretches) > 1 for attempt in life.attempts)
    if compared and not any(attempt.changes for attempt in life.attempts):
        st.markdown(plain(NO_CHANGE))
    for attempt in life.attempts:
        for change in attempt.changes[-DASHBOARD.most_incidents_listed :]:
            words = change_words(change, goes_on=change is attempt.now)
            cost = costs.get((attempt.number, change.step))
            _point(view, words + (cost_words(cost, on_device) if cost is not None else ""), attempt, cost)
    others = [incident for incident in life.incidents if incident.kind != SLOW]
    most = sorted(others, key=lambda each: -each.lost_ns)[: DASHBOARD.most_incidents_listed]
    for incident in sorted(most, key=lambda each: (each.attempt, each.first)):
        attempt = _attempt_of(life, incident)
        if incident.kind == RESTART:
            _point(view, restart_words(restarts[incident.attempt], incident, on_device), attempt, None)
        else:
            _point(view, incident_words(incident, on_device), attempt, incident)
    if more := len(others) - len(most):
        st.caption(plain(f"{counted(more, 'shorter incident')}: `diag history --json` lists all."))


def _point(view: RunView, text: str, attempt: History, incident: Incident | None) -> None:
    st.markdown(f"- {plain(visible(spaced(text)))}")
    if incident is not None:
        _link(view, attempt, incident.first, incident.last, incident.ranks)


def _link(view: RunView, attempt: History, first: int, last: int, ranks: Sequence[int] = ()) -> None:
    """A link to these steps on the timeline, where they are on it."""
    choices = _on_timeline(view, attempt, first, last, ranks)
    if choices:
        steps = f"Step {first:,}" if first == last else f"Steps {first:,} to {last:,}"
        show_link("timeline", f"{steps} on the timeline", icon="view_timeline", **choices)


def _kept(view: RunView, life: Life) -> None:
    """The steps around incidents of which all records are there, each with what analyses exactly these."""
    every = [(attempt, kept) for attempt in life.attempts for kept in attempt.kept]
    if not every:
        return
    st.subheader("Kept in full", anchor="kept")
    for attempt, kept in every[-DASHBOARD.most_incidents_listed :]:
        st.markdown(f"- {plain(spaced(kept_words(kept)))}.")
        _link(view, attempt, kept.first, kept.last)
        _to_type(attempt, kept.first, kept.last)
    if (more := len(every) - DASHBOARD.most_incidents_listed) > 0:
        st.caption(plain(f"{counted(more, 'earlier incident')}: `diag history --json` lists all."))


def _hosts(life: Life) -> None:
    """Hosts whose ranks were at fault, by what that cost."""
    lost: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    for incident in life.incidents:
        for host in incident.hosts:
            lost[host] += incident.lost_hours / len(incident.hosts)
            times[host] += 1
    if not lost:
        return
    st.subheader("Hosts at fault", anchor="hosts")
    order = sorted(lost, key=lambda host: -lost[host])[: DASHBOARD.most_table_ranks]
    show_table(
        table_of(
            "hosts",
            "Hosts at fault",
            {
                Column("host", weight=0): order,
                Column("incidents", COUNT): [times[host] for host in order],
                Column("lost", label="rank time lost"): [duration(lost[host] * 3.6e12) for host in order],
            },
        )
    )
