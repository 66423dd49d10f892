"""What this project's own run directories say about a hang or a crash: heartbeats, exit codes, recorded collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from diag.collectors.layout import RunLayout, is_regular
from diag.hang.model import Clue
from diag.hang.rundir.read import Rundir, read_run

from . import clues
from .clues import RAISED_ITSELF, EndedWell, ended_well

__all__ = ["RAISED_ITSELF", "EndedWell", "Rundir", "blamed_before", "clues_of", "ended_well", "read_runs"]


def clues_of(run: Rundir) -> tuple[Clue, ...]:
    """Everything that one run directory says about its own end; nothing of a run that ended well."""
    mismatches = clues.clues_of_calls(run)
    return (*mismatches, *clues.clues_of_ends(run, explained=bool(mismatches)), *clues.clues_of_standstill(run))


def read_runs(paths: Iterable[str]) -> tuple[Rundir, ...]:
    """Those of the given paths that are run directories of this project. Where the ranks cannot be listed there is
    nothing of them, which the search for logs says."""
    found = []
    for layout in (RunLayout(Path(path)) for path in paths if path != "-"):
        with suppress(OSError):
            if is_regular(layout.manifest) and layout.ranks():
                found.append(read_run(layout))
    return tuple(found)


def blamed_before(layout: RunLayout, codes: Mapping[int, int]) -> dict[int, int]:
    """By rank of a run that failed with these exit codes: whoever has the smallest number is the one to report.
    Who raised an exception of its own has ``RAISED_ITSELF``, also where the launcher ended it before it was through."""
    ranks = read_run(layout).ranks
    return {rank: clues.place_of(ranks[rank], code) for rank, code in codes.items() if rank in ranks}
