"""Parts of the memory page that show memory over time: curves of traces, and snapshots of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from diag.api import open_memory_snapshots
from diag.app.address import choose
from diag.app.curves import memory_figure, snapshot_figure
from diag.app.markup import plain, prose
from diag.app.memory_picture import of_account, of_curve
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import component, draw, in_view, nothing, show_metrics, show_rows
from diag.show.breakdowns import allocation_table, larger_there
from diag.show.memory import (
    REQUESTED,
    comparison_sentence,
    curve_sentence,
    failed_sentence,
    missing_in,
    name_of,
    oom_sentence,
    peak_sentence,
    state_sentence,
    who,
)
from diag.show.page import Metric
from diag.tables.memory_curves import MemoryCurve, Share, fullest
from diag.tables.snapshots import SnapshotAccount, SnapshotTable
from diag.words.formatting import share, size

# -- traces ------------------------------------------------------------------------------------------------------------


@st.fragment
def show_curves(view: RunView, theme: Theme) -> None:
    """Draws one rank's device memory over time, its peak and the allocations at the peak; nothing without samples."""
    curves = view.result.memory_curves
    ranks = sorted({curve.rank for curve in curves})
    if not ranks:
        return
    st.subheader("Over time", anchor="over-time")
    highest = max(curves, key=lambda curve: curve.peak_allocated).rank
    rank = highest
    if len(ranks) > 1:
        names = [str(rank) for rank in ranks]
        rank = int(choose("Rank", names, param="curve", default=str(highest), within=view.run["path"]))
    curve = fullest(curves, rank)
    assert curve is not None
    st.markdown(plain(curve_sentence(curve)))
    capacity = view.memory.capacity if view.memory is not None else None
    data = of_curve(curve, capacity, theme)
    if data is not None:
        _picture(data, "memory-curve")
    else:
        draw(memory_figure(curve, capacity, theme), "memory-curve", f"Device memory of rank {rank} over time")
    others = sum(window.rank == rank for window in curves) - 1
    if others:
        st.caption(f"The window with the highest peak of this rank. Other recorded windows or devices: {others}.")
    _show_live(curve)


@st.fragment
def _picture(data: dict[str, Any], key: str) -> None:
    if in_view(f"{key}-picture", DASHBOARD.memory_picture_px):
        component("memory")(key=f"{key}-picture", data=data)


def _show_live(curve: MemoryCurve) -> None:
    live = curve.live
    if live.reason:
        return
    st.markdown("**Allocated at the peak**")
    tables = {"By operator": live.operators}
    if live.module_source:
        tables["By module"] = live.modules
    tables["By phase"] = live.phases
    _show_tables(tables, "live")
    notes = ["Each allocation is attributed to its innermost module and operator, except operators that only allocate."]
    if not live.module_source:
        notes.append(
            "No module is named in the trace: record it with_stack=True, or put record_function around modules."
        )
    st.caption(plain(" ".join(notes)))


# -- snapshots ---------------------------------------------------------------------------------------------------------


@st.fragment
def show_snapshots(table: SnapshotTable, theme: Theme, within: str, capacity: float | None = None) -> None:
    """Draws a comparison of ranks, files or devices, then one snapshot: its curve, the allocations at its peak, its
    fragmentation and errors. ``within``: the run of the snapshots; ``capacity``: of its devices."""
    for gap in table.gaps:
        st.warning(plain(f"{Path(gap.path).name}: {gap.reason}"))
    accounts = table.accounts
    if not accounts:
        return
    if failed := failed_sentence(table):
        st.error(plain(failed), icon=":material/memory:")
    if table.compared is not None:
        st.markdown(f"**{plain(comparison_sentence(table.compared))}**")
        if table.compared.larger:
            show_rows(
                larger_there(table.compared),
                key="snapshots-compared",
                alt="Allocations that are larger there",
            )
    names = {str(number): f"{who(entry)}: {name_of(entry)}" for number, entry in enumerate(accounts)}
    highest = max(range(len(accounts)), key=lambda number: accounts[number].peak_allocated)
    number = str(highest)
    if len(accounts) > 1:
        number = choose(
            "Snapshot", list(names), param="snapshot", default=number, within=within, format_func=names.__getitem__
        )
    else:
        st.caption(plain(names[number]))
    _show_snapshot(accounts[int(number)], theme, capacity)


def _show_snapshot(account: SnapshotAccount, theme: Theme, capacity: float | None) -> None:
    state = account.state
    show_metrics(
        Metric("Peak allocated", size(account.peak_allocated), f"{peak_sentence(account)} {REQUESTED}"),
        Metric(
            "Peak reserved", size(account.peak_reserved), "The most memory that the allocator reserved on the device."
        ),
        Metric("Fragmentation", share(state.fragmentation), state_sentence(account)),
        Metric(
            "Largest free block",
            size(state.largest_free),
            "The largest allocation that fits without reserving more device memory.",
        ),
    )
    for oom in account.ooms:
        st.error(plain(oom_sentence(oom, account)), icon=":material/memory:")
    if account.doubt:
        st.warning(plain(f"The curve may be wrong: {account.doubt}."))
    st.markdown(plain(peak_sentence(account)))
    data = of_account(account, capacity, theme)
    if data is not None:
        _picture(data, "snapshot-curve")
        if missing := missing_in(account, capacity):
            st.caption(prose(missing))
    if account.history is None and account.events:
        draw(snapshot_figure(account, theme), "snapshot-curve", "Allocated and reserved memory before the snapshot")
    tables = {"By code": account.frames, "By module": account.modules}
    tables |= {"By operator": account.operators, "By phase": account.phases}
    _show_tables({title: rows for title, rows in tables.items() if rows}, "snapshot")
    st.caption(plain(state_sentence(account)))
    if account.settings:
        st.caption(plain(f"PYTORCH_CUDA_ALLOC_CONF={account.settings}"))


# -- snapshots alone ---------------------------------------------------------------------------------------------------


def show_alone(root: Path, changed_ns: int) -> None:
    """The page of a path that holds memory snapshots and nothing to analyse."""
    st.title("Memory")
    table = _opened(str(root), changed_ns)
    st.caption(plain(f"Snapshots of PyTorch's allocator · {root.resolve().name}"))
    nothing(
        "Memory snapshots hold no steps, so there is no verdict.",
        "`diag run --memory-snapshots` records steps and writes snapshots.",
    )
    show_snapshots(table, theme_of(st.context.theme.type), str(root))


@st.cache_resource(show_spinner="Reading the snapshots…", max_entries=4)
def _opened(path: str, changed_ns: int) -> SnapshotTable:  # noqa: ARG001  (read again when a file has changed)
    return open_memory_snapshots(path)


# -- tables ------------------------------------------------------------------------------------------------------------


def _show_tables(tables: Mapping[str, Sequence[Share]], key: str) -> None:
    """Draws each table in its own tab."""
    if not tables:
        return
    for tab, (title, shares) in zip(st.tabs(list(tables)), tables.items(), strict=True):
        with tab:
            show_rows(
                allocation_table(shares),
                key=f"{key}-{title.lower().replace(' ', '-')}",
                alt=f"Allocated at the peak, {title.lower()}",
                height="content",
            )
