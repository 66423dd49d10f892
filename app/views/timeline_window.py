"""What the timeline looks at: the rank, the step and the window, in lists, numbers, buttons and the page's address."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from diag.app.address import choose, choose_number
from diag.app.figures.common import MS
from diag.app.figures.time_axis import Window
from diag.app.run_view import RunView
from diag.show.details import AllRanks, Lane

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
    """Draws what chooses, and says what is chosen."""
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
    # A new step is a new window, whatever the address says.
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
