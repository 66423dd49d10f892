"""Opens a run by its size: from the ranks' summaries if there are very many ranks, and a run that trains by its newest
steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from diag.account.attribute import marked
from diag.account.policy import STEPS
from diag.api import Reading, Result, analyze, open_attempt
from diag.collectors.layout import RunLayout
from diag.collectors.records import WINDOW_ACTIVE
from diag.deferred import by_name
from diag.errors import readable
from diag.rundir.asked import StepsAsked, steps_asked
from diag.rundir.attempts import attempt_paths
from diag.rundir.job_ranks import job_ranks
from diag.rundir.policy import RUN_READING
from diag.rundir.run import open_paths
from diag.rundir.summaries import has_summaries
from diag.rundir.tables import Only, RankTables, Tables, of_steps, restricted
from diag.words.formatting import number_ranges, spans

# Of runs of very many ranks, and of steps whose full records are gone.
_open_summaries: Callable[..., Result] = by_name("diag.summaries:open_summaries")
_open_steps: Callable[[Path | str, Only], Result] = by_name("diag.summaries:open_steps")
_only_of: Callable[[Tables, StepsAsked], Only] = by_name("diag.history.steps:only_of")
_with_kept: Callable[[Tables, Only], Tables | None] = by_name("diag.rundir.kept:with_kept")


def summaries_suffice(path: Path | str) -> bool:
    """Whether to read a run from its summaries: it has very many ranks and summaries, and at most half of the ranks
    have traces."""
    layout = RunLayout(Path(path))
    with readable(layout.ranks_folder):
        files = layout.ranks()
    if len(files) <= RUN_READING.many_ranks or not has_summaries(files.values()):
        return False
    sample = list(files.values())[:: len(files) // RUN_READING.ranks_checked_for_traces]
    return sum(bool(rank_layout.traces()) for rank_layout in sample) <= len(sample) // 2


def open_newest(path: Path | str, most_steps: int) -> Result:
    """Opens a run that still trains, by its first and its newest steps, so that the cost does not grow with the run.
    The first steps are included so that they, and not the newest, count as warm-up; the last steps that a profiler
    recorded, so that the answer does not change when they are no longer among the newest."""
    if summaries_suffice(path):
        return _open_summaries(path)
    tables = open_paths((path,))
    of_ranks = [rank.recorded for rank in tables.ranks.values() if rank.steps]
    all_steps = set().union(*of_ranks)
    common_steps = (
        set.intersection(*of_ranks) if of_ranks else all_steps
    )  # ranks write their newest steps at different times
    recorded = sorted(common_steps if 2 * len(common_steps) >= len(all_steps) else all_steps)
    if len(recorded) <= STEPS.warm_up_steps + most_steps:
        return analyze(tables)
    kept_steps = {*recorded[: STEPS.warm_up_steps], *recorded[-most_steps:]}
    profiled = [step for step in _last_window(tables, recorded) if step not in kept_steps]
    result = analyze(of_steps(tables, kept_steps.union(profiled)))
    note = f"the run still trains: the newest {most_steps:,} of {len(recorded):,} steps are analysed"
    if profiled:
        steps = "step" if len(profiled) == 1 else "steps"
        note += f", and what a profiler recorded in {steps} {number_ranges(profiled)}"
    return replace(result, coverage=replace(result.coverage, notes=(note, *result.coverage.notes)))


def _last_window(tables: Tables, recorded: Sequence[int]) -> list[int]:
    """The steps of the last profiler window, of these recorded steps."""
    windows = spans(sorted(marked(tables.ranks, WINDOW_ACTIVE).intersection(recorded)))
    return [step for first, last in windows[-1:] for step in range(first, last + 1)]


def open_by_size(
    *paths: Path | str, reading: Reading | None = None, steps: str | None = None, since: str | None = None
) -> Result:
    """Opens a run from its summaries if it has very many ranks, else from all its records; of several attempts the one
    that ``diag.open_run`` opens. ``steps`` and ``since``: as there; of steps whose full records are gone, what is left
    of them is analysed."""
    asked = steps_asked(steps, since)
    return open_attempt_by_size(attempt_paths(paths), reading, asked)


def open_attempt_by_size(
    paths: Sequence[str], reading: Reading | None = None, asked: StepsAsked | None = None
) -> Result:
    """The same, of what ``attempt_paths`` returned: a run directory is that of one attempt."""
    if len(paths) == 1 and summaries_suffice(paths[0]):
        if asked is None:
            return _open_summaries(paths[0], reading.progress if reading is not None else None)
        return _open_steps(paths[0], _only_of(_first_ranks(Path(paths[0])), asked))
    if asked is None or not (len(paths) == 1 and RunLayout(Path(paths[0])).is_run()):
        return open_attempt(paths, reading, asked)
    tables = open_paths(paths, reading)
    only, left = _only_of(tables, asked), tables.retained
    if left is None or only.first >= left.first:
        return analyze(tables, asked)
    kept = _with_kept(tables, only)
    return analyze(restricted(kept, only)) if kept is not None else _open_steps(paths[0], only)


def _first_ranks(path: Path) -> Tables:
    """A run of very many ranks, as far as it is needed to know which steps it has."""
    job = job_ranks(RunLayout(path), whole=True)
    ranks = {rank: RankTables(rank, identity) for rank, identity in list(job.identities.items())[:8]}
    return Tables(path, job.manifest, None, ranks, ())
