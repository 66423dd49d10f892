"""The runs of a folder, worst first, to search, open and compare; the curves of the chosen ones in one figure."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from diag.api import Jobs, Result, RunState, State, compare_runs
from diag.app.address import (
    Version,
    analyse,
    bytes_of,
    choose_baseline,
    choose_text,
    job_at,
    name_of,
    opened,
    runs_of,
    shown_result,
    version_of,
)
from diag.app.cockpit import Line, Outlook, cockpit_of, outlook_of
from diag.app.curves import (
    LOSS,
    MEMORY,
    STEP_TIME,
    OfRuns,
    Quantity,
    curve_figure,
    curves_of_result,
    is_known,
    known,
    look_at,
    looks,
    places_of,
    throughput,
)
from diag.app.looks import state_of
from diag.app.markup import plain
from diag.app.policy import DASHBOARD
from diag.app.run_view import at_fault
from diag.app.theme import theme_of
from diag.app.views.by_name import show_by_name
from diag.app.views.common import bullets, component, draw, show_error, show_rows
from diag.app.views.repeats import has_repeats, show_repeats
from diag.diagnoses.repeats import Repeats, groups_of
from diag.diagnoses.setups import setup_planned
from diag.errors import DiagError
from diag.live import Curves, curves_of
from diag.model.steps import Bottleneck, Severity, Verdict
from diag.show.compare import headline
from diag.show.page import MFU, TOKENS_PER_S, numbers_of
from diag.tune.history import FILE_NAME
from diag.words.formatting import counted, listing, spaced, visible
from diag.words.places import shown
from diag.words.table import COUNT, MOMENT, SHARE, TENTHS_OF_MS, TEXT, Column, Table, table_of
from diag.words.wording import class_name

_COCKPIT, _PLACES = "cockpit", "places of the runs among the looks of curves"
_NOT_ANALYSED = "not analysed yet"
MEAN_OF_REPEATS = "Mean of repeats, in a band from the lowest to the highest run"


def show(root: Path, open_run: Callable[[str], None], compare: Callable[[str, str], None]) -> None:
    """``open_run`` is called with the name of a run, ``compare`` with the names of the first and the second run."""
    st.title("Runs")
    _found(root, open_run, compare)


@st.fragment
def _found(root: Path, open_run: Callable[[str], None], compare: Callable[[str, str], None]) -> None:
    """Draws the search and the runs that it finds; a search draws only this part of the page again."""
    left, right = st.columns([3, 2])
    with left:
        searched = choose_text("Search", param="search", placeholder="class, culprit, cause, strategy or name")
    with right:
        baseline = choose_baseline(root, runs_of(root)[0])
    words = searched.lower().split()
    _runs(root, words, baseline, open_run, compare)


@st.fragment
def _runs(
    root: Path,
    words: Sequence[str],
    baseline: Path | None,
    open_run: Callable[[str], None],
    compare: Callable[[str, str], None],
) -> None:
    """Draws the runs, again and again: how soon depends on what was drawn, which ``run_every`` cannot."""
    busy = _draw_runs(root, words, baseline, open_run, compare)
    every_s = DASHBOARD.runs_every_s if busy else DASHBOARD.idle_runs_every_s
    component("pace")(key="pace", data={"ms": 1000 * every_s}, on_again_change=lambda: None)


def _draw_runs(
    root: Path,
    words: Sequence[str],
    baseline: Path | None,
    open_run: Callable[[str], None],
    compare: Callable[[str, str], None],
) -> bool:
    """Whether a run trains or waits for its analysis."""
    try:
        listed, jobs = runs_of(root)
    except DiagError as error:  # the folder is gone
        show_error(error, "The runs cannot be listed")
        return False
    states = [state_of(run) for run in listed]
    rows = {state.path: row_for(root, state) for state in states}
    states.sort(key=lambda state: (not state.live, -rows[state.path].changed_ns * (not state.live)))
    matching = [state for state in states if rows[state.path].holds(words)]
    waiting, live = sum(outline_of(state) is None for state in states), any(state.live for state in states)
    st.caption(plain(_caption(root, len(states), len(matching), waiting, live)))
    if not matching:
        st.info("No run matches all search words.", icon=":material/search_off:")
        return waiting > 0 or live
    lines = {state.path: _line(state, rows[state.path]) for state in states}
    against = lines.get(baseline) if baseline is not None else None  # it may be gone since it was chosen
    ticked = _ticked()
    chosen = [state for state in matching if visible(rows[state.path].name) in ticked]
    worst = sorted(matching, key=lambda state: lines[state.path].badness)[: DASHBOARD.curves_shown]
    named = [(rows[state.path].name, state) for state in chosen or worst]
    places = _places(
        [row.name for row in rows.values()], [name for name, state in named if curves_for(state) is not None]
    )
    _cockpit([lines[state.path] for state in matching], against, places, open_run)
    names = [rows[state.path].name for state in chosen]
    if against is not None and len(names) == 1 and against.name not in names:
        names.append(against.name)
    _buttons(names, compare)
    grouped = _grouped(chosen, rows, against)
    _several(chosen, rows, against)
    _curves(named, places, len(matching), bool(chosen), grouped)
    with st.expander("All numbers"):
        show_rows(
            runs_table([rows[state.path] for state in matching]), key="runs", alt="The runs, each with its verdict"
        )
    _left_out(
        [
            f"{name}: {outline.why}"
            for name, state in named
            if (outline := outline_of(state)) is not None and outline.why
        ]
    )
    _sorted(jobs)
    return waiting > 0 or live


def _caption(root: Path, runs: int, matches: int, waiting: int, live: bool) -> str:
    of = f"{matches:,} of " if matches < runs else ""
    texts = [f"{of}{counted(runs, 'run')} in {shown(str(root))}"]
    if waiting:
        texts.append(f"{counted(waiting, 'run')} waiting for analysis")
    if live:
        texts.append("running jobs are refreshed every few seconds")
    return " · ".join(texts)


def _sorted(jobs: Jobs) -> None:
    """Draws why the traces were split into several runs, and the files that belong to no run."""
    apart = [f"{job.name}: {job.reason}" for job in jobs.jobs if job.reason]
    if apart:
        st.subheader("Why these are several runs", anchor="apart")
        st.markdown(bullets(tuple(apart)))
    unused = [gap for gap in jobs.unused if Path(gap.path).name != FILE_NAME]  # it has its own page
    if unused:
        st.subheader("Files in no run", anchor="unused")
        st.markdown(bullets(tuple(f"{gap.path}: {gap.reason}" for gap in unused)))


def _left_out(reasons: Sequence[str]) -> None:
    """Draws why runs were not analysed."""
    if reasons:
        more = (
            [f"and {counted(len(reasons) - DASHBOARD.most_reasons, 'run')} more"]
            if len(reasons) > DASHBOARD.most_reasons
            else []
        )
        st.markdown("Not analysed for this list:\n" + bullets((*reasons[: DASHBOARD.most_reasons], *more)))


def _ticked() -> list[str]:
    """The names of the ticked runs, as they are shown."""
    return list((st.session_state.get(_COCKPIT) or {}).get("ticked") or ())


def _places(every: Sequence[str], with_curves: Sequence[str]) -> dict[str, int]:
    """The place of each run in the figure among the looks of curves: by its name among all runs of the folder. A run
    that is added later comes last, so that none of the others changes its colour."""
    known_places: dict[str, int] = st.session_state.setdefault(_PLACES, {})
    for name in sorted(every):
        known_places.setdefault(name, len(known_places))
    drawn = with_curves[: DASHBOARD.most_runs_in_figure]
    most = looks(theme_of(st.context.theme.type))
    return dict(zip(drawn, places_of(drawn, known_places, most), strict=True))


def _cockpit(
    lines: Sequence[Line], baseline: Line | None, places: Mapping[str, int], open_run: Callable[[str], None]
) -> None:
    """Draws the runs, worst first, each in the colour of its curve below. Opens the one whose name is clicked."""
    theme = theme_of(st.context.theme.type)
    data = cockpit_of(lines, baseline, theme, {name: look_at(place, theme) for name, place in places.items()})
    ticked = _ticked()
    event = component("cockpit")(
        key=_COCKPIT,
        data=data | {"ticked": ticked},
        default={"ticked": ticked},
        on_ticked_change=lambda: None,
        on_open_change=lambda: None,
    )
    for line in lines:
        if event.open == visible(line.name):
            open_run(line.name)


def _line(state: RunState, row: RunRow) -> Line:
    outline = _KNOWN.get(state.path)
    return Line(
        name=row.name,
        state=state.state,
        state_text=row.state,
        state_words=state.headline if state.stuck else outline.ended if outline is not None else "",
        severity=row.severity,
        culprit=row.culprit,
        cause=(row.why if row.severity != Severity.HEALTHY else "")
        or row.headline
        or (outline.why if outline is not None else "")
        or _NOT_ANALYSED,
        share=row.share,
        step_ns=row.step_ns,
        outlook=outline.outlook if outline is not None else None,
        curves=curves_for(state),
    )


def runs_table(rows: Sequence[RunRow]) -> Table:
    """A row for each run."""
    return table_of(
        "runs",
        "Runs",
        {
            Column("run", weight=0): [row.name for row in rows],
            Column("state", weight=9): [row.state for row in rows],
            Column("bottleneck", TEXT, "What the run is bound by, from its verdict.", label="class", weight=9): [
                ", ".join(filter(None, (row.bottleneck, row.severity and row.severity.words))) or None for row in rows
            ],
            Column("culprit", weight=8): [row.culprit or None for row in rows],
            Column("cause", TEXT, "The finding that the verdict rests on.", weight=8): [
                row.why or row.cause or None for row in rows
            ],
            Column("step_ns", TENTHS_OF_MS, "Mean of the counted steps.", label="step time", weight=8): [
                row.step_ns for row in rows
            ],
            Column(
                "last_steps_ns",
                TENTHS_OF_MS,
                "Median of the last 20 steps of the first rank, of a run that was not analysed.",
                label="last 20 steps",
                weight=7,
            ): [row.last_steps_ns for row in rows],
            Column("mfu", SHARE, "Model FLOPs utilisation; not known on a CPU.", label="MFU", weight=7): [
                row.mfu for row in rows
            ],
            Column("tokens_per_s", COUNT, "Sum over all ranks in the counted steps.", label="tokens/s", weight=7): [
                None if row.tokens_per_s is None else round(row.tokens_per_s) for row in rows
            ],
            Column("ranks", weight=6): [
                f"{row.ranks} of {row.world_size}" if row.world_size else row.ranks and str(row.ranks) for row in rows
            ],
            Column("strategy", weight=6): [row.strategy or None for row in rows],
            Column("last_step", COUNT, weight=5): [row.last_step for row in rows],
            Column("last_record", MOMENT, weight=5): [datetime.fromtimestamp(row.changed_ns / 1e9) for row in rows],
            Column("verdict", long=True, weight=4): [row.headline or _NOT_ANALYSED for row in rows],
        },
    )


def _buttons(names: Sequence[str], compare: Callable[[str, str], None]) -> None:
    """Draws a button to compare two ticked runs, or one with the baseline."""
    if len(names) == 2:
        after, before = names
        if st.button(plain(f"Compare {before} with {after}"), key="compare both", icon=":material/difference:"):
            compare(before, after)
    else:
        st.caption("Tick two runs to compare them, more to see their curves in one figure. A click on a name opens it.")


def _grouped(chosen: Sequence[RunState], rows: Mapping[Path, RunRow], baseline: Line | None) -> tuple[Repeats, ...]:
    """Draws the mean steps of the ticked runs by their settings, if some of them repeat one another. Returns the
    groups, that of the baseline first; none without repeats."""
    by_name = {rows[state.path].name: state for state in chosen}
    groups = repeats_of(by_name, baseline.name if baseline is not None else "")
    if not has_repeats(groups):
        return ()
    st.subheader("Means of repeated runs", anchor="repeats")
    show_repeats(groups, "repeats")
    waiting = len(by_name) - sum(len(group.runs) for group in groups)
    if waiting:
        st.caption(plain(f"Without {counted(waiting, 'ticked run')} whose steps are not known."))
    return groups


def repeats_of(states: Mapping[str, RunState], first: str = "") -> tuple[Repeats, ...]:
    """The runs that do not train any more by what they were asked to do, as far as they are analysed, in the order in
    which they began. ``first``: the name of a run whose group comes before the others."""
    planned = {name: setup_planned(state.path) for name, state in states.items()}
    setups = {name: setup for name, setup in planned.items() if setup is not None}
    began = {name: setups[name].began_ns if name in setups else 0 for name in states}
    ns = {}
    for name in sorted(states, key=lambda name: (name != first, began[name], name)):
        outline = outline_of(states[name])
        if not states[name].live and outline is not None and outline.row.step_ns is not None:
            ns[name] = outline.row.step_ns
    return groups_of(setups, ns)


def _several(chosen: Sequence[RunState], rows: Mapping[Path, RunRow], baseline: Line | None) -> None:
    """Draws what differs between three or more ticked runs, when asked for: the sentence of each against the first one
    or the baseline, and times by name with a column for each run."""
    runs = chosen[: DASHBOARD.most_runs_compared]
    if len(runs) < 3 or not st.toggle("What differs between the ticked runs", key="several"):
        return
    by_name = {rows[state.path].name: state for state in runs}
    against = baseline.name if baseline is not None and baseline.name in by_name else next(iter(by_name))
    try:
        views = {name: opened(state.path, state) for name, state in by_name.items()}
    except DiagError as error:
        show_error(error, "These runs cannot be compared")
        return
    for name, view in views.items():
        if name == against:
            continue
        try:
            said = headline(compare_runs(views[against].result, view.result))
        except DiagError as error:
            said = f"{error.message}."
        st.markdown(f"**{plain(name)}** against {plain(against)}: {plain(said)}")
    if len(chosen) > len(runs):
        st.caption(f"The first {len(runs)} of {len(chosen)} ticked runs.")
    show_by_name(list(views.values()), list(views))


def _curves(
    states: Sequence[tuple[str, RunState]],
    places: Mapping[str, int],
    listed: int,
    ticked: bool,
    groups: Sequence[Repeats] = (),
) -> None:
    """``places``: of the runs that are drawn, among the looks of curves; ``listed``: how many runs there are to choose
    from; ``groups``: of those that repeat one another."""
    curves = [
        (name, recorded) for name, state in states if name in places and (recorded := curves_for(state)) is not None
    ]
    st.subheader("Curves", anchor="curves")
    which = counted(len(states), "ticked run" if ticked else "run")
    if len(states) > DASHBOARD.most_runs_in_figure:
        which = f"the first {DASHBOARD.most_runs_in_figure} of {which}"
    elif not ticked and listed > 1:
        which = f"the first {which}"
    st.caption(f"Curves of {which}, first rank of each run. Tick runs to choose them.")
    quantities = known([run_curves for _, run_curves in curves], _quantities(curves))
    if not quantities:
        st.info("None of these runs has its own records of steps: traces alone have no curves.", icon=":material/info:")
        return
    names = ", ".join(quantity.name for quantity in quantities)
    lines: Sequence[tuple[str, OfRuns]] = curves
    if groups and st.toggle(MEAN_OF_REPEATS, value=True, key="mean of repeats"):
        lines = curves_by_group(dict(curves), groups)
    theme = theme_of(st.context.theme.type)
    drawn = [next(places[run] for run in _runs_of(name, groups) if run in places) for name, _ in lines]
    draw(
        lambda: curve_figure(lines, quantities, theme, DASHBOARD.curves_of_runs_px, places=drawn),
        "curves",
        f"{names} by step, of {counted(len(curves), 'run')}",
    )
    for quantity in quantities:
        missing = [name for name, run_curves in curves if not is_known(run_curves, quantity)]
        if missing:
            st.caption(plain(f"{quantity.name.capitalize()} is not recorded in {', '.join(missing)}."))


def curves_by_group(curves: Mapping[str, Curves], groups: Sequence[Repeats]) -> list[tuple[str, OfRuns]]:
    """One line for each group of runs that repeat one another, and one for each other run."""
    lines: list[tuple[str, OfRuns]] = []
    for group in groups:
        own = [curves[run] for run in group.runs if run in curves]
        if own:
            lines.append((group.name, own[0] if len(own) == 1 else tuple(own)))
    grouped = {run for group in groups for run in group.runs}
    return [*lines, *((name, of_run) for name, of_run in curves.items() if name not in grouped)]


def _runs_of(name: str, groups: Sequence[Repeats]) -> tuple[str, ...]:
    """The runs of the group with this name, or the run."""
    return next((group.runs for group in groups if group.name == name), (name,))


def _quantities(curves: Sequence[tuple[str, Curves]]) -> tuple[Quantity, ...]:
    return STEP_TIME, throughput([run_curves for _, run_curves in curves]), LOSS, MEMORY


# -- outlines ----------------------------------------------------------------------------------------------------------
#
# What the list shows of each run. A background thread analyses one run after the other; an outline is cached until its
# run changes.


@dataclass(frozen=True)
class Outline:
    """``row``: as of ``version``. ``curves``: only of a run without records, whose steps an analysis must find.
    ``why``: the reason that it was not analysed, or ""; ``ended``: how it failed, in words, "" if it did not."""

    row: RunRow
    version: Version
    made_s: float
    curves: Curves | None = None
    why: str = ""
    outlook: Outlook | None = None
    ended: str = ""


_KNOWN: OrderedDict[Path, Outline] = OrderedDict()
_WAITING: OrderedDict[Path, RunState] = OrderedDict()
_LOCK = threading.Lock()
_WORKING = threading.Event()  # set while a thread analyses the runs that wait


def outline_of(state: RunState) -> Outline | None:
    """The outline of the run as it is, or, if it trains, as it was less than a minute ago. None while it waits for its
    analysis."""
    with _LOCK:
        outline = _KNOWN.get(state.path)
        if outline is not None and _holds(outline, state) and not (outline.why and shown_result(state)):
            return outline
        if (shown := shown_result(state)) is not None:  # a page has opened it: nothing is left to analyse
            _KNOWN[state.path] = outline = _outline(state, version_of(state), shown)
            return outline
        _WAITING.setdefault(state.path, state)
        if not _WORKING.is_set():
            _WORKING.set()
            threading.Thread(target=_work, daemon=True).start()
    return None


def row_for(root: Path, state: RunState) -> RunRow:
    """The row of a run: from its last analysis here, else from that of ``diag analyze``. A job of traces has at least
    its ranks and when they were recorded."""
    outline, now = outline_of(state) or _KNOWN.get(state.path), row_of(state)
    row = now if outline is None else outline.row
    job = job_at(state.path)
    if job is not None and job.tables is not None:
        ranks, world_size, recorded = len(job.tables.ranks), job.tables.world_size, job.tables.recorded
        changed_ns = recorded[1] if recorded is not None and recorded[0] > 0 else now.changed_ns
        row = replace(row, ranks=ranks, world_size=world_size)
        now = replace(now, changed_ns=changed_ns)
    return replace(
        row, name=name_of(root, state.path), state=now.state, changed_ns=now.changed_ns, last_step=now.last_step
    )


def curves_for(state: RunState) -> Curves | None:
    """The curves of a run directory or of analysed traces; None if there are none, or not yet."""
    curves = curves_of(state.path)
    if curves is None and (outline := _KNOWN.get(state.path)) is not None:
        return outline.curves
    return curves


def _holds(outline: Outline, state: RunState) -> bool:
    fresh = state.live and outline.version[1] and time.monotonic() - outline.made_s < DASHBOARD.live_run_every_s
    return fresh or outline.version == version_of(state)


def _work() -> None:
    while (state := _next()) is not None:
        try:
            outline = _outlined(state)
            with _LOCK:
                _KNOWN[state.path] = outline
                _KNOWN.move_to_end(state.path)
                if len(_KNOWN) > DASHBOARD.most_runs_known:
                    _KNOWN.popitem(last=False)
        except BaseException:  # a bug ends this thread, not the list
            _WORKING.clear()
            raise
        finally:
            with _LOCK:
                _WAITING.pop(state.path, None)


def _next() -> RunState | None:
    with _LOCK:
        state = next(iter(_WAITING.values()), None)
        if state is None:
            _WORKING.clear()
        return state


def _outlined(state: RunState) -> Outline:
    version, now_s = version_of(state), time.monotonic()
    if shown_result(state) is None and bytes_of(state.path) > DASHBOARD.most_analysed_run_bytes:
        why = f"more than {DASHBOARD.most_analysed_run_bytes >> 20} MiB of records; open it to analyse it"
        return Outline(row_of(state), version, now_s, why=why)
    try:
        result = analyse(state)
    except DiagError as error:
        return Outline(row_of(state), version, now_s, why=error.message)
    return _outline(state, version, result)


def _outline(state: RunState, version: Version, result: Result) -> Outline:
    curves = curves_of_result(result) if curves_of(state.path) is None and result.attribution.steps else None
    failed = result.outcome if state.state in (State.FAILED, State.HUNG) else None
    ended = (failed.why or failed.headline) if failed is not None else ""
    return Outline(row_of(state, result), version, time.monotonic(), curves, outlook=outlook_of(result), ended=ended)


# -- rows --------------------------------------------------------------------------------------------------------------
#
# A run's state, its verdict and its numbers.


class RunRow(Struct, frozen=True):
    """``state``: in words, with the exit code of a run that failed; ``step_ns``: the mean of the counted steps;
    ``last_steps_ns``: the median of the last 20 steps, of a run that was not analysed; ``cause``: the id of the finding
    behind the class, ``why`` the same in words, and ``share`` what it takes of the step; ``mfu``: 0 to 1. "" and None
    where a value is not known, such as the verdict of a run that was not analysed."""

    name: str
    state: str
    changed_ns: int
    ranks: int
    world_size: int | None
    strategy: str
    last_step: int | None
    severity: Severity | None = None
    bottleneck: str = ""
    culprit: str = ""
    cause: str = ""
    why: str = ""
    share: float = 0.0
    headline: str = ""
    step_ns: float | None = None
    last_steps_ns: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None

    def holds(self, words: Sequence[str]) -> bool:
        """Whether each of the words, in lower case, is somewhere in its texts."""
        texts = (self.name, self.state, self.strategy, self.severity, self.bottleneck, self.culprit, self.cause)
        whole = " ".join((*(text or "" for text in texts), self.headline)).lower()
        return all(word in whole for word in words)


def row_of(state: RunState, result: Result | None = None) -> RunRow:
    """``result``: of the run's analysis; without it, the row uses what the last ``diag analyze`` stored."""
    verdict = result.verdict if result is not None else state.answer
    numbers = numbers_of(result) if result is not None else {}
    tables = result.tables if result is not None else None
    manifest = tables.manifest if tables is not None else None
    culprits = at_fault(result) if result is not None else verdict.culprit_ranks if verdict is not None else ()
    return RunRow(
        name=state.path.name,
        state=state.state.value + (f" ({state.exit_code})" if state.state == State.FAILED else ""),
        changed_ns=state.changed_ns,
        ranks=len(tables.ranks) if tables is not None else state.ranks,
        world_size=tables.world_size if tables is not None else state.world_size,
        strategy=(manifest.strategy if manifest is not None else state.strategy) or "",
        last_step=state.last_step,
        severity=verdict.severity if verdict is not None else None,
        bottleneck=class_name(verdict.bottleneck) if verdict is not None else "",
        culprit=spaced(listing(culprits)) if culprits else "",
        cause=_cause(verdict),
        why=_why(result) if result is not None else "",
        share=verdict.share if verdict is not None else 0.0,
        headline=verdict.headline if verdict is not None else "",
        step_ns=next(iter(numbers.values()), None),
        last_steps_ns=None if numbers else state.step_ns,
        tokens_per_s=numbers.get(TOKENS_PER_S),
        mfu=numbers.get(MFU),
    )


def _why(result: Result) -> str:
    """The cause in words; the headline has both of a mixed run."""
    if result.verdict.bottleneck == Bottleneck.MIXED:
        return result.verdict.headline
    return result.cause.title if result.cause is not None else ""


def _cause(verdict: Verdict | None) -> str:
    return verdict.cause if verdict is not None and verdict.bottleneck != Bottleneck.UNDETERMINED else ""
