"""Elements shared by the pages: head, metrics, figures, tables, and messages about missing data."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from diag.app.address import href, set_choices, show_link
from diag.app.figures import MS, Entry, blocks_of, field_columns, legend_of, make_cells_clickable
from diag.app.markup import plain, prose
from diag.app.picture import grid_of_ms
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import theme_of
from diag.errors import DiagError
from diag.model import Gap
from diag.model.query import Query
from diag.show.page import Metric
from diag.show.policy import PAGE
from diag.words.formatting import UNKNOWN, counted, rank_ranges, visible, visible_lines
from diag.words.places import in_command
from diag.words.table import MOMENT, Cell, Column, Table
from diag.words.table import UNKNOWN as EMPTY
from diag.words.wording import ONLY_DURATIONS

CONFIG: dict[str, Any] = {"displaylogo": False, "displayModeBar": False, "typesetMath": False}
LAZY = True  # tests without a browser have no view that a figure could come into
_SEEN, _HEIGHTS = "figures that were in view", "heights of figures"
METRIC_PX = 168  # least width of a metric's card
_FILL_A_ROW = 4  # cards: as many share the width of the page; fewer would be wide and empty
_LABEL_PX, _VALUE_PX, _PADDING_PX = 6.4, 18, 34  # of a character, and around them with the icon of the help
_DELTA_COLOUR: dict[str, Literal["normal", "inverse", "off"]] = {"good": "normal", "bad": "inverse", "neither": "off"}


def head(title: str, view: RunView, contents: str) -> None:
    """The page's title and a caption: contents, run, ranks and counted steps."""
    st.title(title)
    run = view.result.tables.root.resolve().name
    facts = (contents, run, rank_ranges(view.ranks), view.steps_counted)
    st.caption(plain(" · ".join(fact for fact in facts if fact)))


def show_metrics(*metrics: Metric) -> None:
    """Draws metrics side by side, each with its definition as a tooltip; they wrap to the width of the window. What is
    not known is named below them: a card for it would look like a value."""
    known = [metric for metric in metrics if metric.value != UNKNOWN]
    with st.container(horizontal=True):
        for metric in known:
            st.metric(
                plain(metric.label),
                metric.value,
                metric.against or None,
                delta_color=_DELTA_COLOUR[metric.more_is],
                delta_arrow="auto" if metric.against[:1] in ("+", "-") else "off",
                border=True,
                height="stretch",
                width="stretch" if len(known) >= _FILL_A_ROW else card_px(metric.label, metric.value),
                help=prose(metric.help),
            )
    if unknown := [metric.label.lower() for metric in metrics if metric.value == UNKNOWN]:
        st.caption(plain(f"Not known: {', '.join(unknown)}."))


def card_px(title: str, value: str) -> int:
    """A width of a metric's card that cuts neither its label nor its value."""
    return round(max(METRIC_PX, _PADDING_PX + 24 + _LABEL_PX * len(title), _PADDING_PX + _VALUE_PX * len(value)))


def side_by_side(key: str, widths: Sequence[float] = (1, 1)) -> list[DeltaGenerator]:
    """Two columns, which stand below each other where the window is small (main.py)."""
    with st.container(key=f"beside-{key}"):
        return st.columns(widths)


@cache
def component(name: str) -> Any:
    """The component with the files NAME.js and, if it has a look, NAME.css beside this module, and what components
    share (common.js)."""
    here = Path(__file__).parent
    shared, own = ((here / file).read_text("utf-8") for file in ("common.js", f"{name}.js"))
    css = here / f"{name}.css"
    return st.components.v2.component(
        f"diag_{name}", css=css.read_text("utf-8") if css.exists() else None, js=f"{shared}\n{own}"
    )


def in_view(key: str, height: float) -> bool:
    """Whether a figure is to be drawn: one below the window is once somebody has scrolled to it, and from then on for
    the whole session. Draws its empty place until then; the fragment around it is drawn again when it is in view."""
    seen = st.session_state.setdefault(_SEEN, set())
    if not LAZY or key in seen:
        return True
    component("lazy")(key=f"later {key}", data={"height": height}, on_seen_change=lambda: seen.add(key))
    return False


def made_in_view(figure: Callable[[], go.Figure], key: str) -> go.Figure | None:
    """The figure, made once it is in view: that takes longer than all other parts of a page together. Its place is as
    high as it was when it was drawn last."""
    heights = st.session_state.setdefault(_HEIGHTS, {})
    if not in_view(key, heights.get(key, DASHBOARD.figure_px)):
        return None
    made = figure()
    heights[key] = made.layout.height or DASHBOARD.figure_px
    return made


@st.fragment
def draw(figure: Callable[[], go.Figure], key: str, alt: str) -> None:
    if (made := made_in_view(figure, key)) is not None:
        plot(made, key, alt)


def plot(figure: go.Figure, key: str, alt: str, **options: Any) -> Any:
    """Draws a figure below its legend, which has as many lines as the window needs: Plotly's would take them from the
    figure's height, and on a phone a line for each entry. ``options``: of ``st.plotly_chart``, which answers."""
    with st.container(gap="xxsmall"):
        if entries := legend_of(figure):
            figure.update_layout(showlegend=False)
            st.html(_legend(entries))
        return st.plotly_chart(figure, key=key, config=CONFIG, alt=visible(alt), **options)


_SHAPES = {  # of Plotly's symbols
    "circle": "circle(50%)",
    "diamond": "polygon(50% 0, 100% 50%, 50% 100%, 0 50%)",
    "triangle-down": "polygon(0 0, 100% 0, 50% 100%)",
    "triangle-up": "polygon(50% 0, 100% 100%, 0 100%)",
    "cross": "polygon(35% 0, 65% 0, 65% 35%, 100% 35%, 100% 65%, 65% 65%, 65% 100%, 35% 100%, 35% 65%, 0 65%, "
    "0 35%, 35% 35%)",
    "star": "polygon(50% 0, 62% 35%, 100% 35%, 69% 58%, 81% 95%, 50% 73%, 19% 95%, 31% 58%, 0 35%, 38% 35%)",
    "hexagon": "polygon(50% 0, 95% 25%, 95% 75%, 50% 100%, 5% 75%, 5% 25%)",
}


def _legend(entries: Sequence[Entry]) -> str:
    """Of several lines, an entry is a button that leaves only its own (figures.js)."""
    lines = sum(bool(entry.group) for entry in entries)
    items = [
        f'<span role="listitem"><span{_isolates(entry) if lines > 1 else ""}>'
        f'<i style="display: inline-block; margin-right: 6px; {_swatch(entry)}"></i>'
        f"{html.escape(html.unescape(entry.name))}</span></span>"  # Plotly shows of tags only a few, and HTML all
        for entry in entries
    ]
    style = "display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 13px"
    return f'<div role="list" aria-label="Legend" style="{style}">{"".join(items)}</div>'


def _isolates(entry: Entry) -> str:
    if not entry.group:
        return ""
    return (
        f' role="button" tabindex="0" aria-pressed="false" data-isolates="{html.escape(entry.group)}" '
        'title="Only this one; again: all" style="cursor: pointer"'
    )


def _swatch(entry: Entry) -> str:
    if entry.line:
        style = {"solid": "solid", "dot": "dotted"}.get(entry.mark, "dashed")
        return f"width: 22px; vertical-align: middle; border-top: 2px {style} {entry.colour}"
    look = f"width: 11px; height: 11px; background: {entry.colour}; opacity: {entry.opacity}"
    shape = _SHAPES.get(entry.mark)
    return f"{look}; clip-path: {shape}" if shape else f"{look}; border-radius: 2px"


def show_field(
    view: RunView, figure: Callable[[], go.Figure], key: str, alt: str, ranks: Sequence[int] | None = None
) -> None:
    """Draws a heat map of ranks, all of the view unless given, by its steps. A click on a cell selects its rank and
    step on every page."""
    of_rows = view.ranks if ranks is None else ranks

    def chosen() -> tuple[int, int] | None:
        points = [point for point in st.session_state[key].selection.points if "customdata" in point]
        if not points:
            return None
        row, column = (int(points[0]["customdata"][place]) for place in ("0", "1"))
        blocks = blocks_of(len(view.steps), field_columns(len(view.ranks)))
        return of_rows[row], view.steps[blocks[column].start]

    def choose() -> None:
        if cell := chosen():
            set_choices(rank=str(cell[0]), step=str(cell[1]))

    if (made := made_in_view(figure, key)) is None:
        return
    clickable = make_cells_clickable(made)
    plot(made, key, alt, on_select=choose, selection_mode="points")
    if cell := chosen():
        show_on_timeline(*cell)
    elif clickable:
        st.caption("Click a cell to choose its rank and step.")


def show_grid(view: RunView, key: str, ms: Mapping[int, float], unit: str, at_fault: Collection[int] = ()) -> None:
    """Draws a grid of hosts by ranks if there are more ranks than bars have room for."""
    if len(ms) > DASHBOARD.most_bars_of_ranks:
        draw_grid(view, key, grid_of_ms(view, ms, unit, at_fault, theme_of(st.context.theme.type)))


def draw_grid(view: RunView, key: str, data: dict[str, Any]) -> None:
    """Draws a grid of ranks; a click chooses a rank on every page."""
    component("picture")(key=key, data=data, on_rank_change=lambda: choose_clicked_rank(view, key))


def choose_clicked_rank(view: RunView, key: str) -> None:
    """Chooses the rank that was clicked in the picture with this key."""
    if (rank := st.session_state[key].rank) in view.ranks:
        set_choices(rank=str(rank))


def show_on_timeline(rank: int, step: int, name: str = "") -> None:
    """Draws a link to a step of a rank on the timeline. ``name``: the text to search for there."""
    label = f"Rank {rank}, step {step} on the timeline"
    show_link("timeline", label, icon="view_timeline", rank=rank, step=step, **({"find": name} if name else {}))


def moment_link(rank: int, step: int, begin_ns: int, end_ns: int) -> str:
    """A link to a moment on the timeline, with a little around it, for a cell of a table. Times as the timeline has
    them."""
    around_ns = (end_ns - begin_ns) // 4
    at = {"from": (begin_ns - around_ns) / MS, "to": (end_ns + around_ns) / MS}
    window = {name: f"{max(0.0, ms):.{DASHBOARD.decimals_of_address}f}" for name, ms in at.items()}
    return f"[Show]({href('timeline', rank=rank, step=step, **window)})"


# Pages with the rows of a data frame; the rows of the others are on the timeline.
PAGES_OF_ROWS = {
    **dict.fromkeys(
        ("collectives", "all_to_alls", "calls", "meetings"), ("collectives", "Show the collectives", "lan")
    ),
    **dict.fromkeys(("kernels", "modules"), ("kernels", "Show the kernels and modules", "memory")),
    "memory": ("memory", "Show the memory", "memory_alt"),
}


def show_evidence(query: Query) -> None:
    """Draws a link to the page with the rows that a finding rests on, if there is one."""
    if query.frame in PAGES_OF_ROWS:
        path, label, icon = PAGES_OF_ROWS[query.frame]
        rank = query.where.get("rank")
        first = rank[0] if isinstance(rank, list) and rank else rank
        show_link(path, label, icon=icon, **({"rank": first} if first is not None else {}))


def show_table(table: Table, first: tuple[str, Sequence[str]] | None = None) -> None:
    """Draws a table without unknown columns. Cells may hold text from any source: Markdown in them is escaped.
    ``first``: the heading of a column before the others and its cells, which are Markdown."""
    known = table.known()
    headings = list(map(known.capital, known.columns))
    rows = [dict(zip(headings, map(plain, row), strict=True)) for row in known.texts(EMPTY)]
    if first is not None:
        heading, cells = first
        rows = [{heading: cell, **row} for cell, row in zip(cells, rows, strict=True)]
    st.table(rows, border="horizontal", hide_index=True)


def show_rows(
    table: Table,
    key: str,
    alt: str,
    at_first: Sequence[str] = (),
    on_select: Literal["rerun"] | Callable[[], None] | None = None,
    selection_mode: Literal["single-row", "multi-row"] = "single-row",
    **options: Any,
) -> Any:
    """Draws a table that can be sorted, without unknown columns: its numbers are numbers. The columns ``at_first``,
    then the more important ones, come first, as the table may be wider than the window. Control characters in texts
    are shown as escapes. Long names that have a short form are short, and stand in full in a last column."""
    names = _short_names(table)
    known = table.plain().known()
    columns = sorted(known.columns, key=lambda column: (column.id not in at_first, column.weight > 0, -column.weight))
    order = [column.sortable_heading for column in columns]
    rows: list[dict[str, Any]] = [
        {column.sortable_heading: _number(column, value) for column, value in zip(known.columns, row, strict=True)}
        for row in known.rows
    ]
    for heading, short in names.items():
        order.append(f"{heading}{_IN_FULL}")
        for row, name in zip(rows, short, strict=True):
            row |= {heading: visible(name), order[-1]: row[heading]}
    chosen: dict[str, Any] = {} if on_select is None else {"on_select": on_select, "selection_mode": selection_mode}
    return st.dataframe(
        rows,
        key=key,
        hide_index=True,
        placeholder=EMPTY,
        column_order=order,
        column_config={column.sortable_heading: _config(column) for column in known.columns},
        alt=alt,
        **chosen,
        **options,
    )


_IN_FULL = ", in full"


def _short_names(table: Table) -> dict[str, list[str]]:
    """By heading, the texts of the columns whose long names have a short form."""
    names: dict[str, list[str]] = {}
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        if column.long and not column.weight and any(isinstance(it, Cell) and it.text != it.value for it in cells):
            names[column.sortable_heading] = [it.text if isinstance(it, Cell) else str(it or "") for it in cells]
    return names


def _number(column: Column, value: Any) -> Any:
    """The value as a sortable column has it."""
    if isinstance(value, str):
        return visible(value)
    scaled = value is not None and column.unit.per != 1
    return value / column.unit.per if scaled else value


def _config(column: Column) -> Any:
    config: dict[str, Any] = {"help": column.meaning or None, "pinned": True if column.weight == 0 else None}
    if column.unit is MOMENT:
        return st.column_config.DatetimeColumn(**config, format="YYYY-MM-DD HH:mm")
    if column.unit.type in ("Int64", "Float64"):
        return st.column_config.NumberColumn(**config, format=column.unit.format)
    return st.column_config.TextColumn(**config, width="medium" if column.long and not column.weight else None)


def show_code(text: str, language: str | None) -> None:
    """Draws a command or code. Control characters, which could hide or reorder text, are shown as escapes."""
    st.code(visible_lines(text), language=language, wrap_lines=True)


def nothing(sentence: str, hint: str = "") -> None:
    """A message on a page that would be empty: what is missing, and what records it (commands in backticks)."""
    st.info(f"{prose(sentence)} {prose(hint)}".strip(), icon=":material/info:")


def beyond_summaries(title: str, view: RunView) -> bool:
    """Whether only the ranks' summaries were read, so that the page cannot be drawn; shows a message then."""
    if not view.result.from_summaries:
        return False
    head(title, view, "Not in the ranks' summaries")
    run = in_command(str(view.result.tables.root))
    ranks = f" --ranks {','.join(map(str, view.culprits))}" if view.culprits else ""
    nothing(
        f"{len(view.result.coverage.ranks_used):,} ranks are too many to read all their records, so only the summary "
        "of each was read. The overview shows what the summaries hold.",
        f"`diag trace {run}{ranks}` records a profiler window of ranks while the job runs; "
        f"`diag analyze --no-summary {run}` reads everything.",
    )
    return True


def without_steps(title: str, view: RunView) -> bool:
    """Whether only durations of collectives were recorded, so that the page cannot be drawn; shows a message then."""
    if view.result.attribution.steps:
        return False
    head(title, view, "Not in the files")
    nothing(
        f"{ONLY_DURATIONS}. The overview and the collectives page show what they hold.",
        "`diag run` records the steps of a training.",
    )
    return True


def show_error(error: DiagError, title: str) -> None:
    """Shows an error that the user can correct: what is wrong, in which file, and what to do next."""
    st.error(plain(f"{error.path}: {error.message}" if error.path else error.message), title=title)
    if error.hint:
        st.info(prose(error.hint), icon=":material/lightbulb:")


_NUMBER = re.compile(r"[0-9][0-9,.]*")


def show_gaps(gaps: Sequence[Gap]) -> None:
    """Draws what could not be read: a line for each reason, whatever numbers are in it, with how many files it is of.
    Their names are in a fold."""
    kinds: dict[str, list[Gap]] = {}
    for gap in gaps:
        kinds.setdefault(_NUMBER.sub("…", gap.reason), []).append(gap)
    if len(gaps) < 2:
        for gap in gaps:
            st.warning(plain(gap.reason), title=plain(gap.path), icon=":material/warning:")
        return
    lines = [
        f"{alike[0].path}: {alike[0].reason}"
        if len(alike) == 1
        else f"{counted(len(alike), 'file')}: {kind if len({gap.reason for gap in alike}) > 1 else alike[0].reason}"
        for kind, alike in kinds.items()
    ]
    st.warning(bullets(tuple(lines)) if len(lines) > 1 else plain(lines[0]), icon=":material/warning:")
    named = [f"{gap.path}: {gap.reason}" for alike in kinds.values() if len(alike) > 1 for gap in alike]
    if named:
        with st.expander(f"The {counted(len(named), 'file')}"):
            st.markdown(bullets(tuple(named[: PAGE.most_gaps])))
            if len(named) > PAGE.most_gaps:
                st.caption(f"The first {PAGE.most_gaps}; `diag analyze` prints all of them.")


def bullets(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {plain(item)}" for item in items)
