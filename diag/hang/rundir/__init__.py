"""Clues to a hang or a crash in this project's own run directories: heartbeats, exit codes, recorded collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from diag.collectors.layout import RunLayout, is_regular
from diag.hang.model import Clue
from diag.hang.rundir.read import Rundir, read_run

from . import clues
from .clues import RAISED_ITSELF, EndedWell, ended_well

__all__ = ["RAISED_ITSELF", "EndedWell", "Rundir", "clues_of", "culprit_order", "ended_well", "read_runs"]


def clues_of(run: Rundir) -> tuple[Clue, ...]:
    """The clues of one run directory; none where the run ended well."""
    mismatches = clues.clues_of_calls(run)
    return (*mismatches, *clues.clues_of_ends(run, explained=bool(mismatches)), *clues.clues_of_standstill(run))


def read_runs(paths: Iterable[str]) -> tuple[Rundir, ...]:
    """The run directories among the paths. Where ranks cannot be listed, the search for logs reports it."""
    runs = []
    for layout in (RunLayout(Path(path)) for path in paths if path != "-"):
        with suppress(OSError):
            if is_regular(layout.manifest) and layout.ranks():
                runs.append(read_run(layout))
    return tuple(runs)


def culprit_order(layout: RunLayout, codes: Mapping[int, int]) -> dict[int, int]:
    """A number for each rank of a run that failed with these exit codes: the smallest is the culprit's. A rank that
    raised an exception of its own has ``RAISED_ITSELF``, also where the launcher ended it first."""
    ranks = read_run(layout).ranks
    return {rank: clues.place_of(ranks[rank], code) for rank, code in codes.items() if rank in ranks}
