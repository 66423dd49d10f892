"""What this project's own run directories say about a hang or a crash: heartbeats, exit codes, recorded collectives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.hang.model import Clue
from diag.hang.rundir import calls, ends, standstill
from diag.hang.rundir.read import Rundir, read_run

__all__ = ["Rundir", "clues_of", "clues_of_runs", "read_run"]


def clues_of(run: Rundir) -> tuple[Clue, ...]:
    """Everything that one run directory says about its own end; nothing of a run that ended well."""
    mismatches = calls.clues(run)
    return (*mismatches, *ends.clues(run, explained=bool(mismatches)), *standstill.clues(run))


def clues_of_runs(paths: Iterable[str]) -> tuple[Clue, ...]:
    """Of every given path that is a run directory of this project."""
    return tuple(
        clue
        for path in paths
        if path != "-" and (layout := RunLayout(Path(path))).manifest.is_file() and layout.ranks()
        for clue in clues_of(read_run(layout))
    )
