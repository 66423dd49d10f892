"""The input pipeline: data wait by rank and step, the loader's settings, copies between host and device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import plotly.graph_objects as go
import streamlit as st

from diag.app.drawings import every_rank, field_of, mean_step_ns
from diag.app.figures import MS, finish, rank_names, rows_height
from diag.app.markup import plain
from diag.app.picture import waits_for_loaders
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part, RunView
from diag.app.theme import Theme, theme_of
from diag.app.views.common import (
    draw,
    head,
    nothing,
    show_field,
    show_grid,
    show_metrics,
    show_rows,
    without_steps,
)
from diag.model.steps import Bottleneck, Severity
from diag.show.breakdowns import loading_rows
from diag.show.page import DATA_WAIT, Metric
from diag.tables.loading import LoadingTable
from diag.words.formatting import UNKNOWN, counted, duration, share


def show(view: RunView) -> None:
    if without_steps("Input pipeline", view):
        return
    table = view.result.loading
    head("Input pipeline", view, "Waiting for data and copies between host and device, mean per step")
    theme = theme_of(st.context.theme.type)
    culprits = _findings(view)
    _loader(view, table)
    st.subheader("Waiting for data", anchor="waiting")
    if not any(row.wait_max_ns for row in table.rows):
        nothing(
            "No wait for a loader was seen in the counted steps.",
            "`diag run` records it in every step; traces contain it for loops over a torch DataLoader.",
        )
    else:
        _waits(view, table, culprits, theme)
    _copies(view, table, theme)
    _rows(view, table)


def _findings(view: RunView) -> tuple[int, ...]:
    """Draws the findings about data; returns the ranks at fault."""
    findings = [f for f in view.result.examination.findings if f.bottleneck == Bottleneck.DATA]
    for finding in findings:
        text = plain(f"{finding.title} ({share(finding.share)} of the step). {finding.action}")
        if finding.severity == Severity.HEALTHY:
            st.info(text, icon=":material/info:")
        else:
            show_it = st.error if finding.severity == Severity.CRITICAL else st.warning
            show_it(text, icon=":material/database:")
    if not findings:
        st.success("No finding about data: the loaders keep up.", icon=":material/check_circle:")
    return tuple(dict.fromkeys(rank for finding in findings for rank in finding.ranks))


def _loader(view: RunView, table: LoadingTable) -> None:
    show_metrics(
        *(metric for metric in view.page.metrics if metric.label == DATA_WAIT),
        Metric(
            "Loader processes",
            UNKNOWN if table.workers is None else f"{table.workers:,}",
            help="Per rank (num_workers); 0: batches are loaded in the training process.",
        ),
        Metric(
            "Prefetch factor",
            UNKNOWN if table.prefetch_factor is None else f"{table.prefetch_factor:,}",
            help="Batches that each loader process prefetches.",
        ),
        Metric(
            "Queued batches",
            UNKNOWN if table.queue is None else f"{table.queue:,}",
            help="Maximum: processes times prefetch factor. The table of ranks shows how many were ready.",
        ),
        Metric(
            "Pinned memory",
            UNKNOWN if table.pin_memory is None else "yes" if table.pin_memory else "no",
            help="pin_memory: only copies from page-locked memory overlap with the training.",
        ),
    )


@st.fragment
def _waits(view: RunView, table: LoadingTable, culprits: tuple[int, ...], theme: Theme) -> None:
    show_grid(view, "loader-grid", *waits_for_loaders(view.result), culprits)
    if len(view.result.attribution.ranks) <= DASHBOARD.most_bars_of_ranks:
        draw(
            lambda: ranks(table, culprits, mean_step_ns(view), theme),
            "loader-ranks",
            "Milliseconds a step that each rank waits for its loader, and that the others wait because of it",
        )
    worst = max(table.rows, key=lambda row: row.others_waited_ns)
    if worst.others_waited_ns and worst.rank in culprits:
        st.markdown(
            plain(
                f"The other ranks wait {duration(worst.others_waited_ns)} a step for the loader of rank {worst.rank}."
            )
        )
    if Part.DATA in view.parts:
        st.markdown("**Every step.** Waiting for the loader, by rank.")
        show_field(
            view,
            lambda: field(view, culprits, theme),
            "loader-steps",
            "Milliseconds that each rank waited in each step",
        )


def _copies(view: RunView, table: LoadingTable, theme: Theme) -> None:
    st.subheader("Copies between host and device", anchor="copies")
    if not view.result.tables.on_device:
        nothing("The run is on a CPU: there is no device to copy to.")
        return
    if not any(row.host_copy_ns or row.exposed_copy_ns for row in table.rows):
        nothing("No exposed copy was recorded.", "`diag run` records them with its traces.")
        return
    if len(table.rows) <= DASHBOARD.most_rank_bars:
        draw(
            lambda: copies(table, mean_step_ns(view), theme),
            "copies",
            "Milliseconds a step of copies between host and device on each rank",
        )


def _rows(view: RunView, table: LoadingTable) -> None:
    st.subheader(every_rank(view), anchor="table")
    on_device = view.result.tables.on_device
    show_rows(
        loading_rows(table, on_device),
        key="loader-table",
        alt="Waiting for data and copies of each rank",
    )
    st.caption(plain(f"Means of {counted(len(table.steps), 'counted step')}."))


def ranks(table: LoadingTable, culprits: Collection[int], step_ns: float, theme: Theme) -> go.Figure:
    """Milliseconds per step that each rank waits for its loader, and that the other ranks wait because of it. The axis
    covers at least a tenth of the step."""
    return _pairs(
        rank_names([row.rank for row in table.rows], tuple(culprits), theme.ink),
        (
            ("waits for its loader", [row.wait_mean_ns for row in table.rows], theme.part[Part.DATA]),
            ("the others wait for it", [row.others_waited_ns for row in table.rows], theme.part[Part.WAITING]),
        ),
        "{} %{{x:,.2f}} ms a step",
        theme,
        least=190,
        least_ms=DASHBOARD.full_scale_share * step_ns / MS,
    )


def field(view: RunView, culprits: Collection[int], theme: Theme) -> go.Figure:
    """Milliseconds that each rank waited for its loader in each step."""
    return field_of(view, Part.DATA, tuple(culprits), "waited %{z:,.2f} ms for its loader", theme)


def copies(table: LoadingTable, step_ns: float, theme: Theme) -> go.Figure:
    """Milliseconds a step of copies between host and device by rank: the host's time in them, and exposed ones. The
    axis covers at least a tenth of the step."""
    return _pairs(
        [f"rank {row.rank}" for row in table.rows],
        (
            ("the host, in its copies", [row.host_copy_ns for row in table.rows], theme.host),
            (
                "the device, in exposed copies",
                [row.exposed_copy_ns for row in table.rows],
                theme.part[Part.COPY],
            ),
        ),
        "{}: %{{x:,.3f}} ms a step",
        theme,
        least=180,
        least_ms=DASHBOARD.full_scale_share * step_ns / MS,
    )


def _pairs(
    names: Sequence[str],
    series: Iterable[tuple[str, Sequence[int | None], str]],
    hover: str,
    theme: Theme,
    least: int,
    least_ms: float,
) -> go.Figure:
    """Grouped bars, a group per rank. ``series``: name, nanoseconds by rank, colour; ``least_ms``: where the axis ends
    at the earliest."""
    series = list(series)
    longest_ms = max((ns / MS for _, values, _ in series for ns in values if ns is not None), default=0.0)
    figure = go.Figure()
    for name, values, colour in series:
        figure.add_bar(
            x=[None if ns is None else ns / MS for ns in values],
            y=names,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{hover.format(name)}<extra></extra>",
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=least, each=42),
        barmode="group",
        bargap=0.35,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, 1.04 * max(least_ms, longest_ms)]},
        yaxis={"autorange": "reversed", "type": "category", "title": None, "nticks": 32},
    )
