"""Runs that nobody would wait for: of very many ranks, opened from what each of them added up itself, and of very many
steps while they train, opened from the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from diag.account.frontier import steps_left_out, summary_attribution, summary_frontier, telling_ranks
from diag.account.records import WARMUP_STEPS
from diag.api import Job, Jobs, Reading, Result, analyze, open_job, open_run
from diag.collectors.layout import RunLayout
from diag.diagnoses import examine_summary
from diag.diagnoses.verdict import agreeing, judge
from diag.errors import DiagError, readable
from diag.model.steps import Coverage, Recommendation
from diag.rundir.run import RankTables, Tables, axes_of, must_exist, open_paths
from diag.rundir.summaries import MOST_STEPS, has_summaries, read_summaries
from diag.words.formatting import rank_ranges

if TYPE_CHECKING:
    from diag.replay.advice import WhatIf

MANY_RANKS = 512  # 64 ranks of 40 steps take 4 s to account for, and the time grows with the collectives of them all
_LOOKED_AT = 64  # ranks, of all, for traces: a folder of shared storage takes a millisecond
_ALL_LOOKED_AT = 4_096  # ranks: of more only the telling ones: looking into 24,576 folders takes seconds
_NO_REPLAY = "summaries hold no collectives to replay"


class SummaryResult(Result, frozen=True, dict=True):
    """A run analysed from summaries: nothing of it can be replayed, and steps are known of some ranks only."""

    from_summaries: ClassVar[bool] = True

    @property
    def recommendation(self) -> Recommendation:
        return Recommendation(not_advised=(f"nothing was predicted: {_NO_REPLAY}",), refused=True)

    @property
    def what_if(self) -> WhatIf:
        from diag.replay.advice import WhatIf

        return WhatIf((), _NO_REPLAY)


def open_summaries(
    path: Path | str, progress: Callable[[int, int, str], None] | None = None, most_steps: int = MOST_STEPS
) -> SummaryResult:
    """The verdict over all ranks from their own summaries of the newest steps, one small file a rank: for jobs of
    thousands of ranks, also while they train. DiagError where there are none, or fewer than two ranks'."""
    must_exist([str(path)])
    found = read_summaries(RunLayout(Path(path)), progress, most_steps)
    ranks = {rank: RankTables(rank, own) for rank, own in zip(found.ranks, found.identities, strict=True)}
    tables = Tables(found.root, found.manifest, found.world_size, ranks, found.gaps)
    axes, left_out = axes_of(tables), steps_left_out(found)
    frontier = summary_frontier(found, set(found.numbers) - set(left_out) or set(found.numbers), axes.stages())
    if frontier is None:
        steps = f"steps {found.numbers[0]} to {found.numbers[-1]}"
        raise DiagError(
            f"one rank left a summary of {steps}, and it takes two to compare", path=path, hint="leave out --summary"
        )
    shown = telling_ranks(frontier)
    attribution = summary_attribution(found, left_out, shown, axes)
    examination = examine_summary(found, frontier, attribution, tables)
    notes = [f"the verdict rests on the ranks' summaries of steps {found.numbers[0]} to {found.numbers[-1]}"]
    if len(shown) < len(ranks):
        notes.append(f"the steps of {len(shown)} ranks are shown: the latest, and some of the others")
    layout = RunLayout(found.root)
    looked_at = found.ranks if len(found.ranks) <= _ALL_LOOKED_AT else shown
    if traced := [rank for rank in looked_at if layout.rank(rank).traces()]:
        one = layout.rank(traced[0]).folder
        notes.append(f"profiler windows of {rank_ranges(traced)} are not in it: diag analyze {one} reads a rank's")
    coverage = Coverage(
        ranks_used=found.ranks,
        ranks_missing=found.missing,
        skipped=found.gaps,
        clock_uncertainty_ns=None,
        not_looked=examination.not_looked,
        notes=tuple(notes),
    )
    verdict = judge(attribution, examination, coverage, tables)
    return SummaryResult(tables, attribution, agreeing(examination, verdict), coverage, verdict)


def summaries_suffice(path: Path | str) -> bool:
    """Whether a run has so many ranks that its summaries are the way to read it, and has them; most ranks have no
    trace then."""
    layout = RunLayout(Path(path))
    with readable(layout.ranks_folder):
        files = layout.ranks()
    if len(files) <= MANY_RANKS or not has_summaries(files.values()):
        return False
    some = list(files.values())[:: len(files) // _LOOKED_AT]
    return sum(bool(own.traces()) for own in some) <= len(some) // 2


def open_newest(path: Path | str, most_steps: int) -> Result:
    """A run that still trains, by its first and its newest steps: what it costs does not grow with the run. The first
    ones are its warm-up, by which the others are known not to be."""
    if summaries_suffice(path):
        return open_summaries(path)
    tables = open_paths((path,))
    of_ranks = [rank.recorded for rank in tables.ranks.values() if rank.steps]
    every = set().union(*of_ranks)
    common = set.intersection(*of_ranks) if of_ranks else every  # a rank writes its newest steps later than another
    recorded = sorted(common if 2 * len(common) >= len(every) else every)
    if len(recorded) <= WARMUP_STEPS + most_steps:
        return analyze(tables)
    kept = {*recorded[:WARMUP_STEPS], *recorded[-most_steps:]}
    result = analyze(replace(tables, ranks={rank: _of_steps(own, kept) for rank, own in tables.ranks.items()}))
    note = f"the run still trains: the newest {most_steps:,} of {len(recorded):,} steps are analysed"
    return replace(result, coverage=replace(result.coverage, notes=(note, *result.coverage.notes)))


def _of_steps(rank: RankTables, kept: set[int]) -> RankTables:
    rows = [(row, step) for row, step in zip(rank.rows, rank.row_steps, strict=True) if step in kept]
    return replace(
        rank,
        steps=tuple(record for record in rank.steps if record.step in kept),
        rows=tuple(row for row, _ in rows),
        row_steps=tuple(step for _, step in rows),
        device_steps=tuple(record for record in rank.device_steps if record.step in kept),
    )


def open_by_size(*paths: Path | str, reading: Reading | None = None) -> Result:
    """The run: of so many ranks that nobody would wait for their records from the summaries, else from all there is."""
    if len(paths) == 1 and summaries_suffice(paths[0]):
        return open_summaries(paths[0], reading.progress if reading is not None else None)
    return open_run(*paths, reading=reading)


def open_each(found: Jobs, reading: Reading | None = None) -> Iterator[tuple[Job, Result | DiagError]]:
    """The analysis of each of several jobs, one after the other; the error of one that cannot be analysed."""
    for job in found.jobs:
        try:
            if job.tables is None and summaries_suffice(job.paths[0]):
                yield job, open_summaries(job.paths[0])
            else:
                yield job, open_job(job, reading)
        except DiagError as error:
            yield job, error
