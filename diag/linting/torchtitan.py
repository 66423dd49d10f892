"""A torchtitan configuration with newer or older names, and the rules for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from diag.linting.policy import LINTING
from diag.model.axes import bubble

from .document import Document
from .model import ERROR, NOTE, WARNING, Devices, Notice, NoticeSeverity, Row, Section, nearest, rule, tables_of

# -- torchtitan keys ---------------------------------------------------------------------------------------------------
#
# The tables and keys of torchtitan's TOML: the last names, from before February 2026, and what older names became.

TABLES = tables_of("torchtitan")

# Older keys and the last name of each; "" where there is none.
MOVED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.enable_loss_parallel": "parallelism.disable_loss_parallel, inverted",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "experimental.enable_compiled_autograd": "",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_schedule_csv": "parallelism.pipeline_parallel_schedule_csv",
    "experimental.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "parallelism.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "parallelism.enable_compiled_autograd": "",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "checkpoint.interval_type": "",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "memory_estimation.enabled": "memory_estimation.enable",
    "metrics.enable_color_printing": "metrics.disable_color_printing, inverted",
    "metrics.rank_0_only": "metrics.save_for_all_ranks, inverted",
    "model.tokenizer_path": "model.hf_assets_path",
    "model.norm_type": "",
    "optimizer.fused": "optimizer.implementation",
    "job.print_args": "job.print_config",
    "job.use_for_integration_test": "",
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
}


# The keys of each degree, newest first.
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
    """``degrees``: as set or by default; ``keys``: the key of each, set or not."""

    top: Section
    degrees: dict[str, int]
    keys: dict[str, str]
    local_batch: int
    local_batch_key: str
    devices: Devices

    def table(self, name: str) -> Section:
        return self.top.within(name)

    def say(self, key: str, severity: NoticeSeverity, text: str, instead: str, source: str) -> Notice:
        return self.top.say(key, severity, text, instead, source)

    @property
    def sharded(self) -> int | None:
        """The number of ranks over which parameters are sharded; None if unknown."""
        shard, others = self.degrees["dp_shard"], self.others
        if shard != -1:
            return shard
        return self.devices.gpus // others if self.devices.gpus is not None and others else None

    @property
    def others(self) -> int:
        """The product of all degrees that make up the world, except that of sharding."""
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


def torchtitan_of(document: Document, devices: Devices) -> Titan:
    top = Section(document, (), document.values)
    degrees, keys = {}, {}
    for name, places in _PLACES.items():
        keys[name] = next((place for place in places if _value(top, place) is not None), places[0])
        degree = _value(top, keys[name])
        degrees[name] = _DEFAULT.get(name, 1) if degree is None else degree
    old = "training.batch_size"
    key = old if _value(top, old) is not None else "training.local_batch_size"
    batch = _value(top, key)
    return Titan(top, degrees, keys, 8 if batch is None else batch, key, devices)


def _value(top: Section, place: str) -> int | None:
    table, key = place.split(".")
    return top.within(table).whole(key)


# -- torchtitan degrees ------------------------------------------------------------------------------------------------
#
# Rules for torchtitan's degrees, micro-batches and batches: their products, and idle time.

_DIMS = "torchtitan/distributed/parallel_dims.py"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
_ONE_STAGE_A_RANK = ("1f1b", "gpipe")


def degrees(seen: Titan) -> Iterator[Notice]:
    """Invalid degrees, and degrees whose product is not the number of GPUs."""
    for name, degree in seen.degrees.items():
        if degree < 1 and not (name == "dp_shard" and degree == -1):
            yield seen.say(
                seen.keys[name], NoticeSeverity.ERROR,
                f"{degree} is not a valid degree: 1 disables an axis, and only data_parallel_shard_degree may be -1 "
                "(the remaining GPUs).", "1", f"{_DIMS}: _validate",
            )  # fmt: skip
            return
    gpus, shard, others = seen.devices.gpus, seen.degrees["dp_shard"], seen.others
    if gpus is None:
        return
    axes = " x ".join(f"{name} {seen.degrees[name]}" for name in ("dp_replicate", "cp", "tp", "pp"))
    if shard == -1 and (gpus % others or gpus < others):
        yield seen.say(
            seen.keys["dp_shard"], NoticeSeverity.ERROR,
            f"{axes} = {others} does not divide {gpus} GPUs: no integer sharding degree is left.",
            f"degrees whose product divides {gpus}", f"{_DIMS}: _validate",
        )  # fmt: skip
    elif shard != -1 and shard * others != gpus:
        yield seen.say(
            seen.keys["dp_shard"], ERROR, f"{axes} x dp_shard {shard} = {shard * others}, not {gpus} GPUs.",
            "data_parallel_shard_degree = -1" if gpus % others == 0 else f"degrees whose product is {gpus}",
            f"{_DIMS}: _validate",
        )  # fmt: skip


def _async_uncompiled(table: str) -> Callable[[Titan], object]:
    return lambda titan: titan.table(table).flag("enable_async_tensor_parallel") and not titan.compiles


# fmt: off
experts = rule(
    Row(lambda t: t.keys["etp"], ERROR, lambda t: t.degrees["ep"] > 1 and t.degrees["etp"] not in (1, t.degrees["tp"]),
        "It is 1 or the tensor-parallel degree; anything else is refused.",
        lambda t: f"expert_tensor_parallel_degree = {t.degrees['tp']}", f"{_DIMS}: _validate"),
)
tensor_parallel = rule(
    Row(lambda t: t.keys["tp"], WARNING, lambda t: t.degrees["tp"] > t.devices.per_host,
        lambda t: f"Over more than the {t.devices.per_host} GPUs of a host: every layer has its collectives, which "
        "then use the slower links between hosts.", lambda t: f"tensor_parallel_degree = {t.devices.per_host}",
        "Megatron-LM (arXiv 2104.04473), takeaway 1"),
    *(Row(f"{table}.enable_async_tensor_parallel", ERROR, _async_uncompiled(table),
          "It requires a compiled model and is refused without it.", "[compile] enable = true",
          "torchtitan/distributed/tensor_parallel.py: maybe_enable_async_tp")
      for table in ("parallelism", "experimental")),
)
# fmt: on


def sequence(seen: Titan) -> Iterator[Notice]:
    """A sequence length that the axes cannot divide."""
    length = seen.table("training").whole("seq_len") or 2048
    divisor = seen.degrees["tp"] * 2 * seen.degrees["cp"]
    if (seen.degrees["tp"] > 1 or seen.degrees["cp"] > 1) and divisor > 0 and length % divisor:
        yield seen.say(
            "training.seq_len", NoticeSeverity.ERROR,
            f"{length} is not a multiple of tp x 2 cp = {divisor}: models refuse it.",
            f"seq_len = {max(1, length // divisor) * divisor}", f"{_DIMS}: seq_len_divisor",
        )  # fmt: skip


# fmt: off
hybrid_on_one_host = rule(
    Row(lambda t: t.keys["dp_replicate"], NOTE,
        lambda t: t.devices.gpus and t.devices.gpus <= t.devices.per_host and t.degrees["dp_replicate"] > 1
        and (t.sharded or 0) > 1,
        lambda t: f"HSDP replicates over hosts; on one it only holds {t.degrees['dp_replicate']} copies of every "
        "state.", "data_parallel_replicate_degree = 1", "torch.distributed.fsdp.ShardingStrategy: HYBRID_SHARD"),
)
# fmt: on


def pipeline(seen: Titan) -> Iterator[Notice]:
    """Too few micro-batches for the stages of a pipeline."""
    stages = seen.degrees["pp"]
    table = seen.table("parallelism")
    size = table.whole("pipeline_parallel_microbatch_size") or 1
    if stages <= 1 or size < 1 or seen.local_batch < 1:
        return
    if seen.local_batch % size:
        yield seen.say(
            "parallelism.pipeline_parallel_microbatch_size", NoticeSeverity.ERROR,
            f"{size} does not divide the local batch of {seen.local_batch}: refused.",
            "pipeline_parallel_microbatch_size = 1", _PIPELINE,
        )  # fmt: skip
        return
    old = seen.table("experimental").whole("pipeline_parallel_microbatches")
    count = old or seen.local_batch // size
    kind = table.word("pipeline_parallel_schedule") or "1F1B"
    idle = bubble(stages, count)
    enough = round((stages - 1) * (1 - LINTING.bubble_share) / LINTING.bubble_share)
    batches = f"{count} micro-batch{'es' * (count != 1)} for {stages} stages"
    if count < stages and kind.lower() in ("1f1b", "dualpipev"):
        yield seen.say(
            seen.local_batch_key, ERROR, f"{batches}: {kind} needs at least as many as stages and is refused.",
            f"local_batch_size = {stages * size}, better {enough * size}", "torch/distributed/pipelining/schedules.py",
        )  # fmt: skip
    elif kind.lower() in _ONE_STAGE_A_RANK and idle > LINTING.bubble_share:
        yield seen.say(
            seen.local_batch_key, NoticeSeverity.WARNING,
            f"{batches} leave {idle:.0%} of the time idle: (p-1)/(m+p-1).",
            f"local_batch_size = {enough * size} for {LINTING.bubble_share:.0%}, or an interleaved schedule",
            "GPipe (arXiv 1811.06965), Megatron-LM (arXiv 2104.04473) section 2.2",
        )  # fmt: skip


def global_batch(seen: Titan) -> Iterator[Notice]:
    """A global batch size that is not a multiple of one micro-step's."""
    whole, shard = seen.table("training").whole("global_batch_size"), seen.sharded
    if whole is None or whole < 0 or shard is None or seen.local_batch < 1 or shard < 1:
        return
    each = seen.local_batch * seen.degrees["dp_replicate"] * shard
    if each > 0 and (whole == 0 or whole % each):
        yield seen.say(
            "training.global_batch_size", NoticeSeverity.ERROR,
            f"{whole} is not a multiple of {seen.local_batch} a rank x {each // seen.local_batch} data-parallel ranks "
            f"= {each}.", f"global_batch_size = {max(1, whole // each) * each}", "torchtitan/train.py",
        )  # fmt: skip


DEGREE_RULES = (degrees, experts, tensor_parallel, sequence, hybrid_on_one_host, pipeline, global_batch)


# -- torchtitan training -----------------------------------------------------------------------------------------------
#
# Rules for torchtitan's memory, recomputation, number types and checkpoints, and for the names of its keys.

_CONFIG = "torchtitan/config/job_config.py (v0.2.2)"
_POLICIES = ("default", "always", "never")
_MODES = ("selective", "full", "memory_budget", "none")


# fmt: off
no_more_toml = rule(
    Row("", NOTE, lambda _: True, "torchtitan after v0.2.2 reads no TOML: configurations are Python functions.",
        "a function in the model's config_registry.py", "pytorch/torchtitan#2386"),
)
# fmt: on


def moved_keys(seen: Titan) -> Iterator[Notice]:
    """Keys that newer versions have renamed or moved."""
    for old, new in MOVED.items():
        table, _, key = old.partition(".")
        if table in seen.top.values and (not key or key in seen.table(table).values):
            yield seen.say(
                old, NoticeSeverity.NOTE, "An older name, which newer versions refuse.", new or "remove it", _CONFIG
            )


def unknown_keys(seen: Titan) -> Iterator[Notice]:
    """Tables and keys that no version has, where the file names no module that adds some."""
    if seen.extended:
        return
    for name, value in seen.top.values.items():
        if name in MOVED:
            continue
        if name not in TABLES:
            near = nearest(name, TABLES)
            yield seen.say(name, NoticeSeverity.ERROR, "torchtitan has no such table and refuses the file.",
                           f"[{near}]" if near else "remove it", f"{_CONFIG}, manager.py")  # fmt: skip
            continue
        known = TABLES[name]
        if not isinstance(value, dict) or known is None:
            continue
        for key, near in seen.table(name).unknown(known):
            if f"{name}.{key}" not in MOVED:
                yield seen.say(f"{name}.{key}", ERROR, "torchtitan has no such key and refuses the file.",
                               near or "remove it", f"{_CONFIG}, manager.py")  # fmt: skip


_RESHARD, _RESHARD_SOURCE = "fsdp_reshard_after_forward", "torchtitan/models/llama3/infra/parallelize.py: apply_fsdp"
_RECOMPUTATION = "torchtitan/distributed/activation_checkpoint.py"


def _in(table: str, key: str) -> Callable[[Titan], Any]:
    """The value of a key."""
    return lambda titan: titan.table(table).values.get(key)


_mode = _in("activation_checkpoint", "mode")
_option = _in("activation_checkpoint", "selective_ac_option")


def _is_option(value: Any) -> bool:
    return value is None or value == "op" or str(value).isdecimal()


def _saves(titan: Titan) -> bool:
    section = titan.table("checkpoint")
    return section.flag("enable") is True or section.flag("enable_checkpoint") is True


def _resharding_in(table: str) -> tuple[Row, ...]:
    policy = _in(table, _RESHARD)
    key = f"{table}.{_RESHARD}"
    return (
        Row(key, ERROR, lambda t: policy(t) is not None and policy(t) not in _POLICIES,
            lambda t: f"There is no policy {t.table(table).shown(_RESHARD)}.", '"default", "always" or "never"',
            _RESHARD_SOURCE),
        Row(key, WARNING, lambda t: policy(t) == "never" and t.degrees["pp"] <= 1,
            "Every unit's parameters stay gathered from forward to backward: the whole model in 16 bits at the peak, "
            "for one all-gather less.", '"default"', _RESHARD_SOURCE),
        Row(key, WARNING, lambda t: policy(t) == "always" and t.degrees["pp"] > 1,
            "In a pipeline this gathers every unit again for each micro-batch's backward, which the default avoids.",
            '"default"', _RESHARD_SOURCE),
    )  # fmt: skip


# fmt: off
resharding = rule(*_resharding_in("parallelism"), *_resharding_in("training"))
recomputation = rule(
    Row("activation_checkpoint.mode", ERROR, lambda t: _mode(t) is not None and _mode(t) not in _MODES,
        lambda t: f"There is no mode {t.table('activation_checkpoint').shown('mode')}.",
        " or ".join(f'"{name}"' for name in _MODES), _RECOMPUTATION),
    Row("activation_checkpoint.mode", ERROR, lambda t: _mode(t) == "memory_budget" and not t.compiles,
        "memory_budget is an option of the compiler and fails without it.", "[compile] enable = true", _RECOMPUTATION),
    Row("activation_checkpoint.selective_ac_option", ERROR,
        lambda t: _mode(t) in (None, "selective") and not _is_option(_option(t)),
        'It is "op" or a number in quotes (every nth layer).', '"op"', _RECOMPUTATION),
)
number_types = rule(
    Row("training.mixed_precision_param", WARNING,
        lambda t: t.table("training").word("mixed_precision_param") == "float32"
        and t.table("training").word("dtype") != "bfloat16",
        "All-gathers carry 32 bits, and matrix products run in fp32 or TF32.", '"bfloat16"', _CONFIG),
    Row("training.dtype", NOTE, lambda t: t.table("training").word("dtype") == "bfloat16",
        "Parameters, gradients and moments are kept in bf16 without an fp32 copy: small updates are lost to rounding.",
        '"float32", with mixed_precision_param = "bfloat16"', _CONFIG),
    Row("training.mixed_precision_reduce", ERROR,
        lambda t: t.table("training").word("mixed_precision_reduce") not in (None, "float32"),
        "torchtitan reduces in float32 only.", '"float32"', _CONFIG),
)
offload = rule(
    Row("training.enable_cpu_offload", WARNING, lambda t: t.table("training").flag("enable_cpu_offload"),
        "Shards cross PCIe in every forward and backward, and the optimizer runs on the CPU.",
        "false, if the states fit: diag plan MODEL --gpus N", "torch.distributed.fsdp.CPUOffloadPolicy"),
)
checkpoints = rule(
    Row("checkpoint.async_mode", WARNING,
        lambda t: _saves(t) and t.table("checkpoint").word("async_mode") in (None, "disabled"),
        "Training stops while a checkpoint is written.", '"async"', f"{_CONFIG}: async_mode"),
    Row("checkpoint.keep_latest_k", ERROR, lambda t: t.table("checkpoint").whole("keep_latest_k") == 1,
        "With 1 the only one may be half-written, so it is refused.", "keep_latest_k = 2",
        "torchtitan/components/checkpoint.py"),
)
# fmt: on

TRAINING_RULES = (
    no_more_toml, moved_keys, unknown_keys, resharding, recomputation, number_types, offload, checkpoints,
)  # fmt: skip
