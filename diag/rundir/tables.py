"""The data of a run, as the analysis takes it: everything that its ranks recorded, and the axes of its process groups.

``diag.rundir.run`` reads it from files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from diag.collectors.records import (
    CheckpointRecord,
    DeviceRecord,
    DeviceStepRecord,
    Heartbeat,
    HostRecord,
    MachineRecord,
    Manifest,
    MemoryRecord,
    NumberRecord,
    RankRecord,
    machine_values,
)
from diag.model import Gap
from diag.model.axes import Axes
from diag.model.retained import Retained
from diag.traces.trace import Trace
from diag.words.formatting import counted

from .columns import NO_ROWS, NO_STEPS, Rows, Steps
from .durations import DurationRecords
from .garbage import without_collections
from .policy import BLOCKS

_S = TypeVar("_S", DeviceRecord, HostRecord, MachineRecord)


class RecordedRows(Struct, frozen=True):
    """Collectives of a rank. ``dropped``: how many of these steps' were above the limit per step and are missing;
    ``path``: the file."""

    rows: Rows
    groups: dict[str, list[int]]
    dropped: int
    path: str
    gaps: tuple[Gap, ...]

    def all_gaps(self, whole: bool = True) -> tuple[Gap, ...]:
        """Also for rows that were not recorded. ``whole``: these are all steps, so that their number is known."""
        if not self.dropped:
            return self.gaps
        were = "was" if whole and self.dropped == 1 else "were"
        number = counted(self.dropped, "collective") if whole else "collectives"
        return (*self.gaps, Gap(self.path, f"{number} above the limit per step {were} not recorded"))


class UnreadRows(Protocol):
    """The collectives of a rank in a run that is too long to be read at once."""

    @property
    def size_bytes(self) -> int:
        """The size of the file."""

    def of_steps(self, spans: Sequence[tuple[int, int]]) -> RecordedRows:
        """Those of the steps from the first to before the second of each span."""

    def digest(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """A check sum of their lines; None if these cannot be found."""


class Store(Protocol):
    """Keeps data beside the run. What is loaded is what was saved, or None."""

    def load(self, name: str) -> bytes | None: ...

    def save(self, name: str, data: bytes) -> None: ...


class RankTables(Struct, frozen=True):
    """All data of one rank. ``steps`` and ``rows`` may be given as any sequence of their records. ``unread``: the
    source of all rows, if ``rows`` has those of some steps only."""

    rank: int
    identity: RankRecord | None = None
    steps: Steps = NO_STEPS
    rows: Rows = NO_ROWS
    groups: dict[str, list[int]] = field(default_factory=dict)
    device: tuple[DeviceRecord, ...] = ()
    scheduling: tuple[HostRecord, ...] = ()
    machine: tuple[MachineRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    numbers: tuple[NumberRecord, ...] = ()
    heartbeat: Heartbeat | None = None
    traces: tuple[Trace, ...] = ()
    device_steps: tuple[DeviceStepRecord, ...] = ()
    unread: UnreadRows | None = None
    memory: tuple[MemoryRecord, ...] = ()  # the peaks of parts of the run, in order, where its steps are not read

    def __post_init__(self) -> None:
        force_setattr(self, "steps", Steps.of(self.steps))
        force_setattr(self, "rows", Rows.of(self.rows))

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
        return self.steps.numbers


class Only(Struct, frozen=True):
    """The steps that are analysed, if not all: from ``first`` to ``last``. ``begin``: the first step of the run, where
    it warms up. ``asked``: in the words of the user."""

    first: int
    last: int
    begin: int
    asked: str

    def has(self, step: int) -> bool:
        return self.first <= step <= self.last


class StepSums(Struct, frozen=True, eq=False):
    """What the summaries of so many ranks say of steps whose records were not read. ``tokens[step]``: of all ranks, of
    the steps ``numbers``, 0 where a rank has none; ``without_tokens``: a rank without any. ``evaluation_ns`` and
    ``recorded_ns``: over all ranks and steps; ``evaluated``: the steps with an evaluation."""

    ranks: int
    numbers: tuple[int, ...]
    tokens: npt.NDArray[np.int64]
    without_tokens: int | None
    evaluation_ns: int
    recorded_ns: int
    evaluated: frozenset[int]


class Tables(Struct, frozen=True, dict=True):
    """A run directory or traces, read once. ``world_size`` is None if unknown."""

    root: Path
    manifest: Manifest | None
    world_size: int | None
    ranks: dict[int, RankTables]
    gaps: tuple[Gap, ...]
    durations: tuple[DurationRecords, dict[int, int]] | None = None  # of collectives, and the ranks of the processes
    store: Store | None = None  # for what analyses of a long run keep
    retained: Retained | None = None  # of a run whose oldest records were removed
    snapshots: tuple[str, ...] = ()  # files of PyTorch's allocator: see ``diag.traces.snapshot_files``
    only: Only | None = None  # the steps that are analysed; None: all
    sums: StepSums | None = None  # of a run that was read from summaries
    names: Mapping[int, frozenset[str]] = {}  # of the files of each rank, where its folder was listed

    @property
    def long(self) -> bool:
        """Whether it is too long to be read at once: the rows of most steps are not in ``ranks``."""
        return any(rank.unread is not None for rank in self.ranks.values())

    @property
    def recorded(self) -> tuple[int, int] | None:
        """Begin and end of its traces, Unix time in ns; None without traces."""
        traces = [trace for rank in self.ranks.values() for trace in rank.traces]
        return (min(window.begin_ns for window in traces), max(window.end_ns for window in traces)) if traces else None

    @property
    def on_device(self) -> bool:
        """Whether any rank computes on an accelerator."""
        return any(rank.on_device for rank in self.ranks.values())

    @cached_property
    def identities(self) -> dict[int, RankRecord]:
        """Of the ranks whose rank.json was read."""
        return {rank: of_rank.identity for rank, of_rank in self.ranks.items() if of_rank.identity is not None}

    @property
    def device_unread(self) -> bool:
        """Whether traces are all there is of a device's work, and do not hold it: the operators in them are the host's
        side of it, and no computation on a CPU."""
        unread = any(not trace.device_record.decides for rank in self.ranks.values() for trace in rank.traces)
        return unread and all(rank.identity is None for rank in self.ranks.values())

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without usable data; empty if the world size is unknown."""
        used = {rank for rank, tables in self.ranks.items() if not tables.empty}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in used)


def of_steps(tables: Tables, numbers: Collection[int]) -> Tables:
    """The run as if only these steps were recorded, their rows read."""
    return with_rows(without_rows(tables, numbers), tables, numbers)


def without_rows(tables: Tables, numbers: Collection[int]) -> Tables:
    """The run as if only these steps were recorded, without their rows."""
    spans = spans_of(numbers)
    return replace(tables, ranks={rank: _of_steps(of_rank, numbers, spans) for rank, of_rank in tables.ranks.items()})


def _of_steps(rank: RankTables, numbers: Collection[int], spans: Sequence[tuple[int, int]]) -> RankTables:
    ordered = rank.unread is not None and bool((np.diff(rank.steps.step) > 0).all())
    steps, samples = rank.steps.of_spans(spans) if ordered else rank.steps.of_numbers(numbers), rank.scheduling
    if rank.unread is not None and len(steps):  # the samples of a long run are those of these steps
        since, until = int(steps.begin_ns.min()), int(steps.end_ns.max())
        around = BLOCKS.samples_around_ns
        samples = tuple(each for each in samples if since - around <= each.monotonic_ns <= until + around)
    return replace(
        rank,
        steps=steps,
        rows=NO_ROWS,
        scheduling=samples,
        device_steps=tuple(record for record in rank.device_steps if record.step in numbers),
        unread=None,
    )


@without_collections()
def with_rows(some: Tables, tables: Tables, numbers: Collection[int]) -> Tables:
    """``without_rows`` of the tables and numbers, with their rows."""
    spans = spans_of(numbers)
    ranks, gaps = {}, dict.fromkeys(some.gaps)
    for rank, of_rank in tables.ranks.items():
        if of_rank.unread is not None:
            read = of_rank.unread.of_steps(spans)
            rows, groups = read.rows, {**of_rank.groups, **read.groups}
            gaps |= dict.fromkeys(read.all_gaps(whole=False))
        else:
            rows, groups = of_rank.rows.take(np.isin(of_rank.rows.step, list(numbers))), of_rank.groups
        ranks[rank] = replace(some.ranks[rank], rows=rows, groups=groups)
    return replace(some, ranks=ranks, gaps=tuple(gaps))


def restricted(tables: Tables, only: Only) -> Tables:
    """The run as if nothing else than these steps had been recorded. Samples are those between their begin and end.
    The steps of traces are chosen by the account (``diag.account.attribute``)."""
    ranks = {rank: _restricted(of_rank, only) for rank, of_rank in tables.ranks.items()}
    return replace(tables, ranks=ranks, only=only, store=None, retained=None)


def _restricted(rank: RankTables, only: Only) -> RankTables:
    steps = rank.steps.take((rank.steps.step >= only.first) & (rank.steps.step <= only.last))
    if not len(rank.steps):
        return rank
    since, until = (int(steps.begin_ns.min()), int(steps.end_ns.max())) if len(steps) else (0, -1)

    def inside(samples: tuple[_S, ...]) -> tuple[_S, ...]:
        around = BLOCKS.samples_around_ns
        return tuple(each for each in samples if since - around <= each.monotonic_ns <= until + around)

    rows = rank.rows
    if rank.unread is None:
        rows = rows.take((rows.step >= only.first) & (rows.step <= only.last))
    return replace(
        rank,
        steps=steps,
        rows=rows,
        device=inside(rank.device),
        scheduling=inside(rank.scheduling),
        machine=inside(whole_records(rank.machine)),
        checkpoints=tuple(each for each in rank.checkpoints if only.has(each.step)),
        device_steps=tuple(each for each in rank.device_steps if only.has(each.step)),
    )


def whole_records(records: tuple[MachineRecord, ...]) -> tuple[MachineRecord, ...]:
    """Each with all values that were known then."""
    values: dict[str, int | None] = {}
    found = []
    for record in records:
        values = machine_values(values, record)
        found.append(MachineRecord(record.monotonic_ns, values))
    return tuple(found)


def spans_of(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Each unbroken stretch of the numbers: the first, and the one after the last."""
    inside = np.unique(np.fromiter(numbers, np.int64, len(numbers)))
    breaks = np.flatnonzero(np.diff(inside) != 1)
    first, last = np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [len(inside) - 1]))
    return list(zip(inside[first].tolist(), (inside[last] + 1).tolist(), strict=True)) if len(inside) else []


# -- axes --------------------------------------------------------------------------------------------------------------
#
# The axes of a run's process groups: from its manifest, else from the descriptions of the groups in its traces.

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
    """The axes of the run's groups; none if they are unknown."""
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
    """The axis that a process group's description names; None if it names none."""
    match = _MESH_AXIS.match(description)
    return match.group(1) if match else _MEGATRON.get(description)
