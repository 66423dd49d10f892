"""Hang triage: logs and dumps of the run, of a path beside it, or uploaded; who is at fault, and why."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from diag.app.address import choose, choose_path
from diag.app.figures import hang as figures
from diag.app.theme import theme_of
from diag.app.views.common import bullets, draw, show_code, show_error
from diag.errors import DiagError
from diag.hang.api import Investigation, by_reason, guess_words, investigate, newest_write
from diag.hang.groups import places_of
from diag.hang.model import Evidence, Stack

from ..facts import counted, listing, plain, prose, share, visible

_RUN, _PATH, _UPLOAD = "run", "path", "upload"
_LABELS = {_RUN: "this run's own", _PATH: "a path beside the runs", _UPLOAD: "uploaded"}
_REFUSED = "Nothing to triage"
_MOST_EVIDENCE_CHARS = 400
_MOST_FRAMES = 30
_PATH_PARTS = 3  # ranks/00003/log.txt
_FRAME = re.compile(r"(?P<name>.+?) \((?P<file>.+)", re.DOTALL)  # of a Stack
_COLOUR: dict[str, Any] = {"healthy": "green", "undetermined": "orange"}
_ICON = {"healthy": ":material/check_circle:", "undetermined": ":material/help:"}


def show(root: Path, run: Path) -> None:
    """``root``: the folder that the dashboard was given; nothing outside of it is read."""
    st.title("Hang triage")
    st.caption(
        "Logs (NCCL, PyTorch, launchers, the kernel), stacks and Flight Recorder dumps: who is at fault, and why."
    )
    left, right = st.columns([2, 4])
    with left:
        source = choose("Logs", list(_LABELS), param="logs", default=_RUN, format_func=_LABELS.__getitem__)
    with right:
        read = _chosen(source, root, run)
    found = _found(read) if read is not None else None
    if found is not None:
        _answer(found)
        _places(found)
        _evidence(found.triage.evidence)
        _stacks(found.triage.stacks)
        _reasons(found)


# -- where the logs are ------------------------------------------------------------------------------------------------


def _chosen(source: str, root: Path, run: Path) -> Callable[[], Investigation] | None:
    """What reads the chosen logs; None where none are chosen yet."""
    if source == _UPLOAD:
        return _of_upload()
    path = run if source == _RUN else _typed(root)
    return partial(_of_path, str(path), newest_write(str(path))) if path is not None else None


def _found(read: Callable[[], Investigation]) -> Investigation | None:
    try:
        return read()
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


def _answer(found: Investigation) -> None:
    triage = found.triage
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


def _places(found: Investigation) -> None:
    groups = places_of(found.logs, found.dumps)
    if not groups and found.triage.fault_class == "healthy":
        return
    st.subheader("Who is where", anchor="places")
    if not groups:
        st.info(
            "The logs tell of no communicator: NCCL prints them with NCCL_DEBUG=INFO, and the calls on them with "
            "NCCL_DEBUG_SUBSYS=INIT,COLL; Flight Recorder dumps hold them always.",
            icon=":material/info:",
        )
        return
    culprits = [culprit.rank for culprit in found.triage.culprits if culprit.rank is not None]
    left_out = len(groups) - figures.MOST_GROUPS
    more = f" {counted(left_out, 'group')} more, not drawn." if left_out > 0 else ""
    st.markdown(plain(f"Groups by ranks, with each rank's last call.{more}"))
    theme = theme_of(st.context.theme.type)
    draw(figures.places(groups, culprits, theme), "places", "Where every rank is in every group")


def _evidence(evidence: Sequence[Evidence]) -> None:
    if not evidence:
        return
    st.subheader("Evidence", anchor="evidence")
    rows = []
    for one in evidence:
        text = visible(one.text.strip())
        text = text if len(text) <= _MOST_EVIDENCE_CHARS else f"{text[:_MOST_EVIDENCE_CHARS]}…"
        file = visible(_short(one.path))
        place = f"{file}:{one.line}" if one.line else file
        rows.append({"Where": plain(place), "What it says": plain(text)})
    st.table(rows, border="horizontal", hide_index=True)


def _stacks(stacks: Sequence[Stack]) -> None:
    if not stacks:
        return
    st.subheader("Stacks", anchor="stacks")
    for column, stack in zip(st.columns(min(2, len(stacks))), stacks[:2], strict=False):
        with column:
            st.markdown(f"**Rank {stack.rank}**, {plain(stack.what)}")
            show_code("\n".join(visible(_frame(frame)) for frame in stack.frames[:_MOST_FRAMES]) or "no frames", None)


def _short(path: str) -> str:
    """Its last parts: what comes before is the same for all."""
    return "/".join(Path(path).parts[-_PATH_PARTS:])


def _frame(frame: str) -> str:
    """``read (site-packages/data/loader.py:7)``, the file shortened."""
    match = _FRAME.fullmatch(frame)
    return f"{match['name']} ({_short(match['file'])}" if match is not None else frame


def _reasons(found: Investigation) -> None:
    triage = found.triage
    if triage.guesses:
        st.subheader("Next best guess", anchor="guesses")
        st.markdown(bullets(tuple(guess_words(guess) for guess in triage.guesses)))
    if triage.ruled_out:
        st.subheader("Ruled out", anchor="ruled-out")
        st.markdown(bullets(tuple(f"{one.fault_class}: {one.because}" for one in triage.ruled_out)))
    st.subheader("What was read", anchor="coverage")
    gaps = [_gap(paths, why) for why, paths in by_reason(triage.gaps).items()]
    st.markdown(bullets((*triage.coverage, *gaps)) or "Nothing.")


def _gap(paths: Sequence[str], reason: str) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{_short(paths[0])}{more}: {reason}" if paths[0] else reason
