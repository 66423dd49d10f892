"""The runs of the dashboard, and the choices of a page, which its address holds so that a link opens the same view."""

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
    job_name,
    list_runs,
    local_paths,
    look_into,
    newest_change,
    open_job,
    record_bytes,
    split_job,
    state_of,
)
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.by_size import open_attempt_by_size, open_newest
from diag.errors import DiagError
from diag.show.page import advice_of
from diag.words.formatting import visible

from .kept import Keeping
from .run_view import RunView, view_of

# -- listing -----------------------------------------------------------------------------------------------------------
#
# The runs of the dashboard's folder. Traces are read once for all sessions, to sort them into jobs, and again when one
# of their files has changed.


Seen = tuple[tuple[str, ...], tuple[tuple[str, int], ...], tuple[object, ...]]  # runs, files with their changes, gaps


@dataclass(frozen=True)
class _Listing:
    """``seen``: the content of the folder; ``changed_ns``: the files' last change before they were read."""

    seen: Seen
    changed_ns: int
    found: Jobs


_LISTINGS: OrderedDict[str, _Listing] = OrderedDict()
_LISTINGS_LOCK = threading.Lock()


def runs_of(root: Path) -> tuple[list[Path], Jobs]:
    """The runs of a folder, each as the path that opens it, and its traces sorted into jobs. DiagError if the folder
    cannot be listed, or has no job of the name in FOLDER::NAME."""
    seen, known = _seen(root), _LISTINGS.get(str(root))
    if known is not None and known.seen == seen:
        return _listed(root, seen)
    with st.spinner("Reading the traces…", show_time=True):
        return _listed(root, seen)


def name_of(root: Path, run: Path) -> str:
    """The name of a run: its path relative to the folder, or the name of its job."""
    listing = _LISTINGS.get(str(root))
    for job in listing.found.jobs if listing is not None else ():
        if job.paths[0] == str(run):
            return job.name
    folder, name = split_job(run)
    if name:
        return name
    return job_name([str(root)], str(run)) if run != root else Path(folder).resolve().name


def job_at(path: Path) -> Job | None:
    """The job of traces that this path opens, from the latest listing."""
    return next((job for job, _ in _jobs() if job.paths[0] == str(path)), None)


def bytes_of(path: Path) -> int:
    """The size of all files that an analysis reads."""
    job = job_at(path)
    if job is None or not split_job(path)[1]:
        return record_bytes(path)
    return sum(record_bytes(Path(file)) for file in {file.partition("!")[0] for file in job.files})


def _jobs() -> Iterator[tuple[Job, int]]:
    """Every listed job of traces, with the last change of its folder's files."""
    for listing in list(_LISTINGS.values()):
        for job in listing.found.jobs:
            if job.tables is not None:
                yield job, listing.changed_ns


def _seen(root: Path) -> Seen:
    runs, files, gaps = look_into([split_job(root)[0]], lately=True)
    return tuple(runs), tuple((file, newest_change(Path(file))) for file in files), tuple(gaps)


def _listed(root: Path, seen: Seen) -> tuple[list[Path], Jobs]:
    if not any(seen[1:]):
        return list_runs(root, lately=True), Jobs((str(root),), ())
    with _LISTINGS_LOCK:
        known = _LISTINGS.get(str(root))
        if known is None or known.seen != seen:
            changed_ns = newest_change(root)
            known = _LISTINGS[str(root)] = _Listing(seen, changed_ns, find_jobs([root], lately=True))
            if len(_LISTINGS) > DASHBOARD.most_folders_cached:
                _LISTINGS.popitem(last=False)
    return [Path(job.paths[0]) for job in known.found.jobs] or [root], known.found


# -- opening -----------------------------------------------------------------------------------------------------------
#
# Opens runs for the pages. A run is analysed once for each state of its files, for all sessions. A run that still
# trains is analysed again in the background, so that no page waits for it, and no more often than its cost allows.


Version = tuple[int, bool]  # last change of the files that were analysed, and whether the run was training then


@dataclass
class _Run:
    """``version``: the version that ``view`` shows; ``refused``: one that could not be analysed; ``made_s``: when an
    analysis was last tried; ``saved_s``: CPU time that may be spent on following the run, as of ``saved_at_s``. Times
    are those of the monotonic clock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    view: RunView | None = None
    keeping: Keeping | None = None
    version: Version | None = None
    refused: Version | None = None
    made_s: float = 0.0
    saved_s: float = DASHBOARD.longest_saved_cpu_s
    saved_at_s: float = field(default_factory=time.monotonic)
    renewing: bool = False


_RUNS: OrderedDict[str, _Run] = OrderedDict()
_RUNS_LOCK = threading.Lock()


def opened(path: Path, state: RunState | None = None, begun: Keeping | None = None) -> RunView:
    """The analysed run; read again when one of its records has changed. For a run that trains this is the last
    analysis; `renew` makes new ones. DiagError if there is nothing to analyse. ``state``, ``begun``: if the caller has
    them already."""
    state = state_of(path) if state is None else state
    run = _run(path)
    if state.live and run.view is not None:
        return run.view
    if is_open(state):
        return _analysed(state)
    with st.spinner("Reading and analysing the run…", show_time=True):
        return _analysed(state, begun)


def is_open(state: RunState) -> bool:
    """Whether the run is analysed in this state, so that `opened` returns at once."""
    return analysed(state.path) == version_of(state)


def keeping(path: Path) -> Keeping | None:
    """What keeps the first screen of the run's analysis; None if that is of a run that trains."""
    return _run(path).keeping


def begun_on(state: RunState, known: Keeping | None) -> Keeping | None:
    """What keeps the first screen of an analysis of this state: ``known`` if it was begun of it, so that check sums are
    taken once; None for a run that trains."""
    if state.live:
        return None
    return known if known is not None and known.holds(state) else Keeping.begun(state)


def analysed(path: Path) -> Version | None:
    """The version that was analysed last; None without an analysis."""
    return _run(path).version


def is_refused(state: RunState) -> bool:
    """Whether the present state of the files is known to hold nothing to analyse."""
    return _run(state.path).refused == version_of(state)


def age_s(path: Path) -> float:
    """Seconds since the last analysis."""
    return time.monotonic() - _run(path).made_s


def version_of(state: RunState) -> Version:
    return state.changed_ns, state.live


def renew(state: RunState, *, at_once: bool = False) -> None:
    """Analyses a run in the background if it is due. ``at_once``: regardless of the cost. Does not raise."""
    run = _run(state.path)
    with _RUNS_LOCK:
        due = at_once or (_saved(run) > 0 and time.monotonic() - run.made_s >= DASHBOARD.least_between_analyses_s)
        if run.renewing or run.refused == version_of(state) or not due:
            return
        run.renewing = True
    threading.Thread(target=_renew, args=(state, run), daemon=True).start()


def prepare(root: Path) -> None:
    """Analyses the run that is shown first, before its page is requested. The page shows the error if there is one."""
    with suppress(DiagError):
        _analysed(state_of(_listed(root, _seen(root))[0][0]))


def charge(path: Path, cpu_s: float) -> None:
    """Charges the CPU time of drawing a live run, which puts off the next analysis accordingly."""
    _run(path).saved_s -= cpu_s


def _saved(run: _Run) -> float:
    now_s = time.monotonic()
    run.saved_s = min(run.saved_s + DASHBOARD.cpu_share * (now_s - run.saved_at_s), DASHBOARD.longest_saved_cpu_s)
    run.saved_at_s = now_s
    return run.saved_s


def _run(path: Path) -> _Run:
    with _RUNS_LOCK:
        run = _RUNS.pop(str(path), None) or _Run()
        _RUNS[str(path)] = run
        if len(_RUNS) > DASHBOARD.most_runs_open:
            _RUNS.popitem(last=False)
        return run


def _renew(state: RunState, run: _Run) -> None:
    begin, first = time.process_time(), run.view is None
    try:
        advice_of(_analysed(state).result)  # cached; computed by the page, it would delay it
    except DiagError:  # the page that opens the run shows it; a run that has just begun has no whole step yet
        run.refused = version_of(state)
    finally:
        gc.unfreeze()  # so that analyses that were replaced are collected
        gc.collect()
        gc.freeze()
        if not first:  # the analysis that opens the page does not count as following
            run.saved_s -= time.process_time() - begin
        run.made_s = time.monotonic()
        run.renewing = False


def shown_result(state: RunState) -> Result | None:
    """The result of a run in this state if a page has opened it."""
    shown = _RUNS.get(str(state.path))
    return shown.view.result if shown is not None and shown.view and shown.version == version_of(state) else None


def analyse(state: RunState) -> Result:
    """The result of a run: the one that a page shows, else a new one, which is not cached. DiagError as `opened`."""
    if (shown := shown_result(state)) is not None:
        return shown
    for job, changed_ns in _jobs():
        if job.paths[0] == str(state.path) and state.changed_ns <= changed_ns:  # its traces are read already
            return open_job(job)
    if state.live:
        return open_newest(state.path, DASHBOARD.live_steps)
    return open_attempt_by_size(local_paths([state.path]))


def _analysed(state: RunState, begun: Keeping | None = None) -> RunView:
    run = _run(state.path)
    with run.lock:
        if run.view is not None and run.version != version_of(state):
            state = state_of(state.path)  # another page may have opened it meanwhile
        if run.view is None or run.version != version_of(state):
            run.keeping = begun_on(state, begun)
            run.view, run.version, run.made_s = view_of(analyse(state)), version_of(state), time.monotonic()
            gc.freeze()  # it stays: Streamlit runs a full collection after each run of a page and of a fragment
        return run.view


# -- links -------------------------------------------------------------------------------------------------------------
#
# Links from one page to another, with the choices that the other page opens with.

RUN, BASELINE = "run", "baseline"  # in the address of every page of a run
_PAGES = "pages"


def offer(pages: Mapping[str, StreamlitPage]) -> None:
    """Sets the pages that this session's links lead to, by their paths."""
    st.session_state[_PAGES] = dict(pages)


def href(path: str, **choices: object) -> str:
    """The address of a page of the same run, relative to any other page."""
    return f"{path}?{urlencode(_with_run(choices))}"


def show_link(path: str, label: str, *, icon: str, **choices: object) -> None:
    """A link to a page of the same run."""
    pages = st.session_state.get(_PAGES, {})
    page = pages.get(path)
    if page is None and pages:  # this run has nothing to show there
        return
    if page is None:  # the linking page runs alone, without a navigation
        st.markdown(f":material/{icon}: [{label}]({href(path, **choices)})")
        return
    st.page_link(page, label=label, icon=f":material/{icon}:", query_params=_with_run(choices))


def go_to_page(path: str, **choices: object) -> bool:
    """Opens a page of the same run; False if this run has nothing to show there."""
    page = st.session_state.get(_PAGES, {}).get(path)
    if page is None:
        return False
    st.switch_page(page, query_params=_with_run(choices))


def _with_run(choices: Mapping[str, object]) -> dict[str, str]:
    run_params = {name: st.query_params[name] for name in (RUN, BASELINE) if name in st.query_params}
    return run_params | {name: str(value) for name, value in choices.items()}


def choose(
    label: str,
    options: Sequence[str],
    *,
    param: str,
    default: str,
    within: str = "",
    format_func: Callable[[str], str] = str,
    help: str | None = None,
    slider: bool = False,
) -> str:
    """The option that is chosen in the list (or on a slider) or in the address. An address with an unknown option is
    corrected. If ``within`` differs from last time, the choice is reset: a rank is not the same rank in another run. A
    choice made on another page is kept, unless it is that page's default.

    Not ``bind="query-params"``: it leaves the default out of the address, and the default changes with the run.
    """
    last = f"{param} as last shown"
    shown, shown_within, was_default = st.session_state.get(last, (None, within, True))
    requested = st.query_params.get(param)
    # The address may lag: of two quick choices the second comes with the address from before the first.
    is_chosen = st.session_state.get(param) not in (None, shown)
    # A link was opened, or the browser went back.
    if requested in options and requested != shown and not is_chosen:
        st.session_state[param] = requested
    elif shown_within != within:
        st.session_state[param] = default
    else:
        # Another page's list of this name has other options: only a value set here outlives the change of pages.
        fallback = shown if shown in options and (requested == shown or not was_default) else default
        current = st.session_state.get(param)
        st.session_state[param] = current if current in options else fallback

    def shown_as(option: str) -> str:
        return visible(str(format_func(option)))

    if slider:
        chosen: str = st.select_slider(label, options, key=param, format_func=shown_as, help=help)
    else:
        chosen = st.selectbox(label, options, key=param, format_func=shown_as, help=help)
    st.session_state[last] = chosen, within, chosen == default
    st.query_params[param] = chosen
    return chosen


_NO_BASELINE = "none"


def choose_baseline(root: Path, runs: Sequence[Path]) -> Path | None:
    """The run of the folder that numbers are compared with on every page; None if none is chosen."""
    by_name = {name_of(root, path): path for path in runs}
    if not by_name:
        return None
    name = choose(
        "Baseline", [_NO_BASELINE, *by_name], param=BASELINE, default=_NO_BASELINE, within=str(root),
        help="The pages show by how much their numbers differ from those of this run.",
    )  # fmt: skip
    return by_name.get(name)


def last_baseline() -> str:
    """The name of the run that was last chosen as the baseline, on any page; "" if none was."""
    name = str(st.session_state.get(f"{BASELINE} as last shown", ("",))[0])
    return "" if name == _NO_BASELINE else name


def choose_number(
    label: str,
    *,
    param: str,
    default: float,
    low: float,
    high: float,
    within: str = "",
    help: str | None = None,
) -> float:
    """The same for a number with DECIMALS decimals. A number in the address is clamped to ``low`` to ``high``; a typed
    one is not."""
    last = f"{param} as last shown"
    shown, shown_within = st.session_state.get(last, (None, within))
    requested = _number(st.query_params.get(param))
    if requested is not None and requested != shown:
        st.session_state[param] = round(min(max(requested, low), high), DASHBOARD.decimals_of_address)
    elif param not in st.session_state or shown_within != within:
        st.session_state[param] = round(default, DASHBOARD.decimals_of_address)
    chosen = round(
        st.number_input(label, key=param, step=1.0, format=f"%.{DASHBOARD.decimals_of_address}f", help=help),
        DASHBOARD.decimals_of_address,
    )
    st.session_state[last] = chosen, within
    st.query_params[param] = _decimal(chosen)
    return chosen


def _decimal(number: float) -> str:
    return f"{number:.{DASHBOARD.decimals_of_address}f}"


def set_choices(**choices: str | float) -> None:
    """Makes choices that were made elsewhere on the page than in their lists and number fields. The address has them at
    once: of two quick choices the second comes with the address from before the first, which is no link."""
    st.session_state.update(choices)
    texts = {name: value if isinstance(value, str) else _decimal(value) for name, value in choices.items()}
    st.query_params.update({name: text for name, text in texts.items() if text})
    for name in (name for name, text in texts.items() if not text):
        st.query_params.pop(name, None)


def choose_text(label: str, *, param: str, placeholder: str) -> str:
    """The text that is typed or in the address; "" if there is none yet."""
    if param not in st.session_state and param in st.query_params:
        st.session_state[param] = st.query_params[param]
    typed = st.text_input(label, key=param, placeholder=placeholder)
    if typed:
        st.query_params[param] = typed
    else:
        st.query_params.pop(param, None)
    return typed


def choose_path(label: str, root: Path, *, param: str, placeholder: str, refusal: str) -> Path | None:
    """The path inside ``root`` that is typed or in the address; None if there is none yet. None as well if it leads out
    of ``root``; an error with the title ``refusal`` is then shown."""
    typed = choose_text(label, param=param, placeholder=placeholder)
    if not typed:
        return None
    path = inside(root, typed)
    if path is None:
        st.error(plain(f"{typed}: not in {root}"), title=refusal)
    return path


def inside(root: Path, typed: str) -> Path | None:
    """The typed path, relative to the folder unless it is absolute; None if it leads out of the folder, also by a
    symbolic link."""
    folder = Path(split_job(root)[0]).resolve()
    try:
        path = (folder / typed).resolve()
    except (OSError, ValueError):
        return None
    return path if path.is_relative_to(folder) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return round(value, DASHBOARD.decimals_of_address) if math.isfinite(value) else None
