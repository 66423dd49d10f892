"""What every rank did when: all ranks at once, and below all lanes of one, at any zoom."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from diag.app.address import choose, choose_number
from diag.app.figures import MS
from diag.app.markup import plain
from diag.app.run_view import RunView
from diag.app.theme import theme_of
from diag.app.views import time_figures as figures
from diag.app.views.time_figures import Window, title, words
from diag.tables.zoom import AllRanks, Bars, Category, Lane, Pixels, by_name, read_lanes
from diag.words.formatting import counted, duration, listing, share

from .common import CONFIG, beyond_summaries, show_code, without_steps

# -- timeline window ---------------------------------------------------------------------------------------------------
#
# What the timeline looks at: the rank, the step and the window, in lists, numbers, buttons and the page's address.

ALL = "all"  # instead of a step
_OUT = 3  # how much wider "Out" makes the window
_SHORTEST_NS = 1000
_STATE = "timeline limits"  # the window and the furthest that it may reach, in ms, as last shown


@dataclass(frozen=True)
class Look:
    """``step`` is ALL or a number as text; the window need not be that of the step. ``events``: those of the rank."""

    rank: int
    step: str
    window: Window
    events: tuple[Lane, ...]


def choose_look(view: RunView) -> Look:
    """Draws the choices; returns what is chosen."""
    timeline = view.result.timeline
    steps = [str(step.step) for step in timeline.steps]
    guilty = next((rank for rank in view.culprits if rank in timeline.ranks), min(timeline.ranks))
    within = view.run["path"]
    columns = st.columns([2, 3, 2, 2, 3], vertical_alignment="bottom")
    with columns[0]:
        rank = int(choose("Rank", list(map(str, timeline.ranks)), param="rank", default=str(guilty), within=within))
    with columns[1]:
        step = choose(
            "Step",
            [ALL, *steps],
            param="step",
            default=ALL,
            within=within,
            format_func=lambda name: "the whole run" if name == ALL else view.step_names.get(name, name),
            help="From the first rank's begin to the last one's end.",
        )
    with st.spinner("Reading the trace…"):
        events = view.result.events_of(rank)
    low, high = _extent(timeline, events)
    chosen = next((span for span in timeline.steps if str(span.step) == step), None)
    begin, end = (chosen.begin_ns, chosen.end_ns) if chosen is not None else (low, high)
    limits = _floor(low), _ceil(high)
    # A new step is a new window, even if the address names another.
    of_step = f"{within} {step}"
    with columns[2]:
        first = choose_number(
            "From, ms", param="from", default=_floor(begin), low=limits[0], high=limits[1], within=of_step
        )
    with columns[3]:
        last = choose_number("To, ms", param="to", default=_ceil(end), low=limits[0], high=limits[1], within=of_step)
    window = window_between(first, last)
    st.session_state[_STATE] = window.begin_ns / MS, window.end_ns / MS, *limits
    _buttons(steps, step)
    return Look(rank, step, window, events)


def window_between(one_ms: float, other_ms: float) -> Window:
    """The window between two moments, whichever comes first: whole microseconds, at least one."""
    begin, end = (round(ms * 1000) * 1000 for ms in sorted((one_ms, other_ms)))
    return Window(begin, max(end, begin + _SHORTEST_NS))


def go_to(step: str) -> None:
    """For a button: looks at a step."""
    st.session_state["step"] = step


def zoom(key: str) -> None:
    """For a figure: a box drawn over it is the new window."""
    boxes = st.session_state[key].selection.box
    if not boxes:
        return
    *_, low, high = st.session_state[_STATE]
    first, last = sorted(float(x) for x in boxes[0]["x"])
    if math.isfinite(first) and math.isfinite(last):
        _look_at(min(max(first, low), high), min(max(last, low), high))


def _buttons(steps: Sequence[str], step: str) -> None:
    here = steps.index(step) if step in steps else -1
    before = steps[here - 1] if here > 0 else ""
    after = steps[here + 1] if here + 1 < len(steps) else ""
    with st.container(horizontal=True, gap="small"):
        _button("Previous step", "arrow_back", lambda: go_to(before), enabled=bool(before))
        _button("Next step", "arrow_forward", lambda: go_to(after), enabled=bool(after))
        _button("Out", "zoom_out", _out, help="Three times as much, around the same middle.")
        _button("Whole run", "zoom_out_map", _whole)


def _button(label: str, icon: str, do: Callable[[], None], *, enabled: bool = True, help: str | None = None) -> None:
    st.button(label, icon=f":material/{icon}:", on_click=do, disabled=not enabled, help=help)


def _out() -> None:
    begin, end, low, high = st.session_state[_STATE]
    more = (end - begin) * (_OUT - 1) / 2
    _look_at(max(low, begin - more), min(high, end + more))


def _whole() -> None:
    *_, low, high = st.session_state[_STATE]
    st.session_state["step"] = ALL
    _look_at(low, high)


def _look_at(begin_ms: float, end_ms: float) -> None:
    st.session_state["from"], st.session_state["to"] = begin_ms, end_ms


def _extent(timeline: AllRanks, events: Sequence[Lane]) -> tuple[int, int]:
    """All steps of all ranks, and the events of the chosen one: the first step's host begins before its device."""
    begins = [int(lane.start_ns[0]) for lane in events]
    ends = [int(lane.end_ns.max()) for lane in events]
    return min([0, *begins]), max([timeline.end_ns, *ends])


def _floor(ns: int) -> float:
    return ns // 1000 / 1000


def _ceil(ns: int) -> float:
    return -(-ns // 1000) / 1000


_ACCOUNT, _TRACE = "its steps", "its trace"
_RANGES = "ranges"
_NAME_CHARS = 100


def show(view: RunView) -> None:
    if without_steps("Timeline", view) or beyond_summaries("Timeline", view):
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
        stripe = " The faint stripe is the rank that the others wait for." if drawn == Category.WAITING else ""
        st.markdown(f"Share of the time that each rank spends on **{plain(words(drawn))}**.{stripe}")
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
            f"No trace of rank {rank} was recorded: its kernels, operators and copies are not known, only the parts of "
            "its steps. `diag run` records a few steps with torch.profiler without `--no-trace`; "
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
    """The chosen step if it is traced, else the first one in the window, else the first one."""
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
