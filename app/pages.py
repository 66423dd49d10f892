"""The pages of the dashboard, in the order of the navigation: the one list of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.api import Jobs
from diag.app.run_view import RunView
from diag.app.views import (
    collectives,
    compare,
    hang,
    kernels,
    loading,
    memory,
    overview,
    runs,
    timeline,
    tuning,
    what_if,
)
from diag.tune.history import is_tuned, load


@dataclass(frozen=True)
class Visit:
    """What the dashboard was given (``root``), its runs, what opens one by its name, and the chosen run. ``baseline``
    opens the run that the overview compares with, None where none is chosen. ``found``: how traces in it were sorted
    into jobs."""

    root: Path
    runs: Sequence[Path]
    open_run: Callable[[str], None]
    run: Path
    baseline: Callable[[], RunView | None]
    found: Jobs | None = None


@dataclass(frozen=True)
class Page:
    """``path``: in the address. ``of_run`` draws an analysed run, ``of_files`` what needs no analysis: one of the two.
    ``of_folder``: the page is about all runs, so none is chosen. ``offered``: whether a folder with these runs has
    the page."""

    title: str
    path: str
    of_run: Callable[[RunView, Visit], None] | None = None
    of_files: Callable[[Visit], None] | None = None
    of_folder: bool = False
    offered: Callable[[Path, Sequence[Path]], bool] = lambda root, runs: True  # noqa: ARG005


def _several(_: Path, runs: Sequence[Path]) -> bool:
    return len(runs) > 1


def _tuning(at: Visit) -> None:
    history = load(at.root)
    if history is not None:
        tuning.show(at.root, history)


PAGES = (
    Page("Overview", "overview", lambda view, at: overview.show(view, at.baseline())),
    Page("Timeline", "timeline", lambda view, _: timeline.show(view)),
    Page("What if", "what-if", lambda view, _: what_if.show(view)),
    Page("Collectives", "collectives", lambda view, _: collectives.show(view)),
    Page("Kernels", "kernels", lambda view, _: kernels.show(view)),
    Page("Input", "input", lambda view, _: loading.show(view)),
    Page("Memory", "memory", lambda view, _: memory.show(view)),
    Page("Compare", "compare", lambda view, at: compare.show(view, at.root), offered=_several),
    Page("Hang triage", "hang", of_files=lambda at: hang.show(at.root, at.run)),
    Page(
        "Runs",
        "runs",
        of_files=lambda at: runs.show(at.root, at.runs, at.open_run, at.found),
        of_folder=True,
        offered=_several,
    ),
    Page(
        "Tuning",
        "tuning",
        of_files=_tuning,
        of_folder=True,
        offered=lambda root, _: is_tuned(root),
    ),
)
