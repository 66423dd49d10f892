"""Collectives by operation, group and size: bandwidth and fitted costs, waiting against transfer, who was last."""

from __future__ import annotations

from typing import Any

import streamlit as st

from diag.app.address import choose
from diag.app.figures import collectives as figures
from diag.app.figures.collectives import operation
from diag.app.run_view import RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import EMPTY, beyond_summaries, draw, head, known_columns, nothing, shown_rows
from diag.model.breakdown import CollectiveStat, CollectiveTable
from diag.words.wording import group_name

from ..facts import counted, duration, plain, share, size

_MOST_BARS = 12
_CHOICE = "collective"
_TABLE = "collectives"


def show(view: RunView) -> None:
    if beyond_summaries("Collectives", view):
        return
    table = view.result.breakdowns.collectives
    head("Collectives", view, "What collectives take, means of a call")
    if not table.rows:
        nothing(
            "No collective was recorded in the counted steps.",
            "`diag run` records them all; of traces, those with communication kernels or `gloo:` ranges hold them.",
        )
        return
    theme = theme_of(st.context.theme.type)
    _bandwidth(view, table, theme)
    _waits(table, theme)
    _rows(view, table, theme)
    for note in view.result.breakdowns.notes:
        if "collective" in note:
            st.caption(plain(f"{note[:1].upper()}{note[1:]}."))


def _bandwidth(view: RunView, table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Bandwidth by size", anchor="bandwidth")
    if not any(row.busbw_gb_s and row.bytes_mean for row in table.rows):
        what = "group" if any(row.bytes_mean for row in table.rows) else "collective"
        nothing(
            f"The size of no {what} is known, so neither is a bandwidth.",
            "Traces of NCCL hold both from PyTorch 2.2 on, those of gloo with `record_shapes=True`.",
        )
        return
    curves = view.result.cost_curves
    draw(
        figures.bandwidth(table.rows, curves, theme),
        "bandwidth",
        "Bus bandwidth of each kind of collective by size, with the fitted costs",
    )
    said = []
    if any(row.bandwidth_is_bound for row in table.rows):
        said.append(
            "Open markers: at least this much, from the shortest duration over the ranks, without common clocks."
        )
    if any(len(curve.bus_gb_s) > 1 for curve in curves):
        said.append(
            "Markers: means of all calls. Lines: the costs that predictions rest on, through the medians, with their "
            "interval; dotted where they lean on other operations, because too few sizes were measured."
        )
    elif not curves and not view.result.baseline_refusal:
        said.append("No cost curve: no transfer of a known size was measured.")
    elif view.result.baseline_refusal:
        said.append(f"No cost curve: {view.result.baseline_refusal}.")
    st.caption(plain(" ".join(said)))


def _waits(table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Waiting and transfer", anchor="waiting")
    rows = sorted(table.rows, key=lambda row: -row.duration_mean_ns * row.count)[:_MOST_BARS]
    draw(
        figures.waits(rows, theme), "waits", "Milliseconds of waiting and of transfer of the most expensive collectives"
    )
    said = (
        f"The {len(rows)} most expensive of {counted(len(table.rows), 'kind')}, by time of all calls."
        if len(rows) < len(table.rows)
        else "Those whose calls take most come first."
    )
    if any(row.transfer_mean_ns is None for row in rows):
        said += " Hatched: at most this long; how much of it is waiting needs the ranks' clocks aligned."
    st.caption(plain(said))


def _rows(view: RunView, table: CollectiveTable, theme: Theme) -> None:
    st.subheader("Every kind of collective", anchor="table")
    names = [str(at) for at in range(len(table.rows))]
    groups = len({row.group for row in table.rows})
    several = len({row.axis for row in table.rows}) > 1
    rows = [_cells(row, table.rank_steps, groups, several) for row in table.rows]
    st.dataframe(
        shown_rows(rows),
        key=_TABLE,
        column_order=_order(rows),
        on_select=_chosen_in_table,
        selection_mode="single-row",
        hide_index=True,
        placeholder=EMPTY,
        column_config=_columns(),
        alt="Waits, transfers and bandwidths of each kind of collective",
    )
    said = "Those that most time is exposed of come first."
    rest = table.rest_exposed_ns / max(1, table.rank_steps)
    if rest >= 1000:
        said += f" Exposed beside these calls, in a step before or in a wait: {duration(rest)} of a rank and step."
    st.caption(plain(said))
    chosen = choose(
        "Collective",
        names,
        param=_CHOICE,
        default="0",
        within=view.run["path"],
        format_func=lambda name: _name(table.rows[int(name)], groups, several),
        help="Also by a click on a row above.",
    )
    _ranks(table.rows[int(chosen)], theme)


def _chosen_in_table() -> None:
    rows = st.session_state[_TABLE].selection.rows
    if rows:
        st.session_state[_CHOICE] = str(rows[0])


def _ranks(row: CollectiveStat, theme: Theme) -> None:
    """Who came last to the collectives of one row."""
    facts = [
        f"{counted(row.count, 'call')}, {row.matched:,} of them seen on several ranks of one clock",
        f"bus bandwidth {share(row.efficiency)} of the group's best" if row.efficiency is not None else "",
        "matched by the order of calls, not by sequence numbers" if row.inferred else "",
    ]
    st.markdown(plain("; ".join(fact for fact in facts if fact) + "."))
    if not row.last_counts:
        nothing(
            "Who arrived last is not known: it takes several ranks, their clocks aligned more finely than they wait."
        )
        return
    draw(figures.last(row, theme), "last", "How often each rank arrived last in the chosen collective")


def _name(row: CollectiveStat, groups: int, several: bool) -> str:
    of = size(row.bytes_mean) if row.bytes_mean else "of unknown size"
    group = group_name(row, several)[:24] if groups > 1 else ""
    facts = (f"{operation(row.op)} {of}", row.dtype, f"group {group}" if group else "")
    return ", ".join(fact for fact in facts if fact)


def _cells(row: CollectiveStat, rank_steps: int, groups: int, several: bool) -> dict[str, Any]:
    bounds = [
        "transfer ≤" if row.transfer_mean_ns is None else "",
        "bandwidth ≥" if row.bandwidth_is_bound else "",
    ]
    steps = max(1, rank_steps)
    return {
        "Operation": operation(row.op),
        "Group": group_name(row, several) or None if groups > 1 else None,
        "Ranks": row.group_size,
        "Size, kB": round(row.bytes_mean / 1e3, 3) if row.bytes_low else None,
        "Type": row.dtype or None,
        "Calls": row.count,
        "Exposed, ms": row.exposed_ns / steps / 1e6,
        "Hidden, ms": row.hidden_ns / steps / 1e6,
        "Takes, ms": row.duration_mean_ns / 1e6,
        "Waits, ms": _ms(row.wait_mean_ns),
        "At most, ms": _ms(row.wait_max_ns),
        "Last rank": None if row.last_rank is None else f"{row.last_rank} ({share(row.last_share or 0.0)})",
        "Transfer, ms": _ms(row.transfer_bound_ns if row.transfer_mean_ns is None else row.transfer_mean_ns),
        "Bus, GB/s": row.busbw_gb_s,
        "Of best": row.efficiency,
        "Bounds": ", ".join(bound for bound in bounds if bound) or None,
    }


def _order(rows: list[dict[str, Any]]) -> list[str]:
    """Bounds are said beside the operation; what no row has is left out."""
    return sorted(known_columns(rows), key=lambda name: (name != "Operation", name != "Bounds"))


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6


def _columns() -> dict[str, Any]:
    number = st.column_config.NumberColumn
    return {
        "Operation": st.column_config.TextColumn(pinned=True),
        "Ranks": number(help="Of the group."),
        "Size, kB": number(format="localized", help="Of the full tensor; the mean of its class of sizes."),
        "Calls": number(format="localized", help="In the counted steps."),
        "Takes, ms": number(format="%.3f", help="Mean of all ranks and calls, waiting included."),
        "Waits, ms": number(format="%.3f", help="For the last rank to arrive: mean of ranks and calls."),
        "At most, ms": number(format="%.3f", help="The longest wait of any rank."),
        "Last rank": st.column_config.TextColumn(help="That arrived last most often, and in which part of the calls."),
        "Transfer, ms": number(format="%.3f", help="From the last arrival to the first rank's end."),
        "Bus, GB/s": number(format="%.3g", help="Algorithm bandwidth times the operation's factor (nccl-tests)."),
        "Of best": number(format="percent", help="Of the best bus bandwidth that the group showed at large sizes."),
        "Bounds": st.column_config.TextColumn(
            help="Values that are bounds: from the shortest duration over the ranks, which needs no common clock."
        ),
        "Exposed, ms": number(format="%.3f", help="Of a rank and step: nothing hid it."),
        "Hidden, ms": number(format="%.3f", help="Of a rank and step: beside computation."),
    }
