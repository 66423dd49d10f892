"""Opens a run: a directory that the collectors wrote, or any folder or files of Kineto traces."""

from __future__ import annotations

import os
import re
import socket
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from diag.collectors.layout import RankLayout, RunLayout, is_folder, run_of
from diag.collectors.reading import folder_refusal, read_regular
from diag.collectors.records import (
    CheckpointRecord,
    CollectiveLine,
    CollectiveRow,
    DeviceRecord,
    DeviceStepRecord,
    Heartbeat,
    HostRecord,
    Manifest,
    RankRecord,
    StepRecord,
    Unrecorded,
)
from diag.errors import DiagError, ExitCode, readable
from diag.model import Gap
from diag.model.axes import Axes
from diag.traces.cache import Cache
from diag.traces.kineto_names import MOST_RULES, PROFILER_STEP_PATTERN, STEP_PATTERN, CommRule, RuleError, parse_rule
from diag.traces.memory_snapshots import is_snapshot, snapshot_files
from diag.traces.reading import Reading, read_traces
from diag.traces.text_stream import exists, file_name, is_remote, trace_files
from diag.traces.trace import Trace
from diag.words.formatting import rank_ranges

from .durations import DurationRecords, recorded
from .inspector import of_run
from .lines import read_heartbeat, read_identity, read_lines, read_manifest

# -- settings ----------------------------------------------------------------------------------------------------------
#
# ``diag.toml``: settings of an analysis that belong to a folder of traces, or to whoever works in a folder.
#
# comm_kernels = ["my_all_gather_.*=all_gather", "ring_exchange=send_recv"]
#
# It is looked for in each analysed folder (beside a file that is given) and in the current directory. The first rule
# that matches a kernel decides: those of the command line come first, then those of the analysed folders, then those of
# the current directory.

FILE: Final = "diag.toml"
COMM_KERNELS: Final = "comm_kernels"
_MOST_BYTES: Final = 100_000


def with_settings(reading: Reading, paths: Sequence[str]) -> Reading:
    """The reading with what the settings' files of these paths and of the current directory add. DiagError (usage) for
    a file that cannot be understood."""
    rules = list(reading.comm_kernels)
    for file in _files(paths):
        rules += read_rules(file)
    return replace(reading, comm_kernels=tuple(dict.fromkeys(rules)))


def read_rules(file: Path) -> list[CommRule]:
    """The rules of one file. DiagError (usage) for one that cannot be understood."""
    try:
        values = tomllib.loads(read_regular(file, _MOST_BYTES, run_of(file)).decode("utf-8"))
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(file, f"is not TOML: {error}") from error
    if unknown := sorted(set(values) - {COMM_KERNELS}):
        raise _refused(file, f"has an unknown key {unknown[0]!r}; there is {COMM_KERNELS}")
    texts = values.get(COMM_KERNELS, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _refused(file, f'{COMM_KERNELS} must be a list of texts: ["REGEX=operation"]')
    if len(texts) > MOST_RULES:
        raise _refused(file, f"{COMM_KERNELS} has {len(texts)} entries; {MOST_RULES} is the most")
    try:
        return [parse_rule(text) for text in texts]
    except RuleError as error:
        raise _refused(file, f"{COMM_KERNELS}: {error}") from error


def _files(paths: Sequence[str]) -> list[Path]:
    """The settings' files, each once, the analysed folders' first."""
    folders = [path if is_folder(path) else path.parent for path in map(Path, filter(_is_local, paths))]
    with suppress(OSError):  # it was removed
        folders.append(Path.cwd())
    files: dict[str, Path] = {}
    for folder in folders:
        if os.path.lexists(folder / FILE):
            files.setdefault(os.path.realpath(folder), folder / FILE)
    return list(files.values())


def _is_local(path: str) -> bool:
    return not is_remote(path)


def _refused(file: Path, reason: str) -> DiagError:
    return DiagError(reason, path=file, hint="correct the file, or remove it", exit_code=ExitCode.USAGE)


# A process whose traces are further apart than this is more likely another one with the same id.
_ONE_PROCESS_NS = 24 * 3600 * 10**9
_HEARTBEAT_FRESH_NS = 10 * 10**9  # it is written about once a second


class RankTables(Struct, frozen=True):
    """All that is known of one rank. ``row_steps``: the step of each of the ``rows``."""

    rank: int
    identity: RankRecord | None = None
    steps: tuple[StepRecord, ...] = ()
    rows: tuple[CollectiveRow, ...] = ()
    groups: dict[str, list[int]] = field(default_factory=dict)
    device: tuple[DeviceRecord, ...] = ()
    scheduling: tuple[HostRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    heartbeat: Heartbeat | None = None
    traces: tuple[Trace, ...] = ()
    row_steps: tuple[int, ...] = ()
    device_steps: tuple[DeviceStepRecord, ...] = ()

    @property
    def host(self) -> str | None:
        if self.identity is not None:
            return self.identity.host
        return next((trace.host for trace in self.traces if trace.host), None)

    @property
    def on_device(self) -> bool:
        """Whether this rank computes on an accelerator."""
        if self.identity is not None:
            return self.identity.device != "cpu"
        return any(trace.has_gpu for trace in self.traces)

    @property
    def empty(self) -> bool:
        return not self.steps and not self.traces

    @property
    def recorded(self) -> set[int]:
        """The numbers of its steps."""
        return {record.step for record in self.steps}


class Tables(Struct, frozen=True):
    """A run as it lies on the disk, read once. ``world_size`` is None where nothing says it."""

    root: Path
    manifest: Manifest | None
    world_size: int | None
    ranks: dict[int, RankTables]
    gaps: tuple[Gap, ...]
    durations: tuple[DurationRecords, dict[int, int]] | None = None  # of collectives, and the ranks of the processes
    snapshots: tuple[str, ...] = ()  # files of PyTorch's allocator: see ``diag.traces.memory_snapshots``

    @property
    def on_device(self) -> bool:
        """Whether any rank computes on an accelerator."""
        return any(rank.on_device for rank in self.ranks.values())

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which nothing usable is there; empty where the world size is unknown."""
        used = {rank for rank, tables in self.ranks.items() if not tables.empty}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in used)


def open_paths(paths: Sequence[Path | str], reading: Reading | None = None) -> Tables:
    """The tables of a run directory, or of all traces under the paths. DiagError where there is nothing to analyse."""
    names = [str(path) for path in paths]
    must_exist(names)
    reading = with_settings(reading or Reading(), names)
    if len(names) == 1 and not is_remote(names[0]) and RunLayout(Path(names[0])).is_run():
        tables = _open_run(RunLayout(Path(names[0])), reading)
    else:
        tables = _open_traces(names, reading)
    if all(rank.empty for rank in tables.ranks.values()):
        raise _nothing(names, tables)
    return replace(tables, snapshots=tuple(map(str, snapshot_files(names))))


def must_exist(paths: Sequence[str]) -> None:
    """DiagError for the first path at which there is nothing, or that may not be looked at."""
    for path in paths:
        with readable(path):
            there = exists(path)
        if not there:
            raise DiagError("no such file or folder", path=path, hint="give a run directory or a folder of traces")


def _nothing(paths: Sequence[str], tables: Tables) -> DiagError:
    reasons = _reasons(tables.gaps)
    if tables.manifest is not None or tables.ranks:
        message = "the run recorded no step" + (f": {reasons}" if reasons else "")
        hint = "did the training start? its output is in ranks/*/log.txt"
    else:
        message = f"no trace could be read: {reasons}" if reasons else "holds neither a run nor a trace"
        hint = "give a run directory (`diag run --out`), or Kineto traces: one .json or .json.gz a rank"
    return DiagError(message, path=paths[0] if len(paths) == 1 else None, hint=hint)


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
    reading = replace(reading, cache=run_cache(layout, reading.cache))
    manifest, gap = read_manifest(layout)
    if gap is not None:
        gaps.append(gap)
    elif manifest is None:
        gaps.append(Gap(str(layout.manifest), "is missing: what was run is not known"))
    rank_files = _readable_ranks(layout, gaps)
    files = {str(path): rank for rank, of_rank in rank_files.items() for path in of_rank.traces()}
    traces = _by_rank(list(files), reading, gaps, files)
    ranks = {rank: _open_rank(rank, of_rank, tuple(traces.get(rank, ())), gaps) for rank, of_rank in rank_files.items()}
    world_size = manifest.world_size if manifest is not None else None
    if world_size is None:
        world_size = next((r.identity.world_size for r in ranks.values() if r.identity is not None), None)
    expected = range(world_size or 0)
    refused = {gap.path for gap in gaps}
    if absent := [r for r in expected if r not in ranks and str(layout.rank(r).folder) not in refused]:
        gaps.append(Gap(str(layout.ranks_folder), f"{rank_ranges(absent)} left nothing: never started"))
    if idle := [rank for rank in expected if rank in ranks and ranks[rank].empty]:
        gaps.append(Gap(str(layout.ranks_folder), f"{rank_ranges(idle)} recorded no step"))
    if strange := layout.folders_of_no_rank():
        shown = ", ".join(name[:20] for name in strange[:3])
        gaps.append(Gap(str(layout.ranks_folder), f"{len(strange)} folders ({shown}) are no rank's: left out"))
    gaps += _unwritten_steps(layout, manifest, ranks)
    gaps += _unrecorded(layout)
    gaps += restart_gaps(layout)
    durations = of_run(layout) or recorded(rank_files, {rank: of_rank.identity for rank, of_rank in ranks.items()})
    if durations is not None:
        gaps += durations[0].gaps
    return Tables(layout.root, manifest, world_size, ranks, tuple(gaps), durations)


def _unwritten_steps(layout: RunLayout, manifest: Manifest | None, ranks: Mapping[int, RankTables]) -> list[Gap]:
    """Ranks whose last steps are in no file: a rank keeps steps of about two seconds in memory before it writes them.
    One that still trains writes them later; one that was killed never will."""
    training = manifest is None or manifest.exit_code is None
    recorded = {rank: of_rank.recorded for rank, of_rank in ranks.items() if of_rank.steps}
    every = set().union(*recorded.values())
    gaps = []
    for rank, steps in recorded.items():
        if training and _trains(ranks[rank]):
            continue
        heartbeat = ranks[rank].heartbeat
        # Who is killed within the last step of the others has not finished it.
        known = len(steps) + len(every - steps - {max(every)})
        finished = max(known, heartbeat.steps if heartbeat is not None else 0)
        if finished > len(steps):
            reason = f"holds {len(steps):,} of {finished:,} steps: the others were never written"
            gaps.append(Gap(str(layout.rank(rank).steps), reason))
    return gaps


def _unrecorded(layout: RunLayout) -> list[Gap]:
    """Processes that trained and were not recorded: what is said of the others need not be true of them."""
    lines, gaps = read_lines(layout.unrecorded, Unrecorded, layout.root)
    reasons = {(line.host, line.pid): line.why[:200] for line in lines}
    if reasons:
        processes = "1 trainer process was" if len(reasons) == 1 else f"{len(reasons):,} trainer processes were"
        whys = [f"{why} ({number:,})" for why, number in Counter(reasons.values()).most_common(3)]
        gaps.append(Gap(str(layout.unrecorded), f"{processes} not recorded: {'; '.join(whys)}"))
    return gaps


def _trains(rank: RankTables) -> bool:
    """Whether the process of a rank still runs, as far as this host can see."""
    identity, heartbeat = rank.identity, rank.heartbeat
    if identity is None or heartbeat is None or heartbeat.done:
        return False
    if time.time_ns() - heartbeat.unix_ns > _HEARTBEAT_FRESH_NS:
        return False
    return identity.host != socket.gethostname() or _is_process(identity.pid)


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _readable_ranks(layout: RunLayout, gaps: list[Gap]) -> dict[int, RankLayout]:
    """The ranks whose folders can be read; a gap for each of the others. DiagError where none can even be listed."""
    with readable(layout.ranks_folder):
        ranks = layout.ranks()
    refusals = {rank: reason for rank, files in ranks.items() if (reason := folder_refusal(files.folder, layout.root))}
    gaps += [Gap(str(ranks[rank].folder), f"rank {rank}: {reason}") for rank, reason in refusals.items()]
    return {rank: files for rank, files in ranks.items() if rank not in refusals}


def restart_gaps(layout: RunLayout) -> list[Gap]:
    """What the training recorded after its launcher had restarted it."""
    reason = "what the restarted training recorded is a run of its own, not looked at here"
    return [Gap(str(restart.root), reason) for restart in layout.restarts()]


def _open_rank(rank: int, files: RankLayout, traces: tuple[Trace, ...], gaps: list[Gap]) -> RankTables:
    identity, gap = read_identity(files)
    heartbeat, heartbeat_gap = read_heartbeat(files)
    steps, step_gaps = read_lines(files.steps, StepRecord, files.run)
    lines, line_gaps = read_lines(files.collectives, CollectiveLine, files.run)
    device_steps, device_gaps = read_lines(files.device_steps, DeviceStepRecord, files.run)
    samples, sample_gaps = read_lines(files.device, DeviceRecord, files.run)
    scheduling, scheduling_gaps = read_lines(files.host, HostRecord, files.run)
    saved, saved_gaps = read_lines(files.checkpoints, CheckpointRecord, files.run)
    gaps.extend(g for g in (gap, heartbeat_gap) if g is not None)
    gaps.extend((*step_gaps, *line_gaps, *device_gaps, *sample_gaps, *scheduling_gaps, *saved_gaps))
    gaps.extend(Gap(str(files.folder), reason) for reason in (heartbeat.errors if heartbeat is not None else []))
    dropped = sum(line.dropped for line in lines)
    if dropped:
        gaps.append(Gap(str(files.collectives), f"{dropped} collectives beyond the cap of a step were not recorded"))
    groups: dict[str, list[int]] = {}
    for line in lines:
        groups.update(line.groups)
    return RankTables(
        rank=rank,
        identity=identity,
        steps=tuple(sorted((s for s in steps if s.end_ns > s.begin_ns), key=lambda s: s.step)),
        rows=tuple(row for line in lines for row in line.rows),
        row_steps=tuple(line.step for line in lines for _ in line.rows),
        device_steps=tuple(sorted(device_steps, key=lambda record: record.step)),
        groups=groups,
        device=tuple(samples),
        scheduling=tuple(scheduling),
        checkpoints=tuple(saved),
        heartbeat=heartbeat,
        traces=traces,
    )


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


def run_cache(layout: RunLayout, otherwise: Cache) -> Cache:
    """The run's own folder for tables, if it can be written and the user did not say otherwise. Not where a link leads
    out of the run: writing would be done in another folder."""
    if otherwise.told or not os.access(layout.root, os.W_OK) or layout.tables.is_symlink():
        return otherwise
    return Cache(layout.tables)


# -- traces of any other tool ------------------------------------------------------------------------------------------


def _open_traces(paths: Sequence[str], reading: Reading) -> Tables:
    gaps: list[Gap] = []
    by_rank: dict[int, list[Trace]] = {}
    unnamed: list[Trace] = []
    traces = [path for path in paths if is_remote(path) or is_folder(path) or not is_snapshot(path)]
    for trace in _read(trace_files(traces, gaps), reading, gaps):
        if trace.rank is None:
            unnamed.append(trace)
            continue
        others = by_rank.setdefault(trace.rank, [])
        if (twin := _twin(trace, others)) is not None:
            gaps.append(Gap(trace.path, f"rank {trace.rank} again, of the time that {twin.path} covers; left out"))
        else:
            others.append(trace)
    taken: dict[str, list[int]] = {}
    for process in _processes(unnamed):
        rank = next(r for r in range(len(by_rank) + 1) if r not in by_rank)
        by_rank[rank] = _distinct(process, rank, gaps)
        taken.setdefault(process[0].path, []).append(rank)
    gaps += [Gap(path, _taken_as(numbers, by_rank)) for path, numbers in taken.items()]
    ranks = {
        rank: RankTables(rank, traces=tuple(sorted(traces, key=lambda trace: trace.begin_ns)))
        for rank, traces in sorted(by_rank.items())
    }
    sizes = [trace.world_size for traces in by_rank.values() for trace in traces if trace.world_size]
    world_size = max(sizes, default=None)
    absent = [rank for rank in range(world_size or 0) if rank not in ranks]
    if absent:
        gaps.append(Gap(paths[0], f"no trace of {rank_ranges(absent)}"))
    return Tables(Path(paths[0]), None, world_size, ranks, tuple(gaps))


def _processes(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Traces that name no rank, by the process that wrote them: one rank's windows in order of time. The processes in
    the order of their files' names, in which 10 comes after 9."""
    processes: list[list[Trace]] = []
    for trace in sorted(traces, key=lambda trace: trace.begin_ns):
        same = next((process for process in processes if _goes_on(process[-1], trace)), None)
        if same is not None:
            same.append(trace)
        else:
            processes.append([trace])
    return sorted(processes, key=lambda process: (_in_words(process[0].path), traces.index(process[0])))


def _goes_on(before: Trace, trace: Trace) -> bool:
    """Whether a trace is a later window of the process that wrote another, or a copy of it. Process ids come again: in
    another container, on another host, on another day."""
    if not trace.host_pids or set(before.host_pids) != set(trace.host_pids) or before.host != trace.host:
        return False
    if before.path == trace.path or _written_by(before.path) != _written_by(trace.path):
        return False
    if before.device_names != trace.device_names or trace.begin_ns - before.end_ns > _ONE_PROCESS_NS:
        return False
    same_span = before.begin_ns == trace.begin_ns and before.end_ns == trace.end_ns
    return trace.begin_ns >= before.end_ns or same_span


def _written_by(path: str) -> str:
    """``host_pid`` where TensorBoard's handler named the file; "" otherwise."""
    match = re.match(r"(.+_\d+)\.\d{10,}\.pt\.trace\.json", file_name(path))
    return match[1] if match else ""


def _distinct(process: Sequence[Trace], rank: int, gaps: list[Gap]) -> list[Trace]:
    """The windows of a process without copies of them."""
    distinct: list[Trace] = []
    for trace in process:
        if (twin := _twin(trace, distinct)) is not None:
            gaps.append(Gap(trace.path, f"rank {rank} again, of the time that {twin.path} covers; left out"))
        else:
            distinct.append(trace)
    return distinct


def _taken_as(taken: Sequence[int], by_rank: Mapping[int, Sequence[Trace]]) -> str:
    if len(taken) > 1:  # a file of several processes, which says why
        return f"its processes, in the order of their devices, were taken as {rank_ranges(taken)}"
    (rank,) = taken
    of_rank = by_rank[rank]
    windows = ""
    if len(of_rank) > 1:
        pids = ", ".join(of_rank[0].host_pids)
        windows = f"; with {len(of_rank) - 1} more of process {pids}, one rank in {len(of_rank)} windows"
    others = [trace for number, traces in by_rank.items() if number != rank for trace in traces]
    apart = others and not any(a.begin_ns < b.end_ns and b.begin_ns < a.end_ns for a in of_rank for b in others)
    doubt = ", though it ran at another time than the others: perhaps of another run" if apart else ""
    return f"says no rank, in the file or in its name; taken as rank {rank}{doubt}{windows}"


def _in_words(path: str) -> list[tuple[int, str]]:
    """For an order in which numbers count by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", path)]


def _twin(trace: Trace, others: Sequence[Trace]) -> Trace | None:
    """A trace of the same rank that shows most of the same steps, or without steps of the same time: a copy."""
    for other in others:
        common = min(trace.end_ns, other.end_ns) - max(trace.begin_ns, other.begin_ns)
        mine, theirs = _step_names(trace), _step_names(other)
        if mine and theirs:
            if common > 0 and 2 * len(mine & theirs) > min(len(mine), len(theirs)):
                return other
        elif 2 * common > min(trace.end_ns - trace.begin_ns, other.end_ns - other.begin_ns):
            return other
    return None


def _step_names(trace: Trace) -> set[str]:
    names = trace.stored.names
    return set(names.filter(names.str.contains(f"{STEP_PATTERN}|{PROFILER_STEP_PATTERN}")))


# -- NCCL Inspector's files alone -------------------------------------------------------------------------------------


def tables_of(root: Path, read: DurationRecords, ranks: Mapping[int, int]) -> Tables:
    """The processes as ranks of a run of which no step was recorded."""
    world = max((size for process in read.processes for _, size in process.communicators.values()), default=0)
    world = max(world, len(ranks))
    of_host: dict[str, int] = {}
    identities = {}
    for at in sorted(ranks, key=lambda at: ranks[at]):
        process, rank = read.processes[at], ranks[at]
        local = of_host.setdefault(process.host, 0)
        of_host[process.host] += 1
        identities[rank] = RankRecord(rank, local, world, process.host, process.pid, process.host, 0, 0, "GPU")
    return Tables(
        root, None, world, {rank: RankTables(rank, identity) for rank, identity in identities.items()}, read.gaps
    )


# -- axes --------------------------------------------------------------------------------------------------------------
#
# The axes of a run's process groups: from its manifest, else from what its traces say that the groups are for.

# torch/distributed/device_mesh.py: "mesh_tp"; without names "mesh_dim_0", for all of it "mesh_default".
_MESH_AXIS = re.compile(r"^mesh_(?!dim_\d+$|default$)(\w+)$")
# Megatron-LM's core/parallel_state.py (August 2026), without the endings of its variants.
_MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}


def axes_of(tables: Tables) -> Axes:
    """No axis where nothing says any."""
    mesh = tables.manifest.mesh if tables.manifest is not None else {}
    if mesh and all(size > 0 for size in mesh.values()) and prod(mesh.values()) == tables.world_size:
        return Axes(dict(mesh), tables.world_size)
    named: dict[tuple[int, ...], str] = {}
    for rank in tables.ranks.values():
        for trace in rank.traces:
            for name, description in trace.descriptions.items():
                axis, ranks = axis_named(description), trace.groups.get(name, ())
                if axis is not None and len(ranks) > 1:
                    named.setdefault(tuple(sorted(ranks)), axis)
    return Axes({}, tables.world_size, named)


def axis_named(description: str) -> str | None:
    """The axis that a process group's description names; None where it names none."""
    match = _MESH_AXIS.match(description)
    return match.group(1) if match else _MEGATRON.get(description)
