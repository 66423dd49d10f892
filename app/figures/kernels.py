"""Kernels and modules by their time, and the critical path by module."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from diag.app.figures.common import MS, finish, rows_height
from diag.app.theme import Theme
from diag.model.breakdown import KernelKind, KernelStat, KernelTable, ModuleTable, PathStat, PathTable
from diag.show.details import short_name

from ..facts import label, number, share
from ..run_view import Part

MOST_BARS = 15
_LONGEST = 46  # characters of a name beside an axis

# A colour and a hatch a kind; those that belong together share the colour.
_STYLE: dict[KernelKind, tuple[Part, str]] = {
    KernelKind.GEMM: (Part.COMPUTE, ""),
    KernelKind.ATTENTION: (Part.COMPUTE, "/"),
    KernelKind.CONVOLUTION: (Part.COMPUTE, "x"),
    KernelKind.ELEMENTWISE: (Part.WAITING, ""),
    KernelKind.REDUCTION: (Part.WAITING, "/"),
    KernelKind.TRITON: (Part.CHECKPOINT, ""),
    KernelKind.EMBEDDING: (Part.CHECKPOINT, "/"),
    KernelKind.COPY: (Part.COPY, ""),
    KernelKind.OPTIMIZER: (Part.DATA, ""),
    KernelKind.COMMUNICATION: (Part.TRANSFER, ""),
    KernelKind.FUSED: (Part.TRANSFER, "/"),
    KernelKind.OTHER: (Part.IDLE, ""),
}
_PART_OF = {
    "compute": Part.COMPUTE,
    "comm": Part.TRANSFER,
    "copy": Part.COPY,
    "data": Part.DATA,
    "checkpoint": Part.CHECKPOINT,
}


def kernels(table: KernelTable, theme: Theme) -> go.Figure:
    """Milliseconds of a rank and step of the kernels (or operators) that take most, coloured by kind."""
    rows = table.rows[:MOST_BARS]
    steps = max(1, table.rank_steps)
    figure = go.Figure()
    for kind in dict.fromkeys(row.kind for row in rows):
        part, hatch = _STYLE[kind]
        own = [(at, row) for at, row in enumerate(rows) if row.kind == kind]
        figure.add_bar(
            x=[row.total_ns / steps / MS for _, row in own],
            y=[at for at, _ in own],
            orientation="h",
            name=str(kind),
            marker={"color": theme.part[part], "line": {"width": 0}, "pattern": {"shape": hatch, "size": 5}},
            customdata=[
                [label(row.name), label(row.operator) or "no operator known", share(row.share), f"{row.count:,}"]
                for _, row in own
            ],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{x:,.3f} ms, %{customdata[2]} of the busy time, "
            "%{customdata[3]} calls<extra></extra>",
        )
    return _bars(figure, [_kernel_name(row) for row in rows], [row.total_ns / steps for row in rows], theme)


def modules(table: ModuleTable, theme: Theme) -> go.Figure:
    """Milliseconds of a rank and step in the modules that take most, submodules included."""
    rows = sorted(table.rows, key=lambda row: -(row.forward_ns + row.backward_ns))[:MOST_BARS]
    steps = max(1, table.rank_steps)
    figure = go.Figure()
    for name, values, part in (
        ("forward", [row.forward_ns for row in rows], Part.COMPUTE),
        ("backward", [row.backward_ns - row.recompute_ns for row in rows], Part.CHECKPOINT),
        ("recomputed in the backward", [row.recompute_ns for row in rows], Part.TRANSFER),
    ):
        if not any(values):
            continue
        figure.add_bar(
            x=[ns / steps / MS for ns in values],
            y=list(range(len(rows))),
            orientation="h",
            name=name,
            marker={"color": theme.part[part], "line": {"width": 0}},
            customdata=[label(row.name) for row in rows],
            hovertemplate=f"%{{customdata}}<br>{name} %{{x:,.3f}} ms<extra></extra>",
        )
    totals = [(row.forward_ns + row.backward_ns) / steps for row in rows]
    return _bars(figure, [label(row.name, _LONGEST) for row in rows], totals, theme)


def path(table: PathTable, theme: Theme) -> go.Figure:
    """Milliseconds a step of the critical path by rank, kind of time and module: what everybody waited for."""
    rows = table.rows[:MOST_BARS]
    figure = go.Figure()
    for part in dict.fromkeys(_part(row) for row in rows):
        own = [(at, row) for at, row in enumerate(rows) if _part(row) == part]
        figure.add_bar(
            x=[row.ns_per_step / MS for _, row in own],
            y=[at for at, _ in own],
            orientation="h",
            name=part.value,
            marker={"color": theme.part[part], "line": {"width": 0}},
            customdata=[[label(_path_name(row)), share(row.share)] for _, row in own],
            hovertemplate="%{customdata[0]}<br>%{x:,.3f} ms a step, %{customdata[1]} of it<extra></extra>",
        )
    return _bars(
        figure, [label(_path_name(row), _LONGEST + 14) for row in rows], [row.ns_per_step for row in rows], theme
    )


def _bars(figure: go.Figure, names: Sequence[str], totals_ns: Sequence[float], theme: Theme) -> go.Figure:
    for at, total in enumerate(totals_ns):
        figure.add_annotation(
            x=total / MS,
            y=at,
            text=number(total / MS),
            showarrow=False,
            xanchor="left",
            xshift=4,
            font={"size": 12},
        )
    return finish(
        figure,
        theme,
        rows_height(len(names), least=150, each=28),
        barmode="stack",
        bargap=0.3,
        xaxis={"title": {"text": "milliseconds a step"}, "range": [0, max([*totals_ns, 1.0]) / MS * 1.12]},
        yaxis={
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(len(names))),
            "ticktext": list(names),
            "title": None,
        },
    )


def _kernel_name(row: KernelStat) -> str:
    return label(short_name(row.name).removeprefix("aten::"), _LONGEST)


def _part(row: PathStat) -> Part:
    return _PART_OF.get(row.category.partition("/")[0], Part.IDLE)


def _path_name(row: PathStat) -> str:
    return f"rank {row.rank}, {row.category}{f', {row.module}' if row.module else ''}"
