"""FSDP1's keys line by line, and what FSDP2 has for each: in the tool's configuration and in Python."""

from __future__ import annotations

from collections.abc import Iterator

from .fsdp import FSDP1_ONLY, KNOWN, Fsdp
from .model import Translation

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
