"""A run of very many ranks, opened from what each of them added up itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diag.api import Result
from diag.attribution.merged import merged_attribution, merged_frontier, steps_left_out, telling_ranks
from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.findings.merged import examine_merged
from diag.ingest.axes import axes_of
from diag.ingest.run import RankTables, Tables, must_exist
from diag.ingest.summaries import MOST_STEPS, has_summaries, read_summaries
from diag.model import Coverage, Recommendation
from diag.verdict import judge

MANY_RANKS = 512  # 64 ranks of 40 steps take 4 s to account for, and the time grows with the collectives of them all


class Summarised(Result, frozen=True, dict=True):
    """A run analysed from summaries: nothing of it can be replayed."""

    @property
    def recommendation(self) -> Recommendation:
        return Recommendation(not_advised=("nothing was predicted: summaries hold no collectives to replay",))


def open_summaries(
    path: Path | str, progress: Callable[[int, int, str], None] | None = None, most_steps: int = MOST_STEPS
) -> Summarised:
    """The verdict over all ranks from their own summaries of the newest steps, one small file a rank: for jobs of
    thousands of ranks, also while they train. DiagError where there are none, or fewer than two ranks'."""
    must_exist([str(path)])
    found = read_summaries(RunLayout(Path(path)), progress, most_steps)
    ranks = {rank: RankTables(rank, own) for rank, own in zip(found.ranks, found.identities, strict=True)}
    tables = Tables(found.root, found.manifest, found.world_size, ranks, found.gaps)
    axes, left_out = axes_of(tables), steps_left_out(found)
    frontier = merged_frontier(found, set(found.numbers) - set(left_out) or set(found.numbers), axes.stages())
    if frontier is None:
        raise DiagError("one rank left a summary, and it takes two to compare", path=path, hint="leave out --summary")
    shown = telling_ranks(frontier)
    attribution = merged_attribution(found, left_out, shown, axes)
    examination = examine_merged(found, frontier, attribution, tables)
    notes = [f"the verdict rests on the ranks' summaries of steps {found.numbers[0]} to {found.numbers[-1]}"]
    if len(shown) < len(ranks):
        notes.append(f"the steps of {len(shown)} ranks are shown: the latest, and some of the others")
    coverage = Coverage(
        ranks_used=found.ranks,
        ranks_missing=found.missing,
        skipped=found.gaps,
        clock_uncertainty_ns=None,
        not_looked=examination.not_looked,
        notes=tuple(notes),
    )
    return Summarised(tables, attribution, examination, coverage, judge(attribution, examination, coverage, tables))


def summaries_suffice(path: Path | str) -> bool:
    """Whether a run has so many ranks that its summaries are the way to read it, has them, and has no trace."""
    layout = RunLayout(Path(path))
    if not layout.ranks_folder.is_dir():
        return False
    files = layout.ranks()
    many = len(files) > MANY_RANKS and has_summaries(files.values())
    return many and not any(own.traces() for own in files.values())
