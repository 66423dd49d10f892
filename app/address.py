"""Choices that are in the page's address, so that a link opens the same view."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from diag.api import (
    Job,
    Jobs,
    Result,
    RunState,
    find_jobs,
    list_runs,
    look_into,
    newest_change,
    open_job,
    record_bytes,
    split_job,
    state_of,
)
from diag.app.markup import plain
from diag.errors import DiagError
from diag.show.page import advice_of
from diag.summaries import open_by_size, open_newest
from diag.words.formatting import visible

from .run_view import RunView, view_of

# -- listing -----------------------------------------------------------------------------------------------------------
#
# The runs of the folder that the dashboard was given. Traces are read to be sorted into jobs, whoever looks, and again
# when one of their files has changed.

_MOST_LISTED = 2  # folders: what was read of their traces is kept

Seen = tuple[tuple[str, ...], tuple[tuple[str, int], ...], tuple[object, ...]]  # runs, files with their changes, gaps


@dataclass(frozen=True)
class _Listing:
    """``seen``: what lay in the folder; ``changed_ns``: when one of the files changed last, before they were read."""

    seen: Seen
    changed_ns: int
    found: Jobs


_LISTINGS: OrderedDict[str, _Listing] = OrderedDict()
_LISTINGS_LOCK = threading.Lock()


def runs_of(root: Path) -> tuple[list[Path], Jobs]:
    """The runs of a folder, each as the path that opens it, and how traces in it were sorted into jobs. DiagError where
    it cannot be listed, or has no job of the name in FOLDER::NAME."""
    seen, known = _seen(root), _LISTINGS.get(str(root))
    if known is not None and known.seen == seen:
        return _listed(root, seen)
    with st.spinner("Reading the traces…", show_time=True):
        return _listed(root, seen)


def name_of(root: Path, run: Path) -> str:
    """What a run of the folder is called: its place in the folder, or the name of its job."""
    listing = _LISTINGS.get(str(root))
    for job in listing.found.jobs if listing is not None else ():
        if job.paths[0] == str(run):
            return job.name
    folder, name = split_job(run)
    if name:
        return name
    return str(run.relative_to(root)) if run != root and run.is_relative_to(root) else Path(folder).resolve().name


def job_at(path: Path) -> Job | None:
    """The job of traces that this path opens, as it was listed last."""
    return next((job for job, _ in _jobs() if job.paths[0] == str(path)), None)


def bytes_of(path: Path) -> int:
    """The size of all files that an analysis reads."""
    job = job_at(path)
    if job is None or not split_job(path)[1]:
        return record_bytes(path)
    return sum(record_bytes(Path(file)) for file in {file.partition("!")[0] for file in job.files})


def _jobs() -> Iterator[tuple[Job, int]]:
    """Every listed job of traces, and when a file of its folder had changed last."""
    for listing in list(_LISTINGS.values()):
        for job in listing.found.jobs:
            if job.tables is not None:
                yield job, listing.changed_ns


def _seen(root: Path) -> Seen:
    runs, files, gaps = look_into([split_job(root)[0]])
    return tuple(runs), tuple((file, newest_change(Path(file))) for file in files), tuple(gaps)


def _listed(root: Path, seen: Seen) -> tuple[list[Path], Jobs]:
    if not any(seen[1:]):
        return list_runs(root), Jobs((str(root),), ())
    with _LISTINGS_LOCK:
        known = _LISTINGS.get(str(root))
        if known is None or known.seen != seen:
            changed_ns = newest_change(root)
            known = _LISTINGS[str(root)] = _Listing(seen, changed_ns, find_jobs([root]))
            if len(_LISTINGS) > _MOST_LISTED:
                _LISTINGS.popitem(last=False)
    return [Path(job.paths[0]) for job in known.found.jobs] or [root], known.found


# -- opening -----------------------------------------------------------------------------------------------------------
#
# Opens runs for the pages: each is analysed once for each state of its files, whoever looks. A run that still trains is
# analysed again in the background, so that no page waits for it, and no more often than its cost allows.

# What analysing and drawing a run that is followed may take of a core, on average, and what of it may be saved up: so a
# page is soon drawn again after it was opened, and later every half minute.
_SHARE = 0.02
_MOST_SAVED_S = 2.0
_LEAST_S = 3.0  # from one analysis to the next
_MOST_OPEN = 8  # runs
_LIVE_STEPS = 300  # the newest, that are analysed while a run trains: half a second of CPU time for two ranks

Version = tuple[int, bool]  # when the files that were analysed changed last, and whether the run trained then


@dataclass
class _Run:
    """``version``: what ``view`` was made of; ``refused``: of what nothing could be made; ``made_s``: when either was
    tried last; ``saved_s``: CPU time that may be spent on following it, as of ``saved_at_s``. Moments are monotonic."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    view: RunView | None = None
    version: Version | None = None
    refused: Version | None = None
    made_s: float = 0.0
    saved_s: float = _MOST_SAVED_S
    saved_at_s: float = field(default_factory=time.monotonic)
    renewing: bool = False


_RUNS: OrderedDict[str, _Run] = OrderedDict()
_RUNS_LOCK = threading.Lock()


def opened(path: Path, state: RunState | None = None) -> RunView:
    """The analysed run; read again when one of its records has changed. Of a run that trains the last analysis will do:
    `renew` makes new ones. DiagError where there is nothing to analyse. ``state``: for a caller who has it already."""
    state = state_of(path) if state is None else state
    run = _run(path)
    if state.live and run.view is not None:
        return run.view
    if is_open(state):
        return _analysed(state)
    with st.spinner("Reading and analysing the run…", show_time=True):
        return _analysed(state)


def is_open(state: RunState) -> bool:
    """Whether `opened` answers at once."""
    return analysed(state.path) == version_of(state)


def analysed(path: Path) -> Version | None:
    """What the last analysis is of; None where there is none."""
    return _run(path).version


def is_refused(state: RunState) -> bool:
    """Whether the files as they are were found to hold nothing to analyse."""
    return _run(state.path).refused == version_of(state)


def age_s(path: Path) -> float:
    """Seconds since the last analysis."""
    return time.monotonic() - _run(path).made_s


def version_of(state: RunState) -> Version:
    return state.changed_ns, state.live


def renew(state: RunState, *, at_once: bool = False) -> None:
    """Analyses a run in the background if it is time to. ``at_once``: whatever that costs. Does not raise."""
    run = _run(state.path)
    with _RUNS_LOCK:
        due = at_once or (_saved(run) > 0 and time.monotonic() - run.made_s >= _LEAST_S)
        if run.renewing or run.refused == version_of(state) or not due:
            return
        run.renewing = True
    threading.Thread(target=_renew, args=(state, run), daemon=True).start()


def prepare(root: Path) -> None:
    """Analyses the run that is shown first, for the page that will be asked for, which shows what is wrong with it."""
    with suppress(DiagError):
        _analysed(state_of(_listed(root, _seen(root))[0][0]))


def charge(path: Path, cpu_s: float) -> None:
    """What drawing a run that is followed took: the next analysis is put off accordingly."""
    _run(path).saved_s -= cpu_s


def _saved(run: _Run) -> float:
    now_s = time.monotonic()
    run.saved_s = min(run.saved_s + _SHARE * (now_s - run.saved_at_s), _MOST_SAVED_S)
    run.saved_at_s = now_s
    return run.saved_s


def _run(path: Path) -> _Run:
    with _RUNS_LOCK:
        run = _RUNS.pop(str(path), None) or _Run()
        _RUNS[str(path)] = run
        if len(_RUNS) > _MOST_OPEN:
            _RUNS.popitem(last=False)
        return run


def _renew(state: RunState, run: _Run) -> None:
    begin, first = time.process_time(), run.view is None
    try:
        advice_of(_analysed(state).result)  # which is kept, and would hold up the page
    except DiagError:  # shown by the page that opens it; a run that begins has no whole step yet
        run.refused = version_of(state)
    finally:
        gc.unfreeze()  # of the analyses that have gone
        gc.collect()
        gc.freeze()
        if not first:  # what opens the page is no following yet
            run.saved_s -= time.process_time() - begin
        run.made_s = time.monotonic()
        run.renewing = False


def analyse(state: RunState) -> Result:
    """The result of a run: the one that a page shows, else a new one, which is not kept. DiagError as `opened`."""
    shown = _RUNS.get(str(state.path))
    if shown is not None and shown.view is not None and shown.version == version_of(state):
        return shown.view.result
    for job, changed_ns in _jobs():
        if job.paths[0] == str(state.path) and state.changed_ns <= changed_ns:  # its traces are read already
            return open_job(job)
    return open_newest(state.path, _LIVE_STEPS) if state.live else open_by_size(state.path)


def _analysed(state: RunState) -> RunView:
    run = _run(state.path)
    with run.lock:
        if run.view is not None and run.version != version_of(state):
            state = state_of(state.path)  # another page may have opened it meanwhile
        if run.view is None or run.version != version_of(state):
            run.view, run.version, run.made_s = view_of(analyse(state)), version_of(state), time.monotonic()
            gc.freeze()  # what stays: Streamlit collects all garbage after each run of a page and of a fragment
        return run.view


# -- links -------------------------------------------------------------------------------------------------------------
#
# From one page to another, at what the choices there shall be.

RUN, BASELINE = "run", "baseline"  # in the address of every page of a run
_PAGES = "pages"


def offer(pages: Mapping[str, StreamlitPage]) -> None:
    """The pages that links of this session lead to, by their paths."""
    st.session_state[_PAGES] = dict(pages)


def href(path: str, **choices: object) -> str:
    """The address of a page of the same run, relative to any other page."""
    return f"{path}?{urlencode(_with_run(choices))}"


def show_link(path: str, label: str, *, icon: str, **choices: object) -> None:
    """A link to a page of the same run."""
    page = st.session_state.get(_PAGES, {}).get(path)
    if page is None:  # it is shown by itself
        st.markdown(f":material/{icon}: [{label}]({href(path, **choices)})")
        return
    st.page_link(page, label=label, icon=f":material/{icon}:", query_params=_with_run(choices))


def _with_run(choices: Mapping[str, object]) -> dict[str, str]:
    kept = {name: st.query_params[name] for name in (RUN, BASELINE) if name in st.query_params}
    return kept | {name: str(value) for name, value in choices.items()}


# -- choices -----------------------------------------------------------------------------------------------------------

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
    Where ``within`` is another than last time the choice begins anew: a rank is not the same rank in another run. What
    was chosen on another page stays chosen, unless it is what that page begins with.

    Not ``bind="query-params"``: it leaves the default out of the address, and which one that is changes with the run.
    """
    last = f"{param} as last shown"
    shown, shown_within, was_default = st.session_state.get(last, (None, within, True))
    asked = st.query_params.get(param)
    if asked in options and asked != shown:  # a link was opened, or the browser went back
        st.session_state[param] = asked
    elif shown_within != within:
        st.session_state[param] = default
    else:
        # Another page's list of this name has other options: only what is set here outlives the change of pages.
        kept = shown if shown in options and (asked == shown or not was_default) else default
        current = st.session_state.get(param)
        st.session_state[param] = current if current in options else kept
    chosen = st.selectbox(
        label, options, key=param, format_func=lambda option: visible(str(format_func(option))), help=help
    )
    st.session_state[last] = chosen, within, chosen == default
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


def choose_text(label: str, *, param: str, placeholder: str) -> str:
    """The text that is typed, or in the address; "" where there is none yet."""
    if param not in st.session_state and param in st.query_params:
        st.session_state[param] = st.query_params[param]
    typed = st.text_input(label, key=param, placeholder=placeholder)
    if typed:
        st.query_params[param] = typed
    else:
        st.query_params.pop(param, None)
    return typed


def choose_path(label: str, root: Path, *, param: str, placeholder: str, refusal: str) -> Path | None:
    """The path inside ``root`` that is typed, or in the address; None where there is none yet, and where it leads out
    of ``root``, which shows an error with the title ``refusal``."""
    typed = choose_text(label, param=param, placeholder=placeholder)
    if not typed:
        return None
    found = inside(root, typed)
    if found is None:
        st.error(plain(f"{typed}: not in {root}"), title=refusal)
    return found


def inside(root: Path, typed: str) -> Path | None:
    """The path that was typed, from the folder if it is relative; None where it leads out of it, by a link as well."""
    folder = Path(split_job(root)[0]).resolve()
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
