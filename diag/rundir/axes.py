"""The axes of a run's process groups: from its manifest, else from what its traces say that the groups are for."""

from __future__ import annotations

import re
from math import prod

from diag.model.axes import Axes

from .run import Tables

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
    found = _MESH_AXIS.match(description)
    return found.group(1) if found else _MEGATRON.get(description)
