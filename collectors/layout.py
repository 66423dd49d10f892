"""The run directory. Its file names are defined only in this module. Standard library only.

All files of a run are in one folder, written by the training processes and read by the analyser:

    <run>/manifest.json                    what was run: see ``diag.collectors.records.Manifest``
    <run>/ranks/00017/rank.json            the rank's identity: host, pid, device, clock anchor
    <run>/ranks/00017/steps.jsonl          one line per step
    <run>/ranks/00017/summary.jsonl        one line every 50 steps: their sums for the verdict over all ranks
    <run>/ranks/00017/sums50.jsonl         one line every 50 steps: their sums; sums1000.jsonl and sums20000.jsonl too
    <run>/ranks/00017/device_steps.jsonl   one line per step, on the device's clock (CUDA only)
    <run>/ranks/00017/durations.jsonl      durations of collectives on the device, from PyTorch's Flight Recorder
    <run>/ranks/00017/collectives.jsonl    one line per step, one row per collective
    <run>/ranks/00017/kept.jsonl           one line per incident: the full detail of the steps around it
    <run>/ranks/00017/checkpoints.jsonl    one line per checkpoint, with its cost
    <run>/ranks/00017/numbers.jsonl        losses and gradient norms that are not finite, or jump
    <run>/ranks/00017/device.jsonl         samples of the device, or the reason why there are none
    <run>/ranks/00017/host.jsonl           CPU time and run queue time of the process's threads and workers (Linux)
    <run>/ranks/00017/machine.jsonl        what the node knows: ports, links, pressure; of one rank of the node
    <run>/ranks/00017/trace-step000100.json.gz   a torch.profiler window, named after its first step
    <run>/ranks/00017/memory-oom-step000123.pickle   a snapshot of the device's allocator: asked, near-oom or oom
    <run>/ranks/00017/stdout.txt, log.txt  the process's standard output and standard error
    <run>/ranks/00017/nccl.log             NCCL_DEBUG_FILE
    <run>/ranks/00017/heartbeat.json       the state of the process a second ago
    <run>/ranks/00017/inspector/           durations of collectives, written by NCCL Inspector
    <run>/ranks/00017/stacks.txt           stacks of all threads, on request and when the process crashed
    <run>/ranks/00017/py-spy.txt           stacks of all threads from py-spy, if it is permitted
    <run>/ranks/00017/flight_recorder17    PyTorch's own dump; flight_recorder_asked_17 is one requested by diag,
                                           flight_recorder_asked_gloo_17 that of a second recorder
    <run>/asked.json                       the launcher's request to every rank for stacks, dump and a last heartbeat
    <run>/packer.json                      how often a packer carries the records away; see ``packing``
    <run>/keep_asked.json                  the steps around an incident whose detail every rank keeps
    <run>/trace_asked.json                 a request of `diag trace` for a profiler window or a memory snapshot
    <run>/exits.json                       the exit codes of the processes, if not all succeeded
    <run>/unrecorded.jsonl                 one line per process that trained and was not recorded
    <run>/nvidia-smi-<host>.txt            the driver's view of the GPUs during a hang
    <run>/nccl-ras-<host>-<number>.txt     a report of NCCL RAS during a hang or a crash
    <run>/hang.json                        the triage of a run that hung or crashed
    <run>/checkpoints/                     checkpoints of the bundled trainer: see ``trainer.checkpoint``
    <run>/verdict.json                     the result of the last analysis
    <run>/attempt.json                     under `diag attach`: which attempt of which job is recorded here
    <run>/restart-1/                       a run directory like this one: the training after a restart or a requeue

The .jsonl files of a rank are streams. A stream begins in the file of this name and goes on in further ones, its
parts: steps.jsonl, steps.000001.jsonl, steps.000002.jsonl, and so on. Only the last one grows. When a stream has used
its share of the byte budget, its first part is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import overload

SCHEMA_VERSION = 1  # of what commands print as JSON
# Of the files of a run directory. Since 2, rank.json and manifest.json name the job: pieces of two jobs are told apart.
# Since 3, a stream has parts, and the oldest may be gone.
RUN_SCHEMA = 3

MOST_RANKS = 1 << 20  # ten times the largest known training; a document with more is damaged
MOST_NS = 3 * 10**18  # the year 2065, since 1970; sums of three fit 64 bits

_TRACE_NAME = re.compile(r"trace-step([0-9]{1,18})\.json(?:\.gz)?$")
# Reasons for a memory snapshot, in its name.
ASKED, NEAR_OOM, OOM = "asked", "near-oom", "oom"
SNAPSHOT = rf"memory-(?:{ASKED}|{NEAR_OOM}|{OOM})-step"
_SNAPSHOT_NAME = re.compile(SNAPSHOT + r"([0-9]{1,18})\.pickle$")
_ASKED_DUMP = "flight_recorder_asked_"
_PART_NAME = re.compile(r"\.([0-9]{6,18})\.jsonl")
_RANK_NAME = re.compile(r"[0-9]{5,}$")
_RESTART_NAME = re.compile(r"restart-([0-9]{1,9})$")
FIRST_ATTEMPT = "restart-0"  # names the first attempt of a run, which has no folder of its own


def _rank_of(name: str) -> int:
    """The rank in a folder's name of digits; -1 for a name that is not a rank's."""
    rank = int(name) if len(name) < 10 else MOST_RANKS
    return rank if rank < MOST_RANKS and (len(name) == 5 or name[0] != "0") else -1


def world_size_of(value: object) -> int | None:
    """A number of ranks from a document; None for anything else, and for more ranks than any training has."""
    return value if type(value) is int and 0 < value <= MOST_RANKS else None


MANIFEST = "manifest.json"
RANKS = "ranks"  # the folder of the ranks' folders
MARKS = (MANIFEST, RANKS)  # a folder with one of these is a run directory
ABOUT_PACKER = "packer.json"  # of a run that packers carry to a store: the interval by which its records are late
RUN_DIR_VARIABLE = "DIAG_RUN_DIR"  # the environment variable with the run directory of a process that is recorded


def is_regular(path: Path | str) -> bool:
    """Whether the path is a regular file, possibly behind links. Never raises: False where that cannot be read."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises where a folder above cannot be searched)


def is_folder(path: Path | str) -> bool:
    """Whether the path is a folder, possibly behind links. Never raises: False where that cannot be read."""
    return os.path.isdir(path)  # noqa: PTH112  (Path.is_dir raises where a folder above cannot be searched)


_path = lru_cache(maxsize=64)(Path)  # of few runs, asked for by each file of thousands of ranks


def run_of(path: Path | str) -> Path | None:
    """The innermost run directory above a file, by its path; None where there is none. A rank's folder is recognized by
    its name, so leaving a file out of the run does not bypass the check."""
    rank = os.path.abspath(path)  # noqa: PTH100  (resolves no links)
    # Texts, and no Path: it is asked for each file of thousands of ranks.
    while (folder := os.path.dirname(rank)) != rank:  # noqa: PTH120
        above, name = os.path.split(folder)
        if name == RANKS and _RANK_NAME.fullmatch(rank[len(folder) :].lstrip("/")):
            return _path(above)
        if is_folder(f"{folder}/{RANKS}") and is_regular(f"{folder}/{MANIFEST}"):
            return Path(folder)
        rank = folder
    return None


class Entry:
    """The path of a file or folder of this name, as an attribute of its folder's layout."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layout: None, _owner: object = None) -> Entry: ...

    @overload
    def __get__(self, layout: RankLayout | RunLayout, _owner: object = None) -> Path: ...

    def __get__(self, layout: RankLayout | RunLayout | None, _owner: object = None) -> Path | Entry:
        return layout.at(self.name) if layout is not None else self


@dataclass(frozen=True, init=False)
class RankLayout:
    """The files of one rank, under ``<run>/ranks/<rank, five digits>/``. ``place``: the path of this folder."""

    place: str  # thousands of ranks notice a ``Path`` for each

    def __init__(self, folder: Path | str) -> None:
        object.__setattr__(self, "place", os.fspath(folder))

    @cached_property
    def folder(self) -> Path:
        return Path(self.place)

    identity = Entry("rank.json")
    steps = Entry("steps.jsonl")
    summary = Entry("summary.jsonl")
    sums_of_50 = Entry("sums50.jsonl")
    sums_of_1000 = Entry("sums1000.jsonl")
    sums_of_20000 = Entry("sums20000.jsonl")
    device_steps = Entry("device_steps.jsonl")
    collectives = Entry("collectives.jsonl")
    durations = Entry("durations.jsonl")
    kept = Entry("kept.jsonl")
    checkpoints = Entry("checkpoints.jsonl")
    numbers = Entry("numbers.jsonl")
    device = Entry("device.jsonl")
    host = Entry("host.jsonl")
    machine = Entry("machine.jsonl")
    stdout = Entry("stdout.txt")
    log = Entry("log.txt")
    nccl_log = Entry("nccl.log")
    flight_recorder_prefix = Entry("flight_recorder")  # PyTorch appends the rank to this path
    inspector = Entry("inspector")
    stacks = Entry("stacks.txt")
    pyspy = Entry("py-spy.txt")
    error = Entry("error.json")  # the exception that ended the process, as torchrun's own JSON
    heartbeat = Entry("heartbeat.json")

    def at(self, name: str) -> Path:
        return self.folder / name

    def text(self, file: Entry) -> str:
        """The path of one of the files above as a text, for what is asked of each of thousands of ranks."""
        return f"{self.place}/{file.name}"

    def written_ns(self, file: Entry) -> int | None:
        """When one of the files above was written, by the storage's clock, Unix ns; None where it is not there."""
        try:
            return os.stat(self.text(file)).st_mtime_ns  # noqa: PTH116  (as ``place``)
        except OSError:
            return None

    def names(self) -> frozenset[str] | None:
        """The names of all files of this rank: of thousands of ranks, this is cheaper than looking for each. None where
        the folder cannot be listed."""
        try:
            return frozenset(os.listdir(self.place))  # noqa: PTH208  (ten times faster, which ten thousand ranks notice)
        except OSError:
            return None

    @property
    def sums(self) -> dict[int, Path]:
        """The streams of sums, by their number of steps, the finest first."""
        return {50: self.sums_of_50, 1_000: self.sums_of_1000, 20_000: self.sums_of_20000}

    @property
    def run(self) -> Path:
        """The run directory; no link among these files may lead out of it."""
        return _path(os.path.dirname(os.path.dirname(self.place)))  # noqa: PTH120  (as ``place``)

    def flight_recorder_asked(self, rank: int, recorder: str = "") -> Path:
        """A dump that the launcher asked for, or that the process wrote when it failed. Its name ends with the rank,
        where readers of dumps expect it. ``recorder``: the recorder's name, where the process has several."""
        of_recorder = re.sub(r"\W", "-", recorder) + "_" if recorder else ""
        return self.folder / f"{_ASKED_DUMP}{of_recorder}{rank}"

    def remove_flight_recorders_asked(self) -> None:
        """Removes dumps that were asked for because of a suspected hang that has passed. Errors are ignored."""
        for path in self.folder.glob(f"{_ASKED_DUMP}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def trace(self, first_step: int) -> Path:
        return self.folder / f"trace-step{first_step:06d}.json.gz"

    def traces(self) -> list[Path]:
        """The profiler windows of this rank, by first step."""
        return self._by_step(_TRACE_NAME)

    def memory_snapshot(self, reason: str, step: int) -> Path:
        """``reason``: ASKED, NEAR_OOM or OOM."""
        return self.folder / f"memory-{reason}-step{step:06d}.pickle"

    def memory_snapshots(self) -> list[Path]:
        """The memory snapshots of this rank, by step."""
        return self._by_step(_SNAPSHOT_NAME)

    def windows(self) -> list[Path]:
        """The profiler windows and memory snapshots of this rank."""
        return [*self.traces(), *self.memory_snapshots()]

    def streams(self) -> dict[str, int]:
        """The number of the oldest part of each stream that is there, by its name without ".jsonl", from one look at
        the folder; empty where that cannot be listed."""
        oldest: dict[str, int] = {}
        for name in self.names() or ():
            stem, _, rest = name.partition(".")
            match = _PART_NAME.fullmatch(f".{rest}")
            if rest == "jsonl" or match is not None:
                number = int(match.group(1)) if match is not None else 0
                oldest[stem] = min(number, oldest.get(stem, number))
        return oldest

    def _by_step(self, pattern: re.Pattern[str]) -> list[Path]:
        """The files whose names match the pattern, by step; its first group is the step."""
        names = self.names() or ()
        steps_and_names = [(int(match.group(1)), name) for name in names if (match := pattern.match(name))]
        return [self.folder / name for _, name in sorted(steps_and_names)]


@dataclass(frozen=True)
class RunLayout:
    """The files of one run."""

    root: Path

    manifest = Entry(MANIFEST)
    tables = Entry("tables")  # the cache of an analysis of large traces: disposable
    verdict = Entry("verdict.json")
    asked = Entry("asked.json")  # the launcher's request to the collectors; see ``records.Asked``
    trace_asked = Entry("trace_asked.json")  # a request for a profiler window; see ``records.TraceAsked``
    keep_asked = Entry("keep_asked.json")  # spans of steps whose detail is kept; see ``records.KeepAsked``
    exits = Entry("exits.json")
    # Which processes of the training were not recorded; see ``records.Unrecorded``.
    unrecorded = Entry("unrecorded.jsonl")
    hang = Entry("hang.json")
    attempt = Entry("attempt.json")  # see ``attempts``

    def at(self, name: str) -> Path:
        return self.root / name

    @cached_property
    def ranks_folder(self) -> Path:  # kept: it is asked for each of thousands of ranks
        return self.root / RANKS

    def nvidia_smi(self, host: str) -> Path:
        return self.root / f"nvidia-smi-{host}.txt"

    def nccl_ras(self, host: str, number: int) -> Path:
        return self.root / f"nccl-ras-{host}-{number}.txt"

    def all_nccl_ras(self, host: str) -> list[Path]:
        return sorted(self.root.glob(f"nccl-ras-{host}-*.txt"))

    def rank(self, rank: int) -> RankLayout:
        return RankLayout(f"{self.ranks_folder}/{rank:05d}")

    def ranks(self) -> dict[int, RankLayout]:
        """Every rank that left a folder, in order of rank. OSError where the folder cannot be read."""
        folder = str(self.ranks_folder)
        return {rank: RankLayout(f"{folder}/{name}") for rank, name in sorted(self._rank_names()) if rank >= 0}

    def folders(self) -> int:
        """How many entries the folder of the ranks has. OSError where it cannot be read."""
        return len(os.listdir(self.ranks_folder))  # noqa: PTH208  (as above)

    def folders_of_no_rank(self) -> list[str]:
        """Folders named by digits that are not a rank's: of ``MOST_RANKS`` and more, or another spelling of a rank."""
        return [name for rank, name in sorted(self._rank_names()) if rank < 0]

    def _rank_names(self) -> list[tuple[int, str]]:
        """The folders that are named by digits, each after its rank, -1 where that is none."""
        if not is_folder(self.ranks_folder):
            return []
        with os.scandir(self.ranks_folder) as entries:  # needs no stat call per entry: there may be thousands
            names = [entry.name for entry in entries if entry.is_dir() and _RANK_NAME.match(entry.name)]
        return [(_rank_of(name), name) for name in names]

    def restart(self, number: int) -> RunLayout:
        """The run that began with the launcher's restart of this number; this run for number 0."""
        return RunLayout(self.root / f"restart-{number}") if number else self

    def restarts(self) -> list[RunLayout]:
        """The run directories of the restarts, in order. Step numbers and clocks start again in each."""
        return [self.restart(number) for number in self.restart_numbers()]

    def restart_numbers(self) -> list[int]:
        try:
            names = os.listdir(self.root)  # noqa: PTH208  (as above; a hung training's launcher asks every second)
        except OSError:
            return []
        return sorted(int(match.group(1)) for name in names if (match := _RESTART_NAME.match(name)))

    def attempts(self) -> list[RunLayout]:
        """The run directories of all attempts, in order: this one and its restarts."""
        return [self, *self.restarts()]

    def newest(self) -> RunLayout:
        """The run directory of the training that is running, or ended last."""
        return self.attempts()[-1]

    @property
    def first(self) -> RunLayout:
        """The run directory in which this one is a restart; this one if it is none."""
        return RunLayout(self.root.parent) if self.is_restart else self

    @property
    def number(self) -> int:
        """How many attempts of the training began before this one: that of a restart, 0 for the first."""
        return int(self.root.name.rpartition("-")[2]) if self.is_restart else 0

    @property
    def is_restart(self) -> bool:
        """Whether this run directory is a restart, inside the run that was restarted."""
        return bool(_RESTART_NAME.match(self.root.name)) and RunLayout(self.root.parent).is_run()

    def is_run(self) -> bool:
        return is_regular(self.manifest) or is_folder(self.ranks_folder)


def is_restart_name(name: str) -> bool:
    """Whether a folder of this name in a run directory is a restart."""
    return _RESTART_NAME.match(name) is not None


def names_first(path: Path | str) -> bool:
    """Whether this names the first attempt of a training, which has no folder of that name."""
    return str(path).rstrip("/").endswith(f"/{FIRST_ATTEMPT}") and not is_folder(path)


def without_first(path: Path | str) -> str:
    """The path of the training whose first attempt this may name."""
    return str(path).rstrip("/").removesuffix(f"/{FIRST_ATTEMPT}") if names_first(path) else str(path)


# What readers write into a run directory: never packed, copied or joined.
DERIVED = frozenset({RunLayout(Path()).tables.name, RunLayout(Path()).verdict.name})


def part_of(stream: Path, number: int) -> Path:
    """The part of this number of a stream, whose first part has the number 0 and the stream's own name."""
    return stream.with_name(f"{stream.stem}.{number:06d}.jsonl") if number else stream


def numbered_parts(stream: Path) -> list[tuple[int, Path]]:
    """The parts of a stream that are there, the oldest first, with their numbers. None of them may be there any more
    when it is opened. Errors are ignored: empty for a folder that cannot be read."""
    folder, own = os.path.split(stream)
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208  (as above)
    except OSError:
        return []
    stem, found = own.removesuffix(".jsonl"), [(0, stream)] if own in names else []
    for name in names:
        if name.startswith(stem) and (match := _PART_NAME.fullmatch(name, len(stem))):
            found.append((int(match.group(1)), stream.with_name(name)))
    return sorted(found)


def first_traced(path: str) -> int | None:
    """The first step of a profiler window, from its path; None for another file."""
    match = _TRACE_NAME.search(path)
    return int(match.group(1)) if match else None


def parts_of(stream: Path) -> list[Path]:
    """``numbered_parts`` without the numbers; the stream's own name if none is there."""
    return [path for _, path in numbered_parts(stream)] or [stream]
