"""Opens a run: a directory that the collectors wrote, or any folder or files of Kineto traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import RankLayout, RunLayout, first_traced, is_folder, parts_of
from diag.collectors.living import has_ended, last_sign_ns, process_runs
from diag.collectors.reading import folder_refusal, linked_folders, natural, open_regular
from diag.collectors.records import (
    CheckpointRecord,
    CollectiveLine,
    DeviceRecord,
    DeviceStepRecord,
    HostRecord,
    MachineRecord,
    Manifest,
    RankRecord,
    Unrecorded,
)
from diag.collectors.step_places import complete_from
from diag.deferred import by_name
from diag.errors import DiagError, NoStepError, readable
from diag.model import Gap
from diag.model.retained import Retained
from diag.rundir.policy import BLOCKS, JOBS
from diag.toml import settings_files
from diag.traces.kineto_names import CommRule
from diag.traces.reading import PACKED_RUN, UNPACK, Reading, read_traces
from diag.traces.snapshot_files import is_snapshot, rank_of_folder, snapshot_files
from diag.traces.text_stream import exists, file_name, is_remote, trace_files
from diag.traces.trace import Trace
from diag.words.formatting import counted, masked, rank_ranges, visible
from diag.words.places import in_command, shown

from .attempts import gaps_of_attempts
from .columns import Steps
from .delays import delay_ns, interval_s
from .durations import DurationRecords, recorded
from .garbage import without_collections
from .lines import (
    each_piece,
    pieces,
    read_heartbeat,
    read_identity,
    read_lines,
    read_manifest,
)
from .local import copies_folder, joined, unpacked
from .numbers import read_numbers
from .one_job import of_one_job
from .pieces import gaps_of_pieces, is_joined
from .read_before import read_steps_of
from .retained import retained
from .runs import split_job
from .step_lines import CollectiveLines, RowsReader, stream_bytes
from .tables import RankTables, RecordedRows, Tables

_Line = TypeVar("_Line")

# -- the sources that a run may have, or a folder of traces; each is loaded where there is one -------------------------

# Traces of any tool, sorted into jobs by their content.
_jobs_of: Callable[[Sequence[str], Sequence[str], Sequence[Trace], Sequence[Gap]], Jobs] = by_name(
    "diag.rundir.trace_jobs:jobs_of"
)
# NCCL Inspector's files in the folders of ranks.
_inspected: Callable[
    [Mapping[int, RankLayout], Mapping[int, RankRecord | None]], tuple[DurationRecords, dict[int, int]] | None
] = by_name("diag.rundir.inspector:of_run")
# Files of tools whose traces cannot be read: their names, and what to give instead.
_others_in: Callable[[Sequence[str]], Sequence[Any]] = by_name("diag.traces.other_tools:others_in")
_named: Callable[[Sequence[Any]], str] = by_name("diag.traces.other_tools:named")
# A settings file.
_read_rules: Callable[[Path], list[CommRule]] = by_name("diag.rundir.settings:read_rules")


def with_settings(reading: Reading, paths: Sequence[str]) -> Reading:
    """The reading, extended by the settings files of these paths and of the current directory. DiagError (usage) for a
    file that cannot be understood."""
    rules = list(reading.comm_kernels)
    for file in settings_files(Path(split_job(path)[0]) for path in paths if not is_remote(path)):
        rules += _read_rules(file)
    return replace(reading, comm_kernels=tuple(dict.fromkeys(rules)))


class Job(Struct, frozen=True):
    """One of the jobs under the given paths. ``paths``: paths that open it alone, mostly one: its own folder or file,
    else FOLDER::NAME. ``reason``: why it is a separate job; "" for a run directory, or for the only job. ``tables`` is
    None for a run directory, which is read when it is opened."""

    name: str
    paths: tuple[str, ...]
    reason: str = ""
    tables: Tables | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Its trace files."""
        ranks = self.tables.ranks.values() if self.tables is not None else ()
        return tuple(dict.fromkeys(trace.path for rank in ranks for trace in rank.traces))


class Jobs(Struct, frozen=True):
    """Every job under the given paths, in order of their names, and every file that is in none, with the reason."""

    paths: tuple[str, ...]
    jobs: tuple[Job, ...]
    unused: tuple[Gap, ...] = ()


class SeveralJobsError(DiagError):
    """One job was requested, and there are several: ``jobs``."""

    def __init__(self, jobs: Jobs) -> None:
        names = [visible(job.name) for job in jobs.jobs]
        more = f" and {len(names) - JOBS.most_jobs_named} more" if len(names) > JOBS.most_jobs_named else ""
        example = masked(in_command(visible(jobs.jobs[0].paths[0])))
        super().__init__(
            f"holds {len(names)} jobs, not one: {', '.join(names[: JOBS.most_jobs_named])}{more}",
            hint=f"pass one job, for example {example}; diag analyze lists them",
            path=jobs.paths[0] if len(jobs.paths) == 1 else None,
        )
        self.jobs = jobs


def open_paths(paths: Sequence[Path | str], reading: Reading | None = None) -> Tables:
    """The tables of a run directory, or of the traces under the paths. DiagError if there is nothing to analyse;
    SeveralJobsError if the traces are of several jobs, unless the path names one: FOLDER::NAME."""
    jobs = find_jobs(paths, reading)
    if len(jobs.jobs) > 1:
        raise SeveralJobsError(jobs)
    if not jobs.jobs:
        raise _nothing(jobs.paths, Tables(Path(jobs.paths[0]), None, None, {}, jobs.unused))
    return tables_of_job(jobs.jobs[0], reading)


def tables_of_job(job: Job, reading: Reading | None = None) -> Tables:
    """The tables of one job. DiagError if it recorded nothing."""
    tables = job.tables
    if tables is None:
        run = Path(job.paths[0]) if len(job.paths) == 1 else joined(job.paths, copies_folder())
        tables = _open_run(RunLayout(run), with_settings(reading or Reading(), job.paths))
    if all(rank.empty for rank in tables.ranks.values()):
        raise _nothing(job.paths, tables)
    files = snapshot_files(job.paths)
    if job.tables is None:  # a run directory, or its pieces: without the folders that are not of this job
        files = [file for file in files if rank_of_folder(file) in tables.ranks]
    return replace(tables, snapshots=tuple(map(str, files)))


def find_jobs(paths: Sequence[Path | str], reading: Reading | None = None, lately: bool = False) -> Jobs:
    """The jobs under the paths: run directories, and traces of any tool sorted by their content. The traces are read. A
    path FOLDER::NAME gives the job of this name in the folder. ``lately``: as of ``look_into``. DiagError if there
    is nothing at a path, or no job of this name."""
    names = [str(path) for path in paths]
    if len(names) == 1:
        folder, wanted = split_job(names[0])
        if wanted:
            return _named_job(find_jobs([folder], reading, lately), wanted, names[0])
    must_exist(names)
    runs, files, gaps = look_into(names, lately)
    if not files and not gaps and len(runs) == 1:
        return Jobs(tuple(names), (Job(job_name(names, runs[0]), (runs[0],)),))
    traces = list(_read(files, with_settings(reading or Reading(), names), gaps)) if files else []
    return _jobs_of(names, runs, traces, gaps)


def _named_job(jobs: Jobs, wanted: str, path: str) -> Jobs:
    job = next((job for job in jobs.jobs if job.name == wanted), None)
    if job is None:
        names = ", ".join(visible(job.name) for job in jobs.jobs[: JOBS.most_jobs_named])
        raise DiagError(f"there is no job {visible(wanted)!r}", path=jobs.paths[0], hint=f"the jobs are: {names}")
    if job.tables is not None:
        tables = replace(job.tables, root=Path(path), gaps=(*job.tables.gaps, *jobs.unused))
        job = replace(job, paths=(path,), tables=tables)
    return Jobs((path,), (job,))


def look_into(paths: Sequence[str], lately: bool = False) -> tuple[list[str], list[str], list[Gap]]:
    """The run directories at or below the paths, the files outside of them that may be traces, and gaps for other
    files. Of runs that packers wrote, it is their local copies, which are brought up to date; ``lately``: unless they
    were within the last seconds. No other file is read."""
    runs: list[str] = []
    gaps: list[Gap] = []

    def enter(folder: str) -> bool:
        if RunLayout(Path(folder)).is_run():
            runs.append(folder)
            return False
        copy = unpacked(folder, lately)
        if copy is None:
            return True
        runs.extend(look_into([copy])[0])  # several if the ranks that wrote there were of several jobs
        return False

    outside = [path for path in paths if is_remote(path) or (enter(path) if is_folder(path) else not is_snapshot(path))]
    files = trace_files(outside, gaps, enter)
    for path in outside:
        if not is_remote(path):
            runs += [link for link in linked_folders(path) if RunLayout(Path(link)).is_run()]
    return sorted(dict.fromkeys(runs), key=lambda run: natural(shown(run))), files, gaps


def must_exist(paths: Sequence[str]) -> None:
    """DiagError for the first path at which there is nothing, or that is not accessible."""
    for path in paths:
        with readable(path):
            there = exists(split_job(path)[0])
        if not there:
            raise DiagError("no such file or folder", path=path, hint="pass a run directory or a folder of traces")


_NO_STEP = "recorded no step"
_ABSENT = "not started, or recorded in another node's folder: give all folders of the run"


def _nothing(paths: Sequence[str], tables: Tables) -> DiagError:
    restarts = [str(restart.root) for restart in RunLayout(tables.root).restarts()]  # the hint has these
    reasons = _reasons([gap for gap in tables.gaps if not gap.reason.endswith(_NO_STEP) and gap.path not in restarts])
    kind = DiagError
    if tables.manifest is not None or tables.ranks:
        kind = NoStepError
        all_left_out = not tables.ranks and bool(RunLayout(tables.root).ranks())
        message = "no rank of the run can be used" if all_left_out else f"the run {_NO_STEP}"
        message += f": {reasons}" if reasons else ""
        hint = f"diag triage {shown(str(tables.root))} says how the run ended, or where its ranks are"
        if restarts:
            hint = f"{shown(restarts[-1])} is the newest restart, a run of its own; {hint}"
        backwards = [of.heartbeat.backwards for of in tables.ranks.values() if of.heartbeat is not None]
        if (most := max(backwards, default=0)) >= JOBS.backward_calls_of_training:
            message += f"; backward was called {most:,} times, but no torch.optim optimizer stepped, which ends a step"
            hint = "mark the ends of the steps in the script: recording.end_step(), see docs/guides/record.md"
    else:
        message = f"no trace could be read: {reasons}" if reasons else "contains neither a run directory nor a trace"
        hint = "pass a run directory (`diag run --out`), or Kineto traces: one .json or .json.gz per rank"
        if len(paths) == len(tables.gaps) == 1 and tables.gaps[0].reason.startswith(PACKED_RUN):
            message, hint = PACKED_RUN, UNPACK
        elif others := _others_in(paths):
            files = f"files of {_named(others)}"
            message = f"{message}; it holds {files}" if len(paths) > 1 or is_folder(paths[0]) else f"{files}, no trace"
            hint = " ".join(dict.fromkeys(other.tool.instead for other in others))
    return kind(message, path=paths[0] if len(paths) == 1 else None, hint=hint)


def _reasons(gaps: Sequence[Gap]) -> str:
    """Why files could not be read, in one line: each reason once, with its first file."""
    files: dict[str, list[str]] = {}
    for gap in gaps:
        archive, inside, member = gap.path.partition("!")
        files.setdefault(" ".join(gap.reason.split()), []).append(file_name(archive) + inside + member)
    texts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in files.items()
    ]
    more = f"; and {len(texts) - 3} more reasons" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


# -- a run directory ---------------------------------------------------------------------------------------------------


def _open_run(layout: RunLayout, reading: Reading) -> Tables:
    gaps: list[Gap] = []
    reading = replace(reading, cache=reading.cache.of_run(layout))
    manifest, gap = read_manifest(layout)
    if gap is not None:
        gaps.append(gap)
    elif manifest is None:
        gaps.append(Gap(str(layout.manifest), "is missing: the command and configuration of the run are unknown"))
    rank_files = _readable_ranks(layout, gaps)
    files = {str(path): rank for rank, of_rank in rank_files.items() for path in of_rank.traces()}
    traces = _by_rank(list(files), reading, gaps, files)
    long = _too_long(rank_files)
    store = reading.cache.shelf(f"blocks of {layout.root.resolve()}") if long else None
    with without_collections():
        steps = read_steps_of(rank_files, store)
        ranks = {
            rank: _open_rank(rank, of_rank, steps.pop(rank), tuple(traces.get(rank, ())), gaps, long)
            for rank, of_rank in rank_files.items()
        }
    ranks, manifest, of_others = of_one_job(layout, ranks, manifest)
    gaps += of_others
    rank_files = {rank: of_rank for rank, of_rank in rank_files.items() if rank in ranks}
    world_size = manifest.world_size if manifest is not None else None
    if world_size is None:
        world_size = next((r.identity.world_size for r in ranks.values() if r.identity is not None), None)
    expected = range(world_size or 0)
    refused = {gap.path for gap in gaps}
    known = ranks.keys() | {rank for rank, of_rank in layout.ranks().items() if str(of_rank.folder) in refused}
    if absent := [rank for rank in expected if rank not in known]:
        why = "in no piece of the run" if is_joined(layout) else _ABSENT
        gaps.append(Gap(str(layout.ranks_folder), f"no data from {rank_ranges(absent)}: {why}"))
    if idle := [rank for rank in expected if rank in ranks and ranks[rank].empty]:
        gaps.append(Gap(str(layout.ranks_folder), f"{rank_ranges(idle)} {_NO_STEP}"))
    if strange := layout.folders_of_no_rank():
        shown = ", ".join(name[:20] for name in strange[:3])
        are = "is not a rank folder" if len(strange) == 1 else "are not rank folders"
        reason = f"{counted(len(strange), 'folder')} ({shown}) {are}; left out"
        gaps.append(Gap(str(layout.ranks_folder), reason))
    left = retained(rank_files, {rank: of_rank.steps for rank, of_rank in ranks.items()})
    gaps += _unwritten_steps(layout, manifest, ranks, left)
    gaps += _unrecorded(layout)
    gaps += gaps_of_attempts(layout)
    gaps += gaps_of_pieces(layout)
    identities = {rank: of_rank.identity for rank, of_rank in ranks.items()}
    has_inspector = any(is_folder(of_rank.inspector) for of_rank in rank_files.values())
    durations = _inspected(rank_files, identities) if has_inspector else None
    durations = durations or recorded(rank_files, identities)
    if durations is not None:
        gaps += durations[0].gaps
    return Tables(layout.root, manifest, world_size, ranks, tuple(gaps), durations, store, left)


def _unwritten_steps(
    layout: RunLayout, manifest: Manifest | None, ranks: Mapping[int, RankTables], left: Retained | None
) -> list[Gap]:
    """Ranks whose last steps are in no file: a rank keeps steps of about two seconds in memory before it writes them. A
    rank that still trains writes them later; one that was killed never does."""
    training = manifest is None or manifest.exit_code is None
    recorded = {rank: of_rank.recorded for rank, of_rank in ranks.items() if of_rank.steps}
    every = set().union(*recorded.values())
    gaps = []
    kept = "stored by its node's packer" if interval_s(layout) else "written"
    for rank, steps in recorded.items():
        if training and _trains(ranks[rank], layout.rank(rank), delay_ns(layout)):
            continue
        heartbeat = ranks[rank].heartbeat
        # A rank killed within the others' last step has not finished it.
        since = min(steps) if left is not None else min(every)
        removed = since - left.begin if left is not None else 0
        known = len(steps) + sum(step >= since for step in every - steps - {max(every)})
        ended = heartbeat.steps - removed if heartbeat is not None else 0
        finished = max(known, ended)
        if finished > len(steps):
            why = "the others were never written"
            if ended < known:  # they are known from other ranks alone, which may have gone on without this one
                why = f"it ended before the others were trained, or before they were {kept}"
            reason = f"holds {len(steps) + removed:,} of {finished + removed:,} steps: {why}"
            gaps.append(Gap(str(layout.rank(rank).steps), reason))
    return gaps


def _unrecorded(layout: RunLayout) -> list[Gap]:
    """Processes that trained and were not recorded: findings about the others may not apply to them."""
    lines, gaps = read_lines(layout.unrecorded, Unrecorded, layout.root)
    reasons = {(line.host, line.pid): line.why[:200] for line in lines}
    if reasons:
        processes = "1 trainer process was" if len(reasons) == 1 else f"{len(reasons):,} trainer processes were"
        shown_reasons = [f"{reason} ({number:,})" for reason, number in Counter(reasons.values()).most_common(3)]
        gaps.append(Gap(str(layout.unrecorded), f"{processes} not recorded: {'; '.join(shown_reasons)}"))
    return gaps


def _trains(rank: RankTables, files: RankLayout, late_ns: int) -> bool:
    """Whether the process of a rank still runs, as far as this host can see. ``late_ns``: as of ``has_ended``."""
    if (identity := rank.identity) is None or (heartbeat := rank.heartbeat) is None:
        return False
    seen_ns = last_sign_ns(files, heartbeat.unix_ns, identity.unix_ns)
    return not has_ended(heartbeat.done, process_runs(identity), seen_ns, late_ns)


def _readable_ranks(layout: RunLayout, gaps: list[Gap]) -> dict[int, RankLayout]:
    """The ranks whose folders can be read; a gap for each of the others. DiagError if the ranks cannot be listed."""
    with readable(layout.ranks_folder):
        ranks = layout.ranks()
    refusals = {rank: reason for rank, files in ranks.items() if (reason := folder_refusal(files.folder, layout.root))}
    gaps += [Gap(str(ranks[rank].folder), f"rank {rank}: {reason}") for rank, reason in refusals.items()]
    return {rank: files for rank, files in ranks.items() if rank not in refusals}


def _open_rank(
    rank: int,
    files: RankLayout,
    read: tuple[Steps, list[Gap]],
    traces: tuple[Trace, ...],
    gaps: list[Gap],
    long: bool,
) -> RankTables:
    """``read``: its steps, and gaps in them. ``long``: only the rows of its first steps are read."""
    identity, gap = read_identity(files)
    heartbeat, heartbeat_gap = read_heartbeat(files)
    steps, step_gaps = read
    steps = steps.take(steps.end_ns > steps.begin_ns).sorted_by("step")  # those that have a duration
    rows_of_all = None if long else _read_rows(files)
    first = complete_from(files)  # after reading: a running job removes its oldest records meanwhile
    if first is not None:
        steps = steps.take(steps.step >= first)
        traces = _since(first, traces, gaps)
    recorded_rows, unread = _first_rows(files, steps) if rows_of_all is None else (rows_of_all, None)
    rows = recorded_rows.rows if first is None else recorded_rows.rows.take(recorded_rows.rows.step >= first)
    there, line_gaps = files.streams(), list[Gap]()

    def lines_of(stream: str, kind: type[_Line]) -> list[_Line]:
        if stream not in there:
            return []
        lines, of_stream = read_lines(files.at(f"{stream}.jsonl"), kind, files.run)
        line_gaps.extend(of_stream)
        return lines

    device_steps = lines_of("device_steps", DeviceStepRecord)
    samples, scheduling = lines_of("device", DeviceRecord), lines_of("host", HostRecord)
    machine, saved = lines_of("machine", MachineRecord), lines_of("checkpoints", CheckpointRecord)
    numbers, number_gaps = read_numbers(files)
    gaps.extend(g for g in (gap, heartbeat_gap) if g is not None)
    gaps.extend((*step_gaps, *recorded_rows.all_gaps(), *line_gaps, *number_gaps))
    gaps.extend(Gap(str(files.folder), reason) for reason in (heartbeat.errors if heartbeat is not None else []))
    return RankTables(
        rank=rank,
        identity=identity,
        steps=steps,
        rows=rows,
        device_steps=tuple(
            sorted((record for record in device_steps if record.step >= (first or 0)), key=lambda record: record.step)
        ),
        groups=recorded_rows.groups,
        device=tuple(samples),
        scheduling=tuple(scheduling),
        machine=tuple(machine),
        checkpoints=tuple(saved),
        numbers=tuple(numbers),
        heartbeat=heartbeat,
        traces=traces,
        unread=unread,
    )


def _since(first: int, traces: tuple[Trace, ...], gaps: list[Gap]) -> tuple[Trace, ...]:
    """The profiler windows from this step on: the account of a run rests on its newest steps."""
    old = {
        path for trace in traces if (path := trace.path) and (step := first_traced(path)) is not None and step < first
    }
    reason = "a profiler window of steps whose records were removed at the byte budget; left out, it opens by itself"
    gaps += [Gap(path, reason) for path in sorted(old)]
    return tuple(trace for trace in traces if trace.path not in old)


def _read_rows(files: RankLayout) -> RecordedRows:
    reader = RowsReader()
    gaps = each_piece(files.collectives, CollectiveLine, reader.take, files.run, checks=True)
    return reader.read(files.collectives, gaps)


def _too_long(ranks: Mapping[int, RankLayout]) -> bool:
    """Whether the collectives of all ranks are too many to be read at once. Records of devices have to be read as a
    whole, with the collectives that belong to them."""
    total = sum(stream_bytes(files.collectives) for files in ranks.values())
    if total <= BLOCKS.most_bytes_at_once or any(stream_bytes(files.device_steps) for files in ranks.values()):
        return False
    return total > BLOCKS.most_bytes_of_few_steps or _steps_in(next(iter(ranks.values()))) >= BLOCKS.many_steps


def _steps_in(files: RankLayout) -> int:
    """How many lines the steps of a rank have, as far as they can be read."""
    lines = 0
    for path in parts_of(files.steps):
        with suppress(OSError), open_regular(path, files.run) as file:
            lines += sum(piece.count(b"\n") for piece in pieces(file))
    return lines


def _first_rows(files: RankLayout, steps: Steps) -> tuple[RecordedRows, CollectiveLines | None]:
    """The rows of the first steps, and the source of all of them; all rows, and None, if they are not in the order of
    their steps."""
    lines = CollectiveLines(files.collectives, files.run)
    if not lines.ordered:
        return _read_rows(files), None
    head = steps.step[: BLOCKS.head_steps]
    return lines.of_steps([(int(head[0]), int(head[-1]) + 1)] if len(head) else []), lines


def _by_rank(
    paths: Sequence[str], reading: Reading, gaps: list[Gap], known: Mapping[str, int]
) -> dict[int, list[Trace]]:
    """The traces at these paths, whose ranks are known."""
    by_rank: dict[int, list[Trace]] = {}
    for trace in _read(paths, reading, gaps):
        by_rank.setdefault(known[trace.path], []).append(trace)
    return by_rank


def _read(paths: Sequence[str], reading: Reading, gaps: list[Gap]) -> Iterator[Trace]:
    for item in read_traces(paths, reading):
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            gaps.extend(Gap(item.path, reason) for reason in item.gaps)
            yield item


def job_name(paths: Sequence[str], run: str) -> str:
    """A run's path relative to the given folder; its name if it is the given path."""
    root, run = shown(paths[0]).rstrip("/"), shown(run)
    return (
        run.removeprefix(f"{root}/") if len(paths) == 1 and run.startswith(f"{root}/") else file_name(run.rstrip("/"))
    )
