"""Facts about strategies of parallelism: what each shards, whose API its users call, what it can be asked to do.

The bundled trainer, the recorder of other trainings and the analysis read them here, so that none of them needs another
one. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The states that a strategy may shard.
PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer states"

# The trainer's options that concern FSDP units, with their defaults.
UNIT_OPTIONS: Mapping[str, str | int] = {"wrap": "block", "prefetch": 0, "reshard_after_forward": "yes"}


@dataclass(frozen=True)
class Facts:
    """One strategy. ``shards``: by its name in a manifest, the states that are sharded over the ranks of a sharding
    group."""

    id: str  # of --strategy
    api: str  # the id of the strategy whose API its users call
    shards: Mapping[str, tuple[str, ...]]
    by_engine: bool = False  # its own engine decides when gradients are reduced, and saves
    no_sync: bool = False  # inside ``model.no_sync()`` a backward reduces no gradients
    flat_parameters: bool = False  # each sharding unit is one flat parameter
    not_taken: tuple[str, ...] = ()  # the options of FSDP units that do not apply to it
    blocks_in_unit: bool = False  # a unit may consist of several blocks

    def takes(self, options: Mapping[str, object]) -> bool:
        """Whether the bundled trainer accepts these options about units and gradients, as far as they depend on the
        strategy. Missing ones have their defaults."""
        units = {name: options.get(name, default) for name, default in UNIT_OPTIONS.items()}
        if any(units[name] != UNIT_OPTIONS[name] for name in self.not_taken):
            return False
        whole_model = units["wrap"] == "root"
        if whole_model and (units["prefetch"] or units["reshard_after_forward"] != "yes"):
            return False
        if str(units["wrap"]).isdecimal() and (not self.blocks_in_unit or options.get("pipeline_parallel", 1) != 1):
            return False
        settings = options.get("settings")
        if isinstance(settings, list | tuple) and "static_graph=yes" in settings:  # every backward has to reduce
            return options.get("micro_batches", 1) == 1 or options.get("grad_sync", "last") != "last"
        return True


DDP = Facts("ddp", "ddp", {"ddp": ()}, no_sync=True, not_taken=tuple(UNIT_OPTIONS))
ZERO1 = Facts("zero1", "ddp", {"zero1": (OPTIMIZER,)}, no_sync=True, not_taken=tuple(UNIT_OPTIONS))
FSDP1 = Facts(
    "fsdp1",
    "fsdp1",
    {"fsdp1": (PARAMETERS, GRADIENTS, OPTIMIZER), "fsdp1-no_shard": ()},
    no_sync=True,
    flat_parameters=True,
    not_taken=("prefetch", "reshard_after_forward"),
)
FSDP2 = Facts("fsdp2", "fsdp2", {"fsdp2": (PARAMETERS, GRADIENTS, OPTIMIZER)}, blocks_in_unit=True)
DEEPSPEED = Facts(
    "deepspeed",
    "deepspeed",
    {
        "deepspeed-zero1": (OPTIMIZER,),
        "deepspeed-zero2": (GRADIENTS, OPTIMIZER),
        "deepspeed-zero3": (PARAMETERS, GRADIENTS, OPTIMIZER),
    },
    by_engine=True,
    not_taken=tuple(UNIT_OPTIONS),
)

STRATEGIES: Mapping[str, Facts] = {facts.id: facts for facts in (DDP, ZERO1, FSDP1, FSDP2, DEEPSPEED)}


def named(name: str | None) -> Facts | None:
    """The strategy that a manifest names; None for another name. A variant's name is ``id-variant``, as in
    "deepspeed-zero2"."""
    return STRATEGIES.get((name or "").partition("-")[0])
