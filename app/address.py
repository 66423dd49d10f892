"""Choices that are in the page's address, so that a link opens the same view."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from diag.api import Job, Jobs, find_jobs, list_runs, look_into, newest_change, open_job, split_job
from diag.app.markup import plain
from diag.errors import DiagError
from diag.summaries import open_by_size
from diag.words.formatting import visible

from .run_view import RunView, view_of

# -- opening -----------------------------------------------------------------------------------------------------------
#
# Opens runs for the pages: once for each state of their files, whoever looks.


@dataclass(frozen=True)
class _Last:
    changed_ns: int
    took_s: float


_LAST: dict[str, _Last] = {}  # opening of each path, by whomever
_JOBS: dict[str, Job] = {}  # by the path that opens it, as last listed: its traces are read already


def runs_of(root: Path) -> tuple[list[Path], Jobs]:
    """The runs of the folder that the dashboard was given, and how they were found: traces are read and sorted into
    jobs again when one of their files has changed. DiagError where it cannot be listed."""
    if not split_job(root)[1]:
        runs, files, _ = look_into([str(root)])
        if files:
            found = _jobs(str(root), tuple(runs), tuple((file, newest_change(Path(file))) for file in files))
            _JOBS.update((job.paths[0], job) for job in found.jobs if job.tables is not None)
            return [Path(job.paths[0]) for job in found.jobs] or [root], found
    return list_runs(root), Jobs((str(root),), ())


@st.cache_resource(show_spinner="Reading the traces…", show_time=True, max_entries=2)
def _jobs(root: str, runs: tuple[str, ...], files: tuple[tuple[str, int], ...]) -> Jobs:  # noqa: ARG001 - of the cache
    return find_jobs([root])


def name_of(root: Path, run: Path) -> str:
    """What a run of the folder is called: its place in the folder, or the name of its job."""
    job = _JOBS.get(str(run))
    if job is not None:
        return job.name
    folder, name = split_job(run)
    if name:
        return name
    return str(run.relative_to(root)) if run != root and run.is_relative_to(root) else Path(folder).resolve().name


@st.cache_resource(show_spinner="Analysing the runs…", max_entries=256)
def answer_of(path: str, changed_ns: int) -> str:  # noqa: ARG001 - of the cache
    """The verdict's sentence for a job of the list; why there is none."""
    try:
        return open_job(_JOBS[path]).verdict.headline
    except DiagError as error:
        return f"not analysed: {error.message}"


def opened(path: Path, changed_ns: int | None = None) -> RunView:
    """The analysed run; read again when one of its records has changed. DiagError where there is nothing to analyse.
    ``changed_ns``: when one of them last did, for a caller who has looked already."""
    return _opened(str(path), newest_change(path) if changed_ns is None else changed_ns)


def is_open(path: Path, changed_ns: int) -> bool:
    """Whether `opened` answers at once, as far as is known."""
    last = _LAST.get(str(path))
    return last is not None and last.changed_ns == changed_ns


def seconds_to_open(path: Path) -> float:
    """How long the last opening of the run took; 0 where it was not opened, or cannot be."""
    last = _LAST.get(str(path))
    return last.took_s if last is not None else 0.0


@st.cache_resource(show_spinner="Reading and analysing the run…", show_time=True, max_entries=8)
def _opened(path: str, changed_ns: int) -> RunView:
    begin = time.monotonic()
    job = _JOBS.get(path)
    view = view_of(open_job(job) if job is not None else open_by_size(path))
    _LAST[path] = _Last(changed_ns, time.monotonic() - begin)
    return view


DECIMALS = 3  # of numbers in the address


def choose(
    label: str,
    options: Sequence[str],
    *,
    param: str,
    default: str,
    within: str = "",
    format_func: Callable[[str], str] = str,
    help: str | None = None,
) -> str:
    """The option that is chosen in the list or in the address; an address that asks for something else is corrected.
    Where ``within`` is another than last time the choice begins anew: a rank is not the same rank in another run.

    Not ``bind="query-params"``: it leaves the default out of the address, and which one that is changes with the run.
    """
    last = f"{param} as last shown"
    shown, shown_within = st.session_state.get(last, (None, within))
    asked = st.query_params.get(param)
    if asked in options and asked != shown:  # a link was opened, or the browser went back
        st.session_state[param] = asked
    elif st.session_state.get(param) not in options or shown_within != within:
        st.session_state[param] = default
    chosen = st.selectbox(
        label, options, key=param, format_func=lambda option: visible(str(format_func(option))), help=help
    )
    st.session_state[last] = chosen, within
    st.query_params[param] = chosen
    return chosen


def choose_number(
    label: str, *, param: str, default: float, low: float, high: float, within: str = "", help: str | None = None
) -> float:
    """The same for a number with DECIMALS decimals. One in the address that lies outside of ``low`` to ``high`` is
    brought inside; whoever types one is free."""
    last = f"{param} as last shown"
    shown, shown_within = st.session_state.get(last, (None, within))
    asked = _number(st.query_params.get(param))
    if asked is not None and asked != shown:
        st.session_state[param] = round(min(max(asked, low), high), DECIMALS)
    elif param not in st.session_state or shown_within != within:
        st.session_state[param] = round(default, DECIMALS)
    chosen = round(st.number_input(label, key=param, step=1.0, format=f"%.{DECIMALS}f", help=help), DECIMALS)
    st.session_state[last] = chosen, within
    st.query_params[param] = f"{chosen:.{DECIMALS}f}"
    return chosen


def choose_path(label: str, root: Path, *, param: str, placeholder: str, refusal: str) -> Path | None:
    """The path inside ``root`` that is typed, or in the address; None where there is none yet, and where it leads out
    of ``root``, which shows an error with the title ``refusal``."""
    if param not in st.session_state and param in st.query_params:
        st.session_state[param] = st.query_params[param]
    typed = st.text_input(label, key=param, placeholder=placeholder)
    if not typed:
        st.query_params.pop(param, None)
        return None
    st.query_params[param] = typed
    found = inside(root, typed)
    if found is None:
        st.error(plain(f"{typed}: not in {root}"), title=refusal)
    return found


def inside(root: Path, typed: str) -> Path | None:
    """The path that was typed, from the folder if it is relative; None where it leads out of it, by a link as well."""
    folder = root.resolve()
    try:
        found = (folder / typed).resolve()
    except (OSError, ValueError):
        return None
    return found if found.is_relative_to(folder) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return round(value, DECIMALS) if math.isfinite(value) else None
