"""Every rank over time: a canvas of all ranks, and of all lanes of up to two pinned ranks, at any zoom. Below it: sums
over its window.

The page's address holds what is shown, so that a link opens the same view: ``rank`` and ``beside`` (the pinned ranks),
``step`` (a number or "all"), ``from`` and ``to`` (the window, in ms since the run's begin; without them, the step),
``find`` (the search text) and ``python`` (1: Python functions are drawn). `diag.app.address.href` makes such an
address.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from diag.app.address import choose, choose_number, set_choices
from diag.app.figures import MS
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import RunView
from diag.app.theme import Theme, theme_of
from diag.app.timeline_data.perfetto import StepToOpen, step_to_open
from diag.app.timeline_data.source import share as share_run
from diag.app.timeline_data.source import source_of
from diag.app.timeline_data.work import drawn_name, words, work_colours, work_words
from diag.perfetto import UI
from diag.tables.overlays import has_path
from diag.tables.zoom import WORK, AllRanks, Category, Lane, by_name
from diag.timeline import timeline_of
from diag.words.formatting import counted, duration, listing, visible
from diag.words.table import COUNT, DURATION, SHARE, Column, table_of

from .common import beyond_summaries, component, show_code, show_table, without_steps

# -- timeline window ---------------------------------------------------------------------------------------------------
#
# What the timeline shows: the ranks, the step, the window and the search. They are set in lists, number fields, the
# canvas and the page's address.

ALL = "all"  # instead of a step
NONE = "none"  # instead of a second rank
_STATE = "timeline limits"  # the run, the window and its limits, in ms, as last shown
_DRAWN, _TURN = "timeline drawn", "timeline turn"  # the last view sent to the canvas; how many the page chose
_BY_CANVAS = "timeline moved"  # whether the current choices come from the canvas
_CANVAS = "timeline canvas"
_FIND, _PYTHON, _ON = "find", "python", "1"


@dataclass(frozen=True)
class Window:
    """The part of the run that is shown, in ns since its begin."""

    begin_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Look:
    """What the timeline shows. ``step``: ALL or a number as text; the window may differ from the step's. ``beside``: a
    second pinned rank, or None. ``find``: the search text, or "". ``python``: Python functions are drawn."""

    rank: int
    beside: int | None
    step: str
    window: Window
    find: str
    python: bool

    @property
    def pinned(self) -> tuple[int, ...]:
        return (self.rank,) if self.beside in (None, self.rank) else (self.rank, self.beside)


def choose_look(view: RunView) -> Look:
    """Draws the lists and number fields; returns what is chosen."""
    timeline = timeline_of(view.result)
    steps = [str(step.step) for step in timeline.steps]
    named = view.page.rank if view.page.rank in timeline.ranks else min(timeline.ranks)
    within = view.run["path"]
    columns = st.columns([1, 1, 2, 1, 1])
    ranks = list(map(str, timeline.ranks))
    with columns[0]:
        rank = int(choose("Rank", ranks, param="rank", default=str(named), within=within))
    with columns[1]:
        beside = choose(
            "Second rank",
            [NONE, *ranks],
            param="beside",
            default=NONE,
            within=within,
            help="Drawn next to the first rank, with all its lanes.",
        )
    with columns[2]:
        step = choose(
            "Step",
            [ALL, *steps],
            param="step",
            default=_opening_step(view, steps),
            within=within,
            format_func=lambda name: "the whole run" if name == ALL else view.step_names.get(name, name),
            help="From the first rank's begin to the last rank's end.",
        )
    chosen = next((span for span in timeline.steps if str(span.step) == step), None)
    begin, end = (chosen.begin_ns, chosen.end_ns) if chosen is not None else (0, timeline.end_ns)
    limits = _floor(0), _ceil(timeline.end_ns)
    _follow(within, limits)
    # A new step sets a new window, even if the address names another window.
    of_step = f"{within} {step}"
    with columns[3]:
        first = choose_number(
            "From, ms",
            param="from",
            default=_floor(begin),
            low=limits[0],
            high=limits[1],
            within=of_step,
        )
    with columns[4]:
        last = choose_number("To, ms", param="to", default=_ceil(end), low=limits[0], high=limits[1], within=of_step)
    window = window_between(first, last)
    st.session_state[_STATE] = within, window.begin_ns / MS, window.end_ns / MS, *limits
    second = int(beside) if beside != NONE else None
    return Look(rank, second, step, window, _in_address(_FIND), _in_address(_PYTHON) == _ON)


def _opening_step(view: RunView, steps: Sequence[str]) -> str:
    """What is shown first: the whole run of few ranks; of many, whose rows cannot be read at that scale, the step in
    which the first finding costs most, else the first one that counts."""
    if len(timeline_of(view.result).ranks) <= DASHBOARD.ranks_by_number:
        return ALL
    counted_steps = [str(step) for step, counts in zip(view.steps, view.counted.tolist(), strict=True) if counts]
    places = [str(card.place.step) for card in view.page.findings if card.place is not None]
    return next((step for step in (*places, *counted_steps) if step in steps), ALL)


def window_between(first_ms: float, second_ms: float) -> Window:
    """The window between two moments in either order: whole microseconds, at least one."""
    begin, end = (round(ms * 1000) * 1000 for ms in sorted((first_ms, second_ms)))
    return Window(begin, max(end, begin + DASHBOARD.shortest_view_ns))


def go_to(step: str) -> None:
    """Shows a step; called by buttons."""
    set_choices(step=step)


def _follow(run: str, limits: tuple[float, float]) -> None:
    """Extends a window that covers a whole run when that run, which still trains, has grown."""
    shown_run, *shown, low, high = st.session_state.get(_STATE, ("", 0.0, 0.0, 0.0, 0.0))
    if shown_run == run and shown == [low, high] and limits != (low, high):
        _look_at(*limits)
        st.session_state[_BY_CANVAS] = True  # the canvas follows the run by itself


def _in_address(name: str) -> str:
    """The value that was chosen in the canvas or is in the address, else ""."""
    requested, shown = st.query_params.get(name, ""), st.session_state.get(f"{name} as last shown", "")
    if requested != shown:  # a link was opened
        st.session_state[name] = requested
    text = str(st.session_state.get(name, ""))[: DASHBOARD.most_search_chars]
    st.session_state[f"{name} as last shown"] = text
    if text:
        st.query_params[name] = text
    else:
        st.query_params.pop(name, None)
    return text


def _look_at(begin_ms: float, end_ms: float) -> None:
    st.session_state["from"], st.session_state["to"] = begin_ms, end_ms


def moved(canvas: Any) -> None:
    """Adopts what the canvas reports after the user zoomed, pinned or searched in it."""
    look = canvas.look
    _, _, _, low, high = st.session_state[_STATE]
    begin, end = (min(max(ns / MS, low), high) for ns in (float(look["from"]), float(look["to"])))
    chosen = st.session_state["step"] if look["step"] is None else str(int(look["step"]))
    step, begin, end = (ALL, low, high) if look["whole"] else (chosen, begin, end)
    pinned = [str(int(rank)) for rank in look["pinned"][:2]]
    ranks = dict(zip(("rank", "beside"), (*pinned, NONE), strict=False)) if pinned else {}
    python = _ON if look["python"] else ""
    set_choices(**ranks, step=step, find=str(look["find"]), python=python, **{"from": begin, "to": end})
    st.session_state[_BY_CANVAS] = True


def _floor(ns: int) -> float:
    return ns // 1000 / 1000


def _ceil(ns: int) -> float:
    return -(-ns // 1000) / 1000


def show(view: RunView) -> None:
    if without_steps("Timeline", view) or beyond_summaries("Timeline", view):
        return
    timeline = timeline_of(view.result)
    st.title("Timeline")
    run = view.result.tables.root.resolve().name
    parts = [counted(len(timeline.ranks), "rank"), counted(len(timeline.steps), "step"), duration(timeline.end_ns)]
    st.caption(" · ".join(plain(part) for part in ("Activity of every rank over time", run, *parts)))
    if timeline.loose:
        st.warning(
            plain(
                f"The clock offset to the first rank is not known for {listing(timeline.loose)}: timestamps are "
                "shifted so that a step begins at the same time. Compare them only within a rank."
            ),
            icon=":material/warning:",
        )
    st.fragment(_looked_at)(view)  # a zoom draws this part of the page again, not the whole page


def _looked_at(view: RunView) -> None:
    timeline = timeline_of(view.result)
    canvas = st.container()
    with st.expander("Rank, step and window in numbers"):
        look = choose_look(view)
    with canvas:
        _canvas(view, look)
    st.subheader(f"Rank {look.rank}", anchor="rank")
    st.caption(plain(f"{_ms(look.window.begin_ns)} to {_ms(look.window.end_ns)} ms: {duration(look.window.dur_ns)}"))
    _of_rank(view, timeline, look)


def _of_rank(view: RunView, timeline: AllRanks, look: Look) -> None:
    of_rank = timeline.ranks[look.rank]
    with st.spinner("Reading the trace…"):
        events = source_of(share_run(view.result)).events(look.rank)
    window = look.window
    traced = [lane for lane in events if _pieces(lane, window)]
    account = [lane for lane in of_rank.lanes if _pieces(lane, window)]
    if not account and not traced:
        st.info("Nothing was recorded for this rank in this window.", icon=":material/info:")
    if not of_rank.traced:
        st.info(
            f"No trace of rank {look.rank} was recorded: its kernels, operators and copies are not known, only the "
            "parts of its steps. `diag run` records a few steps with torch.profiler without `--no-trace`; "
            "traces of your own are read as well.",
            icon=":material/lightbulb:",
        )
    elif not traced:
        first = str(of_rank.traced[0])
        st.info(f"The traces of rank {look.rank} cover other steps: {_steps(of_rank.traced)}.", icon=":material/info:")
        st.button(f"Go to step {first}", on_click=go_to, args=(first,))
    _perfetto(view, look)
    _table_of_lanes({"": account, "trace: ": traced}, window)
    _table_of_names(traced, window)


def _pieces(lane: Lane, window: Window) -> int:
    return len(lane.visible(window.begin_ns, window.end_ns))


def _table_of_lanes(groups: Mapping[str, Sequence[Lane]], window: Window) -> None:
    st.markdown("**In this window**")
    shown = [(f"{prefix}{title(lane)}", lane) for prefix, lanes in groups.items() for lane in lanes]
    busy = [lane.busy_in(window.begin_ns, window.end_ns) for _, lane in shown]
    show_table(
        table_of(
            "lanes",
            "In this window",
            {
                Column("kind", weight=0): [name for name, _ in shown],
                Column("time_ns", DURATION, label="time"): busy,
                Column("share", SHARE): [ns / window.dur_ns for ns in busy],
                Column("pieces", COUNT): [_pieces(lane, window) for _, lane in shown],
            },
        )
    )


def title(lane: Lane) -> str:
    """The name of a lane; a lane of the account is named after its category."""
    return words(lane.category) if lane.title == lane.category.value else lane.title


def _table_of_names(lanes: Sequence[Lane], window: Window) -> None:
    device = [lane for lane in lanes if lane.category != Category.HOST]
    chosen = device if any(lane.category == Category.COMPUTE for lane in device) else lanes
    totals = by_name([lane for lane in chosen if lane.title != "ranges"], window.begin_ns, window.end_ns)
    if not totals:
        return
    st.markdown("**Longest by name**, including nested calls")
    most = DASHBOARD.event_name_chars
    shorter = [drawn_name(total.name, total.lane.category) for total in totals]
    names = [name if len(name) <= most else f"{name[: most - 1]}…" for name in shorter]
    show_table(
        table_of(
            "names",
            "Longest by name",
            {
                Column("name", weight=0): names,
                Column("time_ns", DURATION, label="time"): [total.total_ns for total in totals],
                Column("events", COUNT): [total.events for total in totals],
                Column("kind"): [total.lane.title for total in totals],
            },
        )
    )


def _perfetto(view: RunView, look: Look) -> None:
    """Draws the command to use where the canvas's button does not help: from another machine, or for a file."""
    chosen = _to_open(view, look)
    if chosen is None:
        return
    step = f"Step {chosen.step} of rank {chosen.rank}"
    with st.popover("Perfetto from the command line", icon=":material/terminal:"):
        what = "with everything in its trace: arguments, flow arrows, Python functions"
        st.markdown(
            f"{step} {what if chosen.profiled else f'was not profiled: {_RECORDED}'}. "
            "Run this where the run's files are. Nothing is uploaded: Perfetto's page reads the trace from your "
            "machine, as it does with the button above that names the step."
        )
        root = view.result.tables.root.resolve()
        commands = [open_command(root, chosen.step, chosen.rank)]
        if len(timeline_of(view.result).ranks) > 1:
            commands += ["# all ranks on one timeline:", open_command(root, chosen.step)]
        show_code("\n".join(commands), "bash")


_RECORDED = "it has its recorded phases and collectives only"


def _to_open(view: RunView, look: Look) -> StepToOpen | None:
    """The step of the window for Perfetto."""
    source = source_of(share_run(view.result))
    return step_to_open(source, look.rank, look.window.begin_ns, look.window.end_ns)


def _perfetto_button(view: RunView, look: Look) -> dict[str, Any]:
    """The canvas's button, which says what it opens: ``step`` None if there is nothing to open."""
    chosen = _to_open(view, look)
    if chosen is None:
        why = f"No step of rank {look.rank} in this window was profiled or recorded step by step."
        traced = timeline_of(view.result).ranks[look.rank].traced
        return {
            "rank": look.rank,
            "step": None,
            "label": "Open in Perfetto",
            "short": "In Perfetto",
            "about": f"{why} Its traces cover other steps: {_steps(traced)}." if traced else why,
        }
    of_rank = f" of rank {chosen.rank}" if len(look.pinned) > 1 else ""
    what = "with everything in its trace" if chosen.profiled else f"was not profiled: {_RECORDED}"
    return {
        "rank": chosen.rank,
        "step": chosen.step,
        "label": f"Open step {chosen.step}{of_rank} in Perfetto{'' if chosen.profiled else ' (not profiled)'}",
        "short": f"Step {chosen.step} in Perfetto",
        "about": f"Step {chosen.step} of rank {chosen.rank} {what}. Nothing is uploaded: Perfetto's page gets it from "
        "this one.",
        "together": 1 < len(timeline_of(view.result).ranks) <= DASHBOARD.most_ranks_together,
    }


def open_command(path: Path, step: int, rank: int | None = None) -> str:
    """The command that opens a step in Perfetto, of one rank or of all."""
    whose = ["--ranks", "all"] if rank is None else ["--rank", str(rank)]
    return shlex.join(["diag", "open", str(path), *whose, "--step", str(step)])


def _canvas(view: RunView, look: Look) -> None:
    source = share_run(view.result)
    chosen = (view.run["path"], look)
    by_canvas = st.session_state.pop(_BY_CANVAS, False)
    if st.session_state.get(_DRAWN) != chosen and not by_canvas:
        st.session_state[_TURN] = st.session_state.get(_TURN, 0) + 1
    st.session_state[_DRAWN] = chosen
    data = {
        "source": source,
        "turn": st.session_state.get(_TURN, 0),
        "window": [look.window.begin_ns, look.window.end_ns],
        "pinned": list(look.pinned),
        "find": look.find,
        "python": look.python,
        "open": _perfetto_button(view, look),
        **contents(view, theme_of(st.context.theme.type)),
    }
    component("timeline")(
        key=_CANVAS, data=data, on_look_change=lambda: moved(st.session_state[_CANVAS]), on_stale_change=lambda: None
    )


def contents(view: RunView, theme: Theme) -> dict[str, Any]:
    """What the canvas needs of the run: its steps and ranks, and the names and colours of each kind of work."""
    timeline = timeline_of(view.result)
    ranks = _ordered(view)
    hosts = len({rank["host"] for rank in ranks})
    traced = {step for rank in timeline.ranks.values() for step in rank.traced}
    return {
        "begin": 0,
        "end": max(timeline.end_ns, DASHBOARD.shortest_view_ns),
        "steps": [[span.step, span.begin_ns, span.end_ns, int(span.step in traced)] for span in timeline.steps],
        "ranks": ranks,
        "by_host": len(ranks) > DASHBOARD.ranks_by_number and 1 < hosts < len(ranks),
        **_first_ranks(view),
        "perfetto": UI,
        "has_path": has_path(timeline),
        "order": "worst first by the time that others waited for them"
        if len(ranks) > DASHBOARD.ranks_by_number
        else "by number",
        "works": [work_words(work) for work in WORK],
        "colours": work_colours(theme),
        "theme": canvas_theme(theme),
    }


def canvas_theme(theme: Theme) -> dict[str, str]:
    """The page's colours, by the canvas's names for them."""
    return {
        "name": theme.name,
        "ground": theme.ground,
        "ink": theme.ink,
        "soft": theme.soft,
        "faint": theme.faint,
        "accent": _ACCENT[theme.name],
        "traced": _TRACED[theme.name],
    }


_ACCENT = {"light": "#0072b2", "dark": "#4ba3e3"}
_TRACED = {"light": "#dbe9f6", "dark": "#23384a"}  # behind the numbers of steps that the profiler recorded


def _ordered(view: RunView) -> list[dict[str, Any]]:
    """The ranks in drawing order: few by number; many worst first, grouped by host."""
    rows = {row["rank"]: row for row in view.result.ranks.select("rank", "host", "caused_wait_ns").to_dicts()}
    ranks = [_Rank.of(rank, rows.get(rank, {}), rank in view.culprits) for rank in timeline_of(view.result).ranks]
    if len(ranks) > DASHBOARD.ranks_by_number:
        worst: dict[str, tuple[bool, int]] = {}
        for entry in ranks:
            worst[entry.host] = max(worst.get(entry.host, (False, 0)), entry.badness)
        ranks.sort(key=lambda entry: entry.badness, reverse=True)  # ties stay ordered by number
        ranks.sort(key=lambda entry: entry.host)
        ranks.sort(key=lambda entry: worst[entry.host], reverse=True)
    return [
        {"rank": entry.rank, "host": entry.host, "at_fault": entry.at_fault, "about": entry.about} for entry in ranks
    ]


def _first_ranks(view: RunView) -> dict[str, Any]:
    """Of many ranks those that are drawn until one asks for the others, and why these: the ranks at fault, then those
    that wait longest; without a rank at fault, those that others wait for."""
    table = view.result.ranks.select("rank", "exposed_wait_ns", "caused_wait_ns").to_dicts()
    if len(timeline_of(view.result).ranks) <= DASHBOARD.ranks_by_number:
        return {"first": [], "first_order": ""}
    culprits = [rank for rank in view.culprits if rank in timeline_of(view.result).ranks]
    most, by = DASHBOARD.ranks_unfolded, "exposed_wait_ns" if culprits else "caused_wait_ns"
    others = sorted(
        (row for row in table if row["rank"] not in culprits), key=lambda row: (-(row[by] or 0), row["rank"])
    )
    first = culprits[: most // 2] if len(others) >= most // 2 else culprits
    order = "at fault first, then those that wait longest" if culprits else "those that others wait for longest"
    return {"first": [*first, *(row["rank"] for row in others)][:most], "first_order": order}


@dataclass(frozen=True)
class _Rank:
    rank: int
    host: str
    at_fault: bool
    waited_ns: int  # time per step that others wait for this rank

    @classmethod
    def of(cls, rank: int, row: Mapping[str, Any], at_fault: bool) -> _Rank:
        return cls(rank, visible(row.get("host") or ""), at_fault, row.get("caused_wait_ns") or 0)

    @property
    def badness(self) -> tuple[bool, int]:
        return self.at_fault, self.waited_ns

    @property
    def about(self) -> str:
        waited = f"others waited {duration(self.waited_ns)} a step for it" if self.waited_ns else ""
        parts = (f"rank {self.rank}", self.host, "at fault" if self.at_fault else "", waited)
        return " · ".join(part for part in parts if part)


def _steps(numbers: Sequence[int], most: int = 8) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def _ms(ns: int) -> str:
    return f"{ns / MS:,.3f}"
