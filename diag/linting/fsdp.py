"""FSDP as Accelerate and Transformers configure it, as the rules see it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .model import Devices, Notice, Section, Severity, Translation, nearest

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


# -- fsdp sharding -----------------------------------------------------------------------------------------------------
#
# Rules for what FSDP shards, in which units, and what it overlaps.

_STRATEGY = "torch.distributed.fsdp.ShardingStrategy"
_PREFETCH = "torch.distributed.fsdp.BackwardPrefetch"
_PLUGIN = "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"


def unknown_strategy(seen: Fsdp) -> Iterator[Notice]:
    """A strategy that there is not; Accelerate also takes their numbers, from 1."""
    known = seen.strategy in STRATEGIES or seen.strategy in ("1", "2", "3", "4", "5")
    if seen.version == 1 and seen.strategy is not None and not known:
        yield seen.say_strategy(
            Severity.ERROR, "There is no such sharding strategy.", f"one of {', '.join(STRATEGIES)}", _STRATEGY
        )


def shard_grad_op(seen: Fsdp) -> Iterator[Notice]:
    """The strategy that is taken for ZeRO-2."""
    if seen.version == 1 and seen.strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"):
        yield seen.say_strategy(
            Severity.NOTE,
            "Not ZeRO-2: parameters are sharded too, gathered before forward, and stay whole until backward has used "
            "them. It saves backward's all-gather and costs the whole model in 16 bits at the peak.",
            "FULL_SHARD, where that does not fit", _STRATEGY,
        )  # fmt: skip


def kept_whole(seen: Fsdp) -> Iterator[Notice]:
    """The same in FSDP2's words."""
    if seen.version == 2 and seen.flag("reshard_after_forward") is False:
        yield seen.say(
            "reshard_after_forward", Severity.NOTE,
            "Every unit's parameters stay gathered from forward to backward: one all-gather less, and the whole model "
            "in 16 bits at the peak.", seen.write("reshard_after_forward", "true"),
            "torch.distributed.fsdp.fully_shard: reshard_after_forward",
        )  # fmt: skip


def no_shard(seen: Fsdp) -> Iterator[Notice]:
    """FSDP that shards nothing."""
    if seen.version == 1 and seen.strategy == "NO_SHARD":
        yield seen.say_strategy(
            Severity.NOTE, "NO_SHARD shards nothing and is deprecated in torch in favour of DistributedDataParallel.",
            "distributed_type: MULTI_GPU" if seen.tool == "Accelerate" else "remove fsdp: the Trainer then takes DDP",
            "torch/distributed/fsdp/_init_utils.py",
        )  # fmt: skip


def hybrid_on_one_host(seen: Fsdp) -> Iterator[Notice]:
    """Replicas of one."""
    gpus = seen.devices.gpus
    if seen.version == 1 and (seen.strategy or "").startswith("HYBRID") and gpus and gpus <= seen.devices.per_host:
        plain = "SHARD_GRAD_OP" if (seen.strategy or "").endswith("ZERO2") else "FULL_SHARD"
        yield seen.say_strategy(
            Severity.NOTE,
            f"On one host there is nothing to replicate over: {seen.strategy} is {plain} there, with one more group.",
            plain if seen.tool == "Accelerate" else plain.lower(), _STRATEGY,
        )  # fmt: skip


def whole_model(seen: Fsdp) -> Iterator[Notice]:
    """A model that is one unit."""
    said = seen.word("auto_wrap_policy")
    if said is not None and said not in POLICIES:
        yield seen.say(
            "auto_wrap_policy", Severity.ERROR, "There is no such policy, and the run does not start.",
            f"one of {', '.join(POLICIES)}", f"{_PLUGIN}.__post_init__",
        )  # fmt: skip
        return
    number = seen.section.number(seen.key("min_num_params"))
    nothing = seen.policy == "SIZE_BASED_WRAP" and (number == 0 or (number is None and seen.tool == "Transformers"))
    if seen.policy == "NO_WRAP" or nothing:
        why = "min_num_params of 0 switches the policy off" if nothing else "No auto-wrap policy"
        legacy = seen.tool == "Transformers" and seen.options and seen.version == 1
        yield seen.say(
            "min_num_params" if nothing else "auto_wrap_policy", Severity.WARNING,
            f"{why}: the model is one unit, gathered whole before anything is computed, so nothing overlaps and the "
            "peak holds all parameters.",
            f'"fsdp": "{" ".join((*seen.options, "auto_wrap"))}"' if legacy and not nothing
            else seen.write("auto_wrap_policy", POLICIES[0]),
            f"{_PLUGIN}.auto_wrap_policy; torch.distributed.fsdp",
        )  # fmt: skip


def wrap_keys(seen: Fsdp) -> Iterator[Notice]:
    """Keys of one wrap policy given to another."""
    classes, number = seen.has("transformer_layer_cls_to_wrap"), seen.section.number(seen.key("min_num_params"))
    if classes and number and seen.tool == "Transformers" and seen.word("auto_wrap_policy") is None:
        yield seen.say(
            "min_num_params", Severity.ERROR,
            "It excludes transformer_layer_cls_to_wrap: Transformers refuses both or ignores one.", "remove it",
            "transformers/training_args.py: _process_fsdp_args",
        )  # fmt: skip
    elif classes and seen.policy in ("SIZE_BASED_WRAP", "NO_WRAP") and seen.tool == "Accelerate":
        yield seen.say(
            "transformer_layer_cls_to_wrap", Severity.ERROR, f"Ignored: {seen.policy} does not look at classes.",
            seen.write("auto_wrap_policy", POLICIES[0]), f"{_PLUGIN}.__post_init__",
        )  # fmt: skip
    elif number and seen.policy in ("TRANSFORMER_BASED_WRAP", "NO_WRAP") and seen.tool == "Accelerate":
        yield seen.say(
            "min_num_params", Severity.ERROR, f"Ignored: {seen.policy} does not look at sizes.", "remove it",
            f"{_PLUGIN}.__post_init__",
        )  # fmt: skip


def backward_prefetch(seen: Fsdp) -> Iterator[Notice]:
    """Backward without prefetch, which is the tools' default, or with the weaker one."""
    value = seen.word("backward_prefetch")
    if seen.version != 1 or seen.strategy == "NO_SHARD":
        return
    if value in (None, "NO_PREFETCH"):
        default = f" (the default of {seen.tool})" if value is None else ""
        yield seen.say(
            "backward_prefetch", Severity.WARNING,
            f"No prefetch in backward{default}: each all-gather starts when its unit is reached and is waited for.",
            seen.write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH,
        )  # fmt: skip
    elif value == "BACKWARD_POST":
        yield seen.say(
            "backward_prefetch", Severity.NOTE,
            "Starts the next all-gather after the gradients of a unit: less overlap than BACKWARD_PRE, for the memory "
            "of one unit's parameters.", seen.write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH,
        )  # fmt: skip


def forward_prefetch(seen: Fsdp) -> Iterator[Notice]:
    """The prefetch that is taken for overlap."""
    if seen.version == 1 and seen.flag("forward_prefetch") is True:
        yield seen.say(
            "forward_prefetch", Severity.NOTE,
            "All-gathers overlap in forward without it. It only issues them earlier, which helps where the CPU is "
            "late, and needs the same order of modules in every step.", seen.write("forward_prefetch", "false"),
            "torch.distributed.fsdp.FullyShardedDataParallel: forward_prefetch",
        )  # fmt: skip


def rate_limiter(seen: Fsdp) -> Iterator[Notice]:
    """limit_all_gathers, which is taken for overlap."""
    flag = seen.flag("limit_all_gathers")
    if seen.version != 1 or seen.tool == "Accelerate" or flag is None:
        return
    source = "torch.distributed.fsdp.FullyShardedDataParallel: limit_all_gathers"
    if flag:
        yield seen.say(
            "limit_all_gathers", Severity.NOTE,
            "A rate limiter, not overlap: the CPU waits so that no more than two units are gathered at once. It is on "
            "by default.", "remove it", source,
        )  # fmt: skip
    else:
        yield seen.say(
            "limit_all_gathers", Severity.WARNING,
            "Off, the CPU may issue all-gathers without bound, each with memory of its own; it only helps where the "
            "CPU is the limit and memory is free.", seen.write("limit_all_gathers", "true"), source,
        )  # fmt: skip


SHARDING_RULES = (
    unknown_strategy, shard_grad_op, kept_whole, no_shard, hybrid_on_one_host, whole_model, wrap_keys,
    backward_prefetch, forward_prefetch, rate_limiter,
)  # fmt: skip


# -- fsdp memory -------------------------------------------------------------------------------------------------------
#
# Rules for FSDP's offload, loading, number types and recomputation.


def offload(seen: Fsdp) -> Iterator[Notice]:
    """What offloading to the CPU costs."""
    if not seen.offloads:
        return
    name = "cpu_offload" if seen.has("cpu_offload") else "offload_params"
    text = "Parameters and gradients cross PCIe in every forward and backward, and the optimizer runs on the CPU."
    instead = "remove it if the states fit: diag plan MODEL --gpus N"
    source = "torch.distributed.fsdp: CPUOffload, CPUOffloadPolicy"
    if seen.has(name):
        yield seen.say(name, Severity.WARNING, text, instead, source)
    else:
        yield seen.top.say("fsdp", Severity.WARNING, text, instead, source)


def loading(seen: Fsdp) -> Iterator[Notice]:
    """Loading on rank 0 only, without sending the weights to the others."""
    if seen.flag("cpu_ram_efficient_loading") is True and seen.flag("sync_module_states") is False:
        if seen.version == 2 and seen.tool == "Transformers":
            return  # newer ones do not look at it
        yield seen.say(
            "sync_module_states", Severity.ERROR,
            "With cpu_ram_efficient_loading only rank 0 has weights, so they must be sent: the run is refused.",
            seen.write("sync_module_states", "true") if seen.version == 1 else "remove it",
            "accelerate/utils/launch.py" if seen.tool == "Accelerate" else "transformers/training_args.py",
        )  # fmt: skip


def reduce_precision(seen: Fsdp) -> Iterator[Notice]:
    """Gradients that are summed in 16 bits because the parameters are."""
    if seen.mixed_precision in ("bf16", "fp16"):
        key = "mixed_precision" if seen.tool == "Accelerate" else seen.mixed_precision
        policy = "MixedPrecisionPolicy" if seen.version == 2 else "MixedPrecision"
        kind = "bfloat16" if seen.mixed_precision == "bf16" else "float16"
        yield seen.top.say(
            key, Severity.NOTE,
            f"Accelerate also reduces gradients in {seen.mixed_precision}; a sum over many ranks loses bits that fp32 "
            "keeps, at twice the bytes.",
            f"in code: mixed_precision_policy={policy}(param_dtype=torch.{kind}, reduce_dtype=torch.float32)",
            "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.set_mixed_precision",
        )  # fmt: skip


def full_precision(seen: Fsdp) -> Iterator[Notice]:
    """FSDP in 32 bits, which nobody asked for."""
    if seen.mixed_precision == "no":
        yield seen.top.say(
            "mixed_precision" if seen.tool == "Accelerate" else "bf16", Severity.WARNING,
            "Without mixed precision all-gathers and reduce-scatters carry 32 bits: twice the bytes"
            + ("; unless Accelerator(mixed_precision=...) says otherwise." if seen.tool == "Accelerate" else "."),
            "mixed_precision: bf16" if seen.tool == "Accelerate" else '"bf16": true',
            "torch.distributed.fsdp.MixedPrecisionPolicy: param_dtype is the type of the all-gather",
        )  # fmt: skip


def recomputation(seen: Fsdp) -> Iterator[Notice]:
    """Activation checkpointing in the Trainer and in FSDP."""
    if seen.tool != "Transformers" or seen.top.flag("gradient_checkpointing") is not True:
        return
    if seen.flag("activation_checkpointing") is True:
        yield seen.top.say(
            "gradient_checkpointing", Severity.ERROR,
            "Set here and as activation_checkpointing in fsdp_config: the Trainer refuses both.",
            '"gradient_checkpointing": false', "transformers/trainer.py",
        )  # fmt: skip
    else:
        yield seen.top.say(
            "gradient_checkpointing", Severity.WARNING,
            "With FSDP the Trainer's own checkpointing gathers parameters once more in backward.",
            f'"gradient_checkpointing": false and {seen.write("activation_checkpointing", "true")} in fsdp_config',
            "huggingface/transformers#30404",
        )  # fmt: skip


def single_gpu(seen: Fsdp) -> Iterator[Notice]:
    """FSDP with nobody to share with."""
    if seen.devices.gpus == 1 and not seen.offloads:
        yield seen.say(
            "version", Severity.NOTE, "On one GPU FSDP shards nothing: every state is whole.", "run without FSDP",
            "torch.distributed.fsdp",
        )  # fmt: skip


MEMORY_RULES = (offload, loading, reduce_precision, full_precision, recomputation, single_gpu)


# -- fsdp versions -----------------------------------------------------------------------------------------------------
#
# Rules for FSDP's two versions: keys and values of the one given to the other.

_ARGUMENTS = "transformers/training_args.py: _process_fsdp_args"
_API = "torchtitan docs/fsdp.md: FSDP1 <> FSDP2 API differences"


def _where(seen: Fsdp) -> str:
    return _PLUGIN if seen.tool == "Accelerate" else _ARGUMENTS


def fsdp1(seen: Fsdp) -> Iterator[Notice]:
    """FSDP1, which is on its way out."""
    if seen.version == 1:
        until = "; Transformers removes it in v5.20" if seen.tool == "Transformers" else ""
        given = "" if seen.version_given else " (the default here)"
        yield seen.say(
            "version", Severity.NOTE,
            f"FSDP1{given} is deprecated in favour of FSDP2{until}. The report lists the equivalent of each key.",
            seen.write("version", "2"), "PyTorch tutorial, Getting started with FSDP2; " + _where(seen),
        )  # fmt: skip


def version_not_given(seen: Fsdp) -> Iterator[Notice]:
    """Transformers' default, which has changed."""
    if seen.tool == "Transformers" and not seen.version_given:
        yield seen.say(
            "version", Severity.WARNING,
            "Without a version, older Transformers take FSDP1 and newer ones FSDP2, in which FSDP1's keys are ignored: "
            "speed and memory change with an update.", seen.write("version", "2"),
            "huggingface/transformers#45640; " + _ARGUMENTS,
        )  # fmt: skip


def no_such_version(seen: Fsdp) -> Iterator[Notice]:
    """A version that is neither."""
    if seen.version_given and seen.version not in (1, 2):
        yield seen.say("version", Severity.ERROR, "There are FSDP 1 and 2.", seen.write("version", "2"), _where(seen))


def strategy_in_fsdp2(seen: Fsdp) -> Iterator[Notice]:
    """FSDP1's sharding strategy where FSDP2 runs."""
    if seen.version != 2 or seen.strategy is None:
        return
    frees = "SHARD_GRAD_OP" not in seen.strategy and "ZERO2" not in seen.strategy
    if seen.tool == "Accelerate":
        yield seen.say_strategy(
            Severity.ERROR,
            "Ignored with FSDP2, which reshards after forward unless fsdp_reshard_after_forward says otherwise.",
            seen.write("reshard_after_forward", "true" if frees else "false"), _PLUGIN,
        )  # fmt: skip
    elif seen.strategy.startswith("HYBRID"):
        yield seen.say_strategy(
            Severity.ERROR, "A hybrid strategy is an option of FSDP1 only: newer Transformers refuse it with FSDP2.",
            "parallelism_config=ParallelismConfig(dp_replicate_size=HOSTS, dp_shard_size=GPUS OF A HOST)", _ARGUMENTS,
        )  # fmt: skip


def reshard_without_value(seen: Fsdp) -> Iterator[Notice]:
    """FSDP2 in Transformers without saying whether parameters are resharded."""
    if (
        seen.tool == "Transformers"
        and seen.version == 2
        and seen.version_given
        and not seen.has("reshard_after_forward")
    ):
        yield seen.say(
            "reshard_after_forward", Severity.WARNING,
            "Not said: older Transformers then take false for FSDP2, whatever `fsdp` says, which keeps every unit's "
            "parameters gathered from forward to backward; newer ones take true.",
            seen.write("reshard_after_forward", "true"), _ARGUMENTS,
        )  # fmt: skip


def reshard_of_other_version(seen: Fsdp) -> Iterator[Notice]:
    """reshard_after_forward with the value of the other version."""
    if not seen.has("reshard_after_forward"):
        return
    flag, word = seen.flag("reshard_after_forward"), seen.word("reshard_after_forward")
    if seen.version == 2 and flag is None:
        to = "false" if word in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD") else "true"
        yield seen.say(
            "reshard_after_forward", Severity.ERROR,
            "FSDP2 takes true or false here; a name of FSDP1's strategies ends in an error.",
            seen.write("reshard_after_forward", to), _PLUGIN,
        )  # fmt: skip
    elif seen.version == 1 and flag is not None:
        yield seen.say(
            "reshard_after_forward", Severity.ERROR,
            "FSDP1 takes a sharding strategy, not true or false: this has no effect.",
            seen.write("version", "2"), _PLUGIN,
        )  # fmt: skip
    elif (
        seen.version == 1
        and seen.tool == "Accelerate"
        and word in STRATEGIES
        and word != (seen.strategy or "FULL_SHARD")
    ):
        yield seen.say(
            "reshard_after_forward", Severity.ERROR,
            f"Ignored with FSDP1: `accelerate launch` also passes fsdp_sharding_strategy, by default FULL_SHARD, and "
            f"that wins. The run shards as {seen.strategy or 'FULL_SHARD'}.",
            f"fsdp_sharding_strategy: {word}",
            f"accelerate/commands/launch.py: --fsdp_sharding_strategy; {_PLUGIN}.__post_init__",
        )  # fmt: skip


def keys_without_use_in_fsdp2(seen: Fsdp) -> Iterator[Notice]:
    """FSDP1's other keys where FSDP2 runs: an error where they ask for what FSDP2 does not do."""
    if seen.version != 2:
        return
    for name in FSDP1_ONLY[1:]:
        if not seen.has(name) or (name == "limit_all_gathers" and seen.tool == "Accelerate"):
            continue
        value, flag = seen.word(name), seen.flag(name)
        same = {
            "backward_prefetch": value == "BACKWARD_PRE", "forward_prefetch": flag is False,
            "use_orig_params": flag is True, "sync_module_states": flag is True, "limit_all_gathers": True,
        }[name]  # fmt: skip
        yield seen.say(
            name, Severity.NOTE if same else Severity.ERROR,
            _AS_ALWAYS[name] if same else f"Ignored with FSDP2. {_AS_ALWAYS[name]}", "remove it", _API,
        )  # fmt: skip


_AS_ALWAYS = {
    "backward_prefetch": "FSDP2 always prefetches as BACKWARD_PRE does.",
    "forward_prefetch": "Neither tool can switch it on for FSDP2; in code, set_modules_to_forward_prefetch() does.",
    "use_orig_params": "FSDP2 always keeps the original parameters.",
    "sync_module_states": "FSDP2 needs none: cpu_ram_efficient_loading sends rank 0's weights by itself.",
    "limit_all_gathers": "FSDP2 needs no rate limiter: its memory is bounded without waiting on the CPU.",
}


def local_state(seen: Fsdp) -> Iterator[Notice]:
    """The state dict that FSDP2 does not have."""
    if seen.version == 2 and seen.word("state_dict_type") == "LOCAL_STATE_DICT":
        yield seen.say(
            "state_dict_type", Severity.ERROR, "FSDP2 has no LOCAL_STATE_DICT and refuses to start.",
            seen.write("state_dict_type", "SHARDED_STATE_DICT"), f"{_PLUGIN}.set_state_dict_type",
        )  # fmt: skip


def unknown_keys(seen: Fsdp) -> Iterator[Notice]:
    """Keys that neither version reads."""
    known = KNOWN[seen.tool]
    for key in seen.section.values:
        name = key.removeprefix("fsdp_")
        if name in known:
            continue
        near = nearest(name, known)
        if name == "limit_all_gathers":
            text = "`accelerate launch` does not pass it on: FSDP1's rate limiter stays on, and FSDP2 has none."
        else:
            text = f"{seen.tool} reads no such key and does not say so: it is ignored."
        yield seen.section.say(
            key, Severity.ERROR, text, key.replace(name, near) if near else "remove it",
            "accelerate/utils/launch.py" if seen.tool == "Accelerate" else _ARGUMENTS,
        )  # fmt: skip


VERSION_RULES = (
    fsdp1, version_not_given, no_such_version, strategy_in_fsdp2, reshard_without_value, reshard_of_other_version,
    keys_without_use_in_fsdp2, local_state, unknown_keys,
)  # fmt: skip


# -- fsdp equivalents --------------------------------------------------------------------------------------------------
#
# FSDP1's keys line by line, and what FSDP2 has for each: in the tool's configuration and in Python.

_REMOVE = "remove"
_OFFLOAD = "fully_shard(..., offload_policy=CPUOffloadPolicy())"
_BOTH = "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"


def equivalents(seen: Fsdp) -> tuple[Translation, ...]:
    """A row for every key of an FSDP1 configuration, in the order of the file; none for FSDP2."""
    return tuple(_rows(seen)) if seen.version == 1 else ()


def _rows(seen: Fsdp) -> Iterator[Translation]:
    for word in seen.options:
        config, python = _option(seen, word)
        yield Translation("fsdp", word, seen.top.line("fsdp"), config, python)
    if seen.tool == "Accelerate" and seen.mixed_precision in ("bf16", "fp16"):
        kind = "bfloat16" if seen.mixed_precision == "bf16" else "float16"
        yield Translation(
            "mixed_precision", seen.mixed_precision, seen.top.line("mixed_precision"), "as it is",
            f"fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.{kind}, reduce_dtype=torch.{kind}))",
        )  # fmt: skip
    for key in seen.section.values:
        name = key.removeprefix("fsdp_")
        if name in KNOWN[seen.tool] or name in FSDP1_ONLY:
            config, python = _key(seen, name)
            yield Translation(key, seen.section.shown(key), seen.section.line(key), config, python)
    if not seen.version_given:
        yield Translation(seen.key("version"), "1 (default)", None, seen.write("version", "2"), "fully_shard(...)")


def _option(seen: Fsdp, word: str) -> tuple[str, str]:
    if word == "offload":
        return seen.write("cpu_offload", "true"), _OFFLOAD
    if word == "auto_wrap":
        return seen.write("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"), _wrapped(seen)
    return _strategy(seen, word.upper())


def _strategy(seen: Fsdp, word: str) -> tuple[str, str]:
    if word == "NO_SHARD":
        plain = "distributed_type: MULTI_GPU" if seen.tool == "Accelerate" else "remove fsdp"
        return plain, "DistributedDataParallel(model)"
    frees = word not in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")
    config = seen.write("reshard_after_forward", "true" if frees else "false")
    python = f"fully_shard(..., reshard_after_forward={frees}"
    if word.startswith("HYBRID"):
        per_host, hosts = seen.devices.per_host, seen.devices.hosts
        sizes = (f"{hosts}" if hosts else "HOSTS", f"{per_host}")
        if seen.tool == "Accelerate":
            config += (
                f"; parallelism_config: {{parallelism_config_dp_replicate_size: {sizes[0]}, "
                f"parallelism_config_dp_shard_size: {sizes[1]}}}"
            )
        else:
            config += f"; ParallelismConfig(dp_replicate_size={sizes[0]}, dp_shard_size={sizes[1]})"
        python += f', mesh=init_device_mesh("cuda", ({sizes[0]}, {sizes[1]}), mesh_dim_names=("replicate", "shard"))'
    return config, f"{python})"


def _wrapped(seen: Fsdp) -> str:
    """Python that makes a unit of each block, and of what is left."""
    given = seen.section.values.get(seen.key("transformer_layer_cls_to_wrap"))
    names = given if isinstance(given, str) else ",".join(map(str, given)) if isinstance(given, list) else None
    kinds = f"({names.replace(',', ', ')})" if names and "," in names else names or "DecoderLayer"
    return (
        f"for module in model.modules():\n    if isinstance(module, {kinds}):\n        fully_shard(module)\n"
        "fully_shard(model)"
    )


def _key(seen: Fsdp, name: str) -> tuple[str, str]:
    """What the key becomes, and what a program of one's own writes."""
    word, flag = seen.word(name), seen.flag(name)
    if name in ("sharding_strategy", "reshard_after_forward"):
        numbered = {
            "1": "FULL_SHARD",
            "2": "SHARD_GRAD_OP",
            "3": "NO_SHARD",
            "4": "HYBRID_SHARD",
            "5": "HYBRID_SHARD_ZERO2",
        }
        said = word or seen.section.shown(seen.key(name))
        return _strategy(seen, numbered.get(said, said))
    if name == "version":
        return seen.write("version", "2"), "fully_shard(...) in place of FullyShardedDataParallel(...)"
    if name == "auto_wrap_policy" and word == "NO_WRAP":
        return seen.write(name, "TRANSFORMER_BASED_WRAP"), _wrapped(seen)
    if name == "auto_wrap_policy" and word == "SIZE_BASED_WRAP":
        return "as it is", "no such policy: call fully_shard() on the modules that are to be units"
    if name == "state_dict_type":
        full = word == "FULL_STATE_DICT"
        config = seen.write(name, "SHARDED_STATE_DICT") if word == "LOCAL_STATE_DICT" else "as it is"
        options = ", options=StateDictOptions(full_state_dict=True, cpu_offload=True)" if full else ""
        return config, f"get_model_state_dict(model{options})"
    if name in ("offload_params", "cpu_offload"):
        return "as it is", _OFFLOAD if flag else "nothing"
    if name == "forward_prefetch":
        return _REMOVE, "block.set_modules_to_forward_prefetch([next])" if flag else "nothing"
    if name == "backward_prefetch":
        return _REMOVE, "nothing: as BACKWARD_PRE, always"
    if name == "auto_wrap_policy" and seen.has("transformer_layer_cls_to_wrap"):
        return "as it is", "fully_shard() on each block, then on the model: see transformer_layer_cls_to_wrap"
    if name in ("transformer_layer_cls_to_wrap", "auto_wrap_policy"):
        return "as it is", _wrapped(seen)
    config, python = _FIXED.get(name, ("as it is", "nothing"))
    return config, python if flag is not False else "nothing"


_FIXED = {
    "limit_all_gathers": (_REMOVE, "nothing: memory is bounded without a limiter"),
    "use_orig_params": (_REMOVE, "nothing: always so"),
    "sync_module_states": (_REMOVE, f"set_model_state_dict(model, state, options={_BOTH})"),
    "cpu_ram_efficient_loading": (
        "as it is",
        f"build on the meta device, fully_shard(), to_empty(), then set_model_state_dict(..., options={_BOTH})",
    ),
    "activation_checkpointing": ("as it is", "checkpoint_wrapper(block) before fully_shard(block)"),
    "min_num_params": ("as it is", "no size-based policy: choose modules"),
    "ignored_modules": ("as it is", "ignored_params=set(of their parameters)"),
}
