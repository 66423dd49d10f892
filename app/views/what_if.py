"""Settings to choose, with their combined gain as predicted by replay, their memory cost and assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import plotly.graph_objects as go
import streamlit as st
from msgspec.structs import replace

from diag.app.address import choose
from diag.app.figures import MS, finish, name_above, named_bars
from diag.app.markup import label, plain
from diag.app.picture import host_of_rank, rows_of_hosts, within_words
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import METRIC_PX, beyond_summaries, bullets, draw, head, nothing, show_code, without_steps
from diag.diagnoses.compare import reasons_against
from diag.errors import DiagError
from diag.model.breakdown import KnobChange, Prospect
from diag.model.steps import Knob, Risk
from diag.show.page import STEP_TIME, numbers_of
from diag.tune.history import Round, is_tuned, load
from diag.words.formatting import counted, duration, listing, number, share, size
from diag.words.wording import sentence

if TYPE_CHECKING:
    from diag.api import Supposition, WhatIf

AS_IT_IS = "as-it-is"
_PARTS = (0, 25, 50, 75, 100)  # percent that is taken away
_COMMUNICATION = (Part.TRANSFER, Part.WAITING, Part.COMMUNICATION)
_SPEEDS = (0.25, 0.5, 1, 2, 4, 8)  # of the network, times
_TIMES_RANKS = (0.5, 1, 2, 4, 8, 16, 32, 64)  # of those that were recorded
_RISK = {
    Risk.MEMORY: "memory",
    Risk.NUMERICS: "numerical results",
    Risk.CORRECTNESS: "training results",
}


def show(view: RunView, baseline: RunView | None = None, root: Path | None = None) -> None:
    """``baseline``: whose measured step is drawn beside a supposition; ``root``: a folder that may hold a tuning."""
    if without_steps("What if", view) or beyond_summaries("What if", view):
        return
    head("What if", view, "Step time without a fault or with other settings, predicted by replaying the recorded steps")
    with st.spinner("Replaying the steps…", show_time=True):
        offered = view.result.what_if
    if offered.refused:
        nothing(
            f"Nothing can be predicted: {offered.refused}.",
            "The replay needs every rank's steps and collectives, on a device with a profiler window: "
            "`diag run` records them.",
        )
        return
    _supposed(view, baseline)
    st.subheader("Other settings", anchor="settings")
    if not offered.changes:
        nothing(
            "No setting is proposed for this run: no known setting fixes the findings, or they cost less than 5% of "
            "the step. The overview shows the findings and what to do."
        )
        return
    _settings(view, offered, _tried(root) if root is not None else (), _measured(baseline))


@st.fragment
def _settings(view: RunView, offered: WhatIf, tried: Sequence[Round], others: Sequence[Measured]) -> None:
    """Draws the settings to choose and what they gain; a choice draws only this part of the page again. ``tried``: by
    `diag tune`; ``others``: other runs."""
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
    measured = [
        Measured(f"measured: {done.change}", done.baseline_ns - done.gain_ns.likely)
        for done in tried
        if done.gain_ns is not None and done.advice in [change.id for change in chosen]
    ] + list(others)
    draw(
        lambda: steps([*rows, (name, together)], theme_of(st.context.theme.type), measured),
        "prospects",
        "Milliseconds a step as measured and as predicted with the chosen settings",
    )
    st.caption("The lines are the intervals in which a measurement is expected.")
    for change, (_, prospect) in zip(chosen, rows, strict=False):
        if prospect.refused:
            st.markdown(plain(f"{change.change}, alone: not predicted, {prospect.refused}."))
    if not together.refused:
        _how(together)


def _measured(baseline: RunView | None) -> list[Measured]:
    """The measured step of the baseline, such as a later run with a change."""
    step_ns = numbers_of(baseline.result).get(STEP_TIME) if baseline is not None else None
    return [Measured(f"measured: {baseline.page.title}", step_ns)] if baseline is not None and step_ns else []


def _tried(root: Path) -> tuple[Round, ...]:
    """The changes that `diag tune` has tried in the dashboard's folder."""
    with suppress(DiagError):
        if is_tuned(root) and (history := load(root)) is not None:
            return history.rounds
    return ()


@st.fragment
def _supposed(view: RunView, baseline: RunView | None) -> None:
    """Draws the sliders, and the step as it would be; a slider draws only this part of the page again."""
    st.subheader("Without a fault, on another network, with other ranks", anchor="suppose")
    usual = view.result.without_fault
    supposed = _sliders(view, usual)
    with st.spinner("Replaying the steps…", show_time=True):
        prospect = view.result.what_if.suppose(supposed)
    if supposed.nothing:
        st.caption("Nothing is changed: the step is as it was measured. Move a slider to see what would change it.")
        as_measured = numbers_of(view.result).get(STEP_TIME)
        if as_measured is not None:
            figure = steps([], theme_of(st.context.theme.type), _measured(baseline), round(as_measured))
            draw(lambda: figure, "supposed", "Milliseconds a step as measured")
        return
    if prospect.refused:
        st.warning(plain(f"Not predicted: {prospect.refused}."), icon=":material/block:")
        return
    low, likely, high = prospect.new_step_ns
    less = "less" if prospect.gain_ns[1] >= 0 else "more"
    st.markdown(
        plain(
            f"The step would take {duration(likely)}, {within_words(low, high)}: "
            f"{share(abs(prospect.gain_share))} {less} than {duration(prospect.step_ns)}."
            + (_throughput_words(len(view.ranks), supposed.ranks, prospect) if supposed.ranks else "")
        )
    )
    draw(
        lambda: steps([(SUPPOSED, prospect)], theme_of(st.context.theme.type), _measured(baseline)),
        "supposed",
        "Milliseconds a step as measured and as supposed",
    )
    if baseline is not None and (reasons := reasons_against(baseline.result.tables, view.result.tables)):
        st.caption(plain(f"The baseline is not the same work: {'; '.join(reasons)}."))
    elif baseline is None:
        st.caption("A baseline, such as a later run without the fault, is drawn beside the prediction.")
    st.caption(plain(" ".join(f"{sentence(assumed)}." for assumed in prospect.assumptions)))


def _throughput_words(now: int, ranks: int, prospect: Prospect) -> str:
    """What more or fewer ranks do in all: each does the same work in a step."""
    times = ranks / now * prospect.step_ns / max(1, prospect.new_step_ns[1])
    return f" All {ranks:,} ranks together do {number(times)} times as much a second as {counted(now, 'rank')} now."


def _sliders(view: RunView, usual: Supposition) -> Supposition:
    """Draws a slider for each thing that the run has: of one rank in a row, of all ranks in the next. ``usual``: what
    they are set to at first."""
    within, several, waits = view.run["path"], len(view.ranks) > 1, Part.DATA in view.parts
    of_host = Part.HOST in view.parts
    communicates = several or any(part in view.parts for part in _COMMUNICATION)
    if not (waits or of_host or communicates):
        st.markdown("There is nothing to take away: one rank, which waits for neither data nor its host.")
        return usual
    parts = [str(part) for part in _PARTS]

    def part_of(label: str, param: str, at_first: float, help: str) -> float:
        with next(columns):
            chosen = choose(
                label, parts, param=param, default=f"{round(100 * at_first)}", within=within, help=help, slider=True,
                format_func=lambda percent: f"{percent}%",
            )  # fmt: skip
        return int(chosen) / 100

    supposed = usual
    if several:
        columns = iter(st.columns(3 + waits))
        with next(columns):
            at_fault = usual.of if set(usual.of) <= set(view.ranks) else ()
            groups = _groups(view, at_fault)
            first = ",".join(map(str, at_fault or (view.page.rank,)))
            of = choose(
                "Ranks", list(groups), param="of", default=first, within=within,
                format_func=lambda ranks: groups.get(ranks, ranks),
            )  # fmt: skip
        beyond = "is taken away that {what} than the median of the others."
        supposed = replace(
            supposed,
            of=tuple(map(int, of.split(","))),
            work=part_of(
                "Works like the others", "work", usual.work, f"How much {beyond.format(what='they work longer')}"
            ),
            link=part_of(
                "Link like the others", "link", usual.link,
                f"How much {beyond.format(what='they get the results of collectives later')}",
            ),
            loading=part_of(
                "Loads like the others", "loading", usual.loading,
                f"How much {beyond.format(what='they wait longer for data')}",
            ) if waits else 0.0,
        )  # fmt: skip
    columns = iter(st.columns(waits + of_host + communicates + several))
    if waits:
        help = "How much of every rank's waiting for data is taken away."
        supposed = replace(supposed, data=part_of("No rank waits for data", "data", usual.data, help))
    if of_host:
        help = "How much of every device's waiting for launches is taken away, as CUDA graphs or larger kernels would."
        supposed = replace(supposed, host=part_of("No device waits for its host", "host", usual.host, help))
    if communicates:
        speeds = [f"{speed:g}" for speed in _SPEEDS]
        with next(columns):
            chosen = choose(
                "Network", speeds, param="network", default="1", within=within, slider=True,
                format_func=lambda times: "as it is" if times == "1" else f"{times}x as fast",
                help="How fast every byte moves; latencies stay as they are.",
            )  # fmt: skip
        supposed = replace(supposed, network=float(chosen))
    if several:
        now = len(view.ranks)
        numbers = [str(number) for number in (round(now * times) for times in _TIMES_RANKS) if number > 1]
        with next(columns):
            chosen = choose(
                "Number of ranks", numbers, param="ranks", default=str(now), within=within, slider=True,
                help="How many there are, each with as much work as one rank has now.",
            )  # fmt: skip
        supposed = replace(supposed, ranks=int(chosen) if int(chosen) != now else 0)
    return supposed


def _groups(view: RunView, at_fault: tuple[int, ...]) -> dict[str, str]:
    """The ranks that can be made like the others, as the address has them ("6,7"), and their names: those at fault
    where they are several, the ranks of each of several hosts, each rank."""
    groups = {at_fault: f"{listing(at_fault)}, at fault"} if len(at_fault) > 1 else {}
    host_of = {rank: host_of_rank(view.result, rank) for rank in view.ranks}
    rows = rows_of_hosts(view.ranks, host_of) if len(set(host_of.values())) > 1 else {}
    for host, ranks in rows.items():
        if len(ranks) > 1:
            groups.setdefault(tuple(ranks), f"{host}: {listing(ranks)}")
    groups |= {(rank,): listing((rank,)) for rank in view.ranks}
    return {",".join(map(str, ranks)): name for ranks, name in groups.items()}


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


MEASURED = "as measured"
TOGETHER = "all together"
SUPPOSED = "as supposed"


class Measured(NamedTuple):
    """The step of another run in which a change was made."""

    name: str
    step_ns: float


def steps(
    prospects: Sequence[tuple[str, Prospect]],
    theme: Theme,
    others: Sequence[Measured] = (),
    measured_ns: int | None = None,
) -> go.Figure:
    """A bar per prospect in milliseconds per step, with the interval in which a measurement is expected. The first bar
    is the measured step, the last ones what was measured with changes. Refused prospects are left out. Name and value
    stand above each bar, so that they have room on a phone too; dotted: how long the measured step is.
    ``measured_ns``: the measured step where there is no prospect."""
    drawn = [(name, prospect) for name, prospect in prospects if not prospect.refused]
    measured = prospects[0][1].step_ns if measured_ns is None else measured_ns
    tried = [other.step_ns for other in others]
    names = [MEASURED, *(label(name, 40) for name, _ in drawn), *(label(other.name, 40) for other in others)]
    likely = [measured, *(p.new_step_ns[1] for _, p in drawn), *tried]
    low = [measured, *(p.new_step_ns[0] for _, p in drawn), *tried]
    high = [measured, *(p.new_step_ns[2] for _, p in drawn), *tried]
    colours = [theme.faint, *(theme.series[4] for _ in drawn)]
    if drawn:
        colours[-1] = theme.series[0]
    colours += [theme.faint] * len(others)
    figure = go.Figure(
        go.Bar(
            x=[ns / MS for ns in likely],
            y=list(range(len(names))),
            orientation="h",
            marker={"color": colours, "line": {"width": 0}},
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
    for at, (name, ns) in enumerate(zip(names, likely, strict=True)):
        name_above(figure, at, name, f"{number(ns / MS)} ms")
    # Beside each bar, not through the names above them.
    half = DASHBOARD.named_bar_share / 2
    look = {"type": "line", "x0": measured / MS, "x1": measured / MS, "line": {"color": theme.soft, "dash": "dot"}}
    figure.update_layout(shapes=[{**look, "y0": at - half, "y1": at + half} for at in range(1, len(names))])
    return finish(
        figure,
        theme,
        DASHBOARD.named_bar_px * len(names) + 60,
        showlegend=False,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max(high) / MS * 1.02]},
        **named_bars(len(names)),
    )
