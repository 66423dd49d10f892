"""Rules for FSDP's two versions: keys and values of the one given to the other."""

from __future__ import annotations

from collections.abc import Iterator

from .fsdp import FSDP1_ONLY, KNOWN, STRATEGIES, Fsdp
from .model import Notice, Severity
from .section import nearest

_PLUGIN = "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"
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


RULES = (
    fsdp1, version_not_given, no_such_version, strategy_in_fsdp2, reshard_without_value, reshard_of_other_version,
    keys_without_use_in_fsdp2, local_state, unknown_keys,
)  # fmt: skip
