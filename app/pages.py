"""The pages of the dashboard, in the order of the navigation: the one list of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from diag.app.run_view import RunView
from diag.app.views import overview
from diag.tune.history import is_tuned, load


@dataclass(frozen=True)
class Visit:
    """What the dashboard was given (``root``), its runs, what opens one by its name, and the chosen run. ``baseline``
    opens the run that the overview compares with, None where none is chosen; ``compare`` opens the page that compares
    two runs, by their names."""

    root: Path
    runs: Sequence[Path]
    open_run: Callable[[str], None]
    run: Path
    baseline: Callable[[], RunView | None]
    compare: Callable[[str, str], None]


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


def _view(name: str) -> Any:
    """The module of a page but the first, imported when it is drawn: the first one need not wait for all of them."""
    return import_module(f"diag.app.views.{name}")


def _tuning(at: Visit) -> None:
    history = load(at.root)
    if history is not None:
        _view("tuning").show(at.root, history)


COMPARE = "compare"  # its path

PAGES = (
    Page("Overview", "overview", lambda view, at: overview.show(view, at.baseline())),
    Page("Timeline", "timeline", lambda view, _: _view("timeline").show(view)),
    Page("What if", "what-if", lambda view, _: _view("what_if").show(view)),
    Page("Collectives", "collectives", lambda view, _: _view("collectives").show(view)),
    Page("Kernels", "kernels", lambda view, _: _view("kernels").show(view)),
    Page("Input", "input", lambda view, _: _view("loading").show(view)),
    Page("Memory", "memory", lambda view, _: _view("memory").show(view)),
    Page("Compare", COMPARE, lambda view, at: _view("compare").show(view, at.root), offered=_several),
    Page("Hang triage", "hang", of_files=lambda at: _view("hang").show(at.root, at.run)),
    Page(
        "Runs",
        "runs",
        of_files=lambda at: _view("runs").show(at.root, at.open_run, at.compare),
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
