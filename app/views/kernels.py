"""Kernels or operators by time, modules, MFU, and the critical path by module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import choose, go_to_page
from diag.app.figures import MS, finish, name_above, named_bars, rows_height
from diag.app.markup import label, plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.timeline_data.work import colour_of, work_words
from diag.app.views.common import (
    beyond_summaries,
    bullets,
    draw,
    head,
    made_in_view,
    nothing,
    plot,
    show_metrics,
    show_on_timeline,
    show_rows,
    side_by_side,
    without_steps,
)
from diag.model.breakdown import (
    Efficiency,
    KernelKind,
    KernelStat,
    KernelTable,
    ModuleStat,
    ModuleTable,
    PathStat,
    PathTable,
)
from diag.model.steps import HOST_DETAILS, Detail, Kind
from diag.show.breakdowns import between_memories, kernel_table, module_table, utilisation
from diag.show.page import Metric
from diag.tables.module_ranges import ROOT
from diag.tables.zoom import BACKWARD, DETAILS, FORWARD, Category
from diag.timeline import timeline_of
from diag.words.formatting import counted, duration, number, share, short_name
from diag.words.wording import per_whole

_TURN = "kernels turn"  # how often a click has led away: the figures begin anew without a selection


def show(view: RunView) -> None:
    if without_steps("Operators and modules", view) or beyond_summaries("Operators and modules", view):
        return
    breakdowns = view.result.breakdowns
    on_device = breakdowns.kernels.unit == "kernel"
    title = "Kernels and modules" if on_device else "Operators and modules"
    head(title, view, f"{'Device' if on_device else 'Operator'} time in the traced steps, mean per rank and step")
    theme = theme_of(st.context.theme.type)
    if not breakdowns.kernels.rows:
        nothing(
            "No trace covers a counted step, so kernels and modules are not known.",
            "`diag run` records a window of three steps; `--trace-active` asks for more.",
        )
    else:
        known, unknown = _measures(breakdowns.efficiency)
        if known:
            _efficiency(known)
        # Both on the first screen; a message needs no half of the page.
        left, right = side_by_side("kernels-modules") if breakdowns.modules else (st.container(), st.container())
        with left:
            _kernels(view, breakdowns.kernels, theme)
        with right:
            _modules(view, breakdowns.modules, theme)
    _path(breakdowns.path, theme)
    if breakdowns.kernels.rows and unknown:  # below what is known
        st.markdown("**Not known**\n" + bullets(tuple(unknown)))
    for note in breakdowns.notes if breakdowns.modules else ():  # without modules, a message says so
        if "module" in note:
            st.caption(plain(f"{note[:1].upper()}{note[1:]}."))


def _measures(efficiency: Efficiency) -> tuple[list[Metric], list[str]]:
    """The measures that are known, and sentences about the others, one for each reason."""
    measures = (
        (
            "MFU",
            efficiency.mfu,
            "Model FLOPs utilisation: the model's FLOP/s as a fraction of the device's dense peak.",
        ),
        ("HFU", efficiency.hfu, "Hardware FLOPs utilisation: like MFU, with recomputation."),
        (
            "Recomputed",
            efficiency.recompute_share,
            "Fraction of the compute time: forward that is recomputed during backward.",
        ),
        ("Contention", efficiency.contention_share, "How much longer kernels take while communication runs."),
    )
    known = [
        Metric(name, utilisation(measure.value), help=f"{meaning} {measure.basis}")
        for name, measure, meaning in measures
        if measure.value is not None
    ]
    names: dict[str, list[str]] = {}
    for name, measure, _ in measures:
        if measure.value is None:
            names.setdefault(measure.reason or "no reason recorded", []).append(name)
    return known, [f"{' and '.join(unknown)}: {reason}." for reason, unknown in names.items()]


def _efficiency(known: Sequence[Metric]) -> None:
    st.subheader("Efficiency", anchor="efficiency")
    show_metrics(*known)


@st.fragment
def _kernels(view: RunView, table: KernelTable, theme: Theme) -> None:
    on_device = table.unit == "kernel"
    st.subheader("Kernels" if on_device else "Operators", anchor="kernels")
    shown = min(DASHBOARD.most_kernel_bars, len(table.rows))
    busy = duration(table.busy_ns / max(1, table.rank_steps))
    subject = "The device" if on_device else "The host"
    time = "time" if on_device else "self time"
    st.markdown(
        plain(
            f"{subject} is busy for {busy} per rank and step (overlaps count twice), in "
            f"{counted(table.rank_steps, 'traced step')} over all ranks. Top {shown} of "
            f"{counted(len(table.rows), table.unit)} by {time}:"
        )
    )
    alt = f"Top {counted(shown, table.unit)} by time, in milliseconds a step"
    _opening(view, lambda: kernels(table, theme), "kernels", alt, [row.name for row in table.rows])
    table_of_kernels = kernel_table(table, per_whole(view.result.attribution), DASHBOARD.most_kernel_rows)
    picked = show_rows(
        table_of_kernels,
        key="kernel-table",
        alt=f"Every {table.unit} with its kind, time and what limits it",
        on_select="rerun",
    )
    _named(view, [table.rows[row].name for row in picked.selection.rows])
    left_out = table_of_kernels.left_out
    more = f"Not shown: {left_out:,} with less time." if left_out else ""
    st.caption(plain(" ".join(filter(None, (more, *table_of_kernels.notes)))))


@st.fragment
def _modules(view: RunView, tables: tuple[ModuleTable, ...], theme: Theme) -> None:
    st.subheader("Modules", anchor="modules")
    if not tables:
        nothing(
            "No module is named in the traces.",
            "Record stacks (`diag run --trace-stacks`), or put `record_function(name)` around modules.",
        )
        return
    by_source = {table.source: table for table in tables}
    source = tables[0].source
    if len(tables) > 1:
        source = choose("As named by", list(by_source), param="modules", default=source, within=view.run["path"])
    table = by_source[source]
    if not table.rows:
        nothing("No module ran in the counted steps.")
        return
    alt = "Milliseconds a step in each module, forward and backward"
    _opening(view, lambda: modules(table, theme), "modules", alt, [row.name for row in _longest(table)])
    shown = module_table(table, view.result.breakdowns.kernels.unit, DASHBOARD.most_kernel_rows)
    picked = show_rows(shown, key="module-table", alt="Time of each module", on_select="rerun")
    _named(view, [table.rows[row].name for row in picked.selection.rows])
    what = f"Named by {source}; forward and backward include submodules, nothing includes communication."
    st.caption(plain(" ".join((what, *shown.notes))))


def _opening(view: RunView, figure: Callable[[], go.Figure], key: str, alt: str, names: Sequence[str]) -> None:
    """Draws bars of which a click opens the timeline with the events of that name. ``names``: of the bars, from the top
    down."""
    turn = st.session_state.setdefault(_TURN, 0)
    if (made := made_in_view(figure, key)) is None:
        return
    made.update_traces(selected={"marker": {"opacity": 1}}, unselected={"marker": {"opacity": 1}})
    chosen = plot(made, f"{key} {turn}", alt, on_select="rerun", selection_mode="points")
    if chosen.selection.points and (place := _traced(view)) is not None:
        st.session_state[_TURN] = turn + 1
        rank, step = place
        go_to_page("timeline", rank=rank, step=step, **_finding(names[int(chosen.selection.points[0]["y"])]))


def _finding(name: str) -> dict[str, str]:
    """The search for it on the timeline: events of the root name no module."""
    return {} if name == ROOT else {"find": name}


def _traced(view: RunView) -> tuple[int, int] | None:
    """A rank and a step of it that was traced, of the page's rank if there is one."""
    ranks = timeline_of(view.result).ranks
    steps = view.result.attribution.traced.numbers
    traced = {rank: [step for step in lanes.traced if step in steps] for rank, lanes in ranks.items()}
    rank = next((rank for rank in (view.page.rank, *traced) if traced.get(rank)), None)
    return None if rank is None else (rank, traced[rank][0])


def _named(view: RunView, names: Sequence[str]) -> None:
    """Draws a timeline link for each name picked in a table, if any rank has a traced step."""
    if (place := _traced(view)) is None:
        return
    for name in names:
        show_on_timeline(*place, name=_finding(name).get("find", ""))
    if not names:
        st.caption("A click on a bar shows it on the timeline, a tick gives a link; a click on a heading sorts.")


def _path(table: PathTable, theme: Theme) -> None:
    st.subheader("Critical path by module", anchor="path")
    if not table.rows:
        nothing("There are no counted steps, so there is no critical path.")
        return
    draw(lambda: path(table, theme), "path", "Milliseconds a step of the critical path by rank, kind and module")
    basis = "traced" if table.traced else "counted, of which none is traced: no module is known"
    inside = share(table.in_modules_ns / table.total_ns) if table.total_ns else "0%"
    where = f" {inside} of the path is in a module." if table.traced else ""
    shown = min(DASHBOARD.most_kernel_bars, len(table.rows))
    st.caption(
        plain(
            f"The critical path of {counted(len(table.steps), 'step')} ({basis})"
            f"{f': the {shown} largest of {len(table.rows):,} parts' if shown < len(table.rows) else ''}.{where}"
        )
    )


_PART_OF = {
    Kind.COMPUTE: Part.COMPUTE,
    Kind.COMM: Part.TRANSFER,
    Kind.COPY: Part.COPY,
    Kind.DATA: Part.DATA,
    Kind.CHECKPOINT: Part.CHECKPOINT,
}
_NAMES = {Kind.COMM: "communication", Kind.DATA: "data wait"}


def drawn_kind(row: KernelStat) -> KernelKind | Category:
    """The kind of work in whose colour a kernel or operator is drawn, as on the timeline: a copy from or to the host is
    none within one memory."""
    return Category.COPY if between_memories(row) else row.kind


def kernels(table: KernelTable, theme: Theme) -> go.Figure:
    """Milliseconds per rank and step of the longest kernels (or operators), coloured by kind."""
    rows = table.rows[: DASHBOARD.most_kernel_bars]
    steps = max(1, table.rank_steps)
    figure = go.Figure()
    kinds = [drawn_kind(row) for row in rows]
    for kind in dict.fromkeys(kinds):
        bars = [(at, row) for at, row in enumerate(rows) if kinds[at] == kind]
        figure.add_bar(
            x=[row.total_ns / steps / MS for _, row in bars],
            y=[at for at, _ in bars],
            orientation="h",
            name=work_words(kind),
            marker={"color": colour_of(kind, theme), "line": {"width": 0}},
            customdata=[
                [label(row.name), label(row.operator) or "no operator known", share(row.share), f"{row.count:,}"]
                for _, row in bars
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{x:,.3f} ms, %{customdata[2]} of the busy time, "
            "%{customdata[3]} calls<extra></extra>",
        )
    return _bars(
        figure,
        [_kernel_name(row) for row in rows],
        [row.total_ns / steps for row in rows],
        theme,
        [work_words(kind) for kind in kinds],
    )


def _longest(table: ModuleTable) -> list[ModuleStat]:
    return sorted(table.rows, key=lambda row: -(row.forward_ns + row.backward_ns))[: DASHBOARD.most_kernel_bars]


def modules(table: ModuleTable, theme: Theme) -> go.Figure:
    """Milliseconds per rank and step in the longest modules, submodules included."""
    rows = _longest(table)
    steps = max(1, table.rank_steps)
    figure = go.Figure()
    for name, values, colour in (
        ("forward", [row.forward_ns for row in rows], theme.work[FORWARD]),
        ("backward", [row.backward_ns - row.recompute_ns for row in rows], theme.work[BACKWARD]),
        ("recomputed in the backward", [row.recompute_ns for row in rows], theme.series[3]),
    ):
        if not any(values):
            continue
        figure.add_bar(
            x=[ns / steps / MS for ns in values],
            y=list(range(len(rows))),
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=[label(row.name) for row in rows],
            hovertemplate=f"%{{customdata}}<br>{name} %{{x:,.3f}} ms<extra></extra>",
        )
    totals = [(row.forward_ns + row.backward_ns) / steps for row in rows]
    return _bars(figure, [label(row.name, DASHBOARD.kernel_name_chars) for row in rows], totals, theme)


def path(table: PathTable, theme: Theme) -> go.Figure:
    """Milliseconds per step of the critical path, for which all ranks wait, by rank, kind of time and module."""
    rows = table.rows[: DASHBOARD.most_kernel_bars]
    figure = go.Figure()
    for part in dict.fromkeys(_part(row) for row in rows):
        bars = [(at, row) for at, row in enumerate(rows) if _part(row) == part]
        figure.add_bar(
            x=[row.ns_per_step / MS for _, row in bars],
            y=[at for at, _ in bars],
            orientation="h",
            name=part.value,
            marker={"color": theme.part[part], "line": {"width": 0}},
            customdata=[[label(_path_name(row)), share(row.share)] for _, row in bars],
            hovertemplate="%{customdata[0]}<br>%{x:,.3f} ms a step, %{customdata[1]} of it<extra></extra>",
        )
    return _bars(
        figure,
        [label(_path_name(row), DASHBOARD.kernel_name_chars + 14) for row in rows],
        [row.ns_per_step for row in rows],
        theme,
    )


def _bars(
    figure: go.Figure,
    names: Sequence[str],
    totals_ns: Sequence[float],
    theme: Theme,
    kinds: Sequence[str] = (),
) -> go.Figure:
    """Name and value stand above each bar: names of kernels are long, and beside the bars they would leave no room for
    them on a phone. ``kinds``: what the colour of each bar means, which stands there too, instead of a legend."""
    said = [f' <span style="color:{theme.soft}">{kind}</span>' for kind in kinds] or [""] * len(names)
    for at, (name, total, kind) in enumerate(zip(names, totals_ns, said, strict=True)):
        name_above(figure, at, name, number(total / MS), kind)
    return finish(
        figure,
        theme,
        rows_height(len(names), least=190, each=DASHBOARD.named_bar_px, most=DASHBOARD.named_bar_px * len(names) + 90),
        barmode="stack",
        showlegend=not kinds,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max([*totals_ns, 1.0]) / MS * 1.02]},
        **named_bars(len(names)),
    )


def _kernel_name(row: KernelStat) -> str:
    return label(short_name(row.name).removeprefix("aten::"), DASHBOARD.kernel_name_chars)


def _kind(row: PathStat) -> tuple[Kind, Detail]:
    kind, _, detail = row.category.upper().partition("/")
    return Kind[kind], Detail[detail] if detail else Detail.NONE


def _part(row: PathStat) -> Part:
    """Idle time has the colours of the overview: the host's is not that of work which waits in a stream."""
    kind, detail = _kind(row)
    if kind == Kind.IDLE and detail in HOST_DETAILS:
        return Part.HOST
    if kind == Kind.IDLE and detail == Detail.DEPENDENCY:
        return Part.QUEUED
    return _PART_OF.get(kind, Part.IDLE)


def _path_name(row: PathStat) -> str:
    """``rank 1, backward, blocks.0``, ``rank 0, idle: not launched``."""
    kind, detail = _kind(row)
    name, more = _NAMES.get(kind, kind.name.lower()), DETAILS[detail]
    if kind == Kind.COMPUTE and more:
        name = more
    elif more:
        name += f" {more}" if kind == Kind.COPY else f": {more}"
    return ", ".join(filter(None, (f"rank {row.rank}", name, row.module)))
