"""The data of a run, as the analysis takes it: everything that its ranks recorded, and the axes of its process groups.

``diag.rundir.run`` reads it from files.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import force_setattr

from diag.collectors.records import (
    CheckpointRecord,
    DeviceRecord,
    DeviceStepRecord,
    Heartbeat,
    HostRecord,
    Manifest,
    RankRecord,
)
from diag.model import Gap
from diag.model.axes import Axes
from diag.traces.trace import Trace

from .columns import NO_ROWS, NO_STEPS, Rows, Steps
from .durations import DurationRecords


class RankTables(Struct, frozen=True):
    """All data of one rank. ``steps`` and ``rows`` may be given as any sequence of their records."""

    rank: int
    identity: RankRecord | None = None
    steps: Steps = NO_STEPS
    rows: Rows = NO_ROWS
    groups: dict[str, list[int]] = field(default_factory=dict)
    device: tuple[DeviceRecord, ...] = ()
    scheduling: tuple[HostRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    heartbeat: Heartbeat | None = None
    traces: tuple[Trace, ...] = ()
    device_steps: tuple[DeviceStepRecord, ...] = ()

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


class Tables(Struct, frozen=True):
    """A run directory or traces, read once. ``world_size`` is None if unknown."""

    root: Path
    manifest: Manifest | None
    world_size: int | None
    ranks: dict[int, RankTables]
    gaps: tuple[Gap, ...]
    durations: tuple[DurationRecords, dict[int, int]] | None = None  # of collectives, and the ranks of the processes
    snapshots: tuple[str, ...] = ()  # files of PyTorch's allocator: see ``diag.traces.memory_snapshots``

    @property
    def recorded(self) -> tuple[int, int] | None:
        """Begin and end of its traces, Unix time in ns; None without traces."""
        traces = [trace for rank in self.ranks.values() for trace in rank.traces]
        return (min(window.begin_ns for window in traces), max(window.end_ns for window in traces)) if traces else None

    @property
    def on_device(self) -> bool:
        """Whether any rank computes on an accelerator."""
        return any(rank.on_device for rank in self.ranks.values())

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
