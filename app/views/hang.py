"""Hang triage of logs and dumps, from the run, from another path or uploaded: which ranks are at fault, and why."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from diag.api import split_job, state_of
from diag.app.address import choose, choose_path, show_link
from diag.app.figures import finish
from diag.app.markup import label, plain, prose
from diag.app.policy import DASHBOARD
from diag.app.run_view import Part
from diag.app.theme import Theme, theme_of
from diag.app.views.common import bullets, draw, show_code, show_error, show_table
from diag.ended.model import Source
from diag.errors import DiagError
from diag.hang.api import (
    At,
    GroupPlaces,
    Investigation,
    Place,
    by_reason,
    guess_words,
    investigate,
    newest_write,
    places_of,
)
from diag.hang.model import Stack
from diag.hang.ras.live import NOT_COUNTED, Seen, Watch, recorded, recorded_ns
from diag.words.formatting import counted, listing, share, visible
from diag.words.table import Column, table_of

_RUN, _PATH, _UPLOAD = "run", "path", "upload"
_LABELS = {_RUN: "this run", _PATH: "a path in this folder", _UPLOAD: "uploaded files"}
_REFUSED = "Nothing to triage"
_FRAME = re.compile(r"(?P<name>.+?) \((?P<file>.+)", re.DOTALL)  # of a Stack
NO_GROUPS = "The logs name no group. Flight Recorder dumps contain all groups and the last calls of each rank."
NO_GROUPS_OF_NCCL = (
    f"{NO_GROUPS} NCCL prints its communicators with NCCL_DEBUG=INFO, and the calls on them with "
    "NCCL_DEBUG_SUBSYS=INIT,COLL."
)
_COLOUR: dict[str, Any] = {"healthy": "green", "undetermined": "orange"}
_ICON = {"healthy": ":material/check_circle:", "undetermined": ":material/help:"}


def show(root: Path, run: Path) -> None:
    """``root``: the dashboard's folder; nothing outside of it is read."""
    run = Path(split_job(run)[0])
    st.title("Hang triage")
    st.caption(
        "Logs (NCCL, PyTorch, launchers, the kernel), stacks and Flight Recorder dumps: who is at fault, and why."
    )
    left, right = st.columns([2, 4])
    with left:
        source = choose("Logs", list(_LABELS), param="logs", default=_RUN, format_func=_LABELS.__getitem__)
    with right:
        read = _chosen(source, root, run)
    investigation = _read(read) if read is not None else None
    if investigation is not None:
        _answer(investigation)
    if source == _RUN:
        _ras(run)
    if investigation is not None:
        _places(investigation)
        _evidence(investigation.triage.evidence)
        _stacks(investigation.triage.stacks)
        _reasons(investigation)


def investigated(path: Path) -> Investigation:
    """The triage of a run or of any files, as the page shows it. DiagError if there is nothing to triage."""
    return _of_path(str(path), newest_write(str(path)))


def show_answer(path: Path) -> None:
    """Draws the answer alone, with a link to the page. DiagError if there is nothing to triage."""
    triage = investigated(path)
    if triage.triage.fault_class == "healthy":
        return
    st.subheader("Hang triage", anchor=False)
    _answer(triage)
    show_link("hang", "Evidence and what was ruled out", icon="search")


# -- where the logs are ------------------------------------------------------------------------------------------------


def _chosen(source: str, root: Path, run: Path) -> Callable[[], Investigation] | None:
    """A function that reads the chosen logs; None until some are chosen."""
    if source == _UPLOAD:
        return _of_upload()
    path = run if source == _RUN else _typed(root)
    return partial(_of_path, str(path), newest_write(str(path))) if path is not None else None


def _read(reader: Callable[[], Investigation]) -> Investigation | None:
    try:
        return reader()
    except DiagError as error:
        show_error(error, _REFUSED)
        return None


def _typed(root: Path) -> Path | None:
    placeholder = "a file or folder inside the folder that is shown"
    return choose_path("Path of logs", root, param=_PATH, placeholder=placeholder, refusal=_REFUSED)


@st.cache_resource(show_spinner="Reading logs and dumps…", show_time=True, max_entries=8)
def _of_path(path: str, changed_ns: int) -> Investigation:  # noqa: ARG001 - part of the cache's key
    return investigate([path])


def _of_upload() -> Callable[[], Investigation] | None:
    files = st.file_uploader(
        "Logs and dumps",
        accept_multiple_files=True,
        help="Text logs (also .gz, .zst) and Flight Recorder dumps. They stay on the machine that serves this page, "
        "and are removed once they are read.",
    )
    if not files:
        return None
    contents = tuple((file.name, file.getvalue()) for file in files)
    digest = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for _, data in contents)).hexdigest()
    return partial(_of_contents, digest, contents)


@st.cache_resource(show_spinner="Reading logs and dumps…", show_time=True, max_entries=4)
def _of_contents(digest: str, _contents: tuple[tuple[str, bytes], ...]) -> Investigation:  # noqa: ARG001
    with tempfile.TemporaryDirectory(prefix="diag-upload-") as folder:
        for number, (name, data) in enumerate(_contents):
            place = Path(folder) / str(number)  # two files may have one name
            place.mkdir()
            (place / (Path(name).name or "log")).write_bytes(data)
        return investigate([folder])


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(investigation: Investigation) -> None:
    triage = investigation.triage
    with st.container(border=True):
        st.badge(
            triage.fault_class.replace("_", " "),
            icon=_ICON.get(triage.fault_class, ":material/error:"),
            color=_COLOUR.get(triage.fault_class, "red"),
        )
        st.subheader(plain(triage.headline), anchor=False)
        facts = [f"Confidence {share(triage.confidence)}"]
        ranks = [culprit.rank for culprit in triage.culprits if culprit.rank is not None]
        hosts = list(dict.fromkeys(culprit.host for culprit in triage.culprits if culprit.host))
        if ranks or hosts:
            where = f" on {', '.join(hosts)}" if ranks and hosts else ", ".join(hosts)
            facts.insert(0, f"At fault: {listing(ranks) if ranks else ''}{where}")
        if triage.victims:
            facts.append(f"{counted(len(triage.victims), 'rank')} only waited: {listing(triage.victims)}")
        st.markdown(" · ".join(plain(fact) for fact in facts))
        if triage.next_steps:
            st.markdown("**What to do**")
            st.markdown("\n".join(f"- {prose(step)}" for step in triage.next_steps))


def _places(investigation: Investigation) -> None:
    culprits = [culprit.rank for culprit in investigation.triage.culprits if culprit.rank is not None]
    groups = places_of(investigation.logs, investigation.dumps, culprits)
    if not groups and investigation.triage.fault_class == "healthy":
        return
    st.subheader("Ranks in each group", anchor="places")
    if not groups:
        st.info(NO_GROUPS_OF_NCCL if investigation.may_use_nccl else NO_GROUPS, icon=":material/info:")
        return
    shown, left_out = drawn_groups(groups, culprits)
    st.markdown(plain(" ".join(("Groups by ranks, with the number of each rank's last call.", *left_out))))
    draw(places(shown, culprits, theme_of(st.context.theme.type)), "places", "State of every rank in every group")


def drawn_groups(groups: Sequence[GroupPlaces], culprits: Sequence[int]) -> tuple[list[GroupPlaces], tuple[str, ...]]:
    """The groups to draw, and sentences about those left out. Those that show a fault come first, then all of the
    culprits; the others say nothing about it and fill up what room there is."""
    telling: list[GroupPlaces] = []
    others: list[GroupPlaces] = []
    for group in groups:
        (telling if group.uneven or group.holds(culprits) else others).append(group)
    room = max(0, DASHBOARD.most_groups - len(telling))
    shown = telling[: DASHBOARD.most_groups_with_a_fault] + others[:room]
    sentences = []
    if cut := len(telling[DASHBOARD.most_groups_with_a_fault :]):
        sentences.append(f"{counted(cut, 'group')} more with such ranks, not drawn.")
    if rest := len(others[room:]):
        at_fault = " and that hold no rank at fault" if culprits else ""
        sentences.append(
            f"{counted(rest, 'group')} more, whose ranks are all as far as each other{at_fault}, not drawn."
        )
    known = {place.rank for group in shown for place in group.members}
    if missing := [rank for rank in culprits if rank not in known]:
        sentences.append(f"No group that is drawn has {listing(missing)}.")
    return shown, tuple(sentences)


def _evidence(evidence: Sequence[Source]) -> None:
    if not evidence:
        return
    st.subheader("Evidence", anchor="evidence")
    lines = [visible(item.text.strip()) for item in evidence]
    files = [visible(_short(item.path)) for item in evidence]
    most = DASHBOARD.most_evidence_chars
    show_table(
        table_of(
            "evidence",
            "Evidence",
            {
                Column("where"): [
                    f"{file}:{item.line}" if item.line else file for file, item in zip(files, evidence, strict=True)
                ],
                Column("line"): [line if len(line) <= most else f"{line[:most]}…" for line in lines],
            },
        )
    )


def _stacks(stacks: Sequence[Stack]) -> None:
    if not stacks:
        return
    st.subheader("Stacks", anchor="stacks")
    for column, stack in zip(st.columns(min(2, len(stacks))), stacks[:2], strict=False):
        with column:
            st.markdown(f"**Rank {stack.rank}**, {plain(stack.what)}")
            show_code(
                "\n".join(visible(_frame(frame)) for frame in stack.frames[: DASHBOARD.most_frames]) or "no frames",
                None,
            )


def _short(path: str) -> str:
    """The path's last parts; the parts before them are the same for all files."""
    return "/".join(Path(path).parts[-DASHBOARD.path_parts :])


def _frame(frame: str) -> str:
    """The frame with its file path shortened: ``read (site-packages/data/loader.py:7)``."""
    match = _FRAME.fullmatch(frame)
    return f"{match['name']} ({_short(match['file'])}" if match is not None else frame


def _reasons(investigation: Investigation) -> None:
    triage = investigation.triage
    if triage.guesses:
        st.subheader("Next best guess", anchor="guesses")
        st.markdown(bullets(tuple(guess_words(guess) for guess in triage.guesses)))
    if triage.ruled_out:
        st.subheader("Ruled out", anchor="ruled-out")
        st.markdown(bullets(tuple(f"{item.fault_class}: {item.because}" for item in triage.ruled_out)))
    st.subheader("What was read", anchor="coverage")
    gaps = [_gap(paths, reason) for reason, paths in by_reason(triage.gaps).items()]
    st.markdown(bullets((*triage.coverage, *gaps)) or "Nothing.")


def _gap(paths: Sequence[str], reason: str) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{_short(paths[0])}{more}: {reason}" if paths[0] else reason


# -- NCCL RAS ----------------------------------------------------------------------------------------------------------


def _ras(run: Path) -> None:
    """Draws the report of NCCL RAS while the run trains, else the last report stored with the run."""
    st.fragment(_ras_now, run_every=DASHBOARD.ras_every_s if state_of(run).live else None)(run)


def watched(run: Path) -> Seen:
    """The report of NCCL RAS on a run that trains, a few seconds old at most. A background thread queries it."""
    return _watch(str(run)).look(DASHBOARD.ras_wait_s)


def ras_line(run: Path) -> None:
    """Draws one line about a run that trains; nothing if NCCL RAS does not answer."""
    seen = watched(run)
    if seen.source and not seen.why:
        text = f"NCCL {seen.summary}" if seen.summary.startswith("RAS ") else f"NCCL RAS: {seen.summary}"
        if seen.trouble:
            st.warning(plain(f"{text} Hang triage shows the ranks."), icon=":material/warning:")
        else:
            st.caption(plain(text))


@st.cache_resource(max_entries=16)
def _watch(run: str) -> Watch:
    return Watch(Path(run))


@st.cache_resource(show_spinner=False, max_entries=8)
def _stored_report(run: str, written_ns: int) -> Seen | None:
    return recorded(Path(run)) if written_ns else None


def _ras_now(run: Path) -> None:
    seen = watched(run) if state_of(run).live else None
    stored = _stored_report(str(run), recorded_ns(run)) if seen is None or not seen.source else None
    if seen is None and stored is None:
        return
    st.subheader("NCCL RAS", anchor="ras")
    if seen is not None and seen.source:
        _report(seen, age=time.time() - (seen.at_s or 0.0))
    elif seen is not None:
        st.caption(plain(seen.why))
    if stored is not None:
        _report(stored, age=None)


def _report(seen: Seen, age: float | None) -> None:
    """``age``: seconds since the report; None for a stored one."""
    if seen.trouble:
        st.warning(plain(seen.summary), icon=":material/warning:")
    else:
        st.markdown(plain(seen.summary))
    if age is None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seen.at_s)) if seen.at_s is not None else "unknown time"
    else:
        when = f"{max(0.0, age):.0f} s ago"
    st.caption(plain(f"{seen.source}, {when}. {seen.why}".strip()))
    if seen.rows:
        show_table(
            table_of(
                "ras",
                "NCCL RAS",
                {
                    Column("communicator", weight=0): [row.communicator for row in seen.rows],
                    Column("ranks"): [row.ranks for row in seen.rows],
                    Column("host"): [row.host or None for row in seen.rows],
                    Column("says", label="NCCL RAS reports"): [row.says for row in seen.rows],
                    Column("counts"): [row.still or None for row in seen.rows],
                },
            )
        )
        st.caption(NOT_COUNTED)
    if seen.more_rows:
        st.caption(f"{seen.more_rows:,} more rows are not shown.")
    if seen.lines:
        with st.expander("Raw report"):
            show_code("\n".join(seen.lines), None)


# -- figures -----------------------------------------------------------------------------------------------------------


_CELLS_PX, _CHAR_PX = 640, 6.5  # width of all cells on a window of 1,440 pixels, and of a digit in them
_ROW, _LEAST, _LEGEND = 34, 150, 32  # pixels
_GAP = 2
_STATES = tuple(At)


def colours(theme: Theme) -> dict[At, str]:
    """The colour of each position in a group; grey for the expected one."""
    part = theme.part
    return {
        At.HERE: part[Part.IDLE],
        At.BEHIND: part[Part.TRANSFER],
        At.UNFINISHED: part[Part.WAITING],
        At.NEVER_BEGAN: part[Part.TRANSFER],
        At.INITIALISING: part[Part.WAITING],
        At.ENDED: part[Part.COPY],
        At.UNKNOWN: theme.grid,
    }


def places(groups: Sequence[GroupPlaces], culprits: Sequence[int], theme: Theme) -> go.Figure:
    """A heat map of groups by ranks. The last operations stand once per row, their numbers in the cells if there is
    room; of a rank that is behind, else by how many calls."""
    shown = groups
    columns = sorted({_column(place) for group in shown for place in group.members})
    at = {column: i for i, column in enumerate(columns)}
    names = [_name(column, culprits, theme) for column in columns]
    state = np.full((len(shown), len(columns)), np.nan)
    text = [["" for _ in columns] for _ in shown]
    hover = [["" for _ in columns] for _ in shown]
    for row, group in enumerate(shown):
        for place in group.members:
            i = at[_column(place)]
            state[row, i] = _STATES.index(place.at)
            text[row][i] = _number(place, group, math.floor(_CELLS_PX / len(columns) / _CHAR_PX))
            hover[row][i] = _hover_text(group, place)
    shades = colours(theme)
    scale = [shades[state] for state in _STATES]
    figure = go.Figure(
        go.Heatmap(
            z=state,
            x=names,
            y=list(range(len(shown))),
            text=text,
            texttemplate="%{text}",
            textfont={"size": 10},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            zmin=-0.5,
            zmax=len(scale) - 0.5,
            colorscale=[(edge / len(scale), colour) for i, colour in enumerate(scale) for edge in (i, i + 1)],
            showscale=False,
            xgap=_GAP,
            ygap=_GAP,
        )
    )
    seen = {place.at for group in shown for place in group.members}
    for status in (at for at in _STATES if at in seen):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=status.value,
            marker={
                "symbol": "square",
                "size": 11,
                "color": shades[status],
                "line": {"width": 1, "color": theme.faint},
            },
            hoverinfo="skip",
        )
    for column in columns:
        if column in [(0, rank) for rank in culprits]:
            i = at[column]
            figure.add_shape(
                type="rect", x0=i - 0.5, x1=i + 0.5, y0=-0.5, y1=len(shown) - 0.5, line={"color": theme.ink, "width": 2}
            )
    return finish(
        figure,
        theme,
        max(_LEAST, 90 + _ROW * len(shown)) + _LEGEND,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"l": 8, "r": 16, "t": 8, "b": _LEGEND},
        xaxis={"type": "category", "title": None, "showgrid": False, "side": "top", "nticks": 32, "tickangle": 0},
        # Numbers, as two groups may have one name.
        yaxis={
            "autorange": "reversed", "title": None, "showgrid": False, "zeroline": False,
            "tickvals": list(range(len(shown))), "ticktext": [_row_name(group) for group in shown],
        },
    )  # fmt: skip


def _number(place: Place, group: GroupPlaces, most_chars: int) -> str:
    """The number of the member's last call, if it has that many characters; else by how many calls it is behind."""
    if len(place.at_call) <= most_chars:
        return place.at_call
    most = max((other.number for other in group.members if other.number is not None), default=None)
    behind = f"-{most - place.number}" if most is not None and place.number is not None and place.number < most else ""
    return behind if len(behind) <= most_chars else ""


def _row_name(group: GroupPlaces) -> str:
    """The group's title, and under it the operations that its ranks called last."""
    ops = list(dict.fromkeys(place.op for place in group.members if place.op))
    more = (
        f" and {len(ops) - DASHBOARD.most_operations_of_row} more"
        if len(ops) > DASHBOARD.most_operations_of_row
        else ""
    )
    called = f"<br>{label(', '.join(ops[: DASHBOARD.most_operations_of_row]), 40)}{more}" if ops else ""
    return f"{label(group.title, 40)}{called}"


def _column(place: Place) -> tuple[int, int]:
    """A sort key: ranks in order, then members whose rank is not known."""
    return (0, place.rank) if place.rank is not None else (1, place.group_rank)


def _name(column: tuple[int, int], culprits: Sequence[int], theme: Theme) -> str:
    unknown, number = column
    if unknown:
        return f"member {number}"
    return f'<b><span style="color:{theme.ink}">▾ {number}</span></b>' if number in culprits else str(number)


def _hover_text(group: GroupPlaces, place: Place) -> str:
    member = f"rank {place.rank}" if place.rank is not None else f"member {place.group_rank}"
    call = f"<br>last call: {label(place.last)}{', not finished' if place.waits else ''}" if place.last else ""
    return f"{label(group.title)}<br>{member}: {place.at.value}{call}"
