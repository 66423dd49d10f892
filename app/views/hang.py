"""Hang triage of logs and dumps, from the run, from another path or uploaded: which ranks are at fault, and why."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from diag.api import RankState, RunState, split_job
from diag.app.address import choose, choose_path, href, show_link
from diag.app.hang_matrix import matrix_of, picture_of_places
from diag.app.looks import state_of
from diag.app.markup import plain, prose
from diag.app.policy import DASHBOARD
from diag.app.standing import InOnePlace, Standing, standing_picture
from diag.app.standing import places_of as places_of_ranks
from diag.app.theme import theme_of
from diag.app.views.common import bullets, component, show_code, show_error, show_table, side_by_side
from diag.ended.model import UNDETERMINED, Source
from diag.ended.outcome import READ_MORE
from diag.errors import DiagError
from diag.hang.api import (
    GroupPlaces,
    Investigation,
    by_reason,
    guess_words,
    investigate,
    newest_write,
    places_of,
)
from diag.hang.model import Triage
from diag.hang.ras.live import NOT_COUNTED, Seen, Watch, recorded, recorded_ns
from diag.processes import python
from diag.processes import run as run_process
from diag.show.triage import stack_tree
from diag.words.formatting import counted, listing, rank_ranges, share, visible
from diag.words.table import Column, table_of
from diag.words.wording import sentence

_RUN, _PATH, _UPLOAD = "run", "path", "upload"
_LABELS = {_RUN: "this run", _PATH: "a path in this folder", _UPLOAD: "uploaded files"}
_REFUSED = "Nothing to triage"
_FRAME = re.compile(r"(?P<name>.+?) \((?P<file>.+)", re.DOTALL)  # of a Stack
NO_GROUPS = "The logs name no group. Flight Recorder dumps contain all groups and the last calls of each rank."
NO_GROUPS_OF_NCCL = (
    f"{NO_GROUPS} NCCL prints its communicators with NCCL_DEBUG=INFO, and the calls on them with "
    "NCCL_DEBUG_SUBSYS=INIT,COLL."
)
_TAKE_HELP = "As `diag triage R --stacks`: each rank writes where it is, and the training goes on as it is."
_COLOUR: dict[str, Any] = {"healthy": "green", "undetermined": "orange"}
_ICON = {"healthy": ":material/check_circle:", "undetermined": ":material/help:"}


def show(root: Path, run: Path) -> None:
    """``root``: the dashboard's folder; nothing outside of it is read."""
    run = Path(split_job(run)[0])
    left, right = side_by_side("source", (3, 1))
    with left:
        st.title("Hang triage")
        st.caption(
            "Logs (NCCL, PyTorch, launchers, the kernel), stacks and Flight Recorder dumps: who is at fault, and why."
        )
    with right:
        source = choose("Logs", list(_LABELS), param="logs", default=_RUN, format_func=_LABELS.__getitem__)
    _standing(run)
    read = _chosen(source, root, run)
    investigation = _read(read) if read is not None else None
    if investigation is not None:
        _first_screen(investigation, state_of(run) if source == _RUN else None)
    if source == _RUN:
        _ras(run)
    if investigation is not None:
        _evidence(investigation.triage.evidence)
        _stacks(investigation.triage)
        _reasons(investigation)


# -- the state of the run, while it trains -----------------------------------------------------------------------------


def _standing(run: Path) -> None:
    """Draws where each rank of a run is that is stuck, or was when its records end; follows a run that trains. The page
    is drawn again when its stacks were taken, or another rank is at fault."""
    live = state_of(run).live
    st.fragment(_standing_now, run_every=DASHBOARD.live_every_s if live else None)(run, _as_of(run) if live else "")


def _standing_now(run: Path, drawn: str) -> None:
    state = state_of(run)
    if drawn and state.stuck and _as_of(run) != drawn:
        st.rerun()
    if not state.headline:
        return
    # Who is where stands in the table, and, where a cause is known, in the headline below it.
    since = f"{state.headline.rstrip('.').partition('; ')[0]}."  # without the clauses on ranks, see `stuck_words`
    st.error(plain(since if state.by_rank and state.stuck else state.headline), icon=":material/pause:")
    if not state.by_rank:
        return
    if len(state.by_rank) > DASHBOARD.most_bars_of_ranks:
        component("picture")(key="standing", data=standing_picture(state, theme_of(st.context.theme.type)))
    places = places_of_ranks(state)
    shown = places[: DASHBOARD.most_table_ranks]
    show_table(
        table_of(
            "standing",
            "Where each rank is",
            {
                Column("ranks", weight=0): [_named(place) for place in shown],
                Column("where", label="where they are"): [place.where for place in shown],
                Column("waits_for", label="wait for"): [
                    rank_ranges(sorted(place.waits_for)) if place.waits_for else None for place in shown
                ],
            },
        )
    )
    if rest := sum(len(place.ranks) for place in places[len(shown) :]):
        st.caption(plain(f"{counted(rest, 'rank')} more in other places, not listed."))


def _named(place: InOnePlace) -> str:
    ranks = rank_ranges(place.ranks) + (f" ({len(place.ranks):,})" if len(place.ranks) > 1 else "")
    return f"at fault ▸ {ranks}" if place.standing is Standing.AT_FAULT else ranks


def investigated(path: Path) -> Investigation:
    """The triage of a run or of any files, as the page shows it. DiagError if there is nothing to triage."""
    return _of_path(str(path), _as_of(path))


def _as_of(path: Path) -> str:
    """What the triage of a path depends on: what was written, and how the ranks of a run stand."""
    state = state_of(path)
    standing = [(rank.rank, rank.state.value, rank.phase) for rank in state.behind] if state.headline else []
    return f"{newest_write(str(path))} {state.state.value} {standing}"


def show_to_do(run: Path, action: str = "") -> None:
    """Draws what to do about a run that is stuck or failed, and the stack of the first rank at fault, as this page has
    them. Follows a run that trains, so that stacks appear as soon as they are taken. ``action``: what the records say
    about it, which is left out where the page says the same."""
    every_s = DASHBOARD.curves_every_s if state_of(run).live else None
    st.fragment(_to_do_now, run_every=every_s)(run, action)


def _to_do_now(run: Path, action: str) -> None:
    link = f"[Hang triage]({href('hang')})"
    try:
        triage = investigated(run).triage
    except DiagError:
        st.markdown(f"**What to do** {prose(action)} The evidence is on {link}.")
        return
    said = [action] if action and action not in (READ_MORE, *triage.next_steps) else []  # they are read here
    steps = [*said, *triage.next_steps][: DASHBOARD.most_steps_beside]
    st.markdown("\n".join((f"**What to do** {link}", "", *(f"- {prose(step)}" for step in steps))))
    _take_stacks(state_of(run), triage, "stacks-beside-verdict")
    rank, frames = stack_at_fault(triage, [each.rank for each in state_of(run).behind])
    if frames:
        st.markdown(f"**Stack of rank {rank}**, innermost call first")
        shown = frames[: DASHBOARD.most_frames_beside]
        more = [f"… {counted(len(frames) - len(shown), 'call')} more"] if len(frames) > len(shown) else []
        show_code("\n".join([*(visible(_frame(frame)) for frame in shown), *more]), None)


def stack_at_fault(triage: Triage, behind: Sequence[int]) -> tuple[int, tuple[str, ...]]:
    """The first rank at fault that has a stack, and its frames, the innermost first; none where no stack was taken. It
    is where the process is: not where it made its last call, as a Flight Recorder's dump has it, if both are known.
    ``behind``: the ranks that the others wait for, where the triage names nobody."""
    culprits = [culprit.rank for culprit in triage.culprits if culprit.rank is not None]
    stacks = [stack for stack in triage.stacks if stack.rank in culprits and stack.frames]
    for stack in sorted(stacks, key=lambda stack: stack.what != "culprit"):
        return stack.rank, stack.frames
    for merged in triage.merged_stacks:
        for rank in merged.ranks:
            if rank in (culprits or behind):
                return rank, merged.frames
    return 0, ()


def show_answer(path: Path) -> bool:
    """Draws the answer alone, with a link to the page; whether it names a cause. DiagError if there is nothing to
    triage."""
    triage = investigated(path)
    if triage.triage.fault_class == "healthy":
        return False
    st.subheader("Hang triage", anchor=False)
    _answer(triage)
    show_link("hang", "Evidence and what was ruled out", icon="search")
    if groups := _groups(triage):
        _matrix(triage, groups)
    return triage.triage.fault_class != "undetermined"


def _chosen(source: str, root: Path, run: Path) -> Callable[[], Investigation] | None:
    """A function that reads the chosen logs; None until some are chosen."""
    if source == _UPLOAD:
        return _of_upload()
    path = run if source == _RUN else _typed(root)
    return partial(_of_path, str(path), _as_of(path)) if path is not None else None


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
def _of_path(path: str, as_of: str) -> Investigation:  # noqa: ARG001 - part of the cache's key
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


def _first_screen(investigation: Investigation, state: RunState | None) -> None:
    """Draws the answer and where each rank is: beside each other where both have room."""
    groups = _groups(investigation)
    if not 0 < len(drawn_groups(groups, _culprits(investigation))[0]) <= DASHBOARD.most_groups_beside:
        _answer(investigation, state)
        _places(investigation, groups)
        return
    left, right = side_by_side("places", (3, 2))
    with left:
        _answer(investigation, state)
    with right:
        _places(investigation, groups)


def _answer(investigation: Investigation, state: RunState | None = None) -> None:
    """``state``: of the run that the page is about. Where it is stuck, its first line stands above already."""
    triage = investigation.triage
    told = state is not None and bool(state.headline) and triage.fault_class == UNDETERMINED
    with st.container(border=True, key="verdict-of-hang"):
        st.badge(
            f"cause {UNDETERMINED}" if told else triage.fault_class.replace("_", " "),
            icon=_ICON.get(triage.fault_class, ":material/error:"),
            color=_COLOUR.get(triage.fault_class, "red"),
        )
        st.subheader(prose(_why_unknown(state.behind) if told and state else triage.headline), anchor=False)
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
        if state is not None:
            _take_stacks(state, triage, "stacks-beside-answer")


def _take_stacks(state: RunState, triage: Triage, key: str) -> None:
    """Draws a button that takes the stacks of all ranks of a run that is stuck, as ``diag triage --stacks`` does, until
    they are there."""
    if not (state.live and state.stuck) or triage.merged_stacks:
        return
    if st.button("Take the stacks of all ranks", icon=":material/stacks:", key=key, help=_TAKE_HELP):
        with st.spinner("Asking the ranks…", show_time=True):
            said = _said_without_stacks(state.path)
        if said:
            st.warning(plain(f"{sentence(said)}."), icon=":material/warning:")
        else:
            st.rerun()


def _said_without_stacks(run: Path) -> str:
    """Asks all ranks for their stacks. Says why some left none; "" where all did."""
    command = python("-m", "diag", "triage", str(run), "--stacks", "--json")
    done = run_process(command, capture_output=True, stdin=subprocess.DEVNULL)
    try:
        answer = json.loads(done.stdout)
        refused = answer.get("error", {}).get("message", "")
        return refused or " ".join(gap["reason"] for gap in answer.get("gaps", ()) if not gap["path"])
    except ValueError:  # it was ended
        return f"the ranks were not asked: diag triage ended with {done.returncode}"


def _why_unknown(behind: Sequence[RankState]) -> str:
    ranks = [rank.rank for rank in behind]
    who = f"{listing(ranks)} makes" if len(ranks) == 1 else f"{listing(ranks)} make" if ranks else "the training makes"
    return f"Why {who} no progress is not determined."


def _groups(investigation: Investigation) -> tuple[GroupPlaces, ...]:
    return places_of(investigation.logs, investigation.dumps, _culprits(investigation))


def _culprits(investigation: Investigation) -> list[int]:
    return [culprit.rank for culprit in investigation.triage.culprits if culprit.rank is not None]


def _places(investigation: Investigation, groups: Sequence[GroupPlaces]) -> None:
    if not groups and investigation.triage.fault_class == "healthy":
        return
    st.subheader("Ranks in each group", anchor="places")
    if not groups:
        st.info(NO_GROUPS_OF_NCCL if investigation.may_use_nccl else NO_GROUPS, icon=":material/info:")
        return
    _matrix(investigation, groups)


def _matrix(investigation: Investigation, groups: Sequence[GroupPlaces]) -> None:
    """Draws where the ranks are in each group, those at fault first: many as a grid too."""
    culprits, theme = _culprits(investigation), theme_of(st.context.theme.type)
    shown, left_out = drawn_groups(groups, culprits)
    st.markdown(
        plain(
            " ".join((f"Ranks by {counted(len(shown), 'group')}, with the number of each rank's last call.", *left_out))
        )
    )
    component("matrix")(key="matrix", data=matrix_of(shown, culprits, theme))
    if (picture := picture_of_places(groups, culprits, theme)) is not None:
        component("picture")(key="places", data=picture)


def drawn_groups(groups: Sequence[GroupPlaces], culprits: Sequence[int]) -> tuple[list[GroupPlaces], tuple[str, ...]]:
    """The groups to draw, and sentences about those left out. Those that show a fault come first, then all of the
    culprits; the others say nothing about it and fill up what room there is."""
    silent = [group for group in groups if not group.uneven and not any(place.last for place in group.members)]
    if len(silent) == len(groups):
        silent = []  # better than no matrix: who is in which
    telling: list[GroupPlaces] = []
    others: list[GroupPlaces] = []
    for group in (group for group in groups if group not in silent):
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
    if silent:
        sentences.append(f"{counted(len(silent), 'group')} more, none of whose calls is known, not drawn.")
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


def _stacks(triage: Triage) -> None:
    """Draws the stacks of all ranks as one tree, or of the culprit and a typical victim where no more are known."""
    ranks = {rank for stack in triage.merged_stacks for rank in stack.ranks}
    if not ranks and not triage.stacks:
        return
    st.subheader("Stacks", anchor="stacks")
    if len(ranks) > 1 or not triage.stacks:
        order = "" if len(ranks) == 1 else ", those that differ from most first"
        st.markdown(f"{counted(len(ranks), 'rank')}{order}; the outermost call first.")
        show_code("\n".join(row.plain for row in stack_tree(triage.merged_stacks)), None)
        return
    columns = side_by_side("stacks") if len(triage.stacks) > 1 else [st.container()]
    for column, stack in zip(columns, triage.stacks[:2], strict=False):
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
    st.markdown(bullets((*triage.coverage, *gaps)) or "The records of the run only: it has no logs, stacks or dumps.")


def _gap(paths: Sequence[str], reason: str) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{_short(paths[0])}{more}: {reason}" if paths[0] else reason


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
    if stored is None and (seen is None or not seen.covered):
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
