"""FSDP as Accelerate and Transformers configure it, and the rules for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from .model import ERROR, NOTE, WARNING, Devices, Notice, NoticeSeverity, Row, Section, Translation, nearest, rule

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
STRATEGY, TOP = "the strategy", "top:"  # of `Fsdp.say`
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
    """``tool``: Accelerate or Transformers. ``section``: its fsdp_config. ``top``: the table around it. ``version``:
    the one in effect; ``version_given``: whether the file sets it. ``strategy``: of FSDP1, in capitals;
    ``strategy_key``: its path from the top. ``options``: words of Transformers' ``fsdp``."""

    tool: str
    section: Section
    top: Section
    version: int
    version_given: bool
    strategy: str | None
    strategy_key: str
    options: tuple[str, ...]
    mixed_precision: str | None  # bf16, fp16, fp8 or no; None: not set
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

    def say(self, name: str, severity: NoticeSeverity, text: str, instead: str, source: str) -> Notice:
        """A notice about a key of the fsdp_config, about ``STRATEGY``, or about a key of the table around it, with the
        prefix ``TOP``."""
        if name == STRATEGY or name.startswith(TOP):
            key = self.strategy_key if name == STRATEGY else name.removeprefix(TOP)
            return self.top.say(key, severity, text, instead, source)
        return self.section.say(self.key(name), severity, text, instead, source)

    def write(self, name: str, value: str) -> str:
        """``key: value`` as the file's syntax has it."""
        return written(self.section, self.key(name), value)

    @property
    def policy(self) -> str | None:
        """How the model is divided into units: one of POLICIES, or the file's own word for it."""
        if (word := self.word("auto_wrap_policy")) is not None:
            return word
        if self.tool == "Accelerate":
            return "NO_WRAP"
        if self.version == 2 and not self.options:  # `fsdp: true`, which came with this default
            return "TRANSFORMER_BASED_WRAP"
        if "auto_wrap" not in self.options:
            return "NO_WRAP" if self.options else None  # a bare fsdp_config: the other file sets it
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


_STRATEGY = "torch.distributed.fsdp.ShardingStrategy"
_PREFETCH = "torch.distributed.fsdp.BackwardPrefetch"
_PLUGIN = "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"
_ARGUMENTS = "transformers/training_args.py: _process_fsdp_args"
_API = "torchtitan docs/fsdp.md: FSDP1 <> FSDP2 API differences"
_LIMITER = "torch.distributed.fsdp.FullyShardedDataParallel: limit_all_gathers"
_NUMBERED = dict(zip("12345", STRATEGIES, strict=True))  # as Accelerate also takes them


def _write(name: str, value: str) -> Callable[[Fsdp], str]:
    return lambda seen: seen.write(name, value)


def _tool(accelerate: str, transformers: str) -> Callable[[Fsdp], str]:
    return lambda seen: accelerate if seen.tool == "Accelerate" else transformers


_where = _tool(_PLUGIN, _ARGUMENTS)


def _least_parameters(seen: Fsdp) -> float | None:
    return seen.section.number(seen.key("min_num_params"))


def _no_size(seen: Fsdp) -> bool:
    """Whether a size-based policy is switched off by its size."""
    number = _least_parameters(seen)
    return seen.policy == "SIZE_BASED_WRAP" and (number == 0 or (number is None and seen.tool == "Transformers"))


def _policy_is_known(seen: Fsdp) -> bool:
    return seen.word("auto_wrap_policy") in (None, *POLICIES)


def _two_ways_to_wrap(seen: Fsdp) -> bool:
    named = seen.has("transformer_layer_cls_to_wrap") and _least_parameters(seen)
    return bool(named and seen.tool == "Transformers" and seen.word("auto_wrap_policy") is None)


def _reduce_in_code(seen: Fsdp) -> str:
    policy = "MixedPrecisionPolicy" if seen.version == 2 else "MixedPrecision"
    kind = "bfloat16" if seen.mixed_precision == "bf16" else "float16"
    return f"in code: mixed_precision_policy={policy}(param_dtype=torch.{kind}, reduce_dtype=torch.float32)"


def _plain(seen: Fsdp) -> str:
    """A hybrid strategy without its replicas."""
    return "SHARD_GRAD_OP" if (seen.strategy or "").endswith("ZERO2") else "FULL_SHARD"


def _frees(strategy: str | None) -> bool:
    """Whether a strategy of FSDP1 frees parameters after forward."""
    return "SHARD_GRAD_OP" not in (strategy or "") and "ZERO2" not in (strategy or "")


def _has_reshard(seen: Fsdp) -> bool:
    return seen.has("reshard_after_forward")


def _prefetches_in_backward(seen: Fsdp) -> bool:
    return seen.version == 1 and seen.strategy != "NO_SHARD"


def _checkpoints_twice(seen: Fsdp) -> bool:
    return seen.tool == "Transformers" and seen.top.flag("gradient_checkpointing") is True


# fmt: off
unknown_strategy = rule(
    Row(STRATEGY, ERROR,
        lambda f: f.version == 1 and f.strategy is not None and f.strategy not in (*STRATEGIES, *_NUMBERED),
        "There is no such sharding strategy.", f"one of {', '.join(STRATEGIES)}", _STRATEGY),
)
shard_grad_op = rule(
    Row(STRATEGY, NOTE, lambda f: f.version == 1 and f.strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"),
        "Not ZeRO-2: parameters are sharded too, gathered before forward, and stay whole until backward has used "
        "them. It saves backward's all-gather and costs the whole model in 16 bits at the peak.",
        "FULL_SHARD, where that does not fit", _STRATEGY),
)
kept_whole = rule(
    Row("reshard_after_forward", NOTE, lambda f: f.version == 2 and f.flag("reshard_after_forward") is False,
        "Every unit's parameters stay gathered from forward to backward: one all-gather less, and the whole model "
        "in 16 bits at the peak.", _write("reshard_after_forward", "true"),
        "torch.distributed.fsdp.fully_shard: reshard_after_forward"),
)
no_shard = rule(
    Row(STRATEGY, NOTE, lambda f: f.version == 1 and f.strategy == "NO_SHARD",
        "NO_SHARD shards nothing and is deprecated in torch in favour of DistributedDataParallel.",
        _tool("distributed_type: MULTI_GPU", "remove fsdp: the Trainer then takes DDP"),
        "torch/distributed/fsdp/_init_utils.py"),
)
hybrid_on_one_host = rule(
    Row(STRATEGY, NOTE,
        lambda f: f.version == 1 and (f.strategy or "").startswith("HYBRID")
        and f.devices.gpus and f.devices.gpus <= f.devices.per_host,
        lambda f: f"On one host there is nothing to replicate over: {f.strategy} is {_plain(f)} there, with one more "
        "group.", lambda f: _plain(f) if f.tool == "Accelerate" else _plain(f).lower(), _STRATEGY),
)
whole_model = rule(
    Row("auto_wrap_policy", ERROR, lambda f: not _policy_is_known(f),
        "There is no such policy: the run fails at the start.", f"one of {', '.join(POLICIES)}",
        f"{_PLUGIN}.__post_init__"),
    Row(lambda f: "min_num_params" if _no_size(f) else "auto_wrap_policy", WARNING,
        lambda f: _policy_is_known(f) and (f.policy == "NO_WRAP" or _no_size(f)),
        lambda f: ("min_num_params of 0 switches the policy off" if _no_size(f) else "No auto-wrap policy")
        + ": the model is one unit, gathered whole before anything is computed, so nothing overlaps and the peak holds "
        "all parameters.",
        lambda f: f'"fsdp": "{" ".join((*f.options, "auto_wrap"))}"'
        if f.tool == "Transformers" and f.options and f.version == 1 and not _no_size(f)
        else f.write("auto_wrap_policy", POLICIES[0]),
        f"{_PLUGIN}.auto_wrap_policy; torch.distributed.fsdp"),
)
wrap_keys = rule(
    Row("min_num_params", ERROR, _two_ways_to_wrap,
        "It excludes transformer_layer_cls_to_wrap: Transformers refuses both or ignores one.", "remove it",
        "transformers/training_args.py: _process_fsdp_args"),
    Row("transformer_layer_cls_to_wrap", ERROR,
        lambda f: f.tool == "Accelerate" and f.has("transformer_layer_cls_to_wrap")
        and f.policy in ("SIZE_BASED_WRAP", "NO_WRAP"),
        lambda f: f"Ignored: {f.policy} does not look at classes.", _write("auto_wrap_policy", POLICIES[0]),
        f"{_PLUGIN}.__post_init__"),
    Row("min_num_params", ERROR,
        lambda f: f.tool == "Accelerate" and _least_parameters(f)
        and f.policy in ("TRANSFORMER_BASED_WRAP", "NO_WRAP")
        and not (f.policy == "NO_WRAP" and f.has("transformer_layer_cls_to_wrap")),
        lambda f: f"Ignored: {f.policy} does not look at sizes.", "remove it", f"{_PLUGIN}.__post_init__"),
)
backward_prefetch = rule(
    Row("backward_prefetch", WARNING,
        lambda f: _prefetches_in_backward(f) and f.word("backward_prefetch") in (None, "NO_PREFETCH"),
        lambda f: "No prefetch in backward"
        + (f" (the default of {f.tool})" if f.word("backward_prefetch") is None else "")
        + ": each all-gather starts when its unit is reached and is exposed (not overlapped).",
        _write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH),
    Row("backward_prefetch", NOTE,
        lambda f: _prefetches_in_backward(f) and f.word("backward_prefetch") == "BACKWARD_POST",
        "Starts the next all-gather after the gradients of a unit: less overlap than BACKWARD_PRE, for the memory of "
        "one unit's parameters.", _write("backward_prefetch", "BACKWARD_PRE"), _PREFETCH),
)
forward_prefetch = rule(
    Row("forward_prefetch", NOTE, lambda f: f.version == 1 and f.flag("forward_prefetch") is True,
        "All-gathers overlap in forward without it. It only issues them earlier, which helps where the CPU is late, "
        "and needs the same order of modules in every step.", _write("forward_prefetch", "false"),
        "torch.distributed.fsdp.FullyShardedDataParallel: forward_prefetch"),
)
rate_limiter = rule(
    Row("limit_all_gathers", NOTE,
        lambda f: f.version == 1 and f.tool != "Accelerate" and f.flag("limit_all_gathers") is True,
        "A rate limiter, not overlap: the CPU waits so that no more than two units are gathered at once. It is on by "
        "default.", "remove it", _LIMITER),
    Row("limit_all_gathers", WARNING,
        lambda f: f.version == 1 and f.tool != "Accelerate" and f.flag("limit_all_gathers") is False,
        "When off, the CPU may issue any number of all-gathers, each with its own memory; it only helps where the CPU "
        "is the bottleneck and memory is free.", _write("limit_all_gathers", "true"), _LIMITER),
)
SHARDING_RULES = (
    unknown_strategy, shard_grad_op, kept_whole, no_shard, hybrid_on_one_host, whole_model, wrap_keys,
    backward_prefetch, forward_prefetch, rate_limiter,
)

offload = rule(
    Row(lambda f: "cpu_offload" if f.has("cpu_offload") else "offload_params" if f.has("offload_params") else TOP
        + "fsdp", WARNING, lambda f: f.offloads,
        "Parameters and gradients cross PCIe in every forward and backward, and the optimizer runs on the CPU.",
        "remove it if the states fit: diag plan MODEL --gpus N",
        "torch.distributed.fsdp: CPUOffload, CPUOffloadPolicy"),
)
loading = rule(
    Row("sync_module_states", ERROR,
        lambda f: f.flag("cpu_ram_efficient_loading") is True and f.flag("sync_module_states") is False
        and not (f.version == 2 and f.tool == "Transformers"),  # newer versions ignore it
        "With cpu_ram_efficient_loading only rank 0 has weights, so they must be sent: the run is refused.",
        lambda f: f.write("sync_module_states", "true") if f.version == 1 else "remove it",
        _tool("accelerate/utils/launch.py", "transformers/training_args.py")),
)
reduce_precision = rule(
    Row(lambda f: TOP + ("mixed_precision" if f.tool == "Accelerate" else f.mixed_precision), NOTE,
        lambda f: f.mixed_precision in ("bf16", "fp16"),
        lambda f: f"Accelerate also reduces gradients in {f.mixed_precision}; a sum over many ranks loses bits that "
        "fp32 keeps, at twice the bytes.", _reduce_in_code,
        "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.set_mixed_precision"),
)
full_precision = rule(
    Row(_tool(TOP + "mixed_precision", TOP + "bf16"), WARNING, lambda f: f.mixed_precision == "no",
        lambda f: "Without mixed precision all-gathers and reduce-scatters carry 32 bits: twice the bytes"
        + ("; unless Accelerator(mixed_precision=...) says otherwise." if f.tool == "Accelerate" else "."),
        _tool("mixed_precision: bf16", '"bf16": true'),
        "torch.distributed.fsdp.MixedPrecisionPolicy: param_dtype is the type of the all-gather"),
)
recomputation = rule(
    Row(TOP + "gradient_checkpointing", ERROR,
        lambda f: _checkpoints_twice(f) and f.flag("activation_checkpointing") is True,
        "Set here and as activation_checkpointing in fsdp_config: the Trainer refuses both.",
        '"gradient_checkpointing": false', "transformers/trainer.py"),
    Row(TOP + "gradient_checkpointing", WARNING,
        lambda f: _checkpoints_twice(f) and f.flag("activation_checkpointing") is not True,
        "With FSDP the Trainer's own checkpointing gathers parameters once more in backward.",
        lambda f: f'"gradient_checkpointing": false and {f.write("activation_checkpointing", "true")} in fsdp_config',
        "huggingface/transformers#30404"),
)
single_gpu = rule(
    Row("version", NOTE, lambda f: f.devices.gpus == 1 and not f.offloads,
        "On one GPU FSDP shards nothing.", "run without FSDP", "torch.distributed.fsdp"),
)
MEMORY_RULES = (offload, loading, reduce_precision, full_precision, recomputation, single_gpu)

fsdp1 = rule(
    Row("version", NOTE, lambda f: f.version == 1,
        lambda f: f"FSDP1{'' if f.version_given else ' (the default here)'} is deprecated in favour of FSDP2"
        + ("; Transformers removes it in v5.20" if f.tool == "Transformers" else "")
        + ". The report lists the equivalent of each key.", _write("version", "2"),
        lambda f: "PyTorch tutorial, Getting started with FSDP2; " + _where(f)),
)
version_not_given = rule(
    Row("version", WARNING, lambda f: f.tool == "Transformers" and not f.version_given,
        "Without a version, older Transformers take FSDP1 and newer ones FSDP2, in which FSDP1's keys are ignored: "
        "speed and memory change with an update.", _write("version", "2"),
        "huggingface/transformers#45640; " + _ARGUMENTS),
)
no_such_version = rule(
    Row("version", ERROR, lambda f: f.version_given and f.version not in (1, 2),
        "The FSDP version must be 1 or 2.", _write("version", "2"), _where),
)
strategy_in_fsdp2 = rule(
    Row(STRATEGY, ERROR, lambda f: f.version == 2 and f.strategy is not None and f.tool == "Accelerate",
        "Ignored with FSDP2, which reshards after forward unless fsdp_reshard_after_forward is false.",
        lambda f: f.write("reshard_after_forward", "true" if _frees(f.strategy) else "false"), _PLUGIN),
    Row(STRATEGY, ERROR,
        lambda f: f.version == 2 and f.tool != "Accelerate" and (f.strategy or "").startswith("HYBRID"),
        "A hybrid strategy is an option of FSDP1 only: newer Transformers refuse it with FSDP2.",
        "parallelism_config=ParallelismConfig(dp_replicate_size=HOSTS, dp_shard_size=GPUS OF A HOST)", _ARGUMENTS),
)
reshard_without_value = rule(
    Row("reshard_after_forward", WARNING,
        lambda f: f.tool == "Transformers" and f.version == 2 and f.version_given and not _has_reshard(f),
        "Not given: older Transformers then take false for FSDP2, whatever `fsdp` is, which keeps every unit's "
        "parameters gathered from forward to backward; newer ones take true.",
        _write("reshard_after_forward", "true"), _ARGUMENTS),
)
reshard_of_other_version = rule(
    Row("reshard_after_forward", ERROR,
        lambda f: f.version == 2 and _has_reshard(f) and f.flag("reshard_after_forward") is None,
        "FSDP2 takes true or false here; a name of FSDP1's strategies ends in an error.",
        lambda f: f.write("reshard_after_forward", "false" if f.word("reshard_after_forward")
                          in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD") else "true"), _PLUGIN),
    Row("reshard_after_forward", ERROR,
        lambda f: f.version == 1 and _has_reshard(f) and f.flag("reshard_after_forward") is not None,
        "FSDP1 takes a sharding strategy, not true or false: this has no effect.", _write("version", "2"), _PLUGIN),
    Row("reshard_after_forward", ERROR,
        lambda f: f.version == 1 and f.tool == "Accelerate" and f.flag("reshard_after_forward") is None
        and f.word("reshard_after_forward") in STRATEGIES
        and f.word("reshard_after_forward") != (f.strategy or "FULL_SHARD"),
        lambda f: "Ignored with FSDP1: `accelerate launch` also passes fsdp_sharding_strategy, by default FULL_SHARD, "
        f"and that wins. The run shards as {f.strategy or 'FULL_SHARD'}.",
        lambda f: f"fsdp_sharding_strategy: {f.word('reshard_after_forward')}",
        f"accelerate/commands/launch.py: --fsdp_sharding_strategy; {_PLUGIN}.__post_init__"),
)
local_state = rule(
    Row("state_dict_type", ERROR, lambda f: f.version == 2 and f.word("state_dict_type") == "LOCAL_STATE_DICT",
        "FSDP2 has no LOCAL_STATE_DICT and refuses to start.", _write("state_dict_type", "SHARDED_STATE_DICT"),
        f"{_PLUGIN}.set_state_dict_type"),
)
# fmt: on


def keys_without_use_in_fsdp2(seen: Fsdp) -> Iterator[Notice]:
    """FSDP1's other keys with FSDP2: an error where they ask for something that FSDP2 does not do."""
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
            name, NoticeSeverity.NOTE if same else NoticeSeverity.ERROR,
            _AS_ALWAYS[name] if same else f"Ignored with FSDP2. {_AS_ALWAYS[name]}", "remove it", _API,
        )  # fmt: skip


_AS_ALWAYS = {
    "backward_prefetch": "FSDP2 always prefetches as BACKWARD_PRE does.",
    "forward_prefetch": "Neither tool can switch it on for FSDP2; in code, set_modules_to_forward_prefetch() does.",
    "use_orig_params": "FSDP2 always keeps the original parameters.",
    "sync_module_states": "FSDP2 needs none: cpu_ram_efficient_loading sends rank 0's weights by itself.",
    "limit_all_gathers": "FSDP2 needs no rate limiter: its memory is bounded without waiting on the CPU.",
}


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
            text = f"{seen.tool} does not know this key: it is silently ignored."
        yield seen.section.say(
            key, NoticeSeverity.ERROR, text, key.replace(name, near) if near else "remove it",
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
            "mixed_precision", seen.mixed_precision, seen.top.line("mixed_precision"), "unchanged",
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
    """Python that makes a unit of each block, and one of the rest."""
    classes = seen.section.values.get(seen.key("transformer_layer_cls_to_wrap"))
    names = classes if isinstance(classes, str) else ",".join(map(str, classes)) if isinstance(classes, list) else None
    kinds = f"({names.replace(',', ', ')})" if names and "," in names else names or "DecoderLayer"
    return (
        f"for module in model.modules():\n    if isinstance(module, {kinds}):\n        fully_shard(module)\n"
        "fully_shard(model)"
    )


def _key(seen: Fsdp, name: str) -> tuple[str, str]:
    """The key's equivalent in the configuration, and in a Python program."""
    word, flag = seen.word(name), seen.flag(name)
    if name in ("sharding_strategy", "reshard_after_forward"):
        strategy = word or seen.section.shown(seen.key(name))
        return _strategy(seen, _NUMBERED.get(strategy, strategy))
    if name == "version":
        return seen.write("version", "2"), "fully_shard(...) in place of FullyShardedDataParallel(...)"
    if name == "auto_wrap_policy" and word == "NO_WRAP":
        return seen.write(name, "TRANSFORMER_BASED_WRAP"), _wrapped(seen)
    if name == "auto_wrap_policy" and word == "SIZE_BASED_WRAP":
        return "unchanged", "no such policy: call fully_shard() on the modules that are to be units"
    if name == "state_dict_type":
        full = word == "FULL_STATE_DICT"
        config = seen.write(name, "SHARDED_STATE_DICT") if word == "LOCAL_STATE_DICT" else "unchanged"
        options = ", options=StateDictOptions(full_state_dict=True, cpu_offload=True)" if full else ""
        return config, f"get_model_state_dict(model{options})"
    if name in ("offload_params", "cpu_offload"):
        return "unchanged", _OFFLOAD if flag else "nothing"
    if name == "forward_prefetch":
        return _REMOVE, "block.set_modules_to_forward_prefetch([next])" if flag else "nothing"
    if name == "backward_prefetch":
        return _REMOVE, "nothing: FSDP2 always prefetches as BACKWARD_PRE does"
    if name == "auto_wrap_policy" and seen.has("transformer_layer_cls_to_wrap"):
        return "unchanged", "fully_shard() on each block, then on the model: see transformer_layer_cls_to_wrap"
    if name in ("transformer_layer_cls_to_wrap", "auto_wrap_policy"):
        return "unchanged", _wrapped(seen)
    config, python = _FIXED.get(name, ("unchanged", "nothing"))
    return config, python if flag is not False else "nothing"


_FIXED = {
    "limit_all_gathers": (_REMOVE, "nothing: memory is bounded without a limiter"),
    "use_orig_params": (_REMOVE, "nothing: always the case"),
    "sync_module_states": (_REMOVE, f"set_model_state_dict(model, state, options={_BOTH})"),
    "cpu_ram_efficient_loading": (
        "unchanged",
        f"build on the meta device, fully_shard(), to_empty(), then set_model_state_dict(..., options={_BOTH})",
    ),
    "activation_checkpointing": ("unchanged", "checkpoint_wrapper(block) before fully_shard(block)"),
    "min_num_params": ("unchanged", "no size-based policy: choose modules"),
    "ignored_modules": ("unchanged", "ignored_params=set(of their parameters)"),
}
