"""Collectives by operation, group and size: bandwidth and fitted costs, waiting against transfer, last arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import choose
from diag.app.figures import MS, finish, rows_height, translucent
from diag.app.markup import label, plain
from diag.app.picture import waited_for
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, pale_on, theme_of
from diag.app.views.common import beyond_summaries, draw, head, moment_link, nothing, show_grid, show_rows, show_table
from diag.model.breakdown import CollectiveStat, CollectiveTable, CostCurve, ExposedCall
from diag.show.breakdowns import EXCHANGES_TITLE, collective_table, exchange_table, longest_calls
from diag.timeline import timeline_of
from diag.words.formatting import counted, listing, number, share, size
from diag.words.wording import group_name, operation

_CHOICE = "collective"
_TABLE = "collectives"


def show(view: RunView) -> None:
    if beyond_summaries("Collectives", view):
        return
    table = view.result.breakdowns.collectives
    head("Collectives", view, "Waiting, transfer and bandwidth of each collective")
    if not table.rows:
        nothing(
            "No collective was recorded in the counted steps.",
            "`diag run` records all of them; traces contain them as communication kernels or `gloo:` ranges.",
        )
        return
    theme = theme_of(st.context.theme.type)
    _waits(view, table, theme)
    _rows(view, table, theme)
    _longest(view, table)
    _bandwidth(view, table, theme)
    _exchanges(table)
    for note in view.result.breakdowns.notes:
        if "collective" in note:
            st.caption(plain(f"{note[:1].upper()}{note[1:]}."))


def _bandwidth(view: RunView, table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Bandwidth by size", anchor="bandwidth")
    if not any(row.busbw_gb_s and row.bytes_mean for row in table.rows):
        noun = "group" if any(row.bytes_mean for row in table.rows) else "collective"
        nothing(
            f"{noun.capitalize()} sizes are not known, so bandwidth cannot be computed.",
            "NCCL traces contain both since PyTorch 2.2, gloo traces with `record_shapes=True`.",
        )
        return
    curves = view.result.cost_curves
    draw(
        lambda: bandwidth(table.rows, curves, theme),
        "bandwidth",
        "Bus bandwidth of each kind of collective by size, with the fitted costs",
    )
    notes = []
    if any(row.bandwidth_is_bound for row in table.rows):
        notes.append(
            "Open markers: lower bounds, from the shortest duration over the ranks, because the clocks are not aligned "
            "finely enough."
        )
    if any(len(curve.bus_gb_s) > 1 for curve in curves):
        notes.append(
            "Markers: means of all calls. Lines: the fitted costs that predictions use, through the medians, with "
            "their interval; dotted: the fit also uses other operations, because too few sizes were measured."
        )
    elif not curves and not view.result.baseline_refusal:
        notes.append("No cost curve: no transfer of a known size was measured.")
    elif view.result.baseline_refusal:
        notes.append(f"No cost curve: {view.result.baseline_refusal}.")
    st.caption(plain(" ".join(notes)))


def _waits(view: RunView, table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Waiting and transfer", anchor="waiting")
    if view.slow_links:
        st.info(plain(slow_link_text(view.slow_links)), icon=":material/lan:")
    if view.waiting_known:
        show_grid(view, "collectives-grid", *waited_for(view.result), view.culprits)
    rows = sorted(table.rows, key=lambda row: -row.duration_mean_ns * row.count)[: DASHBOARD.most_collective_bars]
    draw(
        lambda: waits(rows, int(view.counted.sum()), theme, view.slow_links),
        "waits",
        "Milliseconds a step of waiting and of transfer of the most expensive collectives",
    )
    caption = (
        f"The {len(rows)} most expensive of {counted(len(table.rows), 'kind')}."
        if len(rows) < len(table.rows)
        else "The most expensive first."
    )
    caption += " Time of all calls of a step, overlapped or not."
    if any(row.transfer_mean_ns is not None for row in rows):
        caption += " Means over all ranks."
    if any(row.transfer_mean_ns is None for row in rows):
        caption += " Hatched: upper bound; the clocks are not aligned finely enough to separate waiting from transfer."
    st.caption(plain(caption))


@st.fragment
def _rows(view: RunView, table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Every kind of collective", anchor="table")
    names = [str(at) for at in range(len(table.rows))]
    groups = len({row.group for row in table.rows})
    several = len({row.axis for row in table.rows}) > 1
    shown = collective_table(table)
    show_rows(
        shown,
        key=_TABLE,
        alt="Waits, transfers and bandwidths of each kind of collective",
        at_first=("op", "bounds", "last_rank"),
        on_select=_chosen_in_table,
    )
    st.caption(plain(" ".join((_PER, *shown.notes))))
    chosen = choose(
        "Collective",
        names,
        param=_CHOICE,
        default="0",
        within=view.run["path"],
        format_func=lambda name: _name(table.rows[int(name)], groups, several),
        help="Or click a row above.",
    )
    _ranks(table.rows[int(chosen)], view.slow_links, theme)


def _longest(view: RunView, table: CollectiveTable) -> None:
    """The longest calls by exposed time, each with a link to the moment on the timeline."""
    if not table.longest:
        return
    st.subheader("Longest exposed calls", anchor="longest")
    moved = {rank: lanes.moved_ns for rank, lanes in timeline_of(view.result).ranks.items()}
    show_table(
        longest_calls(table.longest),
        first=("Timeline", [_on_timeline(call, moved[call.rank]) for call in table.longest]),
    )
    st.caption("Over all ranks and counted steps. Exposed: not overlapped with compute, waiting for a rank included.")


def _on_timeline(call: ExposedCall, moved_ns: int) -> str:
    """A link to the call on the timeline. ``moved_ns``: offset from the call's clock to the timeline's."""
    return moment_link(call.rank, call.step, call.start_ns + moved_ns, call.end_ns + moved_ns)


def _exchanges(table: CollectiveTable) -> None:
    """Draws what each rank sends and receives in all-to-alls, if any were recorded."""
    exchanged = exchange_table(table.all_to_alls, most=DASHBOARD.most_exchanges)
    if not exchanged.rows:
        return
    st.subheader(EXCHANGES_TITLE, anchor="all-to-alls")
    show_table(exchanged)
    left_out = f"{exchanged.left_out:,} more rows in `run.all_to_alls`." if exchanged.left_out else ""
    st.caption(plain(" ".join(filter(None, (*exchanged.notes, left_out)))))


def _chosen_in_table() -> None:
    rows = st.session_state[_TABLE].selection.rows
    if rows:
        st.session_state[_CHOICE] = str(rows[0])


def _ranks(row: CollectiveStat, slow_links: Sequence[int], theme: Theme) -> None:
    """Draws how long the others waited for each rank in the collectives of one row."""
    facts = [
        f"{counted(row.count, 'call')}, {row.matched:,} matched across ranks with aligned clocks",
        f"bus bandwidth {share(row.efficiency)} of the group's best" if row.efficiency is not None else "",
        "matched by the order of calls, not by sequence numbers" if row.inferred else "",
    ]
    st.markdown(plain("; ".join(fact for fact in facts if fact) + "."))
    if not row.waited_for:
        nothing(
            "It is not known which rank the others waited for.",
            "That needs several ranks whose clocks are aligned more finely than they wait.",
        )
        return
    if row.last_rank is not None and row.last_rank in slow_links:
        st.markdown(plain(slow_link_text([row.last_rank])))
    draw(
        lambda: last(row, theme, slow_links),
        "last",
        "How long the others waited for each rank in the chosen collective",
    )


def slow_link_text(ranks: Sequence[int]) -> str:
    """Why ranks with a slow link arrive last, as the verdict has it."""
    one = len(ranks) == 1
    return (
        f"{listing(ranks).capitalize()} {'gets its' if one else 'get their'} results later than the others, so "
        f"{'it arrives' if one else 'they arrive'} late at the next collective as well. The others' waiting is for "
        f"{'its link' if one else 'their links'}, not for {'its' if one else 'their'} computation."
    )


def _name(row: CollectiveStat, groups: int, several: bool) -> str:
    of = size(row.bytes_mean) if row.bytes_mean else "of unknown size"
    group = group_name(row, several)[:24] if groups > 1 else ""
    facts = (f"{operation(row.op)} {of}", row.dtype, f"group {group}" if group else "")
    return ", ".join(fact for fact in facts if fact)


_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon")
_PER = (
    "Times are per call, exposed and overlapped time is per rank and step; calls are all of the counted steps. Time is "
    "waiting, transfer, and, where the result reaches a rank later, the rest. By exposed time; a click on a heading "
    "sorts, a tick shows the ranks below."
)
_BAND = 0.16  # opacity of a curve's interval
_LATE = "transfer, after the first rank has its result"


def series_name(op: str, group: str, groups: int) -> str:
    """The operation, with its group if there are several. A group's name may be a hash or list all of its ranks."""
    return operation(op) if groups == 1 else f"{operation(op)}, group {group.split('@')[0][:12]}"


def bandwidth(rows: Sequence[CollectiveStat], curves: Sequence[CostCurve], theme: Theme) -> go.Figure:
    """Bus bandwidth in GB/s by size of the full tensor in bytes, both logarithmic: a marker per row (open: a lower
    bound), a line per fitted curve with its interval."""
    known = [row for row in rows if row.busbw_gb_s and row.bytes_mean]
    drawn = [curve for curve in curves if len(curve.bus_gb_s) > 1]
    keys = list(dict.fromkeys([(row.op, row.group) for row in known] + [(c.op, c.group) for c in drawn]))
    groups = len({group for _, group in keys})
    figure = go.Figure()
    for at, (op, group) in enumerate(keys):
        colour, symbol = theme.series[at % len(theme.series)], _SYMBOLS[at % len(_SYMBOLS)]
        name = label(series_name(op, group, groups), 60)
        for curve in drawn:
            if (curve.op, curve.group) == (op, group):
                _curve(figure, curve, name, colour)
        series_rows = [row for row in known if (row.op, row.group) == (op, group)]
        if series_rows:
            _points(figure, series_rows, name, colour, symbol)
    axis = {"type": "log", "gridcolor": theme.grid, "dtick": 1}
    return finish(
        figure,
        theme,
        440,
        xaxis={**axis, "title": {"text": "size of the full tensor, bytes"}, "exponentformat": "SI"},
        yaxis={**axis, "title": {"text": "bus bandwidth, GB/s"}, "exponentformat": "none"},
    )


def _points(figure: go.Figure, rows: Sequence[CollectiveStat], name: str, colour: str, symbol: str) -> None:
    figure.add_scatter(
        x=[row.bytes_mean for row in rows],
        y=[row.busbw_gb_s for row in rows],
        mode="markers",
        name=name,
        legendgroup=name,
        marker={
            "color": colour,
            "size": 11,
            "symbol": [f"{symbol}-open" if row.bandwidth_is_bound else symbol for row in rows],
            "line": {"width": 2, "color": colour},
        },
        customdata=[
            [
                f"{'≥ ' if row.bandwidth_is_bound else ''}{number(row.busbw_gb_s or 0.0)} GB/s",
                size(row.bytes_mean),
                f"{row.count:,} calls, {label(row.dtype, 30) or 'type unknown'}",
            ]
            for row in rows
        ],
        hovertemplate="%{customdata[1]}: %{customdata[0]}<br>%{customdata[2]}",
    )


def _curve(figure: go.Figure, curve: CostCurve, name: str, colour: str) -> None:
    sizes = [row[0] for row in curve.line]
    slow, likely, fast = (list(column) for column in zip(*curve.bus_gb_s, strict=True))
    common = {"legendgroup": name, "showlegend": False, "mode": "lines", "hoverinfo": "skip"}
    figure.add_scatter(x=sizes, y=slow, line={"width": 0}, name=f"{name}, slow", **common)
    figure.add_scatter(
        x=sizes,
        y=fast,
        line={"width": 0},
        fill="tonexty",
        fillcolor=translucent(colour, _BAND),
        name=f"{name}, fast",
        **common,
    )
    dash = "dot" if curve.borrowed else "solid"
    figure.add_scatter(
        x=sizes, y=likely, line={"color": colour, "width": 2, "dash": dash}, name=f"{name}, fit", **common
    )


def waits(rows: Sequence[CollectiveStat], steps: int, theme: Theme, slow_links: Sequence[int] = ()) -> go.Figure:
    """Milliseconds a step, one bar per row, which is as long as its calls of a step take together: waiting for the last
    rank, then the transfer until the first rank has its result, and until all have it. ``steps``: how many the rows are
    of. Hatched: only an upper bound of the transfer is known. ``slow_links``: ranks that are waited for because of
    their links, in the colour of transfer."""
    names = [
        label(f"{operation(row.op)} {size(row.bytes_mean) if row.bytes_mean else 'of unknown size'}", 60)
        for row in rows
    ]
    places = list(range(len(rows)))
    figure = go.Figure()
    bound = [row.transfer_mean_ns is None for row in rows]
    calls = [row.count / max(1, steps) for row in rows]
    moved = [row.transfer_bound_ns if row.transfer_mean_ns is None else row.transfer_mean_ns for row in rows]
    wait = [(row.wait_mean_ns or 0) * each for row, each in zip(rows, calls, strict=True)]
    transfer = [ns * each for ns, each in zip(moved, calls, strict=True)]
    late = [
        0.0 if row.transfer_mean_ns is None else max(0.0, row.duration_mean_ns * each - waits_ns - moves_ns)
        for row, each, waits_ns, moves_ns in zip(rows, calls, wait, transfer, strict=True)
    ]
    totals = [sum(parts) for parts in zip(wait, transfer, late, strict=True)]
    for_link = [row.last_rank in slow_links for row in rows]
    pale = pale_on(theme.part[Part.TRANSFER], theme)
    plain_bars, hatched = [""] * len(rows), ["/" if b else "" for b in bound]
    of_ranks = [0 if link else ns for ns, link in zip(wait, for_link, strict=True)]
    of_links = [ns if link else 0 for ns, link in zip(wait, for_link, strict=True)]
    whose = listing([rank for rank in slow_links if any(row.last_rank == rank for row in rows)])
    for name, colour, values, hatches in (
        (Part.WAITING.value, theme.part[Part.WAITING], of_ranks, plain_bars),
        (f"waiting for the link of {whose}", pale, of_links, plain_bars),
        (Part.TRANSFER.value, theme.part[Part.TRANSFER], transfer, hatched),
        (_LATE, pale_on(theme.part[Part.TRANSFER], theme, 0.3), late, plain_bars),
    ):
        if not any(values) or sum(values) < DASHBOARD.least_legend_share * sum(totals):
            continue
        signs = ["≤ " if hatch else "" for hatch in hatches]
        figure.add_bar(
            x=[ns / MS for ns in values],
            y=places,
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": hatches, "size": 6}},
            customdata=[
                [f"{of_row}{_calls(each)}", sign] for of_row, sign, each in zip(names, signs, calls, strict=True)
            ],
            hovertemplate=f"%{{customdata[0]}}<br>{name} %{{customdata[1]}}%{{x:,.3f}} ms<extra></extra>",
        )
    for at, (total, sign) in enumerate(zip(totals, bound, strict=True)):
        figure.add_annotation(
            x=total / MS,
            y=at,
            text=f"{'≤ ' if sign else ''}{number(total / MS)} ms",
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 12},
        )
    most = max(totals, default=0)
    return finish(
        figure,
        theme,
        rows_height(len(rows), least=180, each=30),
        barmode="stack",
        bargap=0.3,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max(most / MS * 1.3, 1e-6)]},
        yaxis={"autorange": "reversed", "tickvals": places, "ticktext": names, "title": None},
    )


def _calls(of_a_step: float) -> str:
    return f", {of_a_step:,.1f}".removesuffix(".0") + " calls a step" if of_a_step > 1 else ""


def last(row: CollectiveStat, theme: Theme, slow_links: Sequence[int] = (), most: int = 24) -> go.Figure:
    """The mean wait of a call in milliseconds, by the rank that was waited for. By time, not by how often a rank was
    last: somebody always is."""
    waited, total = row.waited_for[:most], sum(ns for _, ns in row.waited_for)
    places = list(range(len(waited)))
    ms = [(row.wait_mean_ns or 0) * ns / total / MS for _, ns in waited]
    figure = go.Figure(
        go.Bar(
            x=ms,
            y=places,
            orientation="h",
            marker={
                "color": [
                    pale_on(theme.part[Part.TRANSFER], theme) if rank in slow_links else theme.part[Part.WAITING]
                    for rank, _ in waited
                ]
            },
            text=[f"{number(each)} ms ({share(ns / total)})" for each, (_, ns) in zip(ms, waited, strict=True)],
            textposition="outside",
            cliponaxis=False,
            customdata=[[rank, share(ns / total)] for rank, ns in waited],
            hovertemplate="rank %{customdata[0]}: %{x:,.3f} ms a call, %{customdata[1]} of all waiting<extra></extra>",
        )
    )
    return finish(
        figure,
        theme,
        rows_height(len(waited), least=150),
        bargap=0.4,
        xaxis={
            "title": {"text": "milliseconds of a call, waiting for the rank"},
            "range": [0, max(ms, default=0.0) * 1.7 or 1.0],
        },
        yaxis={
            "autorange": "reversed",
            "tickvals": places,
            "ticktext": [f"rank {rank}{' (link)' if rank in slow_links else ''}" for rank, _ in waited],
            "title": None,
        },
    )
