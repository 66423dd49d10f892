"""Compares this run with another one of the folder: which parts of the step account for the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from diag.api import RunState, compare_runs
from diag.app.address import choose, choose_path, job_at, last_baseline, name_of, opened, runs_of
from diag.app.curves import LOSS, STEP_TIME, OfRuns, curve_figure, curves_of_run, known
from diag.app.drawings import mean_step_ns
from diag.app.figures import MS, finish, name_above, named_bars, signed_ms
from diag.app.looks import state_of
from diag.app.markup import label, plain
from diag.app.picture import grids_of_both, host_of_rank, picture_of
from diag.app.policy import DASHBOARD
from diag.app.run_view import PART_OF, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.by_name import show_by_name
from diag.app.views.common import (
    bullets,
    choose_clicked_rank,
    component,
    draw,
    head,
    show_error,
    show_table,
    side_by_side,
    without_steps,
)
from diag.app.views.repeats import has_repeats, show_repeats
from diag.app.views.runs import MEAN_OF_REPEATS, curves_by_group, curves_for, outline_of, repeats_of
from diag.diagnoses.compare import PART_NAMES, Comparison, Setting
from diag.diagnoses.repeats import groups_of
from diag.diagnoses.setups import Setup, nearest_of_job, repeat, setup_of, setup_of_traces, setup_planned
from diag.errors import DiagError
from diag.show.compare import WITHIN_NOISE, comparison_table, headline, worth_a_row
from diag.show.page import DATA_WAIT, EXPOSED_COMM, HOST_WAIT
from diag.words.formatting import UNKNOWN, counted, number, share, visible
from diag.words.table import INDEX, TEXT_RIGHT, Column, Table, table_of
from diag.words.wording import sentence

_TYPED, _ASK = "another path …", "choose a run"
_SIDES = ("before", "after")
_OTHER_WORK = "The runs do different work, so neither is better:"
_SAME_JOB = "the same script, model, number of ranks and device"
# Of which of the two each table is: a slow rank makes the others wait, which is in the one and not in the other.
_OF_PATH = (
    "All of it is of the critical path: what the length of the step consists of. Waiting for a slow rank counts as "
    "what that rank does meanwhile."
)
_REFUSED = "This cannot be compared"


def show(view: RunView, root: Path) -> None:
    if without_steps("Compare", view):
        return
    head("Compare", view, "Critical path of another run's steps compared with this run's")
    other_path = _other(view, root)
    if other_path is None:
        return
    try:
        against = opened(other_path)
    except DiagError as error:
        show_error(error, _REFUSED)
        return
    comparison = compare_runs(against.result, view.result)
    _differences(comparison, against, view, root)


def _other(view: RunView, root: Path) -> Path | None:
    """The path of the run to compare with, inside the dashboard's folder; None until one is chosen."""
    this_run = view.result.tables.root.resolve()
    runs = {name_of(root, run): run for run in runs_of(root)[0] if run.resolve() != this_run}
    first, why = _first(runs, view)
    left, right = st.columns(2, vertical_alignment="bottom")
    with left:
        asks = [_ASK] if first == _ASK else []
        picked = choose("Compare with", [*asks, *runs, _TYPED], param="with", default=first, within=view.run["path"])
    if picked == first:
        right.caption(plain(why))
    if picked == _ASK:
        return None
    if picked != _TYPED:
        return runs[picked]
    with right:
        return choose_path(
            "Path of a run", root, param="path", placeholder="inside the folder that is shown", refusal=_REFUSED
        )


def _first(runs: Mapping[str, Path], view: RunView) -> tuple[str, str]:
    """The baseline of the other pages, else the nearest run of the same job; and why that one. None is taken where no
    run is of the same job."""
    baseline = last_baseline()
    if baseline in runs:
        return baseline, "The baseline of all pages."
    setups = {name: setup for name, run in runs.items() if (setup := _setup(run)) is not None}
    tables = view.result.tables
    this = setup_of(tables.manifest) if tables.manifest is not None else setup_of_traces(tables)
    found = nearest_of_job(this, setups)
    if found is None:
        return _ASK, f"No other run of this folder is of the same job: {_SAME_JOB}. Choose one to compare with."
    name, before = found
    return name, f"The {'last run before' if before else 'first run after'} this one of the same job: {_SAME_JOB}."


def _setup(run: Path) -> Setup | None:
    job = job_at(run)
    return setup_of_traces(job.tables) if job is not None and job.tables is not None else setup_planned(run)


def _differences(comparison: Comparison, against: RunView, view: RunView, root: Path) -> None:
    before, after = (name_of(root, run.result.tables.root) for run in (against, view))
    with st.container(border=True, key="verdict-of-both"):
        st.markdown(_badge(comparison))
        st.subheader(plain(headline(comparison)), anchor=False)
        if comparison.not_comparable:
            st.markdown(plain(f"{_OTHER_WORK} {'; '.join(comparison.not_comparable)}."))
        _verdicts(against, view, before, after)
    _repeats(root, before, after)
    shown = worth_a_row(comparison)
    theme = theme_of(st.context.theme.type)
    left, right = side_by_side("compared")
    with left:
        st.subheader("Difference by part of the step", anchor="difference")
        draw(
            lambda: flow(shown, before, after, theme),
            "flow",
            f"From the step of {before} to the step of {after} in milliseconds, by part of the step",
        )
    with right:
        _changed(comparison)
        _step_by_step(against, view, root, theme)
    st.caption(
        plain(
            f"From {before} ({counted(comparison.steps[0], 'step')}) to {after} "
            f"({counted(comparison.steps[1], 'step')}). Lines: 95% intervals from the steps of both; hatched where one "
            "includes zero. Two runs of one configuration differ by more than the spread of their steps: repeat a run "
            f"to confirm a small difference. {_OF_PATH} Shares beside the verdicts are of it too."
        )
    )
    show_table(comparison_table(shown))
    show_by_name((against, view), (before, after))
    _ranks((against, view), (before, after), theme)
    if comparison.remarks:
        st.markdown(bullets(tuple(f"{sentence(remark)}." for remark in comparison.remarks)))


@st.fragment
def _repeats(root: Path, before: str, after: str) -> None:
    """Draws what the other runs of the folder say that were asked to do the same as one of the two, if there are any.
    Those that are not analysed yet are, and then this is drawn again."""
    alike = _alike(root, before, after)
    if not alike:
        return
    groups = repeats_of(alike, before)
    st.subheader("With their repeats", anchor="repeats")
    if has_repeats(groups):
        show_repeats(groups, "repeats of both")
    if waiting := sum(outline_of(state) is None for state in alike.values()):
        st.caption(f"{counted(waiting, 'repeat')} of them {'is' if waiting == 1 else 'are'} being analysed.")
        component("pace")(
            key="pace of repeats", data={"ms": 1000 * DASHBOARD.runs_every_s}, on_again_change=lambda: None
        )


def _alike(root: Path, before: str, after: str) -> dict[str, RunState]:
    """The two runs and those of the folder that repeat one of them; none where no run does, or one of the two is in no
    list of the folder."""
    runs = {name_of(root, run): run for run in runs_of(root)[0]}
    setups = {name: setup for name, run in runs.items() if (setup := setup_planned(run)) is not None}
    alike = {
        name: state_of(run)
        for name, run in runs.items()
        if name in (before, after) or any(repeat(setups.get(name), setups.get(of)) for of in (before, after))
    }
    return alike if len(alike) > 2 and {before, after} <= alike.keys() else {}


def _badge(comparison: Comparison) -> str:
    """Whether the run is faster, in the colours that better and worse have on all pages. Of other work, neither."""
    if comparison.not_comparable:
        return ":orange-badge[:material/difference: not the same work]"
    if not comparison.sure:
        return f":gray-badge[:material/trending_flat: {WITHIN_NOISE}]"
    if comparison.ns[1] < 0:
        return ":green-badge[:material/trending_down: shorter steps]"
    return ":red-badge[:material/trending_up: longer steps]"


def _changed(comparison: Comparison) -> None:
    """Draws what was changed between the runs, as far as it was recorded."""
    st.subheader("Settings that differ", anchor="settings")
    of_both = [each for each in comparison.settings if each.of_both]
    of_one = [each for each in comparison.settings if not each.of_both]
    if of_both:
        show_table(_settings_table(of_both))
    else:
        st.caption("None that both runs recorded.")
    if of_one:
        with st.expander(f"{counted(len(of_one), 'setting')} that only one run recorded"):
            show_table(_settings_table(of_one))


def _settings_table(settings: Sequence[Setting]) -> Table:
    return table_of(
        "settings",
        "Settings that differ",
        {
            Column("setting", weight=0): [each.name for each in settings],
            Column("before"): [each.before for each in settings],
            Column("after"): [each.after for each in settings],
        },
    )


def _ranks(views: Sequence[RunView], names: Sequence[str], theme: Theme) -> None:
    """Draws the ranks of both runs beside each other, on one scale; many as grids, with a table of those that changed
    most. A click on a rank chooses it on every page."""
    found = [picture_of(view, theme) for view in views]
    pictures = [picture for picture in found if picture is not None and picture["kind"] == "bars"]
    of_both: list[dict[int, float]] = []
    if len(pictures) == len(views):
        end = max(picture["end"] for picture in pictures)
        pictures = [picture | {"end": end, "predicted": None} for picture in pictures]
    else:
        pictures, of_both = grids_of_both(views, theme)
    if not pictures:
        return
    st.subheader("Every rank of both runs", anchor="ranks")
    for column, picture, name, side in zip(side_by_side("ranks"), pictures, names, _SIDES, strict=True):
        key, title = f"ranks {side}", f"{visible(name)}: {picture['title'].lower()}"
        with column:
            component("picture")(
                key=key,
                data=picture | {"title": title, "alt": f"{title}{picture['rest']}"},
                on_rank_change=partial(choose_clicked_rank, views[-1], key),
            )
    if of_both:
        _changed_ranks(views[-1], *of_both)


def _changed_ranks(view: RunView, before: Mapping[int, float], after: Mapping[int, float]) -> None:
    """Draws the ranks of both runs whose milliseconds differ, the most first."""
    least = DASHBOARD.equal_ranks_share * mean_step_ns(view) / MS
    changed = {rank: after[rank] - before[rank] for rank in before.keys() & after.keys()}
    ranks = sorted((rank for rank in changed if abs(changed[rank]) >= least), key=lambda rank: -abs(changed[rank]))
    if not ranks:
        st.caption(f"No rank that both runs have differs by {share(DASHBOARD.equal_ranks_share)} of the step.")
        return
    shown = ranks[: DASHBOARD.most_rows_of_many_ranks]
    st.markdown("**Ranks that changed most**, milliseconds a step of the figures above")
    show_table(
        table_of(
            "changed-ranks",
            "Ranks that changed most",
            {
                Column("rank", INDEX, weight=0): shown,
                Column("host"): [host_of_rank(view.result, rank) or None for rank in shown],
                Column("before", TEXT_RIGHT): [number(before[rank]) for rank in shown],
                Column("after", TEXT_RIGHT): [number(after[rank]) for rank in shown],
                Column("difference", TEXT_RIGHT): [signed_ms(round(changed[rank] * MS)) for rank in shown],
            },
            left_out=len(ranks) - len(shown),
        ).known()
    )


@st.fragment
def _step_by_step(against: RunView, view: RunView, root: Path, theme: Theme) -> None:
    """Draws step time and loss of both runs over the steps, or of the runs that repeat them."""
    before, after = (name_of(root, run.result.tables.root) for run in (against, view))
    curves = {
        name: of_run
        for name, run in ((before, against), (after, view))
        if (of_run := curves_of_run(run.result)) is not None
    }
    lines: Sequence[tuple[str, OfRuns]] = [*curves.items()]
    quantities = known([of_run for _, of_run in lines], (STEP_TIME, LOSS))
    if not quantities:
        return
    st.subheader("Step by step", anchor="curves")
    alike = _alike(root, before, after)
    if alike and st.toggle(MEAN_OF_REPEATS, key="mean of repeats of both"):
        every = {name: own for name, state in alike.items() if (own := curves_for(state)) is not None}
        setups = {name: setup for name, state in alike.items() if (setup := setup_planned(state.path)) is not None}
        ordered = sorted(every, key=lambda name: name != before)
        lines = curves_by_group(every, groups_of(setups, dict.fromkeys(ordered, 0.0)))  # no analysis is waited for
    names = " and ".join(quantity.name for quantity in quantities)
    draw(
        lambda: curve_figure(lines, quantities, theme, DASHBOARD.compared_curves_px),
        "compared curves",
        f"{names} by step, of {before} and {after}",
    )


def _verdicts(against: RunView, view: RunView, before: str, after: str) -> None:
    runs = (against, view)
    numbers = [
        {metric.label: metric.in_a_line for metric in run.page.metrics if metric.value != UNKNOWN} for run in runs
    ]
    show_table(
        table_of(
            "verdicts",
            "Verdicts",
            {
                Column("side", label="", weight=0): _SIDES,
                Column("run"): [before, after],
                Column("verdict", long=True): [run.result.verdict.headline for run in runs],
                **{
                    Column(name): [of_run.get(name) for of_run in numbers]
                    for name in (EXPOSED_COMM, DATA_WAIT, HOST_WAIT)
                },
            },
        )
    )


def flow(comparison: Comparison, before: str, after: str, theme: Theme) -> go.Figure:
    """A waterfall in milliseconds per step, from top to bottom: the first run's bar, a floating bar per kind of time
    that begins where the one before it ends, and the second run's bar. Lines are the intervals of the differences.
    Hatched: the interval includes zero. Name and value stand above each bar, so that they have room on a phone too."""
    names = [
        label(before, 24),
        *(PART_NAMES[part.kind] for part in comparison.parts),
        label(after, 24),
    ]
    bases, lengths, ends = [0.0], [comparison.before_ns / MS], [comparison.before_ns / MS]
    at = float(comparison.before_ns)
    for part in comparison.parts:
        change = part.ns[1]
        bases.append(min(at, at + change) / MS)
        lengths.append(abs(change) / MS)
        ends.append(max(at, at + change, at + part.ns[2]) / MS)
        at += change
    bases.append(0.0)
    lengths.append(comparison.after_ns / MS)
    ends.append(comparison.after_ns / MS)
    colours = [theme.faint, *(theme.part[PART_OF[part.kind]] for part in comparison.parts), theme.faint]
    hatches = ["", *("" if part.sure else "/" for part in comparison.parts), ""]
    texts = [
        f"{number(comparison.before_ns / MS)} ms",
        *(f"{signed_ms(part.ns[1])}{'' if part.sure else f', {WITHIN_NOISE}'}" for part in comparison.parts),
    ]
    texts.append(f"{number(comparison.after_ns / MS)} ms")
    places = list(range(len(names)))
    figure = go.Figure(
        go.Bar(
            x=lengths,
            y=places,
            base=bases,
            orientation="h",
            width=DASHBOARD.named_bar_share,
            marker={"color": colours, "line": {"width": 0}, "pattern": {"shape": hatches, "size": 6}},
            customdata=[
                [name, text, interval]
                for name, text, interval in zip(names, texts, _intervals(comparison), strict=True)
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]} a step%{customdata[2]}<extra></extra>",
        )
    )
    _lines(figure, comparison, theme)
    for place, name, text in zip(places, names, texts, strict=True):
        name_above(figure, place, name, text)
    return finish(
        figure,
        theme,
        DASHBOARD.named_bar_px * len(names) + 60,
        showlegend=False,
        xaxis=_axis(bases[1:-1] or [0.0], ends),
        **named_bars(len(names)),
    )


def _axis(lows: Sequence[float], ends: Sequence[float]) -> dict[str, Any]:
    """An axis from zero. If the differences would be too thin to see, it begins below the lowest one, and its title
    says so."""
    low, high = min(*lows, *ends), max(ends)
    span = high - low
    first = 0.0 if low < DASHBOARD.cut_axis_from * span else low - 0.5 * span
    title = "milliseconds a step" if not first else f"milliseconds a step, cut off below {number(first)}"
    return {"title": {"text": title}, "range": [first, high + 0.05 * (high - first)]}


def _lines(figure: go.Figure, comparison: Comparison, theme: Theme) -> None:
    """Draws the interval of each difference at the end of its bar."""
    ends, low, high = [], [], []
    at = float(comparison.before_ns)
    for part in comparison.parts:
        ends.append((at + part.ns[1]) / MS)
        low.append((part.ns[1] - part.ns[0]) / MS)
        high.append((part.ns[2] - part.ns[1]) / MS)
        at += part.ns[1]
    figure.add_scatter(
        x=ends,
        y=list(range(1, len(ends) + 1)),
        mode="markers",
        marker={"color": theme.ink, "size": 4},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": high,
            "arrayminus": low,
            "color": theme.ink,
            "thickness": 1.5,
        },
        hoverinfo="skip",
    )


def _intervals(comparison: Comparison) -> list[str]:
    return ["", *(f", {signed_ms(part.ns[0])} to {signed_ms(part.ns[2])}" for part in comparison.parts), ""]
