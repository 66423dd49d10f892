"""The list of the dashboard's pages, in the order of the navigation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from importlib import import_module
from pathlib import Path
from typing import Any

from diag.api import Jobs, holds_runs, is_run, snapshots_alone
from diag.app.looks import state_of
from diag.app.run_view import RunView
from diag.by_size import summaries_suffice
from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.tune.history import is_tuned, load


class Contents(Enum):
    """What the dashboard's path holds, which decides on its pages."""

    RUNS = auto()  # to analyse: run directories, traces, NCCL Inspector's files
    SUMMARIES = auto()  # one run of so many ranks that only their summaries are read
    SNAPSHOTS = auto()  # of memory, nothing else
    LOGS = auto()  # logs, stacks and dumps for the triage, nothing else
    NOTHING = auto()


def contents_of(root: Path, runs: Sequence[Path], jobs: Jobs) -> Contents:
    """``runs``, ``jobs``: as `runs_of` lists them. Looks into other files only where there is no run."""
    if list(runs) == [root] and is_run(root) and summaries_suffice(root):
        return Contents.SUMMARIES
    if (list(runs) != [root] or holds_runs(root, jobs)) and not _recorded_no_step(root, runs):
        return Contents.RUNS
    if snapshots_alone([root]):
        return Contents.SNAPSHOTS
    try:
        _view("hang").investigated(root)
    except DiagError:
        return Contents.RUNS if is_run(root) else Contents.NOTHING
    return Contents.LOGS


def _recorded_no_step(root: Path, runs: Sequence[Path]) -> bool:
    """Whether the path is one run that ended and recorded nothing to analyse: no page but the triage has an answer."""
    if list(runs) != [root] or not is_run(root):
        return False
    try:
        ranks = RunLayout(root).ranks().values()
    except OSError:  # opening the run reports it
        return False
    for files in ranks:
        recorded = (files.steps, files.summary, files.durations, files.inspector)
        if any(map(os.path.lexists, recorded)) or files.traces() or files.memory_snapshots():
            return False
    return bool(ranks) and not state_of(root).live


@dataclass(frozen=True)
class Visit:
    """``root``: the path of the dashboard; ``runs``: its runs; ``open_run`` opens one by its name; ``run``: the chosen
    one. ``baseline`` opens the run that the overview compares with, None if none is chosen. ``compare`` opens the page
    that compares two runs, by their names."""

    root: Path
    runs: Sequence[Path]
    open_run: Callable[[str], None]
    run: Path
    baseline: Callable[[], RunView | None]
    compare: Callable[[str, str], None]


@dataclass(frozen=True)
class Page:
    """``path``: in the address. A page has either ``of_run``, which draws an analysed run, or ``of_files``, which needs
    no analysis. ``of_folder``: the page is about all runs, so none is chosen. ``shows``: the contents that it can show;
    ``offered``: whether a folder with these runs has the page."""

    title: str
    path: str
    of_run: Callable[[RunView, Visit], None] | None = None
    of_files: Callable[[Visit], None] | None = None
    of_folder: bool = False
    shows: frozenset[Contents] = frozenset({Contents.RUNS})
    offered: Callable[[Path, Sequence[Path]], bool] = lambda root, runs: True  # noqa: ARG005


def pages_for(root: Path, runs: Sequence[Path], contents: Contents) -> list[Page]:
    """The pages that have something to show, in the order of the navigation. The first one is opened first, and says
    what is wrong if there is nothing to show."""
    return [page for page in PAGES if contents in page.shows and page.offered(root, runs)]


def _several(_: Path, runs: Sequence[Path]) -> bool:
    return len(runs) > 1


def _view(name: str) -> Any:
    """The module of a page, imported when it is drawn, so that the first page does not wait for all modules."""
    return import_module(f"diag.app.views.{name}")


def _tuning(at: Visit) -> None:
    history = load(at.root)
    if history is not None:
        _view("tuning").show(at.root, history)


OVERVIEW, COMPARE = "overview", "compare"  # their paths

PAGES = (
    Page(
        "Runs",
        "runs",
        of_files=lambda at: _view("runs").show(at.root, at.open_run, at.compare),
        of_folder=True,
        offered=_several,
    ),
    Page(
        "Overview",
        OVERVIEW,
        lambda view, at: _view("overview").show(view, at.baseline()),
        shows=frozenset({Contents.RUNS, Contents.SUMMARIES, Contents.NOTHING}),
    ),
    Page("Timeline", "timeline", lambda view, _: _view("timeline").show(view)),
    Page(
        "History",
        "history",
        lambda view, at: _view("history").show(view, at.runs),
        shows=frozenset({Contents.RUNS, Contents.SUMMARIES}),
    ),
    Page("What if", "what-if", lambda view, at: _view("what_if").show(view, at.baseline(), at.root)),
    Page("Collectives", "collectives", lambda view, _: _view("collectives").show(view)),
    Page("Kernels", "kernels", lambda view, _: _view("kernels").show(view)),
    Page(
        "Input",
        "input",
        lambda view, _: _view("loading").show(view),
        shows=frozenset({Contents.RUNS, Contents.SUMMARIES}),
    ),
    Page(
        "Memory",
        "memory",
        lambda view, _: _view("memory").show(view),
        shows=frozenset({Contents.RUNS, Contents.SNAPSHOTS}),
    ),
    Page("Compare", COMPARE, lambda view, at: _view("compare").show(view, at.root), offered=_several),
    Page(
        "Hang triage",
        "hang",
        of_files=lambda at: _view("hang").show(at.root, at.run),
        shows=frozenset({Contents.RUNS, Contents.SUMMARIES, Contents.LOGS}),
    ),
    Page(
        "Tuning",
        "tuning",
        of_files=_tuning,
        of_folder=True,
        offered=lambda root, _: is_tuned(root),
    ),
)
