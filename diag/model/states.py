"""Memory of a model's states on each rank, by component and strategy: formulas, nothing measured.

Sources: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 3.1 and figure 1, for DDP and ZeRO 1 to 3; for FSDP2 its
fp32 parameters, gradients and moments (docs/concepts/sharding.md), which are ZeRO 3 with other types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diag.collectors.strategies import GRADIENTS, OPTIMIZER, PARAMETERS, STRATEGIES, named


class Sharding(StrEnum):
    """The states that a sharding group divides."""

    NONE = "nothing"  # DDP
    OPTIMIZER = "optimizer states"  # ZeRO 1
    GRADIENTS = "gradients and optimizer states"  # ZeRO 2
    PARAMETERS = "parameters, gradients and optimizer states"  # ZeRO 3, FSDP


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes of one parameter's states without sharding."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


# Adam: two moments in fp32, and for a model in a 16-bit type a copy of its parameters in fp32.
ADAM_FP32 = BytesPerParameter(parameters=4, gradients=4, optimizer=8)
ADAM_MIXED = BytesPerParameter(parameters=2, gradients=2, optimizer=12)

_SHARDED = {  # parameters, gradients, optimizer
    Sharding.NONE: (False, False, False),
    Sharding.OPTIMIZER: (False, False, True),
    Sharding.GRADIENTS: (False, True, True),
    Sharding.PARAMETERS: (True, True, True),
}


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank, throughout the step."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: ModelStates) -> ModelStates:
        return ModelStates(
            self.parameters + other.parameters, self.gradients + other.gradients, self.optimizer + other.optimizer
        )


def model_states(parameters: int, sharding: Sharding, shards: int, each: BytesPerParameter) -> ModelStates:
    """Bytes of a model's states on each of the ``shards`` ranks that share them. With hybrid sharding, ``shards`` is
    the number of ranks of one replica."""
    cut = _SHARDED[sharding]
    whole = (each.parameters, each.gradients, each.optimizer)
    sizes = (-(-parameters * size // (shards if is_cut else 1)) for size, is_cut in zip(whole, cut, strict=True))
    return ModelStates(*sizes)


def sharding_of(strategy: str) -> Sharding | None:
    """The states that a strategy shards, by its name in a manifest or a configuration; None if unknown."""
    return _NAMES.get(_plain(strategy))


def _plain(strategy: str) -> str:
    return strategy.lower().replace("-", "").replace("_", "")


def partitions_gradients(strategy: str) -> bool:
    """Whether it is DeepSpeed's ZeRO-2 or ZeRO-3, which must reduce in every micro-batch and refuse ``no_sync()``."""
    kind = named(strategy)
    cut = sharding_of(strategy) in (Sharding.GRADIENTS, Sharding.PARAMETERS)
    return kind is not None and kind.by_engine and cut


# Names in configurations and of other trainings, and those of the bundled trainer's strategies.
_NAMES = {
    "zero2": Sharding.GRADIENTS,
    "zero3": Sharding.PARAMETERS,
    "fsdp": Sharding.PARAMETERS,
    "hsdp": Sharding.PARAMETERS,
}
for _strategy in STRATEGIES.values():
    for _name, _parts in _strategy.shards.items():
        _cut = tuple(part in _parts for part in (PARAMETERS, GRADIENTS, OPTIMIZER))
        _NAMES[_plain(_name)] = next(sharding for sharding, cut in _SHARDED.items() if cut == _cut)


def shards_of(mesh: dict[str, int], world_size: int | None) -> int | None:
    """Number of ranks that share the states: the sharding axis of a mesh that has one, else the data-parallel axes,
    else all ranks; None if unknown."""
    for axis in ("dp_shard", "shard", "fsdp"):
        if mesh.get(axis):
            return mesh[axis]
    parallel = [size for axis, size in mesh.items() if axis.startswith("dp") and axis != "dp_replicate"]
    if parallel:
        product = 1
        for size in parallel:
            product *= size
        return product
    return world_size if not mesh else None
