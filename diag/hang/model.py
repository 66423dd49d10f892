"""Types of the hang triage: lines of logs with their speakers, clues, and the answer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from diag.collectors.layout import MOST_RANKS as MOST_RANKS
from diag.ended.model import Culprit, Source
from diag.hang.policy import HANG_ANSWER

K = TypeVar("K")
V = TypeVar("V")


_OF_RECORDER = re.compile(r"(?<![^/ (])diag/collectors/(?!trainer/(?!inject\.py|faults\.py))|\(<diag:")


def is_of_recorder(frame: str) -> bool:
    """Whether a frame, ``name (file:line)``, is of the recorder in a training: a user who reads a stack looks for the
    training's code, which the bundled trainer is as well. The faults that it injects are not."""
    return _OF_RECORDER.search(frame) is not None


def of_training(frames: Sequence[str]) -> tuple[str, ...]:
    """The frames of a whole stack, innermost first, without those of the recorder. A fault that the bundled trainer
    injects is left out only below other calls: a stack that ends in it shows where the process is."""
    begin = next((at for at, frame in enumerate(frames) if "diag/collectors/trainer/" not in frame), len(frames))
    return (*frames[:begin], *(frame for frame in frames[begin:] if not is_of_recorder(frame)))


@dataclass(frozen=True, slots=True)
class Speaker:
    """The process that printed a line, as far as the line shows. Five numbers that are never mixed."""

    host: str = ""
    pid: int | None = None
    rank: int | None = None  # global: "[rank3]:", "RANK=3", mpirun's and srun's task
    local_rank: int | None = None
    group_rank: int | None = None  # "[PG ID 0 PG GUID 0(default_pg) Rank 3]": within the process group
    device: int | None = None  # CUDA device of the calling thread: often 0 in threads that belong to another
    worker: str = ""  # its place on several axes of parallelism, which is no rank: "PP1 TP2"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was kept. ``text``: without its prefixes; ``raw``: as read."""

    path: str
    number: int
    raw: str
    text: str
    speaker: Speaker
    source: str = ""  # nccl, torch, launcher, kernel, python, stack, or "" where unknown
    level: str = ""  # INFO, WARN, TRACE, CALL, ERROR, ...
    code: str = ""  # file:line in the program that printed it: "transport/nvls.cc:287"
    time_ns: int | None = None  # on that host's clock; the time zone is unknown unless printed
    block: int = 0  # equal on the lines of one traceback, stack dump or summary; 0: of none

    @property
    def evidence(self) -> Source:
        return Source(self.path, self.number, self.raw)

    def follows(self, other: Line, within: int) -> bool:
        """Whether it is one of so many lines below another one of its file."""
        return self.path == other.path and 0 < self.number - other.number <= within


@dataclass(frozen=True)
class Process:
    """One training process, joined from host and pid, communicators and prefixes."""

    host: str
    pid: int | None
    rank: int | None  # global
    local_rank: int | None = None
    gpu: int | None = None  # CUDA device of its communicators
    bus_id: str = ""
    nccl_version: str = ""
    env: dict[str, str] = field(default_factory=dict)  # NCCL_* as it was printed
    paths: tuple[str, ...] = ()
    last_time_ns: int | None = None


@dataclass(frozen=True)
class NcclCall:
    """A collective that a process issued on a communicator, from NCCL's log (SUBSYS=COLL)."""

    op: str  # AllReduce, ...
    op_count: int
    count: int
    datatype: int
    root: int
    evidence: Source


@dataclass(frozen=True)
class Member:
    """A rank of a communicator. ``process``: index in Logs.processes; None where no line ties them."""

    group_rank: int
    process: int | None
    started: bool
    completed: bool  # its initialisation
    ended: str = ""  # "destroyed", "aborted", or "" while it lives
    calls: tuple[NcclCall, ...] = ()  # the last calls, oldest first


@dataclass(frozen=True)
class Communicator:
    """``comm_id``: commId, or "" before NCCL 2.16 (then one of a single process, by its pointer)."""

    comm_id: str
    size: int
    members: tuple[Member, ...]
    parent: str = ""


@dataclass(frozen=True)
class StrayCalls:
    """Calls of a process that printed no initialisation, on one communicator. ``size``: 0 where it is not printed."""

    host: str
    pid: int | None
    gpu: int | None
    size: int
    calls: tuple[NcclCall, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """When a file was last written, by the clock of whoever reads it. ``zone_ns``: how far local time is ahead of UTC
    there, as lines print the one or the other; ``age_ns``: how long before the reading."""

    at_ns: int
    zone_ns: int
    age_ns: int


@dataclass(frozen=True)
class Logs:
    """All that was read from text. ``lines``: those with an anchor of a pattern or of an identity, by file and
    number."""

    lines: tuple[Line, ...]
    processes: tuple[Process, ...]
    communicators: tuple[Communicator, ...]
    world_size: int | None  # None where unknown
    paths: tuple[str, ...]
    gaps: tuple[tuple[str, str], ...]  # (path, what could not be read or joined)
    deduplicated: bool = False  # Ray leaves lines out: the absence of a rank means nothing
    stray_calls: tuple[StrayCalls, ...] = ()
    last_lines: tuple[Line, ...] = ()  # of each file, also without an anchor: the last telling ones and the last one
    written: Mapping[str, Written] = field(default_factory=dict, compare=False)  # by file; not of standard input


def absent_of(size: int, present: Collection[int]) -> list[int]:
    """The ranks below ``size`` that are not present. Empty where they are far more than those that are: a log may print
    any size, so naming the others must not cost more than reading the log did, and hundreds of missing logs say
    nothing about their ranks."""
    if size - len(present) > HANG_ANSWER.few_absent + HANG_ANSWER.absent_for_each * len(present):
        return []
    present = present if isinstance(present, (set, frozenset, dict)) else set(present)
    return [rank for rank in range(size) if rank not in present]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, set[V]]:
    """The values of each key."""
    values: dict[K, set[V]] = defaultdict(set)
    for key, value in pairs:
        values[key].add(value)
    return values


class Role(StrEnum):
    ROOT = "root"  # can be the cause
    CONFIRMATION = "confirmation"  # supports a cause but is none by itself
    CASCADE = "cascade"  # what happens to others because of it: never a root
    HARMLESS = "harmless"  # looks alarming in healthy runs


class WhileItHangs(str):
    """A next step that needs the processes: left out where the job has ended."""

    __slots__ = ()


class ForStacks(str):
    """A next step that leads to the stacks of the ranks at fault: left out where they were read, and for a run that
    our recorder wrote, whose ranks write them when they are asked."""

    __slots__ = ()


class DoneByRecorder(str):
    """A next step that our recorder has taken: left out for a run that it wrote."""

    __slots__ = ()


class StacksWhileItHangs(WhileItHangs, ForStacks):
    __slots__ = ()


@dataclass(frozen=True)
class Known:
    """What next steps depend on. ``pids``: of ranks; ``ended``: the job is known to have; ``stacked``: ranks whose
    stacks were read, and where each of them is; ``recorded``: all that was given is a run of our recorder."""

    pids: Mapping[int, int] = field(default_factory=dict)
    ended: bool = False
    stacked: Mapping[int, str] = field(default_factory=dict)
    recorded: bool = False


@dataclass(frozen=True)
class Stack:
    """Innermost frame first: "name (file:line)"."""

    rank: int
    what: str  # "culprit", "a typical victim"
    frames: tuple[str, ...]
    evidence: Source


@dataclass(frozen=True)
class RuledOut:
    fault_class: str
    because: str


@dataclass(frozen=True)
class Guess:
    """A cause that the evidence suggests too weakly to be the answer."""

    fault_class: str
    confidence: float
    culprits: tuple[Culprit, ...]
    note: str


@dataclass(frozen=True)
class MergedStack:
    """Ranks whose main threads were in the same calls. ``frames``: innermost first, ``name (file:line)``."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    in_collective: bool


@dataclass(frozen=True)
class Triage:
    """The answer. ``fault_class``: an id of ``diag.hang.classes``."""

    fault_class: str
    confidence: float
    headline: str
    culprits: tuple[Culprit, ...] = ()
    evidence: tuple[Source, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    next_steps: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    stacks: tuple[Stack, ...] = ()
    merged_stacks: tuple[MergedStack, ...] = ()  # of all ranks that left one, those that differ from most first
    coverage: tuple[str, ...] = ()  # what was read and what is missing, a sentence each
    gaps: tuple[tuple[str, str], ...] = ()
    guesses: tuple[Guess, ...] = ()  # where the answer is open, the best first
    culprit_confidence: float | None = None  # that the culprits are at fault; None where nobody is named
    by_rules: tuple[float, float] | None = None  # before the fit: of the answer, of the decisive line; None: no cause
