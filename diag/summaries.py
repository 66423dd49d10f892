"""Opens runs from the ranks' own summaries: those of very many ranks, and steps whose full records are gone; and the
lives of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from diag.account.device_summaries import idle_of, on_devices
from diag.account.of_summaries import (
    steps_left_out,
    summary_attribution,
    summary_frontier,
    summary_means,
    telling_ranks,
)
from diag.account.stalls import without_stalls
from diag.api import Job, Jobs, Reading, Result, open_job
from diag.by_size import open_attempt_by_size, open_by_size
from diag.collectors.layout import RunLayout
from diag.diagnoses.durations import WAIT, notes_on
from diag.diagnoses.of_summaries import examine_summary
from diag.diagnoses.verdict import agreeing, judge, stalls_decide
from diag.errors import DiagError, NoStepError, readable
from diag.history.life import life_of
from diag.history.lineage import numbered, origin_of, parts_of_trainings, related
from diag.model import Gap
from diag.model.history import History, Life, Origin
from diag.model.steps import Coverage, Recommendation
from diag.rundir.attempts import notes_on_attempts
from diag.rundir.beside import Beside, numbers_of_many
from diag.rundir.garbage import without_collections
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_heartbeat, read_manifest
from diag.rundir.local import local_path, local_paths
from diag.rundir.policy import RUN_READING, SILENCE
from diag.rundir.run import must_exist
from diag.rundir.summaries import Summaries, read_span, read_summaries, read_sums, step_sums
from diag.rundir.tables import Only, RankTables, Tables, axes_of
from diag.tables import frames
from diag.words.formatting import rank_ranges
from diag.words.places import shown, together

if TYPE_CHECKING:
    import polars as pl

    from diag.replay.advice import WhatIf

_NO_REPLAY = "summaries contain no collectives to replay"


class SummaryResult(Result, frozen=True, dict=True):
    """A run analysed from summaries: it cannot be replayed, and only some ranks have steps."""

    means_ms: Mapping[str, Mapping[int, float]] = {}  # by field of ``Parts`` and rank

    from_summaries: ClassVar[bool] = True

    @cached_property
    def summaries(self) -> pl.DataFrame:
        """The means of each rank's steps: a row for each rank."""
        return frames.frame(
            "summaries",
            (
                {"rank": rank, **{field: round(1e6 * of[rank]) for field, of in self.means_ms.items() if rank in of}}
                for rank in self.tables.ranks
            ),
        )

    @property
    def recommendation(self) -> Recommendation:
        return Recommendation(not_advised=(f"nothing was predicted: {_NO_REPLAY}",), refused=True)

    @property
    def what_if(self) -> WhatIf:
        from diag.replay.advice import WhatIf

        return WhatIf((), _NO_REPLAY)


@without_collections()
def open_summaries(
    path: Path | str,
    progress: Callable[[int, int, str], None] | None = None,
    most_steps: int | None = None,
) -> SummaryResult:
    """The verdict over all ranks from their own summaries of the newest steps, one small file per rank: for jobs of
    thousands of ranks, also while they train. DiagError if fewer than two ranks have summaries."""
    path = local_path(path)
    must_exist([str(path)])
    summaries = read_summaries(RunLayout(Path(path)), progress, most_steps)
    return of_summaries(on_devices(summaries) or summaries)


def open_steps(path: Path | str, only: Only) -> SummaryResult:
    """The verdict over all ranks from what is left of some steps: their phases, or sums over several. DiagError if
    fewer than two ranks have the same ones."""
    layout = RunLayout(Path(path))
    with readable(layout.ranks_folder):
        job = job_ranks(layout, whole=True)
    world = job.manifest.world_size if job.manifest is not None else None
    numbers = range(only.first, only.last + 1)
    summaries, size = None, 1
    if len(numbers) * len(job.files) <= RUN_READING.most_summary_cells:
        summaries = read_span(layout, job.identities, job.manifest, world, numbers)
    known = {rank: identity for rank, identity in job.identities.items() if identity is not None}
    for size_of_sums in layout.rank(0).sums if summaries is None else ():
        if size_of_sums * RUN_READING.most_summary_cells >= len(numbers) * len(known):
            summaries, size = read_sums(layout, known, job.manifest, world, numbers, size_of_sums), size_of_sums
        if summaries is not None:
            break
    if summaries is None:
        raise DiagError(
            f"{only.asked}: no two ranks have what is left of steps {only.first:,} to {only.last:,}",
            path=path,
            hint="diag history says which steps are known, and how well",
        )
    result = of_summaries(on_devices(summaries) or summaries, only)
    notes = [f"only steps {only.first:,} to {only.last:,} are analysed ({only.asked})"]
    if size > 1:
        notes.append(f"each of these is known by sums over {size:,} steps: a step is the mean of one of them")
    return replace(result, coverage=replace(result.coverage, notes=(*notes, *result.coverage.notes)))


def of_summaries(summaries: Summaries, only: Only | None = None) -> SummaryResult:
    """The verdict over the ranks of these summaries. DiagError if fewer than two have the same steps. ``only``: why
    they are not the newest."""
    layout = RunLayout(summaries.root)
    files = {rank: layout.rank(rank) for rank in summaries.ranks}
    numbers, gaps = numbers_of_many(files, summaries.with_numbers)
    beats = {rank: read_heartbeat(of)[0] for rank, of in islice(files.items(), SILENCE.ranks_looked_at)}
    summaries = replace(summaries, gaps=(*summaries.gaps, *gaps))
    ranks = {
        rank: RankTables(
            rank,
            identity,
            memory=summaries.memory.get(rank, ()),
            heartbeat=beats.get(rank),
            numbers=tuple(one for one in numbers.get(rank, ()) if only is None or only.first <= one.step <= only.last),
        )
        for rank, identity in zip(summaries.ranks, summaries.identities, strict=True)
    }
    tables = Tables(
        summaries.root,
        summaries.manifest,
        summaries.world_size,
        ranks,
        summaries.gaps,
        only=only,
        sums=step_sums(summaries),
        names=summaries.names,
    )
    result = _judged(summaries, tables, steps_left_out(summaries))
    if (usual := without_stalls(result.attribution)) is not None:
        notes = zip(usual.steps.step.tolist(), usual.steps.note, strict=True)
        other = _judged(summaries, tables, {step: note for step, note in notes if note})
        if not stalls_decide(other.verdict, other.attribution):
            return other
    return result


def _judged(summaries: Summaries, tables: Tables, left_out: Mapping[int, str]) -> SummaryResult:
    layout, ranks, axes = RunLayout(summaries.root), tables.ranks, axes_of(tables)
    counted = set(summaries.numbers) - set(left_out) or set(summaries.numbers)
    frontier = summary_frontier(summaries, counted, axes.stages())
    if frontier is None:
        steps = f"steps {summaries.numbers[0]} to {summaries.numbers[-1]}"
        raise DiagError(
            f"only one rank has a summary of {steps}; at least two are needed",
            path=summaries.root,
            hint="leave out --summary",
        )
    shown_ranks = telling_ranks(frontier)
    idle = idle_of(summaries, [at for at, number in enumerate(summaries.numbers) if number in counted])
    attribution = summary_attribution(summaries, left_out, shown_ranks, axes, idle)
    beside = Beside(summaries)
    means_ms: Mapping[str, Mapping[int, float]] = summary_means(summaries, frontier.numbers, idle)
    examination = examine_summary(summaries, frontier, attribution, tables, means_ms, idle, beside)
    tables = replace(tables, ranks={**ranks, **beside.with_samples(ranks)})
    notes = [f"the verdict rests on the ranks' summaries of steps {summaries.numbers[0]} to {summaries.numbers[-1]}"]
    notes += notes_on_attempts(layout)
    if len(shown_ranks) < len(ranks):
        notes.append(f"the steps of {len(shown_ranks)} ranks are shown: the last to arrive, and some of the others")
    looked_at = summaries.ranks if len(summaries.ranks) <= RUN_READING.all_ranks_checked else shown_ranks
    if traced := [rank for rank in looked_at if layout.rank(rank).traces()]:
        traced_folder = layout.rank(traced[0]).folder
        notes.append(
            f"profiler windows of {rank_ranges(traced)} are not included: diag analyze {traced_folder} reads those of "
            "one rank"
        )
    if (collectives := examination.collectives) is not None:
        notes += notes_on(collectives)
        means_ms = {**means_ms, WAIT: collectives.wait_ms}
    coverage = Coverage(
        ranks_used=summaries.ranks,
        ranks_missing=summaries.missing,
        skipped=tuple(Gap(shown(gap.path), gap.reason) for gap in summaries.gaps),
        clock_uncertainty_ns=None,
        not_looked=examination.not_looked,
        notes=tuple(notes),
    )
    verdict = judge(attribution, examination, coverage, tables)
    return SummaryResult(tables, attribution, agreeing(examination, verdict), coverage, verdict, means_ms)


def open_history(*paths: Path | str, progress: Callable[[int, int, str], None] | None = None) -> Life:
    """The life of a run, with the training after each of its restarts. NoStepError if no attempt has a step, DiagError
    if nothing was recorded."""
    return life_of(_attempts_at(local_paths(paths), Reading(progress=progress)))


def life_of_result(result: Result, path: Path | None, reading: Reading | None = None) -> Life:
    """The life of an analysed run, with the training after each of its restarts, which are read and analysed.
    ``path``: of its run directory; None if it has none."""
    return life_of(_attempts(result, path, reading))


def life_of_training(result: Result, path: Path, runs: Iterable[Path], reading: Reading | None = None) -> Life:
    """The life of the training that an analysed run is a part of. ``path``: of its run directory; ``runs``: others, of
    which those are read and analysed that may be of the same training by their manifests."""
    mine = _attempts(result, path, reading)
    read = {str(path): mine}
    for run in runs:
        if run.resolve() != path.resolve() and related(_origin(run), mine[0].origin):
            with suppress(DiagError):  # it may have ended before its first step
                read[str(run)] = _attempts(open_attempt_by_size(local_paths([run]), reading), run, reading)
    names = next(names for names in parts_of_trainings(read) if str(path) in names)
    return life_of(mine if len(names) == 1 else numbered([attempt for name in names for attempt in read[name]]))


def _origin(run: Path) -> Origin:
    with suppress(DiagError):
        return origin_of(read_manifest(RunLayout(run))[0])
    return Origin()


def _attempts_at(paths: Sequence[str], reading: Reading) -> list[History]:
    """Of the run at these paths. The first attempt may have ended before its first step."""
    path = Path(paths[0]) if len(paths) == 1 else None
    try:
        result = open_attempt_by_size(paths, reading)
    except NoStepError:
        if not (later := _restarts(path, reading)):
            raise
        return later
    return _attempts(result, path, reading)


def _attempts(result: Result, path: Path | None, reading: Reading | None = None) -> list[History]:
    return [_history(result), *_restarts(path, reading)]


def _restarts(path: Path | None, reading: Reading | None) -> list[History]:
    attempts: list[History] = []
    if path is not None and (layout := RunLayout(path)).is_run():
        for restart in layout.restarts():
            with suppress(DiagError):  # it may have ended before its first step
                history = _history(open_attempt_by_size([str(restart.root)], reading))
                attempts.append(replace(history, number=restart.number))
    return attempts


def _history(result: Result) -> History:
    return replace(result.history, culprit_hosts=result.verdict.culprit_hosts)


def open_lives(
    jobs: Jobs, progress: Callable[[int, int, str], None] | None = None
) -> list[tuple[str, Life | DiagError]]:
    """The life of each training under its name, or the error if it cannot be read. Runs of which one goes on where
    another one ended are one training: their names are joined."""
    reading = Reading(progress=progress)
    lives: dict[str, Life | DiagError] = {}  # by the name of the job, or of the first of several
    read: dict[str, list[History]] = {}
    for job in jobs.jobs:
        paths = local_paths(job.paths)
        try:
            read[job.name] = _attempts_at(paths, reading)
        except DiagError as error:
            lives[job.name] = error
    joined = {}
    for names in parts_of_trainings(read):
        attempts = [attempt for name in names for attempt in read[name]]
        lives[names[0]] = life_of(attempts if len(names) == 1 else numbered(attempts))
        joined[names[0]] = together(names)
    return [(joined.get(job.name, job.name), lives[job.name]) for job in jobs.jobs if job.name in lives]


def open_each(jobs: Jobs, reading: Reading | None = None) -> Iterator[tuple[Job, Result | DiagError]]:
    """Each job with its analysis, one after the other, or with the error if it cannot be analysed."""
    for job in jobs.jobs:
        try:
            yield job, open_by_size(*job.paths, reading=reading) if job.tables is None else open_job(job, reading)
        except DiagError as error:
            yield job, error
