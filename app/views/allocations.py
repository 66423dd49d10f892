"""Parts of the memory page that show memory over time: curves of traces, and snapshots of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import streamlit as st

from diag.api import manifest_of, open_memory_snapshots
from diag.app.address import choose
from diag.app.curves import memory_figure, snapshot_figure
from diag.app.markup import plain, prose
from diag.app.memory_picture import of_account, of_curve
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import component, draw, in_view, nothing, show_gaps, show_metrics, show_table
from diag.collectors.layout import RunLayout
from diag.collectors.records import Manifest
from diag.ended.out_of_memory import Reported, out_of_memory_lines
from diag.errors import DiagError
from diag.model import Gap
from diag.model.memory import Lower
from diag.show.breakdowns import allocation_table, larger_there, lower_peak_table, made_room_table
from diag.show.curves import curve_sentence
from diag.show.page import Metric
from diag.show.snapshots import (
    REQUESTED,
    comparison_sentence,
    failed_sentence,
    missing_in,
    name_of,
    oom_sentence,
    peak_sentence,
    state_sentence,
    who,
)
from diag.tables.memory_curves import MemoryCurve, Share, fullest
from diag.tables.snapshots import OutOfMemory, SnapshotAccount, SnapshotTable
from diag.tables.would_fit import lower_peaks, would_fit
from diag.words.formatting import share, size


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
        draw(lambda: memory_figure(curve, capacity, theme), "memory-curve", f"Device memory of rank {rank} over time")
    manifest = view.result.tables.manifest
    unused = None if curve.peak_reserved is None else curve.peak_reserved - curve.peak_allocated
    show_lower(lower_peaks(curve.history, unused, "", manifest))
    others = sum(window.rank == rank for window in curves) - 1
    if others:
        st.caption(f"The window with the highest peak of this rank. Other recorded windows or devices: {others}.")
    _show_live(curve)


@st.fragment
def _picture(data: dict[str, Any], key: str) -> None:
    if in_view(f"{key}-picture", DASHBOARD.memory_picture_px):
        component("memory")(key=f"{key}-picture", data=data)


NOT_MEASURED = (
    "By what was allocated at each moment; not measured. Where another moment is the highest then, it counts."
)


def show_lower(found: Sequence[Lower], basis: str = NOT_MEASURED) -> None:
    """Draws what would lower a peak, the most first. ``basis``: what it is estimated from, or why nothing is."""
    if found:
        st.markdown("**What would lower the peak**")
        show_table(lower_peak_table(found))
    if found or basis != NOT_MEASURED:
        st.caption(plain(basis))


def _show_live(curve: MemoryCurve) -> None:
    live = curve.live
    if live.reason:
        return
    st.markdown("**Allocated at the peak**")
    tables = {"By operator": live.operators}
    if live.module_source:
        tables["By module"] = live.modules
    tables["By phase"] = live.phases
    _show_tables(tables, live.before, curve.peak_allocated)
    notes = ["Each allocation is attributed to its innermost module and operator, except operators that only allocate."]
    if not live.module_source:
        notes.append(
            "No module is named in the trace: record it with_stack=True, or put record_function around modules."
        )
    st.caption(plain(" ".join(notes)))


@st.fragment
def show_snapshots(
    table: SnapshotTable, theme: Theme, within: str, capacity: float | None = None, manifest: Manifest | None = None
) -> None:
    """Draws a comparison of ranks, files or devices, then one snapshot: its curve, what would lower its peak, the
    allocations at it, its fragmentation and errors. ``within``: the run of the snapshots; ``capacity``: of its
    devices; ``manifest``: of the run."""
    show_gaps([Gap(Path(gap.path).name, gap.reason) for gap in table.gaps])
    accounts = table.accounts
    if not accounts:
        return
    if failed := failed_sentence(table):
        st.error(plain(failed), icon=":material/memory:")
    if table.compared is not None:
        st.markdown(f"**{plain(comparison_sentence(table.compared))}**")
        if table.compared.larger:
            show_table(larger_there(table.compared))
    names = {str(number): f"{who(entry)}: {name_of(entry)}" for number, entry in enumerate(accounts)}
    highest = max(range(len(accounts)), key=lambda number: accounts[number].peak_allocated)
    number = str(highest)
    if len(accounts) > 1:
        number = choose(
            "Snapshot", list(names), param="snapshot", default=number, within=within, format_func=names.__getitem__
        )
    else:
        st.caption(plain(names[number]))
    _show_snapshot(accounts[int(number)], theme, capacity, manifest)


def _show_snapshot(account: SnapshotAccount, theme: Theme, capacity: float | None, manifest: Manifest | None) -> None:
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
    room_shown = bool(account.ooms) and _show_room(account, account.ooms[-1], manifest)
    if account.doubt:
        st.warning(plain(f"The curve may be wrong: {account.doubt}."))
    st.markdown(plain(peak_sentence(account)))
    data = of_account(account, capacity, theme)
    if data is not None:
        _picture(data, "snapshot-curve")
        if missing := missing_in(account, capacity):
            st.caption(prose(missing))
    if not room_shown:
        unused = account.peak_reserved - account.peak_allocated
        show_lower(lower_peaks(account.history, unused, account.settings, manifest))
    if account.history is None and account.events:
        draw(
            lambda: snapshot_figure(account, theme),
            "snapshot-curve",
            "Allocated and reserved memory before the snapshot",
        )
    tables = {"By code": account.frames, "By module": account.modules}
    tables |= {"By operator": account.operators, "By phase": account.phases}
    _show_tables({title: rows for title, rows in tables.items() if rows}, account.before, account.peak_allocated)
    st.caption(plain(state_sentence(account)))
    if account.settings:
        st.caption(plain(f"PYTORCH_CUDA_ALLOC_CONF={account.settings}"))


def _show_room(account: SnapshotAccount, failure: OutOfMemory, manifest: Manifest | None) -> bool:
    """Draws what would have made room for an allocation that failed, what is enough first; whether anything would."""
    fits = would_fit(
        failure.requested,
        failure.device_free,
        account.state.inactive,
        account.categories_at_failure(failure),
        account.settings,
        manifest,
    )
    if not fits:
        return False
    lacking = max(0, failure.requested - (failure.device_free or 0))
    st.markdown(plain(f"What would have made room for the {size(lacking)} that were lacking:"))
    show_table(made_room_table(fits))
    return True


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


def show_left(run: Path, changed_ns: int) -> bool:
    """The snapshots of a run that recorded no whole step, as one that runs out of memory in its first step; whether
    there are any."""
    try:
        table = _opened(str(run), changed_ns)
    except DiagError:
        return False
    # No step says what the device holds; the error of a failed allocation does.
    layout = RunLayout(run)
    said: Mapping[int, Reported] = {}
    with suppress(OSError):
        said = out_of_memory_lines(layout, layout.ranks()) if layout.is_run() else said
    capacity = min((own.capacity for own in said.values() if own.capacity), default=None)
    st.subheader("Memory snapshots", anchor="snapshots")
    show_snapshots(table, theme_of(st.context.theme.type), str(run), capacity, manifest_of(run))
    return True


@st.cache_resource(show_spinner="Reading the snapshots…", max_entries=4)
def _opened(path: str, changed_ns: int) -> SnapshotTable:  # noqa: ARG001  (read again when a file has changed)
    table: SnapshotTable = open_memory_snapshots(path)
    return table


def _show_tables(tables: Mapping[str, Sequence[Share]], before: int | None, peak: int) -> None:
    """Draws each table in its own tab. ``before``: bytes of the ``peak`` that were allocated before the window."""
    if not tables:
        return
    for tab, shares in zip(st.tabs(list(tables)), tables.values(), strict=True):
        with tab:
            show_table(allocation_table(shares, before, peak))
