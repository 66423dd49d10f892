"""Parts of the memory page that show memory over time: curves of traces, and snapshots of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import streamlit as st

from diag.api import open_memory_snapshots
from diag.app.address import choose
from diag.app.figures import finish
from diag.app.markup import label, plain
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import EMPTY, draw, known_columns, nothing, show_metrics, shown_rows
from diag.show.memory import (
    REQUESTED,
    comparison_sentence,
    curve_sentence,
    name_of,
    oom_sentence,
    peak_sentence,
    state_sentence,
)
from diag.show.page import Metric
from diag.tables.memory_curve import BACKWARD, BEFORE_BACKWARD, FORWARD, OPTIMIZER, MemoryCurve, Share, fullest
from diag.tables.snapshots import SnapshotAccount, SnapshotTable
from diag.words.formatting import share, size

_MB, _GB = 1e6, 1e9
_MS, _US_IN_MS = 1e6, 1e3
_HEIGHT = 360
_BAND = 0.06  # of the height of the plot, below the curve
_COLOURS = {FORWARD: Part.COMPUTE, BEFORE_BACKWARD: Part.COMPUTE, BACKWARD: Part.COPY, OPTIMIZER: Part.DATA}

Numbers = npt.NDArray[Any]


# -- traces ------------------------------------------------------------------------------------------------------------


def show_curves(view: RunView, theme: Theme) -> None:
    """Memory over time of one rank's device, its peak, and what was allocated there; nothing without samples."""
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
    draw(curve_figure(curve, capacity, theme), "memory-curve", f"Device memory of rank {rank} over time")
    others = sum(one.rank == rank for one in curves) - 1
    if others:
        st.caption(f"The window with the highest peak of this rank; {others} more windows or devices are recorded.")
    _show_live(curve)


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
    notes = ["Each allocation counts for the innermost operator and module around it that does more than to allocate."]
    if not live.module_source:
        notes.append(
            "No module is named in the trace: record it with_stack=True, or put record_function around modules."
        )
    st.caption(plain(" ".join(notes)))


def curve_figure(curve: MemoryCurve, capacity: float | None, theme: Theme) -> go.Figure:
    """Allocated and reserved bytes over the window, the phases of the steps beneath, and the peak."""
    high = max(int(curve.allocated.max()), int(curve.reserved.max()) if curve.reserved is not None else 0)
    high = max(high, int(capacity or 0))
    unit = _unit(high)
    figure = _lines(curve.at_ns / _MS, curve.allocated, curve.reserved, unit, theme)
    _mark_peak(figure, curve.peak_ns / _MS, curve.peak_allocated, float(curve.at_ns[-1]) / _MS, unit, theme)
    if capacity is not None:
        figure.add_hline(y=capacity / unit, line={"color": theme.ink, "dash": "dash"})
    for phase in dict.fromkeys(band.phase for band in curve.bands):
        colour = theme.part[_COLOURS[phase]]
        figure.add_bar(x=[None], y=[None], name=phase, marker={"color": colour})  # of the legend alone
        for band in curve.bands:
            if band.phase == phase:
                figure.add_shape(
                    type="rect", xref="x", yref="paper", x0=band.begin_ns / _MS, x1=band.end_ns / _MS, y0=0, y1=_BAND,
                    fillcolor=colour, line={"width": 0}, layer="above",
                )  # fmt: skip
    low = min(0.0, float(curve.allocated.min()))
    # Room for the phases below the curve.
    below = (high - low) * _BAND * 1.5 if curve.bands else 0.0
    return finish(
        figure,
        theme,
        _HEIGHT,
        xaxis={"title": {"text": "ms since the window began"}, "showgrid": False},
        yaxis={
            "title": {"text": _name(unit) if curve.totals else f"{_name(unit)}, from the window's begin"},
            "range": [(low - below) / unit, 1.15 * high / unit],
        },
    )


def _unit(most: int) -> float:
    """Bytes of one unit of an axis that reaches so far."""
    return _GB if most >= _GB else _MB


def _name(unit: float) -> str:
    return "GB" if unit == _GB else "MB"


def _lines(at: Numbers, allocated: Numbers, reserved: Numbers | None, unit: float, theme: Theme) -> go.Figure:
    figure = go.Figure()
    series = [("reserved", reserved, theme.part[Part.WAITING]), ("allocated", allocated, theme.part[Part.TRANSFER])]
    for name, values, colour in series:
        if values is None:
            continue
        figure.add_scatter(
            x=at,
            y=values.astype(np.float64) / unit,
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertemplate=f"%{{x:,.3f}} ms<br>{name} %{{y:,.3f}} {_name(unit)}<extra></extra>",
        )
    return figure


def _mark_peak(figure: go.Figure, at: float, held: int, until: float, unit: float, theme: Theme) -> None:
    """``until``: where the curve ends; the text stays inside of it."""
    figure.add_scatter(
        x=[at],
        y=[held / unit],
        mode="markers+text",
        name="peak",
        text=[f"peak {size(held)}"],
        textposition="top left" if at > until / 2 else "top right",
        marker={"color": theme.ink, "size": 10, "symbol": "diamond"},
        hovertemplate=f"peak at %{{x:,.3f}} ms<br>%{{y:,.3f}} {_name(unit)} allocated<extra></extra>",
    )


# -- snapshots ---------------------------------------------------------------------------------------------------------


def show_snapshots(table: SnapshotTable, theme: Theme, within: str) -> None:
    """Ranks compared, then one snapshot: its curve, what was allocated at its peak, its fragmentation and errors.
    ``within``: the run that they are of."""
    for gap in table.gaps:
        st.warning(plain(f"{Path(gap.path).name}: {gap.reason}"))
    accounts = table.accounts
    if not accounts:
        return
    if table.compared is not None:
        st.markdown(f"**{plain(comparison_sentence(table.compared))}**")
        rows = [
            {
                "Allocated at": one.place,
                f"Rank {table.compared.rank}": size(one.bytes),
                "Median of the others": size(one.median),
            }
            for one in table.compared.larger
        ]
        if rows:
            st.dataframe(shown_rows(rows), key="snapshots-compared", hide_index=True, alt="What is larger on that rank")
    names = {str(number): f"rank {one.rank}: {name_of(one)}" for number, one in enumerate(accounts)}
    highest = max(range(len(accounts)), key=lambda number: accounts[number].peak_allocated)
    number = str(highest)
    if len(accounts) > 1:
        number = choose(
            "Snapshot", list(names), param="snapshot", default=number, within=within, format_func=names.__getitem__
        )
    else:
        st.caption(plain(names[number]))
    _show_snapshot(accounts[int(number)], theme)


def _show_snapshot(account: SnapshotAccount, theme: Theme) -> None:
    state = account.state
    show_metrics(
        Metric("Peak allocated", size(account.peak_allocated), f"{peak_sentence(account)} {REQUESTED}"),
        Metric("Peak reserved", size(account.peak_reserved), "The most that the allocator took from the device."),
        Metric("Fragmentation", share(state.fragmentation), state_sentence(account)),
        Metric(
            "Largest free block",
            size(state.largest_free),
            "What could be allocated without asking the device for more.",
        ),
        places=4,
    )
    for oom in account.ooms:
        st.error(plain(oom_sentence(oom, account)), icon=":material/memory:")
    if account.doubt:
        st.warning(plain(f"The curve may be wrong: {account.doubt}."))
    st.markdown(plain(peak_sentence(account)))
    if account.events:
        draw(snapshot_figure(account, theme), "snapshot-curve", "Allocated and reserved memory before the snapshot")
    tables = {"By code": account.frames, "By module": account.modules}
    tables |= {"By operator": account.operators, "By phase": account.phases}
    _show_tables({title: rows for title, rows in tables.items() if rows}, "snapshot")
    st.caption(plain(state_sentence(account)))
    if account.settings:
        st.caption(plain(f"PYTORCH_CUDA_ALLOC_CONF={account.settings}"))


def snapshot_figure(account: SnapshotAccount, theme: Theme) -> go.Figure:
    """The recorded history up to the snapshot."""
    scale = _US_IN_MS if account.timed else 1.0
    high = max(account.peak_reserved, account.peak_allocated)
    unit = _unit(high)
    figure = _lines(account.at_us / scale, account.allocated, account.reserved, unit, theme)
    _mark_peak(figure, account.peak_us / scale, account.peak_allocated, float(account.at_us[-1]) / scale, unit, theme)
    for oom in account.ooms:
        if oom.at_us is not None:
            figure.add_vline(
                x=oom.at_us / scale,
                line={"color": theme.ink, "dash": "dot"},
                annotation_position="top left",
                annotation={"text": label(f"{size(oom.asked)} asked for"), "font": {"color": theme.ink}},
            )
    return finish(
        figure,
        theme,
        _HEIGHT,
        xaxis={"title": {"text": "ms since the first event" if account.timed else "event"}, "showgrid": False},
        yaxis={"title": {"text": _name(unit)}, "range": [0, 1.15 * high / unit]},
    )


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


def _cells(one: Share) -> dict[str, Any]:
    return {"Allocated by": one.name, "MB": one.bytes / _MB, "Of the peak": one.share, "Allocations": one.count}


def _show_tables(tables: Mapping[str, Sequence[Share]], key: str) -> None:
    """Each in a tab of its own."""
    if not tables:
        return
    number = st.column_config.NumberColumn
    for tab, (title, shares) in zip(st.tabs(list(tables)), tables.items(), strict=True):
        with tab:
            rows = shown_rows(list(map(_cells, shares)))
            st.dataframe(
                rows,
                column_order=known_columns(rows),
                height="content",
                key=f"{key}-{title.lower().replace(' ', '-')}",
                hide_index=True,
                placeholder=EMPTY,
                column_config={
                    "MB": number(format="%.1f"),
                    "Of the peak": number(format="percent"),
                    "Allocations": number(format="localized"),
                },
                alt=f"Allocated at the peak, {title.lower()}",
            )
