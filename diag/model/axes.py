"""The axis of the device mesh along which a group of ranks lies, and its usual name. Pure.

A mesh is an ordered dictionary of axis to size, outermost first, with the ranks row by row: ``{"pp": 2, "dp": 2,
"tp": 2}`` has ranks 0 and 1 in one tensor-parallel group and ranks 0 and 4 in one pipeline, as ``init_device_mesh``
numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from msgspec import Struct, field

# -- bubble ------------------------------------------------------------------------------------------------------------
#
# The fraction of a step that a pipeline's stages wait because of its schedule alone: the reference for a finding, and a
# prediction in a plan and in the linter.


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Fraction of the step in which a stage waits, if all passes take equally long: (p - 1) / (v m + p - 1).
    Narayanan et al. give it as a fraction of the ideal time, (p - 1) / (v m)."""
    idle = stages - 1
    return idle / (chunks * micro_batches + idle)


PIPELINE = "pp"
TENSOR = "tp"
WORLD = "world"  # all ranks of a mesh of several axes

Mesh = Mapping[str, int]

# Names of a DeviceMesh's axes in torchtitan's parallel_dims.py and torch's own examples.
_WORDS = {
    "dp": "data-parallel",
    "dp_replicate": "replicating",  # HSDP: gradients are reduced among replicas of the shards
    "dp_shard": "sharding",
    "fsdp": "sharding",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    TENSOR: "tensor-parallel",
    PIPELINE: "pipeline-parallel",
    WORLD: "whole-job",
}
_DATA = ("dp", "fsdp", "hsdp", "ddp")  # also as prefixes: dp_replicate, dp_shard, dp_shard_cp


def coordinates(rank: int, mesh: Mesh) -> dict[str, int]:
    """The position of a rank along each axis."""
    place = {}
    for axis, size in reversed(list(mesh.items())):
        rank, place[axis] = divmod(rank, size)
    return {axis: place[axis] for axis in mesh}


def axis_of(ranks: Sequence[int], mesh: Mesh, world: int | None) -> str | None:
    """The axis that these ranks fill: ``tp``; several that were flattened into one: ``dp`` for all axes of data
    parallelism, else ``dp_shard x tp``; ``world`` for all ranks of a mesh of several axes. None if they fill no axis,
    or the mesh does not fit the world."""
    chosen = set(ranks)
    if len(chosen) < 2 or not mesh or prod(mesh.values()) != world or not chosen <= set(range(world)):
        return None
    places = [coordinates(rank, mesh) for rank in chosen]
    filled = [axis for axis in mesh if len({place[axis] for place in places}) > 1]
    if len(chosen) != prod(mesh[axis] for axis in filled):
        return None
    if len(filled) == 1:
        return filled[0]
    data = [axis for axis, size in mesh.items() if axis.startswith(_DATA) and size > 1]
    if filled == data:
        return "dp"
    return WORLD if len(chosen) == world else " x ".join(filled)


def is_data(axis: str | None) -> bool:
    """Whether gradients or parameters of data parallelism move along this axis; also true for an unknown axis."""
    return axis is None or axis == WORLD or all(part.startswith(_DATA) for part in axis.split(" x "))


def axis_words(axis: str) -> str:
    return " and ".join(_WORDS.get(part, part) for part in axis.split(" x "))


def group_words(axis: str | None, ranks: Sequence[int]) -> str:
    """``tensor-parallel group (ranks 0 and 1)``."""
    named = f"{axis_words(axis)} group" if axis else "group"
    return f"{named} ({rank_words(ranks)})" if ranks else named


def rank_words(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0, 1, 2 and 61 more``."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else "no rank"
    if len(ranks) > 4:
        return f"ranks {', '.join(map(str, ranks[:3]))} and {len(ranks) - 3} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class Axes(Struct, frozen=True):
    """The axes of one run: from its mesh, else from the descriptions of its process groups. ``named``: ranks to
    axis."""

    mesh: dict[str, int] = field(default_factory=dict)
    world: int | None = None
    named: dict[tuple[int, ...], str] = field(default_factory=dict)

    def of(self, ranks: Sequence[int]) -> str | None:
        return axis_of(ranks, self.mesh, self.world) or self.named.get(tuple(sorted(ranks)))

    @property
    def several(self) -> bool:
        """Whether groups need the name of their axis to be unambiguous."""
        return sum(size > 1 for size in self.mesh.values()) > 1 or len(set(self.named.values())) > 1

    def words(self, ranks: Sequence[int]) -> str:
        return group_words(self.of(ranks), ranks)

    def stages(self) -> dict[int, int]:
        """The pipeline stage of each rank; empty without a pipeline."""
        if self.mesh.get(PIPELINE, 1) > 1 and self.world == prod(self.mesh.values()):
            return {rank: coordinates(rank, self.mesh)[PIPELINE] for rank in range(self.world)}
        return {
            rank: stage
            for ranks, axis in sorted(self.named.items())
            if axis == PIPELINE
            for stage, rank in enumerate(ranks)
        }
