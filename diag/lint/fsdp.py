"""FSDP as Accelerate and Transformers configure it, as the rules see it."""

from __future__ import annotations

from msgspec import Struct

from .model import Devices, Notice, Severity
from .section import Section

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
# Keys that only FSDP1 acts on.
FSDP1_ONLY = (
    "sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params",
    "sync_module_states",
)  # fmt: skip
_COMMON = {
    "version", "min_num_params", "transformer_layer_cls_to_wrap", "backward_prefetch", "forward_prefetch",
    "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "activation_checkpointing",
    "reshard_after_forward", "auto_wrap_policy", "state_dict_type",
}  # fmt: skip
KNOWN = {
    "Accelerate": frozenset(_COMMON | {"sharding_strategy", "offload_params", "ignored_modules"}),
    "Transformers": frozenset(
        _COMMON | {"limit_all_gathers", "cpu_offload", "xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"}
    ),
}


class Fsdp(Struct, frozen=True):
    """``tool``: Accelerate or Transformers. ``section``: its fsdp_config. ``top``: what stands around it.
    ``version`` as it counts, which ``version_given`` says or the defaults. ``strategy``: of FSDP1, in capitals, and
    ``strategy_key`` where it stands, from the top. ``options``: words of Transformers' ``fsdp``."""

    tool: str
    section: Section
    top: Section
    version: int
    version_given: bool
    strategy: str | None
    strategy_key: str
    options: tuple[str, ...]
    mixed_precision: str | None  # bf16, fp16, fp8 or no; None: not said
    devices: Devices

    def key(self, name: str) -> str:
        """The key as the file has it: both tools take it with ``fsdp_`` and without."""
        if name in self.section.values:
            return name
        prefixed = f"fsdp_{name}"
        plain = self.tool == "Transformers" and not any(key.startswith("fsdp_") for key in self.section.values)
        return name if plain and prefixed not in self.section.values else prefixed

    def has(self, name: str) -> bool:
        return self.key(name) in self.section

    def flag(self, name: str) -> bool | None:
        return self.section.flag(self.key(name))

    def word(self, name: str) -> str | None:
        value = self.section.values.get(self.key(name))
        return value.strip().upper() if isinstance(value, str) else None

    def say(self, name: str, severity: Severity, text: str, instead: str, source: str) -> Notice:
        return self.section.say(self.key(name), severity, text, instead, source)

    def say_strategy(self, severity: Severity, text: str, instead: str, source: str) -> Notice:
        return self.top.say(self.strategy_key, severity, text, instead, source)

    def write(self, name: str, value: str) -> str:
        """``key: value`` as the file's syntax has it."""
        return written(self.section, self.key(name), value)

    @property
    def policy(self) -> str | None:
        """How the model is cut into units: one of POLICIES, or what the file says in its place."""
        if (said := self.word("auto_wrap_policy")) is not None:
            return said
        if self.tool == "Accelerate":
            return "NO_WRAP"
        if self.version == 2 and not self.options:  # `fsdp: true`, which came with this default
            return "TRANSFORMER_BASED_WRAP"
        if "auto_wrap" not in self.options:
            return "NO_WRAP" if self.options else None  # a bare fsdp_config: the other file says it
        return "SIZE_BASED_WRAP" if (self.section.number(self.key("min_num_params")) or 0) > 0 else POLICIES[0]

    @property
    def offloads(self) -> bool:
        return any(self.flag(name) is True for name in ("offload_params", "cpu_offload")) or "offload" in self.options


def written(section: Section, key: str, value: str) -> str:
    """``key: value`` in the syntax of the section's document."""
    if section.document.syntax == "json":
        plain = value in ("true", "false", "null") or value.isdecimal() or value[:1] in '[{"'
        return f'"{key}": {value}' if plain else f'"{key}": "{value}"'
    return f"{key}: {value}"
