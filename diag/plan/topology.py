"""How ranks are cut into axes: dp=8,tp=4,pp=2,cp=2."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from diag.collectors.layout import MOST_RANKS
from diag.errors import DiagError

# In the order of torchtitan and Megatron, outermost first: neighbours in the last axis are neighbours on a host.
AXES = {
    "pp": "pipeline stages",
    "dp": "data parallel, sharding or not",
    "dp_replicate": "replicas of hybrid sharding",
    "dp_shard": "ranks that share one replica's states",
    "cp": "parts of the sequence",
    "tp": "parts of each matrix",
    "ep": "parts of the experts, cut out of the data-parallel ranks",
}
_MOST_STAGES = 1 << 14  # a hundred times the blocks of the deepest models
_WITHIN_DATA = ("ep",)  # takes its ranks from others, so it does not multiply the world


class Topology(Struct, frozen=True):
    """Sizes of the axes that were given."""

    axes: dict[str, int]

    @property
    def world_size(self) -> int:
        return prod(size for axis, size in self.axes.items() if axis not in _WITHIN_DATA)

    def size(self, axis: str) -> int:
        return self.axes.get(axis, 1)

    @property
    def data_parallel(self) -> int:
        """Ranks with batches of their own."""
        return self.size("dp") * self.size("dp_replicate") * self.size("dp_shard")

    @property
    def plain(self) -> bool:
        """Whether there is nothing but data parallelism: each rank works on the whole model and whole sequences."""
        return all(self.size(axis) == 1 for axis in ("tp", "pp", "cp"))

    def __str__(self) -> str:
        sizes = " x ".join(f"{axis}={size}" for axis, size in self.axes.items())
        return f"{sizes} = {self.world_size} ranks"


def topology_of(text: str) -> Topology:
    """From "dp=8,tp=4,pp=2". DiagError for an unknown axis, one given twice, or a size that is none."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES:
            known = ", ".join(f"{name} ({about})" for name, about in AXES.items())
            raise DiagError(f"--topology: no axis called {axis or part!r}", hint=f"axes: {known}")
        if axis in axes:
            raise DiagError(f"--topology: {axis} is given twice")
        if not size.isdecimal() or not size.strip("0"):
            raise DiagError(f"--topology: {axis}={size} is no number of ranks", hint="give one from 1 on, as in dp=8")
        if len(size) > 18 or int(size) > MOST_RANKS:
            raise DiagError(f"--topology: {axis}={size[:80]} is more than {MOST_RANKS:,} ranks")
        axes[axis] = int(size)
    if "dp" in axes and ("dp_shard" in axes or "dp_replicate" in axes):
        raise DiagError("--topology: dp is dp_replicate x dp_shard: give it, or the two of them")
    if axes.get("pp", 1) > _MOST_STAGES:
        raise DiagError(f"--topology: pp={axes['pp']} is more than {_MOST_STAGES:,} stages")
    found = Topology(axes)
    if found.world_size > MOST_RANKS:
        raise DiagError(f"--topology: {found} is {found.world_size:,} ranks, more than {MOST_RANKS:,}")
    expert, data = found.size("ep"), found.data_parallel * found.size("cp")
    if data % expert:
        raise DiagError(f"--topology: ep={expert} does not divide the {data} ranks of dp and cp")
    return found


def check_world(topology: Topology, world_size: int) -> None:
    """DiagError, with what would fit, where the axes do not make up the world."""
    made = topology.world_size
    if made == world_size:
        return
    without = made // topology.data_parallel
    data = f", or {world_size // without} data-parallel ranks" if world_size % without == 0 else ""
    hint = f"give {made} GPUs{data}"
    raise DiagError(f"--topology: {topology}, but there are {world_size} GPUs", hint=hint)
