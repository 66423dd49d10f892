"""What every rank did when: all ranks at once, and below everything that is known of one, at any zoom."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import choose
from diag.app.figures import timeline as figures
from diag.app.figures.common import MS
from diag.app.figures.time_axis import Window, title, words
from diag.app.formatting import counted, duration, listing, plain, share
from diag.app.run_view import RunView
from diag.app.theme import theme_of
from diag.app.views.common import CONFIG, beyond_summaries, show_code
from diag.app.views.timeline_window import ALL, Look, choose_look, go_to, zoom
from diag.show.details import AllRanks, Bars, Category, Lane, Pixels, by_name, read_lanes

_ACCOUNT, _TRACE = "its steps", "its trace"
_RANGES = "ranges"
_NAME_CHARS = 100


def show(view: RunView) -> None:
    if beyond_summaries("Timeline", view):
        return
    timeline = view.result.timeline
    st.title("Timeline")
    run = view.result.tables.root.resolve().name
    parts = [counted(len(timeline.ranks), "rank"), counted(len(timeline.steps), "step"), duration(timeline.end_ns)]
    st.caption(" · ".join(plain(part) for part in ("What every rank did when", run, *parts)))
    look = choose_look(view)
    st.caption(
        plain(f"{_ms(look.window.begin_ns)} to {_ms(look.window.end_ns)} ms: {duration(look.window.dur_ns)}. ")
        + "Drag over a figure to look closer."
    )
    if timeline.loose:
        st.warning(
            plain(
                f"The clock of {listing(timeline.loose)} is not tied to the first rank's: moved so that a step begins "
                "together. Compare moments within a rank only."
            ),
            icon=":material/warning:",
        )
    _all_ranks(view, timeline, look.window)
    _one_rank(view, timeline, look)


# -- figures -----------------------------------------------------------------------------------------------------------


def _all_ranks(view: RunView, timeline: AllRanks, window: Window) -> None:
    st.subheader("All ranks", anchor="ranks")
    theme = theme_of(st.context.theme.type)
    drawn: Category | tuple[Bars, ...] | None = figures.bars_of_all(timeline, window)
    if drawn is None:
        drawn = _category(view, timeline)
        told = " The faint stripe is the rank that the others wait for." if drawn == Category.WAITING else ""
        st.markdown(f"Part of the time that each rank spends on **{plain(words(drawn))}**.{told}")
    figure = figures.overview(timeline, window, drawn, theme, view.culprits)
    _draw(figure, "ranks", window, "What every rank does over time")


def _category(view: RunView, timeline: AllRanks) -> Category:
    """What the picture of all ranks is of, where everything would be too much."""
    options = {category.value: category for category in timeline.categories}
    default = next((name for name in (Category.WAITING.value, Category.COMMUNICATION.value) if name in options), None)
    left, _ = st.columns([4, 8])
    with left:
        name = choose(
            "Shown",
            list(options),
            param="shown",
            default=default or next(iter(options)),
            within=view.run["path"],
            format_func=lambda name: words(options[name]),
            help="Closer, where there are fewer pieces, all of them are shown.",
        )
    return options[name]


def _one_rank(view: RunView, timeline: AllRanks, look: Look) -> None:
    rank, window = look.rank, look.window
    st.subheader(f"Rank {rank}", anchor="rank")
    of_rank = timeline.ranks[rank]
    rows = [row for row in read_lanes([*of_rank.lanes, *look.events], window.begin_ns, window.end_ns) if _count(row)]
    groups = {
        _ACCOUNT: [row for row in rows if row.lane in of_rank.lanes],
        _TRACE: [row for row in rows if row.lane not in of_rank.lanes],
    }
    if rows:
        shown = {heading: own for heading, own in groups.items() if own}
        figure = figures.lanes(shown, timeline.steps, window, theme_of(st.context.theme.type))
        _draw(figure, "rank", window, f"What rank {rank} does over time, by kind")
    else:
        st.info("Nothing was recorded of this rank in this window.", icon=":material/info:")
    if not of_rank.traced:
        st.info(
            f"No trace of rank {rank} was recorded: its kernels, operators and copies are not known, only what its "
            "steps consist of. `diag run` records a few steps with torch.profiler unless it is told `--no-trace`; "
            "traces of your own are read as well.",
            icon=":material/lightbulb:",
        )
    elif not groups[_TRACE]:
        first = str(of_rank.traced[0])
        st.info(f"The traces of rank {rank} cover other steps: {_steps(of_rank.traced)}.", icon=":material/info:")
        st.button(f"Go to step {first}", on_click=go_to, args=(first,))
    if of_rank.traced:
        _perfetto(view, rank, _openable(timeline, look))
    _table_of_lanes(groups, window)
    _table_of_names([row.lane for row in groups[_TRACE]], window)


def _count(row: Pixels | Bars) -> int:
    return row.events if isinstance(row, Pixels) else len(row.start_ns)


def _table_of_lanes(groups: Mapping[str, Sequence[Pixels | Bars]], window: Window) -> None:
    st.markdown("**In this window**")
    rows = []
    for heading, own in groups.items():
        for row in own:
            busy = row.lane.busy_in(window.begin_ns, window.end_ns)
            kind = title(row.lane) if heading == _ACCOUNT else f"trace: {title(row.lane)}"
            rows.append(
                {
                    "Kind": plain(kind),
                    "Time": duration(busy),
                    "Share": share(busy / window.dur_ns),
                    "Pieces": f"{_count(row):,}",
                }
            )
    st.table(rows, border="horizontal", hide_index=True)


def _table_of_names(lanes: Sequence[Lane], window: Window) -> None:
    device = [lane for lane in lanes if lane.category != Category.HOST]
    chosen = device if any(lane.category == Category.COMPUTE for lane in device) else lanes
    totals = by_name([lane for lane in chosen if lane.title != _RANGES], window.begin_ns, window.end_ns)
    if not totals:
        return
    st.markdown("**Longest by name**, what they call included")
    st.table(
        [
            {
                "Name": plain(one.name if len(one.name) <= _NAME_CHARS else f"{one.name[: _NAME_CHARS - 1]}…"),
                "Kind": plain(one.lane.title),
                "Time": duration(one.total_ns),
                "Events": f"{one.events:,}",
            }
            for one in totals
        ],
        border="horizontal",
        hide_index=True,
    )


# -- Perfetto ----------------------------------------------------------------------------------------------------------


def _openable(timeline: AllRanks, look: Look) -> int:
    """The traced step that is looked at, else the first one in the window, else the first one."""
    traced, window = timeline.ranks[look.rank].traced, look.window
    if look.step != ALL and int(look.step) in traced:
        return int(look.step)
    seen = [s.step for s in timeline.steps if s.begin_ns < window.end_ns and s.end_ns > window.begin_ns]
    return next((number for number in seen if number in traced), traced[0])


def _perfetto(view: RunView, rank: int, step: int) -> None:
    with st.popover("Open in Perfetto", icon=":material/open_in_new:"):
        st.markdown(
            f"Step {step} of rank {rank} with all that its trace holds: arguments, arrows, functions of Python. Run "
            "this where the run's files are. Nothing is uploaded: Perfetto's page reads the trace from your machine."
        )
        show_code(open_command(view.result.tables.root.resolve(), rank, step), "bash")


def open_command(path: Path, rank: int, step: int) -> str:
    """What to type for a step in Perfetto."""
    return shlex.join(["diag", "open", str(path), "--rank", str(rank), "--step", str(step)])


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(figure: go.Figure, name: str, window: Window, alt: str) -> None:
    # A key of its own for each window: the box that was drawn belongs to the last one.
    key = f"{name} {window.begin_ns} {window.end_ns}"
    st.plotly_chart(
        figure, key=key, on_select=lambda: zoom(key), selection_mode="box", config=CONFIG,
        alt=f"{alt}, from {_ms(window.begin_ns)} to {_ms(window.end_ns)} milliseconds",
    )  # fmt: skip


def _steps(numbers: Sequence[int], most: int = 8) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def _ms(ns: int) -> str:
    return f"{ns / MS:,.3f}"
