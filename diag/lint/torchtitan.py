"""A torchtitan configuration as its rules see it, by newer and older names."""

from __future__ import annotations

from msgspec import Struct

from .document import Document
from .model import Devices, Notice, Severity
from .section import Section

# Where a degree stands, newest first.
_PLACES = {
    "dp_replicate": ("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"),
    "dp_shard": (
        "parallelism.data_parallel_shard_degree",
        "training.data_parallel_shard_degree",
        "training.data_parallel_degree",
    ),
    "cp": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
    "tp": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
    "pp": ("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
    "ep": ("parallelism.expert_parallel_degree",),
    "etp": ("parallelism.expert_tensor_parallel_degree",),
}
_DEFAULT = {"dp_shard": -1}


class Titan(Struct, frozen=True):
    """``degrees`` as given or by default; ``keys``: where each stands or would."""

    top: Section
    degrees: dict[str, int]
    keys: dict[str, str]
    local_batch: int
    local_batch_key: str
    devices: Devices

    def table(self, name: str) -> Section:
        return self.top.within(name)

    def say(self, key: str, severity: Severity, text: str, instead: str, source: str) -> Notice:
        return self.top.say(key, severity, text, instead, source)

    @property
    def sharded(self) -> int | None:
        """Ranks that share a copy of the parameters' shards; None while they cannot be told."""
        shard, others = self.degrees["dp_shard"], self.others
        if shard != -1:
            return shard
        return self.devices.gpus // others if self.devices.gpus is not None and others else None

    @property
    def others(self) -> int:
        """The product of all degrees that make up the world but that of sharding."""
        product = 1
        for name in ("dp_replicate", "cp", "tp", "pp"):
            product *= self.degrees[name]
        return product

    @property
    def extended(self) -> bool:
        """Whether a module of the user's adds tables and keys of its own, under a newer or an older name."""
        return bool(
            self.table("job").values.get("custom_config_module")
            or self.table("experimental").values.get("custom_args_module")
        )

    @property
    def compiles(self) -> bool:
        """Whether the model is compiled."""
        table = self.table("compile")
        parts = table.values.get("components")
        new = table.flag("enable") is True and (not isinstance(parts, list) or "model" in parts)
        return new or self.table("training").flag("compile") is True


def torchtitan(document: Document, devices: Devices) -> Titan:
    top = Section(document, (), document.values)
    degrees, keys = {}, {}
    for name, places in _PLACES.items():
        keys[name] = next((place for place in places if _value(top, place) is not None), places[0])
        found = _value(top, keys[name])
        degrees[name] = _DEFAULT.get(name, 1) if found is None else found
    old = "training.batch_size"
    key = old if _value(top, old) is not None else "training.local_batch_size"
    batch = _value(top, key)
    return Titan(top, degrees, keys, 8 if batch is None else batch, key, devices)


def _value(top: Section, place: str) -> int | None:
    table, key = place.split(".")
    return top.within(table).whole(key)
