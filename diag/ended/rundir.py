"""Clues to a hang or a crash in this project's own run directories: heartbeats, exit codes, recorded collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from diag.collectors.layout import RunLayout, is_regular
from diag.ended.model import Clue
from diag.ended.read import Rundir, read_run
from diag.rundir.runs import ended_well

from . import clues, ends


def clues_of(run: Rundir) -> tuple[Clue, ...]:
    """The clues of one run directory; none where the run ended well."""
    mismatches = clues.clues_of_calls(run)
    return (*mismatches, *ends.clues_of_ends(run, explained=bool(mismatches)), *clues.clues_of_standstill(run))


def read_runs(paths: Iterable[str]) -> tuple[Rundir, ...]:
    """The run directories among the paths, also without any rank. Where ranks cannot be listed, the search for logs
    reports it."""
    runs = []
    for layout in (RunLayout(Path(path)) for path in paths if path != "-"):
        with suppress(OSError):
            if is_regular(layout.manifest):
                runs.append(read_run(layout))
    return tuple(runs)


def needs_triage(layout: RunLayout) -> bool:
    """Whether a run whose launcher ended with 0 did not end well: a rank failed, or left no end of its training. Cheap
    for a run that ended well."""
    if is_regular(layout.exits):
        return True
    if ended_well(layout):
        return False
    run = read_run(layout)
    # An exception without a record of it was handled: the process went on.
    return any(record.error or ends.end_of(run, record) is ends.End.GONE for record in run.ranks.values())


def culprit_order(layout: RunLayout, codes: Mapping[int, int]) -> dict[int, int]:
    """A number for each rank of a run that failed with these exit codes: the smallest is the culprit's. A rank that
    raised an exception of its own has ``RAISED_ITSELF``, also where the launcher ended it first."""
    ranks = read_run(layout).ranks
    return {rank: ends.place_of(ranks[rank], code) for rank, code in codes.items() if rank in ranks}
