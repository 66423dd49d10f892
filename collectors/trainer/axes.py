"""How the ranks are cut into axes: stages of a pipeline, replicas, shards, parts of each matrix. Standard library only.

The order is torchtitan's, outermost first, so that the ranks that talk most are neighbours: rank =
((stage x replicas + replica) x shards + shard) x parts + part.
"""

from __future__ import annotations

from dataclasses import dataclass

PP, DP, DP_REPLICATE, DP_SHARD, TP = "pp", "dp", "dp_replicate", "dp_shard", "tp"


@dataclass(frozen=True)
class Axes:
    """Sizes of the axes. ``replicas`` x ``shards`` ranks read data of their own."""

    stages: int = 1
    replicas: int = 1
    shards: int = 1
    parts: int = 1

    @classmethod
    def of(cls, world_size: int, *, stages: int = 1, replicas: int = 1, parts: int = 1) -> Axes:
        """What is left of the world are shards. ValueError where nothing fits."""
        taken = stages * replicas * parts
        if world_size % taken:
            raise ValueError(f"{world_size} ranks are no multiple of {taken}")
        return cls(stages, replicas, world_size // taken, parts)

    @property
    def data(self) -> int:
        """Ranks with batches of their own."""
        return self.replicas * self.shards

    @property
    def model(self) -> int:
        """Ranks that work on one batch together."""
        return self.stages * self.parts

    def data_rank(self, rank: int) -> int:
        return rank // self.parts % self.data

    def shard(self, rank: int) -> int:
        """Equal on ranks that hold the same numbers: replicas of a shard."""
        return rank // self.parts % self.shards * self.parts + rank % self.parts

    def stage(self, rank: int) -> int:
        return rank // (self.parts * self.data)

    def sizes(self) -> dict[str, int]:
        """The axes of the mesh, outermost first: those of one rank are left out, except the one of the data."""
        sizes = {PP: self.stages} if self.stages > 1 else {}
        if self.replicas > 1:
            sizes |= {DP_REPLICATE: self.replicas, DP_SHARD: self.shards}
        else:
            sizes[DP] = self.shards
        if self.parts > 1:
            sizes[TP] = self.parts
        return sizes

    def data_axes(self) -> tuple[str, ...]:
        return (DP_REPLICATE, DP_SHARD) if self.replicas > 1 else (DP,)
