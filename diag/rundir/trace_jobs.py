"""The jobs of a folder of traces: the tables of each, next to the run directories that lie there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from diag.collectors.reading import natural
from diag.model import Gap
from diag.traces.snapshot_files import snapshot_files
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges
from diag.words.places import together

from .jobs import Group, at_other_times, job_places, sort_traces, why_apart
from .local import pieces_of
from .policy import JOBS
from .run import Job, Jobs, job_name
from .tables import RankTables, Tables


def jobs_of(paths: Sequence[str], runs: Sequence[str], traces: Sequence[Trace], gaps: Sequence[Gap]) -> Jobs:
    """The runs, and the traces sorted into jobs. A single job has all gaps."""
    sorted_traces = sort_traces(traces)
    gaps = [*gaps, *sorted_traces.gaps]
    if len(sorted_traces.groups) == 1 and not runs:
        return Jobs(
            tuple(paths),
            (Job(job_name(paths, paths[0]), tuple(paths), "", _tables(paths, sorted_traces.groups[0], gaps)),),
        )
    of_jobs = {trace.path for group in sorted_traces.groups for trace in group.traces}
    pieces = pieces_of(runs, only_incomplete=len(paths) == 1)
    jobs = [
        Job(_name(paths, job), tuple(job), pieces.reasons.get(job[0], "") if len(paths) > 1 else "")
        for job in pieces.jobs
    ]
    if len(jobs) == 1 and not sorted_traces.groups:
        return Jobs(tuple(paths), tuple(jobs), tuple(gaps))
    places = job_places(paths, sorted_traces.groups, {job.name for job in jobs})
    names = {id(group): name for group, (name, _) in zip(sorted_traces.groups, places, strict=True)}
    differences = why_apart(sorted_traces.groups) if len(sorted_traces.groups) > 1 else []
    reasons = [f"not the same job as {names[id(nearest)]}: {difference}" for nearest, difference in differences]
    gaps_of: dict[str, list[int]] = defaultdict(list)
    for number, gap in enumerate(gaps):
        gaps_of[gap.path].append(number)
    for (name, opened_by), group, reason in zip(
        places, sorted_traces.groups, reasons or [""] * len(places), strict=True
    ):
        of_job = dict.fromkeys(trace.path for trace in group.traces)
        tables = _tables(opened_by, group, [gaps[n] for n in sorted(n for path in of_job for n in gaps_of[path])])
        jobs.append(Job(name, opened_by, reason, tables))
    jobs.sort(key=lambda job: natural(job.name))
    unused = [gap for gap in gaps if gap.path not in of_jobs]
    return Jobs(tuple(paths), tuple(jobs), (*unused, *_stray_snapshots(paths, jobs)))


def _name(paths: Sequence[str], pieces: Sequence[str]) -> str:
    """That of the first ones, as a job of a thousand nodes may have as many."""
    names = [job_name(paths, piece) for piece in pieces[: JOBS.most_pieces_named]]
    more = len(pieces) - len(names)
    return together([*names, f"{more} more"] if more else names)


def _stray_snapshots(paths: Sequence[str], jobs: Sequence[Job]) -> list[Gap]:
    """Memory snapshots that are in no job's folder."""
    folders = tuple(f"{path.rstrip('/')}/" for job in jobs for path in job.paths)
    stray = [path for path in map(str, snapshot_files(paths)) if not path.startswith(folders)]
    return [
        Gap(path, "a memory snapshot that could belong to any of these jobs: analyze it separately") for path in stray
    ]


def _tables(paths: Sequence[str], group: Group, gaps: Sequence[Gap]) -> Tables:
    """The tables of one job's traces. Processes of unknown rank take the free ranks."""
    gaps = [*gaps, *at_other_times(group)]
    by_rank = {process.rank: process.traces for process in group.processes if process.rank is not None}
    unnamed = [process.traces for process in group.processes if process.rank is None]
    order = {id(trace): number for number, trace in enumerate(group.traces)}
    taken: dict[str, list[int]] = {}
    for process in sorted(unnamed, key=lambda traces: (natural(traces[0].path), order[id(traces[0])])):
        rank = next(r for r in range(len(by_rank) + 1) if r not in by_rank)
        by_rank[rank] = process
        taken.setdefault(process[0].path, []).append(rank)
    gaps += [Gap(path, _taken_as(numbers, by_rank)) for path, numbers in taken.items()]
    ranks = {rank: RankTables(rank, traces=tuple(traces)) for rank, traces in sorted(by_rank.items())}
    world_size = max(group.worlds, default=None)
    absent = [rank for rank in range(world_size or 0) if rank not in ranks]
    if absent:
        gaps.append(Gap(paths[0], f"no trace of {rank_ranges(absent)}"))
    return Tables(Path(paths[0]), None, world_size, ranks, tuple(gaps))


def _taken_as(taken: Sequence[int], by_rank: Mapping[int, Sequence[Trace]]) -> str:
    if len(taken) > 1:  # a file of several processes, which has its own gap
        return f"its processes, in order of their devices, are treated as {rank_ranges(taken)}"
    (rank,) = taken
    of_rank = by_rank[rank]
    windows = ""
    if len(of_rank) > 1:
        pids = ", ".join(of_rank[0].host_pids)
        windows = f"; {len(of_rank)} windows of this rank, all of process {pids}"
    return f"no rank in the file or its name; treated as rank {rank}{windows}"
